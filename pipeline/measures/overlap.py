"""Counts how many of the rows that a model is measured on are rows that it has learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.learned import LookedUp
from .intervals import wilson


class Overlap(NamedTuple):
    """Counts of the rows that a model is measured on, and of those that it has learned from.

    Attributes
    ----------
    rows : int
        The number of all rows.
    checked : int
        The number of rows that can be checked: all rows, unless the model has learned very many.
    learned : int
        The number of checked rows that the model has learned from.
    right : int
        The number of the other checked rows that the model labels right; 0 if rows do not have one label each.

    """

    rows: int
    checked: int
    learned: int
    right: int = 0

    @classmethod
    def of(cls, found: LookedUp, right: NDArray[np.bool_] | None = None) -> Overlap:
        """Return the overlap of N rows. right: which of them have the right label, bool [N]."""
        hits = 0 if right is None else int((right & found.is_other).sum())
        return cls(len(found.checked), int(found.checked.sum()), int(found.learned.sum()), hits)

    def plus(self, other: Overlap) -> Overlap:
        """Return the overlap of the rows of both."""
        return Overlap(*(ours + theirs for ours, theirs in zip(self, other, strict=True)))

    def to_dict(self, others: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return it as JSON values. others: the figures of the other rows, if rows do not have one label each."""
        if others is None:
            low, high = wilson(self.right, self.others)
            others = {"right": self.right, "accuracy": self.accuracy, "low": low, "high": high}
        defined = {name: None if value != value else value for name, value in others.items()}
        counts = {"rows": self.rows, "checked": self.checked, "learned": self.learned}
        return {**counts, "others": {"rows": self.others, **defined}}

    @property
    def accuracy(self) -> float:
        """The share of the other rows with the right label; nan if there are no other rows."""
        return self.right / self.others if self.others else float("nan")

    @property
    def others(self) -> int:
        """The number of rows that the model is known not to have learned from."""
        return self.checked - self.learned

    @property
    def share(self) -> float:
        """The share of the checked rows that the model has learned from; nan if no row is checked."""
        return self.learned / self.checked if self.checked else float("nan")
