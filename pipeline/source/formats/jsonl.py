"""JSON Lines: one object per line. Blank lines are skipped.

A block of lines goes through Arrow's parser, which parses all columns together and releases the GIL. If Arrow may
refuse a line, or parse it differently from Python's `json`, the line goes through `json`, so the result for a line
never depends on its neighbours. Such lines are found beforehand if possible, and otherwise in smaller and smaller parts
of the block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import json as pa_json

from ...errors import SourceError
from ..rows.assemble import assemble
from ..rows.chunk import BadRow, Chunk, RowsByName, Selection, commonest_rows, concat
from ..rows.columns import finite, is_unicode, keys_within, not_utf8, printable_name, value_at, value_or_none
from ..rows.compression import UTF8, why_not_decoded
from ..rows.format import InputFile, Schema
from ..rows.layouts import holds
from .json_strings import Lines, Taken, are_plain, distinct, lines_refused, pieces, taken_out
from .record_format import Head, RecordFormat
from .records import Records, Split, split_lines

_BLANK = b" \t\r"
_IS_BLANK = np.zeros(256, np.bool_)
_IS_BLANK[list(_BLANK)] = True
_OPEN, _CLOSE = b"{}"

_ARROW_NUMBERS = re.compile(r'"(?:[^"\\]|\\.)*+"|(?P<nan>-NaN)|(?P<infinity>Inf)(?!inity)')
"""Matches numbers outside of strings that Arrow accepts and `json` does not."""

_DIGIT = re.compile("[1-9]")

_MINUS_ZERO = re.compile(rb"-0[ \t\r]*[],}]")
"""Matches what may be an integer that Arrow reads as 0, without its sign."""

_PARTS, _FEW = 16, 128
"""A block with a line that Arrow refuses is cut into 16 parts; 128 lines or fewer go through `json` instead."""

_LINES_WITH_TYPES = 4
"""About how many lines of a block, at even distances, are examined to find the types of its values, until one line has
them.
"""

_LINES_WITH_KEYS = 100
"""How many first lines show which columns a file has. Further lines are examined if they may have columns that the job
uses.
"""


class Jsonl(RecordFormat):
    """JSON Lines. The text must be a string or null. Other columns become strings, as JSON writes their values. A kept
    column is null if a row lacks the key.
    """

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")

    @property
    def is_read_on_gpu(self) -> bool:
        return self.encoding == UTF8

    def split(self, buffer: bytes, final: bool) -> Split:
        """Return the lines that are not blank."""
        lines = split_lines(buffer, final, self.limits)
        is_filled = lines.ends > lines.starts
        begin = np.frombuffer(buffer, np.uint8)[lines.starts[is_filled]]
        for i in np.flatnonzero(is_filled)[_IS_BLANK[begin]]:
            is_filled[i] = bool(buffer[lines.starts[i] : lines.ends[i]].strip(_BLANK))
        if is_filled.all():
            return lines
        filled_lines = np.flatnonzero(is_filled)
        problems = {int(np.searchsorted(filled_lines, i)): reason for i, reason in lines.problems.items()}
        return Split(lines.starts[filled_lines], lines.ends[filled_lines], problems, lines.consumed, lines.overlong)

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        """Return the keys of the first lines that are objects, up to the line at which all columns that the job uses
        are found. If no line is an object, return these columns: each row has its own keys.
        """
        # Read first lines until all columns that the job uses are found.
        wanted_columns = {*(selection.text or ("text",)), *selection.columns}
        last_line = _LINES_WITH_KEYS - 1
        first_enough = last_line if selection.keep_all and not selection.kept_types else 0
        for head in self.heads(file):
            keys: dict[str, None] = {}
            within: dict[str, pa.DataType] = {}
            lines, absent = 0, wanted_columns
            for lines, line in enumerate(_lines(head)):
                if not lines and _is_array(line):
                    raise SourceError(
                        f"{file.path}: it holds a JSON array, not an object a line: convert it "
                        "(jq -c '.[]' FILE > FILE.jsonl)"
                    )
                if not lines and _goes_on(line, head.data):
                    raise SourceError(
                        f"{file.path}: it holds objects of several lines, not an object a line: convert it "
                        "(jq -c . FILE > FILE.jsonl)"
                    )
                values = _object_on(line)
                keys |= dict.fromkeys(filter(is_unicode, values))
                within |= dict.fromkeys(filter(is_unicode, keys_within(values)), pa.string())
                absent = wanted_columns - keys.keys() - within.keys()
                if lines >= first_enough and not absent:
                    break
                if lines == last_line and not any(_occurs(name, head) for name in absent):
                    break  # the rest of the head does not have these columns
            if lines >= first_enough and not absent:
                break
        # A column that is missing in these lines may still occur further on.
        needed = {*(selection.text or ("text",)), *selection.needed}
        is_complete = bool(keys) and not all(_occurs(name, head) for name in needed & absent)
        names = tuple(keys) or selection.columns or ("text",)
        gone = frozenset(name for name in absent - needed if not _occurs(name, head))
        return Schema(names, within, start=head.start, complete=is_complete, absent=gone if keys else frozenset())

    def parse(self, records: Records, path: str, first_row: int, selection: Selection) -> Chunk:
        return concat(list(_chunks(records, path, first_row, selection)))


def _lines(head: Head) -> Iterator[bytes]:
    """Yield the lines that are not blank, without their ends, as `split` finds them."""
    data, at = head.data, 0
    while (end := data.find(b"\n", at)) >= 0 or (head.final and at < len(data)):
        end = len(data) if end < 0 else end
        line, at = data[at:end].removesuffix(b"\r"), end + 1
        if line.strip(_BLANK):
            yield line


def _is_array(line: bytes) -> bool:
    """Whether a line begins an array of objects, which may end on another line."""
    if not line.lstrip(_BLANK).startswith(b"["):
        return False
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return True
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _occurs(name: str, head: Head) -> bool:
    """Whether a key with this name may occur."""
    return f'"{name.rpartition(".")[2]}"'.encode(errors="surrogateescape") in head.data


def _goes_on(line: bytes, data: bytes) -> bool:
    """Whether the data begin with an object of several lines. line: the first line that is not blank."""
    if _object_on(line) or not line.lstrip(_BLANK).startswith(b"{"):
        return False
    text = data.decode(UTF8, "replace").lstrip()
    with suppress(ValueError, RecursionError):
        value, end = json.JSONDecoder().raw_decode(text)
        return isinstance(value, dict) and "\n" in text[:end]
    return False


def _object_on(line: bytes) -> dict[str, Any]:
    """Return the object on a line, or an empty one if there is none."""
    try:
        value = _value(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def parse_one_by_one(records: Records, path: str, first_row: int, selection: Selection) -> Chunk:
    """Return a chunk of `records`, each parsed by `json`. The first of them is record `first_row` of the file."""
    none = pa.table({name: pa.array([], pa.large_string()) for name in selection.columns})
    return _merged(records, _Parsed(none, np.ones(len(records), np.bool_), {}), path, first_row, selection)


class _Types(NamedTuple):
    """The types of the values that one line of a block has, which the other lines are then parsed with.

    Attributes
    ----------
    schema : pyarrow.Schema
        The types of the selected values.
    key : str
        The key of the longest string among them.
    is_last : bool
        Whether that string is the last value of the line.

    """

    schema: pa.Schema
    key: str
    is_last: bool

    @property
    def has_integers(self) -> bool:
        return any(holds(kind, pa.types.is_int64) for kind in self.schema.types)


class _Parsed(NamedTuple):
    """Lines that Arrow has parsed.

    Attributes
    ----------
    table : pyarrow.Table
        The selected columns of these lines.
    odd : ndarray
        bool [lines of the block]: which lines are not among them.
    not_copied : mapping of str to ndarray
        The numbers of lines of the block by key (see `Chunk`).

    """

    table: pa.Table
    odd: NDArray[np.bool_]
    not_copied: RowsByName


def _chunks(records: Records, path: str, first_row: int, selection: Selection) -> Iterator[Chunk]:
    """Yield chunks of `records`. The first of these is record `first_row` of the file. There is one chunk if the odd
    lines can be found.
    """
    if (types := _types(records, selection)) is None:
        yield parse_one_by_one(records, path, first_row, selection)
        return
    odd = np.zeros(len(records), np.bool_)
    odd[list(records.problems)] = True
    parsed = _parse_at_once(records, odd, types, selection)
    if parsed is None and (refused := _refused(records)).any():
        parsed = _parse_at_once(records, odd | refused, types, selection)
    if parsed is not None:
        yield _merged(records, parsed, path, first_row, selection)
    elif len(records) <= _FEW:
        yield parse_one_by_one(records, path, first_row, selection)
    else:
        step = max(_FEW, -(-len(records) // _PARTS))
        for at in range(0, len(records), step):
            yield from _chunks(records.slice(at, at + step), path, first_row + at, selection)


def _merged(records: Records, parsed: _Parsed, path: str, first_row: int, selection: Selection) -> Chunk:
    """Return a chunk of all lines: those that Arrow has parsed, and the odd ones, which are parsed here.

    Parameters
    ----------
    records : Records
        The lines.
    parsed : _Parsed
        The lines that Arrow has parsed.
    path, first_row, selection
        See `assemble`. `first_row` is the number of the first line in the file.

    """
    table, odd, not_copied = parsed
    keys_alone: dict[str, list[int]] = {}
    numbers = np.flatnonzero(~odd)
    bad = records.bad_rows(first_row)
    rows: list[dict[str, str | None]] = []
    alone = []
    # Parse the odd lines one by one. Those that cannot be parsed go to the quarantine.
    for i in np.flatnonzero(odd).tolist():
        if i in records.problems:
            continue
        try:
            row, keys = _parse_line(records.data[records.starts[i] : records.ends[i]], selection)
            rows.append(row)
            for key in keys:
                keys_alone.setdefault(key, []).append(i)
            alone.append(i)
        except ValueError as error:
            offset, head = records.raw(i)
            bad.append(BadRow(first_row + i, offset, str(error), head))
    # Put their rows among the others, in the order of the file.
    if rows:
        numbers = np.concatenate([numbers, alone])
        order = np.argsort(numbers)
        numbers = numbers[order]
        others = pa.Table.from_pylist(rows, pa.schema([(name, pa.large_string()) for name in selection.columns]))
        table = pa.concat_tables([table, others]).take(pa.array(order))
    # Join the keys that are not copied, and make the chunk.
    raw = records.raw if len(numbers) == len(records) else lambda i: records.raw(int(numbers[i]))
    by_key = commonest_rows([not_copied, {key: np.array(lines, np.int64) for key, lines in keys_alone.items()}])
    rows_by_key = {key: first_row + np.sort(lines) for key, lines in by_key.items()}
    return assemble(path, first_row + numbers, table, selection, raw, bad, is_utf8=True, not_copied=rows_by_key)


def _parse_at_once(records: Records, odd: NDArray[np.bool_], types: _Types, selection: Selection) -> _Parsed | None:
    """Parse all lines by Arrow except the odd ones and those with a null that may be a missing key. Return None if
    another line must be parsed alone.
    """
    usual = _without(records, odd)
    if not len(usual):
        return None
    # Take the longest texts out, so that the parser does not copy them byte by byte.
    lines = _lines_of(usual)
    try:
        if not _may_be_json(lines):
            return None
        if (taken := taken_out(lines, types.key, types.is_last)) is not None:
            lines = taken.left
        # If only these texts are needed, it is enough to parse lines that differ.
        is_all = taken is not None and len(taken.which) == len(usual) and types.schema.names == [types.key]
        is_all = is_all and not selection.keep_all
        if is_all and not _DIGIT.search(types.key):
            lines = distinct(lines)
        # Parse the rest, unless Arrow and `json` might read it differently.
        if types.has_integers and _MINUS_ZERO.search(lines.block):
            return None
        if not are_plain(lines):
            return None
        unexpected = "infer" if selection.keep_all else "ignore"
        parse = pa_json.ParseOptions(explicit_schema=types.schema, unexpected_field_behavior=unexpected)
        read = pa_json.ReadOptions(use_threads=False, block_size=len(lines.block) + 1)
        table = pa_json.read_json(pa.BufferReader(lines.block), read, parse)
    except ValueError:  # Arrow's errors are ValueErrors, and so is the one for a message that quotes invalid UTF-8
        return None
    if len(table) != len(lines.starts):
        return None
    if taken is not None and is_all:
        return _Parsed(pa.table({types.key: taken.texts}), odd, {})
    # Select the columns, and put the texts back.
    others = table.drop_columns(types.schema.names)
    table = pa.table({name: _strings(table, name) for name in selection.columns})
    if taken is not None:
        table = _with_taken(table, types.key, taken)
    # Lines with a null in a column that each row needs must be parsed alone: the key may be missing.
    needed = [table.column(name) for name in selection.needed if table.column(name).null_count]
    if needed:
        null = np.logical_or.reduce([column.is_null().to_numpy() for column in needed])
        odd = odd.copy()
        odd[np.flatnonzero(~odd)[null]] = True
        table, others = (rows.filter(pa.array(~null)) for rows in (table, others))
    # Note the rows of keys that are not copied.
    numbers, columns = np.flatnonzero(~odd), zip(others.column_names, others.columns, strict=True)
    rows = {name: numbers[column.is_valid().to_numpy()] for name, column in columns}
    return _Parsed(table, odd, commonest_rows([{name: found for name, found in rows.items() if len(found)}]))


def _strings(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column as strings. A name with dots works as in `value_at`."""
    column = table.column(name).cast(pa.large_string())
    if "." not in name:
        return column
    first, *rest = name.split(".")
    return pc.coalesce(column, pc.struct_field(table.column(first), rest).cast(pa.large_string()))


