"""Parts as CSV files after RFC 4180, with a header: text is quoted, a null is an empty field without quotes, and a list
or struct is its JSON text. A list whose field names a separator is a text with that between the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from .plain import from_plain, to_plain, writable_type


def write(table: pa.Table) -> bytes:
    columns = [
        _flat(to_plain(column.combine_chunks()), _separator(field))
        for field, column in zip(table.schema, table.columns, strict=True)
    ]
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
        from_plain(_nested(table.column(field.name).combine_chunks(), plain[field.name], _separator(field)), field.type)
        for field in chosen
    ]
    return pa.table(arrays, chosen)


def _separator(field: pa.Field) -> str | None:
    """What is between the values of a list; None for JSON text."""
    found = (field.metadata or {}).get(b"separator")
    return None if found is None else found.decode()


def _flat(column: pa.Array, separator: str | None) -> pa.Array:
    """Lists and structs as JSON text, or joined by a separator."""
    if not pa.types.is_nested(column.type):
        return column
    if separator is not None:
        return pc.binary_join(column.cast(pa.list_(pa.string())), separator)
    encode = msgspec.json.Encoder().encode
    return pa.array([None if value is None else encode(value).decode() for value in column.to_pylist()], pa.string())


def _nested(column: pa.Array, kind: pa.DataType, separator: str | None) -> pa.Array:
    if not pa.types.is_nested(kind):
        return column
    if separator is not None:
        values = [text.split(separator) if text else [] for text in column.to_pylist()]
        return pa.array(values, pa.list_(pa.string())).cast(kind)
    return pa.array([None if text is None else msgspec.json.decode(text) for text in column.to_pylist()], kind)
