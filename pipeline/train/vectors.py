"""Pretrained word vectors, which say something about words that few labelled rows have, or none.

A score that is linear in the sum of a text's word vectors is a sum of class weights by word. So what is learned of the
vectors goes into the table of n-grams, into the rows of single words, and costs nothing when texts are labelled.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..engine.base import Texts
from ..errors import ModelError, UsageError, install
from ..model.fasttext import Reader
from ..model.fasttext_file import is_fasttext
from ..model.fasttext_file import read_vectors as read_vectors_of_fasttext
from ..model.ngrams import Kinds, find
from .data import TextBuffers
from .progress import Note, RowsDone, Told
from .static import is_static, static_folder

Vectors = NDArray[np.float32]

WORDLLAMA = "wordllama"
"""The package whose vectors are meant by its name: 32,000 tokens, 256 numbers each."""

AUTO = "auto"
"""The vectors of that package where it is installed, and the labelled rows are few."""

_FEW_ROWS = 10_000  # with more, vectors help no more, and the fit takes longer
_MOST_OF_ROWS = 200_000  # distinct words, the most frequent ones
_MOST_OWN = 50_000  # words of the vectors' own
_WORD = re.compile(r"\w+")
_SPACE_MARKS = "▁Ġ"  # before a token that begins a word
_FORMS = (
    "safetensors with a vocabulary, text of word2vec, GloVe or fastText (.vec), its .bin, or the folder of an encoder "
    "or of model2vec"
)


class WordVectors(NamedTuple):
    """Vectors of words.

    Attributes
    ----------
    words : list of str
        W of them, as they are hashed.
    vectors : ndarray
        float32 [W, dimensions].
    about : dict
        What they are, for a card.

    """

    words: list[str]
    vectors: Vectors
    about: dict[str, Any]

    def buckets(self, bits: int) -> tuple[NDArray[np.uint32], Vectors]:
        """The buckets of single words, ascending, each with the sum of its words' vectors."""
        texts = Texts.of([word.encode() for word in self.words])
        (grams,) = find(texts.data, texts.offsets, Kinds(1, (0, 0), 1014), bits).words
        single = np.diff(grams.offsets) == 1
        buckets, of_word = np.unique(grams.buckets[grams.offsets[:-1][single]], return_inverse=True)
        vectors = np.zeros((len(buckets), self.vectors.shape[1]), np.float32)
        np.add.at(vectors, of_word, self.vectors[single])
        return buckets, vectors


def chosen_vectors(what: str | Path | None, rows: int) -> list[str]:
    """The vectors that a fit to so many labelled rows takes: names, files or folders, or none.

    Several stand with commas between. A path with a comma is one path where a file or folder has that name.
    """
    if what is None:
        return []
    if str(what) == AUTO:
        return [WORDLLAMA] if rows <= _FEW_ROWS and find_spec(WORDLLAMA) and find_spec("tokenizers") else []
    return [str(what)] if Path(what).exists() else [name.strip() for name in str(what).split(",")]


def read_vectors(
    named: Sequence[str],
    text: TextBuffers,
    device: str = "auto",
    tell: Callable[[Told], None] = lambda what: None,
) -> WordVectors:
    """The vectors of the words of some texts, and of the words that are the most frequent where the vectors come from.

    Several tables become one: the numbers of a word stand side by side. So that each table counts the same, its vectors
    have a mean of zero and a mean length of one; a word that it lacks has zeros.

    Parameters
    ----------
    named : sequence of str
        ``"wordllama"``, files and folders.
    text : TextBuffers
        The texts.
    device : str
        The device that computes an encoder's vectors, as of `open_engine`.
    tell : callable
        Called with a note and the progress, where an encoder is distilled.

    Raises
    ------
    UsageError
        If a table cannot be read, or has no vector of a word of the texts.

    """
    tables = [_read_table(name, text, device, tell) for name in named]
    if len(tables) == 1:
        return tables[0]
    words = list(dict.fromkeys(word for table in tables for word in table.words))
    row_of = {word: row for row, word in enumerate(words)}
    parts = []
    for table in tables:
        centred = table.vectors - table.vectors.mean(axis=0)
        part = np.zeros((len(words), centred.shape[1]), np.float32)
        part[[row_of[word] for word in table.words]] = centred / max(np.linalg.norm(centred, axis=1).mean(), 1e-12)
        parts.append(part)
    vectors = np.hstack(parts)
    name = " and ".join(table.about["name"] for table in tables)
    return WordVectors(words, vectors, {"name": name, "words": len(words), "dimensions": vectors.shape[1]})


