"""Measures each worker's clock against the scheduler's, when the worker joins and then every minute."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client, Worker, WorkerPlugin
from distributed.protocol.pickle import dumps
from tornado.ioloop import PeriodicCallback

from ..pipeline.telemetry.spans import Clock, clock_from, set_clock

_EVERY_MILLISECONDS = 60_000
_CALL = {"function": dumps(time.time), "args": dumps(()), "kwargs": dumps({})}
"""The arguments with which a scheduler's `run_function` returns `time.time()`; it expects each one pickled."""


class ClockPlugin(WorkerPlugin):
    """Measures the worker's clock every minute. Without NTP, clocks drift apart by 0.1 s an hour and more."""

    name = "broadsheet-clock"

    def __init__(self, every_milliseconds: float = _EVERY_MILLISECONDS) -> None:
        self._every = every_milliseconds
        self._measuring: asyncio.Future[None] | None = None

    async def setup(self, worker: Worker) -> None:
        await _measure(worker)

        async def again() -> None:
            self._measuring = asyncio.ensure_future(_measure(worker))
            await asyncio.wait([self._measuring])  # raises neither an error of the measurement nor its cancellation

        worker.periodic_callbacks[self.name] = PeriodicCallback(again, self._every)
        worker.periodic_callbacks[self.name].start()

    async def teardown(self, worker: Worker) -> None:
        """Stop, and interrupt a measurement that is under way, because the worker closes its connections next."""
        worker.periodic_callbacks.pop(self.name).stop()
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.wait([self._measuring])


async def _measure(worker: Worker) -> None:
    set_clock(await _clock_of(worker.scheduler, 8))


async def _clock_of(scheduler: Any, round_trips: int) -> Clock:
    """Return the clock of this process against that of a scheduler. The fastest of `round_trips` questions counts."""
    trips = []
    for _ in range(round_trips):
        sent = time.time()
        answer = await scheduler.run_function(**_CALL)
        trips.append((sent, answer["result"], time.time()))
    return clock_from(trips)


_clocks: WeakKeyDictionary[Client, tuple[float, Clock]] = WeakKeyDictionary()


def client_clock(client: Client) -> Clock:
    """Return the clock of this process against the scheduler's. It is measured again after a minute."""
    measured, clock = _clocks.get(client, (float("-inf"), Clock()))
    if time.monotonic() - measured > _EVERY_MILLISECONDS / 1e3:
        clock = client.sync(_clock_of, client.scheduler, 3)
        _clocks[client] = time.monotonic(), clock
    return clock
