"""Where rows are cut into chunks, by their number and by the bytes that they hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class Cutting:
    """Cuts rows that come in runs of any length into chunks of up to `most_rows` rows and `most_bytes` bytes.

    A chunk of one row may be larger. Where rows are cut does not depend on the runs in which they come.
    """

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._rows = self._bytes = 0

    def cut(self, sizes: NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """The next rows, of these sizes, in pieces: from, up to, and whether the piece begins a new chunk."""
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
                self._rows = self._bytes = 0  # there was no room for the next row
