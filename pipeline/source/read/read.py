"""Reads a range: its files front to back, in pieces. The rows of a piece are counted before they are parsed.

The steps, in order:

1. `_opened` opens the files of the range, several ahead (`OpenedFile`).
2. `OpenedFile.begin` reads the first pieces of each.
3. `_Reading` cuts the pieces into chunks, and makes a call for each group of pieces that is parsed in one go.
4. `chunks_of` has the calls made, joins their results to chunks, and ends with a `RangeEnd`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

import numpy as np

from ...errors import InputChanged, SourceError, UsageError
from ...processes.threads import threads
from ...telemetry.spans import Span
from ..formats.record_format import FEW_BYTES, Counted, Counting, Parsed, RecordFormat
from ..formats.records import Extent, Readable, read_records
from ..formats.tables import most_decoded
from ..open.ahead import PARSING, in_order
from ..open.front_to_back import FrontToBack
from ..open.opening import Held, open_at
from ..plan.examine import EmptyFile, examine_like, held, identified
from ..plan.plan import Range, RangeEnd, Start, UnreadFile, part_name, range_bytes, rows_of
from ..plan.search import Problem
from ..rows.chunk import Chunk, RowRange, Selection, concat, empty_chunk, numbered
from ..rows.cutting import Cutting
from ..rows.format import Fragment, InputFile, Schema, Seek
from .pieces import Lines, ParsedRows, Piece, joinable, parsed
from .raw import RawBlocks
from .ring import RawBlock, Slots

_HELD_AHEAD = 4 << 20
"""How many bytes of a file are read before its turn has come."""


class FileOfPieces(Protocol):
    """A file of a range whose rows arrive piece by piece (see `OpenedFile`)."""

    file: InputFile
    pieces: Iterator[Piece]
    problems: list[str]
    notes: list[str]
    extent: Extent | None

    @property
    def stored(self) -> int: ...


class OpenedFile:
    """A file of a range that was opened and whose beginning was read. Several files are opened in parallel, and read
    one after the other.

    Attributes
    ----------
    file : InputFile
        The file, with a format that is bound to its columns.
    pieces : iterator of Lines or ParsedRows
        The rows of the file. If the file cannot be read to its end, the iterator then raises SourceError.
    problems : list of str
        The problems of the file. All of them are known once its pieces have been read.
    notes : list of str
        Remarks about the file. What they say may be intended, so they do not count as problems.
    extent : Extent or None
        The records that have been read, if the file is read in parts; None otherwise.
    counting : Counting or None
        The figures that were counted in the raw blocks, once the blocks have been read. The code that knows the number
        of rows turns them into notes.

    Parameters
    ----------
    file : InputFile
        The file.
    range_ : Range
        The range.
    selection : Selection
        The columns that the job uses.
    chunk_rows : int
        The largest number of rows in a chunk.
    spans : list of Span or None
        A span "decode" is appended for the time spent parsing.

    Raises
    ------
    InputChanged
        If the file is no longer the one that was listed.

    """

    def __init__(
        self, file: InputFile, range_: Range, selection: Selection, chunk_rows: int, spans: list[Span] | None
    ) -> None:
        # The problems and notes are complete once the file is read.
        self.file, self._range, self._chunk_rows, self._spans = file, range_, chunk_rows, spans
        self.pieces: Iterator[Piece] = iter(())
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.extent: Extent | None = None
        self.counting: Counting | None = None
        self._stream: BinaryIO | None = None
        self._schema: Schema | None = None
        self._selection = selection
        # Resolve the columns in this file. A file that cannot be opened is a problem, and has no pieces.
        try:
            examined = examine_like(held(file) if range_.parts == 1 else identified(file), selection, range_.first)
        except InputChanged:
            raise
        except EmptyFile:
            return
        except (SourceError, UsageError) as error:
            self.problems.append(error.message)
            return
        # Note how the file differs from the first one. If it is read in parts, note where this part ends.
        self.file = examined.file
        self._selection = replace(selection, of_path=examined.of_path, class_names=examined.class_names)
        self.problems += [examined.remark] if examined.remark else []
        self.notes += examined.notes
        if range_.parts > 1 and self.file.format.seeks is Seek.RECORDS and not self.file.front_to_back:
            self.extent = Extent(None if range_.is_last else range_.bounds[1])
        self._schema = examined.schema

    def begin(self) -> OpenedFile:
        """Read the first bytes of the file, so that its pieces can be drawn. Return this object."""
        form, schema = self.file.format, self._schema
        if schema is not None:
            pieces = self._records(form, schema.start) if isinstance(form, RecordFormat) else self._rows(schema)
            self.pieces = _with_beginning_read(pieces)
        return self

    @property
    def stored(self) -> int:
        """How many stored bytes of the file have been read; 0 if that is not known."""
        if isinstance(self._stream, FrontToBack):
            return self._stream.stored
        with suppress(ValueError):  # the stream is closed
            if self._stream is not None and not (self.file.front_to_back or isinstance(self.file, Held)):
                return self._stream.tell() - self._range.bounds[0]
        return 0

    def _rows(self, schema: Schema) -> Iterator[Piece]:
        """Yield the pieces of a file that is not one of records, or of a part of such a file."""
        file, form, range_ = self.file, self.file.format, self._range
        plan = form.plan(file, schema, self._selection, self._chunk_rows)
        self.problems += plan.problems
        begin, stop = range_.bounds
        fragments = [f for f in plan.fragments if range_.parts == 1 or begin <= f.at < stop]
        firsts = [fragment.first_row for fragment in fragments]
        is_large = len(range_.files) == 1 and range_.rows is None and file.stored > range_bytes(self._chunk_rows)
        begins = _begin_chunks(fragments, self._chunk_rows, form.limits.chunk_bytes) if is_large and fragments else None
        if form.seeks is Seek.NOTHING:
            chunks = form.stream(file, self._selection, self._chunk_rows)
        else:
            chunks = form.read(fragments, self._selection, self._spans)
        row = firsts[0] if firsts else 0
        for chunk in chunks:
            self.problems += [problem for problem in chunk.problems if problem not in self.problems]
            if chunk.rows_read:
                is_new = None if begins is None else begins[bisect_right(firsts, row) - 1]
                yield ParsedRows(file, row, replace(chunk, problems=()), None, is_new)
                row += chunk.rows_read

    def _records(self, form: RecordFormat, start: int) -> Iterator[Piece]:
        """Yield the pieces of a file of records or of a part of one. The row numbers start at that of the first record,
        or at 0 if it is not known. start: the byte of the file at which its first record begins.
        """
        file, range_, extent = self.file, self._range, self.extent or Extent()
        first_record = self._first_record(form, start, extent)
        if first_record is None:
            return
        first, start = first_record
        row = first
        with open_at(file, start, extent.stop) as stream:
            self._stream = stream
            counting = form.counting(None if extent.stop is None else extent.stop - start)
            source = Counted(stream, counting) if counting else stream
            if form.guesses and len(range_.files) == 1 and range_.rows is None:
                for block in form.parsed(source, start, extent, file.path, self._selection, self._spans):
                    if block.chunk.rows_read:
                        yield ParsedRows(file, row, numbered(block.chunk, row), block)
                        row += block.chunk.rows_read
            else:
                for records in read_records(source, form.quick_split, start, extent, form.limits):
                    yield Lines(file, form, row, records, self._selection.of_path)
                    row += len(records)
        self.notes += counting.notes(row - first) if counting else []

    def blocks(self, slots: Slots) -> Iterator[RawBlock | Parsed]:
        """Yield the records of a file for a worker that finds most of them itself: first raw blocks in `slots`, then
        the rows that are left for the host, which are numbered from 0 in each block.

        Raises SourceError after the last record that can be read.
        """
        form, extent = self.file.format, self.extent or Extent()
        if self._schema is None or not isinstance(form, RecordFormat):
            return
        first_record = self._first_record(form, self._schema.start, extent)
        if first_record is None:
            return
        at = first_record.byte
        with open_at(self.file, at, extent.stop) as stream:
            self._stream = stream
            counting = form.counting(None if extent.stop is None else extent.stop - at)
            source: Readable = Counted(stream, counting) if counting else stream
            if form.is_read_on_gpu:
                source = raw = RawBlocks(source, form, at, extent.stop, slots, lambda: self.stored)
                for block in raw:
                    extent.begin = _first_in_block(form, block, slots) if extent.begin is None else extent.begin
                    yield block
                at = raw.at
            yield from form.parsed(source, at, extent, self.file.path, self._selection, self._spans)
            self.counting = counting

    @property
    def start_row(self) -> int:
        """The number of the first row; 0 for a part of a file whose start is not known."""
        return self._range.start.row if self._range.start else 0

    @property
    def selection(self) -> Selection:
        """The columns that the job uses, as they are in this file."""
        return self._selection

    def _first_record(self, form: RecordFormat, start: int, extent: Extent) -> Start | None:
        """Return where the first record of the file, or of a part of it, is. Return None if no record begins in this
        part.

        Parameters
        ----------
        form : RecordFormat
            The format, bound to the columns of the file.
        start : int
            The byte of the file at which its first record begins.
        extent : Extent
            The extent in which the place is noted.

        """
        file, range_ = self.file, self._range
        if not range_.part_number:
            return Start(0, start)
        if file.front_to_back:  # its first bytes show that it is compressed, so the first part is the whole file
            return None
        row, begin = range_.start or (0, form.first_record(file, range_.bounds[0]))
        extent.begin = range_.start.byte if range_.start else None
        if begin is None:
            return None
        if extent.stop is not None and begin >= extent.stop:
            extent.begin = extent.after = begin
            return None
        return Start(row, begin)


def _first_in_block(form: RecordFormat, block: RawBlock, slots: Slots) -> int | None:
    """Return where the records of a part of a file begin, from its first block, or None if the block has no record."""
    for max_bytes in (FEW_BYTES, block.size):
        if len(starts := form.quick_split(slots.content(block, max_bytes), False).starts):
            return block.at if form.guesses else block.at + int(starts[0])  # as in `RecordFormat.parsed`
    return None


def _with_beginning_read(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Return the pieces. The first of them are read now."""
    first_pieces: list[Piece] = []
    failure: SourceError | UsageError | None = None
    room = _HELD_AHEAD
    try:
        for piece in pieces:
            first_pieces.append(piece)
            room -= piece.size
            if room <= 0:
                break
    except (SourceError, UsageError) as error:
        failure = error

    def rest() -> Iterator[Piece]:
        yield from first_pieces
        first_pieces.clear()
        if failure is not None:
            raise failure
        yield from pieces

    return rest()


