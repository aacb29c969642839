"""What columns a file has, and whether they are those that the job uses and its first file had."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from pipeline.errors import SourceError, UsageError
from pipeline.source import csv, jsonl, parquet, text
from pipeline.source.chunk import Selection
from pipeline.source.files import InputFile, open_at
from pipeline.source.records import BLOCK_BYTES, BOM


class Shape(NamedTuple):
    """names: of a file's columns; None for a one-hot file. types: Arrow types by name. start: first byte of data."""

    names: tuple[str, ...] | None
    types: dict[str, pa.DataType]
    start: int


def shape_of(file: InputFile, selection: Selection) -> Shape:
    """Look at the file's footer or first record.

    Raises SourceError where it cannot be read, UsageError where its fields are not those that --columns names.
    """
    if file.format == "onehot":
        return Shape(None, {}, 0)
    if file.format == "parquet":
        try:
            with open_at(file) as stream:
                schema, _ = parquet.metadata(stream)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{file.path}: not a readable Parquet file ({error})") from error
        return Shape(tuple(schema.names), {f.name: _plain(f.type) for f in schema}, 0)
    block, final = _first_block(file)
    start = len(BOM) if block.startswith(BOM) else 0
    block = block[start:]
    if file.format == "text":
        return Shape(text.COLUMNS, {}, start)
    split = jsonl.split_objects if file.format == "jsonl" else csv.Dialect(file.delimiter, None)
    found = split(block, final)
    if not len(found.starts):
        if final:
            raise SourceError(f"{file.path}: the file holds no record")
        raise SourceError(f"{file.path}: its first record is longer than {BLOCK_BYTES >> 20} MiB")
    record = block[found.starts[0] : found.ends[0]]
    if file.format == "jsonl":
        return Shape(jsonl.keys_of(record), {}, start)
    try:
        names = csv.fields_of(record, file.delimiter)
    except SourceError as error:
        raise SourceError(f"{file.path}: {error}") from error
    if selection.header is None:
        behind = int(found.starts[1]) if len(found.starts) > 1 else found.consumed
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise UsageError(f"{file.path}: two columns are called {twice!r}; name them with --columns")
        return Shape(tuple(names), {}, start + behind)
    if len(names) != len(selection.header):
        raise UsageError(
            f"{file.path}: its first record has {len(names)} fields, --columns names {len(selection.header)}"
        )
    return Shape(selection.header, {}, start)


def _first_block(file: InputFile) -> tuple[bytes, bool]:
    """The file's first bytes, and whether they are all of it. Of a damaged compressed file what can be had of them."""
    block = b""
    with open_at(file) as stream:
        try:
            while len(block) < BLOCK_BYTES:
                more = stream.read(BLOCK_BYTES - len(block))
                if not more:
                    return block, True
                block += more
        except SourceError:
            if not block:
                raise
    return block, False


def _plain(kind: pa.DataType) -> pa.DataType:
    """Strings of every layout count as one type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    textual = (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )
    return pa.string() if textual else kind


def resolve(path: str, shape: Shape, selection: Selection) -> Selection:
    """The selection for a job whose first file is this one. Raises UsageError."""
    if shape.names is None:
        if selection.ids or selection.truth or selection.text:
            raise UsageError(f"{path}: a one-hot file has no columns to name")
        return selection
    if not selection.text:
        selection = replace(selection, text=("text",))
    for name in selection.columns:
        if name not in shape.names:
            have = ", ".join(shape.names) or "none"
            asked = "--text-column names another" if selection.text == ("text",) else "it was asked for"
            raise UsageError(f"{path}: no column {name!r} ({asked}); it has: {have}")
    for name in selection.text:
        kind = shape.types.get(name, pa.string())
        if kind != pa.string():
            raise UsageError(f"{path}: the text column {name!r} holds {kind}, not strings")
    types = tuple(shape.types.get(name, pa.string()) for name in selection.ids)
    return replace(selection, id_types=types)


def difference(path: str, shape: Shape, first: tuple[str, Shape], selection: Selection) -> str | None:
    """A message where the file's columns are not the first file's. Raises SourceError where it cannot be read so."""
    other, expected = first
    if (shape.names is None) != (expected.names is None):
        raise SourceError(f"{path}: not of the same kind as {other}; classify it in a job of its own")
    if shape.names is None or shape == expected._replace(start=shape.start):
        return None
    missing = [name for name in selection.columns if name not in shape.names]
    if missing and not path.endswith((".jsonl", ".ndjson")):
        have = ", ".join(shape.names) or "none"
        raise SourceError(f"{path}: no column {missing[0]!r} as in {other}; it has: {have}. It was not read")
    wanted = dict(zip(selection.ids, selection.id_types, strict=True))
    for name in selection.columns:
        kind = shape.types.get(name, pa.string())
        if kind != wanted.get(name, kind if name == selection.truth else pa.string()):
            raise SourceError(f"{path}: column {name!r} holds {kind}, unlike {other}. It was not read")
    return f"{path}: its columns differ from those of {other}; it was read by the columns that this job names"