def _with_taken(table: pa.Table, name: str, taken: Taken) -> pa.Table:
    """Return the table with the texts that were taken out of its lines, in the column `name`."""
    texts = taken.texts
    if len(texts) < len(table):
        which = np.arange(len(table))
        which[taken.which] = len(table) + np.arange(len(texts))
        texts = pa.chunked_array([*table.column(name).chunks, texts]).take(pa.array(which))
    return table.set_column(table.column_names.index(name), name, texts)


def _without(records: Records, odd: NDArray[np.bool_]) -> Records:
    """Return the lines that are not odd, one after the other."""
    if not odd.any():
        return records
    usual = np.flatnonzero(~odd)
    if not len(usual):
        return records.slice(0, 0)
    breaks = np.flatnonzero(np.diff(usual) > 1) + 1
    first, last = usual[np.append(0, breaks)], usual[np.append(breaks, len(usual)) - 1]
    begin, end = records.starts[first], records.ends[last]
    data = memoryview(records.data)
    block = b"\n".join([data[b:e] for b, e in zip(begin.tolist(), end.tolist(), strict=True)])
    moved = np.cumsum(np.append(0, end - begin + 1))[:-1] - begin
    by = np.repeat(moved, last - first + 1)
    return Records(block, records.starts[usual] + by, records.ends[usual] + by, records.offsets[usual], {})


