"""JSON Lines: an object a line; blank lines are skipped.

A block of lines goes through Arrow's parser, which parses all columns at once and releases the GIL. Where that might
parse a line differently from Python's `json`, each line goes through `json`, so the result for a line never depends on
its neighbours.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import json as pa_json

from pipeline.errors import SourceError
from pipeline.source.chunk import BadRow, Chunk, Selection, assemble
from pipeline.source.encoding import UTF8, why_not_decoded
from pipeline.source.formats.base import InputFile, Schema
from pipeline.source.formats.json_strings import Strings
from pipeline.source.formats.record_format import RecordFormat
from pipeline.source.records import Records, Split, split_lines

_BLANK = b" \t\r"
_IS_BLANK = np.zeros(256, np.bool_)
_IS_BLANK[list(_BLANK)] = True
_OPEN_LIST, _OPEN, _CLOSE = b"[{}"
_LF = 0x0A
_NAMED = list(b"IN")
_ODD = re.compile(rb"-NaN|Inf(?![A-Za-z])")
_DEEPEST = 200
"""Brackets in a line that may go to Arrow: `json` fails at a little less than a thousand nested ones."""

_LINES_WITH_KEYS = 100
"""So many first lines say which columns a file has."""

_HEAD_BYTES = 64 << 10
"""That usually hold these lines."""

_SAMPLED, _DIGITS = 50, 43
"""Python rejects integers of more than 4,300 digits: such a run has 43 digits at steps of 50 bytes."""


class Jsonl(RecordFormat):
    """The text must be a string or null. Other columns become strings, as JSON writes their values; a key that a row
    lacks is null in a kept column.
    """

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")

    def split(self, buffer: bytes, final: bool) -> Split:
        """The lines that are not blank."""
        lines = split_lines(buffer, final, self.limits)
        keep = lines.ends > lines.starts
        begin = np.frombuffer(buffer, np.uint8)[lines.starts[keep]]
        for i in np.flatnonzero(keep)[_IS_BLANK[begin]]:
            keep[i] = bool(buffer[lines.starts[i] : lines.ends[i]].strip(_BLANK))
        if keep.all():
            return lines
        kept = np.flatnonzero(keep)
        problems = {int(np.searchsorted(kept, i)): reason for i, reason in lines.problems.items()}
        return Split(lines.starts[kept], lines.ends[kept], problems, lines.consumed, lines.overlong)

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        """The keys of the first lines that are objects, up to that by which all columns that are asked for are found;
        where there is none, these columns: each row has its own keys.
        """
        head = self.head(file)
        few = head.data[:_HEAD_BYTES]
        found = self.split(few, head.final and len(few) == len(head.data))
        if len(found.starts) < _LINES_WITH_KEYS:
            found = self.split(head.data, head.final)
        if len(found.starts) and _is_array(head.data[found.starts[0] : found.ends[0]]):
            raise SourceError(
                f"{file.path}: it holds a JSON array, not an object a line: convert it (jq -c '.[]' FILE > FILE.jsonl)"
            )
        lines = (head.data[s:e] for s, e in zip(found.starts, found.ends, strict=True))
        keys: dict[str, None] = {}
        asked = {*(selection.text or ("text",)), *selection.columns}
        for line in islice(lines, _LINES_WITH_KEYS):
            keys |= dict.fromkeys(_keys_of(line))
            if not (selection.keep_all and not selection.kept_types) and keys.keys() >= asked:
                break
        return Schema(tuple(keys) or selection.columns or ("text",), start=head.start, complete=False)

    def parse(self, records: Records, path: str, first_row: int, selection: Selection) -> Chunk:
        if (parsed := _parse_at_once(records, selection)) is None:
            return parse_one_by_one(records, path, first_row, selection)
        table, removed = parsed
        return assemble(path, first_row + np.arange(len(table)), table, selection, records.raw, removed=removed)


def _is_array(line: bytes) -> bool:
    """Whether a line begins an array of objects, which may end on another line."""
    if not line.lstrip(_BLANK).startswith(b"["):
        return False
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return True
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _keys_of(line: bytes) -> tuple[str, ...]:
    """The keys of the object on a line; empty where it is not an object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return ()
    return tuple(value) if isinstance(value, dict) else ()


def parse_one_by_one(records: Records, path: str, first_row: int, selection: Selection) -> Chunk:
    """A chunk of `records`, the first of which is record `first_row` of the file, each parsed by `json`."""
    bad = records.bad_rows(first_row)
    rows: list[dict[str, str | None]] = []
    kept = []
    for i in range(len(records)):
        if i in records.problems:
            continue
        try:
            rows.append(_parse_line(records.data[records.starts[i] : records.ends[i]], selection))
            kept.append(i)
        except ValueError as error:
            offset, head = records.raw(i)
            bad.append(BadRow(first_row + i, offset, str(error), head))
    table = pa.Table.from_pylist(rows, pa.schema([(name, pa.large_string()) for name in selection.columns]))
    numbers = first_row + np.array(kept, np.int64)
    return assemble(path, numbers, table, selection, lambda i: records.raw(kept[i]), bad)


