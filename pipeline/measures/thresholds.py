"""Finds the score from which labels have a wanted precision, also on rows other than those it was found on."""

from __future__ import annotations

from math import ceil, log
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .intervals import CONFIDENCE, least_share, most_lost

_PLACES = 50
"""The limit of thresholds to try, at even distances in rows."""

_POWER = 0.8
"""The chance with which the number of rows that a threshold is said to need is enough."""

_RISK = 1 - CONFIDENCE


class Threshold(NamedTuple):
    """The score from which labels have a wanted precision, with 95 % confidence.

    Attributes
    ----------
    name : str or None
        The class whose labels the threshold is for; None for all labels.
    target : float
        The wanted precision.
    score : float
        Rows with this score or a higher one keep their label; nan if no score can be promised to give the precision.
    precision : float
        The share of these rows with the right label; nan without such rows.
    bound : float
        The precision that all rows like these have at least, with 95 % confidence; nan without such rows.
    rows : int
        The number of rows with this score or a higher one.
    coverage : float
        The share of these rows among all rows with this label; nan if no row has the label.
    needed : int or None
        If there is no such score, about how many rows with this label would be enough to find one; None if there is
        one, or if no score gives the precision among these rows.

    """

    name: str | None
    target: float
    score: float
    precision: float
    bound: float
    rows: int
    coverage: float
    needed: int | None


def threshold(
    scores: NDArray[np.float32], right: NDArray[np.bool_], target: float, name: str | None = None
) -> Threshold:
    """Return the threshold with the highest coverage and a precision of `target` or more, with 95 % confidence.

    The best of many thresholds may be good only by chance. So the thresholds are tried in an order that follows from
    the scores alone, and the first that fails ends the search. The last one before it keeps the promise with the
    confidence of a single test, however many were tried. This is fixed sequence testing, from "Learn then Test:
    Calibrating Predictive Algorithms to Achieve Risk Control" by Angelopoulos and others (2021). The first threshold is
    the one that would be surest if scores were probabilities, and each next one keeps more rows. A test is the
    one-sided bound of Clopper and Pearson.

    Parameters
    ----------
    scores : float32 [N]
        The score of each label.
    right : bool [N]
        Whether each label is the true class.
    target : float
        The wanted precision, above 0 and below 1.
    name : str, optional
        The class whose labels these are.

    """
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order].astype(np.float64), np.cumsum(right[order], dtype=np.int64)
    places = _places(ranked)
    first = _surest(ranked, places, target)
    last = 0
    for rows in places[first:].tolist():
        if rows - int(hits[rows - 1]) > most_lost(rows, target):
            break
        last = rows
    if not last:
        needed = _needed(hits, places, target)
        nothing = float("nan")
        return Threshold(name, target, nothing, nothing, nothing, 0, 0.0 if len(scores) else nothing, needed)
    right_labels = int(hits[last - 1])
    score, bound = float(scores[order[last - 1]]), least_share(right_labels, last)
    return Threshold(name, target, score, right_labels / last, bound, last, last / len(scores), None)


def _places(ranked: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many of the rows with the highest scores each threshold keeps.

    A threshold keeps all rows of a score, or none of them.
    """
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)) + 1 if len(ranked) else np.empty(0, np.int64)
    wanted = np.unique(np.rint(np.linspace(0, len(ranked), _PLACES + 1)[1:]).astype(np.int64)) if len(ranked) else ends
    return np.unique(ends[np.searchsorted(ends, wanted)]) if len(ranked) else ends


def _surest(ranked: NDArray[np.float64], places: NDArray[np.int64], target: float) -> int:
    """Return the number of the threshold whose precision would be above the target most surely.

    It assumes that scores are probabilities.
    """
    if not len(places):
        return 0
    enough = places >= _fewest(target)
    expected = np.cumsum(ranked)[places - 1] / places
    return int(np.argmax(np.where(enough, (expected - target) * np.sqrt(places), -np.inf)))


def _fewest(target: float) -> int:
    """Return the fewest rows that allow a promise: all of them are right by chance with a risk of 5 %."""
    return ceil(log(_RISK) / log(target))


def _needed(hits: NDArray[np.int64], places: NDArray[np.int64], target: float) -> int | None:
    """Return about how many rows would be enough, with a chance of 80 %, if precisions are those that were found.

    For a threshold with a higher precision than the target, it is the usual size of a sample for a test of a share.
    Return None if no threshold has such a precision.
    """
    if not len(places):
        return None
    precision, coverage = hits[places - 1] / places, places / len(hits)
    above = precision > target
    if not above.any():
        return None
    normal = NormalDist()
    at_target = normal.inv_cdf(CONFIDENCE) * np.sqrt(target * (1 - target))
    at_precision = normal.inv_cdf(_POWER) * np.sqrt(precision * (1 - precision))
    with np.errstate(divide="ignore"):
        sizes = np.maximum(((at_target + at_precision) / (precision - target)) ** 2, _fewest(target))
    return max(ceil(float((sizes / coverage)[above].min())), len(hits) + 1)
