"""Processes that begin with everything imported: forks of one that has, which each process of pytest starts once.

The workers of clusters in tests begin so, and `broadsheet` and `dask` where a test runs them in processes of their own.
Each is one as any other: with a number, signals, exit code, streams, folder and environment of its own. What is read
while modules are imported is as in the environment of pytest; where that differs, and in the tests of how things start,
a process begins afresh.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import connection, context, forkserver, popen_forkserver, popen_spawn_posix, process, reduction
from pathlib import Path
from socket import AF_UNIX, SHUT_RDWR, recv_fds, socket
from typing import Any

import cloudpickle
import dask
from distributed import utils

METHOD = "forkserver"
"""Of Dask's workers. `dask worker`, which gets the settings of whoever starts it, knows it as Python's own."""

MODULES = ["warm", "pandas", "distributed.nanny", "pipeline.__main__", "pipeline.cli.commands", "pipeline.api",
           "pipeline.job.run", "pipeline.job.worker", "pipeline.engine.cpu", "pipeline.report.job",
           "pipeline.report.terminal", "pipeline.kernels.memory_plan", "pipeline.kernels.tables", "cluster.local",
           "cluster.plugin", "pyarrow.parquet", "pyarrow.csv", "rich.progress", "typer._adapters",
           "pydantic.type_adapter", "cryptography.hazmat.backends.openssl", "multiprocessing.synchronize",
           "cryptography.x509", "tornado.platform.asyncio", "prometheus_client.core", "dask.cli",
           "distributed.cli.dask_scheduler", "distributed.cli.dask_spec", "distributed.cli.dask_ssh",
           "distributed.cli.dask_worker", "distributed.http.health", "distributed.http.scheduler.info",
           "distributed.http.scheduler.json", "distributed.http.scheduler.prometheus", "distributed.http.statics",
           "distributed.http.worker.prometheus"]  # fmt: skip
"""What is imported there: all that `sys.modules` of a command, a scheduler and a worker have after a short job."""

_AT_IMPORT = ("PYTHON", "LD_", "OPENBLAS_CORETYPE", "NVTX", "CUDA", "ARROW_", "NO_COLOR", "FORCE_COLOR")
"""Environment variables that are read while modules are imported begin so."""

_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}
"""As Dask has it in workers: BLAS counts its threads when it is loaded."""

_MAINS = {"broadsheet": "pipeline.__main__", "dask": "dask.__main__"}

sys.modules["wordllama"] = None  # type: ignore[assignment] # where it is installed, every fit takes longer

_MAIN = type(process.current_process())  # in the one that all are forks of


def get_ready() -> None:
    """Start the process that all others are forks of, and have Dask's workers begin as such."""
    os.environ["PYTHONHASHSEED"] = "6640"  # as Dask does where it starts a worker, which would begin afresh here
    _imported_with.clear()
    _imported_with.update(_read_at_import(os.environ))
    multiprocessing.get_context("forkserver").set_forkserver_preload(MODULES)
    before = dict(os.environ)
    os.environ.update(_ONE_THREAD)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    _set_method()


def _set_method() -> None:
    dask.config.set({"distributed.worker.multiprocessing-method": METHOD})


def _read_at_import(environment: Any) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_AT_IMPORT)}


_imported_with = _read_at_import(os.environ)


class Process(process.BaseProcess):
    """A fork of the process with the modules, which takes on the folder and the environment of whoever starts it."""

    _start_method = None

    @staticmethod
    def _Popen(started: Any) -> Any:  # noqa: N802 - as multiprocessing calls it
        if _read_at_import(os.environ) != _imported_with:
            return popen_spawn_posix.Popen(started)
        started.environment = dict(os.environ)
        return popen_forkserver.Popen(started)

    def run(self) -> None:
        gc.freeze()  # what all forks have is not looked through for garbage, in each of them
        environment = getattr(self, "environment", None)
        if environment is not None:
            _take_on(environment)
        super().run()


class Context(context.BaseContext):
    _name = METHOD
    Process = Process


context._concrete_contexts[METHOD] = Context()
utils._forkserver_preload_set = True  # Dask would import what it may need here


