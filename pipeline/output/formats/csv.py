"""Parts as CSV files after RFC 4180, with a header: text is quoted, a null is an empty field without quotes, and a list
or struct is its JSON text.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
from pyarrow import csv

from pipeline.output.formats.plain import from_plain, to_plain, writable_type


def write(table: pa.Table) -> bytes:
    columns = [_flat(to_plain(column.combine_chunks())) for column in table.columns]
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.table(columns, table.column_names), sink, csv.WriteOptions(quoting_header="needed"))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def read(data: bytes, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Table:
    plain = {field.name: writable_type(field.type) for field in schema}
    table = csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            column_types={name: pa.string() if pa.types.is_nested(kind) else kind for name, kind in plain.items()},
            null_values=[""],
            true_values=["true"],
            false_values=["false"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    if table.column_names != schema.names:
        raise ValueError("its header names other columns than those of the job")
    chosen = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    arrays = [
        from_plain(_nested(table.column(field.name).combine_chunks(), plain[field.name]), field.type)
        for field in chosen
    ]
    return pa.table(arrays, chosen)


def _flat(column: pa.Array) -> pa.Array:
    """Lists and structs as JSON text."""
    if not pa.types.is_nested(column.type):
        return column
    encode = msgspec.json.Encoder().encode
    return pa.array([None if value is None else encode(value).decode() for value in column.to_pylist()], pa.string())


def _nested(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_nested(kind):
        return column
    return pa.array([None if text is None else msgspec.json.decode(text) for text in column.to_pylist()], kind)
