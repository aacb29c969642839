"""One of the processes that speak HTTP: it reads and checks requests, asks the main process, and writes the answers.

Started by `http_processes.py`, which sends it `Begin`, and then messages.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import uvicorn
import uvloop

from ..errors import UsageError
from ..processes.child import parent_of
from ..processes.messages import Closed, receive, unpacked
from .app import App
from .http_limits import LimitedProtocol
from .log import start_log
from .main_link import Main
from .messages import Listens
from .settings import Settings
from .shared import Held

_COUNT_SECONDS = 1
_LAST_LOOKS, _LOOK_SECONDS = 5, 0.02
"""How often the event loop looks for connections and requests that have come before the process stops: a connection is
taken at the first look, and read at the second.
"""
_SWITCH_SECONDS = 0.0005
"""How long a thread that reads a large body may keep others from running: by default it is 5 ms."""


class Begin(NamedTuple):
    """listening, held: numbers of open files: the socket that takes connections, and the file of `Held`. number: of the
    process.
    """

    settings: Settings
    listening: int
    held: int
    number: int


class _Uvicorn(uvicorn.Server):
    """Signals are the main process's to act on."""

    def __init__(self, config: uvicorn.Config, main: Main) -> None:
        super().__init__(config)
        self._main = main

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # or what is collected later would take longer than a request
        self._main.link.send(Listens())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Requests that this machine has are read first: uvicorn closes connections of which it has read nothing."""
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

    Protocol.held = held
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
    app = App(begin.settings, main, held)
    server = _Uvicorn(_configured(begin.settings, app, main, held), main)
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