def _begin_chunks(fragments: Sequence[Fragment], chunk_rows: int, max_bytes: int) -> list[bool]:
    """Return, for each fragment of a large file, whether it begins a chunk. Each fragment of a row group that has
    several begins one, so that nothing is copied. Several small row groups share a chunk.
    """
    several = {group for group, count in Counter(f.group for f in fragments).items() if count > 1 and group >= 0}
    begins: list[bool] = []
    rows = size = 0
    for number, fragment in enumerate(fragments):
        is_alone = fragment.group in several or (number > 0 and fragments[number - 1].group in several)
        is_full = rows + fragment.rows > chunk_rows or size + fragment.held > max_bytes
        begins.append(number == 0 or is_alone or is_full)
        rows, size = (0, 0) if begins[-1] else (rows, size)
        rows, size = rows + fragment.rows, size + fragment.held
    return begins


_OPENED_AHEAD = 16
"""How many files of a range are opened in parallel. A file in an object store takes a tenth of a second to arrive."""

_PARSED_AT_ONCE = 4 << 20
"""How many bytes of small files are parsed in one go, because a call of the parser takes longer than a small file."""


class Skipped(NamedTuple):
    """A chunk whose rows were counted and, if possible, not parsed."""

    name: str


def read_range(
    range_: Range,
    selection: Selection,
    chunk_rows: int,
    skip: Callable[[str], bool],
    spans: list[Span] | None = None,
) -> Generator[Chunk | Skipped | RangeEnd, None, None]:
    """Read a range from its first row to its last.

    Parameters
    ----------
    range_ : Range
        The range. If it is a part of a file of records and its `start` is not known, its first record is a guess, and
        its rows are numbered from 0.
    selection : Selection
        The columns that the job uses.
    chunk_rows : int
        The largest number of rows in a chunk.
    skip : callable
        Returns whether to leave out the chunk of that name.
    spans : list of Span, optional
        A span "decode" is appended for the time spent parsing.

    Yields
    ------
    Chunk, Skipped or RangeEnd
        The chunks in order, then the end. If a file cannot be read to its end, that is a problem in the RangeEnd, and
        the other files are read. Where a chunk begins depends on the content of the files, on `chunk_rows` and on the
        selection.

    Raises
    ------
    InputChanged
        If a file is no longer the one that was listed. No chunk follows.
    SourceError
        If a file that is cut into parts cannot be read to the end of this part.

    """
    files = _opened(range_, selection, chunk_rows, spans)
    yield from chunks_of(files, range_, selection, chunk_rows, skip, spans, PARSING.in_order)


