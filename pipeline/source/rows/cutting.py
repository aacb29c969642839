"""Cuts rows into chunks by their number and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Piece = TypeVar("_Piece")
Sizes = Callable[[], NDArray[np.int64]]
"""Returns the bytes of each of some rows."""


class Cutting:
    """Cuts rows into chunks of up to `most_rows` rows and `most_bytes` bytes. The rows come in runs of any length.

    A chunk of one row may be larger. Where rows are cut does not depend on the runs in which they come.
    """

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        # Per run of the chunk without known sizes: the function that finds them, its first and last row, its counted
        # bytes.
        self._unsized: list[tuple[Sizes, int, int, int]] = []
        self._begin()

    def _begin(self) -> None:
        self._rows = self._bytes = 0
        self._unsized.clear()

    def cut(self, sizes: NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """Cut the next rows, which have these sizes. Yield where each piece begins and ends, and whether it begins a
        new chunk.
        """
        for sizes_of, first, last, counted in self._unsized:
            self._bytes += int(sizes_of()[first:last].sum()) - counted
        self._unsized.clear()
        after = np.cumsum(sizes)
        at = 0
        while at < len(sizes):
            # Add rows until the chunk has enough rows or bytes, but at least one to an empty chunk.
            before = int(after[at - 1]) if at else 0
            within = int(np.searchsorted(after, before + self._most_bytes - self._bytes, "right"))
            stop = max(min(len(sizes), at + self._most_rows - self._rows, within), at if self._rows else at + 1)
            if stop > at:
                yield at, stop, not self._rows
                self._rows, self._bytes = self._rows + stop - at, self._bytes + int(after[stop - 1]) - before
            at = stop
            if at < len(sizes):
                self._begin()  # the chunk has no room for the next row

    def cut_unsized(self, rows: int, bound: int, sizes: Sizes) -> Iterator[tuple[int, int, bool]]:
        """Cut the next rows as `cut` does, but take them to have `bound` bytes in all. Their sizes are looked up only
        if the chunk may have no room for them.
        """
        if self._bytes + bound > self._most_bytes:
            yield from self.cut(sizes())
            return
        at = 0
        while at < rows:
            stop = min(rows, at + self._most_rows - self._rows)
            if stop > at:
                yield at, stop, not self._rows
                self._rows, self._bytes = self._rows + stop - at, self._bytes + bound
                self._unsized.append((sizes, at, stop, bound))
            at = stop
            if at < rows:
                self._begin()


def gathered(pieces: Iterable[tuple[_Piece, int, bool]], most_rows: int) -> Iterator[list[_Piece]]:
    """Yield the pieces of each chunk as soon as it is whole. pieces: each piece with its number of rows, and whether it
    begins a new chunk.
    """
    held: list[_Piece] = []
    held_rows = 0
    for piece, rows, new in pieces:
        if new and held:
            yield held
            held, held_rows = [], 0
        held.append(piece)
        held_rows += rows
        if held_rows == most_rows:
            yield held
            held, held_rows = [], 0
    if held:
        yield held
