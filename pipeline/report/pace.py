"""How fast a job has been of late, and how long the rest takes at that pace."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from .tally import Reach

WINDOW_SECONDS = 30.0
"""The pace is that of so many last seconds: that of the whole time, with the job's start and its slower files, would be
wrong for minutes.
"""

_SECONDS_BETWEEN = 0.5


class _Moment(NamedTuple):
    """How far the job was.

    Attributes
    ----------
    seconds : float
        When, by the clock.
    rows : int
        Rows that were computed.
    share : float
        Of the job.

    """

    seconds: float
    rows: int
    share: float


class Pace:
    """The pace of a job.

    Parameters
    ----------
    reach : Reach
        How far the job is, which changes while it runs.
    clock : callable
        Seconds that only grow.

    """

    def __init__(self, reach: Reach, clock: Callable[[], float] = time.monotonic) -> None:
        self._reach, self._clock = reach, clock
        self._moments = deque([self._now])

    @property
    def _now(self) -> _Moment:
        return _Moment(self._clock(), self._reach.computed, self._reach.share)

    def _window(self) -> tuple[_Moment, _Moment]:
        """The moment some 30 s ago, or the beginning, and now."""
        now, moments = self._now, self._moments
        if now.seconds - moments[-1].seconds >= _SECONDS_BETWEEN:
            moments.append(now)
        while len(moments) > 1 and moments[1].seconds <= now.seconds - WINDOW_SECONDS:
            moments.popleft()
        return moments[0], now

    @property
    def rows_per_second(self) -> float:
        """Of the last seconds."""
        first, now = self._window()
        return (now.rows - first.rows) / max(now.seconds - first.seconds, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the rest takes at the pace of the last seconds; None if the pace or the size is unknown."""
        first, now = self._window()
        gained = now.share - first.share
        return (1 - now.share) * (now.seconds - first.seconds) / gained if gained > 0 else None
