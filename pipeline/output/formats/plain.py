"""Columns of any Arrow type as numbers, booleans, strings, and lists and structs of these, which text files can hold.

What is no number or boolean is text, as Arrow writes it ("2024-05-01 12:00:00"); bytes are base64, a duration is an
integer. A float32 becomes the float64 with the fewest digits that reads back as the same float32: 0.9, not
0.8999999761581421.
"""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .base import UnwritableType

_DAY = "1970-01-01 "


def writable_type(kind: pa.DataType) -> pa.DataType:
    """The type of `to_plain` of such a column. Raises UnwritableType for maps, unions and other rare types."""
    types = pa.types
    if types.is_dictionary(kind):
        return writable_type(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(writable_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, writable_type(field.type)) for field in kind])
    if types.is_boolean(kind) or types.is_integer(kind):
        return kind
    if types.is_floating(kind):
        return pa.float64()
    if types.is_duration(kind):
        return pa.int64()
    if _is_text(kind) or _is_bytes(kind) or types.is_temporal(kind) or types.is_decimal(kind) or types.is_null(kind):
        if types.is_interval(kind):
            raise UnwritableType(kind)
        return pa.string()
    raise UnwritableType(kind)


def to_plain(column: pa.Array) -> pa.Array:
    """Raises UnwritableType."""
    kind, types = column.type, pa.types
    target = writable_type(kind)
    if types.is_dictionary(kind):
        return to_plain(column.dictionary_decode())
    if types.is_list(target):
        return _list(column, to_plain(column.flatten()))
    if types.is_struct(target):
        return _struct(column, [to_plain(child) for child in column.flatten()], target)
    if types.is_float16(kind) or types.is_float32(kind):
        return _shortest(column)
    if _is_bytes(kind):
        texts = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
        return pa.array(texts, target)
    return column.cast(target)


def from_plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column of type `kind` again. Raises ValueError or pyarrow.ArrowException for other values."""
    types = pa.types
    if types.is_dictionary(kind):
        return from_plain(column, kind.value_type).cast(kind)
    if types.is_list(column.type):
        return _list(column, from_plain(column.flatten(), kind.value_type)).cast(kind)
    if types.is_struct(column.type):
        children = zip(column.flatten(), kind, strict=True)
        return _struct(column, [from_plain(child, field.type) for child, field in children], kind)
    if _is_bytes(kind):
        values = [None if text is None else base64.b64decode(text, validate=True) for text in column.to_pylist()]
        return pa.array(values, kind)
    if types.is_time(kind):
        unit = "ns" if types.is_time64(kind) else "ms"
        return pc.binary_join_element_wise(_DAY, column, "").cast(pa.timestamp(unit)).cast(kind)
    if types.is_float16(kind):
        return pa.array(column.to_numpy(zero_copy_only=False).astype(np.float16), kind, mask=_nulls(column))
    if types.is_null(kind):
        return pa.nulls(len(column))
    return column.cast(kind)


def _shortest(column: pa.Array) -> pa.Array:
    short = column.cast(pa.string()).cast(pa.float64())
    back = short.to_numpy(zero_copy_only=False).astype(column.type.to_pandas_dtype())
    same = back == column.to_numpy(zero_copy_only=False)  # it is rounded twice; a NaN is as it was in either
    return pc.if_else(pa.array(same), short, column.cast(pa.float64()))


def _list(column: pa.Array, values: pa.Array) -> pa.Array:
    """The lists of `column` with other values."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, mask=column.is_null())


def _struct(column: pa.Array, children: list[pa.Array], kind: pa.DataType) -> pa.Array:
    """The structs of `column` with other children."""
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())


def _nulls(column: pa.Array) -> np.ndarray:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )
