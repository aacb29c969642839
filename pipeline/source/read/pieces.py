"""The pieces of files in which a range is read: records that are counted but not parsed yet, and rows
that are parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...telemetry.spans import Span
from ..formats.record_format import Parsed, RecordFormat
from ..formats.records import Records
from ..rows.chunk import Chunk, RowsByName, Selection, concat, rows_between
from ..rows.format import InputFile


@dataclass(frozen=True)
class Lines:
    """Records of a file that are not parsed yet.

    Attributes
    ----------
    file : InputFile
        The file.
    form : RecordFormat
        Its format, bound to its columns.
    row : int
        The number of the first record.
    records : Records
        The records.
    of_path : tuple of (str, str or None)
        See `Selection`.

    """

    file: InputFile
    form: RecordFormat
    row: int
    records: Records
    of_path: tuple[tuple[str, str | None], ...]

    def __len__(self) -> int:
        return len(self.records)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64 [N], the bytes of each record."""
        return self.records.sizes

    @property
    def size(self) -> int:
        return int(self.records.ends[-1]) - int(self.records.starts[0])

    def slice(self, first: int, last: int) -> Lines:
        return replace(self, row=self.row + first, records=self.records.slice(first, last))


@dataclass(frozen=True)
class ParsedRows:
    """Parsed rows of a file.

    Attributes
    ----------
    file : InputFile
        The file.
    row : int
        The number of the first row.
    chunk : Chunk
        The rows.
    block : Parsed or None
        The records from which the rows were parsed; None for formats without records.
    is_new : bool or None
        Whether the rows begin a chunk; None if that depends on the rows before them.

    """

    file: InputFile
    row: int
    chunk: Chunk
    block: Parsed | None = None
    is_new: bool | None = None

    def __len__(self) -> int:
        return self.chunk.rows_read

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64 [N], the average number of bytes per row, for each row."""
        return np.full(len(self), self.size // max(len(self), 1), np.int64)

    @property
    def size(self) -> int:
        return len(self.chunk.data) + self.chunk.kept_bytes

    def slice(self, first: int, last: int) -> ParsedRows:
        if (first, last) == (0, len(self)):
            return self
        return replace(self, row=self.row + first, chunk=rows_between(self.chunk, self.row + first, self.row + last))


Piece = Lines | ParsedRows


def parsed(pieces: Sequence[Piece], selection: Selection, spans: list[Span] | None) -> Chunk:
    """Return the rows of pieces, in order. The pieces are all `Lines` of one format, or all `ParsedRows`."""
    lines = [piece for piece in pieces if isinstance(piece, Lines)]
    if not lines:
        return concat([piece.chunk for piece in pieces if isinstance(piece, ParsedRows)])
    # Parse the lines of all pieces in one go.
    selection = replace(selection, of_path=lines[0].of_path)
    if len(lines) == 1:
        (one,) = lines
        return one.form.chunk_of(one.records, one.file.path, one.row, selection, spans)
    ends = list(accumulate(map(len, lines)))
    chunk = lines[0].form.chunk_of(_joined([piece.records for piece in lines]), "", 0, selection, spans)
    # Then give each row its own file and its number there.
    paths = pa.array([piece.file.path for piece in lines], pa.string())
    firsts = np.array([piece.row - end + len(piece) for piece, end in zip(lines, ends, strict=True)])

    def placed(table: pa.Table) -> pa.Table:
        """Replace the number of each row among all pieces by its file and its number there."""
        numbers = table.column("row").to_numpy()
        which = np.searchsorted(ends, numbers, "right")
        table = table.set_column(table.column_names.index("file"), "file", paths.take(pa.array(which)))
        return table.set_column(table.column_names.index("row"), "row", pa.array(numbers + firsts[which]))

    def placed_rows(rows: RowsByName) -> RowsByName:
        return {name: numbers + firsts[np.searchsorted(ends, numbers, "right")] for name, numbers in rows.items()}

    return replace(
        chunk,
        rows=placed(chunk.rows),
        quarantine=placed(chunk.quarantine),
        not_copied=placed_rows(chunk.not_copied),
        unknown_labels=placed_rows(chunk.unknown_labels),
        mapped_labels=placed_rows(chunk.mapped_labels),
    )


def joinable(one: Piece, other: Piece) -> bool:
    """Whether two pieces can be parsed in one go."""
    if not (isinstance(one, Lines) and isinstance(other, Lines)):
        return False
    return (one.form, one.of_path) == (other.form, other.of_path)


def _joined(runs: Sequence[Records]) -> Records:
    """Join records of several files as if they came from one. Each record keeps its byte offset in its file."""
    blocks: list[bytes | memoryview] = []
    starts, ends = [], []
    problems: dict[int, str] = {}
    at = count = 0
    for records in runs:
        begin, end = int(records.starts[0]), int(records.ends[-1])
        blocks += [memoryview(records.data)[begin:end], b"\n"]
        starts.append(records.starts + (at - begin))
        ends.append(records.ends + (at - begin))
        problems |= {count + i: reason for i, reason in records.problems.items()}
        at, count = at + end - begin + 1, count + len(records)
    offsets = np.concatenate([records.offsets for records in runs])
    return Records(b"".join(blocks), np.concatenate(starts), np.concatenate(ends), offsets, problems)
