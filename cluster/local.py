"""Clusters on this machine: CPU processes, or workers on its GPUs.

They listen on loopback only. Other users of the machine can reach loopback too, so the traffic is TLS by default.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster, Nanny, Worker, WorkerPlugin
from distributed.core import Status

from ..pipeline.errors import BroadsheetError, UsageError, counted, install
from ..pipeline.processes.threads import WORKERS_PER_HOST, available_cores
from .interrupts import postponed
from .late_dashboard import WITHOUT_DASHBOARD, add_when_opened
from .nsys import nsys_workers
from .open_files import need_open_files
from .private import SCRATCH, scratch_folder
from .protocol import count_gpus
from .settings import (
    DASHBOARD_ADDRESS,
    THREADS_PER_WORKER,
    WORKERS_ON_A_GPU,
    await_workers,
    configured,
    default_scheduler,
    forked,
    silenced,
    with_settings,
    worker_preloads,
)
from .tls import make_certificates, tls_settings
from .unguarded import end_in_a_worker, noticed

_CORES_PER_WORKER = 4
_CLOSE_SECONDS = 30

_QUIETLY: dict[str, Any] = {
    "dashboard_address": DASHBOARD_ADDRESS,
    "scheduler_kwargs": WITHOUT_DASHBOARD,
    "silence_logs": logging.CRITICAL,
}
"""The arguments of all clusters of this file: no port that another job may have, no dashboard yet, and no log."""

_TLS_FOLDER = "tls"


class _IgnoreInterrupts(WorkerPlugin):
    """Ignores Ctrl-C, which reaches every process of the terminal's foreground job. The client stops the workers."""

    name = "broadsheet-ignore-interrupts"

    def setup(self, worker: Worker) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class _WorkerHere(Worker):
    """A worker in this process that listens nowhere. Dask would start its HTTP server on every interface."""

    def start_http_server(self, *_: object, **__: object) -> None:
        """Start no server."""


