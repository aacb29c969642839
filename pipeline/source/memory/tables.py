"""Reads tables in memory as chunks: objects with Arrow's PyCapsule interface, pandas, Hugging Face datasets, and the
partitions of Dask DataFrames, which stay where they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
from numpy.typing import NDArray

from ...errors import BroadsheetError, UsageError, did_you_mean
from ..formats.tables import plain, table_chunk
from ..rows.chunk import Chunk, RowRange, Selection, concat
from ..rows.columns import fields_of, holding, projected
from ..rows.cutting import Cutting, gathered
from ..rows.join import why_not_text
from ..rows.labels import class_names_in, label_type
from ..rows.layouts import is_textual, plain_type
from ..rows.limits import LIMITS, Limits

MEMORY = "memory"
"""The value of the column `file` for rows that do not come from a file."""

_HELD_BY = ("pandas", "polars")
"""Libraries whose objects hold their rows, so that these can be read again. Objects of others with the same interface
may run a query.
"""

_DATASET_ROWS = 1_000
"""How many rows are taken from a Hugging Face dataset in one go, as its own methods do."""


@dataclass(frozen=True)
class Tables:
    """Rows as Arrow tables.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of all columns.
    rows : int or None
        The number of rows; None if they can be read only once.
    read : callable
        Yields the rows in tables, with the columns of these names, or with all columns for None.
    kind : str
        The type of the object that holds the rows, for messages.

    """

    schema: pa.Schema
    rows: int | None
    read: Callable[[list[str] | None], Iterator[pa.Table]]
    kind: str = "Table"

    @property
    def digest(self) -> str:
        """The sha256 of columns and rows. It does not depend on batches, views and dictionaries."""
        digest = hashlib.sha256(str(self.schema.names).encode())
        for table in self.read(None):
            for batch in plain(table).combine_chunks().to_batches(max_chunksize=1 << 16):
                digest.update(batch.serialize())
        return digest.hexdigest()

    def resolve(self, selection: Selection) -> Selection:
        """Return the selection with its default text column and the types of its kept columns. Raises UsageError."""
        return resolve(self.schema, selection)

    def chunks(self, selection: Selection, chunk_rows: int, limits: Limits = LIMITS) -> Iterator[Chunk]:
        """Yield the rows in chunks of up to `chunk_rows` rows with up to `limits.chunk_bytes` bytes of text. They do
        not depend on where batches begin. Without rows, yield one empty chunk.
        """
        row = 0
        for held in gathered(self._pieces(selection, chunk_rows, limits), chunk_rows):
            yield _chunk_of(held, row, selection, limits)
            row += sum(map(len, held))
        if not row:
            none = projected(self.schema.empty_table(), selection.columns)
            yield _chunk_of([plain(none)], row, selection, limits)

    def _pieces(self, selection: Selection, max_rows: int, limits: Limits) -> Iterator[tuple[pa.Table, int, bool]]:
        """Yield pieces with the selection's columns, the rows of each, and whether it begins a new chunk."""
        cutting = Cutting(max_rows, limits.chunk_bytes)
        for table in self.read(holding(self.schema, selection.columns)):
            for at in range(0, len(table), max_rows):
                piece = plain(projected(table.slice(at, max_rows), selection.columns))
                for first, last, new in cutting.cut(np.minimum(_text_bytes(piece, selection), selection.most_held)):
                    yield piece.slice(first, last - first), last - first, new


def _text_bytes(table: pa.Table, selection: Selection) -> NDArray[np.int64]:
    """Return the bytes of text in each row, int64 [N]."""
    sizes = np.zeros(len(table), np.int64)
    for name in selection.text:
        if is_textual(table.column(name).type):  # a template also joins numbers, which are short
            sizes += pc.fill_null(pc.binary_length(table.column(name)), 0).to_numpy()
    return sizes


