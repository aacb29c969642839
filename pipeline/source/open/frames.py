"""Zstd files of several frames (pzstd, the seekable format), decompressed by several cores, in order.

Where a frame ends is told by the headers of its blocks, without decompressing it. Whatever is irregular ends this: a
large frame, damage, anything unknown. From there on the file is read by one core, which knows what to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import BinaryIO

from ...errors import SourceError
from ...processes.threads import available_cores
from ..read.parsing import PARSING
from .compression import COMPRESSIONS, Compression, is_skippable
from .decompress import Decompressed

ZSTD = COMPRESSIONS["zstd"]
MOST_STORED = 16 << 20
"""Compressed bytes of a frame; a larger one is read by one core."""
_MOST_CONTENT = 32 << 20
_LEAST_BYTES = 4 << 20
_MOST_BLOCKS = 100_000
_READ_BYTES = 4 << 20
_MOST_CORES = 16


def pay(compression: Compression, stored: int) -> bool:
    """Whether several cores may be faster than one, for a file of so many compressed bytes."""
    return compression is ZSTD and stored >= _LEAST_BYTES and PARSING.share() > 1


def can_be_cut(head: bytes) -> bool:
    """Whether a file with these first bytes, `MOST_STORED` of them, begins with frames that several cores can read."""
    data = memoryview(head)
    try:
        while data and (count := frame_bytes(data)) is not None:
            if not is_skippable(bytes(data[:4])):
                return count < len(data)
            data = data[count:]
    except Irregular:
        pass
    return False


class Irregular(Exception):
    """No frame begins here that could be cut out."""


def frame_bytes(data: memoryview) -> int | None:
    """Compressed bytes of the frame at the beginning of `data` (RFC 8878, 3.1.1); None where it goes on after it."""
    try:
        if is_skippable(bytes(data[:4])):
            place = 8 + _number(data, 4, 4)
            return place if place <= len(data) else None
        if not ZSTD.begins(bytes(data[:4])):
            raise Irregular
        flags = _number(data, 4, 1)
        one_segment = flags >> 5 & 1
        place = 5 + (not one_segment) + (0, 1, 2, 4)[flags & 3] + (one_segment, 2, 4, 8)[flags >> 6]
        last = blocks = 0
        while not last:
            if (blocks := blocks + 1) > _MOST_BLOCKS:
                raise Irregular
            block = _number(data, place, 3)
            last, kind, size = block & 1, block >> 1 & 3, block >> 3
            place += 3 + (1 if kind == 1 else size)
        place += 4 * (flags >> 2 & 1)
    except IndexError:
        return None
    return place if place <= len(data) else None


class Frames:
    """A zstd file, decompressed by several cores as far as its frames can be cut out.

    open_raw: opens the file anew. stored: its bytes; a frame that is the whole file is one core's.
    """

    def __init__(self, open_raw: Callable[[], BinaryIO], stored: int) -> None:
        self._open_raw = open_raw
        self._stored = stored
        self._raw = open_raw()
        self._buffer = memoryview(b"")
        self._place = 0  # the byte of the file at which the buffer begins
        self._waiting: deque[tuple[int, Future[bytes | None]]] = deque()
        self._ready = memoryview(b"")
        self._irregular = False
        self._rest: Decompressed | None = None

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises as `Decompressed` does."""
        while not self._ready and self._rest is None:
            while len(self._waiting) < _threads() + 1 and (frame := self._next_frame()):
                self._waiting.append((self._place - len(frame), _pool().submit(_content, frame)))
            place, content = self._place, None
            if self._waiting:
                place, done = self._waiting.popleft()
                content = done.result()
            if content is None:
                self._give_up()
                self._rest = Decompressed(self._open_raw, ZSTD, place)
            else:
                self._ready = memoryview(content)
        if self._ready:
            found, self._ready = bytes(self._ready[:size]), self._ready[size:]
            return found
        assert self._rest is not None
        return self._rest.read(size)

    def close(self) -> None:
        self._give_up()
        if self._rest is not None:
            self._rest.close()

    def _next_frame(self) -> bytes:
        """A whole frame; none where one core must read on: at the end of the file too, and where it cannot be read."""
        while not self._irregular:
            try:
                count = frame_bytes(self._buffer) if self._buffer else None
                if count == self._stored:
                    raise Irregular
                if count is not None:
                    frame, self._buffer = bytes(self._buffer[:count]), self._buffer[count:]
                    self._place += count
                    return frame
                block = self._raw.read(_READ_BYTES) if len(self._buffer) < MOST_STORED else b""
            except (Irregular, OSError, SourceError):
                block = b""
            self._irregular = not block
            self._buffer = memoryview(bytes(self._buffer) + block)
        return b""

    def _give_up(self) -> None:
        for _, done in self._waiting:
            done.cancel()
        self._waiting.clear()
        self._buffer = memoryview(b"")
        self._raw.close()


def _content(frame: bytes) -> bytes | None:
    """What a frame holds; None where that is too much, or cannot be read."""
    decoder = ZSTD.decoder()
    found = []
    room = _MOST_CONTENT
    try:
        while not decoder.eof and room:
            found.append(decoder.decompress(frame, min(room, 4 << 20)))
            frame = b""
            room -= len(found[-1])
            if decoder.needs_input and not decoder.eof:
                return None
    except Exception:  # whatever it is, one core finds it again and says it
        return None
    return b"".join(found) if decoder.eof else None


def _number(data: memoryview, place: int, width: int) -> int:
    """Raises IndexError where the data end before it."""
    if place + width > len(data):
        raise IndexError
    return int.from_bytes(data[place : place + width], "little")


def _threads() -> int:
    return min(PARSING.share(), _MOST_CORES)


@cache
def _pool() -> ThreadPoolExecutor:
    """One for all files of this process."""
    return ThreadPoolExecutor(min(available_cores(), _MOST_CORES), "frames")
