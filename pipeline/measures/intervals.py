"""Computes how far the share of a sample of rows can be from the share of all rows like them."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
"""The confidence of every interval, which has two sides, and of every promise, which has one."""

_HALVINGS = 30
"""The number of halvings of an interval after which a share is known to nine digits."""


class Interval(NamedTuple):
    """The interval that holds the share of all rows, with 95 % confidence; nan without rows."""

    low: float
    high: float


def wilson(hits: int, rows: int) -> Interval:
    """Return the confidence interval of a share by a sample.

    The method is that of Wilson, "Probable Inference, the Law of Succession, and Statistical Inference" (1927).

    Parameters
    ----------
    hits, rows : int
        How many rows of the sample count, and how many rows it has.

    Returns
    -------
    Interval
        The interval. Unlike the share plus and minus two standard errors, it never goes below 0 or above 1, and it is
        not empty if all rows count.

    Examples
    --------
    >>> low, high = wilson(99, 100)
    >>> f"{low:.3f} to {high:.3f}"
    '0.946 to 0.998'

    """
    if not rows:
        return Interval(float("nan"), float("nan"))
    z, share = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2), hits / rows
    centre = share + z * z / (2 * rows)
    reach = z * sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows))
    scale = 1 + z * z / rows
    return Interval(max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale))


def most_lost(rows: int, share: float, risk: float = 1 - CONFIDENCE) -> int:
    """Return the largest number of rows of a sample that may be lost.

    Parameters
    ----------
    rows : int
        How many rows the sample has.
    share : float
        The chance with which a new row must be kept.
    risk : float
        The chance that this promise is wrong.

    Returns
    -------
    int
        The number; -1 if the sample is too small for the promise. It is the bound of Clopper and Pearson, "The use of
        confidence or fiducial limits" (1934).

    """
    return int(np.searchsorted(np.cumsum(binomial(rows, 1 - share)), risk, "right")) - 1


def least_share(hits: int, rows: int) -> float:
    """Return the share that all rows have at least, with 95 % confidence, by a sample: the bound of `most_lost`.

    Parameters
    ----------
    hits, rows : int
        How many rows of the sample count, and how many rows it has.

    """
    if not hits:
        return 0.0
    low, high = 0.0, hits / rows
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle and binomial(rows, 1 - middle)[: rows - hits + 1].sum() <= 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return low


def binomial(count: int, chance: float) -> NDArray[np.float64]:
    """Return the chance of each number of hits, from 0 to `count`, [count + 1], if a single hit has this chance."""
    hits = np.arange(count + 1)
    sums = np.concatenate([[0.0], np.cumsum(np.log(hits[1:]))])  # of log i! for i from 0 to count
    return np.asarray(np.exp(sums[-1] - sums - sums[::-1] + hits * np.log(chance) + hits[::-1] * np.log(1 - chance)))
