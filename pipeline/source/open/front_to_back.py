"""Reads files that are read front to back: compressed files, members of zip archives, and files of servers that send no
ranges. A thread decompresses the next bytes while the previous ones are parsed.
"""

from __future__ import annotations

import errno
import io
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, BinaryIO, cast

from ...errors import InputChanged, InputUnavailable, SourceError
from ..rows.compression import HEAD_BYTES, compression_of
from ..rows.format import InputFile, Member
from .ahead import InThread
from .decompress import PIECE_BYTES, content_of, why
from .frames import NotSupported

ZIP_SUFFIX = ".zip"
ZIP_MAGIC = b"PK\x03\x04"
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)
"""The errors that `zipfile` raises if a member cannot be read."""

_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # with other methods, `zipfile` does not limit its memory
_ENCRYPTED = 0x1
_MOST_BYTES = 64 << 20  # the limit for the list of members, which `zipfile` reads in one go
_HEADER = struct.Struct("<4s22xHH")


def list_members(raw: io.RawIOBase) -> list[Member]:
    """Return the files in an archive, in its order. Raises OSError if it cannot be read."""
    try:
        with zipfile.ZipFile(cast(BinaryIO, _Bounded(raw))) as archive:
            return [_member(about) for about in archive.infolist() if not about.is_dir()]
    except (*DAMAGE, ValueError, OverflowError, NotImplementedError, struct.error) as error:
        raise OSError(errno.EINVAL, f"not a readable zip archive ({error})") from error


def _member(about: zipfile.ZipInfo) -> Member:
    numbers = (about.header_offset, about.compress_type, about.compress_size, about.file_size, about.CRC)
    return Member(member_path(about.filename), *numbers, _problem(about))


def member_path(name: str) -> str:
    """Return a path in an archive in its plain form: ./a.csv and /a.csv, as some programs write them, become a.csv."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def is_hidden(member: Member) -> bool:
    """Whether a member, or a folder that it is in, has a name that is skipped in folders, such as __MACOSX."""
    return any(part.startswith((".", "_")) and part != ".." for part in member.name.split("/"))


def open_member(stream: BinaryIO, member: Member) -> BinaryIO:
    """Open a member of the archive in `stream`. Its content is decompressed as it is read, and compared with its
    checksum.

    The member is found by its offset, because an archive may have very many members, and reading their list takes long.
    Raises OSError on opening, and the errors in `DAMAGE` on reading.
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
    return cast(BinaryIO, zipfile.ZipExtFile(stream, "r", about, close_fileobj=True))


def _problem(about: zipfile.ZipInfo) -> str:
    if about.flag_bits & _ENCRYPTED:
        return "it is encrypted; unpack the archive with its password"
    if about.compress_type not in _METHODS:
        return f"it is compressed by method {about.compress_type}, which cannot be read; unpack the archive"
    if "::" in about.filename:
        return "its name holds '::', which separates a member from its archive; rename it"
    return ""


class _Bounded(io.BufferedReader):
    """An archive that reads no more in one go than the limit for a list of members."""

    def read(self, size: Any = -1) -> bytes:
        if size is not None and size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"the list of its members is longer than {_MOST_BYTES >> 20} MiB")
        return super().read(_MOST_BYTES if size is None or size < 0 else size)


_BLOCK_BYTES = 4 << 20
_BLOCKS_AHEAD = 2
_BUFFER_BYTES = 256 << 10


