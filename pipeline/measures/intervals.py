"""How far a share of rows can be from the share of all rows like them."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
"""Of every interval, which has two sides, and of every promise, which has one."""

_HALVINGS = 30
"""After so many, a share is known to nine digits."""


class Interval(NamedTuple):
    """Where the share of all rows is, with 95 % confidence; nan where no row is known."""

    low: float
    high: float


def wilson(hits: int, rows: int) -> Interval:
    """The interval of a share by a sample: Wilson, "Probable Inference, the Law of Succession, and Statistical
    Inference" (1927).

    Parameters
    ----------
    hits, rows : int
        How many rows of the sample count, and how many there are.

    Returns
    -------
    Interval
        From 0 to 1; unlike the share plus and minus two standard errors, it is never beyond them, and not empty where
        all rows count.

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
    """How many of some rows may be lost at most.

    Parameters
    ----------
    rows : int
        How many rows there are.
    share : float
        The chance with which a new row is to be kept.
    risk : float
        The chance that this is wrong.

    Returns
    -------
    int
        The number; -1 where the rows are too few to say so. It is the bound of Clopper and Pearson, "The use of
        confidence or fiducial limits" (1934).

    """
    return int(np.searchsorted(np.cumsum(binomial(rows, 1 - share)), risk, "right")) - 1


def least_share(hits: int, rows: int) -> float:
    """The share that all rows have at least, with 95 % confidence, by a sample: the bound of `most_lost`.

    Parameters
    ----------
    hits, rows : int
        How many rows of the sample count, and how many there are.

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
    """The chance of each number of hits, from 0 to `count`, [count + 1], where one has this chance."""
    hits = np.arange(count + 1)
    sums = np.concatenate([[0.0], np.cumsum(np.log(hits[1:]))])  # of log i! for i from 0 to count
    return np.asarray(np.exp(sums[-1] - sums - sums[::-1] + hits * np.log(chance) + hits[::-1] * np.log(1 - chance)))
