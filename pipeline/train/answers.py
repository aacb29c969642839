"""The labels of rows, in the form that linear models and fine-tuned encoders learn."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.scores import Heads, parts_of
from ..source.rows.labels import NO_TRUTH
from .objective import class_weights, sharpened

RowNumbers = NDArray[np.int64]
Labels = NDArray[Any]
"""int64 [N], class indices; bool [N, classes], if a text may have several labels; int64 [N, heads]."""

Floats = NDArray[np.float64]


class Answers(NamedTuple):
    """The labels of N texts.

    Attributes
    ----------
    labels : Labels
        The labels. A text without a label has its most probable class here.
    classes : int
        The number of classes.
    weights : float64 [N], or with heads [N, classes]
        The weight of each text.
    soft : float [N, classes], optional
        The shares of the classes, learned instead of `labels`.
    steps : float64 [N], optional
        Numbers that are learned instead of `labels`, which are then the nearest levels.
    absolute : bool
        Whether the loss of a number is its absolute error. If not, it is the squared error.
    heads : Heads, optional
        The heads to which the labels belong.

    """

    labels: Labels
    classes: int
    weights: Floats
    soft: NDArray[np.floating] | None = None
    steps: Floats | None = None
    absolute: bool = False
    heads: Heads | None = None

    @classmethod
    def of(cls, labels: Labels, classes: int, balanced: bool = False, heads: Heads | None = None) -> Answers:
        """Return answers from labels alone.

        balanced: whether the rows of every class have the same total weight. A row has the weight 1 on average.
        """
        if heads is None:
            return cls(labels, classes, _weights(labels, classes, balanced))
        of_heads = [
            _weights(column_labels, count, balanced) for column_labels, (_, count) in zip(labels.T, heads, strict=True)
        ]
        weights = np.repeat(np.column_stack(of_heads), [count for _, count in heads], axis=1)
        return cls(labels, classes, weights, heads=heads)

    def rows(self, rows: RowNumbers) -> Answers:
        """Return the answers of some texts."""
        soft = None if self.soft is None else self.soft[rows]
        steps = None if self.steps is None else self.steps[rows]
        return self._replace(labels=self.labels[rows], weights=self.weights[rows], soft=soft, steps=steps)

    @property
    def columns(self) -> int:
        """The number of scores of a linear model."""
        return self.classes if self.steps is None else 1

    def shares(self) -> Floats:
        """Return the share of each class in each text's answer, [N, classes]."""
        if self.soft is not None:
            return self.soft.astype(np.float64)
        if self.heads is not None:
            of_heads = zip(self.labels.T, self.heads, strict=True)
            return np.column_stack(
                [Answers.of(column_labels, count).shares() for column_labels, (_, count) in of_heads]
            )
        truth = self.labels if self.labels.ndim > 1 else self.labels[:, None] == np.arange(self.classes)
        return truth.astype(np.float64)

    def log_loss(self, logits: Floats) -> tuple[float, Any]:
        """Return the smallest log loss and its factor, as in `sharpened`.

        For a number, return its own loss and 1. For heads, return the sum of the losses, and for each class the factor
        of its head.
        """
        if self.heads is not None:
            losses, factors = np.zeros(self.classes), np.ones(self.classes)  # a head's loss is at its first class
            for part, column_labels in zip(parts_of(self.heads), self.labels.T, strict=True):
                if len(known := np.flatnonzero(column_labels != NO_TRUTH)):
                    of_known = logits[known, part], column_labels[known], self.weights[known, part.start]
                    losses[part.start], factors[part] = sharpened(*of_known)
            return float(losses.sum()), factors
        if self.steps is not None:
            off = np.abs(logits[:, 0] - self.steps)
            return float((off if self.absolute else off**2).mean()), 1.0
        return sharpened(logits, self.labels, self.weights)


def _weights(labels: Labels, classes: int, balanced: bool) -> Floats:
    """Return the weights of N texts: 1 on average over those that have a label, and 0 for others."""
    if labels.ndim > 1:
        return np.ones(len(labels))
    known = labels != NO_TRUTH
    of_classes = np.asarray(class_weights(labels[known], classes)) if balanced else np.ones(classes)
    return np.asarray(known * of_classes[labels] * (len(labels) / max(int(known.sum()), 1)))
