"""Handles columns of Arrow tables: text columns, and columns that are copied to the output.

A copied value becomes text by itself, whatever its neighbours are, so the text does not depend on how rows are chunked.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import pairwise
from math import isfinite
from operator import getitem
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import UsageError
from .compression import why_not_decoded
from .layouts import is_textual, plain_values

_FEW = 32
"""If fewer than one text in 32 is cut, the runs between the cut ones are copied, rather than all texts one by one."""

_DEEPEST = 8
"""How many levels of nested objects are searched for a column. An object may hold itself."""


def not_utf8(values: pa.Array, first: int = 0) -> list[int]:
    """Return which values are not UTF-8. values: large_binary. The search halves the values. first: the number of the
    first value.
    """
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        if len(values) == 1:
            return [first]
        half = len(values) // 2
        return not_utf8(values[:half], first) + not_utf8(values[half:], first + half)
    return []


_SPACE = pa.scalar(" ", pa.large_string())


def is_held_by(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether a column of type `kind` can hold every value of type `other`."""
    types = pa.types
    kind, other = (own.value_type if types.is_dictionary(own) else own for own in (kind, other))
    if kind in (other, pa.string()) or types.is_null(other):
        return True
    if types.is_integer(kind) and types.is_integer(other):
        signed = types.is_signed_integer(kind), types.is_signed_integer(other)
        return kind.bit_width > other.bit_width and signed != (False, True)
    return bool(types.is_floating(kind) and types.is_floating(other) and kind.bit_width > other.bit_width)


def type_of_both(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the one of two types that holds every value of the other, or else string. A dictionary
    holds only strings.
    """
    both = kind if is_held_by(kind, other) else other if is_held_by(other, kind) else pa.string()
    coded = {pa.types.is_dictionary(one) for one in (kind, other) if not pa.types.is_null(one)}
    return both.value_type if coded == {True, False} and pa.types.is_dictionary(both) else both


def copied(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert values to `kind`, which must hold those of their type (see `is_held_by`). Raises UsageError if it does
    not.

    As text, numbers and dates are written as Arrow does (1.0 as "1"), timestamps in the form of ISO 8601,
    bytes of fixed size in hexadecimal, UUIDs with hyphens, and lists and the like as JSON.
    """
    try:
        if pa.types.is_null(column.type):
            return pa.nulls(len(column), kind)
        if column.type == kind:
            return column
        column = plain_values(column)
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if value == pa.string() and not is_textual(column.type):
            column = _as_text(column)
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"a kept column of {column.type} cannot be written as {kind}: {error}") from error


def _as_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([None if value is None else value.hex() for value in column.to_pylist()], pa.string())
    if isinstance(kind, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())
    if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
        values = column.to_pylist()
        texts = [None if v is None else json.dumps(_in_json(v), ensure_ascii=False) for v in values]
        return pa.array(texts, pa.string())
    return column.cast(pa.string())


def _in_json(value: Any) -> Any:
    """Return a value that JSON has: null for a NaN or an infinity, and text for anything but a number, boolean, text or
    list.
    """
    if isinstance(value, dict):
        return {name: _in_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return finite(value) if isinstance(value, str | int | float | None) else str(value)


def finite(value: Any) -> Any:
    """Return the value, or None for a NaN or an infinity, which JSON does not have."""
    return None if isinstance(value, float) and not isfinite(value) else value


def refuse_uncopied(name: str, kind: pa.DataType) -> None:
    """Raise UsageError for a column of a type that cannot be copied. This includes types within lists and structs."""
    types = pa.types
    fields = [kind.field(i) for i in range(kind.num_fields)]
    twice = types.is_struct(kind) and len({field.name for field in fields}) < len(fields)
    extension = next((str(f.type) for f in fields if isinstance(f.type, pa.BaseExtensionType)), "")
    if twice or extension or types.is_union(kind) or types.is_run_end_encoded(kind):
        why = "fields of one name" if twice else extension or str(kind).partition("<")[0]
        raise UsageError(f"the column {name!r} cannot be copied, since it holds {why}: keep others by their names")
    for field in fields:
        refuse_uncopied(name, field.type)


def out_of_range(column: pa.Array) -> NDArray[np.int64]:
    """Return which rows hold a time that Arrow cannot write as text. This includes times within lists and structs."""
    kind, types = column.type, pa.types
    within = [np.empty(0, np.int64)]
    if types.is_struct(kind):
        within += [out_of_range(child) for child in column.flatten()]
    elif types.is_list(kind) or types.is_large_list(kind):
        parents = pc.list_parent_indices(column).to_numpy()
        within.append(parents[out_of_range(column.flatten())])
    elif types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind):
        # This also works for an unknown time zone.
        plain = column.cast(pa.timestamp(kind.unit)) if types.is_timestamp(kind) else column
        strange = pc.starts_with(plain.cast(pa.string()), "<value out of range")
        within.append(np.flatnonzero(pc.fill_null(strange, False)))
    return np.unique(np.concatenate(within))


