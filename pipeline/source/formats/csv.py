"""CSV and TSV: records found by a quote-aware scan, fields parsed by pyarrow.

The scan follows the state machine of pyarrow's parser (RFC 4180: a quote counts only at the start of a field, a doubled
quote stands for one, a backslash is no escape), so both agree on what a record is. That gives rows their numbers, and
files the positions at which they can be cut. A record with the wrong number of fields that spans several lines is taken
as a quote left open: only its first line is bad, and reading resumes at the next line.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as pa_csv

from ...errors import SourceError, UsageError
from ..chunk import Chunk, Selection, assemble
from ..compression import UTF8, why_not_decoded
from ..format import InputFile, Schema
from ..limits import LIMITS, Limits
from .record_format import DELIMITERS, RecordFormat, ScanWanted, no_place, separated_by
from .records import BOM, Guess, Records, Split

_QUOTE, _LF, _CR = 0x22, 0x0A, 0x0D
_QUOTED = re.compile(rb'"(?:[^"]++|"")*+"')
_LINE_END = re.compile(rb"[\r\n]")
csv.field_size_limit(LIMITS.field_bytes)
_OPEN_QUOTE = "a quoted field is not closed within {} MiB or before the end"


@dataclass(frozen=True)
class Dialect:
    """How records are found.

    Attributes
    ----------
    delimiter : str
        One ASCII character.
    fields : int or None
        Fields of each record; None while the header is read.
    limits : Limits
        The sizes to keep to.
    every : bool
        Whether fields are counted in every record; else only in those of several lines, where the count decides whether
        a quote was left open.

    """

    delimiter: str
    fields: int | None
    limits: Limits = LIMITS
    every: bool = True
    _rest: re.Pattern[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rest", re.compile(rb"[^\r\n%s]*+" % re.escape(self.delimiter.encode())))

    def __call__(self, buffer: bytes, final: bool) -> Split:
        """The records of a buffer that begins at one: vectorised up to the first irregular one, then one by one."""
        split = _split_regular(buffer, ord(self.delimiter), self.fields, final, self.limits.field_bytes, self.every)
        starts: list[int] = []
        ends: list[int] = []
        problems, at, overlong = split.problems, split.consumed, b""
        while at < len(buffer):
            record = self._record(buffer, at, final)
            if record is None:
                if len(buffer) - at > self.limits.field_bytes and not _LINE_END.search(buffer, at):
                    overlong = b"\r\n"
                break
            end, after, problem = record
            if end > at:  # a blank line is not a record
                if problem:
                    problems[len(split.starts) + len(starts)] = problem
                starts.append(at)
                ends.append(end)
            at = after
        if not starts:
            return Split(split.starts, split.ends, problems, at, overlong)
        return Split(np.append(split.starts, starts), np.append(split.ends, ends), problems, at, overlong)

    def problem(self, record: bytes) -> str | None:
        """What is wrong with a record."""
        place = self._record(record, 0, True)
        return place[2] if place else None

    def _record(self, buffer: bytes, at: int, final: bool) -> tuple[int, int, str | None] | None:
        """End, position after the line end, and problem of the record at `at`; None if more bytes are needed."""
        position, fields, total, limit = at, 0, len(buffer), self.limits.field_bytes
        after: int | None
        while True:
            begin = position
            if buffer[position : position + 1] == b'"':
                quoted = _QUOTED.match(buffer, position)
                if quoted is None or quoted.end() - begin > limit:
                    if final or total - begin > limit:
                        return self._first_line(buffer, at, final, _OPEN_QUOTE.format(limit >> 20))
                    return None
                position = quoted.end()
                if position == total and not final:
                    return None  # this quote may be the first of a doubled one
            rest = self._rest.match(buffer, position)
            position = rest.end() if rest else position
            fields += 1
            if position - begin > limit:
                return self._first_line(buffer, at, final, f"a field is longer than {limit >> 20} MiB")
            if position == total:
                if not final:
                    return None
                after = position
            elif buffer[position] == ord(self.delimiter):
                position += 1
                continue
            else:
                after = _after_line_end(buffer, position, final)
                if after is None:
                    return None
            if position - at > limit and not _LINE_END.search(buffer, at, at + limit):
                return self._first_line(buffer, at, final, self.limits.long_line)
            if self.fields in (None, fields) or position == at:
                return position, after, None
            problem = f"expected {self.fields} fields, found {fields}"
            if _LINE_END.search(buffer, at, position):
                return self._first_line(buffer, at, final, problem + " (a quote left open?)")
            return position, after, problem

    @staticmethod
    def _first_line(buffer: bytes, at: int, final: bool, problem: str) -> tuple[int, int, str] | None:
        line = _LINE_END.search(buffer, at)
        if line is None:
            return (len(buffer), len(buffer), problem) if final else None
        after = _after_line_end(buffer, line.start(), final)
        return None if after is None else (line.start(), after, problem)


def _after_line_end(buffer: bytes, at: int, final: bool) -> int | None:
    """The position after the LF, CRLF or CR at `at`; None if more bytes are needed."""
    if buffer[at] == _LF:
        return at + 1
    if at + 1 == len(buffer) and not final:
        return None
    return at + 2 if buffer[at + 1 : at + 2] == b"\n" else at + 1


def _split_regular(
    buffer: bytes, delimiter: int, fields: int | None, final: bool, limit: int, every: bool = True
) -> Split:
    """All records up to the first that needs the exact scan, by counting quotes: after an odd number, inside a field.

    The count is right as long as every quote is where a quoted field may open or close.

    Parameters
    ----------
    buffer : bytes
        The buffer, which begins at a record.
    delimiter : int
        The byte between two fields.
    fields, every
        As of `Dialect`.
    final : bool
        Whether the stream ends with the buffer.
    limit : int
        A record of more bytes needs the exact scan.

    """
    array = np.frombuffer(buffer, np.uint8)
    has_cr = b"\r" in buffer
    is_mark = (array == _LF) | (array == _QUOTE)
    marks = np.flatnonzero(is_mark | (array == _CR) if has_cr else is_mark)
    is_quote = array[marks] == _QUOTE
    quotes, breaks = marks[is_quote], marks[~is_quote]
    ends = np.flatnonzero((np.cumsum(is_quote) & 1 == 0)[~is_quote])  # which line ends are outside of quotes
    if has_cr:
        second = (array[breaks] == _LF) & (breaks > 0) & (array[breaks - 1] == _CR)  # the LF of a CRLF
        if breaks[-1] == len(array) - 1 and array[-1] == _CR and not final:
            second[-1] = True  # or the first half of one
        ends = (np.cumsum(~second) - 1)[ends[~second[ends]]]
        breaks = breaks[~second]
    if len(quotes):
        ends = ends[: np.searchsorted(breaks[ends], _first_misplaced(array, quotes, delimiter))]
    line_ends = breaks[ends]
    after = line_ends + 1
    if has_cr:
        inner = np.flatnonzero(after < len(array))
        after[inner] += (array[line_ends[inner]] == _CR) & (array[after[inner]] == _LF)
    starts = np.append(0, after[:-1])[: len(after)]
    blank, spans = line_ends == starts, np.diff(ends, prepend=-1) > 1
    counts = wrong = None
    exact = line_ends - starts > limit
    if fields is not None and (every or spans.any()):
        counts = _fields(array, quotes, delimiter, starts, line_ends)
        wrong = (counts != fields) & ~blank
        exact |= wrong & spans
    stop = int(exact.argmax()) if exact.any() else len(starts)
    consumed = int(after[stop - 1]) if stop else 0
    keep = np.flatnonzero(~blank[:stop])
    problems = {}
    if counts is not None and wrong is not None:
        bad = np.flatnonzero(wrong[:stop][keep])
        problems = {int(i): f"expected {fields} fields, found {counts[keep[i]]}" for i in bad}
    return Split(starts[keep], line_ends[keep], problems, consumed)


def _fields(
    array: NDArray[np.uint8],
    quotes: NDArray[np.int64],
    delimiter: int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.int64]:
    """How many fields records have, if all quotes are where a quoted field may open or close.

    Parameters
    ----------
    array : ndarray
        uint8, the bytes of the buffer.
    quotes : ndarray
        int64, where the quotes are.
    delimiter : int
        The byte between two fields.
    starts, ends : ndarray
        int64 [n], where the records begin and end.

    """
    delimiters = np.flatnonzero(array == delimiter)
    if len(quotes):
        delimiters = delimiters[np.searchsorted(quotes, delimiters) & 1 == 0]
    counts: NDArray[np.int64] = np.searchsorted(delimiters, ends) - np.searchsorted(delimiters, starts) + 1
    return counts


def _first_misplaced(array: NDArray[np.uint8], quotes: NDArray[np.int64], delimiter: int) -> int:
    """The first quote that neither opens nor closes a field nor is next to another quote; else the length.

    Counted from the start, every other quote opens a field, and the one after it closes that. A closing quote directly
    before an opening one is no end of a field: the two are a doubled quote, which stands for one within the field.
    """
    may_touch = np.zeros(256, np.bool_)
    may_touch[[delimiter, _LF, _CR]] = True
    openers, closers = quotes[::2], quotes[1::2]
    doubled = (np.diff(quotes) == 1)[1::2]  # whether closer i is directly before opener i + 1
    opens = may_touch[array[openers - 1]] | (openers == 0)
    opens[1:] |= doubled
    closes = may_touch[array[np.minimum(closers + 1, len(array) - 1)]] | (closers + 1 == len(array))
    closes[: len(doubled)] |= doubled
    good = np.empty(len(quotes), np.bool_)
    good[::2], good[1::2] = opens, closes
    bad = np.flatnonzero(~good)
    return int(quotes[bad[0]]) if len(bad) else len(array)


@dataclass(frozen=True)
class Csv(RecordFormat):
    """Files of comma-separated values.

    Attributes
    ----------
    delimiter : str
        One ASCII character.
    columns : tuple of str
        The names of a file's fields, in order; empty until they are known.

    """

    name = "csv"
    suffixes = (".csv",)
    takes_header = True
    boundary: ClassVar[re.Pattern[bytes]] = re.compile(rb"\r\n|\n|\r")

    delimiter: str = ","
    columns: tuple[str, ...] = ()

    def for_options(self, encoding: str, delimiter: str | None) -> Csv:
        return replace(self, encoding=encoding, delimiter=delimiter or self.delimiter)

    def for_columns(self, names: tuple[str, ...]) -> Csv:
        return replace(self, columns=names)

    def split(self, buffer: bytes, final: bool) -> Split:
        """The records, each with a field for each of `columns`."""
        return self._dialect(buffer, final)

    def quick_split(self, buffer: bytes, final: bool) -> Split:
        """The same, with fields counted by the parser: it refuses all records where one has too few or too many."""
        return replace(self._dialect, every=False)(buffer, final)

    @property
    def _dialect(self) -> Dialect:
        return Dialect(self.delimiter, len(self.columns), self.limits)

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        header = selection.header
        dialect = Dialect(self.delimiter, None if header is None else len(header), self.limits)
        for head in self.heads(file):
            records = dialect(head.data, head.final)
            if len(records.starts) > max(1, len(records.problems)):
                break
        if header is not None:
            if len(records.starts) and len(records.problems) == len(records.starts):
                first = head.data[records.starts[0] : records.ends[0]].decode(UTF8, "replace")
                other = next((c for c in DELIMITERS if c != self.delimiter and first.count(c) == len(header) - 1), None)
                hint = f"; {separated_by(other)}" if other and len(header) > 1 else ""
                raise UsageError(f"{file.path}: {len(header)} columns are named; {records.problems[0]}{hint}")
            return Schema(header, start=head.start)
        if not len(records.starts):
            if head.failure:
                raise head.failure
            longer = f"its first record is longer than {self.limits.block_bytes >> 20} MiB"
            raise SourceError(f"{file.path}: {'the file holds no record' if head.final else longer}")
        names = self._header(head.data[records.starts[0] : records.ends[0]], file.path)
        after = int(records.starts[1]) if len(records.starts) > 1 else records.consumed
        return Schema(names, start=head.start + after)

    def _header(self, record: bytes, path: str) -> tuple[str, ...]:
        """The fields of a file's first record. Raises SourceError where they cannot be decoded."""
        if why := why_not_decoded(record, self.encoding):
            raise SourceError(f"{path}: its first line {why}. --encoding names another")
        text = io.StringIO(record.decode(UTF8), newline="")
        return tuple(next(csv.reader(text, delimiter=self.delimiter)))

    @property
    def guesses(self) -> tuple[Guess, ...]:
        return _last_line_end, _last_unquoted_line_end

    def parse_whole(self, data: memoryview, path: str, selection: Selection) -> Chunk:
        """The same. A quote that is open at the end is in the last field, which then ends with the last line's end."""
        last = self.columns[-1]
        if len(data) > self.limits.field_bytes or self.columns.count(last) > 1:
            raise ScanWanted
        table = self._table(data, tuple(dict.fromkeys((*selection.columns, last))))
        if not len(table) or table.column(last)[-1].as_py().endswith(b"\n"):
            raise ScanWanted
        return assemble(path, np.arange(len(table)), table, selection, no_place)

    def parse(self, records: Records, path: str, first_row: int, selection: Selection) -> Chunk:
        try:
            return self._parsed(records, path, first_row, selection)
        except pa.ArrowInvalid:
            return self._parsed(self._counted(records), path, first_row, selection)

    def _parsed(self, records: Records, path: str, first_row: int, selection: Selection) -> Chunk:
        kept, data = _good(records)
        table = pa.table({name: pa.array([], pa.binary()) for name in selection.columns})
        if len(kept):
            table = self._table(data, selection.columns)
        if len(table) != len(kept):
            raise SourceError(
                f"{path}: {len(kept)} records by the scan, {len(table)} by the parser: please report this"
            )
        bad = records.bad_rows(first_row)
        return assemble(path, first_row + kept, table, selection, lambda i: records.raw(int(kept[i])), bad)

    def _counted(self, records: Records) -> Records:
        """The records, with the problems of those that have too few fields or too many."""
        begin, end = int(records.starts[0]), int(records.ends[-1])
        array = np.frombuffer(records.data, np.uint8)[begin:end]
        starts, ends, delimiter = records.starts - begin, records.ends - begin, ord(self.delimiter)
        quotes = np.flatnonzero(array == _QUOTE)
        which = np.arange(len(records))
        is_regular = _first_misplaced(array, quotes, delimiter) == len(array) if len(quotes) else True
        if is_regular and not (np.searchsorted(quotes, starts) & 1).any():
            which = np.flatnonzero(_fields(array, quotes, delimiter, starts, ends) != len(self.columns))
        problems = dict(records.problems)
        for i in which.tolist():
            if i not in problems and (
                problem := self._dialect.problem(records.data[starts[i] + begin : ends[i] + begin])
            ):
                problems[i] = problem
        return replace(records, problems=problems)

    def _table(self, data: bytes | memoryview, columns: tuple[str, ...]) -> pa.Table:
        """The fields of those of `columns` that the file has, as bytes."""
        if data[: len(BOM)] == BOM:
            data = b"\n" + bytes(data)  # the parser skips an empty line, and would drop the mark at the very start
        whole, part = len(data) + 1, self.limits.parsed_bytes
        edges = zip(data[part - 1 :: part], data[part::part], strict=False)  # the bytes before and after each
        if whole <= part or (_CR, _LF) in edges:  # PyArrow drops an LF there, within quotes too
            return self._table_by(whole, data, columns)
        try:
            return self._table_by(part, data, columns)
        except pa.ArrowInvalid:
            return self._table_by(whole, data, columns)  # a record is longer

    def _table_by(self, block_bytes: int, data: bytes | memoryview, columns: tuple[str, ...]) -> pa.Table:
        return pa_csv.read_csv(
            pa.BufferReader(data),
            pa_csv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=self.columns),
            pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.binary()),
                include_columns=[name for name in columns if name in self.columns],
                strings_can_be_null=False,
                null_values=[],
                true_values=[],
                false_values=[],
            ),
        )


@dataclass(frozen=True)
class Tsv(Csv):
    name = "tsv"
    suffixes = (".tsv",)

    delimiter: str = "\t"


def _last_line_end(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _last_unquoted_line_end(data: bytes) -> int:
    """The last one before which quotes pair up; the last of all where they do so at none."""
    at = last = data.rfind(b"\n")
    is_quoted = np.count_nonzero(np.frombuffer(data, np.uint8, max(at, 0)) == _QUOTE) & 1
    while is_quoted and at >= 0:
        before = data.rfind(b"\n", 0, at)
        is_quoted ^= data.count(b'"', before + 1, at) & 1
        at = before
    return 1 + (at if at >= 0 else last)


def _good(records: Records) -> tuple[NDArray[np.int64], bytes | memoryview]:
    """Which records have no problem, and these, one after the other."""
    good = np.ones(len(records), np.bool_)
    good[list(records.problems)] = False
    kept, data = np.flatnonzero(good), memoryview(records.data)
    if 0 < len(kept) == len(records):
        return kept, data[int(records.starts[0]) : int(records.ends[-1])]
    bounds = zip(records.starts[kept].tolist(), records.ends[kept].tolist(), strict=True)
    return kept, b"\n".join([data[start:end] for start, end in bounds])
