"""What a run minimises, and when a row counts as right."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Objective(Protocol):
    """The loss of a run, and what its accuracy counts.

    Targets have one row an article, of whatever dtype and width the objective takes; they lie on the training device.
    """

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss, a mean over the rows of `logits`, float32 [N, classes]."""
        ...

    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Whether each row is labelled right, bool [N]."""
        ...


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
        """As `cross_entropy`, which waits for the GPU to smooth labels that have weights."""
        negative = -logits.log_softmax(1)
        own = weights[targets]
        of_labels = own * negative.gather(1, targets[:, None])[:, 0]
        smoothed = of_labels.lerp(negative @ weights / len(weights), self.label_smoothing)
        return smoothed.sum() / own.sum()

    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Whether the most probable class is the label, or the most probable target."""
        return logits.argmax(1) == (targets if targets.ndim == 1 else targets.argmax(1))


@dataclass(frozen=True)
class SeveralLabels:
    """Binary cross-entropy of each class's sigmoid, added up over the classes. Targets: bool [N, classes].

    There is no label smoothing: most classes are false of most rows, and their scores would all be lifted.
    """

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean over the rows of the sum over the classes."""
        import torch.nn.functional as F  # noqa: N812

        each = F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none")
        return each.sum(1).mean()

    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Whether exactly the row's labels have a score of one half or more."""
        return ((logits >= 0) == targets).all(1)


@cache
def _on(device: torch.device, weights: tuple[float, ...]) -> Tensor:
    """On a device, copied once: a CUDA graph cannot copy what lies on the host."""
    import torch

    return torch.tensor(weights, dtype=torch.float32, device=device)


def class_weights(labels: NDArray[np.int64], classes: int) -> tuple[float, ...]:
    """With which each class that occurs weighs the same in all, and a row on average 1."""
    rows = np.bincount(labels, minlength=classes)
    return tuple(len(labels) / (max(n, 1) * np.count_nonzero(rows)) for n in rows.tolist())
