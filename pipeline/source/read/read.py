"""Reading input: a group of files, front to back, in pieces whose rows are counted before they are parsed; or a chunk
of a large file.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import InputChanged, SourceError, UsageError
from ...processes.threads import threads
from ...telemetry.spans import Span
from ..chunk import Chunk, Selection, concat, empty_chunk, held_bytes, held_of_record, rows_between
from ..find.search import Problem
from ..formats.base import Fragment, InputFile, Schema, Stream
from ..formats.record_format import Parsed, RecordFormat
from ..formats.records import Cutting, Records, read_records
from ..open.ahead import PARSING, in_order
from ..open.front_to_back import FrontToBack
from ..open.opening import Held, open_at
from ..plan.examine import Examined, examine_like, held
from ..plan.plan import Group, GroupChunk, GroupEnd, RowGroups, Unit, UnreadFile, part_name, rows_of
from ..plan.scan import no_scan

_HELD_AHEAD = 4 << 20
"""Bytes of a file that are read before their turn has come."""


@dataclass(frozen=True)
class Lines:
    """Records of a file that are not parsed yet. row: the number of the first."""

    file: InputFile
    form: RecordFormat
    row: int
    records: Records

    def __len__(self) -> int:
        return len(self.records)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each record."""
        return self.records.ends - self.records.starts

    @property
    def size(self) -> int:
        return int(self.records.ends[-1]) - int(self.records.starts[0])

    def slice(self, first: int, last: int) -> Lines:
        return replace(self, row=self.row + first, records=self.records.slice(first, last))


@dataclass(frozen=True)
class ParsedRows:
    """Rows of a file that are parsed. row: the number of the first. block: as which they were, if they were records."""

    file: InputFile
    row: int
    chunk: Chunk
    block: Parsed | None = None

    def __len__(self) -> int:
        return self.chunk.rows_read

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes that a row takes, on average."""
        return np.full(len(self), self.size // max(len(self), 1), np.int64)

    @property
    def size(self) -> int:
        return len(self.chunk.data) + self.chunk.kept_bytes

    def slice(self, first: int, last: int) -> ParsedRows:
        if (first, last) == (0, len(self)):
            return self
        return replace(self, row=self.row + first, chunk=rows_between(self.chunk, self.row + first, self.row + last))


Piece = Lines | ParsedRows


class Opened(NamedTuple):
    """A file that was opened. pieces: of it, which raise SourceError after the last that can be read. problems: of it,
    all of which are known once its pieces are read. stored: how many bytes have been read of it as it is stored; 0
    where that is not known.
    """

    file: InputFile
    pieces: Iterator[Piece]
    problems: list[str]
    stored: Callable[[], int] = int


def open_pieces(
    file: InputFile,
    selection: Selection,
    first: tuple[str, Schema] | None,
    chunk_rows: int,
    spans: list[Span] | None,
    alone: bool,
) -> Opened:
    """Open a file and read its beginning; several are opened side by side, and read one after the other. first: as of
    `Group`. alone: whether no others are. Raises InputChanged.
    """
    try:
        found = examine_like(held(file), selection, first)
        problems = [found.remark] if found.remark else []
        read: list[Callable[[], int]] = []
        pieces = _pieces(found, selection, chunk_rows, problems, read, spans, alone)
        return Opened(found.file, _begun(pieces), problems, lambda: sum(count() for count in read))
    except InputChanged:
        raise
    except (SourceError, UsageError) as error:
        return Opened(file, iter(()), [error.message])


def _begun(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The same, the first of them read now."""
    begun: list[Piece] = []
    failure: SourceError | UsageError | None = None
    room, more = _HELD_AHEAD, True
    while more and room > 0:
        try:
            begun.append(next(pieces))
            room -= begun[-1].size
        except StopIteration:
            more = False
        except (SourceError, UsageError) as error:
            failure, more = error, False

    def rest() -> Iterator[Piece]:
        yield from begun
        begun.clear()
        if failure is not None:
            raise failure
        if more:
            yield from pieces

    return rest()


