"""A file from its first row on, in pieces whose rows are counted before they are parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import InputChanged, SourceError, UsageError
from ...telemetry.spans import Span
from ..chunk import Chunk, Selection, concat
from ..formats.base import InputFile, Schema, Stream
from ..formats.record_format import RecordFormat
from ..open.opening import Held, open_at
from ..plan.examine import Examined, examine_like, held
from ..plan.scan import no_scan
from .first_rows import rows_between
from .front_to_back import FrontToBack
from .records import Records, read_records

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
class Rows:
    """Rows of a file that are parsed. row: the number of the first."""

    file: InputFile
    row: int
    chunk: Chunk

    def __len__(self) -> int:
        return self.chunk.rows_read

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes that a row takes, on average."""
        return np.full(len(self), self.size // max(len(self), 1), np.int64)

    @property
    def size(self) -> int:
        return len(self.chunk.data) + self.chunk.kept_bytes

    def slice(self, first: int, last: int) -> Rows:
        if (first, last) == (0, len(self)):
            return self
        return replace(self, row=self.row + first, chunk=rows_between(self.chunk, self.row + first, self.row + last))


Piece = Lines | Rows


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
    file: InputFile, selection: Selection, first: tuple[str, Schema] | None, chunk_rows: int, spans: list[Span] | None
) -> Opened:
    """Open a file and read its beginning; several are opened side by side, and read one after the other. first: as of
    `Group`. Raises InputChanged.
    """
    try:
        found = examine_like(held(file), selection, first)
        problems = [found.remark] if found.remark else []
        read: list[Callable[[], int]] = []
        pieces = _pieces(found, selection, chunk_rows, problems, read, spans)
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
) -> Iterator[Piece]:
    file, form, start = found.file, found.file.format, found.schema.start
    row = 0
    if isinstance(form, RecordFormat):
        with open_at(file, start) as source:
            read.append(partial(_stored, source, file))
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
            yield Rows(file, row, replace(chunk, problems=()))
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
        return concat([piece.chunk for piece in pieces if isinstance(piece, Rows)])
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