def _take_on(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    dask.config.refresh()


class Command:
    """A running `broadsheet` or `dask`, in the main as a `subprocess.Popen` whose streams are pipes of text."""

    def __init__(
        self,
        program: str,
        *arguments: object,
        env: dict[str, str],
        cwd: Path | None,
        start_new_session: bool,
        preexec_fn: Callable[[], object] | None,
    ) -> None:
        pipes = [os.pipe() for _ in range(2)]
        self.args = [program, *map(str, arguments)]
        streams = {number: write for number, (_, write) in enumerate(pipes, 1)}
        self._process = _started(self.args, env, cwd, streams, start_new_session, preexec_fn)
        self.pid: int = self._process.pid
        self.stdout, self.stderr = (os.fdopen(read, encoding="utf-8") for read, _ in pipes)
        for _, write in pipes:
            os.close(write)

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it printed, once it has ended."""
        pool = ThreadPoolExecutor(2)
        found = [pool.submit(str if stream.closed else stream.read) for stream in (self.stdout, self.stderr)]
        pool.shutdown(wait=False)
        self.wait(timeout)
        output, errors = (each.result() for each in found)
        self.stdout.close()
        self.stderr.close()
        return output, errors

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and its exit code is on its way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    program: str,
    *arguments: object,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    start_new_session: bool = False,
    preexec_fn: Callable[[], object] | None = None,
) -> Command | subprocess.Popen[str]:
    """Start a program, "broadsheet" or "dask", in a process of its own. env: what it has beside the environment of this
    process.
    """
    environment = {**os.environ, **(env or {})}
    if _read_at_import(environment) == _imported_with:
        options = {"env": environment, "start_new_session": start_new_session, "preexec_fn": preexec_fn}
        return Command(program, *arguments, cwd=cwd, **options)
    return subprocess.Popen(
        [sys.executable, "-m", program, *map(str, arguments)],
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
        preexec_fn=preexec_fn,
    )


class _Stream:
    """An open file of this process on its way to one that is started."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, (reduction.DupFd(self._number),)


def _detached(sent: Any) -> int:
    found: int = sent.detach()
    return found


def _started(
    arguments: list[str],
    env: dict[str, str],
    cwd: Path | str | None,
    streams: dict[int, int],
    new_session: bool = False,
    preexec_fn: Callable[[], object] | None = None,
) -> Any:
    """The process of a command, started. streams: its files by the numbers that they have there."""
    sent, before = {number: _Stream(stream) for number, stream in streams.items()}, cloudpickle.dumps(preexec_fn)
    started = multiprocessing.get_context(METHOD).Process(
        target=_run, args=(arguments, env, cwd, new_session, before, sent)
    )
    started.start()
    return started


_ON_PATH = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    said = json.dumps([os.getcwd(), dict(os.environ), sys.argv[1:]]).encode()
    socket.send_fds(server, [len(said).to_bytes(8)], [0, 1, 2])
    server.sendall(said)
    for number in range(3):  # held by the command alone, so that whoever reads its output sees the end
        os.close(number)
    code = int(server.recv(8) or b"1")
os._exit(code if code >= 0 else 128 - code)
"""


@contextmanager
def on_path(folder: Path) -> Iterator[str]:
    """A PATH whose `broadsheet` is a process as of `start`: for scripts that run it many times. Signals to it do not
    reach that process.
    """
    address, program = connection.arbitrary_address("AF_UNIX"), folder / "broadsheet"
    program.write_text(_ON_PATH.format(python=sys.executable, address=address))
    program.chmod(0o755)
    with socket(AF_UNIX) as server:
        server.bind(address)
        server.listen()
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        yield f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        server.shutdown(SHUT_RDWR)


def _serve(server: socket) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:  # `on_path` is over
            return
        threading.Thread(target=_answer, args=(client,), daemon=True).start()


def _answer(client: socket) -> None:
    with client:
        size, streams, _, _ = recv_fds(client, 8, 3)
        with client.makefile("rb") as file:
            cwd, env, arguments = json.loads(file.read(int.from_bytes(size)))
        command = _started(["broadsheet", *arguments], env, cwd, dict(enumerate(streams)))
        for stream in streams:
            os.close(stream)
        command.join()
        client.sendall(str(command.exitcode).encode())


def _run(
    arguments: list[str],
    environment: dict[str, str],
    cwd: Path | str | None,
    new_session: bool,
    before: bytes,
    streams: dict[int, int],
) -> None:
    """Become the command, in the new process, and end as a process of Python ends."""
    process._current_process, process._parent_process = _MAIN(), None
    context._default_context._actual_context = None
    for number, stream in streams.items():
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), errors="backslashreplace", line_buffering=True)
    if new_session:
        os.setsid()
    if cwd is not None:
        os.chdir(cwd)
    _take_on(environment)
    _set_method()
    sys.argv = arguments
    if limit := cloudpickle.loads(before):
        limit()
    _fork_again()
    code: Any = 0
    try:
        import_module(_MAINS[arguments[0]]).main()
    except SystemExit as end:
        code = end.code
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _fork_again() -> None:
    """Fork a process of the same group, while there is one thread: the command's workers are forks of that."""
    gc.freeze()
    address = connection.arbitrary_address("AF_UNIX")
    read, write = os.pipe()
    with socket(AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        number = os.fork()
        if not number:
            os.close(write)
            forkserver._forkserver._forkserver_alive_fd = None
            try:
                forkserver.main(listener.detach(), read, [])
            finally:
                os._exit(0)
    os.close(read)
    server = forkserver._forkserver
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, write, number
