"""Files on other systems, by the drivers that fsspec has for them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from threading import Lock
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from ...storage.names import without_secrets
from ...storage.objects import Origin, State

_STAMPS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
"""What file systems call the time at which a file was modified, or a tag that changes with its content."""


class DriverFile(Origin):
    """A file at an fsspec URL. Raises OSError, whatever the driver raises."""

    at_once = 1  # drivers read ahead

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

    def get(self, start: int, stop: int) -> memoryview:
        with self._lock, os_errors():
            self._stream.seek(start)
            data = self._stream.read(stop - start)
        if len(data) != stop - start:
            raise OSError(errno.EIO, f"{len(data):,} bytes came of {stop - start:,}")
        return memoryview(data)

    def close(self) -> None:
        with self._lock:
            self._stream.close()


def driver(url: str) -> tuple[AbstractFileSystem, str]:
    """The file system of a URL, and the path on it. Raises OSError where its driver is not installed."""
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = getattr(error.__cause__ or error.__context__ or error, "name", None) or "a package that is not there"
        raise OSError(errno.ENOPKG, f"{url.partition(':')[0]}:// needs {package}: pip install {package}") from error
    return fs, path


def state_by_driver(url: str) -> State:
    """Of a file as it is now. Raises OSError."""
    with os_errors():
        fs, path = driver(url)
        fs.invalidate_cache(path)
        return listed_state(fs.info(path))


def listed_state(info: dict[str, Any]) -> State:
    """Of what a driver tells of a file. Raises OSError for what is none."""
    if info.get("type", "file") != "file":
        raise OSError(errno.EINVAL, f"it is of the type {info['type']!r}, not a regular file")
    size = None if info.get("size") is None else int(info["size"])
    return State(size, next((_stamp(info[name]) for name in _STAMPS if info.get(name)), ""))


def _stamp(value: Any) -> str:
    """Some drivers tell a time as a number when they list a folder, and as a date of one file."""
    return str(value.timestamp()) if isinstance(value, datetime) else str(value)


@contextmanager
def os_errors() -> Iterator[None]:
    """Drivers raise anything."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, why(error)) from error
    except Exception as error:
        raise OSError(errno.EIO, why(error)) from error


def why(error: BaseException) -> str:
    """What the error of a driver says, without the address, which the caller names."""
    if isinstance(error, FileNotFoundError):
        return why(error.__cause__) if error.__cause__ else "no such file"
    if status := getattr(error, "status", None):
        return f"its server answers {status} {getattr(error, 'message', '')}".rstrip()
    return without_secrets(getattr(error, "strerror", None) or f"{type(error).__name__}: {error}")
