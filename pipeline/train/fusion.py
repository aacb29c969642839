"""How much the network counts, and how much the branch of n-grams, in the sum of their logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logsumexp, softmax

Doubles = NDArray[np.float64]

_BEFORE = 0.5  # the average of two models
_HOLD = 4.0  # rows' worth
_MOST = 20.0
_BY_CHANCE = 2.0  # so much likelier the rows become with a network that knows nothing in one case of 40


def factors(network: Doubles, branch: Doubles, truth: NDArray[Any]) -> tuple[float, float]:
    """Of the network's logits and the branch's, [N, classes], those with which their sum fits the true classes best.

    truth: class indices [N], of a softmax; or bool [N, classes], of sigmoids. The mean cross-entropy of N rows that
    neither was fitted to is least; no factor is below 0. Few rows say little: they move the factors less from one half.

    The network's is 0 where the rows are not clearly likelier with it, or fewer of them would be right, than with the
    branch alone.
    """
    if not len(truth):
        return _BEFORE, _BEFORE
    rows = _Rows(network, branch, truth)
    both, alone = rows.fitted(_MOST), rows.fitted(0.0)
    gain = len(truth) * (rows.loss(alone) - rows.loss(both))
    kept = gain > _BY_CHANCE and rows.right(both) >= rows.right(alone)
    return (float(both[0]), float(both[1])) if kept else (0.0, float(alone[1]))


class _Rows:
    def __init__(self, network: Doubles, branch: Doubles, truth: NDArray[Any]) -> None:
        self._parts = network, branch
        self._several = truth.ndim > 1
        self._target = (truth if self._several else np.eye(network.shape[1])[truth]).astype(np.float64)

    def _logits(self, both: Doubles) -> Doubles:
        logits: Doubles = both[0] * self._parts[0] + both[1] * self._parts[1]
        return logits

    def loss(self, both: Doubles) -> float:
        """The mean cross-entropy; of sigmoids, added up over the classes."""
        logits = self._logits(both)
        normaliser = np.logaddexp(0, logits).sum(axis=1) if self._several else logsumexp(logits, axis=1)
        return float((normaliser - (self._target * logits).sum(axis=1)).mean())

    def right(self, both: Doubles) -> int:
        """Rows whose label is right, or labels that are."""
        logits = self._logits(both)
        if self._several:
            return int(((logits >= 0) == (self._target > 0)).sum())
        return int((logits.argmax(axis=1) == self._target.argmax(axis=1)).sum())

    def fitted(self, most: float) -> Doubles:
        """Both factors; that of the network is at most so large."""

        def held(both: Any) -> tuple[float, Doubles]:
            logits, away = self._logits(both), np.asarray(both) - _BEFORE
            off = (expit(logits) if self._several else softmax(logits, axis=1)) - self._target
            slopes = np.array([(off * part).sum(axis=1).mean() for part in self._parts])
            weight = _HOLD / len(off)
            return self.loss(both) + weight * float(away @ away), slopes + 2 * weight * away

        found: Doubles = minimize(held, [min(_BEFORE, most), _BEFORE], jac=True, bounds=[(0, most), (0, _MOST)]).x
        return found
