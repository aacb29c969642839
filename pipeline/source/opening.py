"""Input files as streams of bytes, decompressed."""

from __future__ import annotations

import os
from typing import BinaryIO, cast

import fsspec
import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.source.formats.base import InputFile


def open_location(location: str) -> BinaryIO:
    return cast(BinaryIO, fsspec.open(location, "rb").open() if "://" in location else open(location, "rb"))


def open_at(file: InputFile, start: int = 0) -> BinaryIO:
    """Open a file at byte `start`, decompressed. Raises SourceError where it cannot be opened."""
    try:
        if file.compression:
            stream: BinaryIO = cast(BinaryIO, _Decompressed(file))
            _skip(stream, start)
        else:
            stream = open_location(file.location)
            stream.seek(start)
    except OSError as error:
        raise SourceError(f"{file.path}: {error.strerror or error}") from error
    return stream


def open_native(file: InputFile) -> pa.NativeFile:
    """Open an uncompressed file for Arrow, which reads local files without holding the GIL.

    Raises SourceError where it cannot be opened.
    """
    try:
        return pa.PythonFile(open_location(file.location), "r") if "://" in file.location else pa.OSFile(file.location)
    except OSError as error:
        what = os.strerror(error.errno) if error.errno else error  # Arrow's message repeats the path
        raise SourceError(f"{file.path}: {what}") from error


def _skip(stream: BinaryIO, count: int) -> None:
    while count and (block := stream.read(min(count, 1 << 22))):
        count -= len(block)


class _Decompressed:
    """A decompressed stream that returns every byte before the position at which its file is cut off or damaged.

    Arrow's reader drops what a failing read has decompressed, so that read is repeated in smaller pieces.
    """

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._given = 0
        self._most = 1 << 22
        self._open()

    def _open(self) -> None:
        self._raw = open_location(self._file.location)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._raw, "r"), self._file.compression)

    def read(self, size: int) -> bytes:
        while True:
            try:
                block = bytes(self._stream.read(min(size, self._most)))
            except (OSError, pa.ArrowException) as error:
                if self._most == 1:
                    path, given = self._file.path, self._given
                    raise SourceError(
                        f"{path}: cut off or damaged after {given:,} decompressed bytes; all before is read ({error})"
                    ) from error
                self._most = max(self._most // 16, 1)
                self._reopen()
                continue
            self._given += len(block)
            return block

    def _reopen(self) -> None:
        self.close()
        self._open()
        left = self._given
        while left:
            left -= len(self._stream.read(min(left, 1 << 16)))

    def close(self) -> None:
        self._stream.close()
        self._raw.close()

    def __enter__(self) -> _Decompressed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
