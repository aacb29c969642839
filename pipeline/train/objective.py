"""The losses that training minimises, which rows count as right, and the factor by which logits are sharpened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..model.scores import TEMPERATURES, fitted, log_loss
from ..source.rows.labels import NO_TRUTH

Doubles = NDArray[np.float64]

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class OneLabel:
    """The cross-entropy of the softmax, for one label per article.

    Targets are class indices, int64 [N], or probabilities, float32 [N, classes].

    Attributes
    ----------
    label_smoothing : float
        Probability that is spread evenly over the classes.
    weights : tuple of float
        The weight of each class; empty if all classes have the weight 1.

    """

    label_smoothing: float
    weights: tuple[float, ...] = ()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, with the weights of the classes."""
        import torch.nn.functional as F  # noqa: N812

        weights = _on(logits.device, self.weights) if self.weights else None
        if weights is not None and targets.ndim == 1:
            return self._weighted(logits, targets, weights)
        return F.cross_entropy(logits, targets, weights, label_smoothing=self.label_smoothing)

    def _weighted(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the same as PyTorch's `cross_entropy` without waiting for the GPU.

        PyTorch's function waits if it smooths labels that have weights.
        """
        negative = -logits.log_softmax(1)
        known, targets = targets != NO_TRUTH, targets.clamp(min=0)
        row_weights = weights[targets] * known
        of_labels = row_weights * negative.gather(1, targets[:, None])[:, 0]
        smoothed = of_labels.lerp(known * (negative @ weights) / len(weights), self.label_smoothing)
        return smoothed.sum() / row_weights.sum().clamp(min=_NO_ROWS)

    def of_known(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the rows that have a label; the targets of other rows are NO_TRUTH."""
        return self._weighted(logits, targets, _on(logits.device, self.weights or (1.0,) * logits.shape[1]))

    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return whether the most probable class is the label, or the class of the highest target, bool [N]."""
        return logits.argmax(1) == (targets if targets.ndim == 1 else targets.argmax(1))


@dataclass(frozen=True)
class SeveralColumns:
    """The sum of the losses of several label columns.

    Targets are int64 [N, columns]: the index of the label among the classes of the column, or NO_TRUTH if the row does
    not count for this column.

    Attributes
    ----------
    objectives : tuple of OneLabel
        The objective of each column.
    counts : tuple of int
        The number of classes of each column.

    """

    objectives: tuple[OneLabel, ...]
    counts: tuple[int, ...]

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of all classes; empty if they are 1."""
        return tuple(weight for one in self.objectives for weight in one.weights)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over the columns of the mean loss over the rows with a label."""
        import torch

        parts = zip(self.objectives, torch.split(logits, list(self.counts), 1), targets.unbind(1), strict=True)
        return torch.stack([one.of_known(column_logits, labels) for one, column_logits, labels in parts]).sum()

    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return whether all columns with a label have it as their most probable class, bool [N]."""
        import torch

        best = torch.stack([column_logits.argmax(1) for column_logits in torch.split(logits, list(self.counts), 1)], 1)
        return ((best == targets) | (targets == NO_TRUTH)).all(1)


@dataclass(frozen=True)
class SeveralLabels:
    """The binary cross-entropy of each class's sigmoid, summed over the classes. Targets are bool [N, classes].

    There is no label smoothing: most rows have only a few of the classes, and smoothing would raise the scores of all
    others.
    """

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the rows of the sum over the classes."""
        import torch.nn.functional as F  # noqa: N812

        losses = F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none")
        return losses.sum(1).mean()

    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return whether exactly the row's labels have a score of one half or more, bool [N]."""
        return ((logits >= 0) == targets).all(1)


Objective: TypeAlias = OneLabel | SeveralColumns | SeveralLabels
"""The loss of a run, and which rows its accuracy counts as right.

The loss is a mean over the rows of float32 logits, [N, classes]. Targets have a row for each article; their dtype and
width depend on the objective. They are on the training device.
"""

_NO_ROWS = 1e-30  # the least sum of weights, which avoids a division by zero if no row has a label


@cache
def _on(device: torch.device, weights: tuple[float, ...]) -> Tensor:
    """Return the weights on a device. They are copied once, because a CUDA graph cannot copy from the host."""
    import torch

    return torch.tensor(weights, dtype=torch.float32, device=device)


def objective_of(columns: Sequence[tuple[NDArray[np.int64], int]], smoothing: float, balanced: bool) -> Objective:
    """Return the objective for one label per article, in one column or in each of several columns.

    Parameters
    ----------
    columns : sequence of (int64 [N], int)
        The labels of each column, and its number of classes.
    smoothing : float
        The label smoothing.
    balanced : bool
        Whether all classes of a column weigh the same.

    """
    objectives = tuple(
        OneLabel(smoothing, class_weights(labels[labels != NO_TRUTH], count) if balanced else ())
        for labels, count in columns
    )
    return objectives[0] if len(objectives) == 1 else SeveralColumns(objectives, tuple(count for _, count in columns))


def class_weights(labels: NDArray[np.int64], classes: int) -> tuple[float, ...]:
    """Return a weight for each class: all classes that occur weigh the same, and the mean weight of a row is 1."""
    rows = np.bincount(labels, minlength=classes)
    return tuple(len(labels) / (max(n, 1) * np.count_nonzero(rows)) for n in rows.tolist())


_BOUNDS = -np.log(TEMPERATURES[1]), -np.log(TEMPERATURES[0])


def sharpened(logits: Doubles, truth: NDArray[Any], weights: Doubles | None = None) -> tuple[float, float]:
    """Return the factor for logits, [N, classes], with the least log loss: that loss, and the factor.

    If no factor within the bounds has the least loss, the factor is 1.

    Parameters
    ----------
    logits : float64 [N, classes]
        The logits.
    truth : int64 [N], or bool [N, classes]
        Class indices, for a softmax; or which classes each row has, for sigmoids, whose losses are summed.
    weights : float64 [N], optional
        The weight of each row, for a softmax only. By default all rows weigh the same.

    """
    if truth.ndim == 1:
        temperature = fitted(logits, truth, weights) or 1.0
        return log_loss(logits, truth, temperature, weights), 1 / temperature
    from scipy.optimize import minimize_scalar  # this import takes half a second; a softmax does not need it

    away = np.where(truth, -logits, logits)

    def loss(power: float) -> float:
        return float(np.logaddexp(0, np.exp(power) * away).sum(axis=1).mean())

    minimum = minimize_scalar(loss, bounds=_BOUNDS, method="bounded").x
    # A minimum this near to a bound may lie beyond it.
    power = float(minimum) if _BOUNDS[0] + 0.1 < minimum < _BOUNDS[1] - 0.1 else 0.0
    return loss(power), float(np.exp(power))
