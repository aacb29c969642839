"""Measures how fast a job has been lately, and estimates how long the rest takes at that pace."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from .tally import Reach

WINDOW_SECONDS = 30.0
"""The pace is measured over this number of last seconds.

A pace over the whole time would include the job's start and slower files, and would be wrong for minutes.
"""

_SECONDS_BETWEEN = 0.5


class _Moment(NamedTuple):
    """How far the job was at one moment.

    Attributes
    ----------
    seconds : float
        The time of the moment, by the clock.
    rows : int
        The number of rows that were computed.
    share : float
        The share of the job that was done.

    """

    seconds: float
    rows: int
    share: float


class Pace:
    """The pace of a job.

    Parameters
    ----------
    reach : Reach
        How far the job is. It changes while the job runs.
    clock : callable
        Returns seconds that only grow.

    """

    def __init__(self, reach: Reach, clock: Callable[[], float] = time.monotonic) -> None:
        self._reach, self._clock = reach, clock
        self._moments = deque([self._now])

    @property
    def _now(self) -> _Moment:
        return _Moment(self._clock(), self._reach.computed, self._reach.share)

    def _window(self) -> tuple[_Moment, _Moment]:
        """Return the moment about 30 s ago, or the beginning, and the present moment."""
        now, moments = self._now, self._moments
        if now.seconds - moments[-1].seconds >= _SECONDS_BETWEEN:
            moments.append(now)
        while len(moments) > 1 and moments[1].seconds <= now.seconds - WINDOW_SECONDS:
            moments.popleft()
        return moments[0], now

    @property
    def rows_per_second(self) -> float:
        """The number of rows per second over the last seconds."""
        first, now = self._window()
        return (now.rows - first.rows) / max(now.seconds - first.seconds, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the rest takes at the pace of the last seconds; None if the pace or the size is unknown."""
        first, now = self._window()
        gained = now.share - first.share
        return (1 - now.share) * (now.seconds - first.seconds) / gained if gained > 0 else None
