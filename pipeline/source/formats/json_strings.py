"""The strings of a block of JSON lines, found without parsing it: so that a long text is cut before it is parsed.

A string ends at the next quote before which no escape begins. What is taken out of one is checked here as a parser
would; all else stays in the block, for the parser to check. So the shortened block is JSON where the whole block is,
and only there. Of most long texts the beginning is taken out too, without its escapes: a parser would copy it byte by
byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_QUOTE, _BACKSLASH, _COLON, _SPACE, _U = b'"\\: u'
_OPENING, _CLOSING = (np.isin(np.arange(256), list(marks)) for marks in (b"{[", b"}]"))
_LEAST_CUT = 256
"""Bytes: to take out less is not worth it."""

_WORTH = 8
"""To find what can be cut takes about this part of the time that it takes to parse as much."""

_HEADS = (9 / 8, 9 / 2)
"""Bytes of the beginning that is kept, for a character that is read: of ASCII with few escapes, else of any text."""

_TILE = 512 << 10
"""Bytes that are searched for quotes at once, so that they stay in a core's cache."""

_STANDS_FOR = np.arange(256, dtype=np.uint8)
_STANDS_FOR[list(b"bfnrt")] = list(b"\b\f\n\r\t")
"""What an escaped character means."""

_ESCAPES = np.isin(np.arange(256), list(b'"\\/bfnrtu'))
_HEX = np.full(256, -1, np.int32)
_HEX[list(b"0123456789")] = range(10)
_HEX[list(b"abcdef")] = _HEX[list(b"ABCDEF")] = range(10, 16)
_PLAIN_ESCAPE, _U_ESCAPE = 2, 6
"""Bytes of \\n, and of \\u000a."""

_OPEN_LIST, _OPEN = b"[{"
_CASE = np.uint8(_OPEN ^ _OPEN_LIST)
"""The bit by which "{" and "[" differ, as letters and capitals do."""

_DEEPEST = 200
"""Brackets in a line that may go to Arrow: `json` fails at a little less than a thousand nested ones."""

_SAMPLED, _DIGITS = 50, 43
"""Python rejects integers of more than 4,300 digits: such a run has 43 digits at steps of 50 bytes."""

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Shortened:
    """Lines without the middle or the end of long texts, or with nothing of them. removed: int64 [N], the characters
    taken out of each and thrown away. taken: which lines have an empty text in place of one of `texts`, large_string.
    """

    block: pa.Buffer
    removed: NDArray[np.int64]
    taken: Positions
    texts: pa.Array


@dataclass(frozen=True)
class _Escapes:
    """The escapes of a block. at: where they begin. kind: the byte after that. saved: bytes each takes beyond the
    character that it stands for. valid: whether it is one. low: whether it is the second half of a surrogate pair,
    whose first counts no character. int64 [n + 1], of those before each, and of all: saved_before, the bytes saved;
    invalid_before, how many are none; long_before, how many are of four digits.
    """

    at: Positions
    kind: NDArray[np.uint8]
    saved: Positions
    valid: NDArray[np.bool_]
    low: NDArray[np.bool_]

    @cached_property
    def saved_before(self) -> Positions:
        return np.concatenate([[0], np.cumsum(self.saved)])

    @cached_property
    def invalid_before(self) -> Positions:
        return np.concatenate([[0], np.cumsum(~self.valid)])

    @cached_property
    def long_before(self) -> Positions:
        return np.concatenate([[0], np.cumsum(self.kind == _U)])


