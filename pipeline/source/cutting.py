"""How rows are cut into chunks: by their number, and by the bytes that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Piece = TypeVar("_Piece")
Sizes = Callable[[], NDArray[np.int64]]
"""Bytes of each of some rows."""


class Cutting:
    """Cuts rows that come in runs of any length into chunks of up to `most_rows` rows and `most_bytes` bytes.

    A chunk of one row may be larger. Where rows are cut does not depend on the runs in which they come.
    """

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._unsized: list[tuple[Sizes, int, int, int]] = []  # of the chunk: which rows of these, and what they count
        self._begin()

    def _begin(self) -> None:
        self._rows = self._bytes = 0
        self._unsized.clear()

    def cut(self, sizes: NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """The next rows, of these sizes, in pieces: from, up to, and whether the piece begins a new chunk."""
        for sizes_of, first, last, counted in self._unsized:
            self._bytes += int(sizes_of()[first:last].sum()) - counted
        self._unsized.clear()
        after = np.cumsum(sizes)
        at = 0
        while at < len(sizes):
            before = int(after[at - 1]) if at else 0
            within = int(np.searchsorted(after, before + self._most_bytes - self._bytes, "right"))
            stop = max(min(len(sizes), at + self._most_rows - self._rows, within), at if self._rows else at + 1)
            if stop > at:
                yield at, stop, not self._rows
                self._rows, self._bytes = self._rows + stop - at, self._bytes + int(after[stop - 1]) - before
            at = stop
            if at < len(sizes):
                self._begin()  # there was no room for the next row

    def cut_unsized(self, rows: int, most: int, sizes: Sizes) -> Iterator[tuple[int, int, bool]]:
        """The same of rows that take `most` bytes at most: their sizes are asked for only where a chunk may have no
        room for these.
        """
        if self._bytes + most > self._most_bytes:
            yield from self.cut(sizes())
            return
        at = 0
        while at < rows:
            stop = min(rows, at + self._most_rows - self._rows)
            if stop > at:
                yield at, stop, not self._rows
                self._rows, self._bytes = self._rows + stop - at, self._bytes + most
                self._unsized.append((sizes, at, stop, most))
            at = stop
            if at < rows:
                self._begin()


def gathered(pieces: Iterable[tuple[_Piece, int, bool]], most_rows: int) -> Iterator[list[_Piece]]:
    """The pieces of each chunk, as soon as it is whole. pieces: each with its rows, and whether it begins a new one."""
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