def _pieces(
    found: Examined,
    selection: Selection,
    chunk_rows: int,
    problems: list[str],
    read: list[Callable[[], int]],
    spans: list[Span] | None,
    alone: bool,
) -> Iterator[Piece]:
    file, form, start = found.file, found.file.format, found.schema.start
    row = 0
    if isinstance(form, RecordFormat):
        with open_at(file, start) as source:
            read.append(partial(_stored, source, file))
            if alone and form.guesses:
                for block in form.parsed(source, start, None, file.path, 0, selection, spans):
                    if block.chunk.rows_read:
                        yield ParsedRows(file, row, block.chunk, block)
                        row += block.chunk.rows_read
                return
            for records in read_records(source, form.quick_split, start, limits=form.limits):
                if len(records):
                    yield Lines(file, form, row, records)
                    row += len(records)
        return
    plan = form.plan(file, found.schema, selection, chunk_rows, no_scan)
    problems += plan.problems
    if plan.streamed:
        chunks = form.stream(Stream(file, start), selection, chunk_rows)
    else:
        chunks = (chunk for fragment in plan.fragments for chunk in form.read(fragment, selection, spans))
    for chunk in chunks:
        problems += [problem for problem in chunk.problems if problem not in problems]
        if chunk.rows_read:
            yield ParsedRows(file, row, replace(chunk, problems=()))
            row += chunk.rows_read


def _stored(source: BinaryIO, file: InputFile) -> int:
    """How many bytes have been read of a file as it is stored; 0 where that is not known, or no longer."""
    if isinstance(source, FrontToBack):
        return source.stored
    with suppress(ValueError):  # it is closed
        return 0 if file.front_to_back or isinstance(file, Held) else source.tell()
    return 0


def parsed(pieces: Sequence[Piece], selection: Selection, spans: list[Span] | None) -> Chunk:
    """The rows of pieces, in order: `Lines` of one format, or `Rows`."""
    lines = [piece for piece in pieces if isinstance(piece, Lines)]
    if not lines:
        return concat([piece.chunk for piece in pieces if isinstance(piece, ParsedRows)])
    if len(lines) == 1:
        (one,) = lines
        return one.form.chunk_of(one.records, one.file.path, one.row, selection, spans)
    ends = list(accumulate(map(len, lines)))
    chunk = lines[0].form.chunk_of(_joined([piece.records for piece in lines]), "", 0, selection, spans)
    paths = pa.array([piece.file.path for piece in lines], pa.string())
    firsts = np.array([piece.row - end + len(piece) for piece, end in zip(lines, ends, strict=True)])

    def placed(table: pa.Table) -> pa.Table:
        """With file and row of each, in place of its number in all."""
        numbers = table.column("row").to_numpy()
        which = np.searchsorted(ends, numbers, "right")
        table = table.set_column(table.column_names.index("file"), "file", paths.take(pa.array(which)))
        return table.set_column(table.column_names.index("row"), "row", pa.array(numbers + firsts[which]))

    return replace(chunk, rows=placed(chunk.rows), quarantine=placed(chunk.quarantine))


def joinable(one: Piece, other: Piece) -> bool:
    """Whether two pieces can be parsed at once."""
    return isinstance(one, Lines) and isinstance(other, Lines) and one.form == other.form


def _joined(each: Sequence[Records]) -> Records:
    """Records of several files as if they were of one; each keeps its place in its file."""
    blocks: list[bytes | memoryview] = []
    starts, ends = [], []
    problems: dict[int, str] = {}
    at = count = 0
    for records in each:
        begin, end = int(records.starts[0]), int(records.ends[-1])
        blocks += [memoryview(records.data)[begin:end], b"\n"]
        starts.append(records.starts + (at - begin))
        ends.append(records.ends + (at - begin))
        problems |= {count + i: reason for i, reason in records.problems.items()}
        at, count = at + end - begin + 1, count + len(records)
    offsets = np.concatenate([records.offsets for records in each])
    return Records(b"".join(blocks), np.concatenate(starts), np.concatenate(ends), offsets, problems)


