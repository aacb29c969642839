"""Spans: when a step of a chunk began, how long it took, where, and by which clock. The same steps are NVTX ranges.

Imports only the standard library, and nvtx if it is installed, so that every module may import it.
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
    """offset: seconds to add to this process's `time.time()` to get the scheduler's; it is right to within `error`."""

    offset: float = 0.0
    error: float = float("inf")


_clock = Clock()


def set_clock(clock: Clock) -> None:
    """Set the last measurement of this process's clock, which is sent to the client with every chunk."""
    global _clock
    _clock = clock


def clock() -> Clock:
    """The last measurement of this process's clock against the scheduler's."""
    return _clock


def clock_from(round_trips: Iterable[tuple[float, float, float]]) -> Clock:
    """The clock by the fastest of several round trips, each given as: sent, time of the other clock, received.

    The answer was made between sending and receiving, so taking the middle errs by half the round trip at most
    (Cristian, Probabilistic clock synchronization, 1989).
    """
    sent, other, received = min(round_trips, key=lambda trip: trip[2] - trip[0])
    return Clock(other - (sent + received) / 2, (received - sent) / 2)


_HOST = socket.gethostname()


def here() -> str:
    """The process, in `Span.where`: a worker may be a fork of one that has imported this module."""
    return f"{_HOST}:{os.getpid()}"


LANES = ("read", "ingest", "wait", "infer", "copy-in", "compute", "copy-out", "write", "store")
"""The rows of a worker's timeline, top down; a compute thread of the CPU backend adds one of its own, "thread 0".

read: the task `read`, in it a span "decode" for each run of bytes parsed, and "room" while it waits for memory that
other chunks take. ingest: a GPU finds the records of a block. wait: a chunk is read, and all threads that label and
write are busy ("queue"), then the device ("wait"). infer: the task `infer`. copy-in, copy-out: to and from the device.
compute: span "kernels" for each batch, in it (with --profile) one for each kernel: encode, conv1 to conv6, fc1 to fc3,
head. write: the task `write`. store: a request to a server that had to be repeated.
"""


@dataclass(frozen=True, slots=True)
class Span:
    """A step.

    Attributes
    ----------
    name : str
        What is done.
    start : float
        When it began, in seconds since the epoch, by the clock of its host.
    seconds : float
        How long it took.
    where : str
        Host and process id.
    lane : str
        One of `LANES`, or a compute thread's.
    device : str
        "cpu", "cuda:0", or "" for steps that use no device.
    chunk : str
        The name of the chunk's part, which is filled in on the client.

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
"""Those in the lane "store" of this process, until the next chunk takes them."""


def drain(spans: list[Span]) -> list[Span]:
    """Remove all spans from a list and return them. Other threads may append to the list at the same time."""
    taken = spans[:]
    del spans[: len(taken)]
    return taken


@dataclass(frozen=True)
class Place:
    """A worker process that spans come from, with its moments before the first chunk, in seconds since the epoch by its
    own clock.

    Attributes
    ----------
    where : str
        Host and process id.
    device : str
        "cpu", or "cuda:" and the number of the GPU.
    started : float
        When the model began to load.
    memory_ready : float
        When weights and buffers were in the device's memory.
    engine_ready : float
        When it could classify.
    clock : Clock
        Its clock against the scheduler's.

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
    """Append the span of the `with` block to `into`, also when the block raises.

    The block is an NVTX range in the domain "broadsheet" too; without a profiler that costs a microsecond.

    Parameters
    ----------
    name : str
        What is done.
    into : list of Span, or None
        The list; None to append nothing.
    lane : str
        One of `LANES`, or a compute thread's.
    device : str
        The device, where the step uses one.
    number : int, optional
        The payload of the range.

    """
    start, began = time.time(), time.perf_counter()
    try:
        with nvtx.annotate(name, domain="broadsheet", payload=number) if nvtx else nullcontext():
            yield
    finally:
        if into is not None:
            into.append(Span(name, start, time.perf_counter() - began, here(), lane, device))


def device_spans(anchor: float, events: Iterable[tuple[str, str, float, float]], device: str) -> list[Span]:
    """Spans from a device's events: (name, lane, begin, end), in milliseconds after an event that the device recorded
    at `anchor`, in seconds since the epoch.
    """
    return [
        Span(name, anchor + begin / 1e3, (end - begin) / 1e3, here(), lane, device) for name, lane, begin, end in events
    ]


def brought_home(spans: Iterable[Span], offset: float, chunk: str) -> list[Span]:
    """The spans of a chunk on the scheduler's clock, with its name."""
    return [replace(s, start=s.start + offset, chunk=chunk) for s in spans]
