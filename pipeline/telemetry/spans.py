"""Records spans: when a step of a chunk began, how long it took, where, and by which clock.

The same steps are NVTX ranges. This module imports only the standard library, and nvtx if it is installed, so that
every module may import it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

try:
    import nvtx
except ImportError:
    nvtx = None


@dataclass(frozen=True)
class Clock:
    """The clock of a process against the scheduler's.

    offset: the seconds to add to this process's `time.time()` to get the scheduler's. error: the largest error of the
    offset, in seconds.
    """

    offset: float = 0.0
    error: float = float("inf")


_clock = Clock()


def set_clock(clock: Clock) -> None:
    """Set the last measurement of this process's clock. It is sent to the client with every chunk."""
    global _clock
    _clock = clock


def clock() -> Clock:
    """Return the last measurement of this process's clock against the scheduler's."""
    return _clock


def clock_from(round_trips: Iterable[tuple[float, float, float]]) -> Clock:
    """Return the clock by the fastest of several round trips.

    round_trips: for each, the time of sending, the time of the other clock, and the time of receiving. The answer was
    made between sending and receiving, so the middle is wrong by at most half of the round trip (Cristian,
    "Probabilistic clock synchronization", 1989).
    """
    sent, other, received = min(round_trips, key=lambda trip: trip[2] - trip[0])
    return Clock(other - (sent + received) / 2, (received - sent) / 2)


_HOST = socket.gethostname()


def here() -> str:
    """Return the host and the id of this process, for `Span.where`.

    The id is read at each call, because a worker may be a fork of a process that has imported this module.
    """
    return f"{_HOST}:{os.getpid()}"


LANES = ("read", "ingest", "wait", "infer", "copy-in", "compute", "copy-out", "write", "store")
"""The rows of a worker's timeline, top down. Each compute thread of the CPU backend adds its own, such as "thread 0".

- read: the step in which a task reads a chunk. It has a span "decode" for each run of bytes that is parsed, and "room"
  while it waits for memory that other chunks take.
- ingest: a GPU finds the records of a block.
- wait: a chunk has been read and waits, first until a thread that labels and writes is free ("queue"), then until the
  device is free ("wait").
- infer: the step in which a task labels a chunk.
- copy-in, copy-out: copies to and from the device.
- compute: a span "kernels" for each batch. With --profile it has a span for each kernel: encode, conv1 to conv6, fc1 to
  fc3, head.
- write: the step in which a task writes a chunk.
- store: a request to a server that had to be repeated.
"""


@dataclass(frozen=True, slots=True)
class Span:
    """A step.

    Attributes
    ----------
    name : str
        The name of the step.
    start : float
        The time at which it began, in seconds since the epoch, by the clock of its host.
    seconds : float
        How long it took.
    where : str
        The host and the process id.
    lane : str
        One of `LANES`, or the lane of a compute thread.
    device : str
        "cpu", "cuda:0", or "" for steps that use no device.
    chunk : str
        The name of the chunk's part, which the client fills in.

    """

    name: str
    start: float
    seconds: float
    where: str = field(default_factory=here)
    lane: str = ""
    device: str = ""
    chunk: str = ""

    @property
    def end(self) -> float:
        return self.start + self.seconds


STORE_WAITS: list[Span] = []
"""The spans in the lane "store" of this process, until the next chunk takes them."""


def drain(spans: list[Span]) -> list[Span]:
    """Remove all spans from a list and return them. Other threads may append to the list at the same time."""
    taken = spans[:]
    del spans[: len(taken)]
    return taken


@dataclass(frozen=True)
class Place:
    """A worker process that spans come from, with its moments before the first chunk.

    Moments are in seconds since the epoch, by the clock of the process.

    Attributes
    ----------
    where : str
        The host and the process id.
    device : str
        "cpu", or "cuda:" and the number of the GPU.
    started : float
        The moment at which the model began to load.
    memory_ready : float
        The moment at which weights and buffers were in the device's memory.
    engine_ready : float
        The moment from which the process could classify.
    clock : Clock
        The clock of the process against the scheduler's.

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


@contextmanager
def span(
    name: str, into: list[Span] | None, lane: str = "", device: str = "", number: int | None = None
) -> Iterator[None]:
    """Append the span of the `with` block to `into`, even if the block raises an error.

    The block is also an NVTX range in the domain "broadsheet", which costs a microsecond without a profiler.

    Parameters
    ----------
    name : str
        The name of the step.
    into : list of Span, or None
        The list; None to append nothing.
    lane : str
        One of `LANES`, or the lane of a compute thread.
    device : str
        The device, if the step uses one.
    number : int, optional
        The payload of the NVTX range.

    """
    start, began = time.time(), time.perf_counter()
    try:
        with nvtx.annotate(name, domain="broadsheet", payload=number) if nvtx else nullcontext():
            yield
    finally:
        if into is not None:
            into.append(Span(name, start, time.perf_counter() - began, here(), lane, device))


def device_spans(anchor: float, events: Iterable[tuple[str, str, float, float]], device: str) -> list[Span]:
    """Return the spans of a device's events.

    anchor: the time of an event that the device recorded, in seconds since the epoch. events: tuples (name, lane,
    begin, end), with begin and end in milliseconds after that event.
    """
    return [
        Span(name, anchor + begin / 1e3, (end - begin) / 1e3, here(), lane, device) for name, lane, begin, end in events
    ]


def brought_home(spans: Iterable[Span], offset: float, chunk: str) -> list[Span]:
    """Return the spans of a chunk on the scheduler's clock, with the name of the chunk."""
    return [replace(s, start=s.start + offset, chunk=chunk) for s in spans]
