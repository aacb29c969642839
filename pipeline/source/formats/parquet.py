"""Parquet: a fragment is a run of rows of one row group."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import SourceError
from pipeline.source.chunk import HEAD_BYTES, Chunk, Selection, as_bytes, assemble, is_textual
from pipeline.source.formats.base import FilePlan, Format, Fragment, InputFile, Scan, Schema, Seek
from pipeline.source.opening import open_at, open_native
from pipeline.telemetry.spans import Span


class Parquet(Format):
    name = "parquet"
    suffixes = (".parquet", ".pq")
    seeks = Seek.ROWS
    magic = b"PAR1\x15"  # the last byte begins the first Thrift header; no text begins with it

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        try:
            with open_at(file) as stream:
                schema = pq.ParquetFile(stream).schema_arrow
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{file.path}: not a readable Parquet file ({error})") from error
        # All string layouts count as one type.
        types = {f.name: pa.string() if is_textual(f.type) else f.type for f in schema}
        return Schema(tuple(schema.names), types)

    def plan(self, file: InputFile, schema: Schema, selection: Selection, chunk_rows: int, scan: Scan) -> FilePlan:
        with open_at(file) as stream:
            footer = pq.ParquetFile(stream).metadata
        fragments = []
        row = 0
        for group in range(footer.num_row_groups):
            about = footer.row_group(group)
            columns = (about.column(i) for i in range(about.num_columns))
            size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema in selection.columns)
            most = max(1, min(chunk_rows, self.limits.chunk_bytes * about.num_rows // max(size, 1)))
            for at in range(0, about.num_rows, most):
                count = min(most, about.num_rows - at)
                fragments.append(Fragment(file, at, at + count, row + at, count, group))
            row += about.num_rows
        return FilePlan(fragments)

    def read(self, fragment: Fragment, selection: Selection, spans: list[Span] | None = None) -> Iterator[Chunk]:
        with _looking_up:
            found = _row_group(fragment.file, fragment.group, selection.columns)
        table = found.table().slice(fragment.start, fragment.rows)

        def raw(i: int) -> tuple[None, bytes]:
            return None, (table.column(selection.text[0])[i].as_py() or b"")[:HEAD_BYTES]

        numbers = fragment.first_row + np.arange(len(table))
        yield assemble(fragment.file.path, numbers, table, selection, raw)


_looking_up = threading.Lock()


@lru_cache(maxsize=2)
def _row_group(file: InputFile, group: int, columns: tuple[str, ...]) -> _RowGroup:
    """Size, time and hash are part of `file`, so a long-lived worker never uses the cached group of an old file."""
    return _RowGroup(file, group, columns)


class _RowGroup:
    """The columns of one row group, text as bytes, decoded once: a second thread waits for the first."""

    def __init__(self, file: InputFile, group: int, columns: tuple[str, ...]) -> None:
        self._file, self._group, self._columns = file, group, columns
        self._decoding = threading.Lock()
        self._table: pa.Table | None = None

    def table(self) -> pa.Table:
        """Raises SourceError where it cannot be read."""
        with self._decoding:
            if self._table is None:
                self._table = as_bytes(self._read())
            return self._table

    def _read(self) -> pa.Table:
        path = self._file.path
        try:
            with open_native(self._file) as stream:
                return pq.ParquetFile(stream).read_row_group(
                    self._group, columns=list(self._columns), use_threads=False
                )
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{path}: row group {self._group} cannot be read: {error}") from error
