"""Input files as streams of bytes: decompressed, from regular files only, and each still the file that was planned.

Every format opens its files here, so none can read from a file that was replaced while the job ran. A file is not
mapped into memory: a process that reads beyond the end of a mapped file, because it was cut off, is killed.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast

import fsspec
from fsspec import AbstractFileSystem

from pipeline.errors import InputChanged, SourceError
from pipeline.source.encoding import UTF8, Transcoded
from pipeline.source.formats.base import InputFile
from pipeline.source.front_to_back import FrontToBack
from pipeline.source.names import is_url, without_secrets

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_WEB = {"headers": {"Accept-Encoding": "identity"}}  # else a server may compress what has a length of its own
_STAMPS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
"""What file systems call the time at which a file was modified, or a tag that changes with its content."""


class State(NamedTuple):
    """What a file is compared by. size: None where its server does not tell it. modified: its time in ns; of a remote
    file, an ETag or the like.
    """

    size: int | None
    modified: str


@dataclass(frozen=True)
class Held(InputFile):
    """A file whose content is in memory already: as it is stored, or decoded: decompressed, and as UTF-8 where its
    format is one of text.
    """

    content: bytes = field(kw_only=True, compare=False, repr=False)
    is_decoded: bool = field(kw_only=True)


class LocalFile(io.FileIO):
    """A regular file. Raises OSError for anything else, without waiting for the other end of a FIFO."""

    ranges = True

    def __init__(self, path: str) -> None:
        super().__init__(path, opener=_open_regular)

    def state(self) -> State:
        return _state_of(os.fstat(self.fileno()))


class RemoteFile(io.RawIOBase):
    """A file at an fsspec URL. Raises OSError, whatever the file system raises.

    ranges: whether it can be read from any byte on; None to find out, which costs a server of the web a request.
    """

    def __init__(self, url: str, ranges: bool | None = None) -> None:
        with _os_errors():
            fs, path = remote(url)
            options = _WEB if is_web(url) else {}
            self._stream = fs.open(path, "rb", **options)
            about = getattr(self._stream, "details", None) or {}
            if not any(about.get(name) for name in _STAMPS):
                about = fs.info(path)
            self._state = listed_state(about)
            if self._state.size is None and not is_web(url):
                raise OSError(errno.EINVAL, "its server does not tell its size")
        self.ranges = _has_ranges(self._stream, self._state) if ranges is None and is_web(url) else ranges is not False
        if not self.ranges:
            with _os_errors():
                self._stream.close()
                self._stream = fs.open(path, "rb", block_size=0, **options)

    def state(self) -> State:
        """As it was on opening."""
        return self._state

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.ranges

    def readinto(self, buffer: Any) -> int:
        with _os_errors():
            data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def remote(url: str) -> tuple[AbstractFileSystem, str]:
    """The file system of a URL, and the path on it. Raises OSError where its driver is not installed."""
    options: dict[str, Any] = {}
    try:
        if is_web(url):
            from aiohttp import ClientTimeout

            # By default a response may take five minutes, all in all.
            options["client_kwargs"] = {"timeout": ClientTimeout(total=None, sock_connect=60, sock_read=300)}
            options["encoded"] = "%" in url  # else it would be encoded anew, and a signature another one
        fs, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        package = getattr(error.__cause__ or error.__context__ or error, "name", None) or "a package that is not there"
        raise OSError(errno.ENOPKG, f"{url.partition(':')[0]}:// needs {package}: pip install {package}") from error
    return fs, path


def open_location(location: str, ranges: bool | None = None) -> LocalFile | RemoteFile:
    """Open a path or URL, whatever it holds. ranges: as of `RemoteFile`. Raises OSError."""
    return RemoteFile(location, ranges) if is_url(location) else LocalFile(location)


def open_at(file: InputFile, start: int = 0) -> BinaryIO:
    """Open a file at byte `start`, decompressed, as UTF-8 where its format is one of text.

    Raises SourceError where it cannot be opened; and InputChanged, then and on every read, where its size or
    modification time is not that of the plan.
    """
    if isinstance(file, Held) and file.is_decoded:
        content = io.BytesIO(file.content)
        content.seek(start)
        return content
    planned = partial(_opened, file)
    stream = cast(BinaryIO, io.BufferedReader(planned()) if file.seekable else FrontToBack(file, planned))
    if file.format.encoding != UTF8:
        stream = cast(BinaryIO, Transcoded(stream, file.format.encoding))
    if file.front_to_back:
        _skip(stream, start)
    else:
        stream.seek(start)
    return stream


def open_stored(file: InputFile) -> BinaryIO:
    """Open a file at its beginning, as it is stored. Raises as `open_at` does."""
    return cast(BinaryIO, io.BufferedReader(_opened(file)))


def read_local(path: str) -> bytes:
    """All of a regular file. Raises OSError."""
    with LocalFile(path) as file:
        return file.readall()


def check_unchanged(file: InputFile) -> None:
    """Raise InputChanged where the file at that path is no longer the one that was planned."""
    try:
        if is_url(file.location):
            fs, path = remote(file.location)
            fs.invalidate_cache(path)
            now = state_at(fs, path)
        else:
            now = _state_of(os.stat(file.location))
    except OSError as error:
        raise InputChanged(f"{file.path}: it can no longer be read: {reason(error)}") from error
    _compare(file, now)


def state_at(fs: AbstractFileSystem, path: str) -> State:
    """Of a file on a remote file system. Raises OSError."""
    with _os_errors():
        return listed_state(fs.info(path))


def reason(error: OSError) -> str:
    """The message of an error without the path, which the caller names."""
    return without_secrets(error.strerror or str(error) or type(error).__name__)


def why(error: BaseException) -> str:
    """What the error of a driver says, without the address, which the caller names."""
    if isinstance(error, FileNotFoundError):
        return why(error.__cause__) if error.__cause__ else "no such file"
    if status := getattr(error, "status", None):
        return f"its server answers {status} {getattr(error, 'message', '')}".rstrip()
    return reason(error) if isinstance(error, OSError) else without_secrets(f"{type(error).__name__}: {error}")


def _open_regular(path: str, flags: int) -> int:
    refuse_irregular(os.stat(path).st_mode)  # before it is opened, which moves the tape of some devices
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        refuse_irregular(os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_irregular(mode: int) -> None:
    """Raise OSError for what is not a regular file, by its mode."""
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file")


def _state_of(about: os.stat_result) -> State:
    return State(about.st_size, str(about.st_mtime_ns))


def listed_state(info: dict[str, Any]) -> State:
    """Of what fsspec tells of a file. Raises OSError for what is none."""
    if info.get("type", "file") != "file":
        raise OSError(errno.EINVAL, f"it is of the type {info['type']!r}, not a regular file")
    size = None if info.get("size") is None else int(info["size"])
    return State(size, next((str(info[name]) for name in _STAMPS if info.get(name)), ""))


def _has_ranges(stream: Any, state: State) -> bool:
    """Whether a server of the web sends a file from a byte that is not the first."""
    if state.size is None:
        return False
    if state.size < 2:
        return True
    try:
        stream.seek(state.size - 1)
        stream.read(1)
        stream.seek(0)
    except ValueError:  # what fsspec raises
        return False
    except Exception as error:
        raise OSError(errno.EIO, why(error)) from error
    return True


@contextmanager
def _os_errors() -> Iterator[None]:
    """Drivers of remote file systems raise anything."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, why(error)) from error
    except Exception as error:
        raise OSError(errno.EIO, why(error)) from error


