"""A job's rows: in memory, each row of the input once; or in its output folder, labelled and quarantined ones apart."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import UsageError
from ..output.columns import REASON, rows_set_aside
from ..output.commit import committed_rows, quarantine_table
from ..output.folder import OutputFolder
from ..output.layout import QUARANTINE, of_job
from ..output.store import Location
from ..source.chunk import QUARANTINE_SCHEMA, Selection
from .join import Frame, as_pandas, is_frame, refuse_other_frame, refuse_taken, with_columns

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Origin:
    """What rows in memory are joined by. index: of a pandas Series or DataFrame. frame: the rows, if they came in one,
    text: the names of its text columns. copied: how many columns come before the label: `file`, `row` and
    the kept ones.
    """

    index: pd.Index | None
    frame: Any
    text: tuple[str, ...]
    copied: int


def origin_of(source: Any, selection: Selection) -> Origin:
    """The origin of a job's rows."""
    pandas = sys.modules.get("pandas")  # whoever has a pandas object has imported it
    indexed = pandas is not None and isinstance(source, pandas.DataFrame | pandas.Series)
    frame = source if is_frame(source) else None
    return Origin(source.index if indexed else None, frame, selection.text, len(selection.row_schema))


@dataclass(frozen=True)
class _ChunkRows:
    """Those of a chunk: all, and those in quarantine. index: of a Dask DataFrame's partition."""

    table: pa.Table
    quarantine: pa.Table
    index: pd.Index | None


class Results:
    """The rows of a job. schema: of its parts. folder: the output folder; None for rows in memory. job: its id."""

    def __init__(self, schema: pa.Schema, folder: OutputFolder | None, job: str, origin: Origin) -> None:
        self._schema = schema if folder else schema.append(REASON)
        self._folder = folder
        self._job = job
        self._origin = origin
        self._chunks: dict[str, _ChunkRows] = {}

    def add(self, chunk: str, table: pa.Table, quarantine: pa.Table, index: pd.Index | None) -> None:
        """Keep the rows of a chunk of results in memory. index: of a Dask DataFrame's partition."""
        self._chunks[chunk] = _ChunkRows(table, quarantine, index)

    def set_aside(self, chunk: str, sources: Sequence[tuple[str, int, int]], reason: str) -> None:
        """Keep the rows of a chunk without a result, where there is no output folder."""
        if self._folder is None:
            self.add(chunk, rows_set_aside(self._schema, sources, reason), QUARANTINE_SCHEMA.empty_table(), None)

    def rows(self) -> pa.Table:
        """In input order: in memory every row, from a folder those that are labelled."""
        if self._folder is None:
            tables = [rows.table for rows in self._in_order()]
        else:
            chunks = sorted(self._folder.entries(self._job).chunks.items())
            tables = [committed_rows(self._folder.store, entry, self._schema) for _, entry in chunks]
        return pa.concat_tables([self._schema.empty_table(), *tables])

    def frame(self) -> pd.DataFrame:
        """`rows` as pandas has them, with the index of the input."""
        rows = self.rows()
        frame = as_pandas(rows)
        index = self._index(rows)
        return frame if index is None else frame.set_axis(index)

    def _index(self, rows: pa.Table) -> pd.Index | None:
        """The index of the input; None where it has none."""
        index = self._origin.index
        if index is not None:
            return index if len(index) == len(rows) else index.take(rows["row"].to_numpy())
        partitions = [
            chunk.index.take(chunk.table["row"].to_numpy()) for chunk in self._in_order() if chunk.index is not None
        ]
        return partitions[0].append(partitions[1:]) if partitions else None

    def join(self, frame: Frame, suffix: str | None) -> Frame:
        """The frame with the columns that the job computed. Raises UsageError for a frame that has other rows."""
        refuse_taken(frame, self._schema.names[self._origin.copied :], suffix)
        if self._folder is not None:
            raise UsageError(
                f"the rows of this job are in {self._folder.path}, not in memory: join them by file and row, as "
                "docs/output.md shows, or classify without an output folder"
            )
        rows = self.rows()
        origin = self._origin
        refuse_other_frame(frame, len(rows), origin.index, origin.frame, origin.text)
        joined: Frame = with_columns(frame, rows.drop_columns(self._schema.names[: self._origin.copied]), suffix)
        return joined

    def quarantined(self) -> pa.Table:
        """In input order: file, row, byte_offset, reason, head."""
        return pa.concat_tables([QUARANTINE_SCHEMA.empty_table(), *self._quarantined()])

    def first_quarantined(self, count: int) -> list[dict[str, Any]]:
        """The first quarantined rows, without reading them all."""
        found: list[dict[str, Any]] = []
        for table in self._quarantined():
            found += table.slice(0, count - len(found)).to_pylist()
            if len(found) == count:
                break
        return found

    def _quarantined(self) -> Iterator[pa.Table]:
        if self._folder is None:
            yield from (rows.quarantine for rows in self._in_order())
        else:
            yield from (quarantine_table(data, path) for data, path in self._quarantine_files(self._folder))

    def _in_order(self) -> Iterator[_ChunkRows]:
        return (rows for _, rows in sorted(self._chunks.items()))

    def _quarantine_files(self, folder: OutputFolder) -> Iterator[tuple[bytes, Location]]:
        """The job's own: one that was overwritten may still have written there."""
        return (
            (folder.store.read(name), folder.path / name)
            for name in folder.store.files(QUARANTINE)
            if of_job(name, self._job)
        )