def _refused(records: Records) -> NDArray[np.bool_]:
    """Return which lines Arrow may refuse or read differently, as far as this can be found without parsing them: bool
    [lines].
    """
    lines = _lines_of(records)
    odd: NDArray[np.bool_] = ~_are_objects(lines)
    odd[lines_refused(lines.data, lines.starts)] = True
    odd[not_utf8(lines.texts)] = True
    minus_zeros = [place.start() for place in _MINUS_ZERO.finditer(lines.block)]
    odd[lines.starts.searchsorted(minus_zeros, "right") - 1] = True
    return odd


def _lines_of(records: Records) -> Lines:
    begin, end = int(records.starts[0]), int(records.ends[-1])
    return Lines(pa.py_buffer(records.data)[begin:end], records.starts - begin, records.ends - begin)


def _types(records: Records, selection: Selection) -> _Types | None:
    """Return the types on the first of some lines that Arrow can parse, or None if it can parse none of them."""
    for i in range(0, len(records), max(1, len(records) // _LINES_WITH_TYPES)):
        types = _types_on(records.data[records.starts[i] : records.ends[i]], selection)
        if types is not None:
            return types
    return None


def _types_on(line: bytes, selection: Selection) -> _Types | None:
    """Return the types of a line's selected values: strings, or integers in columns other than the text. With a
    template, the text may have integers too.
    """
    try:
        value = _value(line)
        values = {name: value_at(value, name) for name in selection.needed}
        values |= {name: value_or_none(value, name) for name in selection.kept_columns}
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    kinds = {name: type(item) for name, item in values.items()}
    kinds = {name: str if kind is type(None) and name != selection.truth else kind for name, kind in kinds.items()}
    strings = () if selection.join else selection.text
    if any(kind is not str and (kind is not int or name in strings) for name, kind in kinds.items()):
        return None
    schema = _with_structs({name: pa.large_string() if kind is str else pa.int64() for name, kind in kinds.items()})
    longest = max(values, key=lambda name: len(values[name]) if isinstance(values[name], str) else 0)
    return None if schema is None else _Types(schema, longest, next(reversed(value)) == longest)


def _with_structs(kinds: dict[str, pa.DataType]) -> pa.Schema | None:
    """Return a schema of columns with these types, and of the structs to which names with dots may lead. Return None if
    one column is within another.
    """
    tree: dict[str, Any] = {}
    for name, kind in kinds.items():
        # A name with dots may be a key itself, or lead to a key of an object within the object.
        for *way, last in dict.fromkeys([(name,), tuple(name.split("."))]):
            node = tree
            for part in way:
                node = node.setdefault(part, {})
                if not isinstance(node, dict):
                    return None
            if last in node:
                return None
            node[last] = kind
    return pa.schema(_as_fields(tree))


def _as_fields(tree: dict[str, Any]) -> list[pa.Field]:
    kinds = {name: pa.struct(_as_fields(kind)) if isinstance(kind, dict) else kind for name, kind in tree.items()}
    return [pa.field(name, kind) for name, kind in kinds.items()]


def _may_be_json(lines: Lines) -> bool:
    """Whether each line begins and ends like an object. Raises ArrowInvalid if a line is not UTF-8.

    A line from "{" to "}" that is not a whole object cannot be followed by "{", so objects do not span lines.
    """
    if not _are_objects(lines).all():
        return False
    if lines.data.max(initial=0) >= 0x80:
        pieces(lines.block, np.array([0, len(lines.block)])).cast(pa.large_string())
    return True


def _are_objects(lines: Lines) -> NDArray[np.bool_]:
    """Return which lines begin and end like an object: bool [lines]."""
    data = lines.data
    return np.asarray((data[lines.starts] == _OPEN) & (data[lines.ends - 1] == _CLOSE))


def _parse_line(line: bytes, selection: Selection) -> tuple[dict[str, str | None], list[str]]:
    """Return the selected values on a line, and the keys that should be copied and are not. Raises ValueError."""
    # Parse the line.
    if why := why_not_decoded(line, selection.encoding):
        raise ValueError(f"the line {why}")
    try:
        value = _value(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object but {_kind(value)}")
    # Get the value of each column as text.
    row: dict[str, str | None] = {}
    for name in selection.columns:
        try:
            item = value_at(value, name)
        except KeyError:
            if name in selection.needed:
                raise ValueError(f"no key {name!r}") from None
            item = None
        if name in selection.text and not isinstance(item, _JOINED if selection.join else str | None):
            raise ValueError(f"the text {name!r} is {_kind(item)}, not a string")
        try:
            row[name] = item if isinstance(item, str | None) else _written(item)
            (row[name] or "").encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{name!r} holds half of a surrogate pair") from error
        except RecursionError as error:
            raise ValueError(f"{name!r} is nested too deeply") from error
    # If all columns are copied, return the keys that the first lines did not have.
    if not selection.keep_all:
        return row, []
    return row, [printable_name(key) for key, item in value.items() if item is not None and key not in row]


def _value(line: bytes) -> Any:
    """Return the value on a line as `json` reads it, which takes NaN and Infinity for numbers. Like Arrow, this also
    takes Inf and -NaN. Raises ValueError or RecursionError.
    """
    text = line.decode(UTF8)
    parse = partial(json.loads, parse_float=_Number, parse_int=_integer)
    try:
        return parse(text)
    except ValueError:
        as_json = _ARROW_NUMBERS.sub(_number_as_json, text)
        if as_json == text:
            raise
        with suppress(ValueError):
            return parse(as_json)
        raise


def _integer(digits: str) -> int | _Number:
    return _Number(digits) if digits == "-0" else int(digits)


@dataclass(frozen=True, slots=True)
class _Number:
    """A number as it is written: -0, or one that is not an integer, because a float might have other digits."""

    text: str


def _written(value: Any) -> str:
    """Return a value as `json.dumps` writes it, but with the digits of its numbers unchanged. Within an object or an
    array, a NaN or an infinity becomes null, because JSON has neither.
    """
    if isinstance(value, dict):
        members = (f"{json.dumps(key, ensure_ascii=False)}: {_written(finite(item))}" for key, item in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_written(finite(item)) for item in value)}]"
    return value.text if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)


_JOINED = str | bool | int | _Number | None
"""The types of values that a template joins."""


def _number_as_json(match: re.Match[str]) -> str:
    return {"nan": "NaN", "infinity": "Infinity"}.get(match.lastgroup or "", match[0])


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")
