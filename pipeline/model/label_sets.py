"""Several labels a text: which classes a text is given, and the thresholds by which that is decided."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DEFAULT_THRESHOLD = 0.5
"""Of a class that no held-out row has."""


def assigned(scores: NDArray[np.float32], thresholds: Sequence[float]) -> NDArray[np.bool_]:
    """Which classes each of N texts is given, [N, classes]: those whose score reaches its threshold.

    scores: float32 [N, classes]. None of an article without scores, which are NaN.
    """
    given: NDArray[np.bool_] = scores >= np.asarray(thresholds, np.float32)
    return given


def best_thresholds(scores: NDArray[np.float32], truth: NDArray[np.bool_]) -> tuple[float, ...]:
    """For each class the threshold with the best F1 on N rows, both [N, classes].

    It lies half-way between the scores of two rows; of several that are as good, it is the highest.
    """
    return tuple(_best(scores[:, i], truth[:, i]) for i in range(scores.shape[1]))


def _best(scores: NDArray[np.float32], truth: NDArray[np.bool_]) -> float:
    """scores, truth: of one class, [N]. With h hits among the n highest scores, F1 is 2 h / (n + true rows)."""
    if not truth.any():
        return DEFAULT_THRESHOLD
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order].astype(np.float64), np.cumsum(truth[order])
    f1 = 2 * hits / (np.arange(1, len(ranked) + 1) + truth.sum())
    f1[:-1][ranked[1:] == ranked[:-1]] = -1  # a threshold takes all rows of a score or none
    last = int(np.argmax(f1))
    below = ranked[last + 1] if last + 1 < len(ranked) else 0.0
    threshold = np.float32((ranked[last] + below) / 2)
    return float(np.clip(threshold, np.float32(1e-6), np.float32(1 - 1e-6)))
