"""Reads the label column of a chunk's rows: one label, several labels, or a number for each row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import UsageError
from .labels import NAMES_ONLY, NO_TRUTH, LabelRules, class_indices, labels_of
from .layouts import is_textual

SEPARATOR = "|"
"""The default separator between the labels of a row in a CSV file."""


def label_lists(rows: pa.Table, name: str, separator: str | None) -> pa.ListArray:
    """Return the labels of rows that may have several.

    Parameters
    ----------
    rows : pyarrow.Table
        The rows of a chunk.
    name : str
        The label column: lists, or strings.
    separator : str or None
        The separator between the labels of a string; None if strings are lists in JSON.

    Returns
    -------
    pyarrow.ListArray
        [N], lists of strings without nulls; an empty list for a row without labels. A null string is such a row,
        because CSV has nothing else for it.

    Raises
    ------
    UsageError
        If the column is of another type, a list is null, because its labels may be unknown, or a label is null or
        empty.

    """
    types, column = pa.types, rows.column(name).combine_chunks()
    if separator is None and is_textual(column.type) and not types.is_null(column.type):
        column = _lists(column, name)
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        if column.null_count:
            where = rows.slice(pc.index(column.is_null(), True).as_py(), 1).to_pylist()[0]
            raise UsageError(
                f"{where['file']}: row {where['row']}: column {name!r} is null: give a row without labels an empty list"
            )
        lists = labels_of(column)
        values, lengths = lists.flatten(), lists.value_lengths().to_numpy()
    elif types.is_string(column.type) or types.is_large_string(column.type) or types.is_null(column.type):
        parts = pc.split_pattern(pc.fill_null(column.cast(pa.string()), ""), separator or SEPARATOR)
        values = pc.utf8_trim_whitespace(parts.flatten())
        filled = pc.not_equal(values, "").to_numpy(zero_copy_only=False)
        row = np.repeat(np.arange(len(column)), parts.value_lengths().to_numpy())
        values = labels_of(values.filter(pa.array(filled)))
        lengths = np.bincount(row[filled], minlength=len(column))
    else:
        raise UsageError(f"column {name!r} is of type {column.type}: several labels are lists, or texts")
    if values.null_count:
        raise UsageError(f"column {name!r} has a label that is null, empty or NaN")
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values)


def _lists(texts: pa.Array, name: str) -> pa.Array:
    """Parse lists that are written as JSON, like those in JSON Lines."""
    try:
        lists = [None if text is None else json.loads(text) for text in texts.to_pylist()]
        if all(isinstance(labels, list) for labels in lists if labels is not None):
            return pa.array(lists, pa.list_(pa.null()) if not any(lists) else None)
    except (json.JSONDecodeError, pa.ArrowInvalid, pa.ArrowTypeError):
        pass
    raise UsageError(f"column {name!r} holds texts, not lists: say by --label-separator what is between two labels")


def label_sets(
    lists: pa.ListArray, classes: Sequence[str], rules: LabelRules
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], dict[str, int]]:
    """Find out which classes each row has.

    Parameters
    ----------
    lists : pyarrow.ListArray
        [N], as `label_lists` returns them.
    classes : sequence of str
        The names of the classes.
    rules : LabelRules
        How labels name classes.

    Returns
    -------
    has : ndarray
        bool [N, classes], which classes each row has.
    is_unknown : ndarray
        bool [N], which rows have a label that names no class.
    unknown : dict of str to int
        How often each label that names no class occurs.

    """
    has = np.zeros((len(lists), len(classes)), np.bool_)
    row = np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy())
    indices, unknown = class_indices(lists.flatten(), classes, rules)
    known = indices != NO_TRUTH
    has[row[known], indices[known]] = True
    is_unknown = np.zeros(len(lists), np.bool_)
    is_unknown[row[~known]] = True
    return has, is_unknown, unknown


def numbers_in(
    rows: pa.Table, name: str, levels: Sequence[str] = (), rules: LabelRules = NAMES_ONLY
) -> NDArray[np.float64]:
    """Return the numbers of a column.

    Parameters
    ----------
    rows : pyarrow.Table
        The rows of a chunk.
    name : str
        A column of numbers, or of strings that are numbers.
    levels : sequence of str
        Names that stand for the numbers 1, 2, …. The column then holds these names or these numbers.
    rules : LabelRules
        How labels name levels. Unless the rules say otherwise, their numbers count from 1.

    Returns
    -------
    ndarray
        float64 [N], NaN if there is no number.

    Raises
    ------
    UsageError
        If a value is neither a finite number nor one of the names.

    """
    values = rows.column(name).combine_chunks()
    if levels:
        first = 1 if rules.numbers_from is None else rules.numbers_from
        indices, _ = class_indices(labels_of(values), levels, replace(rules, numbers_from=first))
        known, numbers = indices != NO_TRUTH, 1.0 + indices
    else:
        try:
            texts = values.cast(pa.large_string())
            numbers = pc.if_else(pc.equal(texts, ""), None, texts).cast(pa.float64()).to_numpy(zero_copy_only=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(f"column {name!r} holds something that is no number: {error}") from error
        known = np.isfinite(numbers)
    given = values.is_valid() if pa.types.is_floating(values.type) else pc.not_equal(values.cast(pa.string()), "")
    odd = np.flatnonzero(~known & given.fill_null(False).to_numpy(zero_copy_only=False))
    if len(odd) and not (pa.types.is_floating(values.type) and np.isnan(values[int(odd[0])].as_py())):
        wanted = f"one of {', '.join(levels)}" if levels else "a finite number"
        raise UsageError(f"column {name!r} holds {values[int(odd[0])].as_py()!r}, which is not {wanted}")
    return np.where(known, numbers, np.nan)
