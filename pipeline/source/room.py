"""Room in a process for chunks: so much is read before others are classified and written."""

from __future__ import annotations

import threading

from pipeline.source.chunk import Chunk
from pipeline.source.limits import LIMITS

MOST_OF_ONE = LIMITS.chunk_bytes
"""What a chunk takes at most, about: so much is taken before it is read."""

_MOST_BYTES = 12 * MOST_OF_ONE


class Room:
    """Bytes, shared by the threads of a process."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most_bytes
        self._taken = 0
        self._changed = threading.Condition()

    def take(self, count: int) -> None:
        """Wait until there is room for so many bytes, and take it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + count <= self._most)
            self._taken += count

    def give_back(self, count: int) -> None:
        with self._changed:
            self._taken -= count
            self._changed.notify_all()


def bytes_of(chunk: Chunk) -> int:
    """Bytes that a chunk holds, `MOST_OF_ONE` at most."""
    ids = 0 if chunk.ids is None else chunk.ids.nbytes
    return min(int(chunk.text.nbytes) + chunk.kept_bytes + ids, MOST_OF_ONE)