def _compare(file: InputFile, now: State) -> None:
    if now.size is None or file.size is None:
        now = now._replace(size=file.size)  # nothing is known to have changed it
    if now == (file.size, file.modified):
        return
    what = f"modified {_moment(file.modified)} then, {_moment(now.modified)} now"
    if now.size != file.size:
        what = f"size was {file.size:,}, is {now.size:,}"
    raise InputChanged(
        f"{file.path}: it has changed since the job was planned ({what}). Start again, overwriting the output"
    )


def _moment(modified: str) -> str:
    """A time in ns as people write it; anything else as it is."""
    if not modified.lstrip("-").isdecimal() or len(modified) > len("-9223372036854775808"):
        return modified
    seconds, rest = divmod(int(modified), 10**9)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
    except (OverflowError, ValueError):  # a file system may give any time
        return modified


def _opened(file: InputFile) -> io.RawIOBase:
    return _InMemory(file.content) if isinstance(file, Held) else _Planned(file)


class _InMemory(io.RawIOBase):
    """The bytes of a file that is held: they cannot change any more."""

    descriptor = None

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def check(self) -> None:
        pass

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._content.readinto(buffer)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._content.seek(offset, whence)

    def tell(self) -> int:
        return self._content.tell()


class _Planned(io.RawIOBase):
    """The bytes of a file as it was planned: compared on opening, and after each read, before its bytes are used."""

    def __init__(self, file: InputFile) -> None:
        self._file = file
        try:
            self._raw = open_location(file.location, file.ranges)
        except OSError as error:
            raise SourceError(f"{file.path}: {reason(error)}") from error
        try:
            _compare(file, self._raw.state())
        except InputChanged:
            self._raw.close()
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._raw.ranges

    def readinto(self, buffer: Any) -> int:
        try:
            count = self._raw.readinto(buffer)
        except OSError as error:
            raise SourceError(f"{self._file.path}: {reason(error)}") from error
        self.check()
        return count or 0

    @property
    def descriptor(self) -> int | None:
        """Of a file of this machine."""
        return self._raw.fileno() if isinstance(self._raw, LocalFile) else None

    def check(self) -> None:
        """Raise InputChanged where it is no longer as it was planned."""
        _compare(self._file, self._raw.state())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def _skip(stream: Any, count: int, most: int = 1 << 22) -> None:
    while count and (block := stream.read(min(count, most))):
        count -= len(block)
