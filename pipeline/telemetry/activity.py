"""The activity of this process over time, for the dashboard: its compute threads, its device, and its rows."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = "waiting"
"""The activity outside any `activity` block."""

DEVICE_ACTIVITIES = ("kernels", "copy-in", "copy-out")
"""The activities of a device. Several may run at a time: the first of these that does counts."""

_changes: deque[tuple[float, str]] = deque([(time.time(), WAITING)], maxlen=20_000)
_past: deque[tuple[float, float, str]] = deque(maxlen=20_000)
_rows = 0


@contextmanager
def activity(name: str) -> Iterator[None]:
    """Record the activity of this process's compute threads during the block. Blocks nest; the innermost counts.

    The dashboard shows "computing" and those of DEVICE_ACTIVITIES. Not thread-safe: only the thread that runs the
    engine may call it.
    """
    before = _changes[-1][1]
    _changes.append((time.time(), name))
    try:
        yield
    finally:
        _changes.append((time.time(), before))


def add_activity(name: str, start: float, end: float) -> None:
    """Record an activity of a device, one of DEVICE_ACTIVITIES, between two past moments (seconds since the epoch).

    They may overlap, and take precedence over any `activity`.
    """
    _past.append((start, end, name))


def activities(since: float, until: float) -> dict[str, float]:
    """Seconds of each activity between two moments (seconds since the epoch); each second counts for one."""
    steps = [(moment, name, 0) for moment, name in _changes_of(since)]
    for start, end, name in tuple(_past):
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


def _changes_of(since: float) -> list[tuple[float, str]]:
    """The changes after a moment, and the last one before it, in order."""
    found = []
    for change in reversed(tuple(_changes)):
        found.append(change)
        if change[0] <= since:
            break
    return found[::-1]


def add_rows(count: int) -> None:
    """Count rows that this process has classified."""
    global _rows
    _rows += count


def rows_classified() -> int:
    """Rows that this process has classified since it started, those of repeated chunks too."""
    return _rows
