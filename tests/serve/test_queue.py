"""What is computed next, and what is refused: the server's queue with devices that take a known time, on a clock that
jumps to the next event.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from broadsheet.pipeline.engine.base import Backend, Predictions, Texts
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.serve.dispatcher import Dispatcher
from broadsheet.pipeline.serve.engines import BatchTime, EngineLost, LoadedModel, Point, Ready
from broadsheet.pipeline.serve.metrics import Metrics
from broadsheet.pipeline.serve.requests import Refused, from_rows, to_rows


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while there is work, and then jumps to the next timer."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Device:
    """Takes 20 ms for a batch and 2.4 ms for each text, with some noise, and 14 ms for a lone text, times `slower`."""

    def __init__(self, name: str, noise: float) -> None:
        self.name, self.noise, self.free, self.is_lost, self.slower = name, noise, 0.0, False, 1.0
        self.batches: list[int] = []
        self.models: set[str] = set()
        self.loads_in = 0.0

    def seconds(self, texts: int) -> float:
        return self.slower * (0.014 if texts == 1 else 0.020 + 0.0024 * texts)

    async def load(self, loaded: LoadedModel) -> Ready:
        await asyncio.sleep(self.loads_in)
        if self.is_lost:
            raise EngineLost("it is gone")
        self.models.add(loaded.key)
        points = [Point(2**i, self.seconds(2**i), 0.0) for i in range(7)]
        return Ready(Backend("cpu", "none", "none", "fp32"), self.name, points, None)

    async def unload(self, key: str) -> None:
        self.models.remove(key)

    async def classify(self, key: str, texts: Texts, top_k: int) -> tuple[Any, float]:
        loop, count = asyncio.get_running_loop(), len(texts)
        seconds = self.seconds(count) * random.lognormvariate(0, self.noise)
        self.batches.append(count)
        self.free = max(loop.time(), self.free) + seconds
        await asyncio.sleep(self.free - loop.time())
        if self.is_lost:
            raise EngineLost("it is gone")
        assert texts.n_chars is not None
        scores = np.full((count, 4), 0.25, np.float32)
        labels = texts.data[texts.offsets[:-1]].astype(np.int32)[:, None]  # so that each answer identifies its text
        counts = np.zeros(count, np.int64)
        found = Predictions(labels, scores[:, :1], scores, texts.n_chars, counts.astype(bool), counts)
        return to_rows(found), seconds


def run(work: Coroutine[Any, Any, None], loop: JumpingLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(work)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def texts_of(count: int, mark: int = 0) -> Texts:
    return Texts(np.full(count, mark, np.uint8), np.arange(count + 1), n_chars=np.full(count, 100))


def labels_of(rows: bytes) -> Any:
    return from_rows(rows, classes=4, top_k=1).labels.tolist()


async def started(loop: JumpingLoop, model: Model, devices: list[Device], retries: int = 0) -> Dispatcher:
    dispatcher = Dispatcher(0.1, 5000, retries, Metrics(), loop.time)
    dispatcher.models["m"] = LoadedModel("m", 1, "", model, b"")
    for device in devices:
        await dispatcher.add_engine(device)
    return dispatcher


@pytest.mark.parametrize(("rate", "devices"), [(50, 1), (200, 1), (2000, 1), (4000, 2)])
def test_what_is_accepted_holds_the_target_and_the_devices_stay_busy(
    small_model: Model, rate: float, devices: int
) -> None:
    """The load is from a quarter of what the devices can do to ten times that."""
    loop = JumpingLoop()
    random.seed(rate)
    asked, refused, latencies = 0, 0, []

    async def work() -> None:
        nonlocal asked, refused
        dispatcher = await started(loop, small_model, [Device(str(i), 0.05) for i in range(devices)])
        asked, refused, answered = await load(dispatcher, loop, rate, 3)
        latencies.extend(seconds for _, seconds in answered)

    run(work(), loop)
    assert np.percentile(latencies, 99) <= 0.1
    capacity = devices * 8 / Device("", 0).seconds(8)
    if rate < 0.5 * capacity:
        assert refused == 0
    if rate > 2 * capacity:
        assert len(latencies) / 3 > 0.8 * capacity
        assert asked < 0.25 * (len(latencies) + refused)  # the other requests were refused where they came in


def test_devices_that_become_slower_together_are_noticed(small_model: Model) -> None:
    """Other processes may use the same cores. Whatever the batch sizes are then, the target is met again."""
    loop = JumpingLoop()
    random.seed(1)
    device, answered = Device("one", 0.05), list[tuple[float, float]]()

    async def work() -> None:
        dispatcher = await started(loop, small_model, [device])
        device.slower = 1.8
        answered.extend((await load(dispatcher, loop, 2000, 6))[2])

    run(work(), loop)
    later = [seconds for at, seconds in answered if at > 1]
    assert np.percentile(later, 99) <= 0.1
    # A slower device gets smaller batches, and part of the target is kept free, so expect a third of the full
    # throughput.
    assert len(later) / 5 > 8 / device.seconds(8) / 3


async def load(
    dispatcher: Dispatcher, loop: JumpingLoop, rate: float, seconds: float
) -> tuple[int, int, list[tuple[float, float]]]:
    """Send requests of one text, at random times, until the clock is at `seconds`.

    Return how many the dispatcher was asked, how many were refused (by it, or in the time for which it had announced
    that it refuses all), and for the others when each came and how long it took.
    """
    asked, refused, until = 0, 0, 0.0
    answered: list[tuple[float, float]] = []

    async def ask() -> None:
        nonlocal asked, refused, until
        arrived = loop.time()
        if arrived < until:
            refused += 1
            return
        asked += 1
        try:
            await dispatcher.submit("m", texts_of(1), 1).answer
            answered.append((arrived, loop.time() - arrived))
        except Refused as error:
            refused, until = refused + 1, max(until, error.until)

    asking = []
    while loop.time() < seconds:
        await asyncio.sleep(random.expovariate(rate))
        asking.append(asyncio.create_task(ask()))
    await asyncio.gather(*asking)
    return asked, refused, answered


def test_single_texts_pass_large_requests_which_pass_each_other(small_model: Model) -> None:
    loop = JumpingLoop()
    device = Device("one", 0.0)

    async def work() -> None:
        dispatcher = await started(loop, small_model, [device])
        first, second = (dispatcher.submit("m", texts_of(300, mark), 1) for mark in (1, 2))
        await asyncio.sleep(0.2)
        single = dispatcher.submit("m", texts_of(1, 3), 1)
        began = loop.time()
        assert labels_of(await single.answer) == [[3]]
        assert loop.time() - began < 0.1
        assert not first.answer.done()
        assert labels_of(await second.answer) == [[2]] * 300
        between = loop.time()
        assert labels_of(await first.answer) == [[1]] * 300
        assert abs(loop.time() - between) < 0.5  # neither had to wait until the other was done

        forgotten = dispatcher.submit("m", texts_of(300), 1)
        await asyncio.sleep(0.1)
        dispatcher.forget(forgotten)
        computed = sum(device.batches)
        await asyncio.sleep(1)
        assert sum(device.batches) == computed
        assert dispatcher.waiting.texts == 0
        assert dispatcher.open_requests == 0

    run(work(), loop)


def test_who_is_late_is_answered_where_nothing_waits_and_a_device_is_free(small_model: Model) -> None:
    """The clock does not matter: when a request came, how long it was on its way, and when it can start. Requests that
    are read together go into one batch, so none waits for another.
    """
    loop = JumpingLoop()
    device = Device("one", 0.0)

    async def work() -> None:
        dispatcher = await started(loop, small_model, [device])
        loop.now = 100.0
        for late, back in ((0.05, 0.05), (0.05, 50.0), (50.0, 0.0), (50.0, 50.0)):
            asked = [dispatcher.submit("m", texts_of(1, mark), 1, loop.now - late, back) for mark in range(4)]
            assert [labels_of(await each.answer) for each in asked] == [[[mark]] for mark in range(4)]
            large = dispatcher.submit("m", texts_of(300, 5), 1, loop.now - late, back)
            assert labels_of(await large.answer) == [[5]] * 300
        assert device.batches.count(4) == 4

        held_up = dispatcher.submit("m", texts_of(1, 6), 1)
        loop.now += 50
        assert labels_of(await held_up.answer) == [[6]]

        computed = dispatcher.submit("m", texts_of(1), 1)
        await asyncio.sleep(0.001)
        with pytest.raises(Refused):  # because it has to wait
            dispatcher.submit("m", texts_of(1), 1, loop.now - 0.09)
        await computed.answer

    run(work(), loop)


def test_texts_of_a_lost_engine_are_computed_once_more_elsewhere(small_model: Model) -> None:
    loop = JumpingLoop()
    devices = [Device("one", 0.0), Device("two", 0.0)]

    async def work() -> None:
        dispatcher = await started(loop, small_model, devices, retries=1)
        requests = [dispatcher.submit("m", texts_of(100, mark), 1) for mark in (1, 2)]
        await asyncio.sleep(0.01)
        devices[0].is_lost = True
        for mark, request in enumerate(requests, 1):
            assert labels_of(await request.answer) == [[mark]] * 100
        request = dispatcher.submit("m", texts_of(5), 1)
        await asyncio.sleep(0.01)
        devices[1].is_lost = True
        with pytest.raises(Refused, match="no engine is ready"):
            await request.answer

    run(work(), loop)


def test_texts_that_lose_one_engine_after_another_are_refused(small_model: Model) -> None:
    """They are not sent to all engines, because they may be what kills them."""
    loop = JumpingLoop()
    devices = [Device(name, 0.0) for name in ("one", "two", "three", "four")]

    async def work() -> None:
        dispatcher = await started(loop, small_model, devices, retries=1)
        for device in devices[:3]:
            device.is_lost = True
        with pytest.raises(Refused, match="it is gone"):
            await dispatcher.submit("m", texts_of(5), 1).answer

    run(work(), loop)


def test_a_model_is_changed_while_a_client_hangs_up_an_engine_joins_and_another_is_lost(small_model: Model) -> None:
    loop = JumpingLoop()
    first, second, third = (Device(name, 0.0) for name in ("one", "two", "three"))

    async def work() -> None:
        dispatcher = await started(loop, small_model, [first])
        first.loads_in = second.loads_in = third.loads_in = 1.0
        changing = asyncio.ensure_future(dispatcher.change_model(LoadedModel("m", 2, "", small_model, b"")))
        await asyncio.sleep(0.99)
        forgotten = dispatcher.submit("m", texts_of(10), 1)
        await changing
        dispatcher.forget(forgotten)  # the last request for the old model, while a batch of it is computed
        request = dispatcher.submit("m", texts_of(1, 7), 1)
        assert labels_of(await asyncio.wait_for(request.answer, 60)) == [[7]]

        changing = asyncio.ensure_future(dispatcher.change_model(LoadedModel("m", 3, "", small_model, b"")))
        await asyncio.gather(dispatcher.add_engine(second), dispatcher.add_engine(third), changing)
        await asyncio.sleep(1)
        assert first.models == second.models == third.models == {"m@3"}

        second.is_lost = third.is_lost = True
        await dispatcher.change_model(LoadedModel("m", 4, "", small_model, b""))
        assert [device.engine for device in dispatcher.devices] == [first]
        assert dispatcher.serves_all
        first.is_lost = True
        await dispatcher.change_model(LoadedModel("m", 5, "", small_model, b""))
        assert not dispatcher.serves_all

    run(work(), loop)


def test_one_slow_batch_hardly_changes_what_is_expected() -> None:
    time = BatchTime([Point(1, 0.010, 1e-5), Point(2, 0.012, 1e-5), Point(4, 0.016, 1e-5)])
    assert time.seconds(3, 0) == pytest.approx(0.014)
    assert time.seconds(8, 100) == pytest.approx(0.033)
    assert time.most_texts(0.05, 100) == 10
    time.learn(4, 0, 30.0)
    assert time.seconds(4, 0) < 0.017
    for _ in range(20):
        time.learn(4, 0, 0.032)  # twice as long from now on
    assert time.seconds(4, 0) == pytest.approx(0.032, rel=0.1)
    for _ in range(300):
        time.learn(4, 0, 0.032)
        time.learn(1, 0, 0.010)  # a lone text stays as fast
    assert time.seconds(4, 0) == pytest.approx(0.032, rel=0.1)
    assert time.seconds(1, 0) == pytest.approx(0.010, rel=0.1)
