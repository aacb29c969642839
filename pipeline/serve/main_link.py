"""The main process as one that speaks HTTP sees it: what it serves, and what may be asked of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from ..engine.base import Predictions
from .counts import RequestCounts
from .messages import (
    Answered,
    Ask,
    Call,
    Changed,
    Count,
    Denied,
    Forget,
    Link,
    Returned,
    Served,
    Stop,
    ToHttp,
)
from .requests import Gone, ModelChanged, Packed, Refused
from .rows import from_rows


class Main:
    """The main process as this one sees it. models: what is served, by name. counts: of requests that are over. stop:
    is called when the main process says so, and whether that is at once.
    """

    def __init__(self, stop: Callable[[bool], None]) -> None:
        self.models: dict[str, Served] = {}
        self.counts = RequestCounts()
        self.link = Link(ToHttp, self._take, self._lost)
        self._stop, self._is_over = stop, False
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._closed: dict[str, tuple[str, float, float]] = {}

    def check_open(self, served: Served) -> None:
        """For a request of one text. Raises Refused while the main process would refuse it, as far as it has said: what
        it need not say again, it has time for others.
        """
        reason, retry_after, until = self._closed.get(served.key, ("", 0.0, 0.0))
        if time.monotonic() < until:
            raise Refused(reason, retry_after)

    async def classify(
        self, served: Served, texts: Packed, top_k: int, arrived: float, back: float, gone: set[Any]
    ) -> Predictions:
        """Predictions with all scores. Raises Refused, ModelChanged where the model is served under another key now,
        and Gone once a client hangs up, which is told by the functions in `gone`.
        """
        number, answer = self._open_one()
        top_k = min(top_k, len(served.classes))

        def forget() -> None:
            if not answer.done():
                self.link.send(Forget(number))
                answer.set_exception(Gone())

        gone.add(forget)
        self.link.send(Ask(number, served.key, texts.data, texts.offsets, texts.n_chars, top_k, arrived, back))
        try:
            rows: bytes = await answer
        except Refused as error:
            if error.until:
                self._closed[served.key] = str(error), error.retry_after, error.until
            raise
        finally:
            gone.discard(forget)
            del self._open[number]
        return from_rows(rows, len(served.classes), top_k)

    async def call(self, what: str, model: str = "") -> Returned:
        """Anything else that is asked of the main process."""
        number, answer = self._open_one()
        self.link.send(Call(number, what, model))
        try:
            returned: Returned = await answer
            return returned
        finally:
            del self._open[number]

    async def count(self) -> None:
        """Send what has been counted."""
        if self.counts.requests:
            self._count(is_asked=False)

    def close(self) -> None:
        """Send what there still is; this process ends."""
        self._count(is_asked=False)
        self._is_over = True
        self.link.close()

    def _count(self, is_asked: bool) -> None:
        self.link.send(self.counts.message(is_asked))
        self.counts = RequestCounts()

    def _open_one(self) -> tuple[int, asyncio.Future[Any]]:
        self._number += 1
        answer = self._open[self._number] = self._loop.create_future()
        return self._number, answer

    def _take(self, message: Any) -> None:
        if isinstance(message, Answered):
            self._resolve(message.number, message.rows)
        elif isinstance(message, Denied):
            self._resolve(message.number, Refused(message.reason, message.retry_after, message.until))
        elif isinstance(message, Changed):
            self._resolve(message.number, ModelChanged())
        elif isinstance(message, Returned):
            self._resolve(message.number, message)
        elif isinstance(message, Served):
            self.models[message.name] = message
            self._closed.clear()
        elif isinstance(message, Count):
            self._count(is_asked=True)
        elif isinstance(message, Stop):
            self._stop(message.now)

    def _resolve(self, number: int, found: object) -> None:
        answer = self._open.get(number)
        if answer is None or answer.done():
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def _lost(self) -> None:
        if not self._is_over:  # nobody answers any more
            os._exit(1)
