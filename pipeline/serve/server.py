"""A server from its start to its end: models, engines, sockets and signals."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from pipeline.engine.open import expected_device
from pipeline.errors import BroadsheetError, UsageError
from pipeline.model.charcnn import load_model
from pipeline.serve.app import App
from pipeline.serve.dispatcher import Dispatcher
from pipeline.serve.engines import Choice, LoadedModel
from pipeline.serve.fleet import LocalFleet
from pipeline.serve.http_limits import LimitedProtocol
from pipeline.serve.log import log, start_log
from pipeline.serve.metrics import Metrics
from pipeline.serve.settings import Settings

if TYPE_CHECKING:
    from distributed import Client

    from pipeline.serve.dask_engines import DaskFleet

TARGET_S = {"cpu": 0.1, "cuda": 0.02}

_BACKLOG = 2048
_LAST_WORD_S = 0.5
"""Before the time for draining is over, whoever still waits is told."""

_SWITCH_SECONDS = 0.0005
"""How long a thread that reads a large body may keep others from running: by default it is 5 ms."""


def serve(settings: Settings, gpus: int, client: Client | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises BroadsheetError where it cannot be started.

    gpus: how many this machine has; with none, or a `device` of "cpu", the CPU computes. client: of a cluster, whose
    workers then compute, and not this machine.
    """
    server = _Server(settings, gpus, client)
    start_log(settings.log_json)
    sys.setswitchinterval(_SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.run())


class _Uvicorn(uvicorn.Server):
    """Signals are ours: a server that ends by SIGTERM ends well."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Server:
    def __init__(self, settings: Settings, gpus: int, client: Client | None) -> None:
        if client is None:
            device = expected_device(settings.device, gpus)
        else:
            from pipeline.serve.dask_engines import device_of

            device = device_of(client, settings.device)
        self._gpus = max(1, gpus) if device == "cuda" else 0
        self._client = client
        self._certificates = _certificates(settings)
        self._models = [_loaded(name, source) for name, source in settings.models.items()]
        self._listening = _listen(settings.host, settings.port)
        self._settings = replace(settings, target_s=settings.target_s or TARGET_S[device])
        self._stopping: asyncio.Task[None] | None = None
        self._reloading: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        settings = self._settings
        assert settings.target_s is not None
        metrics = Metrics()
        self._dispatcher = Dispatcher(settings.target_s, settings.max_queue, int(self._client is not None), metrics)
        self._dispatcher.models |= {loaded.name: loaded for loaded in self._models}
        choice = Choice(settings.device, settings.precision, settings.kernels, settings.target_s)
        self._fleet = self._fleet_of(choice, metrics)
        metrics.show_queue(lambda: self._dispatcher.waiting.texts)
        metrics.show_busy(self._busy)
        self._app = App(settings, self._dispatcher, metrics, lambda: self._fleet.states, self._reload)
        self._http = _Uvicorn(_configured(settings, self._app, self._certificates))
        self._take_signals()
        serving = asyncio.create_task(self._http.serve(sockets=[self._listening]))
        scheme = "https" if self._certificates else "http"
        host, port = self._listening.getsockname()[:2]
        url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        log.info("listening", extra={"fields": {"url": url, "target_ms": 1000 * settings.target_s}})
        try:
            await self._fleet.start()
            log.info("ready", extra={"fields": {"models": list(settings.models)}})
            await serving
        finally:
            self._http.should_exit = True
            await self._fleet.close()
            await asyncio.wait([serving])
        log.info("stopped")

    def _fleet_of(self, choice: Choice, metrics: Metrics) -> LocalFleet | DaskFleet:
        if self._client is None:
            return LocalFleet(self._dispatcher, choice, self._gpus, metrics)
        from pipeline.serve.dask_engines import DaskFleet

        return DaskFleet(self._dispatcher, choice, self._client, metrics)

    def _busy(self) -> dict[str, float]:
        now = time.monotonic()
        return {device.engine.name: device.busy_share(now) for device in self._dispatcher.devices}

    async def _reload(self, name: str) -> LoadedModel:
        """Read a model's file again and serve it. Raises BroadsheetError; then the one before stays."""
        old = self._dispatcher.models[name]
        new = await asyncio.to_thread(_loaded, name, old.source, old.number + 1)
        await self._dispatcher.change_model(new)
        log.info("model reloaded", extra={"fields": {"model": name, "digest": new.model.digest}})
        return new

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload_all)

    def _reload_all(self) -> None:
        async def reload() -> None:
            for name in self._settings.models:
                try:
                    await self._reload(name)
                except BroadsheetError as error:
                    log.error("model not reloaded", extra={"fields": {"model": name, "reason": error.message}})

        task = asyncio.get_running_loop().create_task(reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    def _stop(self) -> None:
        """Take no new requests, and answer those that there are; at the second signal, do not."""
        if self._stopping is not None:
            self._http.force_exit = True
            return
        fields = {"open_requests": self._dispatcher.open_requests, "drain_s": self._settings.drain_s}
        log.info("stopping", extra={"fields": fields})
        self._app.is_stopping = self._http.should_exit = True
        self._stopping = asyncio.get_running_loop().create_task(self._end_draining())

    async def _end_draining(self) -> None:
        await asyncio.sleep(max(0.0, self._settings.drain_s - _LAST_WORD_S))
        self._dispatcher.refuse_all()


def _loaded(name: str, source: str, number: int = 1) -> LoadedModel:
    """A model as engines get it. Raises ModelError."""
    model = load_model(source)
    return LoadedModel(name, number, source, model, model.to_bytes())


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises UsageError where the address cannot be had."""
    try:
        kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=kind, backlog=_BACKLOG)
    except OSError as error:
        raise UsageError(f"{host} port {port} cannot be listened on: {error.strerror or error}") from error


def _certificates(settings: Settings) -> ssl.SSLContext | None:
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


def _configured(settings: Settings, app: App, certificates: ssl.SSLContext | None) -> uvicorn.Config:
    class Protocol(LimitedProtocol):
        connections_most = settings.max_connections
        head_seconds, body_seconds = settings.head_s, settings.body_s

    config = uvicorn.Config(
        app.asgi,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(settings.idle_s)),
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
    )
    config.load()
    config.ssl = certificates
    return config