def _read_table(what: str, text: TextBuffers, device: str, tell: Callable[[Told], None]) -> WordVectors:
    """The vectors of one name, file or folder. The parameters are those of `read_vectors`."""
    wanted = _words_of(text)
    if what == WORDLLAMA:
        spec = find_spec(WORDLLAMA)
        if spec is None or not spec.submodule_search_locations:
            raise UsageError(f"the vectors of wordllama need its package: {install('vectors')}")
        folder = Path(spec.submodule_search_locations[0])
        weights, tokenizer = folder / "weights/l2_supercat_256.safetensors", folder / "tokenizers"
        by_word = _of_tokens(weights, tokenizer / "l2_supercat_tokenizer_config.json", wanted)
        about = {"name": f"{WORDLLAMA} {version(WORDLLAMA)}"}
    else:
        path = Path(what)
        with _readable(path):
            if path.is_dir():
                folder = path if is_static(path) else _distilled(path, device, tell)
                by_word = _of_tokens(folder / "model.safetensors", folder / "tokenizer.json", wanted)
            elif path.suffix == ".safetensors":
                by_word = _of_vocabulary(path, wanted)
            elif is_fasttext(path):
                by_word = _of_fasttext(path, wanted)
            else:
                by_word = _of_text(path, wanted)
        about = {"name": path.resolve().name}
    if not by_word:
        raise UsageError(f"{what} has a vector of no word of the texts")
    vectors = np.stack(list(by_word.values())).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise UsageError(f"{what} holds a value that is not finite")
    return WordVectors(list(by_word), vectors, {**about, "words": len(by_word), "dimensions": vectors.shape[1]})


def _distilled(encoder: Path, device: str, tell: Callable[[Told], None]) -> Path:
    """The folder with static vectors of an encoder's tokens. The parameters are those of `read_vectors`."""
    what = f"static vectors of {encoder.resolve().name}"

    def begins(folder: Path) -> None:
        tell(Note(f"{what}, for the first time: a few minutes of a CPU core. They are kept in {folder}"))

    return static_folder(encoder, device, begins, lambda done, most: tell(RowsDone(what, done, most)))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError, ModelError) as error:
        raise UsageError(f"{path} holds no word vectors that can be read, {_FORMS} ({error})") from error


def _words_of(text: TextBuffers) -> list[str]:
    """The words of some texts in lower case, the most frequent first."""
    counts: Counter[str] = Counter()
    for first, last in zip(text.offsets, text.offsets[1:], strict=False):
        counts.update(_WORD.findall(text.data[first:last].tobytes().decode(errors="ignore").lower()))
    return [word for word, _ in counts.most_common(_MOST_OF_ROWS)]


