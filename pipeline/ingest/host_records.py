"""Reads, on the host, the records of a block that a GPU leaves to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..source.formats.record_format import RecordFormat
from ..source.formats.records import Records
from ..source.rows.chunk import Chunk, Selection

_LINE_END = b"\r\n"
"""The line end that is added to each record. It has a CR, so that a CR at the end of the record stays part of the
record.
"""


def read_alone(
    form: RecordFormat,
    path: str,
    selection: Selection,
    block: NDArray[np.uint8],
    at: int,
    begins: NDArray[np.uint32],
    sizes: NDArray[np.uint32],
) -> Chunk | None:
    """Read some records of a block. Their rows are numbered from 0.

    Return None if the host takes one of them for several, such as a record of CSV in which a quote was left open. Then
    the host must read the whole block.

    Parameters
    ----------
    form : RecordFormat
        The format, bound to the file's columns.
    path : str
        The file.
    selection : Selection
        The columns that the job uses, as they are in this file.
    block : ndarray
        uint8 [bytes], the block.
    at : int
        The byte of the file at which the block begins.
    begins, sizes : ndarray
        uint32 [N], the first byte of each record in the block, and its number of bytes.

    """
    firsts, lengths = begins.astype(np.int64), sizes.astype(np.int64)
    lines = (block[first : first + size].tobytes() for first, size in zip(firsts, lengths, strict=True))
    data = b"".join(line + _LINE_END for line in lines)
    starts = np.cumsum(np.append(0, lengths + len(_LINE_END)))[:-1]
    split = form.split(data, False)
    if not (np.array_equal(split.starts, starts) and np.array_equal(split.ends, starts + lengths)):
        return None
    records = Records(data, starts, starts + lengths, firsts + at, split.problems)
    return form.chunk_of(records, path, 0, selection, None)
