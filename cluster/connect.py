"""A Dask client, to an embedded cluster of this machine or to a scheduler that runs already."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dask
from distributed import Client, LocalCluster, Worker, WorkerPlugin

from cluster.nsys import nsys_workers
from pipeline.engine import available_cores
from pipeline.errors import BroadsheetError, UsageError

THREADS_PER_WORKER = 4
"""Reading, writing and their waits; computing has an executor of its own."""

_CORES_PER_WORKER = 4
_WAIT_SECONDS = 60
_SETTLE_SECONDS = 15
_CLOSE_SECONDS = 30

_CONFIG = {
    "distributed.scheduler.work-stealing": False,  # a chunk stays where it was read
    "distributed.scheduler.worker-saturation": 1.1,
    "distributed.worker.memory.target": False,  # chunks in flight are few and bounded: never spill one
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": 0.85,
    "distributed.worker.memory.terminate": 0.95,
    "distributed.admin.log-format": "%(asctime)s %(name)s: %(message)s",
}


@contextmanager
def connect(
    where: str = "local",
    *,
    workers: int | None = None,
    processes: bool = True,
    scheduler_file: str | None = None,
    nsys: str | None = None,
) -> Iterator[Client]:
    """A client to `where`: "local", or a scheduler's address; closed, with what was started for it, at the end.

    workers: processes of a local cluster, by default one for every four cores. processes: False for one worker within
    this process, which starts at once and needs no main guard. nsys: a folder; the processes of a local cluster run
    under Nsight Systems, which writes its report there. Everything local listens on loopback only.
    Raises UsageError where no scheduler answers, BroadsheetError where one has no workers.
    """
    if where == "local" and scheduler_file is None:
        with _local(workers, processes) if nsys is None else _under_nsys(workers, nsys) as client:
            yield client
    else:
        with _existing(where, scheduler_file) as client:
            yield client


class _IgnoreInterrupts(WorkerPlugin):
    """Ctrl-C reaches every process of a terminal's job; this one alone, the client, ends it in good order."""

    name = "broadsheet-ignore-interrupts"

    def setup(self, worker: Worker) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _local(workers: int | None, processes: bool) -> Iterator[Client]:
    count = (workers or -(-available_cores() // _CORES_PER_WORKER)) if processes else 1
    with dask.config.set(_CONFIG):
        cluster = LocalCluster(
            n_workers=count,
            threads_per_worker=THREADS_PER_WORKER,
            processes=processes,
            host="127.0.0.1" if processes else None,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        )
        try:
            with Client(cluster) as client:
                if processes:
                    client.register_plugin(_IgnoreInterrupts())
                yield client
                with suppress(TimeoutError):  # a cluster cannot be closed while a lost worker's successor starts
                    client.wait_for_workers(count, timeout=_SETTLE_SECONDS)
        finally:
            with suppress(TimeoutError):  # what is left then ends with this process
                cluster.close(timeout=_CLOSE_SECONDS)


@contextmanager
def _under_nsys(workers: int | None, folder: str) -> Iterator[Client]:
    count = workers or 1
    local = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with (
        dask.config.set(_CONFIG),
        LocalCluster(n_workers=0, **local) as cluster,
        Client(cluster) as client,
        nsys_workers(cluster.scheduler_address, count, THREADS_PER_WORKER, folder),
    ):
        try:
            client.wait_for_workers(count, timeout=_WAIT_SECONDS)
        except TimeoutError as error:
            raise BroadsheetError(f"no worker has started under nsys: see {folder}/workers.log") from error
        client.register_plugin(_IgnoreInterrupts())
        yield client
        client.shutdown()  # the workers end, and nsys writes its report


@contextmanager
def _existing(address: str, scheduler_file: str | None) -> Iterator[Client]:
    name = scheduler_file or address
    if scheduler_file is not None:
        _wait_for(Path(scheduler_file))
    try:
        client = Client(scheduler_file=scheduler_file) if scheduler_file else Client(address)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(f"no Dask scheduler answers at {name}: {error}") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_WAIT_SECONDS)
        except TimeoutError as error:
            raise BroadsheetError(f"no worker has joined the scheduler {name} within {_WAIT_SECONDS} s") from error
        yield client


def _wait_for(scheduler_file: Path) -> None:
    """A scheduler writes its file a few seconds after its job begins."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not scheduler_file.exists():
        if time.monotonic() > deadline:
            raise UsageError(f"no scheduler has written {scheduler_file} within {_WAIT_SECONDS} s")
        time.sleep(0.2)
