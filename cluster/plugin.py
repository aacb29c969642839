"""The plugin that a job installs on every worker: an engine for each of its models."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakValueDictionary

from distributed import Client, LocalCluster, Scheduler, Worker, WorkerPlugin

from ..pipeline.engine.base import Backend, Engine
from ..pipeline.engine.open import expected_device, is_short_of_memory
from ..pipeline.errors import BroadsheetError, UsageError
from ..pipeline.labelling.engines import ENGINES, engine_key
from ..pipeline.model.charcnn import Model
from ..pipeline.model.loading import carried, taken
from ..pipeline.processes.child import unset_safe_path
from ..pipeline.processes.threads import SWITCH_SECONDS, available_cores, share_of_cores
from .clock import ClockPlugin
from .heartbeat import METRIC, QuietEnd, worker_metrics
from .metrics import tell_scheduler, tell_worker
from .settings import THREADS_PER_WORKER, await_workers, no_workers_seconds
from .workers import memory_limits, register

NAME = "broadsheet-engine"

_NO_WORKERS = "the cluster has no workers: start some, and call again"

_HERE: WeakValueDictionary[str, Model] = WeakValueDictionary()
"""The models of jobs whose worker is in this process, by key."""

_log = logging.getLogger("distributed.worker.broadsheet")  # with this name, Dask's own handlers show the log


class EnginePlugin(WorkerPlugin):
    """Adds an engine of the model to every worker, also to workers that join later.

    The plugin carries the model's bytes, so that a worker needs no file. For workers on this machine it carries the
    name of a file instead, which all of them map. There is one plugin for each model; their engines live side by side
    (`pipeline/labelling/engines.py`).

    Parameters
    ----------
    model : Model
        The model.
    device, precision, kernels : str
        As in `open_engine`.
    workers_per_host : int
        The number of workers that divide the cores of a host, so that the CPU engine of each has its share.
    read_in_processes : callable, optional
        A function that starts a number of reader processes for a GPU's worker.
    here : bool
        Whether the worker is in this process, and uses the model as it is.
    local : bool
        Whether all workers are processes of this machine.

    """

    def __init__(
        self,
        model: Model,
        device: str,
        precision: str,
        kernels: str,
        workers_per_host: int,
        read_in_processes: Callable[[int], None] | None = None,
        here: bool = False,
        local: bool = False,
    ) -> None:
        self.key = engine_key(model, device, precision, kernels)
        self.name = _name_of(self.key)
        self._model = b"" if here else carried(model) if local else model.to_bytes()
        if here:
            _HERE[self.key] = model
        self._device = device
        self._precision = precision
        self._kernels = kernels
        self._share = workers_per_host
        self._read_in_processes = read_in_processes

    def setup(self, worker: Worker) -> None:
        unset_safe_path()
        QuietEnd().setup(worker)
        is_cuda = expected_device(self._device) == "cuda"
        worker.metrics = {**worker.metrics, METRIC: worker_metrics}  # a heartbeat may be iterating over the old dict
        threads = max(1, available_cores() // self._share)
        if is_cuda and self._read_in_processes is not None:
            read_for_a_gpu(self._share, self._read_in_processes)

        here = None if self._model else _HERE[self.key]  # a plugin without bytes is for the worker in this process

        def load() -> Engine:
            began = time.perf_counter()
            model = here or taken(self._model)
            engine = ENGINES.load(model, self._device, self._precision, self._kernels, threads)
            _log.info("ready in %.1f s: %s", time.perf_counter() - began, engine.backend)
            return engine

        tell_worker()
        limit = worker.memory_manager.memory_limit
        ENGINES.is_short = partial(is_short_of_memory, expected_device(self._device), limit)
        ENGINES.offer(self.key, load)

    def teardown(self, worker: Worker) -> None:
        ENGINES.withdraw(self.key)


def _name_of(key: str) -> str:
    return f"{NAME}-{key}"


def read_for_a_gpu(workers_per_host: int, read_in_processes: Callable[[int], None]) -> None:
    """Start reader processes, on seven in eight cores of the worker's share. The worker itself needs the others."""
    sys.setswitchinterval(SWITCH_SECONDS)
    cores = share_of_cores(workers_per_host)
    read_in_processes(min(cores - cores // 8, THREADS_PER_WORKER))


def start_engines(
    client: Client,
    model: Model,
    device: str,
    precision: str,
    kernels: str = "auto",
    mixed: bool = False,
    read_in_processes: Callable[[int], None] | None = None,
) -> tuple[str, Backend]:
    """Load a model on every worker of a cluster, next to the models of other jobs.

    Workers that already hold this model keep it. Workers that join later load it with their first task.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    model : Model
        The model.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        "auto", "simt", "sm75", "sm80" or "sm90".
    mixed : bool
        Whether to accept workers that differ in their backend.
    read_in_processes : callable, optional
        Called on a worker with a GPU, with the number of its reader processes. Default: the worker itself reads.

    Returns
    -------
    key : str
        The key under which tasks find the engine on a worker.
    backend : Backend
        The backend of the workers, or of one of them if they differ.

    Raises
    ------
    UsageError
        If workers differ in their backend, which determines the bits of a score, without `mixed`.
    BroadsheetError
        If there are no workers, or one of them cannot load the model.

    Examples
    --------
    >>> with connect("local", workers=2) as client:
    ...     key, backend = start_engines(client, load_model(), "cpu", "fp32")

    """
    # Ask the scheduler which workers hold the model.
    key = engine_key(model, device, precision, kernels)
    found = client.run_on_scheduler(_noted, key)
    if not found:  # workers are starting, or were lost just now
        await_workers(client, 1, _NO_WORKERS)
        found = client.run_on_scheduler(_noted, key)
    # Load the model where it is missing, and note the workers that hold it.
    if None in found.values():
        found = _backends(client, key)
        if not found or None in found.values():
            hosts = [w["host"] for w in client.scheduler_info(n_workers=-1)["workers"].values()]
            client.run_on_scheduler(_prepare)
            per_host = max((hosts.count(host) for host in hosts), default=1)
            register(client, ClockPlugin())
            here = client.scheduler.address.startswith("inproc://")
            local = isinstance(client.cluster, LocalCluster)
            register(client, EnginePlugin(model, device, precision, kernels, per_host, read_in_processes, here, local))
            found = _wait_for_engines(client, key)
        client.run_on_scheduler(_note, key, found)
    return key, _one_backend([backend for backend in found.values() if backend is not None], mixed)


async def _backend_on(key: str, dask_worker: Worker) -> Backend | None:
    """Return the backend of a worker's engine, which is loaded if needed.

    Returns None until this worker has its own plugin, since another worker in its process may have loaded the engine.
    """
    if _name_of(key) not in dask_worker.plugins:
        return None

    def load() -> Backend:
        with ENGINES.use([key]) as [(engine, _)]:
            return engine.backend

    return await asyncio.to_thread(load)


def _backends(client: Client, key: str) -> dict[str, Backend | None]:
    """Return the backends by worker, without workers that have just left."""
    found = client.run(_backend_on, key, on_error="return")
    for backend in found.values():
        if isinstance(backend, Exception) and not isinstance(backend, OSError):
            raise backend
    return {address: backend for address, backend in found.items() if not isinstance(backend, OSError)}


def _wait_for_engines(client: Client, key: str) -> dict[str, Backend | None]:
    """Return the backends when all are known. A worker that has just joined answers before its engine is loaded.

    A worker that is lost while it loads the engine is not awaited, as long as there are others.
    """
    deadline = time.monotonic() + no_workers_seconds()
    limits: list[int] = []
    while True:
        limits += client.run_on_scheduler(memory_limits)
        found = _backends(client, key)
        if found and None not in found.values():
            return found
        if time.monotonic() > deadline:
            if not found:
                raise BroadsheetError(_all_lost(min(limits)) if limits else _NO_WORKERS)
            absent = ", ".join(address for address, backend in found.items() if backend is None)
            raise BroadsheetError(f"the engine did not load on {absent}: see the logs of those workers")
        time.sleep(0.2)


def _all_lost(limit: int) -> str:
    """Return a message for workers that were all lost while they loaded the engine.

    limit: the lowest memory limit of a worker, in bytes.
    """
    return (
        "all workers were lost while they loaded the model; their logs say why. Dask restarts a worker that exceeds "
        f"its memory limit, and the lowest limit here is {limit >> 20:,} MiB: start workers with a higher limit"
    )


def _noted(key: str, dask_scheduler: Scheduler) -> dict[str, Backend | None]:
    """Return the backend that an earlier job noted for each worker, so that workers need not be asked again.

    It is None for a worker without a note.
    """
    known = dask_scheduler.task_metadata.get(NAME, {}).get(key, {})
    backends = known if _name_of(key) in dask_scheduler.worker_plugins else {}
    return {ws.address: backends.get(ws.server_id) for ws in dask_scheduler.workers.values()}


def _note(key: str, found: dict[str, Backend | None], dask_scheduler: Scheduler) -> None:
    """Save the backends for `_noted`."""
    backends = {ws.server_id: found.get(ws.address) for ws in dask_scheduler.workers.values()}
    dask_scheduler.task_metadata.setdefault(NAME, {})[key] = backends


async def _prepare(dask_scheduler: Scheduler) -> None:
    """Prepare a scheduler before the first engine: report metrics, turn work stealing off, limit the wait for workers.

    A scheduler that is started here already has the last two settings. One that a user started may lack them.
    """
    tell_scheduler(dask_scheduler)
    if "stealing" in dask_scheduler.extensions:
        await dask_scheduler.extensions["stealing"].stop()
    if dask_scheduler.no_workers_timeout is None:
        dask_scheduler.no_workers_timeout = no_workers_seconds()


def _one_backend(backends: Sequence[Backend], mixed: bool) -> Backend:
    different = list(dict.fromkeys(backends))
    if len(different) > 1 and not mixed:
        raise UsageError(
            f"the workers differ, so scores would depend on which of them takes a chunk: {different[0]} and "
            f"{different[1]}. Use workers of one kind, or --allow-mixed"
        )
    return different[0]
