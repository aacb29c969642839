"""Files that are read front to back: compressed ones, members of zip archives, and those of servers without ranges.
What comes next is decompressed by a thread while what came before is parsed.
"""

from __future__ import annotations

import errno
import io
import struct
import threading
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, BinaryIO, Protocol, cast

from ...errors import InputChanged, SourceError
from ..formats.base import InputFile, Member
from . import rapidgzip_reader
from .ahead import InThread
from .compression import HEAD_BYTES, compression_of
from .decompress import Damaged, Decompressed, Frames, frames_pay

ZIP_SUFFIX = ".zip"
ZIP_MAGIC = b"PK\x03\x04"
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)
"""What `zipfile` raises where a member cannot be read."""

_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # of others `zipfile` bounds no memory
_ENCRYPTED = 0x1
_MOST_BYTES = 64 << 20  # of the list of members, which `zipfile` reads at once
_HEADER = struct.Struct("<4s22xHH")


def list_members(raw: io.RawIOBase) -> list[Member]:
    """The files in an archive, in its order. Raises OSError where it cannot be read."""
    try:
        with zipfile.ZipFile(cast(BinaryIO, _Bounded(raw))) as archive:
            return [
                Member(
                    member_path(i.filename),
                    i.header_offset,
                    i.compress_type,
                    i.compress_size,
                    i.file_size,
                    i.CRC,
                    _problem(i),
                )
                for i in archive.infolist()
                if not i.is_dir()
            ]
    except (*DAMAGE, ValueError, OverflowError, NotImplementedError, struct.error) as error:
        raise OSError(errno.EINVAL, f"not a readable zip archive ({error})") from error


def member_path(name: str) -> str:
    """The path in an archive: ./a.csv and /a.csv, as some programs write them, are a.csv."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def is_hidden(member: Member) -> bool:
    """Whether it, or a folder that it is in, has the name of what is skipped in folders, such as __MACOSX."""
    return any(part.startswith((".", "_")) and part != ".." for part in member.name.split("/"))


def open_member(stream: BinaryIO, member: Member) -> BinaryIO:
    """The content of a member of the archive in `stream`, decompressed as it is read, and compared with its checksum.

    It is found by its place, since an archive may have very many members, and a list of them takes long to read. Raises
    OSError, on opening, and what is in `DAMAGE`, on reading.
    """
    stream.seek(member.offset)
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(ZIP_MAGIC):
        raise OSError(errno.EINVAL, "the archive is damaged: a member does not begin where its list says")
    _, name_bytes, extra_bytes = _HEADER.unpack(header)
    stream.seek(name_bytes + extra_bytes, io.SEEK_CUR)
    about = zipfile.ZipInfo(member.name)
    about.compress_type, about.CRC = member.method, member.checksum
    about.compress_size, about.file_size = member.size, member.length
    return cast(BinaryIO, zipfile.ZipExtFile(stream, "r", about))


def _problem(about: zipfile.ZipInfo) -> str:
    if about.flag_bits & _ENCRYPTED:
        return "it is encrypted; unpack the archive with its password"
    if about.compress_type not in _METHODS:
        return f"it is compressed by method {about.compress_type}, which cannot be read; unpack the archive"
    if "::" in about.filename:
        return "its name holds '::', which separates a member from its archive; rename it"
    return ""


class _Bounded(io.BufferedReader):
    """An archive of which no more is read at once than a list of members may take."""

    def read(self, size: Any = -1) -> bytes:
        if size is not None and size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"the list of its members is longer than {_MOST_BYTES >> 20} MiB")
        return super().read(_MOST_BYTES if size is None or size < 0 else size)


_BLOCK_BYTES = 4 << 20
_BLOCKS_AHEAD = 2


class Readable(Protocol):
    """What returns up to so many bytes, and none at the end."""

    def read(self, size: int) -> bytes: ...

    def close(self) -> None: ...


class ReadAhead:
    """The bytes and the error of `stream`, at most some blocks ahead, each in the pieces in which it came. The first
    block is read without a thread, so a small file costs none.
    """

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._blocks = self._in_thread()
        self._stopped = threading.Event()
        self._thread: InThread[deque[bytes]] | None = None
        self._block = deque[bytes]()
        self._ready = memoryview(b"")
        self._failure: Exception | None = None

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises what the stream raises, after all that is before."""
        if not self._ready and self._failure is None:
            try:
                self._block = self._block or next(self._blocks, self._block)
            except Exception as error:
                self._failure = error
            else:
                found = self._block.popleft() if self._block else b""
                if len(found) <= size:
                    return found
                self._ready = memoryview(found)
        if not self._ready and self._failure is not None:
            raise self._failure
        found, self._ready = bytes(self._ready[:size]), self._ready[size:]
        return found

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._stream.close()

    def _in_thread(self) -> Iterator[deque[bytes]]:
        blocks = _blocks(self._stream)
        first = next(blocks, deque[bytes]())
        is_whole = sum(map(len, first)) >= _BLOCK_BYTES
        yield first
        if not is_whole:
            yield from blocks
        else:
            self._thread = InThread(lambda: blocks, _BLOCKS_AHEAD, self._stopped)
            yield from self._thread


