"""What the HTTP processes hold together, in memory that all of them see."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import IO

_PLACES = 2
_BYTES = 8


class Held:
    """Connections, and bytes of bodies. A process changes only its own numbers, so that no lock is needed.

    file: as `file_for` makes it; number: of the process.
    """

    def __init__(self, file: int, number: int) -> None:
        self._values = memoryview(mmap.mmap(file, 0)).cast("q")
        self._first = _PLACES * number

    @staticmethod
    def file_for(processes: int) -> IO[bytes]:
        """A file without a name."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the server is
        os.truncate(file.fileno(), processes * _PLACES * _BYTES)
        return file

    def add_connections(self, count: int) -> None:
        self._values[self._first] += count

    def add_bytes(self, count: int) -> None:
        self._values[self._first + 1] += count

    @property
    def connections(self) -> int:
        """Of all processes."""
        return sum(self._values[::_PLACES])

    @property
    def bytes(self) -> int:
        """Of all processes."""
        return sum(self._values[1::_PLACES])

    def clear(self) -> None:
        """The process is gone."""
        self._values[self._first] = self._values[self._first + 1] = 0
