"""Explains the scores of one text: where each of its n-grams is, and what it adds to the score of each class.

The scores of `ngrams.py` are sums over buckets, divided by a norm that depends on the text. So they are also sums over
n-grams, in which n-grams of the same bucket share the bucket's part equally.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .ngrams import BEYOND, SPACE, Grams, Kinds, NGrams, counted, find, script

Doubles = NDArray[np.float64]
_Places = list[tuple[NDArray[np.int64], NDArray[np.int64]]]


class WeighedNGrams(NamedTuple):
    """The G n-grams of one text.

    Attributes
    ----------
    of_words : bool [G]
        Whether it is an n-gram of words; otherwise, it is one of characters.
    begins, ends : int64 [G]
        Where the n-gram begins and ends in the text, in characters, without white space around it.
    weights : float64 [G, classes]
        What the n-gram adds to the score of each class. The sums over all n-grams are the scores of `ngrams.scores`.

    """

    of_words: NDArray[np.bool_]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    weights: Doubles


def weighed(text: str, ngrams: NGrams) -> WeighedNGrams:
    """Return the n-grams of a text, each with what it adds to the scores."""
    kinds, data = ngrams.kinds, np.frombuffer(text.encode(), np.uint8)
    found = find(data, np.array([0, len(data)], np.int64), kinds, ngrams.bits)
    places = _places(text[: kinds.reads], kinds)
    parts = []
    for number, (grams, of_kind) in enumerate(zip(found, places, strict=True)):
        if not grams:
            continue
        begins, ends = (np.concatenate(side) for side in zip(*of_kind, strict=True))
        weights = _weights(grams, ngrams, ngrams.scale[number].astype(np.float64))
        parts.append((np.full(len(begins), number == 0), begins, ends, weights))
    return WeighedNGrams(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _weights(grams: list[Grams], ngrams: NGrams, scale: Doubles) -> Doubles:
    """Return what each n-gram of one kind adds, [G, classes], in the order of `grams`."""
    buckets = np.concatenate([one.buckets for one in grams])
    if not len(buckets):
        return np.zeros((0, len(scale)))
    used, times, _ = counted(grams, 1, ngrams.bits)
    rows = ngrams.table[used].astype(np.float64)
    length = np.sqrt((times**2 * rows[:, -1]).sum())
    of_bucket = times[:, None] * rows[:, :-1] * scale / length if length else 0 * rows[:, :-1]
    at, often = np.searchsorted(used, buckets), np.bincount(np.searchsorted(used, buckets))
    return np.asarray((of_bucket / often[:, None])[at])


def _places(text: str, kinds: Kinds) -> tuple[_Places, _Places]:
    """Return where the n-grams of `find` begin and end, one pair for each n: first of words, then of characters."""
    points = np.array([*map(ord, text)], np.int64)
    symbols = np.full(len(points) + 2, SPACE, np.uint16)  # white space before the text and after it
    in_table = script()
    symbols[1:-1] = np.where(points < 1 << 16, in_table.symbols[points & 0xFFFF], BEYOND)
    letter = np.unpackbits(in_table.letters.view(np.uint8), bitorder="little").astype(np.bool_)[symbols]
    first = np.flatnonzero(letter[1:] & ~letter[:-1])
    last = np.flatnonzero(letter[:-1] & ~letter[1:])
    words = [(first[: len(first) - n], last[n:]) for n in range(kinds.words)] if kinds.words else []
    space, of_characters = symbols == SPACE, []
    low, high = kinds.characters
    for n in range(low, high + 1) if high else ():
        count = max(len(symbols) - n + 1, 0)
        whole = ~np.any([space[k : k + count] for k in range(1, n - 1)], axis=0) if n > 2 else np.ones(count, np.bool_)
        if n < 3:
            whole &= ~(space[:count] & space[n - 1 : n - 1 + count])
        at = np.flatnonzero(whole)
        begins, ends = at - 1 + space[at], at - 1 + n - space[at + n - 1]
        of_characters.append((begins, np.maximum(begins, ends)))
    return words, of_characters
