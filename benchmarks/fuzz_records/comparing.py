"""Compares two readings of a range in everything that a reader returns, and finds the first difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.pipeline.source.plan.plan import RangeEnd
from broadsheet.pipeline.source.read.read import Skipped
from broadsheet.pipeline.source.rows.chunk import Chunk, OffHost, RowsByName

Item = Chunk | Skipped | RangeEnd | Exception
"""Something that a reader returns for a range, in order, or the error that it raises at the end."""

_SHOWN = 300

_MANY_NAMES = 1000
"""Each block counts all labels and keys if there are fewer than these."""

_COUNTED = ("not_copied", "unknown_labels")


class Difference(NamedTuple):
    """A difference between the two ways of reading.

    Attributes
    ----------
    what : str
        The thing that differs, such as a column.
    row : int or None
        The number of the row in its file, or None if the difference is not about one row.
    host, device : str
        What each way has read.

    """

    what: str
    row: int | None
    host: str
    device: str


def difference(by_host: list[Item], by_device: list[Item]) -> Difference | None:
    """Return the first difference between two readings of a range, or None if they are the same.

    A block counts rows only for its commonest labels and keys, and the two ways cut a range into different blocks. So
    these counts are compared only if a range has so few labels or keys that each block counts all of them.
    """
    counted = [name for name in _COUNTED if _are_few(name, [*by_host, *by_device])]
    for one, other in zip(by_host, by_device, strict=False):
        if isinstance(one, Chunk) and isinstance(other, Chunk):
            if found := next(_in_chunks(one, other, counted), None):
                return found
        elif _described(one) != _described(other):
            return Difference("item", None, _described(one), _described(other))
    if len(by_host) != len(by_device):
        counts = (f"{len(items)} items, the last of them {_described(items[-1])}" for items in (by_host, by_device))
        return Difference("number of chunks", None, *counts)
    return None


def _described(item: Item) -> str:
    """Describe an item in one line, with everything that must be the same except the content of a chunk."""
    if isinstance(item, Chunk):
        return f"chunk {item.name} with {len(item)} rows"
    if isinstance(item, RangeEnd):
        item = replace(item, read_by={})  # the two ways differ in who reads the records
    return f"{type(item).__name__}: {item}" if isinstance(item, Exception) else repr(item)


def _are_few(name: str, items: list[Item]) -> bool:
    """Whether the chunks have so few labels or keys that each block counts all of them."""
    return len({key for item in items if isinstance(item, Chunk) for key in getattr(item, name)}) < _MANY_NAMES


def _in_chunks(one: Chunk, other: Chunk, counted: list[str]) -> Iterator[Difference]:
    """Yield the differences between two chunks. counted: the fields of `_COUNTED` to compare."""
    # Compare what each chunk has once, and find rows that only one of them has.
    for name in ("name", "sources", "problems"):
        yield from _in_values(name, getattr(one, name), getattr(other, name))
    numbers = (chunk.rows.column("row").to_numpy() for chunk in (one, other))
    for row in np.setxor1d(*numbers).tolist():
        yield Difference("a row that one way alone reads", row, _of_row(one, row), _of_row(other, row))
    # Compare the tables.
    yield from _in_tables("rows", one.rows, other.rows)
    yield from _in_tables("quarantine", one.quarantine, other.quarantine)
    yield from _in_values("whether bad rows have kept columns", one.bad is None, other.bad is None)
    if one.bad is not None and other.bad is not None:
        yield from _in_tables("kept columns of bad rows", one.bad, other.bad)
    # Compare the columns outside the tables, and the counts.
    rows = one.rows.column("row")
    yield from _in_columns("text", _on_host(one.text), _on_host(other.text), rows)
    yield from _in_values("names of prepared texts", list(one.prepared), list(other.prepared))
    for name, texts in one.prepared.items():
        yield from _in_columns("prepared text", _on_host(texts), _on_host(other.prepared[name]), rows)
    for name in ("is_blank", "n_chars", "truth"):
        yield from _in_arrays(name, getattr(one, name), getattr(other, name), rows)
    for name in counted:
        yield from _in_values(name, _as_lists(getattr(one, name)), _as_lists(getattr(other, name)))


def _of_row(chunk: Chunk, row: int) -> str:
    """Return the text of a row, or its entries in the quarantine if it has no text."""
    place = pc.index(chunk.rows.column("row"), row).as_py()
    if place >= 0:
        return _shown(_on_host(chunk.text)[place].as_py())
    return _shown(chunk.quarantine.filter(pc.field("row") == row).to_pylist())


def _on_host(texts: pa.Array | OffHost) -> pa.LargeBinaryArray:
    return texts.cast(pa.large_binary()) if isinstance(texts, pa.Array) else texts.on_host()


def _as_lists(rows: RowsByName) -> dict[str, list[int]]:
    return {name: numbers.tolist() for name, numbers in rows.items()}


def _in_values(what: str, one: object, other: object) -> Iterator[Difference]:
    if one != other:
        yield Difference(what, None, _shown(one), _shown(other))


def _in_tables(what: str, one: pa.Table, other: pa.Table) -> Iterator[Difference]:
    yield from _in_values(f"columns of {what}", str(one.schema), str(other.schema))
    if one.schema != other.schema:
        return
    rows = one.column("row") if "row" in one.column_names else None
    for name in one.column_names:
        yield from _in_columns(f"{what}: {name}", one.column(name), other.column(name), rows)


def _in_columns(what: str, one: Any, other: Any, rows: Any) -> Iterator[Difference]:
    """Yield the differences between two columns. rows: the number of each row in its file, or None."""
    if one.equals(other):
        return
    yield from _in_values(f"number of rows, {what}", len(one), len(other))
    for number, (a, b) in enumerate(zip(one.to_pylist(), other.to_pylist(), strict=False)):
        if a != b:
            yield Difference(what, None if rows is None else rows[number].as_py(), _shown(a), _shown(b))
    yield Difference(what, None, "other values", "that look the same")


def _in_arrays(what: str, one: Any, other: Any, rows: Any) -> Iterator[Difference]:
    if one is None or other is None:
        yield from _in_values(what, one is None, other is None)
        return
    yield from _in_values(f"type of {what}", one.dtype, other.dtype)
    if not np.array_equal(one, other):
        yield from _in_columns(what, pa.array(one), pa.array(other), rows)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
