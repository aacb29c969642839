"""Parquet: a fragment is a run of rows of one row group."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import SourceError
from pipeline.source.chunk import HEAD_BYTES, Chunk, Selection, as_bytes, assemble
from pipeline.source.files import InputFile, open_native


def parse(file: InputFile, group: int, start: int, stop: int, first_row: int, selection: Selection) -> Chunk:
    """Rows start to stop of a row group, the first of which is row `first_row` of the file."""
    with _looking_up:
        found = _row_group(file, group, selection.columns)
    table = found.table().slice(start, stop - start)

    def raw(i: int) -> tuple[None, bytes]:
        return None, (table.column(selection.text[0])[i].as_py() or b"")[:HEAD_BYTES]

    return assemble(file.path, first_row + np.arange(len(table)), table, selection, raw)


_looking_up = threading.Lock()


@lru_cache(maxsize=2)
def _row_group(file: InputFile, group: int, columns: tuple[str, ...]) -> _RowGroup:
    """Size, time and hash are part of `file`, so that a long-lived worker never takes an old group from its memory."""
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


def metadata(stream: BinaryIO) -> tuple[pa.Schema, pq.FileMetaData]:
    """Schema and footer of an open Parquet file. Raises ArrowInvalid or OSError where it is none."""
    file = pq.ParquetFile(stream)
    return file.schema_arrow, file.metadata