class Strings:
    """The strings in `block`, UTF-8, which begins with a bracket: lines that are hoped to be JSON, from `starts` on.
    Raises ValueError where the quotes of a line do not pair up.
    """

    def __init__(self, block: pa.Buffer, starts: Positions, is_ascii: bool) -> None:
        self._block = block
        self._starts = starts
        self._data = data = np.frombuffer(block, np.uint8)
        self._is_ascii = is_ascii
        quotes, self._escaping, self._controls = _quotes(data)
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
        which = self._texts(key, _least(reads))
        if not len(which) or not self._has_no_control():
            return None
        begins, ends = self.opens[which] + 1, self.closes[which]
        escapes = self._escapes
        first, last = escapes.at.searchsorted(begins), escapes.at.searchsorted(ends)
        good = escapes.invalid_before[first] == escapes.invalid_before[last]
        if not good.all():
            begins, ends, first, last = begins[good], ends[good], first[good], last[good]
        if not len(begins):
            return None
        cuts = ends.copy()
        removed = np.zeros(len(ends), np.int64)
        left = np.arange(len(ends))
        for share in _HEADS:
            head = int(share * reads)
            left = left[ends[left] - begins[left] > _LEAST_CUT + head]
            if not len(left):
                break
            at = self._boundaries(begins[left] + head)
            counts = self._characters(np.column_stack([begins[left], at, ends[left]]))
            enough = counts[:, 0] >= reads
            cuts[left[enough]], removed[left[enough]] = at[enough], counts[enough, 1]
            left = left[~enough]
        until = escapes.at.searchsorted(cuts)
        is_taken = escapes.long_before[first] == escapes.long_before[until]
        lines = self._starts.searchsorted(begins) - 1
        of_lines = np.zeros(len(self._starts), np.int64)
        of_lines[lines] = removed
        bounds = np.empty(2 * len(cuts) + 2, np.int64)
        bounds[0], bounds[-1] = 0, len(self._data)
        bounds[1:-1:2], bounds[2:-1:2] = np.where(is_taken, begins, cuts), ends
        texts = self._unescaped(begins[is_taken], cuts[is_taken], first[is_taken], until[is_taken])
        return Shortened(_every_second(self._block, bounds), of_lines, lines[is_taken], texts)

    def _unescaped(self, begins: Positions, ends: Positions, first: Positions, last: Positions) -> pa.Array:
        """Parts of strings, large_string: escapes first[i] up to last[i] are in part i, and none is of four digits."""
        if not len(begins):
            return pa.array([], pa.large_string())
        counts = last - first
        before = np.concatenate([[0], np.cumsum(counts)])
        row = np.repeat(np.arange(len(begins)), counts)
        which = np.arange(before[-1]) - before[row] + first[row]
        at = self._escapes.at[which]
        bounds = np.empty(2 * (len(begins) + len(at)), np.int64)
        places = 2 * (np.arange(len(begins)) + before[:-1])
        bounds[places], bounds[places + 2 * counts + 1] = begins, ends
        places = 2 * (np.arange(len(at)) + row)
        bounds[places + 1], bounds[places + 2] = at, at + 1
        data = _every_second(self._block, bounds)
        offsets = np.concatenate([[0], np.cumsum(ends - begins - counts)])
        kind = self._escapes.kind[which]
        if (is_other := kind != _STANDS_FOR[kind]).any():
            index = np.arange(len(at)) - before[row]
            places = offsets[row] + at - begins[row] - index
            np.frombuffer(data, np.uint8)[places[is_other]] = _STANDS_FOR[kind[is_other]]
        return pa.Array.from_buffers(pa.large_string(), len(begins), [None, pa.py_buffer(offsets), data])

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
        opening, closing = (np.flatnonzero(is_one[self.outside]) for is_one in (_OPENING, _CLOSING))
        top: Positions = which[np.searchsorted(opening, place) - np.searchsorted(closing, place) == 1]
        return top

    def _has_no_control(self) -> bool:
        """Whether no string holds a control character, which is not allowed there."""
        return bool(np.count_nonzero(self.outside < _SPACE) == self._controls)

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
        saved = escapes.saved_before[escapes.at.searchsorted(bounds)]
        return np.asarray(counts - np.diff(saved), np.int64)


