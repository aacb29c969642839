"""Precision, recall and F1 where a text may have several labels: of each class, micro and macro."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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

    """

    name: str
    precision: float
    recall: float
    f1: float
    support: int
    given: int


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
        return [
            LabelFigures(name, _share(hits, given), _share(hits, true), _share(2 * hits, given + true), true, given)
            for name, hits, given, true in columns
        ]

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