_Result = TypeVar("_Result")
InOrder = Callable[[Iterable[Callable[[], _Result]]], Iterator[_Result]]
"""A function that makes calls and returns their results in order."""


def chunks_of(
    files: Generator[FileOfPieces, None, None],
    range_: Range,
    selection: Selection,
    chunk_rows: int,
    skip: Callable[[str], bool],
    spans: list[Span] | None,
    in_order: InOrder[Chunk | Skipped],
) -> Generator[Chunk | Skipped | RangeEnd, None, None]:
    """Cut the files of a range into chunks. See `read_range` for what this yields and raises.

    Parameters
    ----------
    files : generator of FileOfPieces
        The files of the range, in order. The generator is closed at the end.
    range_, selection, chunk_rows, skip, spans
        See `read_range`.
    in_order : callable
        Makes the calls that parse pieces.

    """
    reading = _Reading(files, range_, selection, chunk_rows, skip, spans)
    for _, pieces in groupby(in_order(reading.calls()), lambda piece: piece.name):
        yield _whole_chunk(list(pieces))
    if not (reading.chunks or range_.number):  # the output needs a part, and so a schema, even if no row can be read
        name = part_name(range_.number, 0)
        reading.chunks = 1
        yield Skipped(name) if skip(name) else replace(empty_chunk(selection), name=name)
    yield reading.end


