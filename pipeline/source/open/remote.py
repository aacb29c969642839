"""Reads a remote file as a stream of bytes, and requests the bytes that come next while the others are in use.

With one request at a time, each would wait for the round trip to the server, and get the speed of one connection. So
several requests are under way, of a few MiB each. A reader that jumps gets what it asks for, and little more.

Objects in buckets, files on web servers, and files for which fsspec has a driver are read in this way.
"""

from __future__ import annotations

import errno
import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from threading import Lock
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from ...errors import UsageError
from ...storage.buckets import BucketObject, Origin, State, is_bucket, state_of_object
from ...storage.names import is_web, without_secrets
from ...storage.requests import PATIENCE

_STAMPS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
"""The names that file systems give to the time of the last change, or to a tag that changes with the content."""


class DriverFile(Origin):
    """A file at an fsspec URL. Raises OSError, whatever the driver raises."""

    at_once = 1  # drivers read ahead themselves

    def __init__(self, url: str) -> None:
        with os_errors():
            fs, path = driver(url)
            self._stream = fs.open(path, "rb")
            about = getattr(self._stream, "details", None) or {}
            if not any(about.get(name) for name in _STAMPS):
                about = fs.info(path)
            self.state = listed_state(about)
        if self.state.size is None:
            raise OSError(errno.EINVAL, "its server does not tell its size")
        self._lock = Lock()
        self._closed = False

    def get(self, start: int, stop: int) -> memoryview:
        with self._lock, os_errors():
            self._stream.seek(start)
            data = self._stream.read(stop - start)
            if self._closed:
                self._stream.close()
        if len(data) != stop - start:
            raise OSError(errno.EIO, f"{len(data):,} bytes came of {stop - start:,}")
        return memoryview(data)

    def close(self) -> None:
        self._closed = True
        # Otherwise the thread that reads the stream closes it, and nobody waits for that.
        if self._lock.acquire(blocking=False):
            self._stream.close()
            self._lock.release()


