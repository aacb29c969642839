"""The common part of formats whose files are a sequence of records, and plain text, the simplest of them.

A large uncompressed file of UTF-8 is read in parts. Where the first record of a part begins is a guess. It counts only
if the part before it ends there.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import InputChanged, SourceError, UsageError
from ...telemetry.spans import Span, span
from ..open.ahead import PARSING
from ..open.opening import open_at
from ..rows.assemble import assemble
from ..rows.chunk import Chunk, Selection
from ..rows.compression import UTF8, looks_like, unescaped
from ..rows.cutting import Sizes
from ..rows.format import Format, InputFile, Schema, Seek
from .records import (
    BOM,
    Blocks,
    Extent,
    Guess,
    Readable,
    Records,
    Split,
    read_into,
    read_onto,
    read_records,
    split_lines,
    up_to_last_line_end,
)

FEW_BYTES = 64 << 10
"""How many bytes of a file usually hold its header and a hundred lines."""

TEXT_COLUMN = "text"


class ScanWanted(Exception):
    """Raised if only a scan can find the records of a block, or the byte offset of a row that is to be quarantined."""


def no_place(i: int) -> tuple[None, bytes]:
    """Raise ScanWanted, because only a scan can find the place of a row."""
    raise ScanWanted


# How many places are tried, how many records after a place are examined, and the share of them that may be bad.
_GUESSES, _LOOKED_AT, _MOST_BAD = 8, 50, 0.1


class Parsed(NamedTuple):
    """The rows of a block of records.

    Attributes
    ----------
    chunk : Chunk
        The rows, with numbers from 0.
    sizes : callable
        Returns the bytes of each record, int64 [N]. It finds them when it is called.
    total_bytes : int
        The bytes of all records together.

    """

    chunk: Chunk
    sizes: Sizes
    total_bytes: int


class Head(NamedTuple):
    """The first bytes of a file.

    Attributes
    ----------
    data : bytes
        The bytes, without a byte order mark.
    start : int
        The byte of the file at which they begin.
    final : bool
        Whether they are the whole file.
    failure : Exception or None
        The error that a damaged compressed file raises after these bytes.

    """

    data: bytes
    start: int
    final: bool
    failure: Exception | None = None


@dataclass(frozen=True)
class Piped(InputFile):
    """Records from a pipe. Only the first of them can be examined before the pipe is read."""

    first: Head = field(kw_only=True)


class Counting(Protocol):
    """Counts something in the bytes of a file, from the first to the last."""

    def count(self, data: NDArray[np.uint8]) -> None:
        """Count the next bytes. The result does not depend on how they are divided."""

    def notes(self, rows: int) -> Iterable[str]:
        """Return notes about a file from which `rows` rows were read."""


class Counted:
    """A stream whose bytes are counted as they are read."""

    def __init__(self, stream: Readable, counting: Counting) -> None:
        self._stream, self._counting = stream, counting

    def read(self, size: int, /) -> bytes:
        piece = self._stream.read(size)
        self._counting.count(np.frombuffer(piece, np.uint8))
        return piece

    def readinto(self, room: memoryview, /) -> int:
        count = read_into(self._stream, room)
        self._counting.count(np.frombuffer(room[:count], np.uint8))
        return count


@dataclass(frozen=True)
class RecordFormat(Format):
    """A format of records. A subclass defines `split`. By default each record is a text, in the column "text"."""

    seeks = Seek.RECORDS
    takes_encoding = True

    def counting(self, max_bytes: int | None) -> Counting | None:
        """Return an object that counts up to `max_bytes` bytes of a file, to make notes about it, or None if there is
        nothing to note.
        """
        return None

    @property
    def boundary(self) -> re.Pattern[bytes]:
        """Matches what is before a record. A record in the middle of a file is found by it."""
        return re.compile(rb"\n")

    def for_options(self, selection: Selection) -> Self:
        return replace(self, encoding=selection.encoding if self.takes_encoding else UTF8)

    @abstractmethod
    def split(self, buffer: bytes, final: bool) -> Split:
        """Return the records of `buffer`, which begins at a record. final: whether the stream ends with it."""

    def quick_split(self, buffer: bytes, final: bool) -> Split:
        """Split as `split` does, but for records that are parsed next: some of their problems may be left for `parse`
        to find.
        """
        return self.split(buffer, final)

    @property
    def guesses(self) -> tuple[Guess, ...]:
        """Ways to guess where a block ends, if `parse_whole` can check that. Each is used until it is wrong."""
        return ()

    def parse_whole(self, data: memoryview, path: str, selection: Selection) -> Chunk:
        """Return the rows of a block, with numbers from 0, if no row is to be quarantined and the block ends where a
        record ends.

        Raises ScanWanted or ArrowInvalid otherwise.
        """
        raise ScanWanted

    @property
    def is_read_on_gpu(self) -> bool:
        """Whether a GPU can find the records and their values in the bytes of files (see `ingest/`). Once the columns
        of a file are known, it may turn out that it cannot for that file.
        """
        return False

    @property
    def block_end(self) -> Guess:
        """A guess where a block for a GPU ends. The GPU finds out whether it is right."""
        return up_to_last_line_end

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        return Schema((TEXT_COLUMN,), start=self.head(file, FEW_BYTES).start, named=False)

    def parse(self, records: Records, path: str, first_row: int, selection: Selection) -> Chunk:
        """Return a chunk of `records`. The first of them is record `first_row` of the file."""
        readable = [i for i in range(len(records)) if i not in records.problems]
        contents = [records.data[records.starts[i] : records.ends[i]] for i in readable]
        table = self.table(contents, selection.columns)
        numbers = first_row + np.array(readable, np.int64)
        return assemble(
            path, numbers, table, selection, lambda i: records.raw(readable[i]), records.bad_rows(first_row)
        )

    def table(self, records: list[bytes], columns: tuple[str, ...]) -> pa.Table:
        """Return these columns of records that have no problem."""
        return pa.table({TEXT_COLUMN: pa.array(records, pa.large_binary())})

    def heads(self, file: InputFile) -> Iterator[Head]:
        """Yield the head of a file, then a larger one, for a caller that has not found what it looks for. Raises the
        errors of `head`.
        """
        head = self.head(file, FEW_BYTES)
        yield head
        if not head.final:
            yield self.head(file, self.limits.block_bytes)

    def head(self, file: InputFile, size: int) -> Head:
        """Return the first `size` bytes of a file. From a pipe, return all bytes that have arrived.

        Raises SourceError if the file cannot be opened, and UsageError if its encoding is plainly another.
        """
        if isinstance(file, Piped):
            return file.first
        with open_at(file, peek=True) as stream:
            block, failure = read_onto(b"", stream, size)
        if failure is not None and (isinstance(failure, InputChanged) or not isinstance(failure, SourceError)):
            raise failure
        if self.takes_encoding and (other := looks_like(block)):
            raise UsageError(f"{file.path}: it looks like {other.upper()}: --encoding {other}")
        start = len(BOM) if block.startswith(BOM) else 0
        return Head(block[start:], start, failure is None and len(block) < size, failure)

    def first_record(self, file: InputFile, byte: int) -> int | None:
        """Return where the first record that begins at `byte` or after it probably begins, or None if none is found.

        Raises SourceError.
        """
        for size in (min(FEW_BYTES, self.limits.guess_bytes), self.limits.guess_bytes):
            # Begin one byte earlier: if it is a line end, a record begins exactly at `byte`.
            with open_at(file, byte - 1, byte + size, peek=True) as stream:
                block = stream.read(size)
            for before in islice(self.boundary.finditer(block), _GUESSES):
                records = self.split(block[before.end() :], False)
                few = min(len(records.starts), _LOOKED_AT)
                if few and sum(i < few for i in records.problems) <= _MOST_BAD * few:
                    return byte - 1 + before.end() + int(records.starts[0])
            if len(block) < size or self.boundary.search(block):
                return None  # a longer search would take longer than waiting for the previous part
        return None

    def parsed(
        self,
        source: Readable,
        at: int,
        extent: Extent,
        path: str,
        selection: Selection,
        spans: list[Span] | None,
    ) -> Iterator[Parsed]:
        """Yield the rows of a stream, numbered within each block. The stream is at byte `at` of its file, where a
        record begins.

        Blocks are parsed ahead as if each guess of their end were right. Once every way to guess was wrong, the rest is
        scanned. The bytes after the last guess before the stop of the extent are scanned too.

        Parameters
        ----------
        source : Readable
            The stream.
        at : int
            The byte of the file that is the stream's position.
        extent : Extent
            Says which records are read. This sets its other fields.
        path : str
            The file, as the column `file` has it.
        selection : Selection
            The columns that the job uses.
        spans : list of Span or None
            A span "decode" is appended for the time spent parsing.

        """
        begin = at
        for guess in self.guesses:
            source = blocks = Blocks(source, guess, at, extent.stop, self.limits.block_bytes)
            calls = (partial(self._of_block, data, path, begins, selection, spans) for data, begins in blocks)
            with closing(PARSING.in_order(calls)) as results:
                for block in results:
                    if block is None:
                        break
                    blocks.accept()
                    if block.chunk.rows_read:
                        extent.begin = begin if extent.begin is None else extent.begin
                        yield block
                    at += block.total_bytes
        scanned = read_records(source, self.quick_split, at, extent, self.limits)
        parse = partial(self.parsed_records, path=path, selection=selection, spans=spans)
        yield from PARSING.in_order(partial(parse, records) for records in scanned)

    def _of_block(
        self, block: memoryview, path: str, at: int, selection: Selection, spans: list[Span] | None
    ) -> Parsed | None:
        """Return the rows of a block, with numbers from 0, or None if the block does not end where a record ends.

        Parameters
        ----------
        block : memoryview
            The block.
        path, at, selection, spans
            See `parsed`. The block begins at byte `at`.

        """
        try:
            with span("decode", spans, "read"):
                chunk = self.parse_whole(block, path, selection)
            return Parsed(chunk, partial(self._sizes, block), len(block))
        except (ScanWanted, pa.ArrowInvalid):
            data = bytes(block)
            split = self.quick_split(data, False)
        if split.consumed < len(data):
            return None
        records = Records(data, split.starts, split.ends, split.starts + at, split.problems)
        return Parsed(self.chunk_of(records, path, 0, selection, spans), lambda: split.ends - split.starts, len(data))

    def _sizes(self, block: memoryview) -> NDArray[np.int64]:
        split = self.quick_split(bytes(block), False)
        return split.ends - split.starts

    def parsed_records(self, records: Records, path: str, selection: Selection, spans: list[Span] | None) -> Parsed:
        """Return the rows of records, with numbers from 0. See `chunk_of` for the parameters."""
        sizes = records.sizes
        return Parsed(self.chunk_of(records, path, 0, selection, spans), lambda: sizes, int(sizes.sum()))

    def chunk_of(
        self, records: Records, path: str, first_row: int, selection: Selection, spans: list[Span] | None
    ) -> Chunk:
        """Return a chunk of records. The quarantine has the bytes of bad rows as they are in the file.

        Parameters
        ----------
        records, path, first_row, selection
            See `parse`.
        spans : list of Span or None
            A span "decode" is appended for the time spent parsing.

        """
        with span("decode", spans, "read"):
            chunk = self.parse(records, path, first_row, selection)
        if self.encoding != UTF8:
            heads = [unescaped(head) for head in chunk.quarantine.column("head").to_pylist()]
            table = chunk.quarantine.drop_columns("head").append_column("head", pa.array(heads, pa.binary()))
            chunk = replace(chunk, quarantine=table)
        return chunk


DELIMITERS = (";", "|", "\t", ",")
"""The delimiters that are suggested, the most common first."""

_NAMES = {"tab": "\t", "\\t": "\t"}

NO_QUOTES = "none"
"""The user's word for a file without quotes, in place of the character that quotes a field."""

