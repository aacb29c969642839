"""Finds rows of labelled articles that are copies of others.

A held-out row with the text, or nearly the text, of another row measures what the model remembers. Two texts are nearly
the same if they share most of their words and pairs of neighbouring words. MinHash finds such rows (Broder, "On the
resemblance and containment of documents", 1997). It applies several hash functions to the words and pairs of a text,
and keeps the smallest hash of each function. The share of functions for which two texts have the same smallest hash
estimates which share of their words and pairs they have in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.ngrams import Kinds, find
from .data import TextBuffers, joined

_KINDS = Kinds(words=2, characters=(0, 0), reads=1014)
_BANDS, _HASHES = 6, 8  # 6 bands of 8 hash functions each; two texts are compared if all hashes of a band agree
_LEAST_EQUAL = 0.8  # the share of equal hashes from which two texts are nearly the same
_BLOCK = 512  # texts at a time
_NO_WORDS = np.uint32(0xFFFFFFFF)  # stands in place of each hash if a text has no words

Rows = NDArray[np.int64]


class Copies(NamedTuple):
    """The number of rows that are copies of training rows.

    Attributes
    ----------
    rows : int
        The number of rows.
    same : int
        The number of rows with the text of a training row.
    near : int
        The number of other rows with nearly the text of a training row.

    """

    rows: int
    same: int
    near: int

    def about(self) -> dict[str, Any]:
        """Return the copies in the form of a model's card."""
        return {"copies": {"same text": self.same, "nearly the same text": self.near}} if any(self[1:]) else {}

    def lines(self) -> Iterator[str]:
        """Messages for the user about the rows of the training data."""
        if self.same:
            yield f"{self.same:,} of {self.rows:,} rows have the same text as another row: held out together"
        if self.near:
            start = f"{self.near:,} of {self.rows:,} rows have nearly the same text as another row"
            yield f"{start}, which the model may have learned from: on new text it may be worse than the figures here"

    def test_lines(self) -> Iterator[str]:
        """A message for the user about the rows of a test."""
        if self.same or self.near:
            start = f"{self.same:,} of {self.rows:,} test rows have the same text as a row of the training data"
            yield f"{start}, {self.near:,} more have nearly the same: the test is easier than new text"


def copies(text: TextBuffers, tested: TextBuffers | None = None) -> tuple[Copies, Copies]:
    """Count the rows of `text`, and of `tested`, that have the text of another row of `text`, or nearly."""
    # Find the rows with the same text as another row.
    known = len(text.offsets) - 1
    both = text if tested is None else joined([text, tested])
    partner = _partners(both.numbered(), known)
    same, near = partner >= 0, np.zeros(len(partner), np.bool_)
    # Find the rows with nearly the same text: compare each row with one that has the same hashes in a band. A random
    # linear combination turns the hashes of a band into one key.
    hashes = _hashes(both)
    factors = np.random.default_rng(1).integers(0, 1 << 63, _HASHES, np.uint64)
    for band in range(0, _BANDS * _HASHES, _HASHES):
        partner = _partners(hashes[:, band : band + _HASHES].astype(np.uint64) @ factors, known)
        near |= (partner >= 0) & ((hashes == hashes[partner]).mean(axis=1) >= _LEAST_EQUAL)
    near &= ~same & (hashes[:, 0] != _NO_WORDS)
    parts = slice(known), slice(known, None)
    ours, theirs = (Copies(len(same[rows]), int(same[rows].sum()), int(near[rows].sum())) for rows in parts)
    return ours, theirs


def _partners(keys: NDArray[Any], known: int) -> Rows:
    """Return, for each row, another one with the same key among the first `known`; -1 if there is none."""
    values, first, of_row = np.unique(keys[:known], return_index=True, return_inverse=True)
    last = np.zeros_like(first)
    last[of_row] = np.arange(known)
    at = np.minimum(np.searchsorted(values, keys), len(values) - 1)
    rows = np.arange(len(keys))
    other = np.where(first[at] == rows, last[at], first[at])
    return np.where((values[at] == keys) & (other != rows), other, -1)


def _hashes(text: TextBuffers) -> NDArray[np.uint32]:
    """Return the smallest hashes of each text's words and pairs of words, [N, _BANDS * _HASHES].

    A hash function is the product of a 32-bit hash and an odd number, modulo 2^32.
    """
    factors = np.random.default_rng(0).integers(0, 1 << 32, (_BANDS * _HASHES, 1), np.uint32) | np.uint32(1)
    hashes = np.full((len(factors), len(text.offsets) - 1), _NO_WORDS)
    for first in range(0, hashes.shape[1], _BLOCK):
        bounds = text.offsets[first : first + _BLOCK + 1]
        for grams in find(text.data[bounds[0] : bounds[-1]], bounds - bounds[0], _KINDS, 32).words:
            some = np.flatnonzero(np.diff(grams.offsets))
            if len(some):
                least = np.minimum.reduceat(grams.buckets * factors, grams.offsets[some], axis=1)
                hashes[:, first + some] = np.minimum(hashes[:, first + some], least)
    return np.ascontiguousarray(hashes.T)
