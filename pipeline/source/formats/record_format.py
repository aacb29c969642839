"""The common part of formats whose files are a sequence of records; and plain text, the simplest.

A large uncompressed file of UTF-8 is read in parts. Where the first record of a part begins is a guess, which counts
only if the part before it ends there.
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
from ..assemble import assemble
from ..chunk import Chunk, Selection
from ..compression import UTF8, looks_like, unescaped
from ..cutting import Sizes
from ..format import Format, InputFile, Schema, Seek
from ..open.ahead import PARSING
from ..open.opening import open_at
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
"""Of a file: they usually hold its header, and a hundred lines."""

TEXT_COLUMN = "text"


class ScanWanted(Exception):
    """It takes a scan to find the records of a block, or the byte offset of a row that is to be quarantined."""


def no_place(i: int) -> tuple[None, bytes]:
    """The place of a row that only a scan can find."""
    raise ScanWanted


_GUESSES, _LOOKED_AT, _MOST_BAD = 8, 50, 0.1  # places tried; records after one, and the share that may be bad


class Parsed(NamedTuple):
    """The rows of a block of records.

    Attributes
    ----------
    chunk : Chunk
        The rows, with numbers from 0.
    sizes : callable
        Returns the bytes of each record, which it looks for when it is called.
    most : int
        The bytes of all of them.

    """

    chunk: Chunk
    sizes: Sizes
    most: int


class Head(NamedTuple):
    """The first bytes of a file.

    Attributes
    ----------
    data : bytes
        The bytes, after a byte order mark.
    start : int
        The byte of the file at which they begin.
    final : bool
        Whether they are the whole file.
    failure : Exception or None
        The error of a damaged compressed file after them.

    """

    data: bytes
    start: int
    final: bool
    failure: Exception | None = None


@dataclass(frozen=True)
class Piped(InputFile):
    """What comes through a pipe, of which only the first records can be examined before it is read."""

    first: Head = field(kw_only=True)


class Counting(Protocol):
    """Counts something of the bytes of a file, from the first to the last."""

    def count(self, data: NDArray[np.uint8]) -> None:
        """Count the next bytes. In what pieces they come does not matter."""

    def notes(self, rows: int) -> Iterable[str]:
        """What may be amiss with a file of which so many rows were read."""


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
    """A format of records: a subclass defines `split`. By default each record is an article, in the column "text"."""

    seeks = Seek.RECORDS
    takes_encoding = True

    def counting(self, most: int | None) -> Counting | None:
        """What counts up to `most` bytes of a file, for what is to be said of it; None where nothing is."""
        return None

    @property
    def boundary(self) -> re.Pattern[bytes]:
        """What is before a record, by which one is looked for in the middle of a file."""
        return re.compile(rb"\n")

    def for_options(self, selection: Selection) -> Self:
        return replace(self, encoding=selection.encoding if self.takes_encoding else UTF8)

    @abstractmethod
    def split(self, buffer: bytes, final: bool) -> Split:
        """The records of `buffer`, which begins at a record; `final` where the stream ends with it."""

    def quick_split(self, buffer: bytes, final: bool) -> Split:
        """The same for records that are parsed next: some of their problems may be left for `parse` to find."""
        return self.split(buffer, final)

    @property
    def guesses(self) -> tuple[Guess, ...]:
        """Ways to guess where a block ends, where `parse_whole` finds out whether it does: each is used until it is
        wrong.
        """
        return ()

    def parse_whole(self, data: memoryview, path: str, selection: Selection) -> Chunk:
        """The rows of a block, with numbers from 0, if none is to be quarantined, and it ends where a record does.

        Raises ScanWanted or ArrowInvalid where that is not so.
        """
        raise ScanWanted

    @property
    def is_read_on_gpu(self) -> bool:
        """Whether a GPU can find the records and their values in the bytes of files: `ingest/`. A file may turn out to
        be one of which it cannot, once its columns are known.
        """
        return False

    @property
    def block_end(self) -> Guess:
        """Where a block for a GPU ends, which finds out whether that is right."""
        return up_to_last_line_end

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        return Schema((TEXT_COLUMN,), start=self.head(file, FEW_BYTES).start, named=False)

    def parse(self, records: Records, path: str, first_row: int, selection: Selection) -> Chunk:
        """A chunk of `records`, the first of which is record `first_row` of the file."""
        kept = [i for i in range(len(records)) if i not in records.problems]
        contents = [records.data[records.starts[i] : records.ends[i]] for i in kept]
        table = self.table(contents, selection.columns)
        numbers = first_row + np.array(kept, np.int64)
        return assemble(path, numbers, table, selection, lambda i: records.raw(kept[i]), records.bad_rows(first_row))

    def table(self, records: list[bytes], columns: tuple[str, ...]) -> pa.Table:
        """Those columns of records without a problem."""
        return pa.table({TEXT_COLUMN: pa.array(records, pa.large_binary())})

    def heads(self, file: InputFile) -> Iterator[Head]:
        """The head of a file, then a larger one, for who has not found what it looks for. Raises as `head`."""
        head = self.head(file, FEW_BYTES)
        yield head
        if not head.final:
            yield self.head(file, self.limits.block_bytes)

    def head(self, file: InputFile, size: int) -> Head:
        """The first `size` bytes; of a pipe, all that have arrived.

        Raises SourceError where the file cannot be opened, UsageError where its encoding is plainly another.
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
        """Where the first record that begins at a byte or after it does, probably; None where it is not found.

        Raises SourceError.
        """
        for size in (min(FEW_BYTES, self.limits.guess_bytes), self.limits.guess_bytes):
            with open_at(file, byte - 1, byte + size, peek=True) as stream:
                block = stream.read(size)
            for before in islice(self.boundary.finditer(block), _GUESSES):
                records = self.split(block[before.end() :], False)
                few = min(len(records.starts), _LOOKED_AT)
                if few and sum(i < few for i in records.problems) <= _MOST_BAD * few:
                    return byte - 1 + before.end() + int(records.starts[0])
            if len(block) < size or self.boundary.search(block):
                return None  # to look further would take longer than to wait for the part before
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
        """The rows of a stream, numbered within each block, from byte `at` of its file, where a record begins.

        Blocks are parsed ahead as if each ended as is guessed; once each way to guess was wrong, the rest is scanned.
        So is what comes after the last guess before the stop of the extent.

        Parameters
        ----------
        source : Readable
            The stream.
        at : int
            The byte of the file at which it is.
        extent : Extent
            Which records are read; its other fields are set.
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
                    at += block.most
        scanned = read_records(source, self.quick_split, at, extent, self.limits)
        parse = partial(self.parsed_records, path=path, selection=selection, spans=spans)
        yield from PARSING.in_order(partial(parse, records) for records in scanned)

    def _of_block(
        self, block: memoryview, path: str, at: int, selection: Selection, spans: list[Span] | None
    ) -> Parsed | None:
        """The rows of a block, with numbers from 0; None where it does not end with a record.

        Parameters
        ----------
        block : memoryview
            The block.
        path, at, selection, spans
            As of `parsed`; it begins at byte `at`.

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
        """The rows of records, with numbers from 0. Parameters as of `chunk_of`."""
        sizes = records.sizes
        return Parsed(self.chunk_of(records, path, 0, selection, spans), lambda: sizes, int(sizes.sum()))

    def chunk_of(
        self, records: Records, path: str, first_row: int, selection: Selection, spans: list[Span] | None
    ) -> Chunk:
        """A chunk of records, with the bytes of bad rows as they are in the file.

        Parameters
        ----------
        records, path, first_row, selection
            As of `parse`.
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
"""Those that are suggested, the most common first."""

_NAMES = {"tab": "\t", "\\t": "\t"}

NO_QUOTES = "none"
"""In place of the character that quotes a field."""

_DIALECT = {
    "delimiter": "e.g. ';', or tab; not a quote or a line end",
    "quote": f'e.g. "\'", or {NO_QUOTES}; not a line end',
    "escape": "e.g. a backslash; not a quote, which is doubled in any case, or a line end",
}


def dialect_of(**given: str | None) -> dict[str, str | None]:
    """Delimiter, quote and escape as they are used: characters, which a user may name. Raises UsageError for what is no
    such character.
    """
    used = {option: _NAMES.get(name or "", name) for option, name in given.items()}
    for option, one in used.items():
        if one is None or (option == "quote" and one in (NO_QUOTES, '"')):
            continue
        if len(one) != 1 or not one.isascii() or one in '"\r\n\0':
            raise UsageError(f"{option} {given[option]!r}: give one ASCII character, {_DIALECT[option]}")
    return used


def separated_by(delimiter: str) -> str:
    """A message that suggests a delimiter."""
    name = "tab" if delimiter == "\t" else f"'{delimiter}'"
    return f"it looks separated by {name}: --delimiter {name}"


def other_delimiter(names: Sequence[str], wanted: str) -> str | None:
    """A delimiter by which a header would hold the column `wanted`, or would have more than its one column.

    names: of the columns, as the header was split.
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
        """Its lines."""
        return split_lines(buffer, final, self.limits)
