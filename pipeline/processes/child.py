"""Starts and ends a child process that runs one of our modules.

The child imports what this process would import, and nothing from the folder in which it is started. It has one end of
a pair of sockets, for messages (`messages.py`). It ends when the other end is closed, so it ends with this process,
however that ends. A terminal's signals do not reach it. What it writes to stderr goes to this process's stderr; the
last line is kept.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import IO

_END_SECONDS = 5.0
_KEPT_BYTES = 4096


def python(*arguments: object) -> list[str]:
    """Return a command that starts Python that finds no modules in the current folder, which may be anyone's."""
    return [sys.executable, "-P", *map(str, arguments)]


def import_path() -> dict[str, str]:
    """Return the environment variable with which such a process imports what this process would import."""
    return {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def seconds_since_start() -> float:
    """Return the seconds since this process started, before Python was loaded; 0 if the system does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return 0.0


_SAFE_PATH, _SET_HERE = "PYTHONSAFEPATH", "broadsheet"


@contextmanager
def safe_path() -> Iterator[None]:
    """In the block, start the processes of `multiprocessing`, Dask's workers and its own helpers, as with `-P`.

    `multiprocessing` starts them as `python -c`, which looks for modules in the current folder first. Workers then take
    over this process's path, so that they find the modules next to a user's script. The variable is set only in the
    block, since scripts that the user starts need their folder. So a worker that replaces a lost one does not have it,
    unless it is a fork.
    """
    is_set = _SAFE_PATH in os.environ
    os.environ.setdefault(_SAFE_PATH, _SET_HERE)
    try:
        yield
    finally:
        if not is_set:
            unset_safe_path()


def unset_safe_path() -> None:
    """Let the scripts that this process starts find modules in their folder, even if it started in `safe_path`."""
    if os.environ.get(_SAFE_PATH) == _SET_HERE:
        del os.environ[_SAFE_PATH]


OF_WORKERS: Mapping[str, str] = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the largest value that glibc accepts
    "MALLOC_ARENA_MAX": "1",
    "MIMALLOC_PURGE_DELAY": "10000",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
}
"""The environment variables of processes that read and label. With them, glibc's malloc and Arrow's mimalloc keep the
buffers of a chunk for the next chunk. If they returned them to the system, they would cost page faults again. With one
arena, threads share them.
"""

METHOD = "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"
"""The variable with which a user chooses how Dask's workers start. If it is set, they are no forks of ours."""

_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
"""Dask sets these in its workers too. BLAS reads them when it is loaded."""


class Forks:
    """The process that `multiprocessing` forks to start others, by its method "forkserver"."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}

    def begin(self, module: str) -> None:
        """Start the process, unless it cannot start or is not wanted.

        It imports the module while this process goes on, and ends with this process. The module may not use CUDA or
        raise an error. A terminal's Ctrl-C reaches neither the process nor its forks. Call this only in processes of
        ours: user code could have other uses for the forkserver.
        """
        if METHOD in os.environ or sys.version_info < (3, 11, 1):  # others can reach its socket: CVE-2022-42919
            return
        forkserver.set_forkserver_preload([module])
        found = {name: os.environ.get(name, value) for name, value in {**OF_WORKERS, **_ONE_THREAD}.items()}
        missing = found.keys() - os.environ.keys()
        with safe_path():
            resource_tracker.ensure_running()  # otherwise it starts below, and unblocks SIGINT
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        os.environ.update(found)
        try:
            with suppress(OSError), safe_path():
                forkserver.ensure_running()
                self.variables = found
                atexit.register(self._end)
        finally:
            for name in missing:
                del os.environ[name]
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _end(self) -> None:
        """End the process, which may still be importing: a reader of this process's output would wait for it."""
        import psutil

        for child in psutil.Process().children():
            with suppress(psutil.Error):
                if any("forkserver" in word for word in child.cmdline()):
                    child.terminate()


FORKS = Forks()
"""The forkserver of this process."""


class _Hidden(MetaPathFinder):
    """Makes modules of these names appear to be missing.

    (None in `sys.modules` would do for Python's own `import`. Cython's import, with which pyarrow looks for pandas,
    returns the None.)
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, *_: object) -> None:
        if name in self._names:
            raise ModuleNotFoundError("another package does without it here", name=name)


@contextmanager
def hidden(*modules: str) -> Iterator[None]:
    """In the block, let packages be imported without these modules, which they need only for some uses.

    Code that imports the modules later finds them.
    """
    finder = _Hidden(modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def spare_pandas() -> None:
    """Let pyarrow work without pandas in this process, which gives it no DataFrames.

    Importing pandas takes 0.1 to 0.6 s, and pyarrow would do so at its first conversion of a Python value, to find out
    whether it is a pandas object. pyarrow does not ask again. Code that imports pandas itself, such as PyTorch and
    Bokeh, finds it.
    """
    if "pyarrow" not in sys.modules:
        with hidden("pandas"):
            import pyarrow

            pyarrow.scalar(0)


class Child:
    """A process, and the connection to it. Raises OSError if it cannot be started.

    Parameters
    ----------
    module : str
        The module to run. Its arguments are the descriptor of its end of the connection, and then `arguments`; it calls
        `parent_of`.
    *arguments : object
        More arguments for the module's command line.
    descriptors : sequence of int
        The descriptors of files that the child has too, under the same numbers.
    environment : mapping of str to str, optional
        Variables that are set in the child.
    defaults : mapping of str to str, optional
        Variables that are set in the child if they are not set here.
    buffer_bytes : int, optional
        The buffer size of the sockets.
    stdout, stderr : int, optional
        As in `subprocess.Popen`. By default stdout is dropped, and stderr is passed on and its last line kept.

    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        defaults: Mapping[str, str] | None = None,
        buffer_bytes: int | None = None,
        stdout: int = subprocess.DEVNULL,
        stderr: int | None = subprocess.PIPE,
    ) -> None:
        # Start the process with one end of a pair of sockets.
        self.connection, theirs = socket.socketpair()
        try:
            with theirs:
                if buffer_bytes is not None:
                    for end in (self.connection, theirs):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
                self.process = subprocess.Popen(
                    python("-m", module, theirs.fileno(), *arguments),
                    stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, bufsize=0,
                    pass_fds=(theirs.fileno(), *descriptors), process_group=0,
                    env={**(defaults or {}), **os.environ, **(environment or {}), **import_path()},
                )  # fmt: skip
        except BaseException:
            self.connection.close()
            raise
        # Pass its stderr on in a thread, which keeps the last line.
        self._said = b""
        self._listening: threading.Thread | None = None
        if self.process.stderr is not None:
            self._listening = threading.Thread(target=self._pass_on, args=(self.process.stderr,), daemon=True)
            self._listening.start()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def how_it_ended(self) -> str:
        """Return, for messages, the exit code or signal of the process, and the last line that it wrote."""
        try:
            code = self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        if code < 0:
            why = " (out of memory?)" if code == -signal.SIGKILL else ""
            return f"was ended by {signal.Signals(-code).name}{why}"
        if self._listening is not None:
            self._listening.join(_END_SECONDS)
        lines = self._said.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"ended with exit code {code}" + (f": {last}" if code and last else "")

    def kill(self) -> None:
        """Kill the process, whatever it does."""
        self.process.kill()

    def end(self) -> int:
        """End the process if it has not ended, release it, and return its exit code."""
        self.kill()
        self.connection.close()
        return self.process.wait()

    def _pass_on(self, stderr: IO[bytes]) -> None:
        with stderr:
            while said := stderr.read(_KEPT_BYTES):
                self._said = (self._said + said)[-_KEPT_BYTES:]
                with suppress(OSError):
                    os.write(2, said)


def parent_of(descriptor: str) -> socket.socket:
    """Return the connection to the process that started this one. This process ends when the other closes its end.

    descriptor: the first argument of this process.
    """
    connection = socket.socket(fileno=int(descriptor))
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    return connection


def _end_with(connection: socket.socket) -> None:
    other_end = select.poll()
    other_end.register(connection, 0)  # a closed connection is always reported
    other_end.poll()
    os._exit(1)
