"""A stream read ahead of its reader by a thread, so that a file is decompressed while what came before is parsed."""

from __future__ import annotations

import queue
import threading
from typing import Protocol

_BLOCK_BYTES = 4 << 20
_BLOCKS_AHEAD = 2
_WAIT_SECONDS = 0.2


class Readable(Protocol):
    """What returns up to so many bytes, and none at the end."""

    def read(self, size: int) -> bytes: ...

    def close(self) -> None: ...


class ReadAhead:
    """The bytes and the error of `stream`, at most some blocks ahead. The first block is read without a thread, so a
    small file costs none.
    """

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._blocks: queue.Queue[bytes | Exception] = queue.Queue(_BLOCKS_AHEAD)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_large = False
        self._ready = memoryview(b"")
        self._end: Exception | bytes | None = None
        self._failure: Exception | None = None

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises what the stream raises, after all that is before."""
        if not self._ready and self._end is None:
            found = self._next()
            if isinstance(found, Exception) or not found:
                self._end = found
            elif len(found) <= size:
                return found
            else:
                self._ready = memoryview(found)
        if self._ready:
            found, self._ready = bytes(self._ready[:size]), self._ready[size:]
            return found
        if isinstance(self._end, Exception):
            raise self._end
        return b""

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._stream.close()

    def _next(self) -> bytes | Exception:
        if not self._is_large:
            found = self._block()
            self._is_large = not isinstance(found, Exception) and len(found) == _BLOCK_BYTES
            return found
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="read ahead", daemon=True)
            self._thread.start()
        return self._blocks.get()

    def _run(self) -> None:
        found: bytes | Exception = b" "
        while found and not isinstance(found, Exception) and not self._closed.is_set():
            found = self._block()
            while not self._closed.is_set():
                try:
                    self._blocks.put(found, timeout=_WAIT_SECONDS)
                    break
                except queue.Full:
                    continue

    def _block(self) -> bytes | Exception:
        """A whole block, or what there is before the end or an error, which comes with the next call."""
        pieces: list[bytes] = []
        room = _BLOCK_BYTES
        while room and self._failure is None:
            try:
                piece = self._stream.read(room)
            except Exception as error:  # raised in the reader's thread
                self._failure = error
                break
            if not piece:
                break
            pieces.append(piece)
            room -= len(piece)
        return b"".join(pieces) or self._failure or b""