def is_worth_cutting(sizes: NDArray[np.int64], reads: int) -> bool:
    """Whether in lines of these sizes there may be so much to cut that it takes less time than to parse it."""
    most = np.maximum(sizes - _least(reads), 0).sum()
    return bool(most > sizes.sum() // _WORTH)


def _least(reads: int) -> int:
    """Bytes of a text that is longer than this are cut."""
    return _LEAST_CUT + int(_HEADS[0] * reads)


def are_plain(block: pa.Buffer, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> bool:
    """Whether no line is nested too deep or has a number of thousands of digits, whatever its strings hold."""
    long = np.flatnonzero(ends - starts > 2 * _DEEPEST)  # what is opened in a shorter one could not all be closed
    view, bounds = memoryview(block), zip(starts[long].tolist(), ends[long].tolist(), strict=True)
    lines = np.frombuffer(b"".join([view[start:end] for start, end in bounds]), np.uint8)
    after = np.cumsum(ends[long] - starts[long])
    return not too_deep(lines, np.append(0, after[:-1])[: len(long)]) and not long_numbers(lines)


def too_deep(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> bool:
    """Whether a line, with so many brackets, may be nested too deep."""
    if np.count_nonzero(data | _CASE == _OPEN) <= len(starts) + _DEEPEST - 1:  # each line begins with one
        return False
    brackets = np.flatnonzero((data == _OPEN) | (data == _OPEN_LIST))
    return bool(np.diff(brackets.searchsorted(starts), append=len(brackets)).max(initial=0) > _DEEPEST)


def long_numbers(data: NDArray[np.uint8]) -> bool:
    """Whether there may be a number of thousands of digits, which Arrow accepts and `json` does not."""
    samples = data[::_SAMPLED]
    runs = samples[: len(samples) // _DIGITS * _DIGITS].reshape(-1, _DIGITS)
    return bool(((runs >= ord("0")) & (runs <= ord("9"))).all(axis=1).any())


def lines_refused(data: NDArray[np.uint8], starts: Positions) -> Positions:
    """Which of the lines that begin at `starts` have an escape that is none, or a quote too many."""
    quotes, escaping, _ = _quotes(data)
    invalid = escaping[~_escapes(data, escaping).valid]
    unpaired = np.flatnonzero(np.diff(np.searchsorted(quotes, starts), append=len(quotes)) & 1)
    return np.union1d(np.searchsorted(starts, invalid, "right") - 1, unpaired)


def _quotes(data: NDArray[np.uint8]) -> tuple[Positions, Positions, int]:
    """The quotes that begin or end a string, the backslashes that begin an escape, and how many control characters
    there are. The first byte is none of these.

    Of several backslashes in a row, every second one is itself escaped.
    """
    at, controls = _found(data)
    is_backslash = data[at] == _BACKSLASH
    follows = np.zeros(len(at), np.bool_)
    np.logical_and(at[1:] - at[:-1] == 1, is_backslash[:-1], out=follows[1:])
    if (follows[1:] & follows[:-1]).any():
        place = np.arange(len(at))
        escaped = (place - np.maximum.accumulate(np.where(follows, 0, place))) & 1 == 1
    else:
        escaped = follows
    return at[~(is_backslash | escaped)], at[is_backslash & ~escaped], controls


def _found(data: NDArray[np.uint8]) -> tuple[Positions, int]:
    """All quotes and backslashes, and how many control characters there are."""
    found, controls = [], 0
    is_one, is_other = np.empty((2, min(_TILE, len(data))), np.bool_)
    for begin in range(0, len(data), _TILE):
        tile = data[begin : begin + _TILE]
        one, other = is_one[: len(tile)], is_other[: len(tile)]
        np.equal(tile, np.uint8(_QUOTE), out=one)
        np.equal(tile, np.uint8(_BACKSLASH), out=other)
        np.logical_or(one, other, out=one)
        found.append(np.flatnonzero(one) + begin)
        controls += int(np.count_nonzero(np.less(tile, np.uint8(_SPACE), out=one)))
    return np.concatenate(found), controls


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
    return _Escapes(at, kind, saved, valid, low)


def _every_second(block: pa.Buffer, bounds: Positions) -> pa.Buffer:
    """block[bounds[0]:bounds[1]], block[bounds[2]:bounds[3]] and so on, joined."""
    pieces = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), block])
    mask = np.zeros(len(pieces), np.bool_)
    mask[::2] = True
    return pieces.filter(pa.array(mask)).buffers()[2]