def joined(texts: Sequence[pa.Array]) -> pa.Array:
    """Return the texts: the values of the only text column, or those of several, joined by a space and stripped."""
    if len(texts) == 1:
        return texts[0]
    text = pc.binary_join_element_wise(*texts, _SPACE, null_handling="replace", null_replacement="")
    return pc.utf8_trim_whitespace(text)


def beginnings(text: pa.Array, sizes: NDArray[np.int64], n_chars: NDArray[np.int64], count: int) -> pa.Array:
    """Return each text, large_string, up to `count` characters. sizes, n_chars: int64 [N], the bytes and characters of
    the texts.
    """
    long = np.flatnonzero(n_chars > count)
    if len(long) > len(text) // _FEW:
        return _beginnings(text, sizes, n_chars, count)
    if not len(long):
        return text
    cut = _beginnings(text.take(pa.array(long)), sizes[long], n_chars[long], count)
    pieces = [text[: long[0]]]
    for i, (here, following) in enumerate(pairwise([*long.tolist(), len(text)])):
        pieces += [cut[i : i + 1], text[here + 1 : following]]
    return pa.concat_arrays(pieces)


def _beginnings(text: pa.Array, sizes: NDArray[np.int64], n_chars: NDArray[np.int64], count: int) -> pa.Array:
    if n_chars.sum() == sizes.sum():  # each character is one byte
        return pc.binary_slice(text.view(pa.large_binary()), 0, count).view(pa.large_string())
    return pc.utf8_slice_codeunits(text, 0, count)


