"""Pretrained word vectors, which help with words that occur in few labelled rows, or in none.

A score that is linear in the sum of a text's word vectors is a sum of class weights by word. So the weights that
training learns for the vectors are added to the table of n-grams, to the rows of single words. They cost no time when
texts are labelled.
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
"""The package with vectors of 32,000 tokens, 256 numbers each. Its name also names its vectors."""

AUTO = "auto"
"""Chooses the vectors of this package if it is installed and there are few labelled rows."""

_FEW_ROWS = 10_000  # with more rows, vectors no longer help, and the fit takes longer
_MOST_OF_ROWS = 200_000  # different words of the texts that can get vectors, the most frequent ones
_MOST_OWN = 50_000  # words at the beginning of a table that get vectors even if no text has them
_WORD = re.compile(r"\w+")
_SPACE_MARKS = "▁Ġ"  # marks at the beginning of a token that begins a word
_FORMS = (
    "safetensors with a vocabulary, text of word2vec, GloVe or fastText (.vec), its .bin, or the folder of an encoder "
    "or of model2vec"
)


class WordVectors(NamedTuple):
    """Vectors of words.

    Attributes
    ----------
    words : list of str
        The W words, in lower case, in the form that is hashed.
    vectors : float32 [W, dimensions]
        The vector of each word.
    about : dict
        The name and the size of the vectors, for a model's card.

    """

    words: list[str]
    vectors: Vectors
    about: dict[str, Any]

    def buckets(self, bits: int) -> tuple[NDArray[np.uint32], Vectors]:
        """Return the buckets of single words, ascending, and the sum of the vectors of each bucket's words."""
        texts = Texts.of([word.encode() for word in self.words])
        (grams,) = find(texts.data, texts.offsets, Kinds(1, (0, 0), 1014), bits).words
        single = np.diff(grams.offsets) == 1
        buckets, of_word = np.unique(grams.buckets[grams.offsets[:-1][single]], return_inverse=True)
        vectors = np.zeros((len(buckets), self.vectors.shape[1]), np.float32)
        np.add.at(vectors, of_word, self.vectors[single])
        return buckets, vectors


def chosen_vectors(what: str | Path | None, rows: int) -> list[str]:
    """Return the names, files or folders of the vectors that a fit uses, maybe none.

    Parameters
    ----------
    what : str, Path or None
        The option of the user: several names with commas between them, "auto", or None for no vectors. If a file or
        folder has the whole name, commas included, it is one path.
    rows : int
        The number of labelled rows, which decides what "auto" means.

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
    """Read the vectors of the words of some texts, and of the words that are first in each table of vectors.

    Tables usually list the most frequent words first. Several tables become one table, in which a word has its vectors
    of all tables side by side. So that each table counts the same, its vectors get a mean of zero and a mean length of
    one. A word that a table lacks has zeros there.

    Parameters
    ----------
    named : sequence of str
        ``"wordllama"``, files and folders.
    text : TextBuffers
        The texts.
    device : str
        The device that computes an encoder's vectors; see `open_engine`.
    tell : callable
        Called with a note and the progress if an encoder is distilled.

    Raises
    ------
    UsageError
        If a table cannot be read, has values that are not finite, or has no vector for any word.

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
    """Read the vectors of one name, file or folder. The parameters are those of `read_vectors`."""
    # Read the vectors of the package, or of a file or folder by its format.
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
    # Check the vectors, and make one table of them.
    if not by_word:
        raise UsageError(f"{what} has no vector for any word of the texts: name vectors of the same language")
    vectors = np.stack(list(by_word.values())).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise UsageError(f"{what} holds a value that is not finite")
    return WordVectors(list(by_word), vectors, {**about, "words": len(by_word), "dimensions": vectors.shape[1]})


def _distilled(encoder: Path, device: str, tell: Callable[[Told], None]) -> Path:
    """Return the folder with static vectors of an encoder's tokens. The parameters are those of `read_vectors`."""
    what = f"static vectors of {encoder.resolve().name}"

    def begins(folder: Path) -> None:
        tell(Note(f"{what}, for the first time: a few minutes of a CPU core. They are kept in {folder}"))

    return static_folder(encoder, device, begins, lambda tokens_done, tokens: tell(RowsDone(what, tokens_done, tokens)))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError, ModelError) as error:
        raise UsageError(f"{path} holds no word vectors that can be read, {_FORMS} ({error})") from error


def _words_of(text: TextBuffers) -> list[str]:
    """Return the most frequent words of some texts in lower case, in descending order of frequency."""
    counts: Counter[str] = Counter()
    for first, last in zip(text.offsets, text.offsets[1:], strict=False):
        counts.update(_WORD.findall(text.data[first:last].tobytes().decode(errors="ignore").lower()))
    return [word for word, _ in counts.most_common(_MOST_OF_ROWS)]


