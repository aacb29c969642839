"""What a job puts on every worker: the `gpu` executor and the engine with the model loaded."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from distributed import Client, Worker, WorkerPlugin

from cluster.clock import ClockPlugin
from pipeline import tasks
from pipeline.engine import Backend, Engine, available_cores, open_engine
from pipeline.errors import BroadsheetError, UsageError
from pipeline.graph import GPU_EXECUTOR
from pipeline.model import Model

NAME = "broadsheet-engine"


class EnginePlugin(WorkerPlugin):
    """Adds the one-thread `gpu` executor and loads the model, once a worker; also on workers that join later.

    It carries the model's bytes, so that a worker needs no file. Registered again with another model, it replaces the
    engine. The CPU backend of a worker gets its share of the host's cores: all of them, over the workers there.
    """

    name = NAME

    def __init__(self, model: Model, device: str, precision: str, kernels: str, workers_per_host: int) -> None:
        self.key = f"{model.digest[:16]}-{device}-{precision}-{kernels}"
        self._model = model.to_bytes()
        self._device = device
        self._precision = precision
        self._kernels = kernels
        self._share = workers_per_host

    def setup(self, worker: Worker) -> None:
        if GPU_EXECUTOR not in worker.executors:
            worker.executors[GPU_EXECUTOR] = ThreadPoolExecutor(1, "broadsheet-gpu")
        threads = max(1, available_cores() // self._share)

        def load() -> Engine:
            return open_engine(Model.from_bytes(self._model), self._device, self._precision, threads, self._kernels)

        tasks.install_engine(self.key, load)

    def teardown(self, worker: Worker) -> None:
        tasks.remove_engine(self.key)


def start_engines(
    client: Client, model: Model, device: str, precision: str, kernels: str = "auto", mixed: bool = False
) -> tuple[str, Backend]:
    """Load the model on every worker; return the key under which tasks find it, and the backend that they share.

    Raises UsageError where workers differ in what decides a score's bits, unless `mixed`; BroadsheetError where a
    worker cannot load it.
    """
    hosts = [w["host"] for w in client.scheduler_info(n_workers=-1)["workers"].values()]
    if not hosts:
        raise BroadsheetError("the cluster has no workers")
    plugin = EnginePlugin(model, device, precision, kernels, max(hosts.count(host) for host in hosts))
    client.register_plugin(ClockPlugin())
    client.register_plugin(plugin)
    backends = client.run(tasks.backend_of, plugin.key)
    return plugin.key, _one_backend(list(backends.values()), mixed)


def _one_backend(backends: Sequence[Backend], mixed: bool) -> Backend:
    different = list(dict.fromkeys(backends))
    if len(different) > 1 and not mixed:
        raise UsageError(
            f"the workers differ, so scores would depend on which of them takes a chunk: {different[0]} and "
            f"{different[1]}. Use workers of one kind, or --allow-mixed"
        )
    return different[0]
