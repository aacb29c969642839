"""Input files: what each is, and which format it has."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pipeline.errors import SourceError, UsageError
from pipeline.source.formats.base import Format, InputFile, Seek
from pipeline.source.formats.registry import FORMATS
from pipeline.source.opening import open_location, reason
from pipeline.source.search import Problem, printable, search
from pipeline.threads import available_cores, threads

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_HASHED_BYTES = 64 << 10


Identity = list[dict[str, Any]]
"""The input in a fingerprint."""


@dataclass(frozen=True)
class Files:
    """Files as they were found, before they are planned. problems: of those that cannot be read, and of folders.
    left_out: paths of files whose suffix belongs to no format, in folders, and of folders that a pattern matches.
    """

    found: tuple[InputFile, ...]
    problems: tuple[Problem, ...]
    left_out: tuple[str, ...]

    @property
    def identity(self) -> Identity:
        return [{"path": f.path, "size": f.size, "modified": f.modified, "digest": f.digest} for f in self.found]

    @property
    def bytes_to_scan(self) -> int:
        """The size of the files that are scanned for the beginnings of their records."""
        return sum(f.size for f in self.found if not f.compression and f.format.seeks is Seek.RECORDS)


def find_files(inputs: Sequence[str], symbols: int, length: int, whole_hash: bool = False) -> Files:
    """The files that `inputs` name. Raises UsageError where one names nothing, or a file of no format.

    symbols, length: of the model, for files that are encoded already. whole_hash: hash all of a file, not its edges.
    """

    def found_at(path: str) -> InputFile | Problem:
        try:
            return describe(path, symbols, length, whole_hash)
        except SourceError as error:
            return printable(path), error.message

    found = search(inputs, lambda path: _suffixes(path)[0] in FORMATS)
    for path in found.paths:
        format_of(path)
    with threads(available_cores()) as pool:
        described = list(pool.map(found_at, found.paths))
    return Files(
        tuple(f for f in described if isinstance(f, InputFile)),
        (*(f for f in described if not isinstance(f, InputFile)), *found.problems),
        tuple(map(printable, found.left_out)),
    )


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
        raise UsageError(
            f"{printable(path)}: its suffix belongs to no format; known are {known}, also with .gz or .zst"
        )
    found = FORMATS[suffix]
    if compression and found.seeks is Seek.ROWS:
        raise UsageError(f"{printable(path)}: a {found.name} file is read at many places at once: decompress it first")
    return found, compression


def describe(path: str, symbols: int, length: int, whole: bool) -> InputFile:
    """Size, time and hash of a file (of all of it if `whole`).

    Raises SourceError where it cannot be read or named, or has the first bytes of another format.
    """
    found, compression = format_of(path)
    name = printable(path)
    if name != path:
        raise SourceError(f"{name}: its name is not UTF-8, so the output could not name it; rename it")
    location = path if "://" in path else os.path.abspath(path)
    try:
        raw = open_location(location)
        state = raw.state()
        digest = hashlib.sha256()
        with io.BufferedReader(raw) as stream:
            head = stream.read(_HASHED_BYTES)
            digest.update(head)
            if whole:
                while block := stream.read(1 << 22):
                    digest.update(block)
            else:
                stream.seek(max(state.size - _HASHED_BYTES, 0))
                digest.update(stream.read(_HASHED_BYTES))
    except OSError as error:
        raise SourceError(f"{path}: {reason(error)}") from error
    for suffix, other in FORMATS.items():
        if other.magic and other is not found and head.startswith(other.magic):
            raise SourceError(f"{path}: it is a {other.name} file by its first bytes; rename it ({suffix})")
    bound = found.for_model(symbols, length)
    return InputFile(path, bound, compression, *state, digest.hexdigest(), location)
