"""Whether scores can be believed: expected calibration error, the reliability diagram, and thresholds for a precision.

The score of a row is that of its label. Scores are calibrated where, of the rows with a score of about s, a share of s
is labelled right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.scores import log_loss, probabilities

BINS = 15
"""Bins of equal width, from 0 to 1, as in Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks"
(2017), whose formula is that of Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian
Binning" (2015)."""


class Bin(NamedTuple):
    """The rows whose score is above `low`, and at most `high`.

    Attributes
    ----------
    low, high : float
        The range of scores.
    rows : int
        How many rows.
    score : float
        Their mean score; nan where there are none.
    accuracy : float
        The share of them that is labelled right; nan where there are none.

    """

    low: float
    high: float
    rows: int
    score: float
    accuracy: float


@dataclass(frozen=True)
class Reliability:
    """How scores compare with the share of labels that are right.

    Attributes
    ----------
    bins : tuple of Bin
        15 bins of equal width.

    """

    bins: tuple[Bin, ...]

    @property
    def expected_error(self) -> float:
        """Expected calibration error: the mean over rows of the distance between the score and the accuracy of a bin;
        nan where there are no rows.
        """
        rows = sum(one_bin.rows for one_bin in self.bins)
        distances = [one_bin.rows * abs(one_bin.accuracy - one_bin.score) for one_bin in self.bins if one_bin.rows]
        return sum(distances) / rows if rows else float("nan")


def reliability(scores: NDArray[np.float32], right: NDArray[np.bool_]) -> Reliability:
    """The bins of N rows. scores: of their labels, [N]. right: whether these are the true classes, [N]."""
    number = np.clip(np.ceil(scores.astype(np.float64) * BINS).astype(np.intp) - 1, 0, BINS - 1)
    rows = np.bincount(number, minlength=BINS)
    some = np.maximum(rows, 1)
    score = np.where(rows, np.bincount(number, scores, minlength=BINS) / some, np.nan)
    accuracy = np.where(rows, np.bincount(number, right, minlength=BINS) / some, np.nan)
    edges = np.linspace(0, 1, BINS + 1)
    columns = (edges[:-1], edges[1:], rows, score, accuracy)
    return Reliability(tuple(Bin(*values) for values in zip(*(column.tolist() for column in columns), strict=True)))


def improvement(before: NDArray[np.float64], after: NDArray[np.float64], truth: NDArray[np.int64]) -> dict[str, float]:
    """What other logits do on N rows, for a card: both measures, before and after. before, after: [N, classes].

    The labels are those of `before`, whatever logits they have after.
    """
    figures, labels = {}, before.argmax(axis=1)
    for name, logits in (("before", before), ("after", after)):
        scores = probabilities(logits, 1.0)[np.arange(len(labels)), labels]
        error = reliability(scores.astype(np.float32), labels == truth).expected_error
        figures[f"log loss {name}"] = round(log_loss(logits, truth, 1.0), 6)
        figures[f"calibration error {name}"] = round(error, 6)
    return figures


class Threshold(NamedTuple):
    """The least score from which on labels have a wanted precision.

    Attributes
    ----------
    name : str or None
        The class, of whose labels alone it is; None for all labels.
    score : float
        Rows with this score or a higher one keep their label; nan where no score gives the precision.
    precision : float
        The share of these rows that is labelled right; nan where there are none.
    rows : int
        How many rows these are.
    coverage : float
        Their share of all rows with this label; nan where there are none.

    """

    name: str | None
    score: float
    precision: float
    rows: int
    coverage: float


def threshold(
    scores: NDArray[np.float32], right: NDArray[np.bool_], target: float, name: str | None = None
) -> Threshold:
    """The least threshold at which the precision is `target` or more, on N rows: that with the highest coverage."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    hits = np.cumsum(right[order])
    # A threshold takes all rows of a score or none.
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)) if len(ranked) else np.empty(0, np.intp)
    good = ends[hits[ends] >= target * (ends + 1)]
    if not len(good):
        return Threshold(name, float("nan"), float("nan"), 0, 0.0 if len(scores) else float("nan"))
    last = int(good[-1])
    return Threshold(name, float(ranked[last]), float(hits[last] / (last + 1)), last + 1, (last + 1) / len(scores))
