"""The input of the parent program: fp32 [N, symbols, length], one-hot columns, no header.

The parent program is the course project with MPI and CUDA from which Broadsheet descends (README.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import UsageError
from ...telemetry.spans import Span
from ..open.opening import open_at, read_answers
from ..rows.chunk import HEAD_BYTES, BadRow, Chunk, Selection, bad_rows_table
from ..rows.format import FilePlan, Format, Fragment, InputFile, Schema, Seek
from ..rows.labels import NO_TRUTH


@dataclass(frozen=True)
class OneHot(Format):
    """Files of one-hot texts. symbols, length: the model's number of symbols and length of a text."""

    name = "one-hot"
    suffixes = (".bin",)
    seeks = Seek.ROWS
    jumps = True

    symbols: int = 0
    length: int = 0

    def for_model(self, symbols: int, length: int) -> Self:
        return replace(self, symbols=symbols, length=length)

    @property
    def _row_bytes(self) -> int:
        return 4 * self.symbols * self.length

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        """Return a schema without columns. Raises UsageError if the answer file does not fit this file."""
        if selection.answers:
            _answers_of(selection.answers, self.rows_of(file))
        return Schema(None)

    def rows_of(self, file: InputFile) -> int:
        return file.stored // self._row_bytes

    def plan(self, file: InputFile, schema: Schema, selection: Selection, chunk_rows: int) -> FilePlan:
        rows, left = divmod(file.stored, self._row_bytes)
        problems = [f"{file.path}: {left:,} bytes after article {rows:,} are not a whole article"] if left else []
        # In memory a column of 4 * `symbols` bytes becomes an id of one byte, so a chunk may be larger in the file.
        max_rows = max(1, min(chunk_rows, 8 * self.limits.chunk_bytes // self._row_bytes))
        counts = ((at, min(max_rows, rows - at)) for at in range(0, rows, max_rows))
        size = self._row_bytes
        return FilePlan([Fragment(file, at, at, count, at * size, count * size) for at, count in counts], problems)

    def read(self, fragments: Sequence[Fragment], selection: Selection, spans: list[Span] | None) -> Iterator[Chunk]:
        return (self._chunk(fragment, selection) for fragment in fragments)

    def _chunk(self, fragment: Fragment, selection: Selection) -> Chunk:
        """Return the chunk of a fragment. A zero column is an unknown character, or padding if only zero columns
        follow.

        Rows with a column that is neither one-hot nor zero are quarantined.
        """
        file, start, count = fragment.file, fragment.start, fragment.rows
        # Turn each one-hot row into ids. Rows that are not one-hot go to the quarantine.
        ids = np.full((count, self.length), self.symbols + 1, np.uint8)
        bad: list[BadRow] = []
        good = np.ones(count, np.bool_)
        for i, article in enumerate(self._articles(fragment)):
            set_here = article != 0
            per_column = set_here.sum(axis=0)
            wrong = (per_column > 1) | (set_here & (article != 1)).any(axis=0)
            if wrong.any():
                place = int(np.flatnonzero(wrong)[0])
                head = article.reshape(-1)[: HEAD_BYTES // 4].tobytes()
                why = f"column {place} is neither one-hot nor zero"
                bad.append(BadRow(start + i, (start + i) * self._row_bytes, why, head))
                good[i] = False
                continue
            used = np.flatnonzero(per_column)
            if len(used):
                ids[i, : used[-1] + 1] = self.symbols
                ids[i, used] = set_here.argmax(axis=0)[used]
        # Add the answers of the rows, and make the chunk.
        numbers = np.arange(start, start + count)[good]
        truth = _answers_of(selection.answers, file.stored // self._row_bytes)[numbers] if selection.answers else None
        if truth is not None:
            truth = np.where((truth >= 0) & (truth < len(selection.classes)), truth, NO_TRUTH).astype(np.int32)
        rows = pa.table([pa.array([file.path] * len(numbers), pa.string()), pa.array(numbers)], selection.row_schema)
        empty = pa.array([b""] * len(numbers), pa.large_binary())
        return Chunk(empty, rows, bad_rows_table(file.path, bad), ids[good], truth)

    def _articles(self, fragment: Fragment) -> Iterator[NDArray[np.float32]]:
        with open_at(fragment.file, fragment.start * self._row_bytes) as stream:
            for _ in range(fragment.rows):
                data = stream.read(self._row_bytes)
                yield np.frombuffer(data, "<f4").reshape(self.symbols, self.length)


def _answers_of(path: str, rows: int) -> NDArray[np.int32]:
    """Return the parent program's answer file, N fp32 class indices from 0, as int32 [N]. Raises UsageError if its size
    is wrong.
    """
    data = read_answers(path)
    if len(data) != 4 * rows:
        raise UsageError(f"{path} holds {len(data):,} bytes, {rows:,} answers take {4 * rows:,}")
    answers = np.frombuffer(data, "<f4")
    return np.where(np.isfinite(answers), answers, -1).astype(np.int32)
