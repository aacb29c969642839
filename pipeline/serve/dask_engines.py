"""Engines on the workers of a Dask cluster, for more GPUs than one host has. The server asks each worker directly."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from distributed import Client, Worker, WorkerPlugin
from distributed.protocol import to_serialize

from ..engine.base import Engine, Texts
from ..engine.open import expected_device
from ..errors import BroadsheetError, UsageError
from ..processes.threads import share_of_cores
from .dispatcher import Device, Dispatcher
from .engine_process import load
from .engines import Choice, EngineLost, Load, LoadedModel, Ready, Rows
from .metrics import Metrics
from .requests import to_rows
from .settings import log

NAME = "broadsheet-serve"
_LOAD, _UNLOAD, _CLASSIFY = (f"broadsheet_serve_{name}" for name in ("load", "unload", "classify"))
_LOOK_EVERY_S = 0.5
_PATIENCE_S = 60.0
"""The seconds after which a worker without an answer to a batch counts as lost. A batch takes less than a second."""


class ServePlugin(WorkerPlugin):  # type: ignore[misc]
    """Handles messages of the server on a worker, and holds the engines that these request.

    Workers that join later get the plugin too. If another server registers it again, it replaces these engines: a
    cluster has one server at a time.
    """

    name = NAME

    def setup(self, worker: Worker) -> None:
        self._engines: dict[str, Engine] = {}
        self._thread = ThreadPoolExecutor(1, "broadsheet-serve")
        self._worker = worker
        worker.handlers |= {_LOAD: self._load, _UNLOAD: self._unload, _CLASSIFY: self._classify}

    def teardown(self, worker: Worker) -> None:
        for name in (_LOAD, _UNLOAD, _CLASSIFY):
            worker.handlers.pop(name, None)
        for engine in self._engines.values():
            self._thread.submit(engine.close)
        self._engines = {}
        self._thread.shutdown(wait=False)

    async def _load(self, request: Load) -> object:
        def work() -> tuple[Engine, Ready]:
            return load(request._replace(threads=share_of_cores(request.threads)))

        try:
            engine, ready = await asyncio.to_thread(work)
        except BroadsheetError as error:
            return to_serialize(error)
        except Exception as error:  # the device's libraries may raise anything
            return to_serialize(BroadsheetError(f"the model cannot be loaded: {type(error).__name__}: {error}"))
        await self._unload(request.key)  # there is one if the server lost the connection to this worker, and is back
        self._engines[request.key] = engine
        return to_serialize(ready)

    async def _unload(self, key: str) -> None:
        if key in self._engines:
            self._thread.submit(self._engines.pop(key).close)

    async def _classify(self, key: str, texts: Texts, top_k: int) -> object:
        engine = self._engines[key]

        def work() -> tuple[Rows, float]:
            began = time.perf_counter()
            predictions = engine.classify(texts, top_k, all_scores=True)
            return to_rows(predictions), time.perf_counter() - began

        try:
            return to_serialize(await asyncio.get_running_loop().run_in_executor(self._thread, work))
        except Exception:
            if engine.backend.device == "cuda":
                os._exit(1)  # a process cannot compute after a GPU failure; the nanny starts another
            raise


class DaskEngine:
    """The engine of one worker."""

    def __init__(self, client: Client, address: str, workers_per_host: int, choice: Choice) -> None:
        self.name = address.partition("://")[2]
        self.address = address
        self._client, self._share, self._choice = client, workers_per_host, choice
        self._gone = asyncio.Event()

    def give_up(self) -> None:
        """Fail the requests that wait for an answer, because the worker has left the cluster.

        Dask tries for half a minute to reach a worker to which it has no connection.
        """
        self._gone.set()

    async def load(self, loaded: LoadedModel) -> Ready:
        request = Load(loaded.key, loaded.name, loaded.data, self._choice, self._share)
        answer = await self._ask(_LOAD, request=to_serialize(request))
        if isinstance(answer, BroadsheetError):
            raise answer
        assert isinstance(answer, Ready)
        return answer

    async def unload(self, key: str) -> None:
        await self._ask(_UNLOAD, key=key)

    async def classify(self, key: str, texts: Texts, top_k: int) -> tuple[Rows, float]:
        answer = self._ask(_CLASSIFY, key=key, texts=to_serialize(texts), top_k=top_k)
        try:
            rows_and_seconds: tuple[Rows, float] = await asyncio.wait_for(answer, _PATIENCE_S)
        except TimeoutError as error:
            raise EngineLost(f"the engine on {self.name} has not answered for {_PATIENCE_S:.0f} s") from error
        return rows_and_seconds

    async def _ask(self, handler: str, **content: Any) -> Any:
        worker = self._client.rpc(self.address)
        answer = asyncio.ensure_future(on_client_loop(self._client, getattr(worker, handler)(**content)))
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
        except Exception as error:  # an error of the connection, or any error on the worker
            raise EngineLost(f"the engine on {self.name} is gone: {type(error).__name__}: {error}") from error
        finally:
            answer.cancel()
            gone.cancel()
        raise EngineLost(f"the engine on {self.name} is gone: its worker has left the cluster")


async def on_client_loop(client: Client, work: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine of Dask's in the thread in which its client has its event loop."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, client.loop.asyncio_loop))


class DaskFleet:
    """An engine on each present worker, and on those that join later. `states` is as in `LocalFleet`."""

    def __init__(self, dispatcher: Dispatcher, choice: Choice, client: Client, metrics: Metrics) -> None:
        self.states: dict[str, str] = {}
        self._dispatcher, self._choice, self._client, self._metrics = dispatcher, choice, client, metrics
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._refused: set[str] = set()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the engines. Raises BroadsheetError if no worker has one."""
        await asyncio.to_thread(self._client.register_plugin, ServePlugin())
        await self._look()
        while self._joining and not self._dispatcher.devices:
            await asyncio.wait(self._joining.values(), return_when=asyncio.FIRST_COMPLETED)
            await self._look()
        if not self._dispatcher.devices:
            raise BroadsheetError("; ".join(f"{name}: {state}" for name, state in self.states.items()) or "no workers")
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        tasks = [*self._joining.values(), *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await asyncio.to_thread(self._client.unregister_worker_plugin, NAME)
        except Exception as error:  # the cluster may be gone
            log.warning("engines not unloaded", extra={"fields": {"reason": f"{type(error).__name__}: {error}"}})

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                await self._look()
            except OSError as error:  # for example, the scheduler is lost: the present workers go on
                log.warning("the scheduler does not answer", extra={"fields": {"reason": str(error)}})

    async def _look(self) -> None:
        """Give new workers an engine, and forget workers that are gone."""
        # Find the workers, and forget those that are gone.
        identity = await on_client_loop(self._client, self._client.scheduler.identity(n_workers=-1))
        hosts = {address: about["host"] for address, about in identity["workers"].items()}
        for device in list(self._dispatcher.devices):
            engine = cast(DaskEngine, device.engine)
            if engine.address not in hosts:
                engine.give_up()
                self._dispatcher.remove(device)
        here = {cast(DaskEngine, device.engine).address for device in self._dispatcher.devices}
        self._joining = {address: task for address, task in self._joining.items() if not task.done()}
        self._refused &= set(hosts)
        known = {address.partition("://")[2] for address in hosts}
        for name in set(self.states) - known:
            del self.states[name]
            log.error("engine lost", extra={"fields": {"engine": name}})
        # Start an engine on each worker that has none. If it was ready, the dispatcher has lost it during a batch.
        counts = Counter(hosts.values())
        for address, host in hosts.items():
            if address not in here and address not in self._joining and address not in self._refused:
                engine = DaskEngine(self._client, address, counts[host], self._choice)
                if self.states.get(engine.name) == "ready":
                    self._metrics.restarted(engine.name)
                self.states[engine.name] = "starting"
                self._joining[address] = asyncio.create_task(self._join(engine))

    async def _join(self, engine: DaskEngine) -> None:
        try:
            device: Device = await self._dispatcher.add_engine(engine)
        except EngineLost as error:
            self.states[engine.name] = error.message  # the next look tries again, if the worker is still there
        except UsageError as error:
            self.states[engine.name] = f"refused: {error.message}"
            self._refused.add(engine.address)
            log.error("engine refused", extra={"fields": {"engine": engine.name, "reason": error.message}})
        except BroadsheetError as error:
            self.states[engine.name] = error.message
            self._refused.add(engine.address)
            log.error("engine not started", extra={"fields": {"engine": engine.name, "reason": error.message}})
        else:
            self.states[engine.name] = "ready"
            backend = str(next(iter(device.ready.values())).backend)
            log.info("engine ready", extra={"fields": {"engine": engine.name, "backend": backend}})


def device_of(client: Client, device: str) -> str:
    """Return the device that the workers choose, "cpu" or "cuda". If they differ, return the slower one."""
    devices = client.run(expected_device, device, on_error="ignore")
    return "cuda" if devices and set(devices.values()) == {"cuda"} else "cpu"
