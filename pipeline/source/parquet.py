"""Parquet: a fragment is a run of rows of one row group."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import BinaryIO

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import SourceError
from pipeline.source.chunk import HEAD_BYTES, Chunk, Selection, assemble

_decoding = threading.Lock()


def parse(path: str, stamp: str, group: int, start: int, stop: int, first_row: int, selection: Selection) -> Chunk:
    """Rows start to stop of a row group, the first of which is row `first_row` of the file.

    stamp: changes when the file does, so that a long-lived worker never takes an old group from its memory.
    """
    with _decoding:  # a second thread waits for the group that the first decodes, instead of decoding it again
        table = _row_group(path, stamp, group, selection.columns)
    table = table.slice(start, stop - start)

    def raw(i: int) -> tuple[None, bytes]:
        value = table.column(selection.text[0])[i].as_py()
        head = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value or b""
        return None, head[:HEAD_BYTES]

    return assemble(path, first_row + np.arange(len(table)), table, selection, raw)


@lru_cache(maxsize=2)
def _row_group(path: str, _stamp: str, group: int, columns: tuple[str, ...]) -> pa.Table:
    """The columns of one row group, text as bytes: a string column may hold what is not UTF-8."""
    try:
        with fsspec.open(path, "rb") as stream:
            table = pq.ParquetFile(stream).read_row_group(group, columns=list(columns), use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: row group {group} cannot be read: {error}") from error
    for i, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            binary = table.column(i).cast(pa.large_binary())
            table = table.set_column(i, pa.field(field.name, pa.large_binary()), binary)
    return table


def metadata(stream: BinaryIO) -> tuple[pa.Schema, pq.FileMetaData]:
    """Schema and footer of an open Parquet file. Raises ArrowInvalid or OSError where it is none."""
    file = pq.ParquetFile(stream)
    return file.schema_arrow, file.metadata