_DIALECT = {
    "delimiter": "e.g. ';', or tab; not a quote or a line end",
    "quote": f'e.g. "\'", or {NO_QUOTES}; not a line end',
    "escape": "e.g. a backslash; not a quote, which is doubled in any case, or a line end",
}


def dialect_of(**given: str | None) -> dict[str, str | None]:
    """Return delimiter, quote and escape as single characters; the user may name some of them. Raises UsageError for a
    value that is no such character.
    """
    used = {option: _NAMES.get(name or "", name) for option, name in given.items()}
    for option, one in used.items():
        if one is None or (option == "quote" and one in (NO_QUOTES, '"')):
            continue
        if len(one) != 1 or not one.isascii() or one in '"\r\n\0':
            raise UsageError(f"{option} {given[option]!r}: give one ASCII character, {_DIALECT[option]}")
    return used


def separated_by(delimiter: str) -> str:
    """Return a message that suggests a delimiter."""
    name = "tab" if delimiter == "\t" else f"'{delimiter}'"
    return f"it looks separated by {name}: --delimiter {name}"


def other_delimiter(names: Sequence[str], wanted: str) -> str | None:
    """Return a delimiter with which a header would hold the column `wanted`, or would have more than its one column.

    names: the names of the columns, as the header was split.
    """
    pieces = {c: [piece.strip(' "') for name in names for piece in name.split(c)] for c in DELIMITERS}
    holding = [c for c in DELIMITERS if wanted in pieces[c]]
    many = [c for c in DELIMITERS if len(names) == 1 and len(pieces[c]) > 1]
    return next(iter([*holding, *sorted(many, key=lambda c: -len(pieces[c]))]), None)


class Text(RecordFormat):
    name = "text"
    suffixes = (".txt",)

    @property
    def is_read_on_gpu(self) -> bool:
        return self.encoding == UTF8

    def split(self, buffer: bytes, final: bool) -> Split:
        """Return the lines."""
        return split_lines(buffer, final, self.limits)
