"""A file as it is opened for the first time: what it is, its columns, and how they differ from those of the first."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ...errors import SourceError
from ..chunk import Selection
from ..find import archive
from ..formats.base import Format, InputFile, Schema
from ..formats.registry import FORMATS
from ..open.compression import HEAD_BYTES, compression_of
from ..open.decompress import decompressed
from ..open.encoding import UTF8
from ..open.opening import Held, open_at, open_stored
from .schema import difference, refuse_twice

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
    file = identified(file)
    with open_at(file, peek=True) as stream:
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
    """The file with its content in memory, where that is little: so that it is opened once, and decompressed once. Else
    the file as it is by its first bytes.

    Raises SourceError where it cannot be opened.
    """
    if file.member is None and 0 < file.stored <= _HELD_BYTES:
        with open_stored(file) as stream:
            content = stream.read(_HELD_BYTES + 1)
        file = Held(**vars(file), content=content, is_decoded=False)
    file = identified(file)
    if isinstance(file, Held) and not file.front_to_back:
        return replace(file, is_decoded=True)
    decoded = _decoded(file) if file.stored <= _HELD_BYTES else None
    if decoded is None:
        return file
    return Held(**vars(file) | {"content": decoded, "is_decoded": True})


def identified(file: InputFile) -> InputFile:
    """The file with the compression that it has by its first bytes, if its name has none. Raises SourceError."""
    if file.format.jumps or not file.seekable:
        return file
    with open_stored(file) as stream:
        found = compression_of(stream.read(HEAD_BYTES))
    return replace(file, compression=found.name) if found else file


def _decoded(file: InputFile) -> bytes | None:
    """The content of a file; None where it is not little, or cannot be read to its end."""
    if isinstance(file, Held) and file.format.encoding == UTF8:
        compression = compression_of(file.content[:HEAD_BYTES], file.compression)
        if compression and (whole := decompressed(file.content, compression, _HELD_BYTES)) is not None:
            return whole
    blocks, room = [], _HELD_BYTES + 1
    with open_at(file) as stream:
        try:
            while room > 0 and (block := stream.read(room)):
                blocks.append(block)
                room -= len(block)
        except SourceError:  # what can be read before the damage is found by who reads it block by block
            return None
    return b"".join(blocks) if room > 0 else None


def _refuse_other(name: str, head: bytes, found: Format) -> None:
    """Raise SourceError for the first bytes of another format."""
    others = {each.name: each.suffixes[0] for each in FORMATS.values() if each.magic and head.startswith(each.magic)}
    if head.startswith(archive.MAGIC):
        others[archive.SUFFIX[1:]] = archive.SUFFIX
    if others and found.name not in others:
        what, suffixes = " or ".join(others), " or ".join(others.values())
        raise SourceError(f"{name}: it is a {what} file by its first bytes; rename it ({suffixes})")