class FrontToBack:
    """The content of a file. A thread decompresses it ahead of the reader, by at most two blocks. The first block is
    read without a thread, so a small file needs none.

    Every byte before the position at which the file is cut off or damaged is returned before the error is raised.

    Parameters
    ----------
    file : InputFile
        The file.
    open_planned : callable
        Opens the file as it is stored.
    peek : bool
        See `open_at`.

    """

    def __init__(self, file: InputFile, open_planned: Callable[[], io.RawIOBase], peek: bool) -> None:
        self._file = file
        self._open_planned = open_planned
        self._stored = self._open()
        try:
            head = cast(io.BufferedReader, self._stored).peek(HEAD_BYTES)
        except InputChanged:
            raise
        except (OSError, SourceError, *DAMAGE):  # the reader gets this error again, after the bytes before it
            head, self._stored = b"", self._open()
        self._compression = compression_of(head, file.compression)
        self._given = 0
        self._ready = b""
        self._failure: Exception | None = None
        self._stopped = threading.Event()
        self._thread: InThread[list[bytes]] | None = None
        self._pieces = self._every_byte() if peek else self._read_ahead()

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, or none at the end. Raises SourceError if the rest cannot be read."""
        if not self._ready:
            if self._failure is None:
                try:
                    self._ready = next(self._pieces, b"")
                except Exception as error:  # each library has errors of its own
                    self._failure = self._told(error)
            if self._failure is not None:
                raise self._failure
        block, self._ready = self._ready[:size], self._ready[size:]
        self._given += len(block)
        return block

    @property
    def stored(self) -> int:
        """How many bytes of the stored file have been read; 0 if that is no longer known."""
        with suppress(ValueError):  # the thread that reads ahead closes the file at its end
            return self._stored.tell()
        return 0

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._stored.close()

    def __enter__(self) -> FrontToBack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> BinaryIO:
        """Open the stored bytes of the file, or of the member of an archive."""
        raw = cast(BinaryIO, io.BufferedReader(self._open_planned(), _BUFFER_BYTES))
        try:
            return open_member(raw, self._file.member) if self._file.member else raw
        except (*DAMAGE, OSError) as error:
            raise SourceError(f"{self._file.path}: {error}") from error

    def _told(self, error: Exception) -> Exception:
        """Return the error that the reader gets for one of a library: it says after how many bytes the file ends."""
        if isinstance(error, InputChanged | InputUnavailable):
            return error
        unit = "decompressed bytes" if self._compression or self._file.member else "bytes"
        what = f"cut off or damaged after {self._given:,} {unit}; all before is read ({why(error)})"
        if isinstance(error, NotSupported):
            what = f"after {self._given:,} {unit}, {error}. Everything before that is read"
        failure = SourceError(f"{self._file.path}: {what}")
        failure.__cause__ = error
        return failure

    def _every_byte(self) -> Iterator[bytes]:
        """Yield the content in pieces. A read that fails loses what it has decompressed. Then the file is read again
        from its beginning, and from where that read began byte by byte.
        """
        count = 0
        try:
            content = content_of(self._stored, self._compression)
            while piece := content.read1(PIECE_BYTES):
                count += len(piece)
                yield piece
            return
        except (InputChanged, InputUnavailable):
            raise
        except Exception:  # each library has errors of its own
            self._stored.close()
        self._stored = self._open()
        content = content_of(self._stored, self._compression, exact=True)
        while count and (piece := content.read1(min(count, PIECE_BYTES))):
            count -= len(piece)
        # Read the piece that failed byte by byte. If it does not fail this time, read on in pieces.
        for size in chain(repeat(1, PIECE_BYTES), repeat(PIECE_BYTES)):
            if not (piece := content.read1(size)):
                return
            yield piece

    def _read_ahead(self) -> Iterator[bytes]:
        blocks = _blocks(self._every_byte())
        first = next(blocks)
        yield from first
        if sum(map(len, first)) >= _BLOCK_BYTES:
            self._thread = InThread(lambda: blocks, _BLOCKS_AHEAD, self._stopped)
        for block in self._thread or blocks:
            yield from block


def _blocks(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield the pieces of one block after another. Before the end or an error come the pieces of the last block, which
    may be short.
    """
    block: list[bytes] = []
    room = _BLOCK_BYTES
    try:
        for piece in pieces:
            block.append(piece)
            room -= len(piece)
            if room <= 0:
                yield block
                block, room = [], _BLOCK_BYTES
    except Exception:
        yield block
        raise
    yield block
