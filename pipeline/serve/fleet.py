"""The engines of this machine: one for each GPU, or one for the CPU's cores, started again when they end."""

from __future__ import annotations

import asyncio
import os
import time

from ..errors import BroadsheetError
from ..processes.threads import available_cores
from .dispatcher import Dispatcher
from .engines import Choice, ProcessEngine
from .log import log
from .metrics import Metrics

_LONGEST_WAIT = 30.0
_STEADY_SECONDS = 60.0
"""An engine that ran so long is started again at once; one that does not gets ever more time."""


class LocalFleet:
    """states: of each engine by its device's name, "ready" or what it is doing."""

    def __init__(self, dispatcher: Dispatcher, choice: Choice, gpus: int, metrics: Metrics) -> None:
        self.states: dict[str, str] = {}
        self._dispatcher, self._choice, self._metrics = dispatcher, choice, metrics
        self._environments = _environments(gpus)
        self._threads = max(1, available_cores())
        self._tasks: list[asyncio.Task[None]] = []
        self._engines: dict[str, ProcessEngine] = {}

    async def start(self) -> None:
        """Start all engines. Raises BroadsheetError where one of them cannot be."""
        self.states = dict.fromkeys(self._environments, "starting")
        started = [asyncio.create_task(self._start(name)) for name in self._environments]
        await asyncio.gather(*started)
        self._tasks = [asyncio.create_task(self._keep(task.result())) for task in started]

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

    async def _keep(self, engine: ProcessEngine) -> None:
        """Start an engine again whenever it has ended."""
        name, wait = engine.name, 0.0
        while True:
            began = time.monotonic()
            why = await engine.ended()
            for device in [device for device in self._dispatcher.devices if device.engine is engine]:
                self._dispatcher.remove(device)
            await engine.close()
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
    """The variables of each engine's process, by the name of its device."""
    if not gpus:
        return {"cpu": {}}
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = visible[:gpus] if visible else [str(i) for i in range(gpus)]
    return {f"cuda:{name}": {"CUDA_VISIBLE_DEVICES": name} for name in names}


def _about(engine: ProcessEngine, **more: object) -> dict[str, object]:
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in more.items()}
    return {"engine": engine.name, "process": engine.pid, **rounded}
