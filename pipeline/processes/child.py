"""A child process that runs a module of ours: the one way in which such a process is started, and ends.

It imports what this process would, and nothing from the folder that it is started in. It has one end of a pair of
sockets, for messages (`messages.py`), and ends as soon as the other one is closed: with this process, however that
ends. A terminal's signals do not reach it. What it writes on stderr goes on to this process's; the last line is kept.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from multiprocessing import util
from typing import IO

_END_SECONDS = 5.0
_KEPT_BYTES = 4096


def python(*arguments: object) -> list[str]:
    """A command of Python's for which the current folder is no place to look for modules: whose may that be?"""
    return [sys.executable, "-P", *map(str, arguments)]


def import_path() -> dict[str, str]:
    """The environment variable by which such a process imports what this one would."""
    return {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def protect_multiprocessing() -> None:
    """Have processes that `multiprocessing` starts, Dask's workers and its own helpers, begin with `-P` from now on.

    It starts them as `python -c`, which looks for modules in the current folder first. Workers then take over this
    process's path, so that they find the modules beside a user's script. `PYTHONSAFEPATH` would do the same, but also
    to scripts that the user starts. `multiprocessing` documents no such setting: a test has a folder of stub modules.
    """
    if "-P" not in util._args_from_interpreter_flags():  # type: ignore[attr-defined]
        flags = [*util._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]
        util._args_from_interpreter_flags = lambda: list(flags)  # type: ignore[attr-defined]


class _NoPandas(MetaPathFinder):
    """Says that there is no pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pyarrow does without pandas here", name=name)


def spare_pandas() -> None:
    """Have pyarrow do without pandas in this process, which gives it no DataFrames: that takes 0.1 to 0.6 s to import,
    and pyarrow would do so at its first conversion of a Python value, to find out whether it is one of pandas. It does
    not ask again; who imports pandas itself, as PyTorch and Bokeh do, finds it.
    """
    if "pyarrow" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    import pyarrow

    pyarrow.scalar(0)
    sys.meta_path.remove(finder)


class Child:
    """A process, and the connection to it. Raises OSError where it cannot be started.

    module: is run with the descriptor of its end, and then `arguments`; it calls `parent_of`. descriptors: of files
    that it has too, under the same numbers. environment: variables that are set there. defaults: others, if they are
    not set here. buffer_bytes: of the sockets. stdout, stderr: as of `subprocess.Popen`; by default stderr is kept.
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
        self._said = b""
        self._listening: threading.Thread | None = None
        if self.process.stderr is not None:
            self._listening = threading.Thread(target=self._pass_on, args=(self.process.stderr,), daemon=True)
            self._listening.start()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def how_it_ended(self) -> str:
        """For messages: its exit code or signal, and the last line of what it said."""
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
        """End it, whatever it does."""
        self.process.kill()

    def end(self) -> int:
        """End it, if it has not ended, and forget it. Its exit code."""
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
    """The connection to the process that started this one, which is ended once that has closed its end.

    descriptor: the first argument of this process.
    """
    connection = socket.socket(fileno=int(descriptor))
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    return connection


def _end_with(connection: socket.socket) -> None:
    other_end = select.poll()
    other_end.register(connection, 0)  # that it was closed is always told
    other_end.poll()
    os._exit(1)
