"""What columns a file has, and whether they are those that the job uses and its first file had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from pipeline.errors import SourceError, UsageError
from pipeline.source.chunk import Selection, is_textual
from pipeline.source.files import COMPRESSIONS, InputFile, kind_of, open_at
from pipeline.source.formats import csv, jsonl, parquet, text
from pipeline.source.records import BLOCK_BYTES, BOM

_DELIMITED = tuple(ending + packed for ending in (".csv", ".tsv") for packed in ("", *COMPRESSIONS))


class Shape(NamedTuple):
    """names: of a file's columns; None for a one-hot file. types: Arrow types by name. start: first byte of data."""

    names: tuple[str, ...] | None
    types: dict[str, pa.DataType]
    start: int


def shape_of(file: InputFile, selection: Selection) -> Shape:
    """Look at the file's footer or first records.

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
        _refuse_twice(file.path, schema.names)
        return Shape(tuple(schema.names), {f.name: _plain(f.type) for f in schema}, 0)
    block, final, failure = _first_block(file)
    start = len(BOM) if block.startswith(BOM) else 0
    block = block[start:]
    if file.format == "text":
        return Shape(text.COLUMNS, {}, start)
    if file.format == "jsonl":
        return Shape(_jsonl_names(block, final) or selection.columns or ("text",), {}, start)
    if selection.header is not None:
        found = csv.Dialect(file.delimiter, len(selection.header))(block, final)
        if len(found.starts) and len(found.problems) == len(found.starts):
            raise UsageError(f"{file.path}: --columns names {len(selection.header)} columns; {found.problems[0]}")
        return Shape(selection.header, {}, start)
    found = csv.Dialect(file.delimiter, None)(block, final)
    if not len(found.starts):
        if failure:
            raise failure
        what = "the file holds no record" if final else f"its first record is longer than {BLOCK_BYTES >> 20} MiB"
        raise SourceError(f"{file.path}: {what}")
    try:
        names = csv.fields_of(block[found.starts[0] : found.ends[0]], file.delimiter)
    except SourceError as error:
        raise SourceError(f"{file.path}: {error}") from error
    _refuse_twice(file.path, names)
    behind = int(found.starts[1]) if len(found.starts) > 1 else found.consumed
    return Shape(tuple(names), {}, start + behind)


def _refuse_twice(path: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{path}: two columns are called {twice!r}; rename one (a CSV's with --columns)")


def _jsonl_names(block: bytes, final: bool) -> tuple[str, ...]:
    """The keys of the first line that is an object; none where there is no such line."""
    found = jsonl.split_objects(block, final)
    keys = (jsonl.keys_of(block[s:e]) for s, e in zip(found.starts, found.ends, strict=True))
    return next((names for names in keys if names), ())


def _first_block(file: InputFile) -> tuple[bytes, bool, SourceError | None]:
    """The file's first bytes; whether they are all of it; and what cuts a damaged compressed file off behind them."""
    block = b""
    with open_at(file) as stream:
        try:
            while len(block) < BLOCK_BYTES:
                more = stream.read(BLOCK_BYTES - len(block))
                if not more:
                    return block, True, None
                block += more
        except SourceError as error:
            return block, False, error
    return block, False, None


def _plain(kind: pa.DataType) -> pa.DataType:
    """Strings of every layout count as one type."""
    return pa.string() if is_textual(kind) else kind


def resolve(path: str, shape: Shape, selection: Selection) -> Selection:
    """The selection for a job whose first file is this one. Raises UsageError."""
    if shape.names is None:
        if selection.ids or selection.truth or selection.text:
            raise UsageError(f"{path}: a one-hot file has no columns to name")
        return selection
    if selection.answers:
        raise UsageError(f"{path}: an answer file goes with a one-hot file only")
    if selection.header is not None and not path.lower().endswith(_DELIMITED):
        raise UsageError(f"{path}: its columns have names of their own; --columns is for a CSV or TSV without a header")
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
    if shape.names is None or expected.names is None:
        return None
    kind = kind_of(path)[0]
    missing = [name for name in selection.columns if name not in shape.names]
    if missing and kind != "jsonl":  # JSONL rows are looked at one by one
        have = ", ".join(shape.names) or "none"
        raise SourceError(f"{path}: no column {missing[0]!r} as in {other}; it has: {have}. It was not read")
    wanted = dict(zip(selection.ids, selection.id_types, strict=True))
    for name in selection.columns:
        held = shape.types.get(name, pa.string())
        if held != wanted.get(name, held if name == selection.truth else pa.string()):
            raise SourceError(f"{path}: column {name!r} holds {held}, unlike {other}. It was not read")
    if kind in ("jsonl", "text") or set(shape.names) == set(expected.names):
        return None
    return f"{path}: its columns differ from those of {other}; it was read by the columns that this job names"