def _of_tokens(weights: Path, tokenizer: Path, wanted: Sequence[str]) -> dict[str, Vectors]:
    """The mean vector of each word's tokens, spelled with such capitals that these are the fewest."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise UsageError(f"these vectors need a package: {install('vectors')} ({error})") from error
    with _readable(weights):
        table = _table(weights)
        text = tokenizer.read_text(encoding="utf-8")
    try:
        splitter = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises nothing else
        raise UsageError(f"{tokenizer} is no tokenizer ({error})") from error
    splitter.no_truncation()
    splitter.no_padding()
    by_number = sorted((number, token) for token, number in splitter.get_vocab().items())
    begins = any(token[:1] in _SPACE_MARKS for _, token in by_number)
    own = (token[1:] if begins else token for _, token in by_number if not begins or token[:1] in _SPACE_MARKS)
    words = _with_own(wanted, own)
    space = "" if any(token[:1] == _SPACE_MARKS[0] for _, token in by_number) or not begins else " "
    ignores_case = splitter.normalizer is not None and splitter.normalizer.normalize_str("A") == "a"
    spell = (str,) if ignores_case else (str, str.capitalize, str.upper)
    forms = [space + form(word) for word in words for form in spell]
    split = splitter.encode_batch(forms, add_special_tokens=False)
    unknown = splitter.token_to_id(getattr(splitter.model, "unk_token", None) or "")
    tokens_of: dict[str, list[int]] = {}
    for at, word in enumerate(words):
        of_forms = split[len(spell) * at : len(spell) * (at + 1)]
        whole = (ids for form in of_forms if (ids := form.ids) and unknown not in ids)
        fewest = min(whole, key=len, default=[])
        if fewest and max(fewest) < len(table):
            tokens_of[word] = fewest
    if not tokens_of:
        return {}
    counts = np.array([*map(len, tokens_of.values())])
    tokens = np.concatenate([*tokens_of.values()])
    means = np.add.reduceat(table[tokens], np.cumsum(counts) - counts, axis=0) / counts[:, None]
    return dict(zip(tokens_of, means, strict=True))


def _table(path: Path) -> Vectors:
    """The one table of a safetensors file. model2vec also has what each token weighs, and which row is its own."""
    with safe_open(path, "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    (table,) = (tensor for tensor in tensors.values() if tensor.ndim == 2)
    if "mapping" in tensors:
        table = table[tensors["mapping"]]
    table = table.astype(np.float32)
    weights = tensors.get("weights", np.ones(1)).astype(np.float32)
    return np.asarray(table * weights[:, None])


def _of_vocabulary(path: Path, wanted: Sequence[str]) -> dict[str, Vectors]:
    """The vectors of a table whose rows are words: a list in the metadata under "vocabulary", or lines of NAME.txt
    beside it.
    """
    with safe_open(path, "np") as file:
        listed = (file.metadata() or {}).get("vocabulary")
    beside = path.with_suffix(".txt")
    words = json.loads(listed) if listed is not None else beside.read_text(encoding="utf-8").splitlines()
    table = _table(path)
    if len(words) != len(table):
        raise ValueError(f"{len(words):,} words for {len(table):,} vectors")
    rows = {str(word).lower(): row for row, word in reversed([*enumerate(words)])}  # of equal ones the first
    return {word: table[rows[word]] for word in _with_own(wanted, words) if word in rows}


def _of_fasttext(path: Path, wanted: Sequence[str]) -> dict[str, Vectors]:
    """The vectors of fastText's file, also of words that it lacks, by their subwords, if it has these."""
    tokens, model = read_vectors_of_fasttext(path)
    spelled = {token.lower(): token for token in reversed(tokens)}  # as the first is that becomes the same
    words = _with_own(wanted, tokens)
    texts = Texts.of([spelled.get(word, word).encode() for word in words])
    means = Reader(model).means(texts.data, texts.offsets)
    return {words[row]: means[row] for row in np.flatnonzero(means.any(axis=1)).tolist()}


def _of_text(path: Path, wanted: Sequence[str]) -> dict[str, Vectors]:
    """The vectors of lines with a word and its numbers. The first line may say how many there are."""
    needed, by_word = set(wanted), dict[str, Vectors]()
    width, own = 0, 0
    with open(path, encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file):
            word, _, numbers = line.rstrip().partition(" ")
            if number == 0 and numbers.isdecimal():
                continue
            key, is_own = word.lower(), own < _MOST_OWN and _WORD.fullmatch(word) is not None
            own += is_own
            if key in by_word or not (is_own or key in needed):
                continue
            vector = np.array(numbers.split(" "), np.float32)
            width = width or len(vector)
            if len(vector) != width:
                raise ValueError(f"line {number + 1} has {len(vector)} numbers, not {width}")
            by_word[key] = vector
    return by_word


def _with_own(wanted: Sequence[str], own: Iterable[str]) -> list[str]:
    """Words that are wanted, then the first of the vectors' own."""
    first = (word.lower() for word in own if _WORD.fullmatch(word))
    words = dict.fromkeys(wanted)
    for count, word in enumerate(first):
        if count >= _MOST_OWN:
            break
        words.setdefault(word)
    return list(words)
