"""An HTTP process: it reads and checks requests, asks the main process for labels, and writes the answers.

`http_processes.py` starts it, and sends it `Begin` and then messages. Connections have two limits that uvicorn leaves
to a proxy: their number, and the time in which a request must arrive.
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
"""`struct tcp_info` (linux/tcp.h), from its beginning to `tcpi_last_data_recv`, which is in milliseconds."""

TICK_S = time.clock_getres(6)
"""The resolution of CLOCK_MONOTONIC_COARSE (linux/time.h), 1 to 10 ms. The kernel counts milliseconds in such ticks."""


class Connection(Protocol):
    """A socket, or the object that an event loop has in place of a socket."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def came(connection: Connection, turn: float) -> float:
    """Return the latest time at which the last data of a TCP connection may have arrived, by the monotonic clock.

    `turn` is the time at which the event loop began to read, which is precise. How long the data had waited in the
    socket before, the kernel counts only in whole ticks. Its first tick may have come right after the data, so one tick
    is subtracted.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    milliseconds: int = _TCP_INFO.unpack(info)[-1]
    return min(turn, time.monotonic() - max(0.0, milliseconds / 1000 - TICK_S))


HEAD_BYTES = 1 << 16
"""The size of the largest head of a request (request line and headers), and of the largest URL."""

_MOST_AHEAD = 16
"""The number of requests of a connection that are read ahead, while an earlier one is answered."""

_PAUSE, _LONGEST_PAUSE = 20, 1.0
"""The longest pause before the next request of a refused client is read: this many times the delay with which the
process reads, and at most this many seconds, the least value of `Retry-After`.
"""


class Turn:
    """The current turn of the event loop. `began` is when it began to read, by the monotonic clock; 0 before that."""

    began = 0.0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.began:
            self.began = time.monotonic()
            loop.call_soon(self._end)

    def _end(self) -> None:
        self.began = 0.0


class HttpConnection(asyncio.Protocol):
    """A connection, between the client and uvicorn's own protocol, which answers its requests.

    It adds limits that uvicorn leaves to a proxy: the number of connections, and the time in which a request must
    arrive. A request goes through these stages:

    1. `data_received` parses the data, and the `on_...` methods collect each request in `_requests`.
    2. `_go_on` gives uvicorn's protocol the first request, and waits (`_wait_for`) for data that is missing. If it does
       not arrive in time, `_late` refuses the request or closes the connection.
    3. The application answers through `_WholeAnswers` and calls `answered`. The next request follows.

    Uvicorn's protocol gets one request at a time, in its plainest form. So each request has one answer, in order. A
    wish for another protocol (`Upgrade: h2c`) is ignored, as HTTP allows, also if the request has a body. The `state`
    of a request's scope has this object as `connection`.

    Clients that repeat a refused request at once would leave this process no time for others: each request would have
    waited too long before it is read, and all would be refused. So if the process is late with reading, it leaves the
    next request of a client that it refuses in the socket for a while.

    Parameters
    ----------
    settings : Settings
        The settings of the server.
    held : Held
        The numbers of connections that all processes hold.
    turn : Turn
        The turn of the event loop.
    **options
        The arguments that uvicorn gives to a protocol.

    Attributes
    ----------
    gone : set of callable
        Functions to call when the client hangs up.
    arrived : float
        The time at which the whole current request had arrived, by the monotonic clock. It is set after the request is
        read.
    is_refused : bool
        Whether the application has refused the current request because it has no time. The application sets it.

    """

    def __init__(self, settings: Settings, held: Held, turn: Turn, **options: Any) -> None:
        self._settings, self._held, self._turn = settings, held, turn
        self._loop, self._connections = asyncio.get_running_loop(), options["server_state"].connections
        self._uvicorn = HttpToolsProtocol(**options | {"app_state": options["app_state"] | {"connection": self}})
        self._parser = httptools.HttpRequestParser(self)
        self.gone: set[Callable[[], object]] = set()
        self.arrived = 0.0
        self._behind = 0.0  # the seconds from the arrival of the last request to its reading
        self._read_on = 0.0  # when the last pause ended, by the monotonic clock
        self._until = 0.0  # when the current time limit ends, by the event loop's clock
        self.is_refused = self._is_answered = self._is_over = False
        self._requests: deque[list[bytes]] = deque()  # data that uvicorn does not have yet; the first is current
        self._refusal = b""  # the answer after which the connection closes, if the arriving request is refused
        self._waits_for = ""  # see `_wait_for`
        self._line_bytes = 0  # the size of the line that is arriving
        self.on_message_begin()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport, self._answers = transport, _WholeAnswers(transport)
        given = transport.get_extra_info("socket")  # an object of uvloop, which creates a real socket for each call
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
        del self._uvicorn, self._parser  # they refer to this object, which otherwise stays until garbage collection
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
                    self._parser.feed_data(self._head())  # without `Upgrade`, which makes the parser skip the body
        except httptools.HttpParserUpgrade:  # the method CONNECT asks for an upgrade too
            self._refuse(400, "this is no proxy")
        except httptools.HttpParserError:
            if not self._is_too_large:
                self._refuse(400, "this is no HTTP request")
        if self._is_too_large or (self._coming == "head" and self._bytes_of_head() > HEAD_BYTES):
            self._refuse(431, f"the head of the request is larger than {HEAD_BYTES >> 10} KiB")
        self._go_on()

    def eof_received(self) -> bool:
        """Answer the requests that have arrived, then close: the client sends no more, but may still read.

        A TLS connection is closed at once, since event loops do not support half-closed TLS connections.
        """
        has_begun = self._coming == "head" and self._bytes_of_head() > 0
        if has_begun or self._coming == "body":
            self._refuse(400, "the request ended before it was whole")
        self.shutdown()
        return self._transport.get_extra_info("sslcontext") is None

    def _bytes_of_head(self) -> int:
        """Return the size of the head that is arriving, by its lines and not by the pieces that TCP delivers."""
        if not self._headers:  # the current line has the URL, or follows it
            return max(len(self._url), self._line_bytes)
        return len(self._url) + self._head_bytes + self._line_bytes

    def _head(self) -> bytes:
        """Return the head of the current request, without `Upgrade`."""
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
            raise ValueError("the head is too large")  # this stops the parser
        if not self._parser.should_upgrade():
            httptools.parse_url(self._url).path.decode("ascii")  # an invalid URL raises, which stops the parser
            self._coming, self._waits_for = "body", ""  # the time limit of the body begins now
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
        arrived = max(came(self._socket, self._turn.began), self._read_on)  # a pause does not make a request late
        self._behind = time.monotonic() - arrived
        if len(self._requests) == 1:
            self.arrived = arrived

    def answered(self) -> None:
        """Go on with the next request. The application calls this after it has answered a request."""
        self._answers.flush()
        self._is_answered = True
        self._go_on()

    def shutdown(self) -> None:
        """Answer the requests that have arrived, then close. Uvicorn calls this when the server stops."""
        self._is_over = True
        self._go_on()

    def read_on(self) -> None:
        """Read the client's next request now, if it waits because of a pause."""
        if self._waits_for == "pause":
            self._read_on = time.monotonic()
            self._go_on()

    def _go_on(self) -> None:
        """Give uvicorn the data of the current request, and wait for what is missing."""
        if self._transport.is_closing():
            return

        # Pass on the data of the current request, or of the next ones if it is answered.
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

        # Stop reading if too many requests have been read ahead.
        count = len(self._requests)
        if count > 1 and (self._coming == "body" or count > _MOST_AHEAD):
            self._transport.pause_reading()
        elif self._coming != "body":
            self._transport.resume_reading()  # to notice a client that hangs up after a long body

        # Close if this is the end, or else choose what to wait for, and how long.
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
            longest = min(_LONGEST_PAUSE, _PAUSE * self._behind)
            self._wait_for("pause", random.uniform(0.5, 1) * longest)  # or all would come back together
        else:
            self._wait_for("idle", self._settings.idle_s)

    def _wait_for(self, what: str, seconds: float = 0.0) -> None:
        """Wait for the head, the body, the next request ("idle") or the end of a "pause"; "" is no limit.

        An earlier timer keeps running, and `_late` sets it again. Setting a timer for each request would take longer.
        """
        if what != self._waits_for:
            now = self._loop.time()
            self._waits_for, self._until = what, now + seconds
            if what and not now < self._timer.when() <= self._until:
                self._timer.cancel()
                self._timer = self._loop.call_at(self._until, self._late)

    def _late(self) -> None:
        """Act on a time limit that has passed, or set the timer again if the limit is later."""
        if self._loop.time() + 0.01 < self._until:  # timers are precise to milliseconds
            self._timer = self._loop.call_at(self._until, self._late)
        elif self._waits_for == "pause":
            self.read_on()
        elif self._waits_for == "idle":
            self._transport.close()
        elif self._waits_for:
            self._refuse(408, f"the {self._waits_for} of the request did not come in time")

    def _refuse(self, status: int, message: str) -> None:
        """Refuse the request that is arriving, unless it has an answer already, and close.

        Earlier requests are answered first.
        """
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
    """A transport that sends the head of an answer together with the body, so that the client wakes up only once.

    Attributes
    ----------
    is_last : bool
        Whether the connection closes after the next answer, which then has the header `Connection: close`.

    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""
        self.is_last = False
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head or data.startswith(b"HTTP/1.1 100 "):  # the client sends the body only after this line
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
"""The seconds between two reports of counts to the main process."""

_LAST_LOOKS, _LOOK_SECONDS = 5, 0.02
"""The number of further turns of the event loop before the process stops, and the seconds between them. The first turn
accepts a connection that has arrived, and the second reads its request.
"""


class Begin(NamedTuple):
    """The first message to an HTTP process.

    Attributes
    ----------
    settings : Settings
        The settings of the server.
    listening : int
        The file descriptor of the socket that accepts connections.
    held : int
        The file descriptor of the file of `Held`.
    number : int
        The number of the process.

    """

    settings: Settings
    listening: int
    held: int
    number: int


class _Uvicorn(uvicorn.Server):
    """A server of uvicorn that does not handle signals, since only the main process acts on them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def certificates_of(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context, or None without TLS. Raises UsageError if the files have no certificate with its key."""
    if settings.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except OSError as error:  # ssl.SSLError is an OSError
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
        timeout_keep_alive=round(settings.idle_s + settings.head_s) + 2,  # HttpConnection closes it earlier
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        callback_notify=main.count,
        timeout_notify=_COUNT_SECONDS,
    )
    config.load()
    config.ssl = certificates_of(settings)
    return config


async def _serve(connection: socket.socket, begin: Begin) -> None:
    """Answer requests until the main process sends `Stop`."""
    # Connect the link, the application and uvicorn.
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def stop(now: bool) -> None:
        server.force_exit = now
        stopping.set()

    main, held = Main(stop), Held(begin.held, begin.number)
    app = App(begin.settings, main, held, open_traces())
    server = _Uvicorn(_configured(begin.settings, app, main, held))
    await loop.create_connection(lambda: main.link, sock=connection)

    # Serve, and report that this process listens and answers.
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[socket.socket(fileno=begin.listening)]))
        while not server.started:
            await asyncio.sleep(_LOOK_SECONDS)
        gc.collect()
        gc.freeze()  # otherwise a later collection takes longer than a request
        main.link.send(Listens())
        trying = asyncio.create_task(app.answer_one())
        await stopping.wait()

        # Read the requests that have arrived before stopping: uvicorn closes connections without data at once.
        for each in list(server.server_state.connections):
            each.read_on()  # type: ignore[union-attr]
        for _ in range(_LAST_LOOKS):
            await asyncio.sleep(_LOOK_SECONDS)
        trying.cancel()
        server.should_exit = True
    main.close()


def main() -> None:
    """Run until the main process sends `Stop`, or is gone."""
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
