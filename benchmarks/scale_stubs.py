"""Measures the memory of a long job on engines that only sleep. It needs no GPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from distributed import Client

from benchmarks import sleeper
from benchmarks.processes import Sampler, environment
from broadsheet.cluster import connect
from broadsheet.cluster.settings import DASHBOARD_ADDRESS, THREADS_PER_WORKER
from broadsheet.cluster.settings import environment as cluster_environment
from broadsheet.pipeline import classify

ARTICLES_PER_SECOND = 1.2e6
"""The rate of one GPU. An engine sleeps for the rows of a chunk divided by this rate."""


@dataclass(frozen=True)
class Fleet:
    """A scheduler and workers, each in a process of its own as on a cluster. This process is the client.

    Attributes
    ----------
    client : Client
        The client.
    scheduler : psutil.Process
        The scheduler's process.
    workers : tuple of psutil.Process
        The workers' processes.

    """

    client: Client
    scheduler: psutil.Process
    workers: tuple[psutil.Process, ...]

    @property
    def roles(self) -> dict[str, tuple[psutil.Process, ...]]:
        """The processes of each role."""
        return {"scheduler": (self.scheduler,), "client": (psutil.Process(),), "worker": self.workers}

    def processor_seconds(self) -> dict[str, float]:
        """Return the processor seconds of each role so far, summed over the workers."""
        times = {role: [member.cpu_times() for member in members] for role, members in self.roles.items()}
        return {role: sum(t.user + t.system for t in spent) for role, spent in times.items()}


@contextmanager
def fleet(gpus: int, processes: int) -> Iterator[Fleet]:
    """Start `gpus` sleeping engines in at most `processes` workers, with the same number in each worker."""
    # Choose the number of workers, and the environment.
    count = next(n for n in range(min(processes, gpus), 0, -1) if gpus % n == 0)
    slots = gpus // count
    env = environment(**cluster_environment(), **{sleeper.SLOTS: str(slots)})
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="broadsheet-scale-"))
        log = stack.enter_context(open(f"{folder}/log", "w"))
        file = f"{folder}/scheduler.json"

        def start(*arguments: str) -> psutil.Process:
            command = [sys.executable, "-m", "dask", *arguments, "--scheduler-file", file]
            process = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return psutil.Process(process.pid)

        # Start the processes, and connect.
        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", DASHBOARD_ADDRESS,
                          "--preload", "broadsheet.cluster.dashboard")  # fmt: skip
        worker = ("worker", "--host", "127.0.0.1", "--no-nanny", "--nworkers", "1", "--memory-limit", "0",
                  "--nthreads", str(THREADS_PER_WORKER * slots), "--no-dashboard", "--local-directory", folder,
                  "--preload", "benchmarks.sleeper")  # fmt: skip
        workers = tuple(start(*worker) for _ in range(count))
        while (
            scheduler.is_running() and not Path(file).exists()
        ):  # on a busy machine, this takes longer than `connect` waits
            time.sleep(0.05)
        client = stack.enter_context(connect(scheduler_file=file))
        client.wait_for_workers(count, timeout=120)
        yield Fleet(client, scheduler, workers)


def memory_part(source: Path, chunk_rows: int, chunks: int, gpus: int, processes: int) -> dict[str, Any]:
    """Run a long job on sleeping engines, which really reads and writes, and sample its memory.

    Parameters
    ----------
    source : Path
        The input.
    chunk_rows : int
        The number of rows of a chunk.
    chunks : int
        The number of chunks of the input.
    gpus : int
        The number of engines.
    processes : int
        The largest number of worker processes.

    """
    with fleet(gpus, processes) as running, tempfile.TemporaryDirectory() as folder:
        running.client.run(sleeper.settle, chunk_rows / ARTICLES_PER_SECOND)
        with Sampler(lambda: running.roles) as sampler:
            report = classify(str(source), f"{folder}/out", client=running.client, chunk_size=chunk_rows,
                              id_column="id")  # fmt: skip
        workers = len(running.workers)
    return {
        "gpus": gpus,
        "worker_processes": workers,
        "chunk_rows": chunk_rows,
        "chunks": report.tally.chunks,
        "rows": report.rows_written,
        "seconds": report.run.seconds,
        "timings": report.run.timings,
        "memory": sampler.to_dict(report.tally.chunks),
    }
