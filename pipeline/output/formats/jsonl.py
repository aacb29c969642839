"""Parts as JSON Lines: an object for each row, with every column. A NaN or an infinity is null, as JSON has neither."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from .plain import from_plain, to_plain, writable_type


def write(table: pa.Table) -> bytes:
    names = table.column_names
    columns = [to_plain(column.combine_chunks()).to_pylist() for column in table.columns]
    return msgspec.json.Encoder().encode_lines([dict(zip(names, row, strict=True)) for row in zip(*columns)])  # noqa: B905


def read(data: bytes, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Table:
    rows = msgspec.json.Decoder().decode_lines(data)
    if any(list(row) != schema.names for row in rows):
        raise ValueError("a line has other columns than the job")
    chosen = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    arrays = [
        from_plain(pa.array([row[field.name] for row in rows], writable_type(field.type)), field.type)
        for field in chosen
    ]
    return pa.table(arrays, chosen)
