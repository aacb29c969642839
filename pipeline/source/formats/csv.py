"""CSV and TSV: records found by a quote-aware scan, fields taken apart by pyarrow.

The scan follows the state machine of pyarrow's parser (RFC 4180: a quote counts only at a field's start, a doubled one
stands for itself, backslash is no escape), so both agree on what a record is; that gives rows their numbers and files
their safe places to be cut. A record with the wrong number of fields that spans several lines is taken for a quote
left open: its first line alone is bad, and reading resumes at the next line.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as pa_csv

from pipeline.errors import SourceError
from pipeline.source.chunk import FIELD_LIMIT, Chunk, Selection, assemble
from pipeline.source.files import InputFile
from pipeline.source.records import Records, Split

_QUOTE, _LF, _CR = 0x22, 0x0A, 0x0D
_QUOTED = re.compile(rb'"(?:[^"]++|"")*+"')
_LINE_END = re.compile(rb"[\r\n]")
csv.field_size_limit(FIELD_LIMIT)
_LONG_LINE = f"a line is longer than {FIELD_LIMIT >> 20} MiB"
_OPEN_QUOTE = f"a quoted field is not closed within {FIELD_LIMIT >> 20} MiB or before the end"


@dataclass(frozen=True)
class Dialect:
    """delimiter: one ASCII character. fields: how many each record must have, or None while the header is read."""

    delimiter: str
    fields: int | None
    _rest: re.Pattern[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rest", re.compile(rb"[^\r\n%s]*+" % re.escape(self.delimiter.encode())))

    def __call__(self, buffer: bytes, final: bool) -> Split:
        """The records of a buffer that begins at one: vectorised up to the first oddity, exact from there."""
        found = _split_regular(buffer, ord(self.delimiter), self.fields, final)
        starts: list[int] = []
        ends: list[int] = []
        problems, at, overlong = found.problems, found.consumed, b""
        while at < len(buffer):
            record = self._record(buffer, at, final)
            if record is None:
                if len(buffer) - at > FIELD_LIMIT and not _LINE_END.search(buffer, at):
                    overlong = b"\r\n"
                break
            end, behind, problem = record
            if end > at:  # a blank line is no record
                if problem:
                    problems[len(found.starts) + len(starts)] = problem
                starts.append(at)
                ends.append(end)
            at = behind
        if not starts:
            return Split(found.starts, found.ends, problems, at, overlong)
        return Split(np.append(found.starts, starts), np.append(found.ends, ends), problems, at, overlong)

    def _record(self, buffer: bytes, at: int, final: bool) -> tuple[int, int, str | None] | None:
        """End, place behind the line end, and problem of the record at `at`; None if more bytes are needed."""
        position, fields, total = at, 0, len(buffer)
        behind: int | None
        while True:
            begin = position
            if buffer[position : position + 1] == b'"':
                quoted = _QUOTED.match(buffer, position)
                if quoted is None or quoted.end() - begin > FIELD_LIMIT:
                    if final or total - begin > FIELD_LIMIT:
                        return self._first_line(buffer, at, final, _OPEN_QUOTE)
                    return None
                position = quoted.end()
                if position == total and not final:
                    return None  # this quote may be the first of a doubled one
            rest = self._rest.match(buffer, position)
            position = rest.end() if rest else position
            fields += 1
            if position - begin > FIELD_LIMIT:
                return self._first_line(buffer, at, final, f"a field is longer than {FIELD_LIMIT >> 20} MiB")
            if position == total:
                if not final:
                    return None
                behind = position
            elif buffer[position] == ord(self.delimiter):
                position += 1
                continue
            else:
                behind = _behind_line_end(buffer, position, final)
                if behind is None:
                    return None
            if position - at > FIELD_LIMIT and not _LINE_END.search(buffer, at, at + FIELD_LIMIT):
                return self._first_line(buffer, at, final, _LONG_LINE)
            if self.fields in (None, fields) or position == at:
                return position, behind, None
            problem = f"expected {self.fields} fields, found {fields}"
            if _LINE_END.search(buffer, at, position):
                return self._first_line(buffer, at, final, problem + " (a quote left open?)")
            return position, behind, problem

    @staticmethod
    def _first_line(buffer: bytes, at: int, final: bool, problem: str) -> tuple[int, int, str] | None:
        line = _LINE_END.search(buffer, at)
        if line is None:
            return (len(buffer), len(buffer), problem) if final else None
        behind = _behind_line_end(buffer, line.start(), final)
        return None if behind is None else (line.start(), behind, problem)


def _behind_line_end(buffer: bytes, at: int, final: bool) -> int | None:
    """The place behind the LF, CRLF or CR at `at`; None if it cannot be told yet."""
    if buffer[at] == _LF:
        return at + 1
    if at + 1 == len(buffer) and not final:
        return None
    return at + 2 if buffer[at + 1 : at + 2] == b"\n" else at + 1


def _split_regular(buffer: bytes, delimiter: int, fields: int | None, final: bool) -> Split:
    """All records up to the first that needs an exact look, by counting quotes: inside after an odd number.

    That count is right as long as every quote stands where a quoted field may open or close.
    """
    array = np.frombuffer(buffer, np.uint8)
    breaks = np.flatnonzero((array == _LF) | (array == _CR))
    if len(breaks) and breaks[-1] == len(array) - 1 and array[-1] == _CR and not final:
        breaks = breaks[:-1]
    second = (array[breaks] == _LF) & (breaks > 0) & (array[breaks - 1] == _CR)  # the LF of a CRLF
    line_ends = breaks = breaks[~second]
    quotes = np.flatnonzero(array == _QUOTE)
    delimiters = np.flatnonzero(array == delimiter)
    if len(quotes):
        line_ends = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
        delimiters = delimiters[np.searchsorted(quotes, delimiters) % 2 == 0]
        odd = _first_misplaced(array, quotes, delimiter)
        line_ends = line_ends[: np.searchsorted(line_ends, odd)]
    crlf = np.zeros(len(line_ends), np.int64)
    inner = line_ends + 1 < len(array)
    crlf[inner] = (array[line_ends[inner]] == _CR) & (array[line_ends[inner] + 1] == _LF)
    behind = line_ends + 1 + crlf
    starts = np.concatenate([[0], behind[:-1]]).astype(np.int64)[: len(line_ends)]
    counts = np.searchsorted(delimiters, line_ends) - np.searchsorted(delimiters, starts) + 1
    blank = line_ends == starts
    wrong = (counts != fields) & ~blank if fields is not None else np.zeros(len(starts), np.bool_)
    spans = np.searchsorted(breaks, line_ends) > np.searchsorted(breaks, starts)
    exact = np.flatnonzero((wrong & spans) | (line_ends - starts > FIELD_LIMIT))
    stop = int(exact[0]) if len(exact) else len(starts)
    consumed = int(behind[stop - 1]) if stop else 0
    keep = np.flatnonzero(~blank[:stop])
    problems = {
        int(i): f"expected {fields} fields, found {counts[keep[i]]}" for i in np.flatnonzero(wrong[:stop][keep])
    }
    return Split(starts[keep], line_ends[keep], problems, consumed)


def _first_misplaced(array: NDArray[np.uint8], quotes: NDArray[np.int64], delimiter: int) -> int:
    """The first quote that stands neither where a field opens or closes nor beside another quote; else the length."""
    may_touch = np.zeros(256, np.bool_)
    may_touch[[delimiter, _LF, _CR]] = True
    adjacent = np.diff(quotes) == 1
    openers, closers = quotes[::2], quotes[1::2]
    good = np.ones(len(quotes), np.bool_)
    good[::2] = may_touch[array[openers - 1]] | (openers == 0)
    good[2::2] |= adjacent[1::2]
    last = closers + 1 == len(array)
    good[1::2] = may_touch[array[np.minimum(closers + 1, len(array) - 1)]] | last
    good[1:-1:2] |= adjacent[1::2][: len(good[1:-1:2])]
    bad = np.flatnonzero(~good)
    return int(quotes[bad[0]]) if len(bad) else len(array)


def fields_of(record: bytes, delimiter: str) -> list[str]:
    """The fields of one record as text (a header). Raises SourceError where they are not UTF-8."""
    try:
        text = record.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"its first line is not UTF-8 ({error.reason})") from error
    return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))


def read_fragment(stream: pa.NativeFile, start: int, stop: int) -> pa.Buffer | None:
    """Bytes start to stop of an open file, with a line end ahead of them; None where the file is shorter."""
    before = max(start - 1, 0)  # in general the end of the line before
    stream.seek(before)
    data = stream.read_buffer(stop - before)
    if len(data) < stop - before:
        return None
    if bytes(data[:1]) not in (b"\n", b"\r"):
        data = pa.py_buffer(b"\n" + data[start - before :].to_pybytes())
    return data


def parse_at_once(data: pa.Buffer, rows: int, first_row: int, file: InputFile, selection: Selection) -> Chunk | None:
    """What `read_fragment` gave, in which the scan found `rows` records and no problem, without another scan.

    None where the parser does not find these records, or a row is for the quarantine, whose byte offset only a scan can
    tell.
    """
    try:
        table = _table(data, file.columns, file.delimiter, selection.columns)
        if len(table) != rows:
            return None
        return assemble(file.path, first_row + np.arange(rows), table, selection, _no_place)
    except (pa.ArrowInvalid, _PlaceWanted):
        return None


class _PlaceWanted(Exception):
    """A row is for the quarantine, and nobody knows where it stands."""


def _no_place(i: int) -> tuple[None, bytes]:
    raise _PlaceWanted


def parse(
    records: Records, names: tuple[str, ...], delimiter: str, file: str, first_row: int, selection: Selection
) -> Chunk:
    """A chunk of `records`, the first of which is record `first_row` of `file`."""
    good = np.ones(len(records), np.bool_)
    good[list(records.problems)] = False
    kept = np.flatnonzero(good)
    if records.problems or not len(kept):
        bounds = list(zip(records.starts[kept].tolist(), records.ends[kept].tolist(), strict=True))
    else:
        bounds = [(int(records.starts[0]), int(records.ends[-1]))]
    table = pa.table({name: pa.array([], pa.binary()) for name in selection.columns})
    if len(kept):
        data = b"\n".join([b"", *(records.data[start:end] for start, end in bounds)])
        table = _table(data, names, delimiter, selection.columns)
    if len(table) != len(kept):
        raise SourceError(f"{file}: {len(kept)} records by the scan, {len(table)} by the parser: please report this")
    bad = records.bad_rows(first_row)
    return assemble(file, first_row + kept, table, selection, lambda i: records.raw(int(kept[i])), bad)


def _table(data: bytes | pa.Buffer, names: tuple[str, ...], delimiter: str, columns: tuple[str, ...]) -> pa.Table:
    """The fields of `columns`, as bytes.

    `data` begins with a line end, which the parser passes over, for at the very start it would drop a byte order mark.
    """
    return pa_csv.read_csv(
        pa.BufferReader(data),
        pa_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
        pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pa_csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.binary()),
            include_columns=list(columns),
            strings_can_be_null=False,
            null_values=[],
            true_values=[],
            false_values=[],
        ),
    )
