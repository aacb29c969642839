"""Compare Broadsheet's tokens for encoders with those of `tokenizers`, on random texts in all scripts.

    python -m benchmarks.fuzz_tokens --texts 1_000_000 --output benchmarks/results/fuzz_tokens.json
    python -m benchmarks.fuzz_tokens --texts 20_000 --kinds wordpiece-uncased

Each kind of tokenizer is trained on such texts, and transformers saves it as in the folder of an encoder. transformers
and Broadsheet both load it from the folder:

- Our own code computes four kinds of WordPiece, here in NumPy. `tests/kernels/test_wordpiece_on_cpu.py` compares the
  kernel with the same code.
- `tokenizers` computes Unigram and byte-level BPE on both sides. Here the test is what Broadsheet makes of a folder: it
  stores the tokenizer as JSON, adds the special tokens, and cuts long texts by itself.

A text draws most of its characters from a few scripts. The script of a character is the first word of its name in
Unicode. Special tokens, control characters, marks in any order and characters of all other scripts are mixed in. Some
texts are longer than the number of tokens that is read.

The process exits with 1 if the tokens of any text differ.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import about, parser, write
from broadsheet.pipeline.model import encoder_tokens, library_tokenizer
from broadsheet.pipeline.model.stored_tokenizer import StoredTokenizer
from broadsheet.pipeline.model.wordpiece import WordPiece

MOST = 64
"""The number of tokens of a text that are read."""

_AT_ONCE, _SHOWN, _LEARNED = 5_000, 20, 5_000
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_BETWEEN = [" "] * 12 + ["  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\u200b", "-", ".", ", ", "", "'", "/"]
_ODD = ["\u0000", "\u0085", "\u00ad", "\u200d", "\ufeff", "\ufffd", "\U000e0041", "\ud7ff", "\ue000", "\U0010fffd"]

Encode = Callable[[list[str]], list[list[int]]]


def characters_by_script() -> dict[str, list[str]]:
    """Return all characters that have a name, by the first word of the name. For letters, it is the script."""
    found: dict[str, list[str]] = {}
    for code_point in range(0x110000):
        if name := unicodedata.name(chr(code_point), ""):
            found.setdefault(name.split(" ", 1)[0].split("-", 1)[0], []).append(chr(code_point))
    return found


class Texts:
    """Random texts.

    Parameters
    ----------
    seed : int
        The seed of all texts.

    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.scripts = characters_by_script()
        self._names = [*self.scripts]
        self._marks = [chr(c) for c in range(0x110000) if unicodedata.combining(chr(c))]
        self._words: dict[str, list[str]] = {}

    def draw(self, count: int) -> list[str]:
        """Draw the next texts."""
        return [self._text() for _ in range(count)]

    def _text(self) -> str:
        """Draw a text of 1 to 50 words in a few scripts."""
        drawn = self._random
        names = drawn.choices(self._names, k=drawn.choice((1, 1, 1, 2, 3)))
        if drawn.random() < 0.3:
            names.append("LATIN")
        parts = []
        for _ in range(drawn.choice((1, 2, 3, 4, 6, 8, 12, 50))):
            parts += [self._word(drawn.choice(names)), drawn.choice(_BETWEEN)]
        return "".join(parts)

    def _word(self, script: str) -> str:
        """Draw a word in a script, or sometimes a special token or odd characters."""
        drawn = self._random
        kind = drawn.random()
        if kind < 0.02:
            return drawn.choice(_SPECIAL)
        if kind < 0.04:
            return drawn.choice(_ODD)
        if kind < 0.07:
            return "".join(drawn.choices(self._marks, k=drawn.randint(1, 4)))
        if kind < 0.09:
            return "".join(drawn.choices(self.scripts[drawn.choice(self._names)], k=drawn.randint(1, 4)))
        known = self._words.setdefault(script, [])
        if len(known) < 40 or kind > 0.97:  # most words occur again, so that vocabularies hold parts of them
            longest = 130 if drawn.random() < 0.01 else 9
            letters = drawn.choices(self.scripts[script], k=drawn.randint(1, longest))
            known.append("".join(letters))
        word = drawn.choice(known)
        return drawn.choice((word, word, word.lower(), word.title(), unicodedata.normalize("NFD", word)))


