"""Large gzip and bz2 files, decompressed by all cores: `rapidgzip` in a process of its own, and a pipe from it.

In a process of its own since it holds memory that it does not give back, and ends the process on some errors. Only one
runs at a time: a file for each core is faster than several cores for one file.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO

from ...processes.child import Child
from .ahead import PARSING
from .compression import Compression
from .decompress import Decompressed

LEAST_BYTES = {"gzip": 64 << 20, "bz2": 8 << 20}
"""Compressed, of a file for which a process is started: about half a second of one core."""
LEAST_CORES = {"gzip": 6, "bz2": 2}
"""With fewer, one core is as fast: for gzip, beginning anywhere in a file takes three times the work."""
_MOST_CORES = 16
_MOST_MEMORY = 1536 << 20
_PIPE_BYTES = 1 << 20
_MODULE = "broadsheet.pipeline.source.open.rapidgzip_process"
_one_at_a_time = threading.Lock()


def pays(compression: Compression, stored: int) -> bool:
    """Whether several cores are faster than one, for a file of so many compressed bytes."""
    name = compression.name
    enough = name in LEAST_BYTES and stored >= LEAST_BYTES[name] and PARSING.share() >= LEAST_CORES[name]
    return enough and is_there()


def is_there() -> bool:
    """Whether `rapidgzip` is installed, on a system that has what its process uses."""
    return sys.platform == "linux" and importlib.util.find_spec("rapidgzip") is not None


def start(
    open_raw: Callable[[], BinaryIO],
    compression: Compression,
    descriptor: int,
    check: Callable[[], None],
    most_memory: int = _MOST_MEMORY,
) -> RapidgzipReader | None:
    """A reader; None while another file is read so, and where no process can be started."""
    if not _one_at_a_time.acquire(blocking=False):
        return None
    try:
        return RapidgzipReader(open_raw, compression, descriptor, check, most_memory)
    except OSError:
        _one_at_a_time.release()
        return None


class RapidgzipReader:
    """A file, decompressed by several cores until the end or trouble; from there on by one core.

    open_raw: opens the file; what it returns stays open, since it owns the descriptor. check: raises where the file has
    changed; called for each block, before its bytes are used.
    """

    def __init__(
        self,
        open_raw: Callable[[], BinaryIO],
        compression: Compression,
        descriptor: int,
        check: Callable[[], None],
        most_memory: int,
    ) -> None:
        self._raw = open_raw()
        self._open_raw = open_raw
        self._compression = compression
        self._check = check
        self._given = 0
        self._ended = False
        self._rest: Decompressed | None = None
        self._told = open(os.memfd_create("position"), "rb", buffering=0)  # noqa: SIM115 - until `close`
        cores = min(PARSING.share(), _MOST_CORES)
        position = self._told.fileno()
        about = (f"/proc/self/fd/{descriptor}", compression.name, cores, most_memory, position)
        self._child = Child(
            _MODULE, *about, descriptors=[descriptor, position], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._child.process.stdout is not None
        self._pipe = self._child.process.stdout
        fcntl.fcntl(self._pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises as `Decompressed` does, and what `check` raises."""
        if self._rest is None and not self._ended:
            block = self._pipe.read(size)
            self._check()
            if block:
                self._given += len(block)
                return block
            self._ended = self._child.process.wait() == 0
            self._stop()
            if not self._ended:
                self._rest = Decompressed(self._open_raw, self._compression)
                self._skip(self._rest, self._given)
        return self._rest.read(size) if self._rest is not None else b""

    @property
    def is_by_all_cores(self) -> bool:
        """Whether one core has not had to take over."""
        return self._rest is None

    def position(self) -> int:
        """How many bytes of the file as it is stored the process has decompressed. Raises ValueError once closed."""
        return int.from_bytes(os.pread(self._told.fileno(), 8, 0), "little")

    def close(self) -> None:
        self._stop()
        self._told.close()
        if self._rest is not None:
            self._rest.close()

    @staticmethod
    def _skip(stream: Decompressed, count: int) -> None:
        while count and (block := stream.read(min(count, 4 << 20))):
            count -= len(block)

    def _stop(self) -> None:
        if not self._pipe.closed:
            self._pipe.close()
            self._child.end()
            self._raw.close()
            _one_at_a_time.release()
