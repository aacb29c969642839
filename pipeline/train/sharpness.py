"""By how much logits are to be multiplied so that they are probabilities, of one label a text or of several."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from ..model.scores import TEMPERATURES, fitted, log_loss

Doubles = NDArray[np.float64]

_BOUNDS = -np.log(TEMPERATURES[1]), -np.log(TEMPERATURES[0])


def sharpened(logits: Doubles, truth: NDArray[Any], weights: Doubles | None = None) -> tuple[float, float]:
    """The least log loss of logits [N, classes], and the factor at which it is reached; 1 where there is none.

    truth: class indices [N], of a softmax; or bool [N, classes], of sigmoids, whose losses are added up. weights: [N],
    how much each row of a softmax counts; None: all the same.
    """
    if truth.ndim == 1:
        temperature = fitted(logits, truth, weights) or 1.0
        return log_loss(logits, truth, temperature, weights), 1 / temperature
    away = np.where(truth, -logits, logits)

    def loss(power: float) -> float:
        return float(np.logaddexp(0, np.exp(power) * away).sum(axis=1).mean())

    found = minimize_scalar(loss, bounds=_BOUNDS, method="bounded").x
    power = float(found) if _BOUNDS[0] + 0.1 < found < _BOUNDS[1] - 0.1 else 0.0
    return loss(power), float(np.exp(power))