_OPENED_AHEAD = 16
"""Files of a group that are opened side by side: a file on an object store takes a tenth of a second to arrive."""

_PARSED_AT_ONCE = 4 << 20
"""Bytes of small files that are parsed together: a call of the parser takes longer than a small file."""


def read_unit(unit: Unit, selection: Selection, spans: list[Span] | None = None) -> Chunk:
    """The rows of a unit, in input order. spans: a span "decode" is appended for the time spent parsing.

    Raises SourceError where a file can no longer be read, or has changed since it was planned.
    """
    if not unit.fragments:
        return empty_chunk(selection)
    if len(unit.fragments) == 1:
        return concat(_read_fragment(unit.fragments[0], selection, spans))
    calls = [partial(_read_fragment, fragment, selection, spans) for fragment in unit.fragments]
    return concat([piece for pieces in PARSING.in_order(calls) for piece in pieces])


def _read_fragment(fragment: Fragment, selection: Selection, spans: list[Span] | None) -> list[Chunk]:
    return list(fragment.file.format.read(fragment, selection, spans))


def read_run(
    run: RowGroups, selection: Selection, skip: Callable[[str], bool], spans: list[Span] | None = None
) -> Generator[tuple[Unit, Chunk | None], None, None]:
    """The units of a run in order, each with its chunk, or None where its name is to be skipped. Raises as `read_unit`
    does.
    """
    for unit in run.units:
        yield unit, None if skip(unit.name) else read_unit(unit, selection, spans)


def read_group(
    group: Group,
    selection: Selection,
    chunk_rows: int,
    skip: Callable[[str], bool],
    spans: list[Span] | None = None,
) -> Generator[GroupChunk | GroupEnd, None, None]:
    """The chunks of a group in order, then its end. skip: whether the chunk of that name is not wanted; its rows are
    counted, and not parsed where that is possible.

    A file that cannot be read, or not to its end, is told in the end, and the others are read. Where a chunk begins
    depends on what is in the files, on `chunk_rows` and on the selection; so no chunk follows a file that is no longer
    the one that was listed: raises InputChanged.
    """
    reading = _GroupReading(group, selection, chunk_rows, skip, spans)
    open_chunk: _Part | None = None
    held: list[Chunk] = []
    sources: list[tuple[str, int, int]] = []
    for part in PARSING.in_order(reading.calls()):
        if open_chunk is not None and part.number != open_chunk.number:
            yield _closed(group, open_chunk, sources, held)
            held, sources = [], []
        open_chunk = part
        sources += part.sources
        held += [part.chunk] if part.chunk is not None else []
    if open_chunk is not None:
        yield _closed(group, open_chunk, sources, held)
    elif not group.number:  # the output has a part, and so a schema, even if no row can be read
        name = part_name(group.number, 0)
        reading.chunks = 1
        yield GroupChunk(name, (), None if skip(name) else empty_chunk(selection))
    rows = tuple((file.path, count) for file, count in zip(group.files, reading.rows, strict=True))
    yield GroupEnd(group.number, rows, reading.chunks, tuple(reading.problems), tuple(reading.unread))


class _Part(NamedTuple):
    """Rows of one chunk. number: of the chunk. chunk: None where it is skipped. stored: as of `GroupChunk`."""

    number: int
    sources: list[tuple[str, int, int]]
    chunk: Chunk | None
    stored: int


def _closed(group: Group, last: _Part, sources: list[tuple[str, int, int]], held: list[Chunk]) -> GroupChunk:
    merged: list[tuple[str, int, int]] = []
    for path, first, rows in sources:
        if merged and merged[-1][0] == path and merged[-1][1] + merged[-1][2] == first:
            path, first, before = merged.pop()
            rows += before
        merged.append((path, first, rows))
    chunk = concat(held) if last.chunk is not None else None
    return GroupChunk(part_name(group.number, last.number), tuple(merged), chunk, last.stored)


