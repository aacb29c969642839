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
from pipeline.source.files import InputFile, open_at

_decoding = threading.Lock()


def parse(file: InputFile, group: int, start: int, stop: int, first_row: int, selection: Selection) -> Chunk:
    """Rows start to stop of a row group, the first of which is row `first_row` of the file."""
    with _decoding:  # a second thread waits for the group that the first decodes, instead of decoding it again
        table = _row_group(file, group, selection.columns)
    table = table.slice(start, stop - start)

    def raw(i: int) -> tuple[None, bytes]:
        return None, (table.column(selection.text[0])[i].as_py() or b"")[:HEAD_BYTES]

    return assemble(file.path, first_row + np.arange(len(table)), table, selection, raw)


@lru_cache(maxsize=2)
def _row_group(file: InputFile, group: int, columns: tuple[str, ...]) -> pa.Table:
    """The columns of one row group, text as bytes. Size, time and hash are part of `file`, so that a long-lived worker
    never takes an old group from its memory.
    """
    try:
        with open_at(file) as stream:
            table = pq.ParquetFile(stream).read_row_group(group, columns=list(columns), use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{file.path}: row group {group} cannot be read: {error}") from error
    return as_bytes(table)


def metadata(stream: BinaryIO) -> tuple[pa.Schema, pq.FileMetaData]:
    """Schema and footer of an open Parquet file. Raises ArrowInvalid or OSError where it is none."""
    file = pq.ParquetFile(stream)
    return file.schema_arrow, file.metadata
