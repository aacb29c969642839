"""How many of the rows that a model is measured on are rows that it has learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.learned import LookedUp
from .intervals import wilson


class Overlap(NamedTuple):
    """Rows that are measured, and how many of them the model has learned from.

    Attributes
    ----------
    rows : int
        All rows.
    checked : int
        Those of them of which it is known: all, unless the model has learned very many rows.
    learned : int
        Those of the checked ones that it has learned from.
    right : int
        Those of the other checked ones that it labels right; 0 where rows do not have one label each.

    """

    rows: int
    checked: int
    learned: int
    right: int = 0

    @classmethod
    def of(cls, found: LookedUp, right: NDArray[np.bool_] | None = None) -> Overlap:
        """The overlap of N rows. right: which of them are labelled right, bool [N]."""
        hits = 0 if right is None else int((right & found.is_other).sum())
        return cls(len(found.checked), int(found.checked.sum()), int(found.learned.sum()), hits)

    def plus(self, other: Overlap) -> Overlap:
        """That of the rows of both."""
        return Overlap(*(ours + theirs for ours, theirs in zip(self, other, strict=True)))

    def to_dict(self, others: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return it as JSON values. others: the figures of the other rows, where these do not have one label each."""
        if others is None:
            low, high = wilson(self.right, self.others)
            others = {"right": self.right, "accuracy": self.accuracy, "low": low, "high": high}
        defined = {name: None if value != value else value for name, value in others.items()}
        counts = {"rows": self.rows, "checked": self.checked, "learned": self.learned}
        return {**counts, "others": {"rows": self.others, **defined}}

    @property
    def accuracy(self) -> float:
        """The share of the other rows that is labelled right; nan where there are none."""
        return self.right / self.others if self.others else float("nan")

    @property
    def others(self) -> int:
        """Rows that the model is known not to have learned from."""
        return self.checked - self.learned

    @property
    def share(self) -> float:
        """The share of rows that the model has learned from; nan where none is checked."""
        return self.learned / self.checked if self.checked else float("nan")