def _whole_chunk(pieces: Sequence[Chunk | Skipped]) -> Chunk | Skipped:
    """Join pieces of one chunk, in order, to the chunk."""
    chunks = [piece for piece in pieces if isinstance(piece, Chunk)]
    if not chunks:
        return pieces[0]
    whole, sources = concat(chunks), list[RowRange]()
    for source in whole.sources:
        before = sources[-1] if sources else None
        if before is not None and (before.path, before.first + before.rows) == source[:2]:
            sources[-1] = before._replace(rows=before.rows + source.rows)
        else:
            sources.append(source)
    return replace(whole, name=chunks[0].name, sources=tuple(sources), stored=chunks[-1].stored)


@dataclass
class _Reading:
    """The state of reading a range.

    Attributes
    ----------
    files
        See `chunks_of`.
    range, selection, chunk_rows, skip, spans
        See `read_range`.
    problems, notes, unread
        See `RangeEnd`.
    rows : list of int
        The number of rows that were read from each file.
    chunks : int
        The number of chunks so far, with the one that is being filled.
    stored : int
        See `Chunk`.
    extent : Extent or None
        See `OpenedFile`.
    held : int
        The bytes so far of the chunk that is being filled, if its pieces come parsed and say where chunks begin.

    """

    files: Generator[FileOfPieces, None, None]
    range: Range
    selection: Selection
    chunk_rows: int
    skip: Callable[[str], bool]
    spans: list[Span] | None
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    unread: list[UnreadFile] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    chunks: int = 0
    stored: int = 0
    extent: Extent | None = None
    held: int = 0

    def __post_init__(self) -> None:
        self.rows = [0] * len(self.range.files)

    @property
    def end(self) -> RangeEnd:
        range_ = self.range
        rows = tuple((file.path, count) for file, count in zip(range_.files, self.rows, strict=True))
        problems, unread, notes = tuple(self.problems), tuple(self.unread), tuple(self.notes)
        begin, after = self.extent.bounds if self.extent else (None, None)
        return RangeEnd(range_.number, rows, self.chunks, problems, unread, begin, after, notes=notes)

    def calls(self) -> Iterator[Callable[[], Chunk | Skipped]]:
        """Yield the calls that parse the input. Each call parses pieces that fit together, and returns a part of a
        chunk with the chunk's name.
        """
        max_bytes = min((file.format.limits.chunk_bytes for file in self.range.files), default=0)
        cutting = Cutting(self.chunk_rows, max_bytes)
        waiting: list[Piece] = []
        size = 0  # the bytes of the pieces in `waiting`
        skipped = False
        for piece in self._pieces():
            for first, last, new in self._cut(cutting, piece):
                fits = waiting and joinable(waiting[-1], piece) and size + piece.size <= _PARSED_AT_ONCE
                if waiting and (new or not fits):
                    yield self._call(waiting, skipped)
                    waiting, size = [], 0
                if new:
                    self.chunks += 1
                    skipped = self.skip(part_name(self.range.number, self.chunks - 1))
                waiting.append(piece.slice(first, last))
                size += waiting[-1].size
        if waiting:
            yield self._call(waiting, skipped)

    def _cut(self, cutting: Cutting, piece: Piece) -> Iterator[tuple[int, int, bool]]:
        """Cut a piece into parts, each within one chunk, as `Cutting.cut` does."""
        if isinstance(piece, Lines):
            return cutting.cut(np.minimum(piece.sizes, self.selection.most_held))
        if piece.is_new is not None:
            is_new = piece.is_new or self.held + piece.size > most_decoded(piece.file.format.limits)
            self.held = piece.size + (0 if is_new else self.held)
            return iter([(0, len(piece), is_new)])
        if piece.block is None:
            return cutting.cut(piece.sizes)
        bound, sizes = piece.block.total_bytes, piece.block.sizes
        most_held = self.selection.most_held
        bound = min(bound, len(piece) * min(bound, most_held))  # no record counts more than `most_held`
        return cutting.cut_unsized(len(piece), bound, lambda: np.minimum(sizes(), most_held))

    def _call(self, pieces: list[Piece], skipped: bool) -> Callable[[], Chunk | Skipped]:
        name, stored = part_name(self.range.number, self.chunks - 1), self.stored
        if skipped:
            return lambda: Skipped(name)
        sources = tuple(RowRange(piece.file.path, piece.row, len(piece)) for piece in pieces)
        return lambda: replace(parsed(pieces, self.selection, self.spans), name=name, sources=sources, stored=stored)

    def _pieces(self) -> Iterator[Piece]:
        """Yield the pieces of all files, up to the limit of rows. Note the problems of files and the files that were
        not read.
        """
        left = self.range.rows
        with closing(self.files) as files:
            for number, opened in enumerate(files):
                # Yield the pieces of the file, up to the limit of rows.
                path, before = opened.file.path, sum(file.stored for file in self.range.files[:number])
                self.extent = opened.extent
                try:
                    for piece in opened.pieces:
                        piece = piece if left is None else piece.slice(0, min(left, len(piece)))
                        self.rows[number] += len(piece)
                        self.stored = before + opened.stored
                        left = None if left is None else left - len(piece)
                        yield piece
                        if left == 0:
                            break
                except InputChanged:
                    raise
                except (SourceError, UsageError) as error:
                    if opened.extent is not None:  # without these rows, the rows after them have no numbers
                        raise
                    opened.problems.append(error.message)
                # Note what is known of the file at its end.
                self.problems += [(path, problem) for problem in opened.problems]
                self.notes += [(path, note) for note in opened.notes]
                if opened.problems and not self.rows[number] and not self.range.part_number:
                    self.unread.append((path, rows_of(opened.file)))
                if left == 0:
                    return


