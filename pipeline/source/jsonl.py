"""JSON Lines: an object a line, blank lines passed over."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.source.chunk import BadRow, Chunk, Selection, assemble
from pipeline.source.records import Records, Split, split_lines

_BLANK = b" \t\r"


def split_objects(buffer: bytes, final: bool) -> Split:
    """The lines that hold more than white space."""
    lines = split_lines(buffer, final)
    spans = zip(lines.starts.tolist(), lines.ends.tolist(), strict=True)
    keep = np.array([end > start and bool(buffer[start:end].strip(_BLANK)) for start, end in spans], np.bool_)
    if keep.all():
        return lines
    kept = np.flatnonzero(keep)
    problems = {int(np.searchsorted(kept, i)): reason for i, reason in lines.problems.items()}
    return Split(lines.starts[kept], lines.ends[kept], problems, lines.consumed, lines.overlong)


def keys_of(line: bytes) -> tuple[str, ...]:
    """The keys of the object on a line; none where it is not an object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return ()
    return tuple(value) if isinstance(value, dict) else ()


def parse(records: Records, file: str, first_row: int, selection: Selection) -> Chunk:
    """A chunk of `records`, the first of which is record `first_row` of `file`.

    Text must be a string or null. Ids and truths are turned into strings as JSON writes them. Each line is parsed
    alone, so that a bad one changes nothing about the others.
    """
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
    return assemble(file, numbers, table, selection, lambda i: records.raw(kept[i]), bad)


def _parse_line(line: bytes, selection: Selection) -> dict[str, str | None]:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"the line is not UTF-8: byte {error.start} of it is 0x{line[error.start]:02x}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object but {_kind(value)}")
    row: dict[str, str | None] = {}
    for name in selection.columns:
        if name not in value:
            raise ValueError(f"no key {name!r}")
        item = value[name]
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
