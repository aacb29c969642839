"""Runs a server: loads the models, starts engines and HTTP processes, and handles reloads and signals."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import uvloop

from ..engine.open import expected_device
from ..errors import BroadsheetError, UsageError, cause
from ..model.charcnn import Model
from ..model.layers import WHOLE
from ..model.several import load_one
from ..processes.threads import available_cores
from .answers import ErrorMessage, ModelAbout, ModelId, ModelList, ServerState
from .dispatcher import Dispatcher
from .engines import Choice, LoadedModel
from .http_process import certificates_of
from .http_processes import HttpProcesses
from .local_engines import LocalFleet
from .metrics import Metrics
from .settings import Settings, log, start_log
from .tracing import open_traces

if TYPE_CHECKING:
    from distributed import Client

    from .dask_engines import DaskFleet

TARGET_S = {"cpu": 0.1, "cuda": 0.02}

_BACKLOG = 2048
_LAST_WORD_S = 0.5
"""The seconds before the end of the time for draining at which all requests that still wait are refused."""

_END_WITHIN_S = 2.0
"""The seconds after the time for draining in which HTTP processes must end. After that, they are killed."""

_MOST_HTTP_PROCESSES = 8
"""The largest default number of HTTP processes. With more, the one dispatcher would be the limit."""


def serve(settings: Settings, gpus: int, client: Client | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises BroadsheetError if the server cannot start.

    `gpus` is the number of GPUs of this machine. Without a GPU, or with the device "cpu", the CPU computes. With the
    `client` of a Dask cluster, its workers compute instead of this machine.
    """
    server = _Server(settings, gpus, client)
    start_log(settings.log_json)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.run())


