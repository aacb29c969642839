"""The strings of a block of JSON lines, found without parsing it: so that a long text is cut before it is parsed.

A string ends at the next quote before which no escape begins. What is taken out of the middle of one is checked here as
a parser would; all else stays in the block, for the parser to check. So the shortened block is JSON where the whole
block is, and only there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_QUOTE, _BACKSLASH, _COLON, _SPACE, _U = b'"\\: u'
_OPENING, _CLOSING = b"{[", b"}]"
_LEAST_CUT = 256
"""Bytes: to take out less is not worth it."""

_WORTH = 8
"""To find what can be cut takes about this part of the time that it takes to parse as much."""

_HEADS = (9 / 8, 9 / 2)
"""Bytes of the beginning that is kept, for a character that is read: of ASCII with few escapes, else of any text."""

_ESCAPES = np.isin(np.arange(256), list(b'"\\/bfnrtu'))
_HEX = np.full(256, -1, np.int32)
_HEX[list(b"0123456789")] = range(10)
_HEX[list(b"abcdef")] = _HEX[list(b"ABCDEF")] = range(10, 16)
_PLAIN_ESCAPE, _U_ESCAPE = 2, 6
"""Bytes of \\n, and of \\u000a."""

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Shortened:
    """Lines without the middle of long texts. removed: int64 [N], the characters taken out of each."""

    block: pa.Buffer
    removed: NDArray[np.int64]


@dataclass(frozen=True)
class _Escapes:
    """The escapes of a block. at: where they begin. saved: bytes each takes beyond the character that it stands for.
    valid: whether it is one. low: whether it is the second half of a surrogate pair, whose first counts no character.
    """

    at: Positions
    saved: Positions
    valid: NDArray[np.bool_]
    low: NDArray[np.bool_]


class Strings:
    """The strings in `block`, UTF-8, which begins with a bracket: lines that are hoped to be JSON, from `starts` on.
    Raises ValueError where the quotes of a line do not pair up.
    """

    def __init__(self, block: pa.Buffer, starts: Positions, is_ascii: bool) -> None:
        self._block = block
        self._starts = starts
        self._data = data = np.frombuffer(block, np.uint8)
        self._is_ascii = is_ascii
        quotes, self._escaping = _quotes(data)
        self.opens, self.closes = quotes[: len(quotes) // 2 * 2 : 2], quotes[1::2]
        if len(quotes) % 2 or (np.searchsorted(quotes, starts) & 1).any():
            raise ValueError("a string is not closed")

    @cached_property
    def outside(self) -> NDArray[np.uint8]:
        """All bytes that are in no string, and not its quotes."""
        bounds = np.empty(2 * len(self.opens) + 2, np.int64)
        bounds[0], bounds[-1] = 0, len(self._data)
        bounds[1:-1:2], bounds[2:-1:2] = self.opens, self.closes + 1
        return np.frombuffer(_every_second(self._block, bounds), np.uint8)

    def shortened(self, key: bytes, reads: int) -> Shortened | None:
        """The block with the values of `key` cut off, after the first `reads` characters or more; None where there is
        nothing to cut.
        """
        texts = self._texts(key, _least(reads))
        if not len(texts) or not self._has_no_control():
            return None
        begins, ends = self.opens[texts] + 1, self.closes[texts]
        escapes = self._escapes
        invalid = np.concatenate([[0], np.cumsum(~escapes.valid)])
        places = [begins]
        for share in _HEADS:
            head = int(share * reads)
            at = self._boundaries(np.minimum(begins + head, ends))
            places.append(np.where(ends - begins > _LEAST_CUT + head, at, ends))
        counts = self._characters(np.column_stack([*places, ends]))
        is_enough = np.cumsum(counts, axis=1)[:, :-1] >= reads
        which = is_enough.argmax(axis=1)  # the first place with enough before it
        cuts = np.where(is_enough.any(axis=1), np.column_stack(places[1:])[np.arange(len(ends)), which], ends)
        removed = counts.sum(axis=1) - np.cumsum(counts, axis=1)[np.arange(len(ends)), which]
        first, last = np.searchsorted(escapes.at, cuts), np.searchsorted(escapes.at, ends)
        good = (cuts < ends) & (invalid[first] == invalid[last])
        if not good.any():
            return None
        cuts, ends = cuts[good], ends[good]
        bounds = np.empty(2 * len(cuts) + 2, np.int64)
        bounds[0], bounds[-1] = 0, len(self._data)
        bounds[1:-1:2], bounds[2:-1:2] = cuts, ends
        of_lines = np.zeros(len(self._starts), np.int64)
        of_lines[np.searchsorted(self._starts, cuts) - 1] = removed[good]
        return Shortened(_every_second(self._block, bounds), of_lines)

    def _texts(self, key: bytes, least: int) -> Positions:
        """Which strings are values of `key` in the object of their line, not in one within it, and at least so long."""
        data = self._data
        which = np.flatnonzero(self.closes - self.opens > least)
        which = which[which > 0]
        keys, gaps = which - 1, self.opens[which] - self.closes[which - 1] - 1
        is_value = (gaps == 1) | ((gaps == 2) & (data[self.closes[keys] + 2] == _SPACE))
        is_value &= (data[self.closes[keys] + 1] == _COLON) & (self.closes[keys] - self.opens[keys] - 1 == len(key))
        which = which[is_value]
        names = self.opens[which - 1, None] + 1 + np.arange(len(key))
        which = which[(data[names] == np.frombuffer(key, np.uint8)).all(axis=1)]
        inside = np.concatenate([[0], np.cumsum(self.closes + 1 - self.opens)])
        place = self.opens[which] - inside[which]
        opening, closing = (np.flatnonzero(np.isin(self.outside, list(marks))) for marks in (_OPENING, _CLOSING))
        top: Positions = which[np.searchsorted(opening, place) - np.searchsorted(closing, place) == 1]
        return top

    def _has_no_control(self) -> bool:
        """Whether no string holds a control character, which is not allowed there."""
        return bool(np.count_nonzero(self._data < _SPACE) == np.count_nonzero(self.outside < _SPACE))

    @cached_property
    def _escapes(self) -> _Escapes:
        return _escapes(self._data, self._escaping)

    def _boundaries(self, at: Positions) -> Positions:
        """Positions in strings, each moved back to where a character begins."""
        at = at.copy()
        if not self._is_ascii:
            for _ in range(3):
                at -= (self._data[at] & 0xC0) == 0x80
        escapes = self._escapes
        if not len(escapes.at):
            return at
        for _ in range(2):  # into the second half of a pair, then before the first
            last = np.maximum(np.searchsorted(escapes.at, at, "right") - 1, 0)
            begin = escapes.at[last]
            size = np.where(escapes.saved[last] > 1, _U_ESCAPE, _PLAIN_ESCAPE)
            within = (begin <= at) & (at < begin + size)
            at = np.where(within, np.where(escapes.low[last], begin - 1, begin), at)
        return at

    def _characters(self, bounds: Positions) -> NDArray[np.int64]:
        """Characters of parts of strings, [N, M]: bounds[i, j] to bounds[i, j + 1]."""
        escapes = self._escapes
        counts = np.diff(bounds)
        if not self._is_ascii:
            places = pa.py_buffer(np.ascontiguousarray(bounds))
            pieces = pa.Array.from_buffers(pa.large_string(), bounds.size - 1, [None, places, self._block])
            counts = np.append(pc.utf8_length(pieces).to_numpy(), 0).reshape(bounds.shape)[:, :-1]
        saved = np.concatenate([[0], np.cumsum(escapes.saved)])
        return np.asarray(counts - np.diff(saved[np.searchsorted(escapes.at, bounds)]), np.int64)


def is_worth_cutting(sizes: NDArray[np.int64], reads: int) -> bool:
    """Whether in lines of these sizes there may be so much to cut that it takes less time than to parse it."""
    most = np.maximum(sizes - _least(reads), 0).sum()
    return bool(most > sizes.sum() // _WORTH)


def _least(reads: int) -> int:
    """Bytes of a text that is longer than this are cut."""
    return _LEAST_CUT + int(_HEADS[0] * reads)


def lines_refused(data: NDArray[np.uint8], starts: Positions) -> Positions:
    """Which of the lines that begin at `starts` have an escape that is none, or a quote too many."""
    quotes, escaping = _quotes(data)
    invalid = escaping[~_escapes(data, escaping).valid]
    unpaired = np.flatnonzero(np.diff(np.searchsorted(quotes, starts), append=len(quotes)) & 1)
    return np.union1d(np.searchsorted(starts, invalid, "right") - 1, unpaired)


def _quotes(data: NDArray[np.uint8]) -> tuple[Positions, Positions]:
    """The quotes that begin or end a string, and the backslashes that begin an escape. The first byte is neither."""
    escaping = _escaping(np.flatnonzero(data == _BACKSLASH))
    quotes = np.flatnonzero(data == _QUOTE)
    after = quotes[data[quotes - 1] == _BACKSLASH]
    if len(after):
        is_escaped = np.isin(after - 1, escaping, assume_unique=True)
        quotes = np.delete(quotes, np.searchsorted(quotes, after[is_escaped]))
    return quotes, escaping


def _escapes(data: NDArray[np.uint8], at: Positions) -> _Escapes:
    padded = np.append(data, np.zeros(_U_ESCAPE, np.uint8)) if len(at) else data
    kind = padded[at + 1] if len(at) else np.empty(0, np.uint8)
    valid = _ESCAPES[kind]
    saved = np.ones(len(at), np.int64)
    low = np.zeros(len(at), np.bool_)
    u = np.flatnonzero(kind == _U)
    if len(u):
        digits = _HEX[padded[at[u, None] + np.arange(2, _U_ESCAPE)]]
        unit = digits @ np.array([4096, 256, 16, 1], np.int32)
        of_pair = unit >> 10
        high, low_here = of_pair == 0xD800 >> 10, of_pair == 0xDC00 >> 10
        follows = np.append(np.diff(at[u]) == _U_ESCAPE, False)
        paired = high & follows & np.append(low_here[1:], False)
        second = np.append(False, paired[:-1])
        valid[u] = (digits >= 0).all(axis=1) & (high == paired) & (low_here == second)
        saved[u] = np.where(second, _U_ESCAPE, _U_ESCAPE - 1)
        low[u] = second
    return _Escapes(at, saved, valid, low)


def _escaping(backslashes: Positions) -> Positions:
    """The backslashes that begin an escape: of several in a row, every second one is itself escaped."""
    first = np.ones(len(backslashes), np.bool_)
    np.greater(backslashes[1:] - backslashes[:-1], 1, out=first[1:])
    if first.all():
        return backslashes
    place = np.arange(len(backslashes))
    of_run = place - np.maximum.accumulate(np.where(first, place, 0))
    found: Positions = backslashes[of_run & 1 == 0]
    return found


def _every_second(block: pa.Buffer, bounds: Positions) -> pa.Buffer:
    """block[bounds[0]:bounds[1]], block[bounds[2]:bounds[3]] and so on, joined."""
    pieces = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), block])
    mask = np.zeros(len(pieces), np.bool_)
    mask[::2] = True
    return pieces.filter(pa.array(mask)).buffers()[2]
