"""Records the activity of this process over time, for the dashboard: its compute threads, its device, and its rows.

It also counts what the process has done since it started, as numbers that only grow, for Prometheus.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

WAITING = "waiting"
"""The activity outside any `during` block."""

DEVICE_ACTIVITIES = ("kernels", "copy-in", "copy-out")
"""The activities of a device. If several run at a time, the first in this order counts."""

_KEPT = 20_000
"""How many changes, and how many past activities of the device, are remembered. The oldest are forgotten."""


class ActivityLog:
    """The activities of one process.

    rows: the number of rows classified since the process started, including those of repeated chunks. clock: returns
    the seconds since the epoch. Only the thread that runs the engine may use `during`.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.rows = 0
        self._counting = Lock()
        self._clock = clock or (lambda: time.time())
        self._changes: deque[tuple[float, str]] = deque([(self._clock(), WAITING)], maxlen=_KEPT)
        self._past: deque[tuple[float, float, str]] = deque(maxlen=_KEPT)

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Record the activity of the compute threads during the block. Blocks nest, and the innermost counts.

        The dashboard shows "computing" and the DEVICE_ACTIVITIES.
        """
        before = self._changes[-1][1]
        self._changes.append((self._clock(), name))
        try:
            yield
        finally:
            self._changes.append((self._clock(), before))

    def count(self, rows: int) -> None:
        """Count more rows as classified."""
        with self._counting:
            self.rows += rows

    def add(self, name: str, start: float, end: float) -> None:
        """Record an activity of a device, one of DEVICE_ACTIVITIES, between two past moments.

        Such activities may overlap, and they take precedence over any `during`.
        """
        self._past.append((start, end, name))

    def seconds(self, since: float, until: float) -> dict[str, float]:
        """Return the seconds of each activity between two moments. Each second counts for one activity."""
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
        """Return the changes after a moment and the last one before it, in order."""
        changes = []
        for change in reversed(tuple(self._changes)):
            changes.append(change)
            if change[0] <= since:
                break
        return changes[::-1]


ACTIVITY = ActivityLog()
"""The activities of this process."""


HELP = {
    "rows_read": "Rows read",
    "rows_written": "Rows labelled and written, or returned",
    "rows_filtered": "Rows labelled and filtered by --where",
    "rows_quarantined": "Rows that have no label",
    "chunks": "Chunks committed, or returned",
    "text_bytes": "Bytes of text labelled",
    "written_bytes": "Bytes of files committed",
    "engines_loaded": "Models loaded",
    "engines_evicted": "Models closed to make room for another",
}
"""The description of every count, by its name."""


class Counts:
    """Counts of what a process has done, which only grow. A repeated chunk counts again.

    counts: each count by its name in `HELP`. seconds: the time of each activity, as `ActivityLog` names them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = dict.fromkeys(HELP, 0)
        self._seconds: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        """Increase counts by their names."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def spend(self, seconds: dict[str, float]) -> None:
        """Add time by activity."""
        with self._lock:
            self._seconds.update(seconds)

    @property
    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    @property
    def seconds(self) -> dict[str, float]:
        with self._lock:
            return dict(self._seconds)


COUNTS = Counts()
"""The counts of this process."""