class _Server:
    """A server in its stages.

    1. `__init__` checks certificates, loads the models and opens the sockets, so that errors come before anything runs.
    2. `run` starts the engines and the HTTP processes. The server is ready after each process has answered a text.
    3. Until the end, `_call` answers the HTTP processes, and `_reload` replaces models.
    4. `_stop` lets the HTTP processes finish their requests, and `_end_draining` limits the time for this.
    """

    def __init__(self, settings: Settings, gpus: int, client: Client | None) -> None:
        if client is None:
            device = expected_device(settings.device, gpus)
        else:
            from .dask_engines import device_of

            device = device_of(client, settings.device)
        self._gpus = max(1, gpus) if device == "cuda" else 0
        self._client = client
        certificates_of(settings)
        self._settings = replace(settings, target_s=settings.target_s or TARGET_S[device])
        self._models = [_loaded(name, 1, source, self._load(source)) for name, source in settings.models.items()]
        processes = settings.http_processes or _http_processes(device)
        self._listening = _listen(settings.host, settings.port, processes)
        self._stopping: asyncio.Task[None] | None = None
        self._has_started = False
        self._reloading: set[asyncio.Task[None]] = set()
        self._one_reload = asyncio.Lock()
        self._numbers = dict.fromkeys(settings.models, 1)

    async def run(self) -> None:
        """Start everything, and serve until `_stop`."""
        # Make the dispatcher, the engines and the HTTP processes.
        settings = self._settings
        assert settings.target_s is not None
        metrics = self._metrics = Metrics()
        retries, traces = int(self._client is not None), open_traces(is_told=True)
        self._dispatcher = Dispatcher(settings.target_s, settings.max_queue, retries, metrics, traces=traces)
        self._dispatcher.models |= {loaded.name: loaded for loaded in self._models}
        choice = Choice(settings.device, settings.precision, settings.kernels, settings.target_s)
        self._fleet = self._fleet_of(choice, metrics)
        metrics.show(lambda: self._dispatcher.waiting.texts, self._busy)
        self._http = HttpProcesses(settings, self._listening, self._dispatcher, metrics, self._call)
        self._take_signals()

        # Start them all, and wait for the end.
        starting: asyncio.Task[None] | None = None
        try:
            starting = asyncio.create_task(self._fleet.start())  # at the same time as the HTTP processes
            await self._http.start()
            fields = {"url": self._url(), "target_ms": 1000 * settings.target_s, "processes": len(self._listening)}
            log.info("listening", extra={"fields": fields})
            await starting
            gc.collect()
            gc.freeze()
            await self._http.answer()
            self._has_started = True
            log.info("ready", extra={"fields": {"models": list(settings.models)}})
            await self._http.ended()
        finally:
            if starting is not None:
                starting.cancel()
            await asyncio.gather(self._http.close(), self._fleet.close())
        log.info("stopped")

    def _load(self, source: str) -> Model:
        return load_one(source).asking(self._settings.network)

    def _url(self) -> str:
        host, port = self._listening[0].getsockname()[:2]
        scheme = "http" if self._settings.certificate is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def _fleet_of(self, choice: Choice, metrics: Metrics) -> LocalFleet | DaskFleet:
        if self._client is None:
            return LocalFleet(self._dispatcher, choice, self._gpus, metrics)
        from .dask_engines import DaskFleet

        return DaskFleet(self._dispatcher, choice, self._client, metrics)

    def _busy(self) -> dict[str, float]:
        now = time.monotonic()
        return {device.engine.name: device.busy_share(now) for device in self._dispatcher.devices}

    async def _call(self, what: str, model: str) -> tuple[int, bytes]:
        """Return the answer to a `Call` of an HTTP process: the HTTP status and the body."""
        if what == "metrics":
            await self._http.count()
            return 200, self._metrics.page()
        status: int
        answer: ModelList | ModelAbout | ServerState | ErrorMessage
        if what == "reload":
            status, answer = await self._reloaded(model)
        elif what == "models":
            models = [self._about(loaded) for loaded in self._dispatcher.models.values()]
            status, answer = 200, ModelList(models, "list", [ModelId(about.name) for about in models])
        else:
            status, answer = self._ready()
        return status, msgspec.json.encode(answer)

    def _about(self, loaded: LoadedModel) -> ModelAbout:
        model = loaded.model
        backends = {str(d.ready[loaded.key].backend): None for d in self._dispatcher.devices if loaded.key in d.ready}
        return ModelAbout(
            name=loaded.name,
            default=loaded.name == self._settings.default_model,
            classes=model.classes,
            reads="whole text" if model.reads == WHOLE else model.reads,
            alphabet=model.alphabet.symbols if model.has_network else "",
            meant_for=model.meant_for,
            digest=model.digest,
            loaded=loaded.number,
            backend=next(iter(backends), None),
        )

    def _ready(self) -> tuple[int, ServerState]:
        can_label = self._dispatcher.serves_all and self._http.are_ready
        is_ready = self._has_started and can_label and self._stopping is None
        status = "stopping" if self._stopping else "ready" if is_ready else "not ready"
        return 200 if is_ready else 503, ServerState(status, self._fleet.states)

    async def _reloaded(self, name: str) -> tuple[int, ModelAbout | ErrorMessage]:
        if name not in self._dispatcher.models:
            return 404, ErrorMessage(f"there is no model {name!r} here; there is {', '.join(self._dispatcher.models)}")
        try:
            return 200, self._about(await self._reload(name))
        except BroadsheetError as error:
            return 409, ErrorMessage(f"the model was not loaded again, and the old one goes on: {error.message}")

    async def _reload(self, name: str) -> LoadedModel:
        """Read a model's file again and serve the new model. Raises BroadsheetError; the old model then stays."""
        async with self._one_reload:  # so that the file that was read last is served
            source = self._dispatcher.models[name].source
            model = await asyncio.to_thread(self._load, source)
            self._numbers[name] += 1  # even if it fails: a late engine may still load this one
            new = await asyncio.to_thread(_loaded, name, self._numbers[name], source, model)
            await self._dispatcher.change_model(new)
            self._http.tell_of(new)
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
        """Accept no new requests, and answer the others. At the second signal, end without answering them."""
        if self._stopping is not None:
            self._http.stop(now=True)
            return
        fields = {"open_requests": self._dispatcher.open_requests, "drain_s": self._settings.drain_s}
        log.info("stopping", extra={"fields": fields})
        self._http.stop(now=False)
        self._stopping = asyncio.get_running_loop().create_task(self._end_draining())

    async def _end_draining(self) -> None:
        await asyncio.sleep(max(0.0, self._settings.drain_s - _LAST_WORD_S))
        self._dispatcher.refuse_all()
        await asyncio.sleep(_LAST_WORD_S + _END_WITHIN_S)
        await self._http.close()


def _loaded(name: str, number: int, source: str, model: Model) -> LoadedModel:
    """Return a model in the form for engines."""
    return LoadedModel(name, number, source, model, model.to_bytes())


def _http_processes(device: str) -> int:
    """Return the default number of HTTP processes. An engine on the CPU needs the cores for itself."""
    return 1 if device == "cpu" else max(1, min(_MOST_HTTP_PROCESSES, available_cores() // 2))


def _listen(host: str, port: int, processes: int) -> list[socket.socket]:
    """Return a listening socket for each process. Raises UsageError if the address is not available.

    The kernel gives each new connection to one of the sockets, whether its process is idle or not.
    """
    try:
        kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.create_server(address[:2], family=kind) as free:  # without this, two servers could share a port
            chosen = free.getsockname()[:2]
        return [socket.create_server(chosen, family=kind, backlog=_BACKLOG, reuse_port=True) for _ in range(processes)]
    except OSError as error:
        reason = f"{host} port {port} cannot be listened on: {cause(error)}"
        raise UsageError(f"{reason}; choose another host or port") from error
