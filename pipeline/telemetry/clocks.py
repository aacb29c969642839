"""The offset of each process's clock from that of the scheduler, as last measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
