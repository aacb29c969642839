"""One queue in front of all devices. It decides which requests are admitted, and what is computed next and where."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..engine.base import Texts
from ..errors import BroadsheetError, UsageError
from .engines import LONGEST_S, BatchTime, EngineLost, LoadedModel, Ready, RemoteEngine, Rows
from .metrics import Metrics
from .requests import NOTHING, STRETCH, Batch, Gone, PendingRequest, Piece, Refused, Waiting, cut, settle
from .settings import log
from .tracing import Traces

_LARGEST_SHARE = 0.4
"""The largest share of the target for a batch. A request waits for the batch that is on the device, and then for its
own. A batch may take as long as two texts alone, whatever the target: ever smaller batches would do ever less work.
(This is also why a batch is not made smaller for a request that has waited long.)
"""

_SPARE_SHARE = 0.15
"""The smallest share of the target that is left for reading a request, for writing the answer, and for a batch that
takes longer than expected.
"""

_PATIENCE = 4.0
"""A request of several batches may take this many times as long as it would need alone, and the target in addition."""

_SURE_SHARE = 0.8
"""The share of a full batch that is counted on if there are several devices, of which none takes all waiting texts. The
expected time of a batch may change in the meantime.
"""

_BACK_SHARE = 0.3
"""The largest share of the target for the way back. A request that took longer to come was delayed on its way."""

_OVERDUE_SHARE = 0.2
"""The share of the longest batch after which a device is expected to answer if its answer is overdue."""

_BUSY_WINDOW = 10.0
"""The last seconds, over which `busy_share` is computed."""


@dataclass(eq=False)
class Device:
    """An engine, its loaded models, and the batches that it is computing.

    Attributes
    ----------
    engine : RemoteEngine
        The engine.
    depth : int
        The number of batches that may be under way. With two, a GPU has the next one when it has finished one.
    ready : dict of str to Ready
        The engine's report for each model, by the model's key.
    times : dict of str to BatchTime
        The time that a batch of each model takes, by the model's key.
    under_way : dict of int to Batch
        The batches that are sent and not yet answered, by their numbers.
    busy_until : float
        The time when the engine should have finished these, by the dispatcher's clock.
    busy : deque of (float, float)
        For each of the last batches, the time when it ended, and the seconds that it took.

    """

    engine: RemoteEngine
    depth: int = 1
    ready: dict[str, Ready] = field(default_factory=dict)
    times: dict[str, BatchTime] = field(default_factory=dict)
    under_way: dict[int, Batch] = field(default_factory=dict)
    busy_until: float = 0.0
    busy: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, key: str, ready: Ready) -> None:
        self.ready[key] = ready
        self.times[key] = BatchTime(ready.points)
        self.depth = 1 if ready.backend.device == "cpu" else 2

    def busy_share(self, now: float) -> float:
        """Return the share of the last ten seconds in which the device computed."""
        while self.busy and self.busy[0][0] < now - _BUSY_WINDOW:
            self.busy.popleft()
        return min(1.0, sum(seconds for _, seconds in self.busy) / _BUSY_WINDOW)


class Dispatcher:
    """Admits requests and returns predictions. Call all methods in the event loop's thread.

    Parameters
    ----------
    target : float
        The seconds that a request may take.
    most_waiting : int
        The number of texts that may wait.
    retries : int
        How often texts are computed again on another engine when theirs is lost.
    metrics : Metrics
        Counts batches, and measures how long requests wait.
    clock : callable
        Returns seconds that never go back.
    traces : Traces, optional
        Receives a span for each batch.

    """

    def __init__(
        self,
        target: float,
        most_waiting: int,
        retries: int,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        traces: Traces | None = None,
    ) -> None:
        self.target = target
        self.models: dict[str, LoadedModel] = {}
        self.devices: list[Device] = []
        self.waiting = Waiting()
        self._most_waiting = most_waiting
        self._retries = retries
        self._clock = clock
        self._metrics, self._traces = metrics, traces
        self._open: Counter[str] = Counter()
        self._changing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._pump_is_due = False
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def open_requests(self) -> int:
        return self._open.total()

    @property
    def serves_all(self) -> bool:
        """Whether each model is ready on some device."""
        return all(any(loaded.key in d.ready for d in self.devices) for loaded in self.models.values())

    async def add_engine(self, engine: RemoteEngine) -> Device:
        """Load the models on an engine, and send it batches from then on.

        Raises BroadsheetError, and UsageError if its scores would differ in their bits from those of the other engines.
        """
        device = Device(engine)
        await self._load_missing(device)
        async with self._changing:  # nothing is missing, unless a model was changed meanwhile
            await self._load_missing(device)
            self._check_backend(device)
            self.devices.append(device)
            for key in set(device.times) - {loaded.key for loaded in self.models.values()}:
                self._drop(device, key)
        self._pump_soon()
        return device

    async def _load_missing(self, device: Device) -> None:
        for loaded in list(self.models.values()):
            if loaded.key not in device.times:
                device.add(loaded.key, await device.engine.load(loaded))

    def remove(self, device: Device) -> None:
        """Send no more batches to a device that is gone."""
        if device in self.devices:
            self.devices.remove(device)
        if not self.devices:
            for request in list(self.waiting):
                self._fail(request, Refused("no engine is ready: the engines are being started again"))

    def _check_backend(self, device: Device) -> None:
        backends = {str(ready.backend): None for other in (*self.devices, device) for ready in other.ready.values()}
        if len(backends) > 1:
            first, second = list(backends)[:2]
            raise UsageError(
                f"the devices differ, so scores would depend on which of them is free: {first} and {second}"
            )

    async def change_model(self, loaded: LoadedModel) -> None:
        """Replace the model of the same name, or add a model: first on every device, then for new requests.

        Requests that have begun use the old model. Raises BroadsheetError, and then changes nothing.
        """
        async with self._changing:
            devices = list(self.devices)
            answers = await asyncio.gather(*(d.engine.load(loaded) for d in devices), return_exceptions=True)
            for device, answer in zip(devices, answers, strict=True):
                if isinstance(answer, Ready):
                    device.add(loaded.key, answer)
                elif isinstance(answer, EngineLost):
                    self.remove(device)
            wrong = [a for a in answers if isinstance(a, BaseException) and not isinstance(a, EngineLost)]
            old = self.models.get(loaded.name)
            if wrong:
                self._unload(loaded.key)
                raise wrong[0]
            self.models[loaded.name] = loaded
        if old is not None and not self._open[old.key]:
            self._unload(old.key)

    def submit(
        self, model: str, texts: Texts, top_k: int, arrived: float | None = None, back: float = 0.0, trace: str = ""
    ) -> PendingRequest:
        """Admit a request. Raises Refused if its deadline, or the queue's limit, cannot be met.

        A request that can start now is admitted however late it is. Its `answer` receives its rows (`to_rows`), as
        bytes.

        Parameters
        ----------
        model : str
            The model's name.
        texts : Texts
            The texts, with `n_chars`.
        top_k : int
            The number of most probable classes of each text.
        arrived : float, optional
            The time when the request arrived, by the clock, if that is not now.
        back : float
            The seconds that the answer needs on its way to the client.
        trace : str
            The return value of `Traces.carried`.

        """
        loaded = self.models[model]
        now = self._clock()
        answer: asyncio.Future[bytes] = self._loop.create_future()
        arrived = now if arrived is None else arrived
        request = PendingRequest(loaded, texts, top_k, arrived, answer, trace)
        self._admit(request, now, back)
        self._open[request.key] += 1
        answer.add_done_callback(lambda _: self._close(request.key))
        if len(texts):
            self.waiting.add(request)
            self._pump_soon()
        else:
            answer.set_result(b"")
        return request

    def forget(self, request: PendingRequest) -> None:
        """Stop computing for a request whose client is gone."""
        self._fail(request, Gone())

    def refuse_all(self) -> None:
        """Refuse all requests that still wait, at the end of the time for draining."""
        for request in list(self.waiting):
            self._fail(request, Refused("the server stops"))
        for device in self.devices:
            for batch in device.under_way.values():
                for piece in batch.pieces:
                    self._fail(piece.request, Refused("the server stops"))

    def _admit(self, request: PendingRequest, now: float, back: float) -> None:
        """Set whether a request is larger than a batch, and its deadline. Raises Refused."""
        # Find the devices, and whether the request fits into one batch of the slowest.
        key, texts, chars = request.key, len(request.texts), request.all_chars
        devices = [device for device in self.devices if key in device.times]
        if not devices:
            raise Refused("no engine is ready: the engines are being started")
        slowest = devices[0] if len(devices) == 1 else max(devices, key=lambda d: d.times[key].seconds(1, 0))
        request.is_large = not self._is_one_batch(slowest, key, texts, chars)
        # Refuse the request if the queue is full, unless nothing delays it: then it starts now.
        of_batch = (0, 0) if request.is_large else (texts, chars)
        starts: Callable[[], bool] = lambda: self._all_start(key, *of_batch) and not (request.is_large and self.waiting)
        if self.waiting.texts + texts > self._most_waiting and not starts():
            until = self._next_start(devices, key) if texts <= 1 else 0.0
            raise Refused(f"{self.waiting.texts:,} texts wait already", self._seconds_waiting(slowest), until)
        # Estimate the seconds that it needs, and choose those that it may take since its arrival (`patience`).
        residuals = sorted(self._residual(device, key, now) for device in devices)
        longest = self._longest(slowest, key)
        if request.is_large:
            alone = longest * texts / self._most_texts(slowest, key, chars / texts) / len(devices)
            patience = self.target + _PATIENCE * alone
            needs = residuals[0] + alone + self._seconds_waiting(slowest)
        else:
            patience = self.target
            rounds, number = divmod(self._batches_ahead(slowest, key, texts, chars), len(devices))
            needs = residuals[number] + STRETCH * longest * (rounds + 1)  # later requests may fill its batch
        back = min(back, _BACK_SHARE * self.target)
        request.deadline = request.arrived + patience - back
        # Refuse the request if it would miss its deadline, unless it starts now.
        late, spare = now - request.arrived + back, _SPARE_SHARE * self.target
        if needs + max(late, spare) > patience and not starts():
            least = texts <= 1 and needs + spare > patience  # the next request of one text would be refused too
            until = self._next_start(devices, key) if least else 0.0
            raise Refused(
                f"the answer would take longer than {1000 * patience:,.0f} ms", needs + max(late, spare), until
            )

    def _all_start(self, key: str, texts: int = 0, chars: int = 0) -> bool:
        """Return whether all texts that wait, and some further ones, can start now: each batch has a free device.

        Then nobody must make room for others, and late requests are still answered. texts, chars: the number of further
        texts, and of their characters.
        """
        free = [device for device in self.devices if key in device.times and not device.under_way]
        return bool(free) and self._batches_ahead(free[0], key, texts, chars) < len(free)

    def _residual(self, device: Device, key: str, now: float) -> float:
        """Return the seconds until a device is free. A device that should already be free may take a little longer."""
        overdue = _OVERDUE_SHARE * self._longest(device, key) if device.under_way else 0.0
        return max(overdue, device.busy_until - now)

    def _next_start(self, devices: Sequence[Device], key: str) -> float:
        """Return when the next batch should go to a device, so that fewer texts wait."""
        return min(d.busy_until - max(0, len(d.under_way) - 1) * self._longest(d, key) for d in devices)

    def _batches_ahead(self, device: Device, key: str, texts: int, chars: int) -> int:
        """Return how many batches precede the batch of a new request, which is no larger than a batch.

        texts, chars: the number of texts of the new request, and of their characters.
        """
        waiting = self.waiting.of
        batches = 0
        for waiting_key in {key, *waiting}:
            if waiting_key not in device.times:
                continue
            wait = waiting.get(waiting_key, NOTHING)
            n, c, requests = wait.small_texts, wait.small_chars, wait.small
            if waiting_key == key:
                n, c, requests = n + texts, c + chars, requests + 1
            if not n:
                continue
            shared = n * (1 + wait.large / requests)  # large requests have their share of each batch
            if len(self.devices) == 1 and shared == n and self._is_one_batch(device, waiting_key, n, c):
                batches += 1
            else:
                most_texts = self._most_texts(device, waiting_key, c / n)
                batches += math.ceil(shared / (most_texts if len(self.devices) == 1 else _SURE_SHARE * most_texts))
        return max(0, batches - 1)

    def _seconds_waiting(self, device: Device) -> float:
        """Return the seconds that all devices together need for everything that waits."""
        return sum(
            self._longest(device, key) * w.texts / self._most_texts(device, key, w.chars / w.texts) / len(self.devices)
            for key, w in self.waiting.of.items()
            if key in device.times and w.texts
        )

    def _is_one_batch(self, device: Device, key: str, texts: int, chars: int) -> bool:
        limit = device.ready[key].batch
        if limit is not None and texts > limit:
            return False
        return texts <= 1 or device.times[key].seconds(texts, chars) <= self._longest(device, key)

    def _longest(self, device: Device, key: str) -> float:
        """Return the seconds that a batch may take without missing the target."""
        share = min(_LARGEST_SHARE * self.target, LONGEST_S)
        return max(share / device.depth, 2 * device.times[key].seconds(1, 0))

    def _most_texts(self, device: Device, key: str, chars_a_text: float) -> int:
        most_texts = device.times[key].most_texts(self._longest(device, key), chars_a_text)
        return min(most_texts, device.ready[key].batch or most_texts)

    def _pump_soon(self) -> None:
        """Pump in the next turn of the event loop: requests that are read in one turn go into one batch."""
        if not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Give every free device a batch of what waits."""
        self._pump_is_due = False
        now = self._clock()
        late = self.waiting.expired(now)
        if late and not self._all_start(late[0].key):
            for request in late:
                self._fail(request, Refused(f"the answer took longer than {1000 * self.target:,.0f} ms"))
        for device in sorted(self.devices, key=lambda device: (len(device.under_way), device.busy_until)):
            while self.waiting and len(device.under_way) < device.depth:
                if device.under_way and not self._fills(device):
                    break
                batch = self._next_batch(device)
                if batch is None:
                    break
                self._number += 1
                device.under_way[self._number] = batch
                seconds = device.times[batch.key].seconds(batch.texts, batch.chars)
                device.busy_until = max(now, device.busy_until) + seconds
                self._start(device, self._number, batch, now)

    def _fills(self, device: Device) -> bool:
        """Return whether enough texts wait for a whole batch, which may then go to a device that is still busy."""
        first = next(iter(self.waiting))
        if first.key not in device.times:
            return False
        average = first.all_chars / max(1, len(first.texts))
        return self.waiting.texts >= self._most_texts(device, first.key, average)

    def _next_batch(self, device: Device) -> Batch | None:
        """Return the next batch. The request with the earliest deadline decides its model."""
        first = next((request for request in self.waiting if request.key in device.times), None)
        if first is None:
            return None
        most_texts = device.ready[first.key].batch or len(first.texts) + self.waiting.texts
        return self.waiting.take(first.key, device.times[first.key], self._longest(device, first.key), most_texts)

    def _start(self, device: Device, number: int, batch: Batch, now: float) -> None:
        for request, first, _ in batch.pieces:
            if first == 0:
                self._metrics.waited(request.key, now - request.arrived)
        task = self._loop.create_task(self._compute(device, number, batch, now))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _compute(self, device: Device, number: int, batch: Batch, began: float) -> None:
        top_k = max(piece.request.top_k for piece in batch.pieces)
        try:
            rows, seconds = await device.engine.classify(batch.key, batch.joined(), top_k)
        except EngineLost as error:
            self.remove(device)
            for piece in batch.pieces:
                self._give_up(piece, error)
            return
        finally:
            del device.under_way[number]
        now = self._clock()
        if not device.under_way:
            device.busy_until = now
        if batch.key in device.times:  # false if the model was changed, and all requests for the old one are gone
            device.times[batch.key].learn(batch.texts, batch.chars, seconds)
        device.busy.append((now, seconds))
        self._metrics.computed(batch.key, device.engine.name, batch.texts, seconds)
        self._pump()
        self._deliver(batch, rows)
        whole = (request for request, _, last in batch.pieces if last == len(request.texts))
        self._metrics.took(now, [(now - request.arrived) / (request.deadline - request.arrived) for request in whole])
        if self._traces is not None:
            self._traces.add_batch(batch, device.engine.name, began, seconds)

    def _deliver(self, batch: Batch, rows: Rows) -> None:
        rows_of = {top_k: cut(rows, top_k) for top_k in {piece.request.top_k for piece in batch.pieces}}
        data = {top_k: (cut_rows.tobytes(), cut_rows.itemsize) for top_k, cut_rows in rows_of.items()}
        at = 0
        for request, first, last in batch.pieces:
            row_bytes, size = data[request.top_k]
            request.add(first, last, row_bytes[at * size : (at + last - first) * size])
            at += last - first

    def _give_up(self, piece: Piece, error: EngineLost) -> None:
        """Compute the texts of a lost engine again on another one, or refuse them."""
        request = piece.request
        if request.tries >= self._retries or request.answer.done():
            self._fail(request, Refused(error.message))
            return
        texts = Batch(request.key, (piece,), piece.last - piece.first, 0).joined()
        again: asyncio.Future[bytes] = self._loop.create_future()
        child = PendingRequest(request.loaded, texts, request.top_k, request.arrived, again, request.trace)
        child.deadline = max(request.deadline, self._clock() + self.target)
        child.is_large, child.tries = request.is_large, request.tries + 1

        def pass_on(answer: asyncio.Future[bytes]) -> None:
            if answer.cancelled():
                return
            if error := answer.exception():
                self._fail(request, error)
            else:
                request.add(piece.first, piece.last, answer.result())

        again.add_done_callback(pass_on)
        self.waiting.add(child)
        if not self.devices:
            self._fail(child, Refused("no engine is ready: the engines are being started again"))
        self._pump_soon()

    def _fail(self, request: PendingRequest, error: BaseException) -> None:
        self.waiting.remove(request)
        settle(request.answer, error)

    def _close(self, key: str) -> None:
        """Count a request for a model as ended. An old model is unloaded after its last request."""
        self._open[key] -= 1
        if not self._open[key] and key not in {loaded.key for loaded in self.models.values()}:
            self._unload(key)

    def _unload(self, key: str) -> None:
        del self._open[key]
        for device in self.devices:
            if key in device.times:
                self._drop(device, key)

    def _drop(self, device: Device, key: str) -> None:
        del device.times[key], device.ready[key]
        task = self._loop.create_task(_unloaded(device.engine, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _unloaded(engine: RemoteEngine, key: str) -> None:
    try:
        await engine.unload(key)
    except BroadsheetError as error:
        log.warning("a model could not be unloaded: %s", error.message)
