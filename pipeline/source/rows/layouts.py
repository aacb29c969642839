"""Converts columns to one of the several layouts that Arrow has for the same values.

Strings are `string`, `large_string` or `string_view`, lists are `list`, `large_list`, `list_view` or `large_list_view`,
and all of them may be within lists, structs, maps and dictionaries. Few of Arrow's functions take all layouts: none
takes rows out of an array of views. A column of JSON is an extension type of strings.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Test = Callable[[pa.DataType], bool]

STRINGS: tuple[Test, ...] = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
BYTES: tuple[Test, ...] = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
LISTS: tuple[Test, ...] = (pa.types.is_list, pa.types.is_large_list)
LIST_VIEWS: tuple[Test, ...] = (pa.types.is_list_view, pa.types.is_large_list_view)


def is_one_of(kind: pa.DataType, tests: tuple[Test, ...]) -> bool:
    return any(test(kind) for test in tests)


def holds(kind: pa.DataType, *tests: Test) -> bool:
    """Whether a type, or a type within it, passes one of these tests."""
    return is_one_of(kind, tests) or any(holds(kind.field(i).type, *tests) for i in range(kind.num_fields))


def is_json(kind: pa.DataType) -> bool:
    """Whether a type is Arrow's extension type for texts that are JSON."""
    return isinstance(kind, pa.JsonType)


def is_textual(kind: pa.DataType) -> bool:
    """Whether a column of this type may hold text: strings or bytes in any layout, JSON, or only nulls."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return is_one_of(kind, (*STRINGS, *BYTES, pa.types.is_null, is_json))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column has when it is copied: the same values in one layout.

    A dictionary of strings stays one, with 32-bit indices. Other dictionaries become their values, and so do all
    dictionaries within other types.
    """
    if pa.types.is_dictionary(kind):
        value = plain_type(kind.value_type)
        return pa.dictionary(pa.int32(), value) if value == pa.string() else value
    return _type_of(kind, True)


def _type_of(kind: pa.DataType, decode: bool) -> pa.DataType:
    """Return the type of the result of `plain_values`."""
    types = pa.types
    if is_json(kind):
        return _type_of(kind.storage_type, decode)
    if types.is_dictionary(kind):
        value = _type_of(kind.value_type, decode)
        return value if decode else pa.dictionary(kind.index_type, value)
    if is_one_of(kind, STRINGS):
        return pa.string()
    if is_one_of(kind, BYTES):
        return pa.binary()
    if is_one_of(kind, (*LISTS, *LIST_VIEWS)):
        return pa.list_(_type_of(kind.value_type, decode))
    if types.is_fixed_size_list(kind):
        return pa.list_(_type_of(kind.value_type, decode), kind.list_size)
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _type_of(field.type, decode)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_type_of(kind.key_type, decode), _type_of(kind.item_type, decode))
    return kind


def plain_values(values: pa.Array, decode: bool = True) -> pa.Array:
    """Return the same values in one layout: as `string`, `binary` and `list`. This includes values within lists,
    structs and maps.

    Parameters
    ----------
    values : pyarrow.Array
        N values whose offsets are right.
    decode : bool
        Whether dictionaries become their values, which may take much more memory.

    Returns
    -------
    pyarrow.Array
        [N], of the type that `plain_type` returns if dictionaries are decoded.

    """
    kind, types = values.type, pa.types
    target = _type_of(kind, decode)
    if target == kind:
        return values
    # Types whose values are stored in another array: JSON and dictionaries.
    if is_json(kind):
        return plain_values(values.storage, decode)
    if types.is_dictionary(kind):
        coded = pa.DictionaryArray.from_arrays(values.indices, plain_values(values.dictionary, decode))
        return coded.dictionary_decode() if decode else coded
    # Lists of any layout.
    if is_one_of(kind, LIST_VIEWS):
        return _lists_of_views(values, decode)
    if is_one_of(kind, LISTS):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
        return _lists(lengths, plain_values(values.flatten(), decode), values)
    if types.is_fixed_size_list(kind):
        inner = values.values.slice(values.offset * kind.list_size, len(values) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(plain_values(inner, decode), kind.list_size, mask=values.is_null())
    # Structs and maps.
    if types.is_struct(kind):
        children = [plain_values(child, decode) for child in values.flatten()]
        return pa.StructArray.from_arrays(children, fields=[*target], mask=values.is_null())
    if types.is_map(kind):
        entries = plain_values(
            values.cast(pa.list_(pa.struct([("key", kind.key_type), ("item", kind.item_type)]))), decode
        )
        keys, items = entries.values.flatten()
        return pa.MapArray.from_arrays(entries.offsets, keys, items, mask=values.is_null())
    return values.cast(target)


def _lists_of_views(values: pa.Array, decode: bool) -> pa.Array:
    """Return the lists of a list view. Several lists of a view may share values, in any order."""
    child = plain_values(values.values, decode)
    lengths = np.where(np.asarray(values.is_valid()), values.sizes.to_numpy(), 0).astype(np.int64)
    before = np.cumsum(lengths) - lengths
    places = np.arange(lengths.sum()) + np.repeat(values.offsets.to_numpy() - before, lengths)
    return _lists(lengths, child.take(pa.array(places)), values)


def _lists(lengths: np.ndarray, values: pa.Array, like: pa.Array) -> pa.Array:
    """Return lists of these lengths, int64 [N]. They are null where those of `like`, [N], are null."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, mask=like.is_null())


def as_bytes(table: pa.Table) -> pa.Table:
    """Return the table with its strings as bytes, and without views within lists, structs and maps. Dictionaries stay.

    A string column may hold invalid UTF-8. As bytes, each row can be checked for it.
    """
    for i, field in enumerate(table.schema):
        column = table.column(i)
        if pa.types.is_dictionary(field.type):
            continue
        if is_json(field.type):  # a cast of a JSON column whose strings are views returns wrong memory
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], field.type.storage_type)
        if is_textual(field.type):
            table = table.set_column(i, field.name, column.cast(pa.large_binary()))
        elif has_views(field.type):
            chunks = [plain_values(chunk, decode=False) for chunk in column.chunks]
            table = table.set_column(i, field.name, pa.chunked_array(chunks, _type_of(field.type, False)))
    return table


def has_views(kind: pa.DataType) -> bool:
    """Whether a type has views or JSON within it, which Arrow's functions do not take."""
    within = holds(kind, pa.types.is_string_view, pa.types.is_binary_view, *LIST_VIEWS, is_json)
    return within or holds(kind, lambda inner: pa.types.is_dictionary(inner) and has_views(inner.value_type))
