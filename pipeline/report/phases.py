"""Shows how far a long command is, with one bar for rows, fits or steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from .console import PlainConsole
from .terminal import Bar

_SECONDS_BEFORE_BAR = 2.0
_SECONDS_OF_RATE = 10.0
_SECONDS_BETWEEN_LINES = 60.0


class Phases:
    """Shows how far each phase of a command is, after the phase has taken two seconds.

    It shows how much is finished, the rate of the last ten seconds, and the time that is left at this rate. On a
    terminal it shows a bar, elsewhere a line per minute.

    Parameters
    ----------
    console : PlainConsole
        The console to print to.
    clock : callable
        Returns the time in seconds.

    """

    def __init__(self, console: PlainConsole, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._bar = Bar(console, _SECONDS_BETWEEN_LINES)
        self._phase: str | None = None
        self._began = 0.0
        self._recent: deque[tuple[float, int]] = deque()

    def __call__(
        self, phase: str, finished: int, total: int | None = None, unit: str = "rows", shown: str = ""
    ) -> None:
        """Show how far a phase is.

        Parameters
        ----------
        phase : str
            The name of the phase. A new name ends the phase before it. A phase also ends when `finished` equals
            `total`.
        finished : int
            How many units are finished.
        total : int, optional
            How many units there are; None if it is unknown.
        unit : str
            The unit that is counted.
        shown : str
            The text before the bar, if it changes within the phase. Default: the name of the phase.

        """
        now = self._clock()
        if phase != self._phase:
            self.stop()
            self._phase, self._began = phase, now
            self._recent = deque([(now, 0)])
        self._recent.append((now, finished))
        while len(self._recent) > 2 and self._recent[1][0] <= now - _SECONDS_OF_RATE:
            self._recent.popleft()
        if finished == total:
            self.stop()
            return
        if now - self._began < _SECONDS_BEFORE_BAR:
            return
        told = progress_text(self._recent, total, unit)
        share = min(finished / total, 1.0) if total else 0.0
        self._bar.start(shown or phase, told, 1.0)
        self._bar.show(shown or phase, share, told, f"{shown or phase}: {told}")

    def spoke(self) -> None:
        """Note that something else was printed, so that the next line can wait."""
        self._bar.spoke()

    def stop(self) -> None:
        """End the phase, and remove its bar."""
        self._bar.stop()
        self._phase = None


def progress_text(recent: deque[tuple[float, int]], total: int | None, unit: str) -> str:
    """Return how much is finished, how fast, and how long the rest takes.

    recent: pairs of a time and the number of units that were finished by then. total: how many units there are; None if
    it is unknown.

    >>> progress_text(deque([(0.0, 0), (10.0, 2000)]), 5000, "rows")
    '2,000 of 5,000 rows, 200/s, 0:00:15 left'
    """
    (began, before), (now, finished) = recent[0], recent[-1]
    text = f"{finished:,} {unit}" if total is None else f"{finished:,} of {total:,} {unit}"
    if now <= began or finished <= before:
        return text
    rate = (finished - before) / (now - began)
    text += f", {rate:,.0f}/s" if rate >= 10 else f", {rate:.2g}/s"
    return text if total is None else f"{text}, {timedelta(seconds=round(max(total - finished, 0) / rate))} left"
