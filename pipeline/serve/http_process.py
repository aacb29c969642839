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
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import httptools
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import UsageError
from ..processes.child import parent_of
from ..processes.messages import Closed, receive, unpacked
from ..processes.threads import SWITCH_SECONDS
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

_MOST_AHEAD = 16
"""Requests of a connection that are read while the one before them is answered."""

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


class HttpConnection(asyncio.Protocol):
    """A connection whose requests uvicorn's own protocol answers, within limits that uvicorn leaves to a proxy: how
    many connections there are, and how long a request may take to come.

    The protocol gets one request at a time, written as plainly as possible. So each has one answer, in order, and a
    wish for another protocol (`Upgrade: h2c`) is passed over, as HTTP allows, whatever body is with it. The `state` of
    a request's scope has this object as `connection`.

    Clients that ask again at once, whenever they are refused, would leave this process no time for others: each request
    would have waited too long before it is read, and all would be refused. So where a process is behind with reading,
    the next request of a client that it refuses is left in its socket for a while.

    Parameters
    ----------
    settings : Settings
        The server's.
    held : Held
        Connections that all processes hold.
    turn : Turn
        Of the event loop.
    **options
        What uvicorn gives to a protocol.

    Attributes
    ----------
    gone : set of callable
        Functions to call when the client hangs up.
    arrived : float
        When the request that is to be answered came, by the monotonic clock, once all of it is read.
    is_refused : bool
        Set by the application where it has no time for that request.

    """

    def __init__(self, settings: Settings, held: Held, turn: Turn, **options: Any) -> None:
        self._settings, self._held, self._turn = settings, held, turn
        self._loop, self._connections = asyncio.get_running_loop(), options["server_state"].connections
        self._uvicorn = HttpToolsProtocol(**options | {"app_state": options["app_state"] | {"connection": self}})
        self._parser = httptools.HttpRequestParser(self)
        self.gone: set[Callable[[], object]] = set()
        self.arrived = self._behind = self._read_on = self._until = 0.0
        self.is_refused = self._is_answered = self._is_over = False
        self._requests: deque[list[bytes]] = deque()  # what uvicorn has not got yet; the first request is answered now
        self._refusal, self._waits_for, self._line_bytes = b"", "", 0
        self.on_message_begin()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport, self._answers = transport, _WholeAnswers(transport)
        given = transport.get_extra_info("socket")  # of uvloop, which makes a real one for each question
        self._socket = socket.socket(given.family, given.type, given.proto, given.fileno())
        self._uvicorn.connection_made(self._answers)  # type: ignore[arg-type]
        self._connections.discard(self._uvicorn)
        self._connections.add(self)
        self._held.add_connections(1)
        self._timer = self._loop.call_later(self._settings.head_s, self._late)
        if self._held.connections > self._settings.max_connections:
            self._refuse(503, "too many connections")
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._socket.detach()
        self._connections.discard(self)
        self._held.add_connections(-1)
        self._uvicorn.connection_lost(exc)
        del self._uvicorn, self._parser  # which hold this object, and would stay until garbage is collected
        for call in list(self.gone):
            call()

    def pause_writing(self) -> None:
        self._uvicorn.pause_writing()

    def resume_writing(self) -> None:
        self._uvicorn.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._refusal:
            return
        self._turn.begin(self._loop)
        end_of_line = data.rfind(b"\n")
        self._line_bytes = len(data) - end_of_line - 1 + (self._line_bytes if end_of_line < 0 else 0)
        left = memoryview(data)
        try:
            while left:
                try:
                    self._parser.feed_data(left)
                    break
                except httptools.HttpParserUpgrade as wish:
                    left = left[wish.args[0] :]
                    self._parser.feed_data(self._head())  # without the wish, with which it would pass over the body
        except httptools.HttpParserUpgrade:  # CONNECT is a wish by itself
            self._refuse(400, "this is no proxy")
        except httptools.HttpParserError:
            if not self._is_too_large:
                self._refuse(400, "this is no HTTP request")
        if self._is_too_large or (self._coming == "head" and self._bytes_of_head() > HEAD_BYTES):
            self._refuse(431, f"the head of the request is larger than {HEAD_BYTES >> 10} KiB")
        self._go_on()

    def eof_received(self) -> bool:
        """The client sends no more, but may still read: what it has asked is answered, and then it is closed.

        Over TLS it is closed at once: event loops know no TLS connection that is half closed.
        """
        has_begun = self._coming == "head" and self._bytes_of_head() > 0
        if has_begun or self._coming == "body":
            self._refuse(400, "the request ended before it was whole")
        self.shutdown()
        return self._transport.get_extra_info("sslcontext") is None

    def _bytes_of_head(self) -> int:
        """Bytes of the head that is coming, by its lines rather than by what TCP delivers at once."""
        if not self._headers:  # the line that is coming has the URL, unless that is over
            return max(len(self._url), self._line_bytes)
        return len(self._url) + self._head_bytes + self._line_bytes

    def _head(self) -> bytes:
        version = self._parser.get_http_version().encode()
        return b"%s %s HTTP/%s\r\n%s\r\n" % (self._parser.get_method(), self._url, version, b"".join(self._headers))

    def on_message_begin(self) -> None:
        self._coming, self._is_chunked, self._url = "head", False, b""
        self._headers: list[bytes] = []
        self._head_bytes, self._is_too_large = 0, False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + len(b": \r\n")
        if name.lower() != b"upgrade":
            self._headers.append(b"%s: %s\r\n" % (name, value))

    def on_headers_complete(self) -> None:
        self._is_too_large = self._head_bytes + len(self._url) > HEAD_BYTES
        if self._is_too_large:
            raise ValueError("the head is too large")  # so that the parser stops
        if not self._parser.should_upgrade():
            httptools.parse_url(self._url).path.decode("ascii")  # raises where it is no URL, and the parser with it
            self._coming, self._waits_for = "body", ""  # so that the body's time begins now
            self._requests.append([self._head()])

    def on_chunk_header(self) -> None:
        self._is_chunked = True

    def on_body(self, body: bytes) -> None:
        self._requests[-1].append(b"%x\r\n%s\r\n" % (len(body), body) if self._is_chunked else body)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        if self._is_chunked:
            self._requests[-1].append(b"0\r\n\r\n")
        self._coming = "idle"
        arrived = max(came(self._socket, self._turn.began), self._read_on)  # it is not late where it was held back
        self._behind = time.monotonic() - arrived
        if len(self._requests) == 1:
            self.arrived = arrived

    def answered(self) -> None:
        """Called by the application once it has answered a request."""
        self._answers.flush()
        self._is_answered = True
        self._go_on()

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops: requests that have come are answered, and it is closed."""
        self._is_over = True
        self._go_on()

    def read_on(self) -> None:
        """Read the client's next request, if that had to wait."""
        if self._waits_for == "pause":
            self._read_on = time.monotonic()
            self._go_on()

    def _go_on(self) -> None:
        """Pass on what has come of the request that is to be answered next, and wait for what has not."""
        if self._transport.is_closing():
            return
        is_refused = self.is_refused
        while self._requests:
            if pieces := self._requests[0]:
                self._uvicorn.data_received(b"".join(pieces))
                pieces.clear()
            if not self._is_answered or (self._coming == "body" and len(self._requests) == 1):
                break
            self._requests.popleft()
            self.arrived, self._is_answered, self.is_refused = time.monotonic(), False, False
            self._transport.resume_reading()
        count = len(self._requests)
        if count > 1 and (self._coming == "body" or count > _MOST_AHEAD):
            self._transport.pause_reading()
        elif self._coming != "body":
            self._transport.resume_reading()  # so that a client that hangs up after a long body is noticed
        if self._is_over and count < 2:
            self._answers.is_last = True
            self._uvicorn.shutdown()
        if self._refusal and not count:
            self._transport.write(b"" if self._is_answered else self._refusal)
            self._transport.close()
        elif count == 1 and self._coming == "body":
            self._wait_for("body", self._settings.body_s)
        elif count:
            self._wait_for("")
        elif self._coming == "head":
            self._wait_for("head", self._settings.head_s)
        elif is_refused and self._behind > too_late(self._settings) / 2:
            self._transport.pause_reading()
            most = min(_LONGEST_PAUSE, _PAUSE * self._behind)
            self._wait_for("pause", random.uniform(0.5, 1) * most)  # or all would come again together
        else:
            self._wait_for("idle", self._settings.idle_s)

    def _wait_for(self, what: str, seconds: float = 0.0) -> None:
        """A timer that ends before is left, and set again then: to set one for each request would take longer."""
        if what != self._waits_for:
            now = self._loop.time()
            self._waits_for, self._until = what, now + seconds
            if what and not now < self._timer.when() <= self._until:
                self._timer.cancel()
                self._timer = self._loop.call_at(self._until, self._late)

    def _late(self) -> None:
        if self._loop.time() + 0.01 < self._until:  # timers count milliseconds
            self._timer = self._loop.call_at(self._until, self._late)
        elif self._waits_for == "pause":
            self.read_on()
        elif self._waits_for == "idle":
            self._transport.close()
        elif self._waits_for:
            self._refuse(408, f"the {self._waits_for} of the request did not come in time")

    def _refuse(self, status: int, message: str) -> None:
        """Answer the request that is coming, unless it has an answer, and close; once those before it have theirs."""
        if len(self._url) >= HEAD_BYTES:
            status, message = 414, f"the URL is longer than {HEAD_BYTES >> 10} KiB"
        body = b'{"error":"%s"}' % message.encode()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self._refusal = head.encode() + b"connection: close\r\n\r\n" + body
        if self._coming == "body":
            self._requests.pop()
            self._coming = "head"
        self._go_on()


