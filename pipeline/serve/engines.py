"""The engines that a server sends batches to; here those of this machine, each in a process that is started again when
it ends.
"""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from ..engine.base import Backend, Predictions, Texts
from ..errors import BroadsheetError
from ..model.charcnn import Model
from ..processes.child import Child
from ..processes.messages import Closed, Frame, packed, pieces, read, unpacked
from .batch_time import Point

_BUFFER_BYTES = 4 << 20
_PATIENCE_SECONDS = 60.0
"""A batch is expected to take a fraction of a second: a device that has not answered after this long never will."""

_ENDING_SECONDS = 5.0


class EngineLost(BroadsheetError):
    """The process or the worker that had a batch is gone."""


@dataclass(frozen=True)
class Choice:
    """What a user has chosen of all engines. longest: seconds of the longest batch that is measured."""

    device: str
    precision: str
    kernels: str
    longest: float


@dataclass(frozen=True)
class LoadedModel:
    """A model as it is served. number: from 1, one more with each reload. data: its bytes, for the engines."""

    name: str
    number: int
    source: str
    model: Model
    data: bytes

    @property
    def key(self) -> str:
        """By which engines know it, beside the one before it."""
        return f"{self.name}@{self.number}"


@dataclass(frozen=True)
class Ready:
    """What an engine says of a model that it has loaded."""

    backend: Backend
    device: str
    points: list[Point]
    batch: int | None


class Load(NamedTuple):
    """Load a model under `key`, beside those that are there. longest: seconds of the longest batch to measure."""

    key: str
    name: str
    model: bytes
    device: str
    precision: str
    kernels: str
    threads: int
    longest: float


class Loaded(NamedTuple):
    """points: what was measured of batches. batch: texts in one at most, or None."""

    key: str
    backend: Backend
    device_name: str
    points: list[Point]
    batch: int | None


class Unload(NamedTuple):
    key: str


class Classify(NamedTuple):
    number: int
    key: str
    texts: Texts
    top_k: int


class Classified(NamedTuple):
    """seconds: on the device."""

    number: int
    predictions: Predictions
    seconds: float


class Failed(NamedTuple):
    """A model that could not be loaded under `key`; or with a key of "", the device: the process ends."""

    key: str
    error: BroadsheetError


class Engine(Protocol):
    """One device. name: for people, in logs and metrics."""

    name: str

    async def load(self, loaded: LoadedModel) -> Ready:
        """Load a model beside the others. Raises BroadsheetError where it cannot be, EngineLost."""
        ...

    async def unload(self, key: str) -> None: ...

    async def classify(self, key: str, texts: Texts, top_k: int) -> tuple[Predictions, float]:
        """Predictions with all scores, and seconds on the device. Raises EngineLost."""
        ...


class ProcessEngine:
    """An engine in a process of this machine. `start` makes one."""

    def __init__(self, name: str, child: Child, choice: Choice, threads: int) -> None:
        self.name = name
        self._child = child
        self._choice, self._threads = choice, threads
        self._loading: dict[str, asyncio.Future[Any]] = {}
        self._computing: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, name: str, environment: dict[str, str], choice: Choice, threads: int) -> ProcessEngine:
        """Start a process for the device that `environment` names; no model is loaded yet."""
        start_child = partial(Child, environment=environment, buffer_bytes=_BUFFER_BYTES)
        child = await asyncio.to_thread(start_child, "broadsheet.pipeline.serve.engine_process")
        engine = cls(name, child, choice, threads)
        reader, engine._writer = await asyncio.open_connection(sock=child.connection)
        engine._reading = asyncio.create_task(engine._read(reader))
        return engine

    async def load(self, loaded: LoadedModel) -> Ready:
        answer = self._loading[loaded.key] = asyncio.get_running_loop().create_future()
        choice = self._choice
        asked = Load(
            loaded.key,
            loaded.name,
            loaded.data,
            choice.device,
            choice.precision,
            choice.kernels,
            self._threads,
            choice.longest,
        )
        self._write(await asyncio.to_thread(packed, asked))  # some tens of MB
        ready: Ready = await answer
        return ready

    async def unload(self, key: str) -> None:
        self._write(packed(Unload(key)))

    async def classify(self, key: str, texts: Texts, top_k: int) -> tuple[Predictions, float]:
        self._number += 1
        answer = self._computing[self._number] = asyncio.get_running_loop().create_future()
        watch = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._lose, "it does not answer")
        try:
            self._write(packed(Classify(self._number, key, texts, top_k)))
            found: tuple[Predictions, float] = await answer
            return found
        finally:
            watch.cancel()

    async def ended(self) -> str:
        """Wait until the process is gone; why."""
        return await asyncio.shield(self._lost)

    async def close(self) -> None:
        self._lose("the server stops")
        if self._writer is not None:
            self._writer.close()
        try:
            await asyncio.to_thread(self._child.process.wait, _ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            await asyncio.to_thread(self._child.process.wait)

    def _write(self, frames: list[Frame]) -> None:
        if self._lost.done() or self._writer is None:
            raise EngineLost(f"the engine on {self.name} is gone: {self._lost.result()}")
        self._writer.writelines(pieces(frames))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand over what the process answers, until it ends."""
        why = "its process ended"
        with suppress(Closed):
            while True:
                message = unpacked(await read(reader))
                if isinstance(message, Classified):
                    _resolve(self._computing.pop(message.number), (message.predictions, message.seconds))
                elif isinstance(message, Loaded):
                    ready = Ready(message.backend, message.device_name, message.points, message.batch)
                    _resolve(self._loading.pop(message.key), ready)
                elif isinstance(message, Failed) and message.key:
                    loading = self._loading.pop(message.key)
                    if not loading.done():
                        loading.set_exception(message.error)
                else:
                    why = message.error.message
        self._lose(why)

    @property
    def pid(self) -> int:
        return self._child.process.pid

    @property
    def exit_code(self) -> int | None:
        """Of its process, once that has ended; a negative one is a signal's number."""
        return self._child.process.poll()

    def _lose(self, why: str) -> None:
        """All that was asked of the process fails, and it is killed if it is not gone."""
        if self._lost.done():
            return
        self._lost.set_result(why)
        if why != "the server stops":
            self._child.kill()
        for answer in [*self._loading.values(), *self._computing.values()]:
            if not answer.done():
                answer.set_exception(EngineLost(f"the engine on {self.name} is gone: {why}"))


def _resolve(answer: asyncio.Future[Any], value: object) -> None:
    if not answer.done():
        answer.set_result(value)