def driver(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL and the path on it. Raises OSError if its driver is not installed."""
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = getattr(error.__cause__ or error.__context__ or error, "name", None) or "a package that is not there"
        raise OSError(errno.ENOPKG, f"{url.partition(':')[0]}:// needs {package}: pip install {package}") from error
    return fs, path


def state_by_driver(url: str) -> State:
    """Return the state of a file as it is now. Raises OSError."""
    with os_errors():
        fs, path = driver(url)
        fs.invalidate_cache(path)
        return listed_state(fs.info(path))


def listed_state(info: dict[str, Any]) -> State:
    """Return the state of a file from what a driver reports about it. Raises OSError if it is not a file."""
    if info.get("type", "file") != "file":
        raise OSError(errno.EINVAL, f"it is of the type {info['type']!r}, not a regular file")
    size = None if info.get("size") is None else int(info["size"])
    return State(size, next((_stamp(info[name]) for name in _STAMPS if info.get(name)), ""))


def _stamp(value: Any) -> str:
    """Return a time as text. Some drivers give it as a number when they list a folder, and as a date for
    a single file.
    """
    return str(value.timestamp()) if isinstance(value, datetime) else str(value)


@contextmanager
def os_errors() -> Iterator[None]:
    """Turn the errors of drivers, which may be of any type, into OSError."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, why(error)) from error
    except Exception as error:
        raise OSError(errno.EIO, why(error)) from error


def why(error: BaseException) -> str:
    """Return the message of a driver's error, without the address, which the caller names."""
    if isinstance(error, FileNotFoundError):
        return why(error.__cause__) if error.__cause__ else "no such file"
    if status := getattr(error, "status", None):
        return f"its server answers {status} {getattr(error, 'message', '')}".rstrip()
    return without_secrets(getattr(error, "strerror", None) or f"{type(error).__name__}: {error}")


REQUESTS = 32
"""How many requests of a process are under way at a time."""

_BLOCK = 4 << 20  # bytes of a request
_FIRST = 256 << 10  # bytes of the first request after a jump, because more jumps may follow
_GAP = 512 << 10  # a gap of up to this many bytes is read rather than skipped
_MOST_AHEAD = 192 << 20  # bytes that a process holds or has requested ahead, for all its files together


class RemoteFile(io.RawIOBase):
    """The bytes of an origin. Raises OSError, whatever error the server causes.

    stop: the byte up to which the file will be read in order, if that is known. The file may end before it.
    """

    def __init__(self, origin: Origin, stop: int | None = None) -> None:
        self.ranges = origin.ranges
        self._origin = origin
        self._stop = stop if stop is None else min(stop, self._size)  # the file may end before the stop
        self._at = self._end = 0  # the position of the reader, and the byte up to which blocks were requested
        self._steps = 0  # how many blocks were requested in order since the last jump
        self._blocks: deque[_Block] = deque()
        self._expected: deque[tuple[int, int]] = deque()

    def state(self) -> State:
        """Return the state that the server last reported."""
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
        """Request these ranges of bytes in parallel, because they are read next, in place of what
        follows the position.
        """
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
        """Return the block that holds the next byte, and request the blocks after it."""
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
            if start >= stop or start == self._stop or _Block.held + stop - start > _MOST_AHEAD:
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
        """Return the bounds of the next bytes to request. Requests in order grow, up to some MiB."""
        if self._expected:
            return self._expected[0]
        last_byte = self._stop if self._stop is not None and self._end < self._stop else self._size
        # Beyond the stop, only the end of the last record is read.
        if self._stop is not None and self._end >= self._stop:
            return self._end, min(self._end + max(_FIRST, wanted), last_byte)
        in_order = self._stop is not None or self._end == 0 or self._size <= _BLOCK
        size = _BLOCK if in_order else min(max(_FIRST << self._steps, wanted), _BLOCK)
        return self._end, min(self._end + size, last_byte)

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
    """Yield ranges in order. Those that lie close together are joined, and large ones are cut."""
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
    """A range of bytes of a file that has been requested."""

    held = 0
    """How many bytes this process holds or has requested, for all its files together."""

    _lock = Lock()

    def __init__(self, origin: Origin, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self._origin = origin
        self._read: memoryview | None = None
        self._count(stop - start)
        self._future: Future[memoryview] = _threads().submit(origin.get, start, stop)

    def data(self) -> memoryview:
        if self._read is None:  # if no thread has been free for the request, it is made here
            here = self._future.cancel()
            self._read = self._origin.get(self.start, self.stop) if here else self._future.result()
        return self._read

    def drop(self) -> None:
        self._future.cancel()
        self._count(self.start - self.stop)

    def _count(self, change: int) -> None:
        with self._lock:
            _Block.held += change


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(REQUESTS, "requests")


def open_remote(
    url: str,
    ranges: bool | None = None,
    expected: State | None = None,
    endpoint: str | None = None,
    stop: int | None = None,
) -> RemoteFile:
    """Open a remote file. Raises OSError.

    Parameters
    ----------
    url : str
        The URL of an object in a bucket, of a file on a web server, or of a file for which fsspec has a driver.
    ranges : bool, optional
        Whether its server sends ranges. By default the server is asked.
    expected : State, optional
        The state that is already known. By default the server is asked.
    endpoint : str, optional
        See `bucket_client`.
    stop : int, optional
        See `RemoteFile`.

    """
    origin: Origin
    if is_bucket(url):
        try:
            origin = BucketObject(url, expected, endpoint)
        except UsageError as error:
            raise OSError(error.message) from error
    elif is_web(url):
        from .web import WebFile  # urllib3 takes long to import

        origin = WebFile(url, ranges, expected)
    else:
        origin = DriverFile(url)
    return RemoteFile(origin, stop)


def state_now(url: str, endpoint: str | None = None) -> State:
    """Return the state of a remote file as it is now. Raises OSError."""
    if is_bucket(url):
        return state_of_object(url, endpoint, PATIENCE)
    if is_web(url):
        with open_remote(url) as file:
            return file.state()
    return state_by_driver(url)