_CLOSE = b"connection: close\r\n"


class _WholeAnswers:
    """A transport that sends the head of an answer with the beginning of its body: a client wakes up once.

    Attributes
    ----------
    is_last : bool
        Whether the connection is closed after the next answer, which then says so.

    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""
        self.is_last = False
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head or data.startswith(b"HTTP/1.1 100 "):  # for which the body waits
            self.flush(data)
        elif self.is_last and _CLOSE not in data.lower():
            self._head = data.removesuffix(b"\r\n") + _CLOSE + b"\r\n"
        else:
            self._head = data

    def flush(self, data: bytes = b"") -> None:
        if not self.is_closing():
            self._transport.write(self._head + data)
        self._head = b""

    def close(self) -> None:
        self.flush()
        self._transport.close()


_COUNT_SECONDS = 1
_LAST_LOOKS, _LOOK_SECONDS = 5, 0.02
"""How often the event loop looks for connections and requests that have come before the process stops: a connection is
taken at the first look, and read at the second.
"""


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

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
    config = uvicorn.Config(
        app.asgi,
        http=partial(HttpConnection, settings, held, Turn()),  # type: ignore[arg-type]
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(settings.idle_s + settings.head_s) + 2,  # HttpConnection closes it before
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        callback_notify=main.count,
        timeout_notify=_COUNT_SECONDS,
    )
    config.load()
    config.ssl = certificates_of(settings)
    return config


async def _serve(connection: socket.socket, begin: Begin) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def stop(now: bool) -> None:
        server.force_exit = now
        stopping.set()

    main, held = Main(stop), Held(begin.held, begin.number)
    app = App(begin.settings, main, held, open_traces())
    server = _Uvicorn(_configured(begin.settings, app, main, held))
    await loop.create_connection(lambda: main.link, sock=connection)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[socket.socket(fileno=begin.listening)]))
        while not server.started:
            await asyncio.sleep(_LOOK_SECONDS)
        gc.collect()
        gc.freeze()  # or what is collected later would take longer than a request
        main.link.send(Listens())
        trying = asyncio.create_task(app.answer_one())
        await stopping.wait()
        # Requests that this machine has are read first: uvicorn closes connections of which it has read nothing.
        for each in list(server.server_state.connections):
            each.read_on()  # type: ignore[union-attr]
        for _ in range(_LAST_LOOKS):
            await asyncio.sleep(_LOOK_SECONDS)
        trying.cancel()
        server.should_exit = True
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
    sys.setswitchinterval(SWITCH_SECONDS)  # a thread may be reading a large body
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(connection, begin))


if __name__ == "__main__":
    main()
