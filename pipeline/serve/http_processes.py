"""Starts the HTTP processes, and passes their requests to the dispatcher.

If a process ends unexpectedly, it is started again, and only its own connections are lost.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..engine.base import Texts
from ..errors import BroadsheetError
from ..processes.child import Child
from ..processes.messages import packed, send
from .dispatcher import Dispatcher
from .engines import LoadedModel
from .http_link import (
    Answered,
    Answers,
    Ask,
    Call,
    Changed,
    Count,
    Counted,
    Denied,
    Forget,
    FromHttp,
    Held,
    Link,
    Listens,
    Message,
    Returned,
    Served,
    Stop,
)
from .http_process import Begin
from .metrics import Metrics, name_of
from .requests import Gone, PendingRequest, Refused, settle
from .settings import Settings, log

Calls: TypeAlias = Callable[[str, str], Awaitable[tuple[int, bytes]]]
"""A function that takes `what` and `model` of a `Call`, and returns the HTTP status and the body."""

_COUNT_WITHIN = 1.0
"""The seconds within which each process must report its counts. The page of metrics does not wait longer."""

_LONGEST_WAIT = 10.0
_STEADY_SECONDS = 10.0
"""A process that has run this long is started again at once. If it ends sooner, each wait is longer than the last."""


class HttpProcesses:
    """All HTTP processes.

    Parameters
    ----------
    settings : Settings
        The settings of the server.
    listening : list of socket.socket
        A listening socket for each process.
    dispatcher : Dispatcher
        Receives the requests to classify.
    metrics : Metrics
        Receives the counts of the processes.
    calls : Calls
        Answers all other requests.

    """

    def __init__(
        self, settings: Settings, listening: list[socket.socket], dispatcher: Dispatcher, metrics: Metrics, calls: Calls
    ) -> None:
        self._settings, self._listening, self._dispatcher = settings, listening, dispatcher
        self._metrics, self._calls = metrics, calls
        self._held = Held.file_for(len(listening))
        self._processes: list[_HttpProcess] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Start the processes, and wait until all accept connections."""
        numbers = range(len(self._listening))
        self._processes = list(await asyncio.gather(*map(self._start, numbers)))
        await asyncio.gather(*(process.listens for process in self._processes))
        if any(process.has_ended for process in self._processes):
            raise BroadsheetError("an HTTP process of the server ended while it started: the log says why")
        self._tasks = [asyncio.create_task(self._keep_running(number)) for number in numbers]
        if self._stopping.is_set():
            self.stop(now=False)

    async def answer(self) -> None:
        """Wait until each process has answered a text."""
        await asyncio.gather(*(process.answers for process in self._processes))

    @property
    def are_ready(self) -> bool:
        """Whether each process has answered a text. All must be ready, since any of them may get a connection."""
        return all(process.answers.done() and not process.has_ended for process in self._processes)

    def tell_of(self, loaded: LoadedModel) -> None:
        """Report a new model, or a new version of a model, to all processes."""
        for process in self._processes:
            process.send(_served(loaded))

    async def count(self) -> None:
        """Wait until the metrics have the counts of all processes."""
        counted = [process.count() for process in self._processes if not process.has_ended]
        if counted:
            await asyncio.wait(counted, timeout=_COUNT_WITHIN)

    def stop(self, now: bool) -> None:
        """Accept no new requests. Requests that have arrived are answered, unless `now`."""
        self._stopping.set()
        for listening in self._listening if self._tasks else ():  # or the next client would wait in vain
            listening.close()
        for process in self._processes:
            process.send(Stop(now))

    async def ended(self) -> None:
        """Wait, after `stop`, until all processes have ended, including those that replace lost ones."""
        await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """End all processes at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.stop(now=True)
        await asyncio.gather(*(process.close() for process in self._processes))

    async def _start(self, number: int) -> _HttpProcess:
        begin = Begin(self._settings, self._listening[number].fileno(), self._held.fileno(), number)
        process = await _HttpProcess.start(begin, self._dispatcher, self._metrics, self._calls)
        for loaded in self._dispatcher.models.values():
            process.send(_served(loaded))
        return process

    async def _keep_running(self, number: int) -> None:
        """Start a process again whenever it has ended, until `stop`."""
        wait = 0.0
        while True:
            began, process = time.monotonic(), self._processes[number]
            await process.ended
            if self._stopping.is_set():
                return
            code = await process.close()
            Held(self._held.fileno(), number).clear()
            self._metrics.http_restarted()
            if time.monotonic() - began > _STEADY_SECONDS:
                wait = 0.0
            fields = {"process": process.pid, "exit_code": code, "wait": wait}
            log.error("HTTP process lost", extra={"fields": fields})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)
                return
            wait = min(_LONGEST_WAIT, max(1.0, 2 * wait))
            self._processes[number] = process = await self._start(number)
            if self._stopping.is_set():  # `stop` was called before there was the new process
                process.send(Stop(now=False))
            await process.listens
            log.info("HTTP process ready", extra={"fields": {"process": process.pid}})


class _HttpProcess:
    """An HTTP process, and its requests that have no answer yet."""

    def __init__(self, child: Child, dispatcher: Dispatcher, metrics: Metrics, calls: Calls) -> None:
        self.pid = child.process.pid
        loop = asyncio.get_running_loop()
        self.listens: asyncio.Future[None] = loop.create_future()
        self.answers: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.link = Link(FromHttp, self._handle, self._lost)
        self._child, self._dispatcher, self._metrics, self._calls = child, dispatcher, metrics, calls
        self._open: dict[int, PendingRequest] = {}
        self._counting: deque[asyncio.Future[None]] = deque()
        self._calling: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, begin: Begin, *arguments: Any) -> _HttpProcess:
        descriptors = [begin.listening, begin.held]
        start = partial(Child, descriptors=descriptors, stderr=None)  # the process writes to the log itself
        child = await asyncio.to_thread(start, "broadsheet.pipeline.serve.http_process")
        send(child.connection, packed(begin))
        made = cls(child, *arguments)
        await asyncio.get_running_loop().create_connection(lambda: made.link, sock=child.connection)
        return made

    @property
    def has_ended(self) -> bool:
        return self.ended.done()

    def send(self, message: Message) -> None:
        self.link.send(message)

    def count(self) -> asyncio.Future[None]:
        """Ask the process for its counts. Return a future that is done after it has reported them."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counting.append(told)
        self.send(Count())
        return told

    async def close(self) -> int:
        """Close the link, wait until the process has ended, and return its exit code."""
        self.link.close()
        return await asyncio.to_thread(self._child.end)

    def _handle(self, message: Any) -> None:
        if isinstance(message, Ask):
            self._ask(message)
        elif isinstance(message, Forget):
            if request := self._open.get(message.number):
                self._dispatcher.forget(request)
        elif isinstance(message, Call):
            task = asyncio.get_running_loop().create_task(self._call(message))
            self._calling.add(task)
            task.add_done_callback(self._calling.discard)
        elif isinstance(message, Counted):
            self._metrics.requests.add(message.requests, message.texts, message.seconds, message.buckets)
            if message.is_asked:
                self._counting.popleft().set_result(None)
        elif isinstance(message, Listens):
            settle(self.listens, None)
        elif isinstance(message, Answers):
            settle(self.answers, None)

    def _ask(self, ask: Ask) -> None:
        loaded = self._dispatcher.models[name_of(ask.key)]
        if loaded.key != ask.key:
            self.send(_served(loaded))  # a process that was just starting may have missed the change
            self.send(Changed(ask.number))
            return
        data, offsets = np.frombuffer(ask.data, np.uint8), np.frombuffer(ask.offsets, np.int64)
        texts = Texts(data, offsets, n_chars=np.frombuffer(ask.n_chars, np.int64))
        try:
            request = self._dispatcher.submit(loaded.name, texts, ask.top_k, ask.arrived, ask.back, ask.trace)
        except Refused as error:
            self.send(Denied(ask.number, str(error), error.retry_after, error.until))
            return
        self._open[ask.number] = request
        request.answer.add_done_callback(partial(self._answer, ask.number))

    def _answer(self, number: int, answer: asyncio.Future[bytes]) -> None:
        del self._open[number]
        error = answer.exception()
        if error is None:
            self.send(Answered(number, answer.result()))
        elif isinstance(error, Refused):
            self.send(Denied(number, str(error), error.retry_after, error.until))
        elif not isinstance(error, Gone):
            raise error

    async def _call(self, call: Call) -> None:
        self.send(Returned(call.number, *await self._calls(call.what, call.model)))

    def _lost(self) -> None:
        """Forget the requests of the process, which is gone together with its clients."""
        for request in list(self._open.values()):
            self._dispatcher.forget(request)
        for waits in (self.listens, self.answers, self.ended, *self._counting):
            settle(waits, None)
        self._counting.clear()


def _served(loaded: LoadedModel) -> Served:
    model = loaded.model
    return Served(loaded.name, loaded.key, model.reads, model.classes, model.thresholds, model.levels is not None)
