"""Reads Python objects: strings, or dicts by column, from a collection or an iterator.

Items of an iterator are drawn chunk by chunk. The first item that is not null decides whether the items are strings or
dicts. An item of another kind, such as a dict without a text, is a row for the quarantine. A kept column is null if a
dict lacks it.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from numbers import Number
from reprlib import Repr
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import UsageError
from ..plan.files import format_of, is_known
from ..rows.assemble import assemble
from ..rows.chunk import HEAD_BYTES, BadRow, Chunk, RowsByName, Selection, concat
from ..rows.columns import finite, is_unicode, keys_within, printable_name, value_at, value_or_none
from ..rows.layouts import is_textual
from ..rows.limits import LIMITS, Limits
from .tables import MEMORY, Tables, is_pandas, of_table, resolve

_CANNOT = (pa.ArrowException, ValueError, TypeError, LookupError, OverflowError, AttributeError)
"""The errors that Arrow and Python raise for a value that is not of the expected type."""

_LOOKED_AT = 1_000
"""How many strings are tested at most to find out whether they are paths."""

_LOOKED_AT_FOR_KEYS = 100
"""How many further items are drawn from an iterator if its first does not have all columns that the job needs."""

_DIGESTED, _FRAME_ROWS = 1 << 16, 1 << 10
"""How many items are hashed in one go, and how many rows of a DataFrame become dicts in one go."""

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = HEAD_BYTES


class Items:
    """Rows that are strings or dicts.

    Parameters
    ----------
    items : iterable
        The items.
    rows : int or None
        The number of items; None if they can be read only once.
    kind : str
        The type of the object that gives them, for messages.

    """

    def __init__(self, items: Iterable[Any], rows: int | None, kind: str) -> None:
        self.rows = rows
        self.kind = kind
        self._items = items
        self._drawn: list[Any] = []

    @property
    def digest(self) -> str:
        """The sha256 of everything that the items hold. For values that JSON does not have, it uses their `repr`."""
        digest, items = hashlib.sha256(), iter(self._items)
        while block := list(itertools.islice(items, _DIGESTED)):
            try:
                shown = json.dumps(block, default=repr, skipkeys=True)
            except (ValueError, RecursionError):  # an object that holds itself
                shown = repr(block)
            digest.update(shown.encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    @cached_property
    def first(self) -> Any:
        """The first item that is not null, if any. Raises UsageError if it is neither a string nor a dict, or if the
        strings are paths.
        """
        paths = []
        for number, item in enumerate(self._items):
            if self.rows is None:
                self._drawn.append(item)
            if _is_null(item):
                continue
            if not isinstance(item, str | bytes | Mapping):
                raise UsageError(_no_article(item, number, self.kind))
            if not _is_path(item):
                return item
            paths.append(item)
            if len(paths) == _LOOKED_AT:
                break
        if paths:
            raise UsageError(
                f"the {self.kind} holds paths, for example {paths[0]!r}: for what these files hold, give "
                "broadsheet.Paths of it; for the strings themselves, a pyarrow.array"
            )
        return None

    def resolve(self, selection: Selection) -> Selection:
        """Return the selection with its default text column and the types of its kept columns. Raises UsageError.

        The columns are the keys of all items. If the items can be read only once, kept columns are strings, because the
        types in later rows are not known.
        """
        schema, within = {"text": pa.string()}, dict[str, pa.DataType]()
        if self.first is None:  # without a row, nothing can lack a column
            schema = dict.fromkeys((*schema, *selection.columns), pa.string())
        elif isinstance(self.first, Mapping):
            wanted_columns = {*(selection.text or ("text",)), *selection.columns}
            if self.rows is None and (selection.keep_all or not self.first.keys() >= wanted_columns):
                self._drawn += itertools.islice(self._items, _LOOKED_AT_FOR_KEYS)
            schema = {}
            for item in self._dicts():
                schema |= dict.fromkeys(filter(is_unicode, item), pa.string())
                if not schema.keys() >= wanted_columns:
                    within |= dict.fromkeys(filter(is_unicode, keys_within(item)), pa.string())
            for names in (schema, within):
                for name in schema if selection.keep_all and names is schema else names.keys() & selection.kept_columns:
                    names[name] = self._type(name)
                for name in names.keys() & (selection.text or ("text",)):
                    values = (value_or_none(item, name) for item in self._dicts())
                    names[name] = _type_of([next((value for value in values if not _is_null(value)), None)])
        return resolve(pa.schema(list(schema.items())), selection, within)

    def _dicts(self) -> Iterator[Mapping[Any, Any]]:
        """Yield the dicts that show which columns there are. If the items can be read only once, these are the ones
        already drawn.
        """
        return (item for item in self._drawn or self._items if isinstance(item, Mapping))

    def _type(self, name: str) -> pa.DataType:
        """Return the type of a kept column: string if its values are of several types."""
        if self.rows is None:
            return pa.string()
        return _type_of([value_or_none(item, name) for item in self._dicts()])

    def chunks(self, selection: Selection, chunk_rows: int, limits: Limits = LIMITS) -> Iterator[Chunk]:
        """Yield the rows in chunks of up to `chunk_rows` rows with about `limits.chunk_bytes` characters of text. An
        item is drawn when its chunk is made. Without rows, yield one empty chunk.
        """
        items, row, max_held = itertools.chain(self._drawn, self._items), 0, selection.most_held
        while True:
            parts: list[Chunk] = []
            drawn: list[Any] = []
            # `held` is the characters that the chunk keeps, `size` those of the items drawn since its last part.
            rows = held = size = 0
            for item in items:
                drawn.append(item)
                length = _length(item, selection.text)
                rows, size, held = rows + 1, size + length, held + min(length, max_held)
                if rows == chunk_rows or held >= limits.chunk_bytes:
                    break
                if size >= limits.chunk_bytes:  # the parts of long texts that are not needed are released
                    parts.append(self._chunk(drawn, row, selection))
                    row, drawn, size = row + len(drawn), [], 0
            if drawn or not row:
                parts.append(self._chunk(drawn, row, selection))
                row += len(drawn)
            if parts:
                yield concat(parts)
            if not rows:
                return

    def _chunk(self, drawn: list[Any], row: int, selection: Selection) -> Chunk:
        """Make a chunk of these items. The first of them is row `row`."""
        numbers: Sequence[int] = range(len(drawn))
        bad: list[BadRow] = []
        try:
            table = self._table(drawn, selection)
        except _CANNOT:
            problems = [self._problem(item, selection) for item in drawn]
            bad = [BadRow(row + i, None, why, _head(drawn[i])) for i, why in enumerate(problems) if why]
            numbers = [i for i, why in enumerate(problems) if not why]
            table = self._table([drawn[i] for i in numbers], selection)
        rows = row + np.fromiter(numbers, np.int64, len(numbers))
        return assemble(MEMORY, rows, table, selection, bad=bad, not_copied=_not_copied(drawn, row, selection))

    def _table(self, items: list[Any], selection: Selection) -> pa.Table:
        """Return a table of the selection's columns. Raises one of `_CANNOT` if an item is not a valid row."""
        types = dict(zip(selection.kept_columns, selection.kept_types, strict=True))
        # Cells of labels may be of any type.
        types = {name: kind for name, kind in types.items() if name not in selection.labels}
        columns = {}
        for name in selection.columns:
            values = [_value(item, name, selection) for item in items] if isinstance(self.first, Mapping) else items
            if name in selection.text:
                columns[name] = _texts([_joined(value) for value in values] if selection.join else values)
            else:
                columns[name] = _column(values, types.get(name))
        return pa.table(columns)

    def _problem(self, item: Any, selection: Selection) -> str | None:
        """Return why an item is not a valid row, or None."""
        if not isinstance(self.first, Mapping):
            return _no_text("the item", item) or _half("the item", item)
        if not isinstance(item, Mapping):
            return f"the item is of type {type(item).__name__}, not a dict"
        try:
            values = {name: _value(item, name, selection) for name in selection.columns}
        except KeyError as error:
            return f"no key {error}"
        texts = {name: _joined(values[name]) if selection.join else values[name] for name in selection.text}
        reasons = [_no_text(f"the text {name!r}", value) for name, value in texts.items()]
        reasons += [_half(repr(name), value) for name, value in values.items()]
        return next(filter(None, reasons), None)


