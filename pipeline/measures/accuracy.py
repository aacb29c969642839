"""Computes accuracy, precision, recall and F1 for texts with one label and for texts with several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.reference import NO_LABEL
from ..source.rows.labels import NO_TRUTH
from .intervals import Interval, wilson


class ClassFigures(NamedTuple):
    """The figures of one class.

    Attributes
    ----------
    name : str
        The name of the class.
    precision : float
        The share of the rows with this label that have this true class; nan if no row has the label.
    recall : float
        The share of the rows of this true class that have its label; nan if no row has the true class.
    f1 : float
        The harmonic mean of precision and recall; nan if neither is defined.
    support : int
        The number of rows of this true class.
    precision_interval, recall_interval : Interval
        The 95 % confidence intervals of precision and recall.

    """

    name: str
    precision: float
    recall: float
    f1: float
    support: int
    precision_interval: Interval
    recall_interval: Interval


@dataclass(frozen=True)
class Confusion:
    """The confusion matrix, and the accuracy that follows from it.

    Attributes
    ----------
    classes : tuple of str
        The names of the classes.
    counts : int64 [classes, classes]
        The number of rows by true class and predicted class.
    without_truth : int
        The number of rows whose truth column names no class of the model. No other figure counts them.
    unlabelled : int64 [classes]
        The number of rows by true class that got no label, because their score was too low. No other figure counts
        them.

    """

    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    without_truth: int = 0
    unlabelled: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def rows(self) -> int:
        """The number of rows with a truth and a label."""
        return int(self.counts.sum())

    @property
    def pairs(self) -> tuple[tuple[int, int, int], ...]:
        """The counts as tuples (true class, predicted class, rows), which `confusion_of` takes.

        The predicted class of rows without a truth is no longer known and given as 0.
        """
        cells = [(int(a), int(b), int(self.counts[a, b])) for a, b in np.argwhere(self.counts)]
        cells += [(a, NO_LABEL, n) for a, n in enumerate(self.unlabelled.tolist()) if n]
        return (*([(NO_TRUTH, 0, self.without_truth)] if self.without_truth else []), *sorted(cells))

    @property
    def correct(self) -> int:
        """The number of rows whose label is the true class."""
        return int(np.trace(self.counts))

    @property
    def accuracy(self) -> float:
        """The share of rows with the right label; nan without rows."""
        return _share(self.correct, self.rows)

    @property
    def interval(self) -> Interval:
        """The 95 % confidence interval of the accuracy on all rows like these."""
        return wilson(self.correct, self.rows)

    @property
    def standard_error(self) -> float:
        """The standard error of the accuracy as a binomial proportion; nan without rows."""
        return float(np.sqrt(self.accuracy * (1 - self.accuracy) / self.rows)) if self.rows else float("nan")

    def mistakes(self, count: int) -> list[tuple[str, str, int]]:
        """Return the most frequent mistakes as tuples of true class, label and number of rows."""
        wrong = self.counts - np.diag(np.diag(self.counts))
        most_frequent = np.argsort(-wrong, axis=None, kind="stable")[:count]
        places = zip(*np.unravel_index(most_frequent, wrong.shape), strict=True)
        return [(self.classes[i], self.classes[j], int(wrong[i, j])) for i, j in places if wrong[i, j]]

    def per_class(self) -> list[ClassFigures]:
        """Return the figures of each class, in order."""
        figures = []
        for i, name in enumerate(self.classes):
            hits, true, given = int(self.counts[i, i]), int(self.counts[i].sum()), int(self.counts[:, i].sum())
            f1 = _share(2 * hits, true + given)
            shares = _share(hits, given), _share(hits, true)
            figures.append(ClassFigures(name, *shares, f1, true, wilson(hits, given), wilson(hits, true)))
        return figures


def confusion_of(
    pairs: Iterable[tuple[int, int, int]], classes: tuple[str, ...], before: Confusion | None = None
) -> Confusion:
    """Return the confusion matrix of any number of `count_pairs` results.

    If `before` is given, its counts are changed in place.
    """
    size = len(classes)
    before = before or Confusion(classes, np.zeros((size, size), np.int64), 0, np.zeros(size, np.int64))
    counts, without, unlabelled = before.counts, before.without_truth, before.unlabelled
    for true, predicted, number in pairs:
        if true == NO_TRUTH:
            without += number
        elif predicted == NO_LABEL:
            unlabelled[true] += number
        else:
            counts[true, predicted] += number
    return Confusion(classes, counts, without, unlabelled)


class LabelFigures(NamedTuple):
    """The figures of one class.

    Attributes
    ----------
    name : str
        The name of the class.
    precision : float
        The share of the rows given this label that have it; nan if no row was given it.
    recall : float
        The share of the rows with this label that were given it; nan if no row has it.
    f1 : float
        The harmonic mean of precision and recall; nan if neither is defined.
    support : int
        The number of rows that have this label.
    given : int
        The number of rows that were given this label.
    precision_interval, recall_interval : Interval
        The 95 % confidence intervals of precision and recall.

    """

    name: str
    precision: float
    recall: float
    f1: float
    support: int
    given: int
    precision_interval: Interval
    recall_interval: Interval


@dataclass(frozen=True)
class LabelCounts:
    """Counts of the labels that rows have and that they were given.

    Attributes
    ----------
    classes : tuple of str
        The names of the classes.
    rows : int
        The number of rows that were counted.
    exact : int
        The number of rows that were given exactly the labels that they have.
    hits, given, true : int64 [classes]
        The number of rows that have a label and were given it, that were given it, and that have it.

    """

    classes: tuple[str, ...]
    rows: int
    exact: int
    hits: NDArray[np.int64]
    given: NDArray[np.int64]
    true: NDArray[np.int64]

    @classmethod
    def of(cls, classes: tuple[str, ...], given: NDArray[np.bool_], true: NDArray[np.bool_]) -> LabelCounts:
        """Count N rows. given, true: which labels each row was given, and which it has, [N, classes]."""
        exact = int((given == true).all(axis=1).sum())
        return cls(classes, len(given), exact, (given & true).sum(axis=0), given.sum(axis=0), true.sum(axis=0))

    def __add__(self, other: LabelCounts) -> LabelCounts:
        """Return the sums of both counts."""
        hits, given, true = self.hits + other.hits, self.given + other.given, self.true + other.true
        return LabelCounts(self.classes, self.rows + other.rows, self.exact + other.exact, hits, given, true)

    def per_class(self) -> list[LabelFigures]:
        """Return the figures of each class, in order."""
        columns = zip(self.classes, self.hits.tolist(), self.given.tolist(), self.true.tolist(), strict=True)
        figures = []
        for name, hits, given, true in columns:
            shares = _share(hits, given), _share(hits, true), _share(2 * hits, given + true)
            figures.append(LabelFigures(name, *shares, true, given, wilson(hits, given), wilson(hits, true)))
        return figures

    @property
    def micro_f1(self) -> float:
        """The F1 of all labels of all rows together; nan without labels."""
        return _share(2 * int(self.hits.sum()), int(self.given.sum() + self.true.sum()))

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that have one; nan if no class has one."""
        defined = [figures.f1 for figures in self.per_class() if figures.f1 == figures.f1]
        return sum(defined) / len(defined) if defined else float("nan")

    @property
    def exact_share(self) -> float:
        """The share of rows that were given exactly their labels; nan without rows."""
        return _share(self.exact, self.rows)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
