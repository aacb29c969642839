"""n-grams for tests: branches with random weights, and text that is hard to split into words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.model import ngrams
from broadsheet.pipeline.model.ngrams import Kinds, NGrams, scores

BITS = 10
KINDS = [Kinds(2, (3, 5), 1014), Kinds(1, (0, 0), 64), Kinds(0, (1, 4), 9), Kinds(2, (5, 8), 200)]


def branch(kinds: Kinds, classes: int = 4, seed: int = 0) -> NGrams:
    """Return a branch with random weights, in which every eighth bucket is empty."""
    rng = np.random.default_rng(seed)
    table = rng.integers(-32_767, 32_768, (1 << BITS, classes + 1)).astype(np.int16)
    table[:, -1] = rng.integers(0, ngrams.LARGEST_SQUARE + 1, 1 << BITS)
    table[::8] = 0
    return NGrams(kinds, table, rng.normal(0, 1e-3, (2, classes)).astype(np.float32))


def scored(articles: list[bytes], at: NGrams) -> NDArray[np.float32]:
    texts = Texts.of(articles)
    return scores(texts.data, texts.offsets, at)


PIECES = [
    b"stocks", b"Fell", b" ", b"  ", b"\n", b"a", b"_x9", b"-", b"'s", "Ünïcode ÉÈ×÷".encode(), "Ελλάδα ΑΩ".encode(),
    "Привет Ёлка".encode(), "新华社 北京".encode(), "\u201cquoted\u201d\u3000".encode(), "\U0001f600".encode(),
    "\U00020000".encode(), b"\xff\xc3", b"\xed\xa0\x80", b"\xe2\x82", b"\x00", b"\xf0\x90", "e\u0301".encode(),
]  # fmt: skip
HOSTILE = [
    b"", b" ", b"x", b"\x80" * 300, b"\xf0\x9f\x98" * 90, b"a" * 5000, b"a b " * 700, b"\n" * 2000,
    bytes(range(256)) * 9, "é".encode() * 1014 + b"after", b" " * 1013 + b"word" * 9,
]  # fmt: skip
