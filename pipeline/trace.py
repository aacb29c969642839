"""Spans: when a step of a chunk began, how long it took, and where; and what this process is at right now.

The same steps are NVTX ranges.

Imports the standard library only (nvtx if it is there), so that every part may import it.
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

try:
    import nvtx
except ImportError:
    nvtx = None

WHERE = f"{socket.gethostname()}:{os.getpid()}"
"""This process, as spans name it."""

LANES = ("read", "wait", "infer", "copy-in", "compute", "copy-out", "write")
"""The rows of a worker's timeline, top down; a compute thread of the CPU backend adds one of its own, "thread 0".

read: the task `read`, in it a span "decode" for each run of bytes parsed. wait: a chunk is read, the device busy.
infer: the task `infer`. copy-in, copy-out: to and from the device. compute: span "kernels" for each batch, in it (with
--profile) one for each kernel: encode, conv1 to conv6, fc1 to fc3, head. write: the task `write`.
"""

WAITING = "waiting"
"""What an engine does outside any `activity`."""

DEVICE_ACTIVITIES = ("kernels", "copy-in", "copy-out")
"""What a device does, several at a time; the first that it does counts."""

_changes: deque[tuple[float, str]] = deque([(time.time(), WAITING)], maxlen=20_000)
_past: deque[tuple[float, float, str]] = deque(maxlen=20_000)
_rows = 0


@dataclass(frozen=True, slots=True)
class Span:
    """start: seconds since the epoch, by the clock of the host it was recorded on. where: host and process id.

    lane: one of LANES. device: "cpu", "cuda:0", or "" for what no device did. chunk: name of its part; filled in where
    results come home.
    """

    name: str
    start: float
    seconds: float
    where: str = WHERE
    lane: str = ""
    device: str = ""
    chunk: str = ""

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True)
class Clock:
    """offset: seconds to add to this process's `time.time()` to get the scheduler's; it is right to within `error`."""

    offset: float = 0.0
    error: float = float("inf")


@dataclass(frozen=True)
class Place:
    """A worker process that spans come from, with its moments before the first chunk, by its own clock.

    started: the model began to load. memory_ready: weights and buffers were in the device's memory. engine_ready: it
    could classify.
    """

    where: str
    device: str
    started: float
    memory_ready: float
    engine_ready: float
    clock: Clock = field(default_factory=Clock)

    @property
    def host(self) -> str:
        return self.where.rpartition(":")[0]


_clock = Clock()


def set_clock(clock: Clock) -> None:
    """Keep what was last measured of this process's clock; it goes home with every chunk."""
    global _clock
    _clock = clock


def clock() -> Clock:
    """The clock of this process against the scheduler's, as last measured."""
    return _clock


def clock_from(round_trips: Iterable[tuple[float, float, float]]) -> Clock:
    """The clock that the fastest of some round trips shows. Each: sent, what the other clock said, received.

    The answer was made between sending and receiving, so taking the middle errs by half the round trip at most
    (Cristian, Probabilistic clock synchronization, 1989).
    """
    sent, other, received = min(round_trips, key=lambda trip: trip[2] - trip[0])
    return Clock(other - (sent + received) / 2, (received - sent) / 2)


@contextmanager
def span(
    name: str, into: list[Span] | None, lane: str = "", device: str = "", number: int | None = None
) -> Iterator[None]:
    """Append the span of the block under it to `into` (unless None), also when the block raises.

    The block is an NVTX range in the domain "broadsheet" too, with `number` as its payload; without a tool that
    listens that costs a microsecond.
    """
    start, began = time.time(), time.perf_counter()
    try:
        if nvtx is None:
            yield
        else:
            with nvtx.annotate(name, domain="broadsheet", payload=number):
                yield
    finally:
        if into is not None:
            into.append(Span(name, start, time.perf_counter() - began, WHERE, lane, device))


def device_spans(anchor: float, events: Iterable[tuple[str, str, float, float]], device: str) -> list[Span]:
    """Spans from a device's events: (name, lane, begin, end), in milliseconds after an event that the device passed
    at `anchor`, in epoch seconds (recorded, waited for, and the time taken, once).
    """
    return [
        Span(name, anchor + begin / 1e3, (end - begin) / 1e3, WHERE, lane, device) for name, lane, begin, end in events
    ]


def brought_home(spans: Iterable[Span], offset: float, chunk: str) -> list[Span]:
    """The spans of a chunk on the scheduler's clock, with its name."""
    return [replace(s, start=s.start + offset, chunk=chunk) for s in spans]


@contextmanager
def activity(name: str) -> Iterator[None]:
    """Say what this process's compute threads do during the block. Blocks nest; the innermost counts.

    The dashboard knows "computing" and those of DEVICE_ACTIVITIES. One thread at a time may call it: the one that runs
    the engine.
    """
    before = _changes[-1][1]
    _changes.append((time.time(), name))
    try:
        yield
    finally:
        _changes.append((time.time(), before))


def add_activity(name: str, start: float, end: float) -> None:
    """Say what a device did, one of DEVICE_ACTIVITIES, between two moments that are past (seconds since the epoch).

    They may overlap, and count before what any `activity` says.
    """
    _past.append((start, end, name))


def activities(since: float, until: float) -> dict[str, float]:
    """Seconds spent on each activity between two moments (seconds since the epoch), each second on one."""
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
    """Rows that this process has classified since it began, those of repeated chunks too."""
    return _rows
