"""A column that holds several labels a row: lists, or texts in which a separator stands between the labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import UsageError
from .chunk import NO_TRUTH, truth_indices

SEPARATOR = "|"
"""Between the labels of a row in a CSV file, unless the user names another."""


def label_lists(rows: pa.Table, name: str, separator: str | None) -> pa.ListArray:
    """The column `name` of a chunk's rows as lists of strings, none of them null; empty ones of rows without labels.

    separator: between the labels of a text; None where the column must hold lists. A null text has no labels, for a CSV
    file has nothing else for them; a null list may be a label that is not known, so it is refused.

    Raises UsageError for a column of another type, a null list, or a label that is null or empty.
    """
    types, column = pa.types, rows.column(name).combine_chunks()
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        if column.null_count:
            where = rows.slice(pc.index(column.is_null(), True).as_py(), 1).to_pylist()[0]
            raise UsageError(
                f"{where['file']}: row {where['row']}: column {name!r} is null: give a row without labels an empty list"
            )
        lists = column.cast(pa.list_(column.type.value_type))
        values = _texts(lists.flatten(), name)
        lengths = lists.value_lengths().to_numpy()
    elif types.is_string(column.type) or types.is_large_string(column.type) or types.is_null(column.type):
        if separator is None:
            raise UsageError(
                f"column {name!r} holds texts, not lists: say by --label-separator what is between two labels"
            )
        parts = pc.split_pattern(pc.fill_null(column.cast(pa.string()), ""), separator)
        values = pc.utf8_trim_whitespace(parts.flatten())
        filled = pc.not_equal(values, "").to_numpy(zero_copy_only=False)
        row = np.repeat(np.arange(len(column)), parts.value_lengths().to_numpy())
        values = values.filter(pa.array(filled))
        lengths = np.bincount(row[filled], minlength=len(column))
    else:
        raise UsageError(f"column {name!r} is of type {column.type}: several labels are lists, or texts")
    if pc.any(pc.or_(values.is_null(), pc.fill_null(pc.equal(values, ""), True))).as_py():
        raise UsageError(f"column {name!r} has a label that is null or empty")
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values)


def _texts(values: pa.Array, name: str) -> pa.Array:
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise UsageError(f"column {name!r} holds lists of {values.type}, which are no labels")
    return values.cast(pa.string())


def label_sets(lists: pa.ListArray, classes: Sequence[str]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which classes each of N rows has, [N, classes], and which rows have a label that is no class, [N].

    A label is the name of a class, or a number from 1.
    """
    found = np.zeros((len(lists), len(classes)), np.bool_)
    row = np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy())
    number = truth_indices(lists.flatten(), tuple(classes))
    known = number != NO_TRUTH
    found[row[known], number[known]] = True
    unknown = np.zeros(len(lists), np.bool_)
    unknown[row[~known]] = True
    return found, unknown
