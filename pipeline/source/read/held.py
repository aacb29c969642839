"""How much of a record stays in memory once it is parsed, by which records are put into chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..chunk import Selection

_BESIDE_TEXT = 256
"""Bytes of a record beside its text, about: keys, other columns, marks."""


def held_bytes(sizes: NDArray[np.int64], selection: Selection) -> NDArray[np.int64]:
    """Bytes that count of records of these sizes: what the model reads of a long one, a character as one byte.

    It is known before a record is parsed. All of a record counts where columns are kept, since they may be the long
    ones, and where the whole text is read. A text of characters of four bytes takes up to four times as much.
    """
    if not selection.reads or selection.kept:
        return sizes
    return np.minimum(sizes, selection.reads + _BESIDE_TEXT)


def held_of_record(size: int, selection: Selection) -> int:
    """`held_bytes` of one record."""
    return size if not selection.reads or selection.kept else min(size, selection.reads + _BESIDE_TEXT)


def held_together(size: int, rows: int, selection: Selection) -> int:
    """Bytes that count of rows that take `size` bytes together, where a row's own size is not known."""
    return min(size, held_of_record(-(-size // max(rows, 1)), selection) * rows)
