"""The engines of this machine: one for each GPU, or one for all cores of the CPU.

Each is in its own process, which is started again if it ends.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from functools import partial
from pickle import PickleBuffer
from typing import Any

import numpy as np

from ..engine.base import Texts
from ..errors import BroadsheetError
from ..processes.child import Child
from ..processes.messages import Frame, packed, pieces, taken, unpacked
from ..processes.threads import available_cores
from .dispatcher import Dispatcher
from .engines import Choice, Classified, Classify, EngineLost, Failed, Load, Loaded, LoadedModel, Ready, Rows, Unload
from .metrics import Metrics
from .requests import kind_of, settle
from .settings import log

_BUFFER_BYTES = 4 << 20
"""The size of the buffers of the sockets between the server and an engine's process."""

_PATIENCE_SECONDS = 60.0
"""The seconds after which a device without an answer counts as lost. A batch should take a fraction of a second."""

_ENDING_SECONDS = 5.0
"""The seconds that a process has to end by itself. After that, it is killed."""

_LONGEST_WAIT = 30.0
_STEADY_SECONDS = 60.0
"""An engine that has run this long is started again at once. If it ends sooner, each wait is longer than the last."""


class LocalFleet:
    """The engines of this machine. `states` has, by the name of the device, "ready" or what the engine does instead."""

    def __init__(self, dispatcher: Dispatcher, choice: Choice, gpus: int, metrics: Metrics) -> None:
        self.states: dict[str, str] = {}
        self._dispatcher, self._choice, self._metrics = dispatcher, choice, metrics
        self._environments = _environments(gpus)
        self._threads = max(1, available_cores())
        self._tasks: list[asyncio.Task[None]] = []
        self._engines: dict[str, ProcessEngine] = {}

    async def start(self) -> None:
        """Start all engines. Raises BroadsheetError if one of them cannot start."""
        self.states = dict.fromkeys(self._environments, "starting")
        started = [asyncio.create_task(self._start(name)) for name in self._environments]
        await asyncio.gather(*started)
        self._tasks = [asyncio.create_task(self._keep_running(task.result())) for task in started]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))

    async def _start(self, name: str) -> ProcessEngine:
        began = time.monotonic()
        engine = await ProcessEngine.start(name, self._environments[name], self._choice, self._threads)
        self._engines[name] = engine
        device = await self._dispatcher.add_engine(engine)
        self.states[name] = "ready"
        backend = str(next(iter(device.ready.values())).backend)
        log.info("engine ready", extra={"fields": _about(engine, seconds=time.monotonic() - began, backend=backend)})
        return engine

    async def _keep_running(self, engine: ProcessEngine) -> None:
        """Start an engine again whenever it has ended."""
        name, wait = engine.name, 0.0
        while True:
            # Wait until the engine ends.
            began = time.monotonic()
            why = await engine.ended()
            for device in [device for device in self._dispatcher.devices if device.engine is engine]:
                self._dispatcher.remove(device)
            await engine.close()

            # Try to start it, with ever longer waits.
            if time.monotonic() - began > _STEADY_SECONDS:
                wait = 0.0
            while True:
                self.states[name] = f"being started again: {why}"
                fields = _about(engine, exit_code=engine.exit_code, reason=why, wait=wait)
                log.error("engine lost", extra={"fields": fields})
                self._metrics.restarted(name)
                await asyncio.sleep(wait)
                wait = min(_LONGEST_WAIT, max(1.0, 2 * wait))
                try:
                    engine = await self._start(name)
                    break
                except BroadsheetError as error:
                    why = error.message
                    engine = self._engines[name]
                    await engine.close()


def _environments(gpus: int) -> dict[str, dict[str, str]]:
    """Return the environment variables of each engine's process, by the name of its device."""
    if not gpus:
        return {"cpu": {}}
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = visible[:gpus] if visible else [str(i) for i in range(gpus)]
    return {f"cuda:{name}": {"CUDA_VISIBLE_DEVICES": name} for name in names}