@contextmanager
def cpu_cluster(protocol: str, workers: int | None) -> Iterator[Client]:
    """Start processes on this machine's cores, by default one for every four."""
    count = workers or -(-available_cores() // _CORES_PER_WORKER)
    with _running(LocalCluster, {"n_workers": count, "host": "127.0.0.1"}, protocol, count) as client:
        yield client


@contextmanager
def cluster_here() -> Iterator[Client]:
    """Start one worker in this process. Other processes can reach only the dashboard."""
    with configured(), worker_here() as client:
        yield client


@contextmanager
def worker_here(set_as_default: bool = True) -> Iterator[Client]:
    """Start one worker in this process, in a block of `configured`. With `set_as_default`, all Dask work uses it."""
    need_open_files(0)
    options = {"n_workers": 1, "processes": False, "worker_class": _WorkerHere, "protocol": "inproc"}
    with scratch_folder() as folder, _open(LocalCluster, options, folder, nullcontext(), set_as_default) as client:
        yield client


@contextmanager
def cuda_cluster(protocol: str, workers: int | None) -> Iterator[Client]:
    """Start workers on this machine's GPUs, by default one on each, pinned to the GPU and to the CPU cores near it.

    Raises UsageError without GPUs, or for more than two workers on each.
    """
    gpus = _gpus()
    from .gpus import SharedGpus

    count = workers or gpus
    if count > WORKERS_ON_A_GPU * gpus:
        raise UsageError(f"{count} workers are too many for {counted(gpus, 'GPU')}: at most two share a GPU")
    if protocol == "ucx":
        _start_ucx_without_a_context()
    # Without this argument, dask-cuda replaces the configured preloads with its own.
    options = {"n_workers": count, "host": "127.0.0.1", "preload": worker_preloads()}
    with _running(SharedGpus, options, protocol, count) as client:
        yield client


def _start_ucx_without_a_context() -> None:
    """Start UCX in this process, which does not compute on a GPU. dask-cuda would create a context on the first one."""
    from distributed_ucxx import ucxx

    with with_settings({"distributed-ucxx.create-cuda-context": False}):
        ucxx.init_once()


def _gpus() -> int:
    """Return the number of GPUs that this process may use. Raises UsageError if there is none."""
    if find_spec("dask_cuda") is None:
        raise UsageError(f"a cluster of this machine's GPUs needs dask-cuda: {install('cluster')} (or environment.yml)")
    gpus = count_gpus()
    if not gpus:
        raise UsageError("no NVIDIA GPU is visible here (does nvidia-smi list one?): use --cluster local")
    return gpus


@contextmanager
def nsys_cluster(where: str, workers: int | None, folder: str | Path, protocol: str) -> Iterator[Client]:
    """Start a "local" or "cuda" cluster whose workers run under Nsight Systems, which writes its report to `folder`."""
    cuda = where == "cuda"
    count = workers or (_gpus() if cuda else 1)
    if cuda and count > _gpus():
        raise UsageError(f"under nsys each worker has a GPU of its own: {count} workers need as many GPUs")
    need_open_files(count, cuda)
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        stack.enter_context(configured())
        stack.enter_context(silenced())
        stack.enter_context(default_scheduler())
        certificates = scratch / _TLS_FOLDER
        security = make_certificates(certificates) if protocol == "tls" else None
        cluster = stack.enter_context(LocalCluster(n_workers=0, host="127.0.0.1", security=security, **_QUIETLY))
        add_when_opened(cluster.scheduler)
        client = stack.enter_context(Client(cluster))
        more = {SCRATCH: str(scratch), **(tls_settings(certificates) if security else {})}
        stack.enter_context(nsys_workers(cluster.scheduler_address, count, folder, cuda, more))
        await_workers(client, count, f"no worker has started under nsys: see {folder}/workers.log")
        client.register_plugin(_IgnoreInterrupts())
        yield client
        client.shutdown()  # nsys writes its report after the workers have ended


@contextmanager
def _running(kind: Any, options: dict[str, Any], protocol: str, count: int) -> Iterator[Client]:
    end_in_a_worker()
    need_open_files(count, on_gpus=kind is not LocalCluster)
    with scratch_folder() as folder, configured(), forked():
        if protocol == "tls":
            options["security"] = make_certificates(folder / _TLS_FOLDER)
        with _open(kind, {**options, "protocol": protocol}, folder, noticed(folder)) as client:
            yield client


@contextmanager
def _open(
    kind: Any,
    options: dict[str, Any],
    folder: Path,
    starting: AbstractContextManager[None],
    set_as_default: bool = True,
) -> Iterator[Client]:
    """Start a cluster, connect a client to it, and close both at the end of the block.

    Parameters
    ----------
    kind : type
        The class of the cluster.
    options : dict of str to object
        The arguments of the class.
    folder : Path
        The folder in which the processes keep their files.
    starting : context manager
        A context that is entered while the cluster starts.
    set_as_default : bool
        Whether Dask computes on the cluster when no client is named.

    """
    running = None
    with silenced():
        try:
            with postponed(), starting:
                running = _started(kind, {**options, "local_directory": str(folder)})
            add_when_opened(running.scheduler)
            default = default_scheduler() if set_as_default else nullcontext()
            with default, Client(running, set_as_default=set_as_default) as client:
                yield client
        finally:
            if running is not None:
                _close(running)


def _started(kind: Any, options: dict[str, Any]) -> LocalCluster:
    try:
        with with_settings({WORKERS_PER_HOST: options["n_workers"]}):  # processes that start inherit it
            return kind(**options, threads_per_worker=THREADS_PER_WORKER, **_QUIETLY)
    except RuntimeError as error:  # Dask's nannies raise it
        raise BroadsheetError("a worker's process ended while it started: was it killed, or out of memory?") from error


def _close(cluster: LocalCluster) -> None:
    """Close a cluster. Kill replacements of lost workers that are still starting, which would keep it open."""
    for worker in cluster.workers.values():
        if isinstance(worker, Nanny):
            worker.close_gracefully("the cluster is closed")  # so that it starts no other worker
            if worker.process is not None and worker.process.status is Status.starting and worker.pid:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
    with suppress(TimeoutError):  # what is left ends with this process
        cluster.close(timeout=_CLOSE_SECONDS)
