"""Jobs that tests disturb, with the undisturbed run whose output the disturbed job must equal."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from commands import start
from dask import config as dask_config
from distributed import Client

from benchmarks.chaos.jobs import contents
from benchmarks.chaos.slow import slowed
from broadsheet.cluster import connect
from broadsheet.cluster.settings import SETTINGS
from broadsheet.pipeline import classify, verify
from broadsheet.pipeline.report.job import JobReport, Progress

SLOW = slowed("read")


def run_undisturbed(model: Path, folder: Path, rows: int, chunk_size: int) -> tuple[list, Path]:
    """Run a job undisturbed.

    Return its arguments for the command line, without the output folder, and its output folder.
    """
    lines = [f'{i},"{os.urandom(150).hex()}"\n' if i % 11 else f"{i}\n" for i in range(rows)]
    (folder / "in.csv").write_text("id,text\n" + "".join(lines))
    arguments = ["classify", folder / "in.csv", "--model", model, "--id-column", "text", "--chunk-size", chunk_size]
    classify(folder / "in.csv", folder / "undisturbed", model=model, id_column="text", chunk_size=chunk_size)
    return arguments, folder / "undisturbed"


def resumed(source: Path, model: Path, url: str, endpoint: str) -> None:
    """Start or resume a job in a bucket. Tests call this in a process of its own."""
    classify(source, url, endpoint=endpoint, model=model, chunk_size=6, resume=True)


def held_after(count: int, out: Path, until: Path) -> str:
    """Return code for a worker that stops reading chunks once `count` are committed, until the file `until` exists."""
    entries = str(out / "_entries")
    return f"""
import os, time
def held():
    while os.path.isdir({entries!r}) and len(os.listdir({entries!r})) >= {count} and not os.path.exists({str(until)!r}):
        time.sleep(0.05)
    return 0
""" + slowed("read", "held()")


def spans_of(out: Path) -> list[dict]:
    """Return the spans of the last run in a folder."""
    record = max((out / "_runs").glob("*.spans.arrow"), key=lambda file: file.stat().st_mtime)
    return pa.ipc.open_file(record).read_all().to_pylist()


def check_whole(out: Path, undisturbed: Path) -> None:
    assert contents(out) == contents(undisturbed)
    verify(out)


def committed(out: Path) -> int:
    return len(list((out / "_entries").glob("[!.]*.json")))


def killed_after(folder: str, count: int) -> None:
    """Have this process kill itself once it has renamed `count` files to their final names in folders of this name.

    Any of its threads may do the renaming.
    """
    rename, left, turn = os.replace, itertools.count(count - 1, -1), threading.Lock()

    def replace(source: str | Path, target: str | Path) -> None:
        with turn:
            rename(source, target)
            if Path(target).parent.name == folder and next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace  # type: ignore[assignment]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit the size of files inside the block, as on a full disk.

    Python writes no bytecode meanwhile, because it would not notice that it wrote only part of a module's bytecode.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = writes_none


def wait_until(true: Callable[[], object], seconds: float = 240, every: float = 0.05) -> None:
    """Wait until a condition is true. Fail after `seconds`, which is long because a busy machine may be slow."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(every)


def alive(group: int) -> bool:
    """Return whether any process of the group is alive."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def children_of(pid: int, module: str) -> list[psutil.Process]:
    """Return the child processes that run a module whose name begins with `module`.

    The list is empty if the parent has ended. Any child may end at any time.
    """
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with suppress(psutil.NoSuchProcess):
                if any(part.startswith(module) for part in child.cmdline()):
                    found.append(child)
    return found


class Processes:
    """Processes of a cluster, started the way a user starts them. Each is ended with the test at the latest."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[str]] = []

    def start(self, *command: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(part) for part in command],
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._all.append(process)
        return process

    def dask(self, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        return self._added(start("dask", *arguments, **options))

    def broadsheet(self, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        return self._added(start("broadsheet", *arguments, **options))

    def _added(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        self._all.append(process)
        return process

    def end(self) -> None:
        for process in self._all:
            with suppress(psutil.NoSuchProcess):  # it may just have ended by itself, because its scheduler is gone
                children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
                process.send_signal(signal.SIGCONT)
                process.kill()
                for child in children:
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
            process.communicate()


def start_scheduler(processes: Processes, folder: Path, **settings: str):
    env = {f"DASK_DISTRIBUTED__SCHEDULER__{name}": value for name, value in settings.items()}
    file = folder / "scheduler.json"
    scheduler = processes.dask(
        "scheduler", "--host", "127.0.0.1", "--port", 0, "--no-dashboard", "--scheduler-file", file, env=env
    )
    wait_until(file.exists)
    return scheduler, file


@contextmanager
def workers_that_run(code: str, folder: Path, count: int) -> Iterator[Client]:
    """Yield a client of `count` workers, which run this code as they start. The code may replace entries of `STATE`."""
    preload = folder / "preload.py"
    preload.write_text(code)
    with ExitStack() as stack:
        with dask_config.set({"distributed.worker.preload": [str(preload)]}):  # for these workers only
            client = stack.enter_context(connect(workers=count))
        yield client


def start_worker(processes: Processes, file: Path, env: dict[str, str] | None = None):
    options = ["--host", "127.0.0.1", "--nthreads", 2, "--no-nanny", "--no-dashboard"]
    return processes.dask("worker", "--scheduler-file", file, *options, env=env)


class Once(Progress):
    """Calls a function as soon as the first chunk is done."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._has_acted = False

    def advance(self, report: JobReport) -> None:
        if not self._has_acted:
            self._has_acted = True
            self._act()


class Link(Progress):
    """Notes the address of a job's dashboard, by which tests tell clusters apart."""

    def start(self, rows: int, dashboard: str) -> None:
        self.dashboard = dashboard


def variable(key: str) -> str:
    name = key.removeprefix("distributed.nanny.pre-spawn-environ.")
    return name if name != key else "DASK_" + key.upper().replace(".", "__").replace("-", "_")


def settings_of(client: Client) -> list[dict[str, str]]:
    """Return those of our settings that each worker has."""
    keys = {key: variable(key) for key in SETTINGS}

    def configuration() -> dict[str, str]:
        import os

        import dask

        return {k: str(dask.config.get(k) if v.startswith("DASK_") else os.environ.get(v)) for k, v in keys.items()}

    return list(client.run(configuration).values())