def _parse_at_once(records: Records, selection: Selection) -> tuple[pa.Table, NDArray[np.int64] | None] | None:
    """The selected columns of all lines by Arrow, and the characters by which each text was cut before, if any was;
    None where one of them must be parsed alone.
    """
    if records.problems or not len(records):
        return None
    begin, end = int(records.starts[0]), int(records.ends[-1])
    block, starts = pa.py_buffer(records.data)[begin:end], records.starts - begin
    schema = _schema(records.data[begin : int(records.ends[0])], selection)
    if schema is None or (strings := _plain_strings(block, starts, records.ends - begin)) is None:
        return None
    shortened = None
    if selection.reads and len(selection.text) == 1 and selection.text[0] not in {*selection.kept, selection.truth}:
        shortened = strings.shortened(selection.text[0].encode(), selection.reads)
    lines, removed = (block, None) if shortened is None else (shortened.block, shortened.removed)
    try:
        table = pa_json.read_json(
            pa.BufferReader(lines),
            pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore", newlines_in_values=True),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):  # the latter where the error message quotes invalid UTF-8
        return None
    needed = _needed(selection)  # there, a null may also be a missing key
    if len(table) != len(records) or any(table.column(name).null_count for name in needed):
        return None
    return pa.table({name: table.column(name).cast(pa.large_string()) for name in selection.columns}), removed


def _needed(selection: Selection) -> set[str]:
    """The keys that each row must have."""
    return {*selection.text, *((selection.truth,) if selection.truth else ())}


def _schema(line: bytes, selection: Selection) -> pa.Schema | None:
    """The types of a line's selected values: strings, or integers in columns other than the text."""
    try:
        value = json.loads(line)
        kinds = {name: type(value[name]) for name in _needed(selection)}
        kinds |= {name: str if (item := value.get(name)) is None else type(item) for name in selection.kept}
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    if any(kind is not str and (kind is not int or name in selection.text) for name, kind in kinds.items()):
        return None
    return pa.schema([(name, pa.large_string() if kind is str else pa.int64()) for name, kind in kinds.items()])


def _plain_strings(block: pa.Buffer, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Strings | None:
    """The strings of lines of which `json` accepts every one that Arrow accepts; None for others.

    A line from "{" to "}" that is not a whole object cannot be followed by "{", so objects do not span lines.
    """
    data = np.frombuffer(block, np.uint8)
    if not ((data[starts] == _OPEN).all() and (data[ends - 1] == _CLOSE).all()):
        return None
    try:
        strings = Strings(block, starts)
        if not strings.is_ascii:
            whole = pa.py_buffer(np.array([0, len(block)]))
            pa.Array.from_buffers(pa.large_binary(), 1, [None, whole, block]).cast(pa.large_string())
    except (ValueError, pa.ArrowInvalid):  # the latter where it is not UTF-8
        return None
    outside = strings.outside
    brackets = np.flatnonzero((outside == _OPEN) | (outside == _OPEN_LIST))
    line_ends = np.flatnonzero(outside == _LF)
    deepest = np.diff(brackets.searchsorted(line_ends), prepend=0, append=len(brackets)).max()
    return None if deepest > _DEEPEST or _odd_numbers(outside) else strings


def _odd_numbers(outside: NDArray[np.uint8]) -> bool:
    """Whether there may be a number that Arrow accepts and `json` does not: Inf, -NaN, or one of thousands of digits.

    outside: what is not in strings.
    """
    if np.isin(outside, _NAMED).any() and _ODD.search(outside.tobytes()):
        return True
    samples = outside[::_SAMPLED]
    runs = samples[: len(samples) // _DIGITS * _DIGITS].reshape(-1, _DIGITS)
    return bool(((runs >= ord("0")) & (runs <= ord("9"))).all(axis=1).any())


def _parse_line(line: bytes, selection: Selection) -> dict[str, str | None]:
    if why := why_not_decoded(line, selection.encoding):
        raise ValueError(f"the line {why}")
    try:
        value = json.loads(line.decode(UTF8))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object but {_kind(value)}")
    row: dict[str, str | None] = {}
    needed = _needed(selection)
    for name in selection.columns:
        if name not in value and name in needed:
            raise ValueError(f"no key {name!r}")
        item = value.get(name)
        if name in selection.text and not isinstance(item, str | None):
            raise ValueError(f"the text {name!r} is {_kind(item)}, not a string")
        row[name] = item if isinstance(item, str | None) else json.dumps(item, ensure_ascii=False)
        try:
            (row[name] or "").encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{name!r} holds half of a surrogate pair") from error
    return row


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")
