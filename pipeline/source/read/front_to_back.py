"""Files that are read front to back: compressed ones, members of archives, and those of servers without ranges."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Protocol, cast

from ...errors import InputChanged, SourceError
from ..find.archive import DAMAGE, open_member
from ..formats.base import InputFile, Member
from ..open import frames, rapidgzip_reader
from ..open.ahead import Readable, ReadAhead
from ..open.compression import HEAD_BYTES, compression_of
from ..open.decompress import Damaged, Decompressed

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
        if frames.pay(compression, file.stored):
            return frames.Frames(open_raw, file.stored)
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
