"""Room in a process for chunks: so much is read before others are classified and written."""

from __future__ import annotations

import threading

from ..chunk import Chunk
from ..limits import LIMITS

MOST_OF_ONE = LIMITS.chunk_bytes
"""What a chunk takes at most, about: so much is taken before one is read in this process."""

_MOST_BYTES = 8 * MOST_OF_ONE
_MOST_CHUNKS = 32
"""Two for each task of a worker: a job that is stopped labels those that were read."""


class Room:
    """For so many bytes and chunks, shared by the threads of a process."""

    def __init__(self, most_bytes: int = _MOST_BYTES, most_chunks: int = _MOST_CHUNKS) -> None:
        self._most_bytes, self._most_chunks = most_bytes, most_chunks
        self._bytes = self._chunks = 0
        self._changed = threading.Condition()

    def take(self, count: int) -> None:
        """Wait until there is room for a chunk of so many bytes, and take it."""
        with self._changed:
            self._changed.wait_for(lambda: self._fits(count))
            self._bytes, self._chunks = self._bytes + count, self._chunks + 1

    def shrink(self, count: int) -> None:
        """Give back bytes that a chunk does not take after all."""
        with self._changed:
            self._bytes -= count
            self._changed.notify_all()

    def leave(self, count: int) -> None:
        """Give back the room of a chunk of so many bytes."""
        with self._changed:
            self._bytes, self._chunks = self._bytes - count, self._chunks - 1
            self._changed.notify_all()

    def _fits(self, count: int) -> bool:
        return not self._chunks or (self._chunks < self._most_chunks and self._bytes + count <= self._most_bytes)


def bytes_of(chunk: Chunk) -> int:
    """Bytes that a chunk holds, `MOST_OF_ONE` at most."""
    ids = 0 if chunk.ids is None else chunk.ids.nbytes
    return min(int(chunk.text.nbytes) + chunk.kept_bytes + ids, MOST_OF_ONE)