@dataclass
class _GroupReading:
    """What is known of a group while it is read. rows: read of each file. chunks: begun. stored: as of `GroupChunk`."""

    group: Group
    selection: Selection
    chunk_rows: int
    skip: Callable[[str], bool]
    spans: list[Span] | None
    problems: list[Problem] = field(default_factory=list)
    unread: list[UnreadFile] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    chunks: int = 0
    stored: int = 0

    def __post_init__(self) -> None:
        self.rows = [0] * len(self.group.files)
        self.alone = len(self.group.files) == 1 and self.group.rows is None

    def calls(self) -> Iterator[Callable[[], _Part]]:
        """What makes each part: pieces of a chunk that are parsed together."""
        most = min((file.format.limits.chunk_bytes for file in self.group.files), default=0)
        cutting = Cutting(self.chunk_rows, most)
        waiting: list[Piece] = []
        size = 0  # of those that wait
        skipped = False
        for piece in self._pieces():
            for first, last, new in self._cut(cutting, piece):
                fits = waiting and joinable(waiting[-1], piece) and size + piece.size <= _PARSED_AT_ONCE
                if waiting and (new or not fits):
                    yield self._call(waiting, skipped)
                    waiting, size = [], 0
                if new:
                    self.chunks += 1
                    skipped = self.skip(part_name(self.group.number, self.chunks - 1))
                waiting.append(piece.slice(first, last))
                size += waiting[-1].size
        if waiting:
            yield self._call(waiting, skipped)

    def _cut(self, cutting: Cutting, piece: Piece) -> Iterator[tuple[int, int, bool]]:
        if isinstance(piece, Lines):
            return cutting.cut(held_bytes(piece.sizes, self.selection))
        if piece.block is None:
            return cutting.cut(piece.sizes)
        most, sizes = piece.block.most, piece.block.sizes
        most = min(most, len(piece) * held_of_record(most, self.selection))
        return cutting.cut_unsized(len(piece), most, lambda: held_bytes(sizes(), self.selection))

    def _call(self, pieces: list[Piece], skipped: bool) -> Callable[[], _Part]:
        number, sources = self.chunks - 1, [(piece.file.path, piece.row, len(piece)) for piece in pieces]
        stored = self.stored
        if skipped:
            return lambda: _Part(number, sources, None, stored)
        return lambda: _Part(number, sources, parsed(pieces, self.selection, self.spans), stored)

    def _pieces(self) -> Iterator[Piece]:
        """The pieces of all files, up to the limit; the others and their problems are noted."""
        left = self.group.rows
        with closing(self._opened()) as files:
            for number, opened in enumerate(files):
                path, before = opened.file.path, sum(file.stored for file in self.group.files[:number])
                try:
                    for piece in opened.pieces:
                        piece = piece if left is None else piece.slice(0, min(left, len(piece)))
                        self.rows[number] += len(piece)
                        self.stored = before + opened.stored()
                        left = None if left is None else left - len(piece)
                        yield piece
                        if left == 0:
                            break
                except InputChanged:
                    raise
                except (SourceError, UsageError) as error:
                    opened.problems.append(error.message)
                self.problems += [(path, problem) for problem in opened.problems]
                if opened.problems and not self.rows[number]:
                    self.unread.append((path, rows_of(opened.file)))
                if left == 0:
                    return

    def _opened(self) -> Generator[Opened, None, None]:
        """The files in order, several opened ahead; without a look ahead where there is a limit."""
        first, rows = self.group.first, self.chunk_rows
        open_one = partial(
            open_pieces, selection=self.selection, first=first, chunk_rows=rows, spans=self.spans, alone=self.alone
        )
        if self.group.rows is not None or self.alone:
            yield from map(open_one, self.group.files)
            return
        with threads(max(1, min(_OPENED_AHEAD, len(self.group.files)))) as pool:
            yield from in_order(pool, (partial(open_one, file) for file in self.group.files), lambda: _OPENED_AHEAD)
