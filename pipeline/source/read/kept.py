"""The columns that are copied to the output: which types hold which, and values as the type of their column.

A value becomes text by itself, whatever its neighbours are: so the text does not depend on how rows are chunked.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import UsageError

_STRINGS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """A column's type as it is copied: the same, with one layout for strings, bytes and dictionaries of strings."""
    if pa.types.is_dictionary(kind):
        value = plain_type(kind.value_type)
        return pa.dictionary(pa.int32(), value) if value == pa.string() else value
    if any(test(kind) for test in _STRINGS):
        return pa.string()
    return pa.binary() if any(test(kind) for test in _BYTES) else kind


def is_held_by(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether a column of `kind` can hold every value of one of type `other`."""
    types = pa.types
    kind, other = (each.value_type if types.is_dictionary(each) else each for each in (kind, other))
    if kind in (other, pa.string()) or types.is_null(other):
        return True
    if types.is_integer(kind) and types.is_integer(other):
        signed = types.is_signed_integer(kind), types.is_signed_integer(other)
        return kind.bit_width > other.bit_width and signed != (False, True)
    return bool(types.is_floating(kind) and types.is_floating(other) and kind.bit_width > other.bit_width)


def type_of_both(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The one of two types that holds every value of the other; else strings."""
    if is_held_by(kind, other):
        return kind
    return other if is_held_by(other, kind) else pa.string()


def copied(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as `kind`, which must hold those of their type (`is_held_by`). Raises UsageError where it does not.

    As text, numbers and dates are written as Arrow does (1.0 as "1"), moments in the form of ISO 8601, bytes of fixed
    size in hexadecimal, lists and the like as JSON.
    """
    try:
        if pa.types.is_null(column.type):
            return pa.nulls(len(column), kind)
        if kind == pa.string() and not any(test(column.type) for test in (*_STRINGS, *_BYTES)):
            return _as_text(column)
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"a kept column of {column.type} cannot be written as {kind}: {error}") from error


def _as_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([None if value is None else value.hex() for value in column.to_pylist()], pa.string())
    if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
        values = column.to_pylist()
        texts = [None if v is None else json.dumps(v, ensure_ascii=False, default=_json_value) for v in values]
        return pa.array(texts, pa.string())
    return column.cast(pa.string())


def _json_value(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)
