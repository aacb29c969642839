"""Finds what may be wrong with a CSV file, from its line ends and quotes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .record_format import FEW_BYTES
from .records import count_of, places

_LF, _CR, _BACKSLASH = b"\n\r\\"

_MORE_LINES = 1.1
"""How many lines a file has for each row if its quotes may be part of the text."""

_ESCAPED_QUOTES = 0.01
"""How many quotes after a backslash a file has for each row if they may be escaped."""


@dataclass
class CsvCounting:
    """Counts lines that are not blank, and quotes after a backslash (see `Counting`).

    The first bytes of each cell of the file show which share of its lines is blank.

    Attributes
    ----------
    quote, delimiter, escape : str
        See `Csv`.
    cell_bytes : int
        The size of a cell in bytes.
    left : int or None
        How many further bytes are counted; None for all.

    """

    quote: str
    delimiter: str
    escape: str
    cell_bytes: int
    left: int | None
    _lines: float = 0.0
    _escaped: int = 0
    _at: int = 0  # bytes of the current cell
    _line_ends: int = 0  # line ends in the current cell
    _first: bytes = b""  # first bytes of the current cell
    _last: NDArray[np.uint8] = field(
        default_factory=lambda: np.empty(0, np.uint8)
    )  # the last two bytes, which may begin a quote

    def count(self, data: NDArray[np.uint8]) -> None:
        data = data[: self.left]
        self.left = None if self.left is None else self.left - len(data)
        self._count_quotes(data)
        while len(data):
            piece = data[: self.cell_bytes - self._at]
            data = data[len(piece) :]
            self._first += piece[: max(FEW_BYTES - self._at, 0)].tobytes()
            self._line_ends += count_of(piece, np.equal, _LF)
            self._at += len(piece)
            if self._at == self.cell_bytes:
                self._lines += self._lines_of_cell()
                self._at, self._line_ends, self._first = 0, 0, b""

    def _lines_of_cell(self) -> float:
        """Return the number of lines of the current cell that are not blank."""
        first = np.frombuffer(self._first, np.uint8)
        ends = places(first, _LF) + 1
        blank = np.count_nonzero(np.isin(first[ends[ends < len(first)]], (_LF, _CR)))
        return self._line_ends * (1 - blank / max(len(ends), 1))

    def _count_quotes(self, data: NDArray[np.uint8]) -> None:
        if _BACKSLASH in self._last or count_of(data, np.equal, _BACKSLASH):
            data = np.concatenate([self._last, data])
            slashes = places(data[:-2], _BACKSLASH)
            after = data[slashes[data[slashes + 1] == ord(self.quote)] + 2]
            ends_field = np.isin(after, (ord(self.quote), ord(self.delimiter), _LF, _CR))
            self._escaped += int(np.count_nonzero(~ends_field))
        self._last = data[-2:].copy() if len(data) > 1 else np.append(self._last, data)[-2:]

    def notes(self, rows: int) -> Iterator[str]:
        if self._lines + self._lines_of_cell() > _MORE_LINES * rows:
            yield "more lines than rows: quoted fields hold line ends. If the quotes are part of the text, --quote none"
        if not self.escape and self._escaped > _ESCAPED_QUOTES * rows:
            quote = self.quote
            yield f"many quotes follow a backslash, and end a field. If \\{quote} stands for {quote}, --escape '\\'"
