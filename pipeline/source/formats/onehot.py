"""The parent program's input: fp32 [N, symbols, length], one-hot columns, no header; memory-mapped."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.source.chunk import HEAD_BYTES, BadRow, Chunk, Selection, bad_rows_table
from pipeline.source.files import InputFile


def rows_in(path: str, symbols: int, length: int) -> tuple[int, int]:
    """Whole articles in the file, and the bytes left over behind them."""
    return divmod(os.path.getsize(path), 4 * symbols * length)


def answers_of(path: str, rows: int) -> NDArray[np.int32]:
    """The parent's answer file, N fp32 class indices from 0, as int32 [N]. Raises UsageError for another size."""
    try:
        answers = np.fromfile(path, "<f4")
    except OSError as error:
        raise UsageError(f"the answer file {path} cannot be read: {error.strerror}") from error
    if len(answers) != rows or os.path.getsize(path) != 4 * rows:
        raise UsageError(f"{path} holds {os.path.getsize(path):,} bytes, {rows:,} answers take {4 * rows:,}")
    return np.where(np.isfinite(answers), answers, -1).astype(np.int32)


def parse(file: InputFile, start: int, stop: int, symbols: int, length: int, selection: Selection) -> Chunk:
    """Articles start to stop. A zero column is an unknown character, or padding where only zero columns follow.

    Rows with a column that is neither one-hot nor zero go to the quarantine.
    """
    stride = 4 * symbols * length
    total, _ = rows_in(file.location, symbols, length)
    columns = np.memmap(file.location, "<f4", "r", shape=(total, symbols, length))
    ids = np.full((stop - start, length), symbols + 1, np.uint8)
    bad: list[BadRow] = []
    good = np.ones(stop - start, np.bool_)
    for i in range(stop - start):
        article = columns[start + i]
        set_here = article != 0
        per_column = set_here.sum(axis=0)
        wrong = (per_column > 1) | (set_here & (article != 1)).any(axis=0)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            head = article.reshape(-1)[: HEAD_BYTES // 4].tobytes()
            reason = f"column {place} is neither one-hot nor zero"
            bad.append(BadRow(start + i, (start + i) * stride, reason, head))
            good[i] = False
            continue
        used = np.flatnonzero(per_column)
        if len(used):
            ids[i, : used[-1] + 1] = symbols
            ids[i, used] = set_here.argmax(axis=0)[used]
    numbers = np.arange(start, stop)[good]
    truth = answers_of(selection.answers, total)[start:stop][good] if selection.answers else None
    if truth is not None:
        truth = np.where((truth >= 0) & (truth < len(selection.classes)), truth, -1).astype(np.int32)
    rows = pa.table([pa.array([file.path] * len(numbers), pa.string()), pa.array(numbers)], selection.row_schema)
    empty = pa.array([b""] * len(numbers), pa.large_binary())
    return Chunk(empty, rows, bad_rows_table(file.path, bad), ids[good], truth)
