"""What the accuracy of a model is compared with, on the same rows, and whether it is clearly better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.ngrams import Kinds
from .branch import bags, plain_logits
from .data import Labelled

Labels = NDArray[np.int64]
_BITS = 18
_CLEARLY = 1.0  # standard errors


@dataclass(frozen=True)
class Compared:
    """Accuracies on the same held-out rows.

    rows: how many. model, most_frequent, linear: shares of rows labelled right by the model, by always giving the most
    frequent class, and by a plain linear model on words. unclear: what the model is not clearly better than.
    """

    rows: int
    model: float
    most_frequent: float
    linear: float
    unclear: tuple[str, ...]

    def about(self) -> dict[str, Any]:
        """The figures as a model's card has them."""
        return {
            "rows": self.rows,
            "most frequent class": round(self.most_frequent, 6),
            "linear model on words": round(self.linear, 6),
        }

    def lines(self) -> list[str]:
        """For the user: the figures, and a warning where the model is not clearly better."""
        told = f"on the same {self.rows:,} rows: the most frequent class {self.most_frequent:.2%}"
        lines = [f"{told}, a linear model on words {self.linear:.2%}"]
        if self.unclear:
            lines.append(
                f"warning: the model ({self.model:.2%}) is not clearly better than {' or '.join(self.unclear)}"
            )
        return lines


def plain(data: Labelled, fit: Labels, held: Labels) -> NDArray[np.float64]:
    """The logits of a plain linear model on words, fitted to the rows `fit`, for the rows `held`."""
    rows = np.concatenate([fit, held])
    found = bags(*data.text.rows(rows), Kinds(2, (0, 0), 1014), _BITS)
    ours = np.arange(len(fit), len(rows))
    return plain_logits(found, data.labels[rows], len(data.classes), [ours])[ours]


def compared(right: NDArray[np.bool_], linear: NDArray[np.float64], truth: Labels, labels: Labels) -> Compared:
    """Compare a model that is `right` about some rows whose labels are `truth`.

    linear: the logits of a linear model for them. labels: those of the training rows.
    """
    most = np.bincount(labels).argmax() == truth
    words = linear.argmax(axis=1) == truth
    unclear = [
        f"{name} ({other.mean():.2%})"
        for name, other in (("always giving the most frequent class", most), ("a linear model on words", words))
        if not _is_clear(right, other)
    ]
    return Compared(len(truth), float(right.mean()), float(most.mean()), float(words.mean()), tuple(unclear))


def _is_clear(right: NDArray[np.bool_], other: NDArray[np.bool_]) -> bool:
    """By McNemar's test: of the rows about which one of the two is right, how many more are ours."""
    ours, its = int((right & ~other).sum()), int((other & ~right).sum())
    return bool(ours - its > _CLEARLY * np.sqrt(ours + its))