def _chunk_of(tables: list[pa.Table], row: int, selection: Selection, limits: Limits) -> Chunk:
    """Make a chunk of the rows of tables; the first is row `row`. If long texts are cut, work part by part, so that the
    whole texts are not in memory twice.
    """
    table = pa.concat_tables(tables)
    if not selection.reads or selection.kept_columns:
        return table_chunk(table, MEMORY, row, selection)
    cutting = Cutting(len(table), limits.part_bytes)
    parts = [table.slice(first, last - first) for first, last, _ in cutting.cut(_text_bytes(table, selection))]
    chunks = []
    for part in parts or [table]:
        chunks.append(table_chunk(part, MEMORY, row, selection))
        row += len(part)
    return concat(chunks)


def as_tables(source: Any) -> Tables | None:
    """Return the rows of a pandas Series or DataFrame, of an Arrow array, batch, table or dataset, of a Hugging Face
    dataset, or of any object with Arrow's PyCapsule interface.

    Return None for anything else, for a pandas object with a column of several types, and for a Hugging Face dataset
    that does not give the types of its columns. Rows without column names get the column "text". Raises UsageError if
    the rows cannot be read.
    """
    kind = type(source).__name__
    try:
        if isinstance(source, pa_dataset.Dataset):
            return _of_dataset(source)
        if isinstance(source, pa.Table):
            return of_table(source)
        if isinstance(source, pa.RecordBatch):
            return of_table(pa.Table.from_batches([source]), kind)
        if isinstance(source, pa.Array | pa.ChunkedArray):
            return of_table(pa.table({"text": source}), kind)
        if is_pandas(source, "DataFrame", "Series"):
            return _of_pandas(source)
        library = type(source).__module__.partition(".")[0]
        if library == "datasets" and hasattr(source, "features"):
            return _of_hugging_face(source) if source.features else None
        if hasattr(source, "__arrow_c_stream__"):
            return _of_stream(source, held=library in _HELD_BY)
        if hasattr(source, "__arrow_c_array__"):
            return of_table(_of_capsule(source), kind)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise UsageError(f"the {kind} cannot be read as text: {error}") from error
    return None


def of_table(table: pa.Table, kind: str = "Table") -> Tables:
    """Return the rows of a table."""

    def read(columns: list[str] | None) -> Iterator[pa.Table]:
        yield table if columns is None else table.select(columns)

    return Tables(table.schema, len(table), read, kind)


def _of_dataset(dataset: pa_dataset.Dataset) -> Tables:
    def read(columns: list[str] | None) -> Iterator[pa.Table]:
        return (pa.Table.from_batches([batch]) for batch in dataset.to_batches(columns=columns))

    return Tables(dataset.schema, dataset.count_rows(), read, "Dataset")


def is_pandas(source: Any, *kinds: str) -> bool:
    return type(source).__module__.partition(".")[0] == "pandas" and type(source).__name__ in kinds


def _of_pandas(source: Any) -> Tables | None:
    """Return None if a column holds values of several types."""
    kind = type(source).__name__
    try:
        if kind == "Series":
            return of_table(pa.table({"text": pa.Array.from_pandas(source)}), kind)
        if not len(source):  # an empty column of pandas has the type double
            return of_table(pa.table({str(name): pa.array([], pa.string()) for name in source.columns}), kind)
        return of_table(pa.Table.from_pandas(source, preserve_index=False), kind)
    except (ValueError, TypeError, pa.ArrowException):
        return None


def _of_capsule(source: Any) -> pa.Table:
    """Return a table of a batch, or of an array, which has no column names."""
    try:
        return pa.Table.from_batches([pa.record_batch(source)])
    except (TypeError, pa.ArrowException):
        return pa.table({"text": pa.array(source)})


def _of_stream(source: Any, held: bool) -> Tables:
    """Return the rows of Arrow's stream interface, batch after batch. held: whether the object gives the same rows
    again.
    """
    kind = type(source).__name__
    try:
        reader = pa.RecordBatchReader.from_stream(source)
    except pa.ArrowInvalid:  # it has no columns, like a Series of Polars
        return of_table(pa.table({"text": pa.chunked_array(source)}), kind)
    except Exception as error:  # a database raises errors of its own
        raise UsageError(f"the {kind} cannot be read: {error}") from error
    if held:
        return of_table(reader.read_all(), kind)

    def read(columns: list[str] | None) -> Iterator[pa.Table]:
        row = 0
        try:
            for batch in reader:
                table = pa.Table.from_batches([batch])
                yield table if columns is None else table.select(columns)
                row += len(batch)
        except (OSError, pa.ArrowException) as error:
            raise BroadsheetError(f"the {kind} failed after {row:,} rows: {error}") from error

    return Tables(reader.schema, None, read, kind)