def _opened(
    range_: Range, selection: Selection, chunk_rows: int, spans: list[Span] | None
) -> Generator[FileOfPieces, None, None]:
    """Yield the files of a range in order, and open several ahead. With a limit of rows, open one at a time."""

    def open_one(file: InputFile) -> OpenedFile:
        return OpenedFile(file, range_, selection, chunk_rows, spans).begin()

    if range_.rows is not None or len(range_.files) == 1:
        yield from map(open_one, range_.files)
        return
    with threads(max(1, min(_OPENED_AHEAD, len(range_.files)))) as pool:
        yield from in_order(pool, (partial(open_one, file) for file in range_.files), lambda: _OPENED_AHEAD)


def count_range(range_: Range, selection: Selection) -> RangeEnd:
    """Count the records of a part of a file without parsing them. Raises SourceError."""
    (file,) = range_.files
    extent, rows = Extent(None if range_.is_last else range_.bounds[1]), 0
    examined = examine_like(identified(file), selection, range_.first)
    form = examined.file.format
    if isinstance(form, RecordFormat):
        begin: int | None = examined.schema.start
        if range_.part_number:
            begin = extent.begin = (
                range_.start.byte if range_.start else form.first_record(examined.file, range_.bounds[0])
            )
        if begin is not None:
            with open_at(examined.file, begin, extent.stop) as source:
                blocks = read_records(source, form.split, begin, extent, form.limits)
                rows = sum(len(records) for records in blocks)
    first, after = extent.bounds
    return RangeEnd(range_.number, ((file.path, rows),), 0, begin=first, after=after)
