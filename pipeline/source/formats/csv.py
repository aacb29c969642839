"""CSV and TSV: a scan that knows quotes finds the records, and pyarrow parses their fields.

The scan follows the state machine of pyarrow's parser (RFC 4180), so both agree on what a record is. A quote counts
only at the start of a field, a doubled quote stands for one, and a backslash escapes only if the user says so. The scan
gives rows their numbers, and files the positions at which they can be cut. If a record with the wrong number of fields
spans several lines, a quote was probably left open: only its first line is bad, and reading resumes at the next line.

For pyarrow a CR alone ends a record. It really does so only in a file whose first record ends with one. In other files
these CRs become other bytes before pyarrow parses them, and CRs again in the fields that it returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from mmap import mmap
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as pa_csv

from ...errors import SourceError, UsageError, counted
from ..rows.assemble import assemble
from ..rows.chunk import Chunk, Selection
from ..rows.compression import UTF8, why_not_decoded
from ..rows.format import InputFile, Schema
from .csv_counting import CsvCounting
from .record_format import DELIMITERS, NO_QUOTES, Head, RecordFormat, ScanWanted, no_place, separated_by
from .records import BOM, Guess, Records, Split, count_of, places, up_to_last_line_end

_LF, _CR = 0x0A, 0x0D
_ESCAPED = 0x80
_ZERO = re.compile(rb"\0")
_INNER_CRS = re.compile(rb"(?<!\r)\r++(?=[^\r\n])")
_SEPARATOR_LINE = re.compile(rb'"?sep=([^"\r\n\0\x80-\xff])"?(?:\r?\n|\r|\Z)', re.IGNORECASE)
_SEARCHED_BYTES = 1 << 20
"""How many bytes before the end of a block are searched for a line end outside of quotes."""

_OPEN_QUOTE = "a quoted field is not closed within {} MiB or before the end"


class _Patterns(NamedTuple):
    """The patterns with which the scan of single records works.

    Attributes
    ----------
    quoted : Pattern
        A quoted field.
    rest : Pattern
        The part of a field that is not quoted, up to a delimiter or the end of a line.
    line_end : Pattern
        The end of a line.

    """

    quoted: re.Pattern[bytes]
    rest: re.Pattern[bytes]
    line_end: re.Pattern[bytes]


@lru_cache
def _patterns_of(delimiter: str, quote: str, cr_ends: bool) -> _Patterns:
    # Without a quote no field is quoted: the pattern (?!) matches nothing.
    mark, end = re.escape(quote.encode()), re.escape(delimiter.encode())
    quoted = rb"%s(?:[^%s]++|%s%s)*+%s" % ((mark,) * 5) if quote else rb"(?!)"
    rest, line_end = rb"[^\r\n%s]*+" % end, rb"\r?\n|\r"
    if not cr_ends:
        rest, line_end = rb"(?:[^\r\n%s]++|\r++(?=[^\r\n]))*+" % end, rb"(?<!\r)\r*+\n"
    return _Patterns(*map(re.compile, (quoted, rest, line_end)))


@dataclass(frozen=True)
class Csv(RecordFormat):
    """Files of comma-separated values.

    Attributes
    ----------
    delimiter : str
        One ASCII character.
    columns : tuple of str
        The names of a file's fields, in order; empty until they are known.
    quote, escape : str
        One ASCII character each; empty if there is none.
    cr_ends : bool
        Whether a CR without an LF ends a record. If not, CRs before an LF, or at the very end, belong to the line end.

    """

    name = "csv"
    suffixes = (".csv",)
    takes_header = True

    delimiter: str = ","
    columns: tuple[str, ...] = ()
    quote: str = '"'
    escape: str = ""
    cr_ends: bool = True

    def for_options(self, selection: Selection) -> Self:
        """Bind the dialect that the user gave. Raises UsageError if one character has two meanings."""
        quote = "" if selection.quote == NO_QUOTES else selection.quote or self.quote
        used = {"--delimiter": selection.delimiter or self.delimiter, "--quote": quote, "--escape": selection.escape}
        given = {flag: character for flag, character in used.items() if character}
        if len({*given.values()}) < len(given):
            said = ", ".join(f"{flag} {character!r}" for flag, character in given.items())
            raise UsageError(f"{self.name} files: {said}: these must be different characters")
        dialect = replace(self, delimiter=given["--delimiter"], quote=quote, escape=selection.escape or "")
        return replace(dialect, encoding=selection.encoding)

    def for_schema(self, schema: Schema) -> Self:
        delimiter = schema.delimiter or self.delimiter
        return replace(self, columns=schema.names or (), cr_ends=schema.cr_ends, delimiter=delimiter)

    def counting(self, max_bytes: int | None) -> CsvCounting | None:
        if not self.quote:
            return None
        return CsvCounting(self.quote, self.delimiter, self.escape, self.limits.block_bytes, max_bytes)

    @property
    def is_read_on_gpu(self) -> bool:
        has_crs = self.cr_ends and bool(self.columns)  # whether CRs end records is not known before the columns are
        return self.encoding == UTF8 and not self.escape and not has_crs

    @property
    def block_end(self) -> Guess:
        return self.guesses[-1]

    @property
    def boundary(self) -> re.Pattern[bytes]:
        return re.compile(rb"\r\n|\n|\r" if self.cr_ends else rb"\n")

    def split(self, buffer: bytes, final: bool) -> Split:
        """Return the records. Each must have a field for each of `columns`."""
        return self._split(buffer, final, True)

    def quick_split(self, buffer: bytes, final: bool) -> Split:
        """Return the records, but leave the count of fields to the parser: it refuses all records if one has too few or
        too many.
        """
        return self._split(buffer, final, False)

    @property
    def _patterns(self) -> _Patterns:
        return _patterns_of(self.delimiter, self.quote, self.cr_ends)

    def _split(self, buffer: bytes, final: bool, every: bool) -> Split:
        """Return the records of a buffer that begins at one: vectorised up to the first irregular record, then one by
        one.

        every: whether to count the fields of every record. Otherwise they are counted only in records of several lines,
        where the count decides whether a quote was left open.
        """
        plain = self._plain(buffer)
        split = self._regular(plain, buffer, final, every)
        starts: list[int] = []
        ends: list[int] = []
        problems, at, overlong = split.problems, split.consumed, b""
        while at < len(buffer):
            record = self._record(plain, buffer, at, final)
            if record is None:
                if len(buffer) - at > self.limits.field_bytes and not self._patterns.line_end.search(buffer, at):
                    overlong = b"\r\n" if self.cr_ends else b"\n"
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

    def _plain(self, buffer: bytes) -> bytes:
        """Return a buffer that begins at a record, with another byte in place of each escaped one."""
        if not self.escape or self.escape.encode() not in buffer:
            return buffer
        array = np.frombuffer(buffer, np.uint8).copy()
        at = places(array, ord(self.escape))
        first = np.flatnonzero(np.diff(at, prepend=-2) > 1)  # in a run of escape characters, every other one escapes
        within = np.arange(len(at)) - np.repeat(first, np.diff(first, append=len(at)))
        escaped = at[within % 2 == 0] + 1
        array[escaped[escaped < len(array)]] = _ESCAPED
        return array.tobytes()

    def _record(self, plain: bytes, buffer: bytes, at: int, final: bool) -> tuple[int, int, str | None] | None:
        """Return the end, the position after the line end, and the problem of the record at `at`, or None if more bytes
        are needed. plain: the buffer without escaped characters. buffer: the buffer itself, in which an escaped line
        end may end the first line of something that cannot be a record.
        """
        position, fields, total, limit = at, 0, len(plain), self.limits.field_bytes
        quoted_field, unquoted, line_end = self._patterns
        after: int | None
        while True:
            # Match one field: its quoted part, if it has one, and the rest.
            begin = position
            if self.quote and plain[position : position + 1] == self.quote.encode():
                quoted = quoted_field.match(plain, position)
                if quoted is None or quoted.end() - begin > limit:
                    if final or total - begin > limit:
                        return self._first_line(buffer, at, final, _OPEN_QUOTE.format(limit >> 20))
                    return None
                position = quoted.end()
                if position == total and not final:
                    return None  # this quote may be the first of a doubled one
            rest = unquoted.match(plain, position)
            position = rest.end() if rest else position
            fields += 1
            if position - begin > limit:
                return self._first_line(buffer, at, final, f"a field is longer than {limit >> 20} MiB")
            # Find what ends the field: the buffer, a delimiter, or a line.
            if position == total:
                if not final:
                    return None
                after = position
            elif plain[position] == ord(self.delimiter):
                position += 1
                continue
            else:
                after = self._after_line_end(plain, position, final)
                if after is None:
                    return None
            # The record is complete. Check its length, its end and its number of fields.
            if position - at > limit and not line_end.search(buffer, at, at + limit):
                return self._first_line(buffer, at, final, self.limits.long_line)
            if self.escape and position == total and plain.endswith(self.escape.encode()):
                return self._first_line(buffer, at, final, "the file ends with the escape character")
            if len(self.columns) in (0, fields) or position == at:
                return position, after, None
            problem = f"expected {len(self.columns)} fields, found {fields}"
            if line_end.search(buffer, at, position):
                return self._first_line(buffer, at, final, problem + " (a quote left open?)")
            return position, after, problem

    def _first_line(self, buffer: bytes, at: int, final: bool, problem: str) -> tuple[int, int, str] | None:
        line = self._patterns.line_end.search(buffer, at)
        if line is None:
            return (len(buffer), len(buffer), problem) if final else None
        after = self._after_line_end(buffer, line.start(), final)
        return None if after is None else (line.start(), after, problem)

    def _after_line_end(self, buffer: bytes, at: int, final: bool) -> int | None:
        """Return the position after the end of the line at `at`, or None if more bytes are needed."""
        line = self._patterns.line_end.match(buffer, at)
        after = len(buffer) if line is None else line.end()
        return None if after == len(buffer) and buffer[-1] == _CR and not final else after

    def _regular(self, plain: bytes, buffer: bytes, final: bool, every: bool) -> Split:
        """Return all records up to the first that needs the exact scan. A line end after an odd number of quotes is
        within a field.

        The count is right as long as every quote is where a quoted field may open or close. plain: the buffer, which
        begins at a record, without escaped characters.
        """
        # Find line ends and quotes. A line end after an even number of quotes ends a record.
        array = np.frombuffer(plain, np.uint8)
        has_cr = b"\r" in plain
        is_break = array == _LF
        if has_cr and self.cr_ends:
            is_break |= array == _CR
        marks = np.flatnonzero(is_break | self._is_quote(array))
        is_quote = ~is_break[marks]
        quotes, breaks = marks[is_quote], marks[~is_quote]
        ends = np.flatnonzero((np.cumsum(is_quote) & 1 == 0)[~is_quote])  # the line ends that are outside of quotes
        # Count a CRLF as one line end.
        if has_cr and self.cr_ends:
            second = (array[breaks] == _LF) & (breaks > 0) & (array[breaks - 1] == _CR)  # the LF of a CRLF
            if breaks[-1] == len(array) - 1 and array[-1] == _CR and not final:
                second[-1] = True  # or the first half of a CRLF
            ends = (np.cumsum(~second) - 1)[ends[~second[ends]]]
            breaks = breaks[~second]
        # Stop before the first quote that is not where it should be.
        if len(quotes):
            ends = ends[: np.searchsorted(breaks[ends], self._first_misplaced(array, quotes))]
        # Find where each record starts and ends, without its line end.
        line_ends = breaks[ends]
        after = line_ends + 1
        if has_cr and self.cr_ends:
            inner = np.flatnonzero(after < len(array))
            after[inner] += (array[line_ends[inner]] == _CR) & (array[after[inner]] == _LF)
        starts = np.append(0, after[:-1])[: len(after)]
        exact = np.zeros(len(starts), np.bool_)
        if has_cr and not self.cr_ends:
            for _ in range(2):  # if line ends were made CRLF twice, a line has two CRs
                line_ends = line_ends - ((array[line_ends - 1] == _CR) & (line_ends > starts))
            exact |= (array[line_ends - 1] == _CR) & (line_ends > starts)
        # Find records that need the exact scan: long ones, and those of several lines with a wrong number of fields.
        blank, spans = line_ends == starts, np.diff(ends, prepend=-1) > 1
        counts = wrong = None
        exact |= line_ends - starts > self.limits.field_bytes
        if plain is not buffer:  # an escaped line end counts as one here
            inner = np.flatnonzero((array == _ESCAPED) & np.isin(np.frombuffer(buffer, np.uint8), (_LF, _CR)))
            spans |= np.searchsorted(inner, starts) < np.searchsorted(inner, line_ends)
        if self.columns and (every or spans.any()):
            counts = self._fields(array, quotes, starts, line_ends)
            wrong = (counts != len(self.columns)) & ~blank
            exact |= wrong & spans
        # Return the records before the first of these, without blank lines.
        stop = int(exact.argmax()) if exact.any() else len(starts)
        consumed = int(after[stop - 1]) if stop else 0
        filled_lines = np.flatnonzero(~blank[:stop])
        problems = {}
        if counts is not None and wrong is not None:
            bad = np.flatnonzero(wrong[:stop][filled_lines])
            problems = {int(i): f"expected {len(self.columns)} fields, found {counts[filled_lines[i]]}" for i in bad}
        return Split(starts[filled_lines], line_ends[filled_lines], problems, consumed)

    def _fields(
        self, array: NDArray[np.uint8], quotes: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the number of fields of records, int64 [n], if all quotes are where a quoted field may open or close.

        Parameters
        ----------
        array : ndarray
            uint8, the bytes of the buffer.
        quotes : ndarray
            int64, where the quotes are.
        starts, ends : ndarray
            int64 [n], where the records begin and end.

        """
        delimiters = np.flatnonzero(array == ord(self.delimiter))
        if len(quotes):
            delimiters = delimiters[np.searchsorted(quotes, delimiters) & 1 == 0]
        return np.asarray(np.searchsorted(delimiters, ends) - np.searchsorted(delimiters, starts) + 1)

    def _is_quote(self, array: NDArray[np.uint8]) -> NDArray[np.bool_]:
        return array == ord(self.quote) if self.quote else np.zeros(len(array), np.bool_)

    def _first_misplaced(self, array: NDArray[np.uint8], quotes: NDArray[np.int64]) -> int:
        """Return the position of the first quote that neither opens nor closes a field nor is next to another quote. If
        there is none, return the length of the buffer.

        Counted from the start, every other quote opens a field, and the one after it closes the field. A closing quote
        directly before an opening one does not end a field: the two are a doubled quote, which stands for one within
        the field.
        """
        may_touch = np.zeros(256, np.bool_)
        may_touch[[ord(self.delimiter), _LF, _CR]] = True
        openers, closers = quotes[::2], quotes[1::2]
        doubled = (np.diff(quotes) == 1)[1::2]  # whether closing quote i is directly before opening quote i + 1
        closes = may_touch[array[np.minimum(closers + 1, len(array) - 1)]] | (closers + 1 == len(array))
        closes[: len(doubled)] |= doubled
        may_touch[_CR] = self.cr_ends
        opens = may_touch[array[openers - 1]] | (openers == 0)
        opens[1:] |= doubled
        good = np.empty(len(quotes), np.bool_)
        good[::2], good[1::2] = opens, closes
        bad = np.flatnonzero(~good)
        return int(quotes[bad[0]]) if len(bad) else len(array)

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        """Return the names in the first record, or those that the user gave.

        Raises SourceError if the first record cannot be read. Raises UsageError if the rows have more or fewer fields
        than there are names.
        """
        header = selection.header
        for whole in self.heads(file):
            # Find the dialect: the delimiter that the file names, and whether a CR ends a record.
            form, head = self._by_separator_line(whole, selection)
            form = replace(form, columns=header or (), cr_ends=True)
            records, cr_ends = form.split(head.data, head.final), False
            if b"\r" in head.data and len(records.starts):
                line_end = head.data[records.ends[0] :]
                cr_ends = line_end.startswith(b"\r") and not line_end.lstrip(b"\r").startswith(b"\n")
                records = records if cr_ends else replace(form, cr_ends=False).split(head.data, head.final)
            if len(records.starts) > max(1, len(records.problems)):
                break
        # If the user named the columns, check that rows have as many fields.
        named_delimiter = form.delimiter if form.delimiter != self.delimiter else ""
        if header is not None:
            if len(records.starts) and len(records.problems) == len(records.starts):
                first = head.data[records.starts[0] : records.ends[0]].decode(UTF8, "replace")
                other = next((c for c in DELIMITERS if c != form.delimiter and first.count(c) == len(header) - 1), None)
                hint = f"; {separated_by(other)}" if other and len(header) > 1 and not selection.delimiter else ""
                raise UsageError(f"{file.path}: {len(header)} columns are named; {records.problems[0]}{hint}")
            return Schema(header, start=head.start, cr_ends=cr_ends, delimiter=named_delimiter)
        # Otherwise the first record must be readable.
        if not len(records.starts):
            if head.failure:
                raise head.failure
            longer = f"its first record is longer than {self.limits.block_bytes >> 20} MiB{self._quote_hint(head)}"
            raise SourceError(f"{file.path}: {'the file holds no record' if head.final else longer}")
        if 0 in records.problems:
            why = f"{records.problems[0]}{self._quote_hint(head)}"
            raise SourceError(f"{file.path}: its first line cannot be read: {why}")
        # Its fields are the names of the columns.
        form = replace(form, columns=(), cr_ends=cr_ends)
        names = form._header(head.data[records.starts[0] : records.ends[0]], file.path)
        after = int(records.starts[1]) if len(records.starts) > 1 else records.consumed
        if len(records.starts) > 1:
            replace(form, columns=names)._refuse_short_header(head, after, int(records.ends[1]), file.path)
        return Schema(names, start=head.start + after, cr_ends=cr_ends, delimiter=named_delimiter)

    def _by_separator_line(self, head: Head, selection: Selection) -> tuple[Self, Head]:
        """Return the dialect of a file, and its beginning without the line "sep=;" from which Excel takes the
        delimiter.

        A delimiter that the user gave has priority over that line.
        """
        line = _SEPARATOR_LINE.match(head.data)
        if line is None or line[1].decode() in (self.quote, self.escape):
            return self, head
        form = self if selection.delimiter else replace(self, delimiter=line[1].decode())
        return form, head._replace(data=head.data[line.end() :], start=head.start + line.end())

    def _quote_hint(self, head: Head) -> str:
        """Return a hint for a file whose first line cannot be read, or "" if the line holds no quote."""
        line = head.data.lstrip(b"\r\n").split(b"\n", 1)[0]
        is_quoted = bool(self.quote) and self.quote.encode() in line
        return ". If the quotes are part of the text, --quote none" if is_quoted else ""

    def _refuse_short_header(self, head: Head, begin: int, end: int, path: str) -> None:
        """Raise UsageError if every record has one field more than there are `columns`.

        Parameters
        ----------
        head : Head
            The beginning of the file.
        begin, end : int
            Where its first record after the header begins and ends, in bytes of the head.
        path : str
            The file.

        """
        if not self.split(head.data[begin:end] + b"\n", True).problems:
            return
        count, rest = len(self.columns), head.data[begin:]
        wider = replace(self, columns=(*self.columns, "")).split(rest, head.final)
        if wider.problems or not len(wider.starts):
            return
        lasts = {rest[end - 1 : end] for end in wider.ends.tolist()}
        if lasts == {self.delimiter.encode()}:
            remedy = f"Each row ends with {self.delimiter!r}: add one to the header, too"
        else:
            remedy = (
                "If R wrote the file, the first field of a row is its row name, and that column has no name: put a "
                "name before the others in the first line, or write the file with col.names = NA or row.names = FALSE"
            )
        raise UsageError(
            f"{path}: its header has {counted(count, 'name')}, {', '.join(map(repr, self.columns))}, and each row has "
            f"{count + 1} fields. {remedy}"
        )

    def _header(self, record: bytes, path: str) -> tuple[str, ...]:
        """Return the fields of a file's first record. Raises SourceError if they cannot be decoded."""
        if why := why_not_decoded(record, self.encoding):
            raise SourceError(f"{path}: its first line {why}. --encoding names another")
        names = tuple(f"f{i}" for i in range(1 + record.count(self.delimiter.encode())))
        table = self._table(record + b"\n", names)  # these are the names that PyArrow gives to fields without names
        return tuple((column[0].as_py() or b"").decode(UTF8) for column in table.columns)

    @property
    def guesses(self) -> tuple[Guess, ...]:
        quoted = (partial(_up_to_last_unquoted_line_end, quote=self.quote),) if self.quote else ()
        return (up_to_last_line_end, *quoted)

    def parse_whole(self, data: memoryview, path: str, selection: Selection) -> Chunk:
        """Return the rows of a whole block (see `RecordFormat.parse_whole`). If a quote is still open at the end, it is
        in the last field, which then ends with the last line end.
        """
        last = self.columns[-1]
        if len(data) > self.limits.field_bytes or self.columns.count(last) > 1:
            raise ScanWanted
        table = self._table(data, tuple(dict.fromkeys((*selection.columns, last))))
        if not len(table) or (table.column(last)[-1].as_py() or b"").endswith(b"\n"):
            raise ScanWanted
        return assemble(path, np.arange(len(table)), table, selection, no_place)

    def parse(self, records: Records, path: str, first_row: int, selection: Selection) -> Chunk:
        try:
            return self._parsed(records, path, first_row, selection)
        except pa.ArrowInvalid:
            return self._parsed(self._counted(records), path, first_row, selection)

    def _parsed(self, records: Records, path: str, first_row: int, selection: Selection) -> Chunk:
        good_records, data = _good(records)
        table = pa.table({name: pa.array([], pa.binary()) for name in selection.columns})
        if len(good_records):
            table = self._table(data, selection.columns)
        if len(table) != len(good_records):
            raise SourceError(
                f"{path}: {len(good_records)} records by the scan, {len(table)} by the parser: please report this"
            )
        bad = records.bad_rows(first_row)
        return assemble(
            path, first_row + good_records, table, selection, lambda i: records.raw(int(good_records[i])), bad
        )

    def _counted(self, records: Records) -> Records:
        """Return the records, with a problem for each that has too few or too many fields."""
        begin, end = int(records.starts[0]), int(records.ends[-1])
        array = np.frombuffer(self._plain(records.data[begin:end]), np.uint8)
        starts, ends = records.starts - begin, records.ends - begin
        quotes = np.flatnonzero(self._is_quote(array))
        which = np.arange(len(records))
        is_regular = self._first_misplaced(array, quotes) == len(array) if len(quotes) else True
        if is_regular and not (np.searchsorted(quotes, starts) & 1).any():
            which = np.flatnonzero(self._fields(array, quotes, starts, ends) != len(self.columns))
        problems = dict(records.problems)
        for i in which.tolist():
            record = records.data[starts[i] + begin : ends[i] + begin]
            if i not in problems and (place := self._record(self._plain(record), record, 0, True)) and place[2]:
                problems[i] = place[2]
        return replace(records, problems=problems)

    def _table(self, data: bytes | memoryview, columns: tuple[str, ...]) -> pa.Table:
        """Return the fields of those of `columns` that the file has, as bytes.

        A field without quotes that is the escape character and an N is null: MySQL and PostgreSQL write nulls in this
        way.
        """
        if data[: len(BOM)] == BOM:
            data = b"\n" + bytes(data)  # the parser skips an empty line, and would drop the mark at the very start
        cr = null = zero = b""
        if self._has_inner_crs(data):
            cr = _bytes_not_in(data)
            data = _INNER_CRS.sub(lambda run: cr * len(run[0]), data)
        if self.escape and (nulls := _nulls_of(self.delimiter, self.escape)).search(data):
            null = _bytes_not_in(data)
            data = nulls.sub(null, data)
        if _ZERO.search(data):  # PyArrow before 26 ignores the delimiters after a zero: findings/pyarrow_csv_zero.sh
            zero = _bytes_not_in(data)
            data = _ZERO.sub(zero, data)
        table = self._table_in_parts(data, columns)
        if zero:
            table = _with_values(table, lambda column: pc.replace_substring(column, zero, b"\0"))
        if null:
            table = _with_values(table, lambda column: _with_nulls(column, null))
        if cr:
            table = _with_values(table, lambda column: pc.replace_substring(column, cr, b"\r"))
        return table

    def _has_inner_crs(self, data: bytes | memoryview) -> bool:
        """Whether there are CRs that end no record."""
        array = np.frombuffer(data, np.uint8)
        if self.cr_ends or not count_of(array, np.equal, _CR):
            return False
        return not (array[places(array[:-1], _CR) + 1] == _LF).all()

    def _table_in_parts(self, data: bytes | memoryview, columns: tuple[str, ...]) -> pa.Table:
        whole, part = len(data) + 1, self.limits.parsed_bytes
        edges = zip(data[part - 1 :: part], data[part::part], strict=False)  # the bytes before and after each edge
        if whole <= part or (_CR, _LF) in edges:  # PyArrow drops an LF there, also within quotes
            return self._table_by(whole, data, columns)
        try:
            return self._table_by(part, data, columns)
        except pa.ArrowInvalid:
            return self._table_by(whole, data, columns)  # a record is longer than a part

    def _table_by(self, block_bytes: int, data: bytes | memoryview, columns: tuple[str, ...]) -> pa.Table:
        return pa_csv.read_csv(
            pa.BufferReader(data),
            pa_csv.ReadOptions(
                use_threads=False,
                block_size=block_bytes,
                column_names=self.columns,
                autogenerate_column_names=not self.columns,
            ),
            pa_csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char=self.quote or False,
                escape_char=self.escape or False,
                newlines_in_values=True,
            ),
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