class _FrameRows:
    """The rows of a pandas DataFrame as dicts, which are made as they are read."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame.rename(columns=str)
        if not self._frame.columns.is_unique:
            raise UsageError("two columns of the DataFrame have the same name: rename one")

    def __len__(self) -> int:
        return len(self._frame)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for at in range(0, len(self._frame), _FRAME_ROWS):
            yield from self._frame.iloc[at : at + _FRAME_ROWS].to_dict("records")


def as_items(source: Any) -> Items | Tables | None:
    """Return the rows of a collection, an iterator or an open file, or None for an object that gives no items.

    Strings that are in memory become a table. Raises UsageError for items that are neither strings nor dicts, and for
    paths.
    """
    kind = type(source).__name__
    if isinstance(source, str | bytes | bytearray | memoryview | Mapping) or not isinstance(source, Iterable):
        return None
    if is_pandas(source, "DataFrame"):
        frame = _FrameRows(source)
        return Items(frame, len(frame), kind)
    if hasattr(source, "readline"):
        return Items(_lines(source), None, "file")
    if isinstance(source, Iterator) or not isinstance(source, Collection):
        return Items(iter(source), None, kind)
    if isinstance(source, np.ndarray) and source.ndim != 1:
        raise UsageError(f"the array has {source.ndim} dimensions: give one of one dimension")
    values = source if isinstance(source, list | tuple | np.ndarray) else list(source)
    items = Items(values, len(values), kind)
    if isinstance(items.first, str | bytes):
        with suppress(*_CANNOT):  # some items are not strings
            return of_table(pa.table({"text": pa.array(values, pa.large_string(), from_pandas=True)}), kind)
    return items


def _lines(file: Any) -> Iterator[Any]:
    """Yield the lines of an open file, without their ends. Raises UsageError for a file whose lines are not texts."""
    name = getattr(file, "name", None)
    try:
        known = format_of(name).name if isinstance(name, str) else "text"
    except UsageError:  # the suffix has no format: the user knows what the file holds
        known = "text"
    if known != "text":
        raise UsageError(f"an open file is read as a text a line, and this is {known}: give its path, {name!r}")
    return (line.rstrip(b"\r\n" if isinstance(line, bytes) else "\r\n") for line in file)


def _value(item: Any, name: str, selection: Selection) -> Any:
    """Return the value of a column. Raises one of `_CANNOT`, such as a KeyError if the item lacks a column that it must
    have.
    """
    return (value_at if name in selection.needed else value_or_none)(item, name)


def _not_copied(items: Sequence[Any], first: int, selection: Selection) -> RowsByName:
    """Return, by key, the numbers of items that have a key that should be copied and is not. first: the number of the
    first item.
    """
    kept_columns, rows = {*selection.kept_columns}, defaultdict[str, list[int]](list)
    for number, item in enumerate(items, first):
        if selection.keep_all and isinstance(item, Mapping):
            for key, value in item.items():
                if key not in kept_columns and not _is_null(value):
                    rows[printable_name(str(key))].append(number)
    return {key: np.array(numbers, np.int64) for key, numbers in rows.items()}


def _no_article(item: Any, number: int, kind: str) -> str:
    remedy = "give broadsheet.Paths of it" if isinstance(item, os.PathLike) else "give strings, or dicts by column"
    return f"item {number:,} of the {kind} is of type {type(item).__name__}: {remedy}"


def _no_text(what: str, value: Any) -> str | None:
    if isinstance(value, str | bytes) or _is_null(value):
        return None
    return f"{what} is of type {type(value).__name__}, not a string"


def _joined(value: Any) -> Any:
    """Return a number, a date or a time as a template writes it, and any other value unchanged."""
    is_short = isinstance(value, Number | datetime.date | datetime.time) and not _is_null(value)
    return _written(value) if is_short else value


def _half(what: str, value: Any) -> str | None:
    return None if is_unicode(_written(value) or "") else f"{what} holds half of a surrogate pair"


def _is_null(value: Any) -> bool:
    """Whether pandas takes a value for null: None, NaN, NaT, NA."""
    if value is None or isinstance(value, str | bytes | int | Mapping):
        return value is None
    try:
        return bool(pa.array([value], from_pandas=True).null_count)
    except _CANNOT:
        return False


def _is_path(item: Any) -> bool:
    """Whether a string names a file or looks like it does: a word with the suffix of a format, which may
    be a pattern.
    """
    if not isinstance(item, str | bytes):
        return False
    name = os.fsdecode(item) if isinstance(item, bytes) else item
    return os.path.exists(item) or (len(name.split()) == 1 and is_known(name))


def _length(item: Any, text: Sequence[str]) -> int:
    """Return a rough number of characters of text."""
    if isinstance(item, Mapping):
        return sum(_length(value_or_none(item, name), ()) for name in text)
    return len(item) if isinstance(item, str | bytes) else 0


def _texts(values: Sequence[Any]) -> pa.Array:
    """Return strings, bytes and nulls as an array of bytes. Raises one of `_CANNOT` for anything else, and for half of
    a surrogate pair.
    """
    try:
        return pa.array(values, pa.large_string(), from_pandas=True).cast(pa.large_binary())
    except pa.ArrowInvalid:  # bytes that are not UTF-8
        plain = [value.encode() if isinstance(value, str) else value for value in values]
        return pa.array(plain, pa.large_binary(), from_pandas=True)


def _column(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    """Return the values of a kept column as type `kind`. None stands for a column of labels."""
    if kind is None:
        kind = _type_of(values)
    if not pa.types.is_string(kind):
        return pa.array(values, kind, from_pandas=True)
    with suppress(*_CANNOT):  # this is fast for strings, and for integers, which Arrow writes as JSON does
        array = pa.array(values, from_pandas=True)
        if pa.types.is_string(array.type) or pa.types.is_int64(array.type):
            return array.cast(pa.large_string())
    return pa.array([_written(value) for value in values], pa.large_string())


def _type_of(values: Sequence[Any]) -> pa.DataType:
    """Return the type that Arrow gives to values. It is string if they have several types, or are all null."""
    try:
        kind = pa.array(values, from_pandas=True).type
    except _CANNOT:
        return pa.string()
    return pa.string() if is_textual(kind) else kind


def _written(value: Any) -> str | None:
    """Return a value as JSON writes it, or as its own `str` if JSON has no such value."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, str) or _is_null(value):
        return value if isinstance(value, str) else None
    try:
        return json.dumps(_with_finite(value), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _with_finite(value: Any) -> Any:
    """Return a value whose lists and dicts hold None in place of a NaN or an infinity. Raises RecursionError."""
    if isinstance(value, dict):
        return {key: _with_finite(finite(item)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_finite(finite(item)) for item in value]
    return value


def _head(item: Any) -> bytes:
    shown = item if isinstance(item, str) else _SHORT.repr(item)
    return shown[:HEAD_BYTES].encode("utf-8", "backslashreplace")
