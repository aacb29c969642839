"""How much the network counts, and how much the branch of n-grams, in the sum of their logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Doubles = NDArray[np.float64]

_BEFORE = 0.5  # the average of two models
_HOLD = 4.0  # rows' worth


def factors(network: Doubles, branch: Doubles, truth: NDArray[np.int64]) -> tuple[float, float]:
    """Of the network's logits and the branch's, [N, classes], those with which their sum fits the true classes best.

    The mean cross-entropy of N rows that neither was fitted to is least; no factor is below 0. Few rows say little:
    they move the factors less from one half.
    """
    rows = np.arange(len(truth))
    if not len(rows):
        return _BEFORE, _BEFORE

    def loss(both: Any) -> tuple[float, list[float]]:
        away = np.asarray(both) - _BEFORE
        logits = both[0] * network + both[1] * branch
        logits -= logits.max(axis=1, keepdims=True)
        powers = np.exp(logits)
        sums = powers.sum(axis=1)
        expected = [(powers * part).sum(axis=1) / sums for part in (network, branch)]
        slopes = [float((e - part[rows, truth]).mean()) for e, part in zip(expected, (network, branch), strict=True)]
        slopes = [slope + 2 * _HOLD * part / len(rows) for slope, part in zip(slopes, away, strict=True)]
        fits = float((np.log(sums) - logits[rows, truth]).mean())
        return fits + _HOLD * float(away @ away) / len(rows), slopes

    found = minimize(loss, [_BEFORE, _BEFORE], jac=True, bounds=[(0, 20), (0, 20)]).x
    return float(found[0]), float(found[1])
