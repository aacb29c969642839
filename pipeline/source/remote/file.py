"""A remote file as a stream of bytes, which requests what will be read next while the rest is in use.

One request at a time would wait for the way to the server and back before each, and get the rate of one connection; so
several are under way, of a few MiB each. A reader that jumps about gets what it asks for, and little more.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any

from ...storage.objects import Origin, State

REQUESTS = 32
"""Requests of a process that are under way at a time."""

_BLOCK = 4 << 20  # bytes of a request
_FIRST = 256 << 10  # of the first one after a jump, which may be one of many jumps
_GAP = 512 << 10  # bytes that are rather read than jumped over
_MOST_AHEAD = 192 << 20  # bytes that a process holds or has requested ahead, for all its files together


class RemoteFile(io.RawIOBase):
    """The bytes of an origin. Raises OSError, whatever its server does.

    stop: the byte up to which it will be read, in order, where that is known.
    """

    def __init__(self, origin: Origin, stop: int | None = None) -> None:
        self.ranges = origin.ranges
        self._origin = origin
        self._stop = stop
        self._at = self._end = 0  # where it is read, and up to where blocks were requested
        self._steps = 0  # blocks in order, since the last jump
        self._blocks: deque[_Block] = deque()
        self._expected: deque[tuple[int, int]] = deque()

    def state(self) -> State:
        """As its server last told it."""
        return self._origin.state

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.ranges

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if not self.ranges:
            raise io.UnsupportedOperation("its server sends it from its first byte on only")
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Request these ranges of bytes, side by side, instead of what follows: they are read next."""
        self._drop()
        self._expected = deque(_requests(ranges))

    def readinto(self, buffer: Any) -> int:
        if not self.ranges:
            data: bytes | memoryview = self._origin.next(len(buffer))
        elif not len(buffer) or self._at >= self._size:
            return 0
        else:
            block = self._block(len(buffer))
            data = block.data()[self._at - block.start :][: len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._drop()
            self._origin.close()
        super().close()

    @property
    def _size(self) -> int:
        return self._origin.state.size or 0

    def _block(self, wanted: int) -> _Block:
        """The block that holds the next byte; those after it are requested too."""
        while self._blocks and not self._blocks[0].start <= self._at < self._blocks[0].stop:
            self._blocks.popleft().drop()
        while self._expected and not self._blocks and not self._expected[0][0] <= self._at < self._expected[0][1]:
            self._expected.popleft()
        if not self._blocks:
            if not self._expected and self._at != self._end:
                self._steps = 0
                self._end = self._at
            self._request(self._following(wanted))
        while len(self._blocks) < self._at_once:
            start, stop = self._following(0)
            if start >= stop or start == self._stop or not _AHEAD.has_room(stop - start):
                break
            self._request((start, stop))
        return self._blocks[0]

    def _request(self, bounds: tuple[int, int]) -> None:
        if self._expected:
            self._expected.popleft()
        else:
            self._steps += 1
        self._blocks.append(_Block(self._origin, *bounds))
        self._end = bounds[1]

    def _following(self, wanted: int) -> tuple[int, int]:
        """The next bytes to request. In order, a request is larger than the one before, up to some MiB."""
        if self._expected:
            return self._expected[0]
        most = self._stop if self._stop is not None and self._end < self._stop else self._size
        in_order = self._stop is not None or self._end == 0 or self._size <= _BLOCK
        size = _BLOCK if in_order else min(max(_FIRST << self._steps, wanted), _BLOCK)
        return self._end, min(self._end + size, most)

    @property
    def _at_once(self) -> int:
        if self._expected or (self._stop is not None and self._end < self._stop):
            return self._origin.at_once
        return min(self._steps, self._origin.at_once)

    def _drop(self) -> None:
        for block in self._blocks:
            block.drop()
        self._blocks.clear()
        self._expected.clear()


def _requests(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges in order, those that lie close together as one, and large ones in pieces."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1] + _GAP:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    for start, stop in joined:
        for at in range(start, stop, _BLOCK):
            yield at, min(at + _BLOCK, stop)


class _Block:
    """Bytes of a file that have been requested."""

    def __init__(self, origin: Origin, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self._origin = origin
        self._read: memoryview | None = None
        _AHEAD.add(stop - start)
        self._future: Future[memoryview] = _threads().submit(origin.get, start, stop)

    def data(self) -> memoryview:
        if self._read is None:  # where no thread was free for it until now, it is requested here
            here = self._future.cancel()
            self._read = self._origin.get(self.start, self.stop) if here else self._future.result()
        return self._read

    def drop(self) -> None:
        self._future.cancel()
        _AHEAD.add(self.start - self.stop)


class _Ahead:
    """The bytes that this process holds or has requested."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._bytes = 0

    def has_room(self, count: int) -> bool:
        return self._bytes + count <= _MOST_AHEAD

    def add(self, count: int) -> None:
        with self._lock:
            self._bytes += count


_AHEAD = _Ahead()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(REQUESTS, "requests")