def _about(engine: ProcessEngine, **more: object) -> dict[str, object]:
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in more.items()}
    return {"engine": engine.name, "process": engine.pid, **rounded}


class ProcessEngine(asyncio.Protocol):
    """An engine in a process of this machine. `start` creates one."""

    def __init__(self, name: str, child: Child, choice: Choice, threads: int) -> None:
        self.name = name
        self._child = child
        self._choice, self._threads = choice, threads
        self._loading: dict[str, asyncio.Future[Any]] = {}
        self._computing: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.WriteTransport | None = None
        self._came, self._why = bytearray(), "its process ended"

    @classmethod
    async def start(cls, name: str, environment: dict[str, str], choice: Choice, threads: int) -> ProcessEngine:
        """Start a process, without a model, for the device that `environment` names."""
        start_child = partial(Child, environment=environment, buffer_bytes=_BUFFER_BYTES)
        child = await asyncio.to_thread(start_child, "broadsheet.pipeline.serve.engine_process")
        engine = cls(name, child, choice, threads)
        await asyncio.get_running_loop().create_connection(lambda: engine, sock=child.connection)
        return engine

    async def load(self, loaded: LoadedModel) -> Ready:
        answer = self._loading[loaded.key] = asyncio.get_running_loop().create_future()
        request = Load(loaded.key, loaded.name, loaded.data, self._choice, self._threads)
        self._write(await asyncio.to_thread(packed, request))  # some tens of MB
        ready: Ready = await answer
        return ready

    async def unload(self, key: str) -> None:
        self._write(packed(Unload(key)))

    async def classify(self, key: str, texts: Texts, top_k: int) -> tuple[Rows, float]:
        self._number += 1
        answer = self._computing[self._number] = asyncio.get_running_loop().create_future()
        watch = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._lose, "it does not answer")
        try:
            assert texts.n_chars is not None
            data, offsets, n_chars = (PickleBuffer(array.data) for array in (texts.data, texts.offsets, texts.n_chars))
            self._write(packed(Classify(self._number, key, (data, offsets, n_chars), top_k)))
            rows_and_seconds: tuple[Rows, float] = await answer
            return rows_and_seconds
        finally:
            watch.cancel()

    async def ended(self) -> str:
        """Wait until the process is gone, and return the reason."""
        return await asyncio.shield(self._lost)

    async def close(self) -> None:
        self._lose("the server stops")
        if self._transport is not None:
            self._transport.close()
        try:
            await asyncio.to_thread(self._child.process.wait, _ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            await asyncio.to_thread(self._child.process.wait)

    def _write(self, frames: list[Frame]) -> None:
        if self._lost.done() or self._transport is None:
            raise EngineLost(f"the engine on {self.name} is gone: {self._lost.result()}")
        self._transport.writelines(pieces(frames))

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        while frames := taken(self._came):
            self._handle(unpacked(frames))

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(self._why)

    def _handle(self, message: Any) -> None:
        """Pass an answer of the process to the request that waits for it."""
        if isinstance(message, Classified):
            rows = np.frombuffer(message.rows, kind_of(message.classes, message.top_k))
            settle(self._computing.pop(message.number), (rows, message.seconds))
        elif isinstance(message, Loaded):
            settle(self._loading.pop(message.key), message.ready)
        elif isinstance(message, Failed) and message.key:
            settle(self._loading.pop(message.key), message.error)
        else:  # the device has failed, and the process ends now
            self._why = message.error.message

    @property
    def pid(self) -> int:
        return self._child.process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process, or None while it runs. A negative code is the number of a signal."""
        return self._child.process.poll()

    def _lose(self, why: str) -> None:
        """Let all requests to the process fail, and kill the process unless the server stops."""
        if self._lost.done():
            return
        self._lost.set_result(why)
        if why != "the server stops":
            self._child.kill()
        for answer in [*self._loading.values(), *self._computing.values()]:
            settle(answer, EngineLost(f"the engine on {self.name} is gone: {why}"))