@lru_cache
def _nulls_of(delimiter: str, escape: str) -> re.Pattern[bytes]:
    """Return a pattern for what may be a null. It does not match within a longer field."""
    edge = rb"[^%s\r\n]" % re.escape(delimiter.encode())
    return re.compile(rb"(?<!%s)%sN(?!%s)" % (edge, re.escape(escape.encode()), edge))


def _bytes_not_in(data: bytes | memoryview) -> bytes:
    """Return bytes that occur neither in the data nor, shifted, in themselves."""
    content, mark = bytes(data), b"\xff\xfe"
    while mark in content:
        mark += b"\xfe"
    return mark


def _with_values(table: pa.Table, change: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> pa.Table:
    return pa.table([change(column) for column in table.columns], table.column_names)


def _with_nulls(column: pa.ChunkedArray, mark: bytes) -> pa.ChunkedArray:
    """Return the column with null in place of a mark. Within a longer value, the mark stands for an N."""
    column = pc.if_else(pc.equal(column, mark), pa.scalar(None, column.type), column)
    return pc.replace_substring(column, mark, b"N")


def _up_to_last_unquoted_line_end(data: bytes | mmap, begin: int, end: int, quote: str) -> int:
    """Guess that records end at the last line end before which quotes pair up. If there is none near the end, guess the
    last line end.
    """
    at = last = data.rfind(b"\n", begin, end)
    if last < 0:
        return 0
    first = max(begin, last - _SEARCHED_BYTES)
    is_quoted = count_of(np.frombuffer(data, np.uint8, last - begin, begin), np.equal, ord(quote)) & 1
    while is_quoted and at >= 0:
        before = data.rfind(b"\n", first, at)
        is_quoted ^= data[max(before + 1, first) : at].count(quote.encode()) & 1
        at = before
    return 1 + (at if at >= 0 else last) - begin


def _good(records: Records) -> tuple[NDArray[np.int64], bytes | memoryview]:
    """Return which records have no problem, and the bytes of these, one after the other."""
    good = np.ones(len(records), np.bool_)
    good[list(records.problems)] = False
    good_records, data = np.flatnonzero(good), memoryview(records.data)
    if 0 < len(good_records) == len(records):
        return good_records, data[int(records.starts[0]) : int(records.ends[-1])]
    bounds = zip(records.starts[good_records].tolist(), records.ends[good_records].tolist(), strict=True)
    return good_records, b"\n".join([data[start:end] for start, end in bounds])