def characters(text: pa.Array, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the characters of each text, int64 [N]; 0 for nulls. text: large_string [N]. sizes: int64 [N], the bytes
    of the texts.
    """
    if _is_ascii(text):
        return sizes
    return np.asarray(pc.fill_null(pc.utf8_length(text), 0).to_numpy(), np.int64)


def _is_ascii(values: pa.Array) -> bool:
    """Whether these values, large_string or large_binary, are all ASCII."""
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset :] if len(values) else np.zeros(1, np.int64)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[len(values)]]
    return bool(data.max(initial=0) < 0x80)


def fields_of(schema: Iterable[pa.Field], before: str = "") -> dict[str, pa.DataType]:
    """Return the types of columns and, by names with dots, those of the fields of structs. A column with the same name
    wins.
    """
    types = {before + field_.name: field_.type for field_ in schema}
    for field_ in schema:
        if pa.types.is_struct(field_.type):
            types = {**types, **fields_of(field_.type, f"{before}{field_.name}."), **types}
    return types


def _way(schema: Iterable[pa.Field], name: str) -> list[str]:
    """Return the path to a column: its name, or the names of the struct and the fields within it. It is empty if there
    is no such column.
    """
    for field_ in sorted(schema, key=lambda field_: -len(field_.name)):
        if field_.name == name:
            return [name]
        within = field_.type if name.startswith(f"{field_.name}.") and pa.types.is_struct(field_.type) else ()
        if rest := _way(within, name.removeprefix(f"{field_.name}.")):
            return [field_.name, *rest]
    return []


def may_hold(columns: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the columns that may hold the named ones, judging by the names alone."""
    return [column for column in columns if any(f"{name}.".startswith(f"{column}.") for name in names)]


def holding(schema: Iterable[pa.Field], names: Iterable[str]) -> list[str]:
    """Return the columns that hold the named ones, each once. Names that do not exist are left out."""
    return list(dict.fromkeys(way[0] for name in names if (way := _way(schema, name))))


def projected(table: pa.Table | pa.RecordBatch, names: Iterable[str]) -> pa.Table:
    """Return a table of the named columns, which may be fields of structs. Names that do not exist are left out."""
    ways = {name: _way(table.schema, name) for name in names}
    return pa.table({name: _within(table.column(way[0]), way[1:]) for name, way in ways.items() if way})


def _within(column: pa.Array | pa.ChunkedArray, fields: list[str]) -> pa.Array | pa.ChunkedArray:
    if not fields:
        return column
    column.validate()  # a damaged file may have wrong buffers
    return pc.struct_field(column, fields)


def value_at(item: Mapping[str, Any], name: str) -> Any:
    """Return the value of a key. If the key has dots and is missing or null, follow the names between the dots through
    nested objects. Raises KeyError.
    """
    if "." in name and item.get(name) is None:
        with suppress(LookupError, TypeError):
            return reduce(getitem, name.split("."), item)
    return item[name]


def value_or_none(item: Mapping[str, Any], name: str) -> Any:
    """Return the value as `value_at` does, but None if there is no such key."""
    try:
        return value_at(item, name)
    except KeyError:
        return None


def is_unicode(value: Any) -> bool:
    """Whether a value is a string without half of a surrogate pair. Only such a key can name a column."""
    return isinstance(value, str) and value == printable_name(value)


def printable_name(key: str) -> str:
    """Return the key with an escape in place of each half of a surrogate pair."""
    return key.encode("utf-8", "backslashreplace").decode()


def keys_within(item: Mapping[Any, Any], before: str = "") -> Iterator[str]:
    """Yield the keys of objects within the values of an object, in the form that `value_at` takes, down to a limited
    depth.
    """
    for key, value in item.items() if before.count(".") < _DEEPEST else ():
        if isinstance(value, Mapping) and isinstance(key, str):
            yield from (f"{before}{key}.{inner}" for inner in value if isinstance(inner, str))
            yield from keys_within(value, f"{before}{key}.")


def column_of(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array without a dictionary; it has nulls if the table lacks the column."""
    if name not in table.column_names:
        return pa.nulls(len(table))
    column = table.column(name)
    column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def is_copied_as_it_is(held: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a kept column needs no decoding, because it holds bytes that stay bytes, or only nulls."""
    return bool(pa.types.is_null(held) or kind == pa.binary())


def decoded_text(name: str, column: pa.Array, reasons: dict[int, str], encoding: str, ascii_only: set[str]) -> pa.Array:
    """Return a column with strings in place of bytes. Rows that are not text become null and get a reason.

    Parameters
    ----------
    name : str
        The name of the column.
    column : pyarrow.Array
        Its values.
    reasons : dict of int to str
        The reason for each row that is not text is added here.
    encoding : str
        Python's name of the encoding of the file, for reasons.
    ascii_only : set of str
        The name is added here if the column holds only ASCII.

    """
    if not is_textual(column.type):
        return column
    column = column.cast(pa.large_binary())
    if _is_ascii(column):
        ascii_only.add(name)
        return column.view(pa.large_string())
    with suppress(pa.ArrowInvalid):
        return column.cast(pa.large_string())
    invalid = not_utf8(column)
    for i in invalid:
        reasons.setdefault(i, f"column {name!r} {why_not_decoded(column[i].as_py(), encoding)}")
    mask = np.zeros(len(column), np.bool_)
    mask[invalid] = True
    return pc.if_else(pa.array(mask), pa.scalar(None, column.type), column).cast(pa.large_string())


def distinct(option: str, value: str | Iterable[str]) -> tuple[str, ...]:
    """Return names of columns as a tuple. Raises UsageError if one is no name, or occurs twice."""
    given = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if wrong := [name for name in given if not isinstance(name, str)]:
        raise UsageError(f"{option} is {wrong[0]!r}: give names of columns as text, '0' for a column that is called 0")
    if len(set(given)) < len(given):
        raise UsageError(f"{option} names {next(n for n in given if given.count(n) > 1)!r} twice")
    return given
