"""What one scheduler feeds, and what grows: jobs on engines that only sleep. Needs no GPU."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
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
"""Of one GPU; a chunk's sleep is its rows over this."""

_FIRST_GUESS = 500.0  # chunks a second, until one is measured


@dataclass(frozen=True)
class Fleet:
    """A scheduler and workers, each a process of its own, as on a cluster; this process is the client."""

    client: Client
    scheduler: psutil.Process
    workers: tuple[psutil.Process, ...]

    @property
    def roles(self) -> dict[str, tuple[psutil.Process, ...]]:
        return {"scheduler": (self.scheduler,), "client": (psutil.Process(),), "worker": self.workers}

    def processor_seconds(self) -> dict[str, float]:
        """Of each role so far; of the workers, all together."""
        times = {role: [member.cpu_times() for member in members] for role, members in self.roles.items()}
        return {role: sum(t.user + t.system for t in found) for role, found in times.items()}


@contextmanager
def fleet(gpus: int, processes: int) -> Iterator[Fleet]:
    """`gpus` sleeping engines in `processes` workers at most, each with as many."""
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

        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", DASHBOARD_ADDRESS,
                          "--preload", "cluster.dashboard")  # fmt: skip
        worker = ("worker", "--host", "127.0.0.1", "--no-nanny", "--nworkers", "1", "--memory-limit", "0",
                  "--nthreads", str(THREADS_PER_WORKER * slots), "--no-dashboard", "--local-directory", folder,
                  "--preload", "benchmarks.sleeper")  # fmt: skip
        workers = tuple(start(*worker) for _ in range(count))
        client = stack.enter_context(connect(scheduler_file=file))
        client.wait_for_workers(count, timeout=120)
        yield Fleet(client, scheduler, workers)


def stub_job(running: Fleet, gpus: int, chunks: int, rows: int) -> dict[str, Any]:
    """A job of so many chunks, each as long as `rows` articles take a GPU. Nothing is read or written but the folder's
    own files: a planned row, a line of a text file, stands for a chunk. It is stopped before one more, since the parts
    of a job that ends are looked for.
    """
    running.client.run(sleeper.settle, rows / ARTICLES_PER_SECOND, False)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "chunks.txt"
        line = "x" * (1 + (64 << 10) // chunks) + "\n"  # in all above 64 KiB: a smaller file is read by one worker
        source.write_text(line * (chunks + 1))
        before, asked = running.processor_seconds(), itertools.count()
        options = {"chunk_size": 1, "stop": lambda: next(asked) == chunks}
        report = classify(str(source), f"{folder}/out", client=running.client, **options)
    after = running.processor_seconds()
    if report.rows_written != chunks:
        raise RuntimeError(f"{report.rows_written} chunks of {chunks} are done: {report.run.set_aside[:1]}")
    seconds = report.run.timings["classify"]
    return {
        "gpus": gpus,
        "chunk_rows": rows,
        "chunks": chunks,
        "seconds": seconds,
        "chunks_per_second": chunks / seconds,
        "processor_seconds": {role: after[role] - before[role] for role in after},
    }


def scheduler_part(
    gpus: list[int],
    rows: list[int],
    seconds: float,
    least: int,
    processes: int,
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Every number of GPUs with every chunk size, each for about `seconds`, and `least` chunks a GPU or more."""
    result: dict[str, Any] = {"articles_per_second_a_gpu": ARTICLES_PER_SECOND, "runs": []}
    limit = _FIRST_GUESS
    for count in gpus:
        with fleet(count, processes) as running:
            stub_job(running, count, 64, rows[0])  # engines and connections are there
            for size in rows:
                wanted = count * ARTICLES_PER_SECOND / size
                chunks = max(least * count, int(seconds * min(wanted, limit)))
                run = stub_job(running, count, chunks, size) | {"worker_processes": len(running.workers)}
                run["wanted_chunks_per_second"] = wanted
                run["busy"] = run["chunks_per_second"] / wanted
                result["runs"].append(run)
                limit = max(r["chunks_per_second"] for r in result["runs"])
                result["most_chunks_per_second"] = limit
                keep(result)
                print(f"{count} GPUs, chunks of {size:,}: {run['chunks_per_second']:,.0f} chunks/s of {wanted:,.0f} "
                      f"wanted, GPUs busy {run['busy']:.0%}", flush=True)  # fmt: skip
    return result


def memory_part(source: Path, chunk_rows: int, chunks: int, gpus: int, processes: int) -> dict[str, Any]:
    """One long job on sleeping engines that really reads and writes; its memory from the first chunk to the last."""
    with fleet(gpus, processes) as running, tempfile.TemporaryDirectory() as folder:
        running.client.run(sleeper.settle, chunk_rows / ARTICLES_PER_SECOND, True)
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
