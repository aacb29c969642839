"""Gives the rows of a job, which are in memory or in its output folder.

In memory, each row of the input occurs once. A folder holds the labelled and the quarantined rows separately. Rows in
memory can be joined by position to the frame that was classified, which is one of pandas, Polars or Arrow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from ..errors import BroadsheetError, UsageError, install
from ..output.columns import REASON, ChunkRows, rows_set_aside
from ..output.commit import committed_rows, quarantine_table
from ..output.folder import OutputFolder
from ..output.layout import QUARANTINE
from ..output.store import Location
from ..source.memory.items import as_items
from ..source.memory.tables import MEMORY, as_tables
from ..source.rows.chunk import QUARANTINE_SCHEMA, Chunk, RowRange, Selection
from ..source.rows.columns import may_hold
from ..source.rows.limits import LIMITS

if TYPE_CHECKING:
    import pandas as pd

    from ..output.select import OneFile

Frame = TypeVar("Frame")
"""A pandas DataFrame, a Polars DataFrame or a pyarrow Table."""

_AGAIN = "Give the frame that was classified, as it was"


class Results:
    """The rows of a job.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the job's parts.
    folder : OutputFolder or None
        The output folder; None for rows in memory.
    job : str
        The id of the job.
    source : object
        The input, which rows in memory may be joined to.
    selection : Selection
        The selection that took the texts from the input.

    """

    def __init__(
        self, schema: pa.Schema, folder: OutputFolder | None, job: str, source: Any, selection: Selection
    ) -> None:
        self._schema = schema if folder else schema.append(REASON)
        self._folder = folder
        self._job = job
        self._selection = selection
        pandas = sys.modules.get("pandas")  # a user who has a pandas object has imported pandas
        indexed = pandas is not None and isinstance(source, pandas.DataFrame | pandas.Series)
        self._index_of_source: pd.Index | None = source.index if indexed else None
        self._copied = len(selection.row_schema)  # columns before the label: `file`, `row` and the kept ones
        self._chunks: dict[str, ChunkRows] = {}
        self._written: pa.Table | None = None

    def add(self, chunk: str, rows: ChunkRows) -> None:
        """Keep the rows of a chunk of results in memory. chunk: the name of the chunk."""
        self._chunks[chunk] = rows

    def set_aside(self, chunk: str, sources: Sequence[RowRange], reason: str) -> None:
        """Keep the rows of a chunk without a result, if there is no output folder."""
        if self._folder is None:
            self.add(chunk, ChunkRows(rows_set_aside(self._schema, sources, reason), QUARANTINE_SCHEMA.empty_table()))

    def write(self, file: OneFile, keep_folder: bool) -> None:
        """Write the rows into one file. If the folder is not kept, the rows stay in memory."""
        rows = self.rows()
        file.write(rows)
        if not keep_folder:
            self._written = rows
            file.remove_folder()

    def rows(self) -> pa.Table:
        """Return the rows in input order: every row in memory, or the labelled rows of a folder."""
        if self._written is not None:
            return self._written
        if self._folder is None:
            tables = [rows.table for rows in self._in_order()]
        else:
            counts, chunks = self._folder.counts(self._job), self._folder.entries(self._job).chunks
            entries = [entry for _, entry in sorted(chunks.items()) if counts(entry.file_name)]
            tables = [committed_rows(self._folder.store, entry, self._schema) for entry in entries]
        return pa.concat_tables([self._schema.empty_table(), *tables])

    def frame(self) -> pd.DataFrame:
        """Return `rows` as a pandas DataFrame, with the index of the input."""
        rows = self.rows()
        frame = as_pandas(rows)
        index = self._index(rows)
        return frame if index is None else frame.set_axis(index)

    def _index(self, rows: pa.Table) -> pd.Index | None:
        """Return the index of the input for these rows; None if the input has no index."""
        index = self._index_of_source
        if index is not None:
            return index if len(index) == len(rows) else index.take(rows["row"].to_numpy())
        chunks = ((chunk.index, chunk.table) for chunk in self._in_order())
        partitions = [
            chunk_index.take(table["row"].to_numpy()) for chunk_index, table in chunks if chunk_index is not None
        ]
        return partitions[0].append(partitions[1:]) if partitions else None

    def join(self, frame: Frame, suffix: str | None) -> Frame:
        """Return the frame with the columns that the job computed. Raises UsageError if the frame has other rows."""
        refuse_taken(frame, self._schema.names[self._copied :], suffix)
        if self._folder is not None:
            raise UsageError(
                f"the rows of this job are in {self._folder.path}, not in memory: join them by file and row, as "
                "docs/output.md shows, or classify without an output folder"
            )
        rows = self.rows()
        _refuse_other_rows(frame, len(rows), self._index_of_source)
        self._refuse_other_texts(frame)
        joined: Frame = with_columns(frame, rows.drop_columns(self._schema.names[: self._copied]), suffix)
        return joined

    def _refuse_other_texts(self, frame: Any) -> None:
        """Raise UsageError if a frame has other texts than those that were classified, or in another order."""
        wanted = replace(self._selection, kept_columns=(), kept_types=(), truth=None)
        names = [str(name) for name in _names(frame)]  # Arrow has strings as names
        # The texts of a list have no name, so they may be in any column.
        is_named = all(may_hold(names, [name]) for name in wanted.text)
        choices = [wanted.text] if is_named or wanted.join else [(name,) for name in names]
        chunks = [texts for text in choices if (texts := _texts_of(frame, replace(wanted, text=text))) is not None]
        other = [self._first_difference(texts) for texts in chunks]
        if not other:
            raise UsageError(f"the frame has no column with the texts that were classified. {_AGAIN}")
        if None not in other:
            first, last = max(rows for rows in other if rows)
            raise UsageError(
                f"rows {first:,} to {last:,} of the frame have other texts than those that were classified, or in "
                f"another order. {_AGAIN}"
            )

    def _first_difference(self, texts: Chunk) -> tuple[int, int] | None:
        """Return the first and the last row of the first chunk that had other texts; None if there is no such chunk."""
        at = 0
        for chunk in self._in_order():
            rows = len(chunk.table)
            if chunk.texts and _part(texts, at, rows).digest != chunk.texts:
                return at, at + rows - 1
            at += rows
        return None

    def quarantined(self) -> pa.Table:
        """Return the quarantined rows in input order: file, row, byte_offset, reason, head."""
        return pa.concat_tables([QUARANTINE_SCHEMA.empty_table(), *self._quarantined()])

    def first_quarantined(self, count: int) -> list[dict[str, Any]]:
        """Return the first quarantined rows, without reading all of them."""
        rows: list[dict[str, Any]] = []
        for table in self._quarantined():
            rows += table.slice(0, count - len(rows)).to_pylist()
            if len(rows) == count:
                break
        return rows

    def each_quarantined(self, limit: int) -> Iterator[tuple[str, str]]:
        """Yield the file and the reason of each quarantined row, for at most `limit` rows."""
        left = limit
        for table in self._quarantined():
            part = table.slice(0, left)
            yield from zip(part.column("file").to_pylist(), part.column("reason").to_pylist(), strict=True)
            left -= len(part)
            if not left:
                return

    def _quarantined(self) -> Iterator[pa.Table]:
        if self._folder is None:
            yield from (rows.quarantine for rows in self._in_order())
        else:
            yield from (quarantine_table(data, path) for data, path in self._quarantine_files(self._folder))

    def _in_order(self) -> Iterator[ChunkRows]:
        return (rows for _, rows in sorted(self._chunks.items()))

    def _quarantine_files(self, folder: OutputFolder) -> Iterator[tuple[bytes, Location]]:
        """Return the content and the path of each quarantine file of this job.

        Other files are left out, because a job that was overwritten may still have written there.
        """
        names = filter(folder.counts(self._job), folder.store.files(QUARANTINE))
        return ((folder.store.read(name), folder.path / name) for name in names)


def is_frame(source: Any) -> bool:
    """Return whether columns can be added to an object."""
    return isinstance(source, pa.Table) or _is_pandas(source) or _is_polars(source)


def refuse_taken(frame: Any, names: Sequence[str], suffix: str | None) -> None:
    """Raise UsageError if the object is not a frame, or if it has a column of one of these names."""
    if not is_frame(frame):
        kind = f"{type(frame).__module__.partition('.')[0]} {type(frame).__name__}"
        remedy = "give a pandas DataFrame, a Polars DataFrame or a pyarrow Table"
        raise UsageError(f"columns cannot be added to a {kind}: {remedy}")
    for name in _renamed(frame, names, suffix):
        if name in _names(frame):
            remedy = "" if suffix else ", or pass suffix='_predicted', for example"
            raise UsageError(f"the frame has a column {name!r} already: rename it{remedy}")


def _refuse_other_rows(frame: Any, rows: int, index: pd.Index | None) -> None:
    """Raise UsageError if a frame has another number of rows, or another index, than the rows that were classified."""
    if len(frame) != rows:
        fewer = "; results of a job with --limit or --where are joined by `row`" if rows < len(frame) else ""
        raise UsageError(f"the frame has {len(frame):,} rows, the job's results have {rows:,}. {_AGAIN}{fewer}")
    if index is not None and _is_pandas(frame) and not frame.index.equals(index):
        raise UsageError(f"the frame has another index than the rows that were classified. {_AGAIN}")


def _texts_of(frame: Any, selection: Selection) -> Chunk | None:
    """Return the texts of a frame as `classify` takes them; None if the columns hold no texts."""
    try:
        held = as_tables(frame) or as_items(frame)
        chunks = list(held.chunks(selection, len(frame) + 1, replace(LIMITS, chunk_bytes=sys.maxsize)) if held else ())
    except (BroadsheetError, pa.ArrowException):
        return None
    return chunks[0] if chunks else None


def _part(chunk: Chunk, first: int, count: int) -> Chunk:
    """Return the part of a chunk, whose rows start at 0, with the rows from `first` to `first + count`."""
    begin, end = np.searchsorted(chunk.rows.column("row").to_numpy(), [first, first + count])
    sources = (RowRange(MEMORY, first, count),)
    assert isinstance(chunk.text, pa.Array)
    text, rows = chunk.text.slice(begin, end - begin), chunk.rows.slice(begin, end - begin)
    prepared = {name: texts[begin:end] for name, texts in chunk.prepared.items()}
    return replace(chunk, text=text, rows=rows, sources=sources, prepared=prepared)


def with_columns(frame: Any, added: pa.Table, suffix: str | None) -> Any:
    """Return the frame with these columns after its own."""
    added = added.rename_columns(_renamed(frame, added.column_names, suffix))
    if isinstance(frame, pa.Table):
        for field, column in zip(added.schema, added.columns, strict=True):
            frame = frame.append_column(field, column)
        return frame
    if _is_polars(frame):
        return frame.hstack(type(frame)(added).get_columns())
    return frame.assign(**{name: column.array for name, column in as_pandas(added).items()})


def as_pandas(table: pa.Table) -> pd.DataFrame:
    """Return a table as a pandas DataFrame. Columns of integers or booleans with nulls have a nullable type.

    Raises UsageError if pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise UsageError(f"a DataFrame needs pandas ({error}): {install('dataframe')}") from error
    nullable = {getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")() for name in _INTEGERS}
    nullable[pa.bool_()] = pd.BooleanDtype()
    frame = table.to_pandas()
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count and column.type in nullable:
            frame[name] = column.to_pandas(types_mapper=nullable.get)
    return frame


_INTEGERS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")


def _is_pandas(source: Any) -> bool:
    pandas = sys.modules.get("pandas")  # a user who has one of its frames has imported it
    return pandas is not None and isinstance(source, pandas.DataFrame)


def _is_polars(source: Any) -> bool:
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(source, polars.DataFrame)


def _names(frame: Any) -> list[Any]:
    return frame.column_names if isinstance(frame, pa.Table) else list(frame.columns)


def _renamed(frame: Any, names: Sequence[str], suffix: str | None) -> list[str]:
    """Return the names, with the suffix added to each name that the frame has already."""
    return [name + suffix if suffix and name in _names(frame) else name for name in names]
