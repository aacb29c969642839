"""Measures whether scores can be believed: expected calibration error and the reliability diagram.

The score of a row is that of its label. Scores are calibrated if a share of s of the rows with a score of about s has
the right label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.scores import log_loss, probabilities
from .intervals import Interval, wilson

BINS = 15
"""The number of bins of equal width, from 0 to 1.

They are as in Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks" (2017), whose formula is that
of Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning" (2015).
"""


class Bin(NamedTuple):
    """The rows whose score is above `low`, and at most `high`.

    Attributes
    ----------
    low, high : float
        The range of scores.
    rows : int
        The number of rows.
    score : float
        The mean score of the rows; nan without rows.
    accuracy : float
        The share of the rows with the right label; nan without rows.

    """

    low: float
    high: float
    rows: int
    score: float
    accuracy: float

    @property
    def interval(self) -> Interval:
        """The 95 % confidence interval of the accuracy of all rows with such scores."""
        return wilson(round(self.accuracy * self.rows) if self.rows else 0, self.rows)


@dataclass(frozen=True)
class Reliability:
    """A comparison of scores with the share of right labels.

    Attributes
    ----------
    bins : tuple of Bin
        15 bins of equal width.

    """

    bins: tuple[Bin, ...]

    @property
    def expected_error(self) -> float:
        """The expected calibration error; nan without rows.

        It is the mean over rows of the distance between the score and the accuracy of a row's bin.
        """
        rows = sum(one_bin.rows for one_bin in self.bins)
        distances = [one_bin.rows * abs(one_bin.accuracy - one_bin.score) for one_bin in self.bins if one_bin.rows]
        return sum(distances) / rows if rows else float("nan")


def reliability(scores: NDArray[np.float32], right: NDArray[np.bool_]) -> Reliability:
    """Return the bins of N rows.

    scores: the score of each label, [N]. right: whether each label is the true class, [N].
    """
    number = np.clip(np.ceil(scores.astype(np.float64) * BINS).astype(np.intp) - 1, 0, BINS - 1)
    rows = np.bincount(number, minlength=BINS)
    some = np.maximum(rows, 1)
    score = np.where(rows, np.bincount(number, scores, minlength=BINS) / some, np.nan)
    accuracy = np.where(rows, np.bincount(number, right, minlength=BINS) / some, np.nan)
    edges = np.linspace(0, 1, BINS + 1)
    columns = (edges[:-1], edges[1:], rows, score, accuracy)
    return Reliability(tuple(Bin(*values) for values in zip(*(column.tolist() for column in columns), strict=True)))


def improvement(before: NDArray[np.float64], after: NDArray[np.float64], truth: NDArray[np.int64]) -> dict[str, float]:
    """Return how other logits change the measures on N rows, for a card: log loss and error, before and after.

    before, after: the logits, [N, classes]. The labels are those of `before`, whatever logits they have in `after`.
    """
    figures, labels = {}, before.argmax(axis=1)
    for name, logits in (("before", before), ("after", after)):
        scores = probabilities(logits, 1.0)[np.arange(len(labels)), labels]
        error = reliability(scores.astype(np.float32), labels == truth).expected_error
        figures[f"log loss {name}"] = round(log_loss(logits, truth, 1.0), 6)
        figures[f"calibration error {name}"] = round(error, 6)
    return figures
