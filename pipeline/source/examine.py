"""A file as it is opened for the first time: what it is, its columns, and how they differ from those of the first."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import NamedTuple

from pipeline.errors import SourceError
from pipeline.source import archive
from pipeline.source.chunk import Selection
from pipeline.source.formats.base import Format, InputFile, Schema
from pipeline.source.formats.registry import FORMATS
from pipeline.source.opening import Held, open_at
from pipeline.source.schema import difference, refuse_twice

_FIRST_BYTES = 64
_HELD_BYTES = 4 << 20


class Examined(NamedTuple):
    """A file that can be read. file: bound to its columns. remark: how its columns differ from the first file's."""

    file: InputFile
    schema: Schema
    remark: str | None


def examine(file: InputFile, selection: Selection, first: tuple[str, Schema] | None) -> Examined:
    """Open a file and read its columns. first: path and columns of the job's first file; None for that file itself.

    Raises SourceError where it cannot be read, or is not like the first file; UsageError where an option does not fit.
    """
    if file.size == 0:
        raise SourceError(f"{file.path}: the file is empty")
    with open_at(file) as stream:
        _refuse_other(file.path, stream.read(_FIRST_BYTES), file.format)
    schema = file.format.schema(file, selection)
    refuse_twice(file.path, schema)
    remark = difference(file, schema, first, selection) if first else None
    return Examined(replace(file, format=file.format.for_columns(schema.names or ())), schema, remark)


def examine_like(file: InputFile, selection: Selection, first: tuple[str, Schema] | None) -> Examined:
    """The same of a file of a job that is planned. first: None where no file could be read then, so none is read."""
    found = examine(file, selection, first)
    if first is None:
        raise SourceError(
            f"{file.path}: no file could be read when the job was planned, so the columns are not known. Start again, "
            "overwriting the output"
        )
    return found


def held(file: InputFile) -> InputFile:
    """The file with its content in memory, where that is little: so that it is opened once. Else the file as it is.

    Raises SourceError where it cannot be opened.
    """
    if not 0 < file.stored <= _HELD_BYTES:
        return file
    blocks, room = [], _HELD_BYTES + 1
    with open_at(file) as stream:
        try:
            while room > 0 and (block := stream.read(room)):
                blocks.append(block)
                room -= len(block)
        except SourceError:  # what can be read before the damage is found by who reads it block by block
            return file
    if room <= 0:
        return file
    return Held(**{f.name: getattr(file, f.name) for f in fields(InputFile)}, content=b"".join(blocks))


def _refuse_other(name: str, head: bytes, found: Format) -> None:
    """Raise SourceError for the first bytes of another format."""
    kinds = {other.name: (other.magic, other.suffixes[0]) for other in FORMATS.values()}
    kinds[archive.SUFFIX[1:]] = (archive.MAGIC, archive.SUFFIX)
    others = {kind: suffix for kind, (magic, suffix) in kinds.items() if magic and head.startswith(magic)}
    if others and found.name not in others:
        what, suffixes = " or ".join(others), " or ".join(others.values())
        raise SourceError(f"{name}: it is a {what} file by its first bytes; rename it ({suffixes})")
