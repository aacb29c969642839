"""Spans: when a step of a chunk began and how long it took; and what this process is at right now.

Imports the standard library only, so that everyone may import it.
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_WHERE = f"{socket.gethostname()}:{os.getpid()}"

WAITING = "waiting"
"""What an engine does outside any `activity`."""

_changes: deque[tuple[float, str]] = deque([(time.time(), WAITING)], maxlen=20_000)
_rows = 0


@dataclass(frozen=True)
class Span:
    """start: seconds since the epoch. where: host and process id."""

    name: str
    start: float
    seconds: float
    where: str


@contextmanager
def span(name: str, into: list[Span]) -> Iterator[None]:
    """Append the span of the block under it to `into`, also when the block raises."""
    start, began = time.time(), time.perf_counter()
    try:
        yield
    finally:
        into.append(Span(name, start, time.perf_counter() - began, _WHERE))


@contextmanager
def activity(name: str) -> Iterator[None]:
    """Say what this process's GPU, or its compute threads, do during the block. Blocks nest; the innermost counts.

    The dashboard knows "copy-in", "kernels", "copy-out" and "computing". One thread at a time may call it: the one
    that runs the engine.
    """
    before = _changes[-1][1]
    _changes.append((time.time(), name))
    try:
        yield
    finally:
        _changes.append((time.time(), before))


def activities(since: float, until: float) -> dict[str, float]:
    """Seconds spent on each activity between two moments (seconds since the epoch)."""
    seconds: dict[str, float] = defaultdict(float)
    end = until
    for start, name in reversed(tuple(_changes)):
        if end > max(start, since):
            seconds[name] += end - max(start, since)
        end = min(end, start)
        if start <= since:
            break
    return dict(seconds)


def add_rows(count: int) -> None:
    """Count rows that this process has classified."""
    global _rows
    _rows += count


def rows_classified() -> int:
    """Rows that this process has classified since it began, those of repeated chunks too."""
    return _rows
