"""The processes that speak HTTP, as the main process has them: their requests go to the dispatcher.

A process that ends is started again, and only its own connections are lost.
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
from .requests import Gone, Refused, Request, settle
from .settings import Settings, log

Calls: TypeAlias = Callable[[str, str], Awaitable[tuple[int, bytes]]]
"""Of `what` and `model` of a `Call`, the HTTP status and the body."""

_COUNT_WITHIN = 1.0
"""Seconds within which each process must report what it has counted; then metrics are shown without."""

_LONGEST_WAIT = 10.0
_STEADY_SECONDS = 10.0
"""A process that ran so long is started again at once; one that does not gets ever more time."""


class HttpProcesses:
    """All processes that speak HTTP.

    Parameters
    ----------
    settings : Settings
        The server's settings.
    listening : list of socket.socket
        A socket that listens, for each process.
    dispatcher : Dispatcher
        Receives the requests to classify.
    metrics : Metrics
        Receives what the processes count.
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
        """Start them, and wait until they take connections."""
        numbers = range(len(self._listening))
        self._processes = list(await asyncio.gather(*map(self._start, numbers)))
        await asyncio.gather(*(process.listens for process in self._processes))
        if any(process.has_ended for process in self._processes):
            raise BroadsheetError("a process that was to speak HTTP has ended: the log says why")
        self._tasks = [asyncio.create_task(self._keep(number)) for number in numbers]
        if self._stopping.is_set():
            self.stop(now=False)

    async def answer(self) -> None:
        """Wait until each has answered a text."""
        await asyncio.gather(*(process.answers for process in self._processes))

    @property
    def are_ready(self) -> bool:
        """Whether each has answered a text: a connection may be dealt to any of them."""
        return all(process.answers.done() and not process.has_ended for process in self._processes)

    def tell_of(self, loaded: LoadedModel) -> None:
        """Report to all processes that a model was loaded, in the place of another or not."""
        for process in self._processes:
            process.send(_served(loaded))

    async def count(self) -> None:
        """Wait until what the processes have counted is in the metrics."""
        counted = [process.count() for process in self._processes if not process.has_ended]
        if counted:
            await asyncio.wait(counted, timeout=_COUNT_WITHIN)

    def stop(self, now: bool) -> None:
        """Take no new requests; those that there are, are answered, unless `now`."""
        self._stopping.set()
        for listening in self._listening if self._tasks else ():  # else the next client would wait for an answer
            listening.close()
        for process in self._processes:
            process.send(Stop(now))

    async def ended(self) -> None:
        """Wait until all are gone, after `stop`; those too that were started in the place of lost ones."""
        await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """End them."""
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

    async def _keep(self, number: int) -> None:
        """Start a process again whenever it has ended."""
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
            if self._stopping.is_set():  # and `stop` did not reach the new process
                process.send(Stop(now=False))
            await process.listens
            log.info("HTTP process ready", extra={"fields": {"process": process.pid}})


class _HttpProcess:
    """A process that speaks HTTP, and its requests that are not answered yet."""

    def __init__(self, child: Child, dispatcher: Dispatcher, metrics: Metrics, calls: Calls) -> None:
        self.pid = child.process.pid
        loop = asyncio.get_running_loop()
        self.listens: asyncio.Future[None] = loop.create_future()
        self.answers: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.link = Link(FromHttp, self._take, self._lost)
        self._child, self._dispatcher, self._metrics, self._calls = child, dispatcher, metrics, calls
        self._open: dict[int, Request] = {}
        self._counting: deque[asyncio.Future[None]] = deque()
        self._calling: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, begin: Begin, *arguments: Any) -> _HttpProcess:
        descriptors = [begin.listening, begin.held]
        start = partial(Child, descriptors=descriptors, stderr=None)  # it writes the log itself
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
        """A future that is done once the process has reported what it has counted."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counting.append(told)
        self.send(Count())
        return told

    async def close(self) -> int:
        """Close the link, and wait until the process has ended; its exit code."""
        self.link.close()
        return await asyncio.to_thread(self._child.end)

    def _take(self, message: Any) -> None:
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
            self.send(_served(loaded))  # a process that was starting when the model was changed may not have it
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
        """The process is gone, and its clients with it."""
        for request in list(self._open.values()):
            self._dispatcher.forget(request)
        for waits in (self.listens, self.answers, self.ended, *self._counting):
            settle(waits, None)
        self._counting.clear()


def _served(loaded: LoadedModel) -> Served:
    model = loaded.model
    return Served(loaded.name, loaded.key, model.reads, model.classes, model.thresholds, model.levels is not None)
