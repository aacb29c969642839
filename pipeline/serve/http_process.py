"""One of the processes that speak HTTP: it reads and checks requests, asks the main process, and writes the answers.

Started by `http_processes.py`, which sends it `Begin`, and then messages. Connections have limits that uvicorn leaves
to a proxy: how many, and how long a request may take to come.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Protocol

import httptools
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ..errors import UsageError
from ..processes.child import parent_of
from ..processes.messages import Closed, receive, unpacked
from .app import App, too_late
from .http_link import Held, Listens, Main
from .settings import Settings, start_log
from .tracing import open_traces

_TCP_INFO = struct.Struct("8B12I")
"""`struct tcp_info` (linux/tcp.h) from its beginning to `tcpi_last_data_recv`, in milliseconds."""

TICK_S = time.clock_getres(6)
"""Of CLOCK_MONOTONIC_COARSE (linux/time.h): by such ticks, of 1 to 10 ms, the kernel counts milliseconds."""


class Connection(Protocol):
    """A socket, or what an event loop has in place of one."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def came(connection: Connection, turn: float) -> float:
    """When the last that was read of a TCP connection came to this machine, by the monotonic clock, at the latest.

    `turn` is when the event loop began to read what had come, which is precise; how long it was in the socket before is
    known by the kernel's ticks only, of which one may have passed in no time.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    milliseconds: int = _TCP_INFO.unpack(info)[-1]
    return min(turn, time.monotonic() - max(0.0, milliseconds / 1000 - TICK_S))


HEAD_BYTES = 1 << 16

_PAUSE, _LONGEST_PAUSE = 20, 1.0
"""A refused client is read again after so many times that by which this process was behind with reading, at most; and
after so many seconds, the least that `Retry-After` says.
"""


class Turn:
    """The present turn of the event loop: when it began to read what had come, by the monotonic clock; 0 before."""

    began = 0.0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.began:
            self.began = time.monotonic()
            loop.call_soon(self._end)

    def _end(self) -> None:
        self.began = 0.0


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's own protocol, with what that leaves to a proxy: a request must come in time, each gets one answer, in
    order, and a wish for another protocol (`Upgrade: h2c`) is passed over, as HTTP allows, whatever body is with it.

    A request's scope has `gone`, a set of functions to be called when its client hangs up, and, once all of it is read,
    `arrived`, when it came by the monotonic clock; it gets `refused`, where there is no time for it.

    Clients that ask again at once, whenever they are refused, would leave this process no time for others: each request
    would have waited too long before it is read, and all would be refused. So where a process is behind with reading,
    the next request of a client that it refuses is left in its socket for a while.

    connections_most: at a time, in all processes; head_seconds, body_seconds: in which a request's head, and then its
    body, must come; behind_seconds: by which a process may be behind.
    """

    connections_most: ClassVar[int]
    behind_seconds: ClassVar[float]
    head_seconds: ClassVar[float]
    body_seconds: ClassVar[float]
    held: ClassVar[Held]
    turn: ClassVar[Turn]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._gone: set[Callable[[], object]] = set()
        self._waits_for = "head"
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._running: RequestResponseCycle | None = None
        self._reads_no_more = False
        self._pause: asyncio.TimerHandle | None = None
        self._read_on = 0.0
        self._refusal: tuple[int, str] | None = None
        self.url = b""

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
        self._end_pause()
        self.held.add_connections(-1)
        if self._running is not None:  # uvicorn knows the last request only, and writes the answers to others
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)
        for call in list(self._gone):
            call()

    def data_received(self, data: bytes) -> None:
        if self._reads_no_more:
            return
        self.turn.begin(self.loop)
        if self._waits_for != "body":
            self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._waits_for == "head" and self._head_bytes > HEAD_BYTES:
            self._refuse_head(431, f"the head of the request is larger than {HEAD_BYTES >> 10} KiB")
        elif self._waits_for == "nothing":
            self._stop_timer()
            if not self._is_answering and not self.transport.is_closing():  # the answer went before the body had come
                self._wait_for_the_next()
        elif self._timer is None and not self.transport.is_closing():
            self._start_timer()

    def _parse(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                try:
                    self.parser.feed_data(left)
                    return
                except httptools.HttpParserUpgrade as wish:
                    left = left[wish.args[0] :]
                    if self.parser.get_method() == b"CONNECT":
                        self._refuse(400, "this is no proxy")
                        return
                    self.parser.feed_data(self._head_without_upgrade())  # or it would pass over the body
        except httptools.HttpParserError:
            self._refuse_head(400, "this is no HTTP request")

    def _refuse_head(self, status: int, message: str) -> None:
        if len(self.url) >= HEAD_BYTES:
            status, message = 414, f"the URL is longer than {HEAD_BYTES >> 10} KiB"
        self._refuse(status, message)

    def _head_without_upgrade(self) -> bytes:
        start = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = (b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade")
        return b"\r\n".join((start, *headers, b"\r\n"))

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["gone"] = self._gone  # type: ignore[typeddict-unknown-key]
        self._waits_for = "head"

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if httptools.parse_url(self.url).path is None:  # which raises where it is no URL, and the parser with it
            raise httptools.HttpParserInvalidURLError(self.url)
        self._waits_for, self._head_bytes = "body", 0
        self._stop_timer()
        super().on_headers_complete()
        self.headers = []  # what comes after the body in its place is no header of the request

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["method"] == "POST":
            cycle.transport = _WholeAnswers(cycle)  # type: ignore[assignment]
        if "arrived" in cycle.scope:  # it has waited for the answer to the one before it on this connection
            cycle.scope["arrived"] = time.monotonic()  # type: ignore[typeddict-unknown-key]
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._waits_for = "nothing"
        arrived = max(came(self._socket, self.turn.began), self._read_on)  # that it was held back does not make it late
        self.cycle.scope["arrived"] = arrived  # type: ignore[typeddict-unknown-key]
        self.cycle.scope["behind"] = time.monotonic() - arrived  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # so that a client that hangs up after a long body is noticed

    def on_response_complete(self) -> None:
        scope: Any = {} if self._running is None else self._running.scope
        super().on_response_complete()
        if self._refusal is not None and not self._is_answering:
            self._refuse(*self._refusal)
        has_begun = self._is_answering or self._timer is not None  # the next one
        if scope.get("refused") and scope.get("behind", 0.0) > self.behind_seconds and not has_begun:
            most = min(_LONGEST_PAUSE, self.timeout_keep_alive / 2)
            seconds = random.uniform(0.5, 1) * min(most, _PAUSE * scope["behind"])  # or all would come again together
            self.flow.pause_reading()
            self._pause = self.loop.call_later(seconds, self.read_on)

    def read_on(self) -> None:
        """Read the client's next request, if that had to wait."""
        if self._pause is not None and not self.transport.is_closing():
            self._read_on = time.monotonic()
            self.flow.resume_reading()
        self._end_pause()

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _start_timer(self) -> None:
        seconds = self.head_seconds if self._waits_for == "head" else self.body_seconds
        self._timer = self.loop.call_later(seconds, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_for_the_next(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _late(self) -> None:
        self._timer = None
        if self.pipeline or (self._waits_for == "head" and self._is_answering):
            self._start_timer()  # its time begins when those before it are answered
        else:
            self._refuse(408, f"the {self._waits_for} of the request did not come in time")

    def _refuse(self, status: int, message: str) -> None:
        """Answer the request that is coming, unless it has an answer, and close; once those before it have theirs."""
        if self.transport.is_closing():
            return
        self._stop_timer()
        self._reads_no_more, self._refusal = True, (status, message)
        has_begun = self._waits_for == "body"
        if has_begun and self.pipeline:
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running  # type: ignore[assignment]
            self._waits_for, has_begun = "head", False
        if self._is_answering and not has_begun:
            return
        if not (has_begun and self.cycle.response_started):
            body = b'{"error":"%s"}' % message.encode()
            head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class _WholeAnswers:
    """A transport by which the head of an answer goes with the beginning of its body: a client wakes up once."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._transport, self._head = cycle, cycle.transport, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._cycle.response_started and not self._head:
            self._head = data
        else:
            self._transport.write(self._head + data)
            self._cycle.transport = self._transport

    def close(self) -> None:
        self._transport.write(self._head)
        self._transport.close()


_COUNT_SECONDS = 1
_LAST_LOOKS, _LOOK_SECONDS = 5, 0.02
"""How often the event loop looks for connections and requests that have come before the process stops: a connection is
taken at the first look, and read at the second.
"""
_SWITCH_SECONDS = 0.0005
"""How long a thread that reads a large body may keep others from running: by default it is 5 ms."""


class Begin(NamedTuple):
    """What a process is started with.

    Attributes
    ----------
    settings : Settings
        The server's.
    listening : int
        File descriptor of the socket that takes connections.
    held : int
        File descriptor of the file of `Held`.
    number : int
        Of the process.

    """

    settings: Settings
    listening: int
    held: int
    number: int


class _Uvicorn(uvicorn.Server):
    """Signals are the main process's to act on."""

    def __init__(self, config: uvicorn.Config, main: Main, app: App) -> None:
        super().__init__(config)
        self._main, self._app = main, app

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # or what is collected later would take longer than a request
        self._main.link.send(Listens())
        self._trying = asyncio.create_task(self._app.answer_one())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Requests that this machine has are read first: uvicorn closes connections of which it has read nothing."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, LimitedProtocol):
                connection.read_on()
        for _ in range(_LAST_LOOKS):
            await asyncio.sleep(_LOOK_SECONDS)
        await super().shutdown(sockets)


def certificates_of(settings: Settings) -> ssl.SSLContext | None:
    """Raises UsageError for files that hold no certificate and its key."""
    if settings.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"{settings.certificate}: no certificate with its key: {error}") from error
    return context


def _configured(settings: Settings, app: App, main: Main, held: Held) -> uvicorn.Config:
    class Protocol(LimitedProtocol):
        connections_most = settings.max_connections
        head_seconds, body_seconds = settings.head_s, settings.body_s
        behind_seconds = too_late(settings) / 2

    Protocol.held, Protocol.turn = held, Turn()
    config = uvicorn.Config(
        app.asgi,
        http=Protocol,
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(settings.idle_s)),
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        callback_notify=main.count,
        timeout_notify=_COUNT_SECONDS,
    )
    config.load()
    config.ssl = certificates_of(settings)
    return config


async def _serve(connection: socket.socket, begin: Begin) -> None:
    loop = asyncio.get_running_loop()

    def stop(now: bool) -> None:
        server.should_exit, server.force_exit = True, now

    main, held = Main(stop), Held(begin.held, begin.number)
    app = App(begin.settings, main, held, open_traces())
    server = _Uvicorn(_configured(begin.settings, app, main, held), main, app)
    await loop.create_connection(lambda: main.link, sock=connection)
    await server.serve(sockets=[socket.socket(fileno=begin.listening)])
    main.close()


def main() -> None:
    """Run until the main process says so, or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    connection = parent_of(sys.argv[1])
    try:
        begin: Begin = unpacked(receive(connection))
    except Closed:
        return
    start_log(begin.settings.log_json)
    sys.setswitchinterval(_SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(connection, begin))


if __name__ == "__main__":
    main()
