"""Accuracy, precision, recall and F1 where a text has one label, and where it may have several."""

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
        The class.
    precision : float
        Share of the rows with this label whose true class it is; nan where there are none.
    recall : float
        Share of the rows of this true class that have its label; nan where there are none.
    f1 : float
        Harmonic mean of precision and recall; nan where neither is defined.
    support : int
        Rows of this true class.
    precision_interval, recall_interval : Interval
        Of precision and recall, with 95 % confidence.

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
        Names of the classes.
    counts : int64 [classes, classes]
        Rows by true class and predicted class.
    without_truth : int
        Rows whose truth column names no class of the model; no other figure counts them.
    unlabelled : int64 [classes]
        Rows by true class that were given no label, since their score was too low; no other figure counts them.

    """

    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    without_truth: int = 0
    unlabelled: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def rows(self) -> int:
        """Rows with a truth and a label."""
        return int(self.counts.sum())

    @property
    def pairs(self) -> tuple[tuple[int, int, int], ...]:
        """(true class, predicted class, rows), as `confusion_of` takes them; of rows without a truth the predicted
        class is not known any more, and 0.
        """
        cells = [(int(a), int(b), int(self.counts[a, b])) for a, b in np.argwhere(self.counts)]
        cells += [(a, NO_LABEL, n) for a, n in enumerate(self.unlabelled.tolist()) if n]
        return (*([(NO_TRUTH, 0, self.without_truth)] if self.without_truth else []), *sorted(cells))

    @property
    def correct(self) -> int:
        """Rows whose label is the true class."""
        return int(np.trace(self.counts))

    @property
    def accuracy(self) -> float:
        """Share of rows labelled right; nan where there are none."""
        return _share(self.correct, self.rows)

    @property
    def interval(self) -> Interval:
        """Where the accuracy on all rows like these is, with 95 % confidence."""
        return wilson(self.correct, self.rows)

    @property
    def standard_error(self) -> float:
        """Standard error of the accuracy as a binomial proportion; nan where there are no rows."""
        return float(np.sqrt(self.accuracy * (1 - self.accuracy) / self.rows)) if self.rows else float("nan")

    def mistakes(self, count: int) -> list[tuple[str, str, int]]:
        """The most frequent ones: true class, label, rows."""
        wrong = self.counts - np.diag(np.diag(self.counts))
        most = np.argsort(-wrong, axis=None, kind="stable")[:count]
        places = zip(*np.unravel_index(most, wrong.shape), strict=True)
        return [(self.classes[i], self.classes[j], int(wrong[i, j])) for i, j in places if wrong[i, j]]

    def per_class(self) -> list[ClassFigures]:
        """The figures of each class, in order."""
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
    """The matrix of any number of `count_pairs` results. The counts of `before`, if given, are added to in place."""
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
        The class.
    precision : float
        Share of the rows that were given this label, and have it; nan where none were given it.
    recall : float
        Share of the rows that have this label, and were given it; nan where none have it.
    f1 : float
        Harmonic mean of precision and recall; nan where neither is defined.
    support : int
        Rows that have this label.
    given : int
        Rows that were given it.
    precision_interval, recall_interval : Interval
        Of precision and recall, with 95 % confidence.

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
    """Labels that rows have and were given.

    Attributes
    ----------
    classes : tuple of str
        Names of the classes.
    rows : int
        Rows that were counted.
    exact : int
        Rows that were given exactly the labels that they have.
    hits, given, true : int64 [classes]
        Rows that have a label and were given it, that were given it, and that have it.

    """

    classes: tuple[str, ...]
    rows: int
    exact: int
    hits: NDArray[np.int64]
    given: NDArray[np.int64]
    true: NDArray[np.int64]

    @classmethod
    def of(cls, classes: tuple[str, ...], given: NDArray[np.bool_], true: NDArray[np.bool_]) -> LabelCounts:
        """Count N rows. given, true: which labels each was given, and has, [N, classes]."""
        exact = int((given == true).all(axis=1).sum())
        return cls(classes, len(given), exact, (given & true).sum(axis=0), given.sum(axis=0), true.sum(axis=0))

    def __add__(self, other: LabelCounts) -> LabelCounts:
        """The counts of both."""
        hits, given, true = self.hits + other.hits, self.given + other.given, self.true + other.true
        return LabelCounts(self.classes, self.rows + other.rows, self.exact + other.exact, hits, given, true)

    def per_class(self) -> list[LabelFigures]:
        """The figures of each class, in order."""
        columns = zip(self.classes, self.hits.tolist(), self.given.tolist(), self.true.tolist(), strict=True)
        figures = []
        for name, hits, given, true in columns:
            shares = _share(hits, given), _share(hits, true), _share(2 * hits, given + true)
            figures.append(LabelFigures(name, *shares, true, given, wilson(hits, given), wilson(hits, true)))
        return figures

    @property
    def micro_f1(self) -> float:
        """F1 of all labels of all rows together; nan where there are none."""
        return _share(2 * int(self.hits.sum()), int(self.given.sum() + self.true.sum()))

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes for which it is defined; nan where it is for none."""
        defined = [figures.f1 for figures in self.per_class() if figures.f1 == figures.f1]
        return sum(defined) / len(defined) if defined else float("nan")

    @property
    def exact_share(self) -> float:
        """The share of rows that were given exactly their labels; nan where there are no rows."""
        return _share(self.exact, self.rows)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