def _of_tokens(weights: Path, tokenizer: Path, wanted: Sequence[str]) -> dict[str, Vectors]:
    """Return the mean vector of the tokens of each word.

    A word may be spelled in lower case, with a capital, or in capitals. The spelling with the fewest tokens counts.
    """
    # Load the table of token vectors, and the tokenizer.
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise UsageError(f"these vectors need a package: {install('vectors')} ({error})") from error
    with _readable(weights):
        table = _table(weights)
        text = tokenizer.read_text(encoding="utf-8")
    try:
        splitter = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises no narrower class
        raise UsageError(f"{tokenizer} is no tokenizer ({error})") from error
    splitter.no_truncation()
    splitter.no_padding()
    # Choose the words: those of the texts, and the first tokens that are whole words or begin words.
    by_number = sorted((number, token) for token, number in splitter.get_vocab().items())
    begins = any(token[:1] in _SPACE_MARKS for _, token in by_number)
    spelled = (token[1:] if begins else token for _, token in by_number if not begins or token[:1] in _SPACE_MARKS)
    words = _with_own(wanted, spelled)
    # Split every spelling of each word into tokens. Put a space before it if only that makes it begin a word.
    space = "" if any(token[:1] == _SPACE_MARKS[0] for _, token in by_number) or not begins else " "
    ignores_case = splitter.normalizer is not None and splitter.normalizer.normalize_str("A") == "a"
    spell = (str,) if ignores_case else (str, str.capitalize, str.upper)
    forms = [space + form(word) for word in words for form in spell]
    split = splitter.encode_batch(forms, add_special_tokens=False)
    # Keep the shortest split without unknown tokens. Leave out words for which the table lacks a token.
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
    # Average the vectors of each word's tokens.
    counts = np.array([*map(len, tokens_of.values())])
    tokens = np.concatenate([*tokens_of.values()])
    means = np.add.reduceat(table[tokens], np.cumsum(counts) - counts, axis=0) / counts[:, None]
    return dict(zip(tokens_of, means, strict=True))


def _table(path: Path) -> Vectors:
    """Return the only table of a safetensors file.

    model2vec also stores the weight of each token ("weights"), and the row of the table for each token ("mapping").
    """
    with safe_open(path, "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    (table,) = (tensor for tensor in tensors.values() if tensor.ndim == 2)
    if "mapping" in tensors:
        table = table[tensors["mapping"]]
    table = table.astype(np.float32)
    weights = tensors.get("weights", np.ones(1)).astype(np.float32)
    return np.asarray(table * weights[:, None])


def _of_vocabulary(path: Path, wanted: Sequence[str]) -> dict[str, Vectors]:
    """Return vectors of a table whose rows are words.

    The words are a JSON list in the file's metadata under "vocabulary", or the lines of NAME.txt beside the file.
    """
    with safe_open(path, "np") as file:
        listed = (file.metadata() or {}).get("vocabulary")
    beside = path.with_suffix(".txt")
    words = json.loads(listed) if listed is not None else beside.read_text(encoding="utf-8").splitlines()
    table = _table(path)
    if len(words) != len(table):
        raise ValueError(f"{len(words):,} words for {len(table):,} vectors")
    rows = {str(word).lower(): row for row, word in reversed([*enumerate(words)])}  # the first of equal words counts
    return {word: table[rows[word]] for word in _with_own(wanted, words) if word in rows}


def _of_fasttext(path: Path, wanted: Sequence[str]) -> dict[str, Vectors]:
    """Return vectors of a file of fastText. If it has subwords, they give vectors to words that the file lacks."""
    tokens, model = read_vectors_of_fasttext(path)
    spelled = {token.lower(): token for token in reversed(tokens)}  # the first token of each lower-case form
    words = _with_own(wanted, tokens)
    texts = Texts.of([spelled.get(word, word).encode() for word in words])
    means = Reader(model).means(texts.data, texts.offsets)
    return {words[row]: means[row] for row in np.flatnonzero(means.any(axis=1)).tolist()}


def _of_text(path: Path, wanted: Sequence[str]) -> dict[str, Vectors]:
    """Return vectors of a text file. Each line has a word and its numbers. The first line may hold their counts."""
    needed, by_word = set(wanted), dict[str, Vectors]()
    width, own_count = 0, 0
    with open(path, encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file):
            word, _, numbers = line.rstrip().partition(" ")
            if number == 0 and numbers.isdecimal():
                continue
            key, is_own = word.lower(), own_count < _MOST_OWN and _WORD.fullmatch(word) is not None
            own_count += is_own
            if key in by_word or not (is_own or key in needed):
                continue
            vector = np.array(numbers.split(" "), np.float32)
            width = width or len(vector)
            if len(vector) != width:
                raise ValueError(f"line {number + 1} has {len(vector)} numbers, not {width}")
            by_word[key] = vector
    return by_word


def _with_own(wanted: Sequence[str], words_of_vectors: Iterable[str]) -> list[str]:
    """Return the words of the texts (`wanted`), then those of the first _MOST_OWN words of the vectors that the
    texts lack.
    """
    first = (word.lower() for word in words_of_vectors if _WORD.fullmatch(word))
    words = dict.fromkeys(wanted)
    for count, word in enumerate(first):
        if count >= _MOST_OWN:
            break
        words.setdefault(word)
    return list(words)
