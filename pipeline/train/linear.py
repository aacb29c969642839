"""A multinomial logistic regression, fitted to sparse features by L-BFGS.

The weights of the minimum are a combination of the rows, weights = featuresᵀ @ dual, so all that is kept of them is
`dual`, [rows, classes], and the scores that follow, features @ weights: for a few thousand rows of a million features
that is a thousandth of the numbers. Sums and products of weights are those of their duals and scores, so that a step
costs one product with the features and one with their transpose, and a line search none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

_MEMORY = 10  # steps that L-BFGS looks back on
_STEPS = 100
_SETTLED = 2e-3  # of the gradient's norm at the start
_SHRINK, _ENOUGH, _TRIES = 0.5, 1e-4, 20  # of the line search: Nocedal and Wright, Numerical Optimization, 3.1


class _Weights(NamedTuple):
    """Weights as `dual` and `scores`, [rows, classes], and a bias, [classes]; a direction or a gradient, too."""

    dual: Doubles
    scores: Doubles
    bias: Doubles

    def plus(self, other: _Weights, factor: float) -> _Weights:
        return _Weights(*(mine + factor * its for mine, its in zip(self, other, strict=True)))

    def times(self, other: _Weights) -> float:
        """The inner product."""
        return float(np.vdot(self.dual, other.scores) + self.bias @ other.bias)


@dataclass(frozen=True)
class Fitted:
    """What was fitted. dual: [rows, classes]. scores: of the rows that it was fitted to. bias: [classes]."""

    dual: Doubles
    scores: Doubles
    bias: Doubles

    def weights(self, features: sp.csr_array) -> Doubles:
        """The weights [features, classes]; `features` are those that it was fitted to."""
        return np.asarray(features.T @ self.dual)


def fit(
    features: sp.csr_array, targets: Doubles, strength: float, start: Fitted | None = None, settled: float = _SETTLED
) -> Fitted:
    """Minimise the mean cross-entropy plus strength/2 * sum of squared weights; the bias costs nothing.

    features: [rows, features]. targets: probabilities [rows, classes]; a row whose sum is not 1 counts so much more or
    less. start: from which to begin, fitted to the same rows.
    """
    transposed = features.T.tocsr()

    def gradient(at: _Weights) -> _Weights:
        slope = (_softmax(at.scores + at.bias) * mass - targets) / len(targets)
        dual = slope + strength * at.dual
        return _Weights(dual, np.asarray(features @ (transposed @ dual)), slope.sum(axis=0))

    def loss(at: _Weights) -> float:
        logits = at.scores + at.bias
        return _cross_entropy(logits, targets, mass) + 0.5 * strength * float(np.vdot(at.dual, at.scores))

    mass = targets.sum(axis=1, keepdims=True)
    nothing = np.zeros_like(targets)
    at = _Weights(nothing, nothing, np.log(np.maximum(targets.mean(axis=0), 1e-3)))
    size = np.sqrt((first := gradient(at)).times(first))
    if start is not None:
        at = _Weights(start.dual, start.scores, start.bias)
    slope, value, steps = gradient(at), loss(at), list[tuple[_Weights, _Weights]]()
    for _ in range(_STEPS):
        if np.sqrt(slope.times(slope)) <= settled * size:
            break
        direction = _direction(slope, steps)
        descent, length = slope.times(direction), 1.0
        for _ in range(_TRIES):
            there = at.plus(direction, length)
            if (reached := loss(there)) <= value + _ENOUGH * length * descent:
                break
            length *= _SHRINK
        else:
            break
        slope_there = gradient(there)
        steps = [*steps, (there.plus(at, -1), slope_there.plus(slope, -1))][-_MEMORY:]
        at, slope, value = there, slope_there, reached
    return Fitted(*at)


def _direction(slope: _Weights, steps: list[tuple[_Weights, _Weights]]) -> _Weights:
    """Where to go: the two loops of L-BFGS (Nocedal and Wright, algorithm 7.4)."""
    towards, factors = slope, []
    for moved, changed in reversed(steps):
        factor = moved.times(towards) / moved.times(changed)
        towards = towards.plus(changed, -factor)
        factors.append(factor)
    if steps:
        moved, changed = steps[-1]
        towards = _scaled(towards, moved.times(changed) / changed.times(changed))
    for (moved, changed), factor in zip(steps, reversed(factors), strict=True):
        towards = towards.plus(moved, factor - changed.times(towards) / moved.times(changed))
    return _scaled(towards, -1)


def _scaled(weights: _Weights, factor: float) -> _Weights:
    return _Weights(*(factor * part for part in weights))


def _softmax(logits: Doubles) -> Doubles:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _cross_entropy(logits: Doubles, targets: Doubles, mass: Doubles) -> float:
    shifted = logits - logits.max(axis=1, keepdims=True)
    normaliser = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(((normaliser * mass).sum() - np.vdot(shifted, targets)) / len(targets))
