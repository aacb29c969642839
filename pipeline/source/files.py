"""Input files: finding them, telling them apart, and opening them as streams of bytes."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

import fsspec
import pyarrow as pa

from pipeline.errors import SourceError, UsageError

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "text",
    ".bin": "onehot",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_HASHED_BYTES = 64 << 10
_OUTPUT = {"manifest.json", "_entries", "parts"}


@dataclass(frozen=True)
class InputFile:
    """One file of a job. modified: time in ns, or what the file system has instead. digest: sha256 of its first and
    last 64 KiB, or of all. location: where any process of this file system finds it, whatever folder it runs in.
    columns: the names a CSV's fields have, in order; empty for formats that name their own.
    """

    path: str
    format: str
    compression: str | None
    size: int
    modified: str
    digest: str
    location: str
    columns: tuple[str, ...] = ()

    @property
    def delimiter(self) -> str:
        return "\t" if self.format == "tsv" else ","


def expand(inputs: Sequence[str]) -> list[str]:
    """The files that paths, folders, globs and fsspec URLs name: in the order given, sorted within each.

    Raises UsageError where one names nothing, or a file whose ending is none of FORMATS.
    """
    paths: list[str] = []
    for name in inputs:
        found = _expand_remote(name) if "://" in name else _expand_local(name)
        if not found:
            raise UsageError(f"no input at {name!r}: no such file, or a folder or pattern without one")
        paths += found
    for path in paths:
        kind_of(path)
    return paths


def _expand_local(name: str) -> list[str]:
    if os.path.isdir(name):
        found = []
        for folder, below, files in os.walk(name):
            if {*below, *files} >= _OUTPUT:
                below.clear()  # an output folder of ours is no input
            else:
                found += [os.path.join(folder, file) for file in files]
        return sorted(_readable(found, name))
    if os.path.exists(name):
        return [name]
    return sorted(p for p in glob.glob(name, recursive=True) if os.path.isfile(p))


def _expand_remote(name: str) -> list[str]:
    try:
        fs, path = fsspec.core.url_to_fs(name)
        if glob.has_magic(path):
            return sorted(fs.unstrip_protocol(p) for p in fs.glob(path) if fs.isfile(p))
        if fs.isdir(path):
            return sorted(fs.unstrip_protocol(p) for p in _readable(fs.find(path), path))
        return [name] if fs.exists(path) else []
    except (ImportError, ValueError, OSError) as error:
        raise UsageError(f"{name}: {error}") from error


def _readable(paths: Iterable[str], folder: str) -> list[str]:
    """Without what is hidden below the folder, and what has an ending that no reader takes."""
    kept = []
    for path in paths:
        below = PurePosixPath(os.path.relpath(path, folder) if "://" not in path else path[len(folder) :])
        if not any(part.startswith((".", "_")) for part in below.parts) and _endings(path)[0] in FORMATS:
            kept.append(path)
    return kept


def _endings(path: str) -> tuple[str, str | None]:
    pure = PurePosixPath(path.lower())
    if pure.suffix in COMPRESSIONS:
        return PurePosixPath(pure.stem).suffix, COMPRESSIONS[pure.suffix]
    return pure.suffix, None


def kind_of(path: str) -> tuple[str, str | None]:
    """Format and compression by the file's ending. Raises UsageError."""
    ending, compression = _endings(path)
    if ending not in FORMATS:
        known = " ".join(FORMATS)
        raise UsageError(f"{path}: cannot tell its format by its ending; known are {known}, and with .gz or .zst")
    kind = FORMATS[ending]
    if kind == "onehot" and "://" in path:
        raise UsageError(f"{path}: a one-hot file is memory-mapped: give a local path")
    if compression and kind in ("parquet", "onehot"):
        raise UsageError(f"{path}: a {kind} file is read at many places at once: decompress it first")
    return kind, compression


def describe(path: str, whole: bool = False) -> InputFile:
    """Size, time and hash of a file (of all of it if `whole`). Raises SourceError where it cannot be read."""
    kind, compression = kind_of(path)
    local = "://" not in path
    location = os.path.abspath(path) if local else path
    try:
        if local:
            about = os.stat(location)
            size, modified = about.st_size, str(about.st_mtime_ns)
        else:
            fs, inner = fsspec.core.url_to_fs(path)
            info: dict[str, Any] = fs.info(inner)
            size, modified = int(info["size"]), _remote_stamp(info)
        digest = hashlib.sha256()
        with _open(location) as stream:
            if whole:
                while block := stream.read(1 << 22):
                    digest.update(block)
            else:
                digest.update(stream.read(_HASHED_BYTES))
                stream.seek(max(size - _HASHED_BYTES, 0))
                digest.update(stream.read(_HASHED_BYTES))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error
    return InputFile(path, kind, compression, size, modified, digest.hexdigest(), location)


def _open(location: str) -> BinaryIO:
    return cast(BinaryIO, fsspec.open(location, "rb").open() if "://" in location else open(location, "rb"))


def _remote_stamp(info: dict[str, Any]) -> str:
    return next((str(info[k]) for k in ("ETag", "etag", "mtime", "LastModified", "updated") if k in info), "")


def open_at(file: InputFile, start: int = 0) -> BinaryIO:
    """The file's bytes from `start`, decompressed. Raises SourceError where it cannot be opened."""
    try:
        if file.compression:
            stream: BinaryIO = cast(BinaryIO, _Decompressed(file))
            _skip(stream, start)
        else:
            stream = _open(file.location)
            stream.seek(start)
    except OSError as error:
        raise SourceError(f"{file.path}: {error.strerror or error}") from error
    return stream


def open_native(file: InputFile) -> pa.NativeFile:
    """An uncompressed file as Arrow reads it: a local one without Python, whose lock other threads need meanwhile.

    Raises SourceError where it cannot be opened.
    """
    try:
        return pa.PythonFile(_open(file.location), "r") if "://" in file.location else pa.OSFile(file.location)
    except OSError as error:
        what = os.strerror(error.errno) if error.errno else error  # Arrow's own words name the path again
        raise SourceError(f"{file.path}: {what}") from error


def _skip(stream: BinaryIO, count: int) -> None:
    while count and (block := stream.read(min(count, 1 << 22))):
        count -= len(block)


class _Decompressed:
    """A decompressed stream that gives out every byte before the place where its file is cut off or damaged.

    Arrow's reader drops what a failing read had decompressed; so that read is done again in smaller pieces.
    """

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._given = 0
        self._most = 1 << 22
        self._open()

    def _open(self) -> None:
        self._raw = _open(self._file.location)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._raw, "r"), self._file.compression)

    def read(self, size: int) -> bytes:
        while True:
            try:
                block = bytes(self._stream.read(min(size, self._most)))
            except (OSError, pa.ArrowException) as error:
                if self._most == 1:
                    path, given = self._file.path, self._given
                    raise SourceError(
                        f"{path}: cut off or damaged behind {given:,} decompressed bytes; all before is read ({error})"
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
