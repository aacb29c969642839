"""Reading input: a group of files, front to back; a chunk of a large file; or the whole input, in this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ...errors import InputChanged, SourceError, UsageError
from ...processes.threads import threads
from ...telemetry.spans import Span
from ..chunk import Chunk, Selection, concat, empty_chunk
from ..find.search import Problem
from ..formats.base import Fragment
from ..inputs import JobInput, Loaded, Partition
from ..inputs import Unread as UnreadChunk
from ..memory.tables import partition_chunk
from ..plan.group import Group, GroupChunk, GroupEnd, Unread, part_name
from ..plan.plan import Run, Unit
from ..plan.split import rows_of
from .cutting import Cutting
from .held import held_bytes
from .parsing import PARSING, in_order
from .pieces import Lines, Opened, Piece, joinable, open_pieces, parsed
from .run_ahead import ahead

_OPENED_AHEAD = 16
"""Files of a group that are opened side by side: a file on an object store takes a tenth of a second to arrive."""

_GROUPS_AT_ONCE = 2
"""That are read here: while the last blocks of one are parsed, the first of the next are read."""

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
    run: Run, selection: Selection, skip: Callable[[str], bool], spans: list[Span] | None = None
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
    reading = _Reading(group, selection, chunk_rows, skip, spans)
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
class _Reading:
    """What is known of a group while it is read. rows: read of each file. chunks: begun. stored: as of `GroupChunk`."""

    group: Group
    selection: Selection
    chunk_rows: int
    skip: Callable[[str], bool]
    spans: list[Span] | None
    problems: list[Problem] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    chunks: int = 0
    stored: int = 0

    def __post_init__(self) -> None:
        self.rows = [0] * len(self.group.files)

    def calls(self) -> Iterator[Callable[[], _Part]]:
        """What makes each part: pieces of a chunk that are parsed together."""
        most = min((file.format.limits.chunk_bytes for file in self.group.files), default=0)
        cutting = Cutting(self.chunk_rows, most)
        waiting: list[Piece] = []
        size = 0  # of those that wait
        skipped = False
        for piece in self._pieces():
            sizes = held_bytes(piece.sizes, self.selection) if isinstance(piece, Lines) else piece.sizes
            for first, last, new in cutting.cut(sizes):
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
        open_one = partial(open_pieces, selection=self.selection, first=first, chunk_rows=rows, spans=self.spans)
        if self.group.rows is not None or len(self.group.files) == 1:
            yield from map(open_one, self.group.files)
            return
        with threads(min(_OPENED_AHEAD, len(self.group.files))) as pool:
            yield from in_order(pool, (partial(open_one, file) for file in self.group.files), lambda: _OPENED_AHEAD)


def read_here(job_input: JobInput) -> Iterator[GroupChunk | GroupEnd | UnreadChunk]:
    """All of an input in its order, read in this process."""
    if job_input.plan is not None:
        plan, selection = job_input.plan, job_input.selection
        reads = (partial(read_group, group, selection, plan.chunk_rows, lambda _: False) for group in plan.groups)
        with closing(ahead(reads, _GROUPS_AT_ONCE, 1)) as found:
            yield from found
        return
    for source in job_input.chunks(()):
        if isinstance(source, Loaded):
            yield GroupChunk(source.name, source.sources, source.chunk)
        elif isinstance(source, Partition):
            chunk = partition_chunk(source.frame.compute(), source.number, job_input.selection)
            yield GroupChunk(source.name, ((f"partition {source.number}", 0, chunk.rows_read),), chunk)
        elif isinstance(source, UnreadChunk):
            yield source


def chunks_here(job_input: JobInput) -> Iterator[Chunk]:
    """Every chunk in input order, read in this process.

    Raises SourceError for a file that is not wholly readable; single bad rows are in the quarantine of their chunk.
    """
    if job_input.problems:
        raise SourceError(job_input.problems[0][1])
    for found in read_here(job_input):
        if isinstance(found, UnreadChunk):
            raise SourceError(found.reason)
        if isinstance(found, GroupEnd):
            if found.problems:
                raise SourceError(found.problems[0][1])
        elif found.chunk is not None:
            if found.chunk.problems:
                raise SourceError(found.chunk.problems[0])
            yield found.chunk
