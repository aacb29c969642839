"""Counts the rows of a chunk by length, by score and by label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..model.reference import NO_LABEL
from ..source.rows.labels import NO_TRUTH

LENGTHS = (0, 1, 50, 100, 150, 200, 250, 300, 400, 500, 750, 1000, 2000, 5000, 10_000)
"""The numbers of characters at which the classes of article lengths begin. The last class has no end."""


def count_lengths(n_chars: NDArray[np.int64]) -> list[int]:
    """Return the number of articles in each class of LENGTHS. n_chars: the characters of each article, [N]."""
    classes = np.searchsorted(LENGTHS, n_chars, side="right") - 1  # np.histogram would sort the lengths
    return [int(n) for n in np.bincount(classes, minlength=len(LENGTHS))]


SCORES = (*(i / 20 for i in range(20)), 0.99)
"""The scores at which the bins of a histogram begin. The last bin ends with 1."""

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""The values of SCORES for which a report says how many rows reach them."""

_SCORES = np.array(SCORES[1:], np.float32)
"""SCORES in the precision of scores, as `where` compares them."""


def count_scores(
    names: Sequence[str], labels: NDArray[np.integer], scores: NDArray[np.float32]
) -> dict[str, tuple[int, ...]]:
    """Return the number of rows in each bin of SCORES, for each label that occurs.

    labels: the number of each row's label in `names`, [N]. scores: the score of each label, [N].
    """
    bins = labels.astype(np.intp) * len(SCORES) + np.searchsorted(_SCORES, scores, side="right")
    counts = np.bincount(bins, minlength=len(names) * len(SCORES)).reshape(len(names), len(SCORES))
    return {names[i]: tuple(counts[i].tolist()) for i in np.flatnonzero(counts.any(axis=1)).tolist()}


def rows_above(bins: Sequence[int]) -> list[int]:
    """Return how many rows reach each of THRESHOLDS with their score. bins: the rows in each bin of SCORES."""
    return [sum(bins[SCORES.index(score) :]) for score in THRESHOLDS]


def count_pairs(truth: NDArray[np.int32], predicted: NDArray[np.int32]) -> list[tuple[int, int, int]]:
    """Return a tuple (true class, predicted class, rows) for each pair of classes that occurs.

    Rows without a truth count under NO_TRUTH, and rows without a label under NO_LABEL.
    """
    predicted = predicted - np.int32(NO_LABEL)
    width = int(predicted.max(initial=0)) + 1
    # Pairs are counted as integers: sorting them held the GIL for 50 ms a chunk, and the device waited.
    counts = np.bincount((truth.astype(np.intp) - NO_TRUTH) * width + predicted)
    cells = np.flatnonzero(counts)
    pairs = (cells // width + NO_TRUTH, cells % width + NO_LABEL, counts[cells])
    return list(zip(*(column.tolist() for column in pairs), strict=True))
