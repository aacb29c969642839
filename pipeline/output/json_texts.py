"""Writes columns as JSON text with Arrow, which does not hold the GIL.

A loop over the rows held the GIL for 1.6 microseconds per row, which is longer than a GPU takes to label a row.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NOTHING = pa.scalar("", pa.large_string())
_ESCAPED = r'["\\\x00-\x1f]'
"""Characters that a JSON string escapes."""

_SHORT = 1e-5, 1e10
"""The range, without its end, in which Arrow writes a number that is no integer as `msgspec` does."""


def lines_of(columns: Mapping[str, pa.Array]) -> pa.Buffer:
    """Return a line for each of N rows: an object with every column.

    columns: each column by its name, [N], of the types that `json_texts` accepts.
    """
    texts = _joined(_object_of(columns), pa.scalar("\n", pa.large_string()))
    _, _, data = texts.buffers()
    return pa.py_buffer(b"") if data is None else data.slice(0, pc.sum(pc.binary_length(texts)).as_py() or 0)


def json_texts(column: pa.Array) -> pa.LargeStringArray:
    """Return the values of a column as JSON, byte for byte as `msgspec` encodes them.

    Parameters
    ----------
    column : pyarrow.Array
        [N], of booleans, integers, float64 or strings, or of lists or structs of these. A NaN or an infinity becomes
        the text ``null``.

    Returns
    -------
    pyarrow.LargeStringArray
        [N]. No value is null: a null becomes the text ``null``.

    """
    kind, types = column.type, pa.types
    if types.is_list(kind):
        texts = _lists(column)
    elif types.is_struct(kind) and not kind.num_fields:
        texts = pa.repeat(pa.scalar("{}", pa.large_string()), len(column))
    elif types.is_struct(kind):
        names = (field.name for field in kind)
        texts = _joined(_object_of(dict(zip(names, column.flatten(), strict=True))))
    elif types.is_floating(kind):
        texts = _floats(column)
    elif types.is_string(kind):
        quote = pa.scalar('"', pa.large_string())
        texts = _joined([quote, column.cast(pa.large_string()), quote])
        texts = _encoded_where(pc.match_substring_regex(column, _ESCAPED), column, texts)
    else:
        texts = column.cast(pa.large_string())
    return pc.if_else(column.is_null(), pa.scalar("null", pa.large_string()), texts)


def _object_of(columns: Mapping[str, pa.Array]) -> list[pa.Scalar | pa.Array]:
    """Return the pieces of an object, which `_joined` joins."""
    pieces: list[pa.Scalar | pa.Array] = []
    for name, column in columns.items():
        before = "," if pieces else "{"
        pieces += [pa.scalar(before + msgspec.json.encode(name).decode() + ":", pa.large_string()), json_texts(column)]
    return [*pieces, pa.scalar("}", pa.large_string())]


def _joined(pieces: list[pa.Scalar | pa.Array], *more: pa.Scalar) -> pa.LargeStringArray:
    return pc.binary_join_element_wise(*pieces, *more, _NOTHING)


def _lists(column: pa.ListArray) -> pa.LargeStringArray:
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    values = pa.LargeListArray.from_arrays(offsets, json_texts(column.flatten()))
    brackets = (pa.scalar(bracket, pa.large_string()) for bracket in "[]")
    return _joined([next(brackets), pc.binary_join(values, pa.scalar(",", pa.large_string())), next(brackets)])


def _floats(column: pa.DoubleArray) -> pa.LargeStringArray:
    values = pc.fill_null(column, 0.5).to_numpy()  # `json_texts` puts "null" in the place of any text of these
    sizes = np.abs(values)
    with np.errstate(invalid="ignore"):  # some NaNs give a warning
        is_short = (sizes >= _SHORT[0]) & (sizes < _SHORT[1]) & (values != np.floor(values))
    return _encoded_where(pa.array(~is_short), column, column.cast(pa.large_string()))


def _encoded_where(which: pa.BooleanArray, column: pa.Array, texts: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return the texts, but the value as `msgspec` encodes it wherever `which`, [N], is true."""
    which = pc.fill_null(which, False)
    encode = msgspec.json.Encoder().encode
    encoded = [encode(value).decode() for value in column.filter(which).to_pylist()]
    return pc.replace_with_mask(texts, which, pa.array(encoded, pa.large_string())) if encoded else texts
