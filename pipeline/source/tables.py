"""Articles that are in memory: lists, Arrow, pandas; and Dask DataFrames, whose partitions stay where they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pa_dataset

from pipeline.errors import UsageError
from pipeline.source.chunk import HEAD_BYTES, Chunk, Selection, as_bytes, assemble, is_textual

MEMORY = "memory"
"""The value of the column `file` for rows that do not come from a file."""


@dataclass(frozen=True)
class Tables:
    """A table or dataset, which can be read any number of times. schema: of all its columns."""

    source: pa.Table | pa_dataset.Dataset
    rows: int

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    def read(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        if isinstance(self.source, pa.Table):
            yield self.source if columns is None else self.source.select(columns)
        else:
            for batch in self.source.to_batches(columns=columns):
                yield pa.Table.from_batches([batch])


def digest_of(tables: Tables) -> str:
    """sha256 of columns and rows, however they are laid out in batches and dictionaries."""
    digest = hashlib.sha256(str(tables.schema.names).encode())
    for table in tables.read():
        plain = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
        table = pa.table(plain, table.schema.names).combine_chunks()
        for batch in table.to_batches(max_chunksize=1 << 16):
            digest.update(batch.serialize())
    return digest.hexdigest()


def table_chunks(tables: Tables, selection: Selection, chunk_rows: int) -> Iterator[Chunk]:
    """The rows in chunks of `chunk_rows`; one empty chunk where there are none."""
    held: list[pa.Table] = []
    count = row = 0
    for table in tables.read(list(selection.columns)):
        while len(table):
            piece = table.slice(0, chunk_rows - count)
            held.append(piece)
            count, table = count + len(piece), table.slice(len(piece))
            if count == chunk_rows:
                yield table_chunk(pa.concat_tables(held), MEMORY, row, selection)
                held, count, row = [], 0, row + count
    if held or not row:
        schema = pa.schema([tables.schema.field(name) for name in selection.columns])
        yield table_chunk(pa.concat_tables([schema.empty_table(), *held]), MEMORY, row, selection)


def table_chunk(table: pa.Table, file: str, row: int, selection: Selection) -> Chunk:
    """A chunk of a table's rows, the first of which is row `row`."""
    table = as_bytes(table)
    texts = table.column(selection.text[0])

    def raw(i: int) -> tuple[None, bytes]:
        value = texts[i].as_py() or b""
        return None, (value.encode() if isinstance(value, str) else value)[:HEAD_BYTES]

    return assemble(file, row + np.arange(len(table)), table, selection, raw)


def as_tables(source: Any) -> Tables:
    """A list of strings, a pandas Series or DataFrame, an Arrow array, batch, table or dataset.

    What has no column names gets the column "text". Raises UsageError for anything else.
    """
    if isinstance(source, pa_dataset.Dataset):
        return Tables(source, source.count_rows())
    table = _as_table(source)
    return Tables(table, len(table))


def _as_table(source: Any) -> pa.Table:
    try:
        if isinstance(source, pa.Table):
            return source
        if isinstance(source, pa.RecordBatch):
            return pa.Table.from_batches([source])
        if isinstance(source, pa.Array | pa.ChunkedArray):
            return pa.table({"text": source})
        kind = type(source).__module__.partition(".")[0], type(source).__name__
        if kind == ("pandas", "DataFrame"):
            if not len(source):  # an empty column of pandas has the type double
                return pa.table({str(name): pa.array([], pa.string()) for name in source.columns})
            return pa.Table.from_pandas(source, preserve_index=False)
        if kind == ("pandas", "Series"):
            return pa.table({"text": pa.Array.from_pandas(source)})
        if kind == ("polars", "DataFrame"):
            return source.to_arrow()
        if isinstance(source, list | tuple):
            return pa.table({"text": pa.array(source, pa.large_string())})
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise UsageError(f"the {type(source).__name__} cannot be read as text: {error}") from error
    raise UsageError(
        f"cannot classify a {type(source).__name__}: give paths, a list of strings, a pandas Series or DataFrame, "
        "an Arrow table or dataset, or a Dask DataFrame"
    )


def resolve(schema: pa.Schema, selection: Selection) -> Selection:
    """The selection with its default text column, and the kept columns with their types.

    Raises UsageError for a missing column.
    """
    selection = selection if selection.text else replace(selection, text=("text",))
    if selection.keep_all:
        selection = replace(selection, kept=tuple(dict.fromkeys((*selection.kept, *schema.names))))
    for name in selection.columns:
        if name not in schema.names:
            raise UsageError(f"no column {name!r}; there are: {', '.join(schema.names) or 'none'}")
    for name in selection.text:
        kind = schema.field(name).type
        if not is_textual(kind):
            raise UsageError(f"the text column {name!r} holds {kind}, not strings")
    types = tuple(_written(schema.field(name).type) for name in selection.kept)
    return replace(selection, kept_types=types)


def _written(kind: pa.DataType) -> pa.DataType:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    types = pa.types
    strings = types.is_large_string(kind) or types.is_string_view(kind) or types.is_null(kind)
    return pa.string() if strings else kind


def partition_chunk(partition: Any, number: int, selection: Selection) -> Chunk:
    """A chunk of one partition, a pandas DataFrame, of a Dask DataFrame; `file` says which."""
    table = pa.Table.from_pandas(partition, preserve_index=False)
    return table_chunk(table, f"partition {number}", 0, selection)


def dask_selection(frame: Any, selection: Selection) -> Selection:
    """The selection resolved against a Dask DataFrame's columns. Raises UsageError."""
    return resolve(pa.Schema.from_pandas(frame._meta, preserve_index=False), selection)
