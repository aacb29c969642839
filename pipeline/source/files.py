"""Input files: finding them, and which format each has."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

import fsspec

from pipeline.errors import SourceError, UsageError
from pipeline.output.layout import ENTRIES, MANIFEST, OLD_MANIFEST, PARTS
from pipeline.source.formats.base import Format, InputFile, Seek
from pipeline.source.formats.registry import FORMATS
from pipeline.source.opening import open_location
from pipeline.threads import available_cores, threads

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_HASHED_BYTES = 64 << 10

Problem = tuple[str, str]
"""A path, and a message about the problem of that file."""


def find_files(
    inputs: Sequence[str], symbols: int, length: int, whole_hash: bool = False
) -> tuple[list[InputFile], list[Problem]]:
    """The files that `inputs` name, and those among them that cannot be read. Raises UsageError as `expand` does.

    symbols, length: of the model, for files that are encoded already. whole_hash: hash all of a file, not its edges.
    """

    def found_at(path: str) -> InputFile | Problem:
        try:
            return describe(path, symbols, length, whole_hash)
        except SourceError as error:
            return path, str(error)

    with threads(available_cores()) as pool:
        found = list(pool.map(found_at, expand(inputs)))
    return [f for f in found if isinstance(f, InputFile)], [p for p in found if not isinstance(p, InputFile)]


def expand(inputs: Sequence[str]) -> list[str]:
    """The files that paths, folders, globs and fsspec URLs name: in the order given, sorted within each.

    Raises UsageError where one names nothing, or a file whose suffix is none of FORMATS.
    """
    paths: list[str] = []
    for name in inputs:
        found = _expand_remote(name) if "://" in name else _expand_local(name)
        if not found:
            raise UsageError(f"no input at {name!r}: no such file, or a folder or pattern without one")
        paths += found
    for path in paths:
        format_of(path)
    return paths


def _expand_local(name: str) -> list[str]:
    if os.path.isdir(name):
        found = []
        for folder, below, files in os.walk(name):
            if {ENTRIES, PARTS} <= {*below} and {MANIFEST, OLD_MANIFEST} & {*files}:
                below.clear()  # an output folder of this program is not input
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
    """The paths that are not hidden below the folder, and whose suffix belongs to a format."""
    kept = []
    for path in paths:
        below = PurePosixPath(os.path.relpath(path, folder) if "://" not in path else path[len(folder) :])
        if not any(part.startswith((".", "_")) for part in below.parts) and _suffixes(path)[0] in FORMATS:
            kept.append(path)
    return kept


def _suffixes(path: str) -> tuple[str, str | None]:
    pure = PurePosixPath(path.lower())
    if pure.suffix in COMPRESSIONS:
        return PurePosixPath(pure.stem).suffix, COMPRESSIONS[pure.suffix]
    return pure.suffix, None


def format_of(path: str) -> tuple[Format, str | None]:
    """Format and compression by the file's suffixes. Raises UsageError."""
    suffix, compression = _suffixes(path)
    if suffix not in FORMATS:
        known = " ".join(FORMATS)
        raise UsageError(f"{path}: its suffix belongs to no format; known are {known}, also with .gz or .zst")
    found = FORMATS[suffix]
    if found.memory_mapped and "://" in path:
        raise UsageError(f"{path}: a {found.name} file is memory-mapped: give a local path")
    if compression and found.seeks is Seek.ROWS:
        raise UsageError(f"{path}: a {found.name} file is read at many places at once: decompress it first")
    return found, compression


def describe(path: str, symbols: int, length: int, whole: bool) -> InputFile:
    """Size, time and hash of a file (of all of it if `whole`).

    Raises SourceError where it cannot be read, or has the first bytes of another format.
    """
    found, compression = format_of(path)
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
        with open_location(location) as stream:
            head = stream.read(_HASHED_BYTES)
            digest.update(head)
            if whole:
                while block := stream.read(1 << 22):
                    digest.update(block)
            else:
                stream.seek(max(size - _HASHED_BYTES, 0))
                digest.update(stream.read(_HASHED_BYTES))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error
    for suffix, other in FORMATS.items():
        if other.magic and other is not found and head.startswith(other.magic):
            raise SourceError(f"{path}: it is a {other.name} file by its first bytes; rename it ({suffix})")
    bound = found.for_model(symbols, length)
    return InputFile(path, bound, compression, size, modified, digest.hexdigest(), location)


def _remote_stamp(info: dict[str, Any]) -> str:
    return next((str(info[k]) for k in ("ETag", "etag", "mtime", "LastModified", "updated") if k in info), "")
