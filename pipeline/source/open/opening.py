"""Opens input files as streams of bytes: decompressed, from regular files only, and compared with the plan.

Every format opens its files here, so none can read from a file that was replaced while the job ran. Files are not
mapped into memory: if a mapped file is cut off, a process that reads beyond its end is killed. Once all chunks are
done, each file is compared again with the file that was listed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from typing import Any, BinaryIO, cast

from ...errors import InputChanged, InputUnavailable, SourceError, UsageError, cause
from ...processes.threads import available_cores, threads
from ...storage.buckets import State, is_bucket, objects_below, split_bucket
from ...storage.names import is_url, without_secrets
from ..rows.compression import UTF8, Transcoded
from ..rows.format import InputFile
from .front_to_back import FrontToBack
from .remote import RemoteFile, open_remote, state_now

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


_SKIPPED_AT_ONCE = 4 << 20
"""How many bytes are read in one go to get to a position in a file that cannot seek."""


@dataclass(frozen=True)
class Held(InputFile):
    """A file whose content is already in memory, either as it is stored or decoded. Decoded content is decompressed,
    and is UTF-8 if the format is one of text.
    """

    content: bytes = field(kw_only=True, compare=False, repr=False)
    is_decoded: bool = field(kw_only=True)


class LocalFile(io.FileIO):
    """A regular file. Raises OSError for anything else, and does not wait for the other end of a FIFO."""

    ranges = True

    def __init__(self, path: str) -> None:
        super().__init__(path, opener=_open_regular)

    def state(self) -> State:
        return _state_of(os.fstat(self.fileno()))


def open_location(
    location: str,
    ranges: bool | None = None,
    expected: State | None = None,
    endpoint: str | None = None,
    stop: int | None = None,
) -> LocalFile | RemoteFile:
    """Open a path or URL, whatever its content is. Raises OSError.

    Parameters
    ----------
    location : str
        The path or URL.
    ranges, expected, endpoint, stop
        For a URL: see `open_remote`.

    """
    return open_remote(location, ranges, expected, endpoint, stop) if is_url(location) else LocalFile(location)


def open_at(file: InputFile, start: int = 0, stop: int | None = None, peek: bool = False) -> BinaryIO:
    """Open a file at byte `start`, decompressed, and as UTF-8 if its format is one of text.

    stop: the byte up to which the stream will be read, if not to its end, so that no more is requested from a server.
    peek: whether only the first bytes will be read, so that no thread decompresses ahead.

    Raises SourceError if the file cannot be opened. Raises InputChanged, on opening and on every read, if the file is
    gone, or its size or modification time is not that of the plan. Raises InputUnavailable if a later `--resume` may be
    able to read the file.
    """
    if isinstance(file, Held) and file.is_decoded:
        content = io.BytesIO(file.content)
        content.seek(start)
        return content
    planned = partial(_opened, file, stop)
    stream = cast(BinaryIO, io.BufferedReader(planned()) if file.seekable else FrontToBack(file, planned, peek))
    if file.format.encoding != UTF8:
        stream = cast(BinaryIO, Transcoded(stream, file.format.encoding))
    if file.front_to_back:
        while start and (block := stream.read(min(start, _SKIPPED_AT_ONCE))):
            start -= len(block)
    else:
        stream.seek(start)
    return stream


def open_stored(file: InputFile) -> BinaryIO:
    """Open a file at its beginning, as it is stored. Raises the errors of `open_at`."""
    return cast(BinaryIO, io.BufferedReader(_opened(file)))


def expect(stream: BinaryIO, ranges: Iterable[tuple[int, int]]) -> None:
    """Say which bytes of an open file will be read next, so that they are requested from a server in parallel."""
    planned = getattr(stream, "raw", None)
    if isinstance(planned, _Planned) and isinstance(planned.raw, RemoteFile):
        planned.raw.expect(ranges)


def reason(error: OSError) -> str:
    """Return the message of an error without the path, which the caller names."""
    return without_secrets(cause(error))


def _open_regular(path: str, flags: int) -> int:
    # Checked before it is opened, because opening moves the tape of some devices.
    refuse_irregular(os.stat(path).st_mode)
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        refuse_irregular(os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_irregular(mode: int) -> None:
    """Raise OSError if this mode is not that of a regular file."""
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file")


def _failed(file: InputFile, error: OSError) -> SourceError | InputUnavailable:
    """Return an error that names the file. If requests have failed for minutes, the server may answer again when the
    job is resumed.
    """
    message = f"{file.path}: {reason(error)}"
    if error.errno == errno.ETIMEDOUT:
        return InputUnavailable(f"{message}. What is committed stays: continue with --resume")
    return SourceError(message)


def _state_of(about: os.stat_result) -> State:
    return State(about.st_size, str(about.st_mtime_ns))


def _compare(file: InputFile, now: State) -> None:
    if not now.differs(State(file.size, file.modified)):
        return
    what = f"modified {_moment(file.modified)} then, {_moment(now.modified)} now"
    if now.size is not None and now.size != file.size:
        what = f"size was {file.size:,}, is {now.size:,}"
    raise InputChanged(
        f"{file.path}: it has changed since the job was planned ({what}). Start again, overwriting the output"
    )


def _moment(modified: str) -> str:
    """Return a time in ns in the form that people write; return anything else unchanged."""
    try:
        seconds, rest = divmod(int(modified), 10**9)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
    except (OverflowError, ValueError, OSError):  # a file system may report any number as a time
        return modified


def _opened(file: InputFile, stop: int | None = None) -> io.RawIOBase:
    if isinstance(file, Held):
        return cast(io.RawIOBase, io.BytesIO(file.content))
    return _Planned(file, stop)


class _Planned(io.RawIOBase):
    """The bytes of a planned file. Its state is compared with the plan on opening, and after each read before the bytes
    are used.
    """

    def __init__(self, file: InputFile, stop: int | None = None) -> None:
        self._file = file
        expected = State(file.size, file.modified)
        try:
            self.raw = open_location(file.location, file.ranges, expected, file.endpoint, stop)
        except FileNotFoundError as error:
            raise InputChanged(f"{file.path}: it can no longer be read: {reason(error)}") from error
        except OSError as error:
            raise _failed(file, error) from error
        try:
            _compare(file, self.raw.state())
        except InputChanged:
            self.raw.close()
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.raw.ranges

    def readinto(self, buffer: Any) -> int:
        try:
            count = self.raw.readinto(buffer)
        except OSError as error:
            _compare(self._file, self.raw.state())
            raise _failed(self._file, error) from error
        _compare(self._file, self.raw.state())
        return count or 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.raw.seek(offset, whence)

    def tell(self) -> int:
        return self.raw.tell()

    def close(self) -> None:
        if not self.closed:
            self.raw.close()
        super().close()


_AT_ONCE = 32
"""How many requests for the state of remote files are under way at a time. Such a request takes time
rather than work.
"""

_SOME = 64
"""How many local files one call looks up; fewer than `_MANY`."""

_MANY, _LOOKED_AT = 100, 100
"""If at least `_MANY` files are in one folder of a bucket, they are looked up in its listing, which returns a thousand
objects per request. The listing stops after `_LOOKED_AT` objects per file, so there are never many more requests than
files.
"""


def changed_files(files: Iterable[InputFile]) -> dict[str, str]:
    """Return the locations of the files that have changed since they were listed, each with the reason."""
    once = list({file.location: file for file in files}.values())  # an archive is looked up once for all its members
    remote = any(is_url(file.location) for file in once)
    groups = _by_folder(once) if remote else (once[at : at + _SOME] for at in range(0, len(once), _SOME))
    with threads(_AT_ONCE if remote else available_cores()) as pool:
        return dict(chain.from_iterable(pool.map(_changed, groups)))


def _by_folder(files: Sequence[InputFile]) -> Iterator[list[InputFile]]:
    """Yield groups of files: those of a folder of a bucket together if they are many, and every other file alone."""
    folders = defaultdict[str, list[InputFile]](list)
    for file in files:
        folders[file.location.rpartition("/")[0]].append(file)
    for folder, inside in folders.items():
        if len(inside) >= _MANY and is_bucket(folder):
            yield inside
        else:
            yield from ([file] for file in inside)


def _changed(files: Sequence[InputFile]) -> list[tuple[str, str]]:
    """Return the files that are no longer as they were planned. Raises InputUnavailable if that cannot be found out
    now.
    """
    changed = []
    for file in files if len(files) < _MANY else _unlike_listed(files):
        place = file.location
        try:
            _compare(file, state_now(place, file.endpoint) if is_url(place) else _state_of(os.stat(place)))
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                raise _failed(file, error) from error
            changed.append((place, f": it can no longer be read: {reason(error)}"))
        except InputChanged as error:
            changed.append((file.location, error.message.removeprefix(file.path)))
    return changed


def _unlike_listed(files: Sequence[InputFile]) -> list[InputFile]:
    """Return those files of a bucket's folder that its listing does not show as they were planned."""
    keys = [split_bucket(file.location) for file in files]
    wanted = {key: State(file.size, file.modified) for file, (_, key) in zip(files, keys, strict=True)}
    (bucket, one), endpoint = keys[0], files[0].endpoint
    same = set()
    with suppress(OSError):
        for key, now in islice(objects_below(bucket, one.rpartition("/")[0], endpoint, []), _LOOKED_AT * len(files)):
            if key in wanted and not now.differs(wanted[key]):
                same.add(key)
    return [file for file, (_, key) in zip(files, keys, strict=True) if key not in same]


def read_answers(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file of answers. Raises UsageError if it cannot be read."""
    try:
        with LocalFile(os.fspath(path)) as file:
            return file.readall()
    except OSError as error:
        raise UsageError(f"the answer file {path} cannot be read: {reason(error)}") from error


def digest_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file of answers. Raises the errors of `read_answers`."""
    return hashlib.sha256(read_answers(path)).hexdigest()
