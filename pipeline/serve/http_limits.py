"""HTTP connections with limits that uvicorn leaves to a proxy: how many, and how long a request may take to come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .arrival import came
from .shared import Held

HEAD_BYTES = 1 << 16


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's own protocol, which a connection leaves that has not sent a request in time.

    A request's scope has `gone`, a set of functions to be called when its client hangs up, and, once all of it is read,
    `arrived`, when it came by the monotonic clock. connections_most: at a time, in all processes; head_seconds,
    body_seconds: in which a request's head, and then its body, must come.
    """

    connections_most: ClassVar[int]
    head_seconds: ClassVar[float]
    body_seconds: ClassVar[float]
    held: ClassVar[Held]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._gone: set[Callable[[], object]] = set()
        self._waits_for = "head"
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._socket = transport.get_extra_info("socket")
        self.held.add_connections(1)
        if self.held.connections > self.connections_most:
            self._refuse(503, "too many connections")
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.held.add_connections(-1)
        super().connection_lost(exc)
        for call in list(self._gone):
            call()

    def data_received(self, data: bytes) -> None:
        if self._waits_for != "body":
            self._head_bytes += len(data)
        super().data_received(data)
        if self._waits_for == "head" and self._head_bytes > HEAD_BYTES:
            self._refuse(431, f"the head of the request is larger than {HEAD_BYTES >> 10} KiB")
        elif self._waits_for == "nothing" and (self._is_answering or self.timeout_keep_alive_task):
            self._stop_timer()
        elif self._timer is None and not self.transport.is_closing():
            self._start_timer()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["gone"] = self._gone  # type: ignore[typeddict-unknown-key]
        self._waits_for = "head"

    def on_headers_complete(self) -> None:
        self._waits_for, self._head_bytes = "body", 0
        self._stop_timer()
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if "arrived" in cycle.scope:  # it has waited for the answer to the one before it on this connection
            cycle.scope["arrived"] = time.monotonic()  # type: ignore[typeddict-unknown-key]
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        self._waits_for = "nothing"
        self.cycle.scope["arrived"] = came(self._socket)  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # so that a client that hangs up after a long body is noticed

    def _start_timer(self) -> None:
        seconds = self.head_seconds if self._waits_for == "head" else self.body_seconds
        self._timer = self.loop.call_later(seconds, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self._refuse(408, f"the {self._waits_for} of the request did not come in time")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        if not (self._is_answering and self.cycle.response_started):
            body = b'{"error":"%s"}' % message.encode()
            head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
