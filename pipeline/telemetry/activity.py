"""What this process does at each moment, for the dashboard: its compute threads, its device, and the rows so far."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WAITING = "waiting"
"""What an engine does outside any activity."""

DEVICE_ACTIVITIES = ("kernels", "copy-in", "copy-out")
"""What a device does, several at a time; the first that it does counts."""

_KEPT = 20_000


class ActivityLog:
    """Of one process. rows: classified since it began, those of repeated chunks too. clock: seconds since the epoch.

    One thread at a time may use `during`: the one that runs the engine.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.rows = 0
        self._clock = clock or (lambda: time.time())
        self._changes: deque[tuple[float, str]] = deque([(self._clock(), WAITING)], maxlen=_KEPT)
        self._past: deque[tuple[float, float, str]] = deque(maxlen=_KEPT)

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Note what the compute threads do during the block. Blocks nest; the innermost counts.

        The dashboard knows "computing" and those of DEVICE_ACTIVITIES.
        """
        before = self._changes[-1][1]
        self._changes.append((self._clock(), name))
        try:
            yield
        finally:
            self._changes.append((self._clock(), before))

    def add(self, name: str, start: float, end: float) -> None:
        """Note what a device did, one of DEVICE_ACTIVITIES, between two moments that are past.

        They may overlap, and count before what any `during` says.
        """
        self._past.append((start, end, name))

    def seconds(self, since: float, until: float) -> dict[str, float]:
        """Seconds spent on each activity between two moments, each second on one."""
        steps = [(moment, name, 0) for moment, name in self._changes_of(since)]
        for start, end, name in tuple(self._past):
            if end > since and start < until:
                steps += [(start, name, 1), (end, name, -1)]
        seconds: dict[str, float] = defaultdict(float)
        running = dict.fromkeys(DEVICE_ACTIVITIES, 0)
        at, before = since, ""
        for moment, name, change in sorted([*steps, (until, "", 0)], key=lambda step: step[0]):
            now = min(max(moment, since), until)
            doing = next((device for device, count in running.items() if count), before)
            if doing and now > at:
                seconds[doing] += now - at
            at = now
            if change:
                running[name] += change
            else:
                before = name
        return dict(seconds)

    def _changes_of(self, since: float) -> list[tuple[float, str]]:
        """The changes after a moment, and the last one before it, in order."""
        found = []
        for change in reversed(tuple(self._changes)):
            found.append(change)
            if change[0] <= since:
                break
        return found[::-1]


ACTIVITY = ActivityLog()
"""This process's."""