def _blocks(stream: Readable) -> Iterator[deque[bytes]]:
    """Whole blocks in pieces, and what there is before the end or an error, which is raised after it."""
    failure: Exception | None = None
    room = 0
    while not room:
        pieces = deque[bytes]()
        room = _BLOCK_BYTES
        try:
            while room and (piece := stream.read(room)):
                pieces.append(piece)
                room -= len(piece)
        except Exception as error:
            failure = error
        if pieces:
            yield pieces
    if failure is not None:
        raise failure


_BUFFER_BYTES = 256 << 10
_STEPS = (4 << 20, 64 << 10, 1 << 10, 1)


class Planned(Protocol):
    """A file as it is stored, and as it was planned."""

    @property
    def descriptor(self) -> int | None:
        """Of a file of this machine."""

    def check(self) -> None:
        """Raise InputChanged where it is no longer as it was planned."""


class FrontToBack:
    """The content of a file, decompressed ahead of its reader.

    Every byte before the position at which the file is cut off or damaged is returned before the error is raised.
    open_planned: opens the file; it returns a raw stream that is `Planned`. peek: as of `open_at`.
    """

    def __init__(self, file: InputFile, open_planned: Callable[[], io.RawIOBase], peek: bool) -> None:
        self._file = file
        self._open_planned = open_planned
        self._peek = peek
        self._given = 0
        self._is_packed = file.member is not None
        self._stream = self._opened() if peek else ReadAhead(self._opened())

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises SourceError where it cannot be read on."""
        try:
            block = self._stream.read(size)
        except InputChanged:
            raise
        except (OSError, SourceError, Damaged, *DAMAGE) as error:
            unit = "decompressed bytes" if self._is_packed else "bytes"
            raise SourceError(
                f"{self._file.path}: cut off or damaged after {self._given:,} {unit}; all before is read ({error})"
            ) from error
        self._given += len(block)
        return block

    @property
    def stored(self) -> int:
        """How many bytes have been read of the file as it is stored; 0 where that is no longer known."""
        with suppress(ValueError):  # the thread that reads ahead closes it at its end
            return self._position()
        return 0

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> FrontToBack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> Readable:
        """The file as what it is by its first bytes, with all cores where that pays."""
        file = self._file
        first = self._open()
        head = _head(first)
        if first.seekable():
            first.seek(0)
        else:
            first.close()
            first = self._open()
        opened = [first]
        self._position = first.tell

        def open_raw() -> BinaryIO:
            return opened.pop() if opened else self._open()

        compression = compression_of(head, file.compression)
        if compression is None:
            return EveryByte(open_raw)
        self._is_packed = True
        if compression.name == "gzip":
            compression = replace(compression, mark=file.format.unit_begins)
        if file.member is not None:
            return Decompressed(lambda: cast(BinaryIO, EveryByte(open_raw)), compression)
        if self._peek:
            return Decompressed(open_raw, compression)
        planned = cast(Planned, cast(io.BufferedReader, first).raw)
        if rapidgzip_reader.pays(compression, file.stored) and planned.descriptor is not None:
            reader = rapidgzip_reader.start(open_raw, compression, planned.descriptor, planned.check)
            if reader is not None:
                self._position = reader.position
                return reader
        if frames_pay(compression, file.stored):
            return Frames(open_raw, file.stored)
        return Decompressed(open_raw, compression)

    def _open(self) -> BinaryIO:
        """The bytes of the file, or of the member of an archive, as they are stored."""
        raw = cast(BinaryIO, io.BufferedReader(self._open_planned(), _BUFFER_BYTES))
        return _member(raw, self._file.member, self._file.path) if self._file.member else raw


class EveryByte:
    """A stream whose reads may fail, and then drop what they have read: they are repeated in smaller steps."""

    def __init__(self, open_raw: Callable[[], BinaryIO]) -> None:
        self._open_raw = open_raw
        self._stream = open_raw()
        self._given = 0
        self._step = 0
        self._failure: Exception | None = None

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises what the stream raises, after all that is before."""
        while self._failure is None:
            try:
                block = self._stream.read(min(size, _STEPS[self._step]))
            except InputChanged:
                raise
            except (OSError, SourceError, *DAMAGE) as error:
                self._back(error)
                continue
            self._given += len(block)
            return block
        raise self._failure

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self._stream.close()

    def _back(self, error: Exception) -> None:
        self._step += 1
        if self._step == len(_STEPS):
            self._failure = error
            return
        self._stream.close()
        self._stream = self._open_raw()
        left = self._given
        try:
            while left and (block := self._stream.read(min(left, _STEPS[1]))):
                left -= len(block)
        except (OSError, SourceError, *DAMAGE) as again:
            self._failure = again


def _head(stream: BinaryIO) -> bytes:
    try:
        return stream.read(HEAD_BYTES)
    except InputChanged:
        raise
    except (OSError, SourceError, *DAMAGE):  # whoever reads it gets this again, after the bytes before
        return b""


def _member(raw: BinaryIO, member: Member, path: str) -> BinaryIO:
    try:
        return open_member(raw, member)
    except (*DAMAGE, OSError) as error:
        raise SourceError(f"{path}: {error}") from error
