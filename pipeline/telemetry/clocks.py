"""Clocks of several processes: each against the scheduler's, as last measured."""

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
