"""What a run minimises, and when a row counts as right; by how much logits are sharpened."""

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
    """Cross-entropy of the softmax. Targets: int64 [N], class indices, or float32 [N, classes], probabilities.

    label_smoothing: probability spread evenly over the classes. weights: of each class; none for one of 1.
    """

    label_smoothing: float
    weights: tuple[float, ...] = ()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        import torch.nn.functional as F  # noqa: N812

        weights = _on(logits.device, self.weights) if self.weights else None
        if weights is not None and targets.ndim == 1:
            return self._weighted(logits, targets, weights)
        return F.cross_entropy(logits, targets, weights, label_smoothing=self.label_smoothing)

    def _weighted(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The same as PyTorch's `cross_entropy`, which would wait for the GPU to smooth labels that have weights."""
        negative = -logits.log_softmax(1)
        known, targets = targets != NO_TRUTH, targets.clamp(min=0)
        own = weights[targets] * known
        of_labels = own * negative.gather(1, targets[:, None])[:, 0]
        smoothed = of_labels.lerp(known * (negative @ weights) / len(weights), self.label_smoothing)
        return smoothed.sum() / own.sum().clamp(min=_NO_ROWS)

    def of_known(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over the rows that have a label, where others have NO_TRUTH."""
        return self._weighted(logits, targets, _on(logits.device, self.weights or (1.0,) * logits.shape[1]))

    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Whether the most probable class is the label, or the most probable target."""
        return logits.argmax(1) == (targets if targets.ndim == 1 else targets.argmax(1))


@dataclass(frozen=True)
class SeveralColumns:
    """The losses of several columns, added up. Targets: int64 [N, columns], of each the index among its own classes, or
    NO_TRUTH: such a row does not count for that column.

    objectives: of as many classes as `counts` says.
    """

    objectives: tuple[OneLabel, ...]
    counts: tuple[int, ...]

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of all classes; none where they are 1."""
        return tuple(weight for one in self.objectives for weight in one.weights)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The sum over the columns of the mean over their rows."""
        import torch

        parts = zip(self.objectives, torch.split(logits, list(self.counts), 1), targets.unbind(1), strict=True)
        return torch.stack([one.of_known(own, labels) for one, own, labels in parts]).sum()

    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Whether the most probable class of each column is its label, where the row has one."""
        import torch

        best = torch.stack([own.argmax(1) for own in torch.split(logits, list(self.counts), 1)], 1)
        return ((best == targets) | (targets == NO_TRUTH)).all(1)


@dataclass(frozen=True)
class SeveralLabels:
    """Binary cross-entropy of each class's sigmoid, added up over the classes. Targets: bool [N, classes].

    There is no label smoothing: most classes are false of most rows, and their scores would all be lifted.
    """

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean over the rows of the sum over the classes."""
        import torch.nn.functional as F  # noqa: N812

        losses = F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none")
        return losses.sum(1).mean()

    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Whether exactly the row's labels have a score of one half or more."""
        return ((logits >= 0) == targets).all(1)


Objective: TypeAlias = OneLabel | SeveralColumns | SeveralLabels
"""The loss of a run, a mean over the rows of float32 logits [N, classes], and which rows its accuracy counts as right.
Targets have one row an article, of whatever dtype and width it takes; they lie on the training device.
"""

_NO_ROWS = 1e-30  # of weights, where there are none


@cache
def _on(device: torch.device, weights: tuple[float, ...]) -> Tensor:
    """The weights on a device, copied once: a CUDA graph cannot copy what lies on the host."""
    import torch

    return torch.tensor(weights, dtype=torch.float32, device=device)


def objective_of(columns: Sequence[tuple[NDArray[np.int64], int]], smoothing: float, balanced: bool) -> Objective:
    """The objective for one label an article, in one column or in each of several. columns: labels, and how many
    classes there are.
    """
    objectives = tuple(
        OneLabel(smoothing, class_weights(labels[labels != NO_TRUTH], count) if balanced else ())
        for labels, count in columns
    )
    return objectives[0] if len(objectives) == 1 else SeveralColumns(objectives, tuple(count for _, count in columns))


def class_weights(labels: NDArray[np.int64], classes: int) -> tuple[float, ...]:
    """A weight for each class, so that all classes that occur weigh the same, and a row 1 on average."""
    rows = np.bincount(labels, minlength=classes)
    return tuple(len(labels) / (max(n, 1) * np.count_nonzero(rows)) for n in rows.tolist())


_BOUNDS = -np.log(TEMPERATURES[1]), -np.log(TEMPERATURES[0])


def sharpened(logits: Doubles, truth: NDArray[Any], weights: Doubles | None = None) -> tuple[float, float]:
    """The least log loss of logits [N, classes], and the factor at which it is reached; 1 where there is none.

    truth: class indices [N], of a softmax; or bool [N, classes], of sigmoids, whose losses are added up. weights: [N],
    how much each row of a softmax counts; None: all the same.
    """
    if truth.ndim == 1:
        temperature = fitted(logits, truth, weights) or 1.0
        return log_loss(logits, truth, temperature, weights), 1 / temperature
    from scipy.optimize import minimize_scalar  # half a second, which a network of one label does not need

    away = np.where(truth, -logits, logits)

    def loss(power: float) -> float:
        return float(np.logaddexp(0, np.exp(power) * away).sum(axis=1).mean())

    minimum = minimize_scalar(loss, bounds=_BOUNDS, method="bounded").x
    power = float(minimum) if _BOUNDS[0] + 0.1 < minimum < _BOUNDS[1] - 0.1 else 0.0
    return loss(power), float(np.exp(power))