def _of_hugging_face(source: Any) -> Tables:
    """Return the rows of a Hugging Face dataset, with its selection and order of rows. A streamed one can be read only
    once.
    """
    names = {name: f.names for name, f in source.features.items() if type(f).__name__ == "ClassLabel"}

    def read(columns: list[str] | None) -> Iterator[pa.Table]:
        chosen = source if columns is None else source.select_columns(columns)
        for table in chosen.with_format("arrow").iter(_DATASET_ROWS):
            yield _with_class_names(table, names)

    schema = _with_class_names(source.features.arrow_schema.empty_table(), names).schema
    rows = len(source) if hasattr(source, "__len__") else None
    return Tables(schema, rows, read, type(source).__name__)


def _with_class_names(table: pa.Table, names: dict[str, list[str]]) -> pa.Table:
    """Return the table with the names of classes in place of their numbers, which count from 0. The number -1 stands
    for none.
    """
    for i, name in enumerate(table.column_names):
        if name in names:
            codes = table.column(i).combine_chunks()
            codes = pc.if_else(pc.less(codes, 0), pa.scalar(None, codes.type), codes)
            table = table.set_column(i, name, pc.take(pa.array(names[name], pa.string()), codes))
    return table


def resolve(schema: pa.Schema, selection: Selection, within: Mapping[str, pa.DataType] | None = None) -> Selection:
    """Return the selection with its default text column, and its kept columns with their types. within: the types of
    fields within columns, by names with dots, if the schema does not have them.

    Raises UsageError for a missing column.
    """
    unnamed = not selection.text
    selection = selection if selection.text else replace(selection, text=("text",))
    if selection.keep_all:
        selection = replace(selection, kept_columns=tuple(dict.fromkeys((*selection.kept_columns, *schema.names))))
    kinds = fields_of(schema)
    kinds |= {name: kind for name, kind in (within or {}).items() if name not in kinds}
    for name in selection.columns:
        if name not in kinds:
            remedy = " (--text-column names another)" if unnamed and name == "text" else ""
            there = f"there are: {', '.join(kinds) or 'none'}{did_you_mean(name, kinds)}"
            raise UsageError(f"no column {name!r}{remedy}; {there}")
        if schema.names.count(name) > 1:
            raise UsageError(f"two columns are called {name!r}: rename one")
    for name in selection.text:
        if why := why_not_text(name, kinds[name], selection.join):
            raise UsageError(why)
    types = tuple(
        label_type(kinds[name]) if name in selection.labels else _written(kinds[name])
        for name in selection.kept_columns
    )
    names = class_names_in(schema)
    class_names = tuple((name, names[name]) for name in (*selection.labels, selection.truth) if name in names)
    return replace(selection, kept_types=types, class_names=class_names)


def _written(kind: pa.DataType) -> pa.DataType:
    """Return the type of a kept column: in one layout, without a dictionary, and string if it has only nulls."""
    kind = plain_type(kind.value_type if pa.types.is_dictionary(kind) else kind)
    return pa.string() if pa.types.is_null(kind) else kind


def partition_chunk(partition: Any, number: int, name: str, selection: Selection) -> Chunk:
    """Make a chunk of one partition, a pandas DataFrame, of a Dask DataFrame. The column `file` names the partition.
    name: the chunk's name.
    """
    table, file = pa.Table.from_pandas(partition, preserve_index=False), f"partition {number}"
    sources = (RowRange(file, 0, len(table)),)
    return replace(table_chunk(table, file, 0, selection), name=name, sources=sources, index=partition.index)


def dask_selection(frame: Any, selection: Selection) -> Selection:
    """Resolve the selection with the columns of a Dask DataFrame. Raises UsageError."""
    return resolve(pa.Schema.from_pandas(frame._meta, preserve_index=False), selection)