def _trained(kind: str, texts: list[str]) -> Any:
    """Train a tokenizer of `tokenizers` on texts."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    options: dict[str, Any] = {"vocab_size": 30_000, "special_tokens": _SPECIAL, "show_progress": False}
    if kind == "unigram":
        made = Tokenizer(models.Unigram())
        made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        trainer: Any = trainers.UnigramTrainer(unk_token="[UNK]", **options)
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    made.train_from_iterator(texts, trainer)
    frame = [(token, made.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=frame)
    return made


def _library_folder(kind: str, texts: list[str], folder: Path) -> StoredTokenizer:
    """Train and save a tokenizer that `tokenizers` computes, and load it from the folder."""
    import transformers

    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), _SPECIAL, strict=True))
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=_trained(kind, texts), model_max_length=MOST, **names)
    made.save_pretrained(folder)
    return library_tokenizer.load(folder, kind, lower=False).tokens


def _wordpiece_folder(settings: dict[str, Any], texts: list[str], folder: Path) -> WordPiece:
    """Train and save a tokenizer of BERT, and load it from the folder. Half of the characters have an entry."""
    import transformers
    from tokenizers import BertWordPieceTokenizer

    learned = BertWordPieceTokenizer(
        lowercase=settings["do_lower_case"],
        strip_accents=settings["strip_accents"],
        handle_chinese_chars=settings["tokenize_chinese_chars"],
    )
    learned.train_from_iterator(texts, vocab_size=60_000, limit_alphabet=20_000, show_progress=False)
    entries = sorted(learned.get_vocab(), key=learned.get_vocab().__getitem__)
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")
    made = transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=MOST, **settings)
    made.save_pretrained(folder)
    (folder / "vocab.txt").unlink()
    tokenizer = encoder_tokens.build(folder, None, "wordpiece").tokenizer
    return encoder_tokens.word_piece(tokenizer, False, len(entries), "wordpiece")


_WORDPIECE = {
    "wordpiece-uncased": {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True},
    "wordpiece-cased": {"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": True},
    "wordpiece-lower-with-accents": {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": True},
    "wordpiece-cased-without-accents": {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
}  # fmt: skip
KINDS = (*_WORDPIECE, "unigram", "byte-level-bpe")


def _ours(tokens: WordPiece | StoredTokenizer) -> Encode:
    """Return the function that computes tokens with Broadsheet."""

    def encode(texts: list[str]) -> list[list[int]]:
        data = [text.encode() for text in texts]
        places = np.cumsum([0, *map(len, data)])
        ids, ends, _ = tokens.of_texts(np.frombuffer(b"".join(data), np.uint8), places, MOST)
        return [ids[first:last].tolist() for first, last in pairwise(ends)]

    return encode


def _theirs(folder: Path) -> Encode:
    """Return the function that computes tokens with transformers."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return lambda texts: list(tokenizer(texts, truncation=True, max_length=MOST)["input_ids"])


def _differences(texts: list[str], here: list[list[int]], there: list[list[int]]) -> list[dict[str, Any]]:
    """Return the texts whose tokens differ, with the tokens of both sides."""
    return [
        {"text": ascii(text[:300]), "broadsheet": ours[:30], "tokenizers": theirs[:30]}
        for text, ours, theirs in zip(texts, here, there, strict=True)
        if ours != theirs
    ]


def compared(kind: str, count: int, seed: int) -> dict[str, Any]:
    """Compare the tokens of `count` texts, and describe the texts and the first that differ."""
    # Train the tokenizer on the first texts.
    began = time.perf_counter()
    drawn = Texts(seed)
    texts = drawn.draw(min(_LEARNED, count))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        made: WordPiece | StoredTokenizer = (
            _wordpiece_folder(_WORDPIECE[kind], texts, folder)
            if kind in _WORDPIECE
            else _library_folder(kind, texts, folder)
        )
        # Compare the tokens of the next texts.
        ours, theirs = _ours(made), _theirs(folder)
        found: list[dict[str, Any]] = []
        differ = characters = tokens = cut = 0
        seen: set[str] = set()
        for first in range(0, count, _AT_ONCE):
            texts = drawn.draw(min(_AT_ONCE, count - first))
            characters += sum(map(len, texts))
            seen.update(*texts)
            here, there = ours(texts), theirs(texts)
            own = _differences(texts, here, there)
            tokens += sum(map(len, there))
            cut += sum(len(ids) == MOST for ids in there)
            differ += len(own)
            found += own[: _SHOWN - len(found)]
    # Describe the comparison.
    of_letters = [some for some in drawn.scripts.values() if any(map(str.isalpha, some))]
    return {
        "kind": kind,
        "texts": count,
        "characters": characters,
        "tokens": tokens,
        "entries": made.size,
        "scripts": sum(not seen.isdisjoint(letters) for letters in of_letters),
        "scripts_in_unicode": len(of_letters),
        "different_characters": len(seen),
        "share_as_long_as_is_read": round(cut / count, 3),
        "texts_that_differ": differ,
        "first_differences": found,
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Compare all kinds of tokenizers, and write the results after each one."""
    command = parser(__doc__)
    command.add_argument("--texts", type=int, default=1_000_000, help="for each kind")
    command.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    command.add_argument("--seed", type=int, default=0)
    options: argparse.Namespace = command.parse_args()
    origin = about(options, device="cpu", unicode=unicodedata.unidata_version)
    origin["versions"] |= {"tokenizers": version("tokenizers"), "transformers": version("transformers")}
    results = []
    for kind in options.kinds:
        results.append(compared(kind, options.texts, options.seed))
        print(f"{kind}: {results[-1]['texts_that_differ']:,} of {options.texts:,} texts differ", file=sys.stderr)
        if options.output is not None:  # the results so far, in case the run ends early
            write({"about": origin, "seed": options.seed, "kinds": results}, options.output)
    if options.output is None:
        write({"about": origin, "seed": options.seed, "kinds": results}, None)
    sys.exit(any(result["texts_that_differ"] for result in results))


if __name__ == "__main__":
    main()
