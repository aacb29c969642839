"""Takes the values of one key out of a block of JSON lines before the block is parsed. A parser would copy them byte by
byte, and most bytes of a corpus are those of its texts.

The values are checked here as a parser would check them. The rest of the block stays, with an empty string in place of
each value, for the parser to check. So the rest is JSON if and only if the whole block is. A value ends at the next
quote that is not escaped. If the key were inside a string, that string would end where the key begins, and neither the
block nor the rest of it would be JSON.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .records import count_of, places

_QUOTE, _BACKSLASH, _SPACE, _U = b'"\\ u'
_OPENING, _CLOSING = (np.isin(np.arange(256), list(marks)) for marks in (b"{[", b"}]"))

_KEY = re.compile(r'\w[^"\\]*')
"""Matches keys, as a file holds them, that could not follow the end of a string."""

_LEAST_LINE, _LEAST_SHARE = 160, 0.5
"""The smallest average number of bytes in a line, and the smallest share of all bytes that the values have. Below
these, taking the values out is not worth it.
"""

_MOST_LONG = 0.25
"""The largest number of escapes of four digits per line. They are left to the parser, and with more of them, so is the
whole block.
"""

_SAMPLE = 256
"""How many lines are compared first. If more than half of them differ, most lines of the block probably do."""

_STANDS_FOR = np.arange(256, dtype=np.uint8)
_STANDS_FOR[list(b"bfnrt")] = list(b"\b\f\n\r\t")
"""The meaning of an escaped character."""

_ESCAPES = np.isin(np.arange(256), list(b'"\\/bfnrt'))
_HEX = np.full(256, -1, np.int32)
_HEX[list(b"0123456789")] = range(10)
_HEX[list(b"abcdef")] = _HEX[list(b"ABCDEF")] = range(10, 16)
_U_ESCAPE = 6
"""The number of bytes in \\u000a."""

_OPEN_LIST, _OPEN = b"[{"
_CASE = np.uint8(_OPEN ^ _OPEN_LIST)
"""The bit in which "{" and "[" differ, as letters and capitals do."""

_DEEPEST = 200
"""The largest number of brackets in a line that may go to Arrow: `json` fails at a little less than a thousand nested
ones.
"""

_SAMPLED, _DIGITS = 50, 43
"""Python rejects integers of more than 4,300 digits. If every 50th byte is examined, at least 86 of the examined bytes
are digits of such a number. So if the examined bytes are grouped by 43, one group has nothing but digits.
"""

Positions = NDArray[np.int64]


class Lines(NamedTuple):
    """Lines of a block. The bytes between them are blank.

    Attributes
    ----------
    block : pyarrow.Buffer
        The block.
    starts, ends : ndarray
        int64 [n]: line i is ``block[starts[i]:ends[i]]``.

    """

    block: pa.Buffer
    starts: Positions
    ends: Positions

    @property
    def data(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.block, np.uint8)

    @property
    def texts(self) -> pa.LargeBinaryArray:
        """Each line, with the bytes between it and the next."""
        return pieces(self.block, np.append(self.starts, len(self.block)))


class Taken(NamedTuple):
    """Texts that were taken out of lines.

    Attributes
    ----------
    left : Lines
        The lines without the texts.
    which : ndarray
        int64 [N], the numbers of the lines that have an empty string in place of a text.
    texts : pyarrow.Array
        large_string [N], the texts.

    """

    left: Lines
    which: Positions
    texts: pa.Array


def taken_out(lines: Lines, key: str, is_last: bool) -> Taken | None:
    """Take out the values of `key` that are strings without escapes of four digits. Each line must begin and end like
    an object and be UTF-8. Return None if this is not worth it. is_last: whether lines probably end with the value.
    """
    _, starts, ends = lines
    if not _KEY.fullmatch(key) or (ends - starts).sum() < _LEAST_LINE * len(starts):
        return None
    data = lines.data
    escapes = _escapes(data)
    if np.count_nonzero(data[escapes + 1] == _U) > _MOST_LONG * len(starts):
        return None
    which, begins = _values(lines, f'"{key}":'.encode())
    if is_last and (taken := _taken(lines, which, begins, ends[which] - 2, escapes)) is not None:
        return taken
    quotes = _quotes(data, escapes)
    closes = np.append(quotes, len(data) - 1)[quotes.searchsorted(begins)]
    return _taken(lines, which, begins, closes, escapes)


def _values(lines: Lines, name: bytes) -> tuple[Positions, Positions]:
    """Return which lines have a string as the value of a key, and where its content begins. name: the
    key and a colon.
    """
    places = pc.find_substring(lines.texts, name).to_numpy()
    which = np.flatnonzero(places >= 0)
    data, keys = lines.data, lines.starts[which] + places[which]
    begins = keys + len(name)
    begins += data[begins] == _SPACE
    good = (data[begins] == _QUOTE) & (data[keys - 1] != _BACKSLASH)
    return (which, begins + 1) if good.all() else (which[good], begins[good] + 1)


def _taken(lines: Lines, which: Positions, begins: Positions, closes: Positions, escapes: Positions) -> Taken | None:
    """Take out what is between these positions of some lines. Return None if this is not worth it, or if a string ends
    earlier.

    Parameters
    ----------
    lines : Lines
        The lines.
    which : ndarray
        The numbers of some of the lines.
    begins, closes : ndarray
        For each of these lines, where its value begins, and where the quote after it is, in bytes of the block.
    escapes : ndarray
        Where escapes begin, in bytes of the block.

    """
    # Leave out lines in which no quote is where the value should end.
    data, ends = lines.data, lines.ends[which]
    good = (begins <= closes) & (closes < ends) & (data[closes] == _QUOTE)
    if not good.all():
        which, begins, closes = which[good], begins[good], closes[good]
    if (closes - begins).sum() < _LEAST_SHARE * (lines.ends - lines.starts).sum():
        return None
    left = _left(lines, which, begins, closes)
    # If there are objects within the objects of lines, leave out the lines in which an inner one has the value.
    if np.count_nonzero(left.data | _CASE == _OPEN) > len(lines.starts):
        good = _are_of_lines(lines.block, lines.starts[which], begins)
        if not good.all():
            return _taken(lines, which[good], begins[good], closes[good], escapes)
    # Leave out values with an escape of four digits, or with an invalid one.
    kinds = data[escapes + 1]
    row, within = _which(escapes, begins, closes)
    if (others := row[within & ~(_ESCAPES[kinds] & (escapes + 1 < closes[row]))]).size:
        which, begins, closes = (np.delete(array, others) for array in (which, begins, closes))
        return _taken(lines, which, begins, closes, escapes)
    # Make the texts. A quote or control character that no escape stands for must not be in them.
    at, kinds, row = escapes[within], kinds[within], row[within]
    texts = _unescaped(lines.block, begins, closes, at, kinds, row)
    held, means = np.frombuffer(texts.buffers()[2], np.uint8), _STANDS_FOR[kinds]
    if count_of(held, np.equal, _QUOTE) > np.count_nonzero(means == _QUOTE):
        return None
    if held.min() < _SPACE and count_of(held, np.less, _SPACE) > np.count_nonzero(means < _SPACE):
        return None
    return Taken(left, which, texts)


def _left(lines: Lines, which: Positions, begins: Positions, closes: Positions) -> Lines:
    """Return the lines without what is between these positions of some of them."""
    sizes = np.zeros(len(lines.starts), np.int64)
    sizes[which] = closes - begins
    after = np.cumsum(sizes)
    bounds = np.empty(2 * len(begins) + 2, np.int64)
    bounds[0], bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = 0, begins, closes, len(lines.block)
    return Lines(_every_second(lines.block, bounds), lines.starts - after + sizes, lines.ends - after)


def _are_of_lines(block: pa.Buffer, starts: Positions, begins: Positions) -> NDArray[np.bool_]:
    """Return which of the values that begin here belong to the objects that begin at `starts`, and not to objects
    within them.
    """
    before = _every_second(block, np.column_stack([starts, begins - 1]).ravel())
    data = np.frombuffer(before, np.uint8)
    quotes, bounds = _quotes(data, _escapes(data)), np.cumsum(np.append(0, begins - 1 - starts))
    depth = np.zeros(len(starts), np.int64)
    for is_one, step in ((_OPENING, 1), (_CLOSING, -1)):
        at = np.flatnonzero(is_one[data])
        depth += step * np.diff(at[quotes.searchsorted(at) & 1 == 0].searchsorted(bounds))
    return np.asarray(depth == 1)


def _which(at: Positions, begins: Positions, closes: Positions) -> tuple[Positions, NDArray[np.bool_]]:
    """Return the number of the last part that begins before each position, and whether the position is within that
    part.
    """
    row = begins.searchsorted(at, "right") - 1
    return row, (row >= 0) & (at < closes[row])


def _unescaped(
    block: pa.Buffer, begins: Positions, ends: Positions, at: Positions, kinds: NDArray[np.uint8], row: Positions
) -> pa.Array:
    """Return parts of strings with the characters that their escapes mean, as large_string.

    Parameters
    ----------
    block : pyarrow.Buffer
        The block.
    begins, ends : ndarray
        Where the parts begin and end, in bytes of the block.
    at : ndarray
        Where escapes begin. None of them has four digits.
    kinds : ndarray
        uint8, the character after each backslash.
    row : ndarray
        The number of the part in which each escape is.

    """
    # Copy the parts without their backslashes: each backslash is a gap between two pieces that are copied.
    counts = np.bincount(row, minlength=len(begins))
    before = np.cumsum(counts) - counts
    bounds = np.empty(2 * (len(begins) + len(at)), np.int64)
    places = 2 * (np.arange(len(begins)) + before)
    bounds[places], bounds[places + 2 * counts + 1] = begins, ends
    places = 2 * (np.arange(len(at)) + row)
    bounds[places + 1], bounds[places + 2] = at, at + 1
    data = _every_second(block, bounds)
    # Then replace each character after a backslash by the one for which it stands, if that is another.
    offsets = np.cumsum(np.append(0, ends - begins - counts))
    if (is_other := kinds != _STANDS_FOR[kinds]).any():
        places = offsets[row] + at - begins[row] - (np.arange(len(at)) - before[row])
        np.frombuffer(data, np.uint8)[places[is_other]] = _STANDS_FOR[kinds[is_other]]
    return pa.Array.from_buffers(pa.large_string(), len(begins), [None, pa.py_buffer(offsets), data])


def distinct(lines: Lines) -> Lines:
    """Return lines whose parsing decides whether all these lines are JSON. Return all lines if most differ.

    One line stands for all lines that differ from it only in digits other than 0, because these digits do not matter.
    """
    # Replace each digit from 1 to 9 by 1. For any other byte the difference, modulo 256, is 9 or more.
    digits = lines.data - np.uint8(ord("1"))
    same = lines.data - digits * (digits < 9)
    texts = lines._replace(block=pa.py_buffer(same)).texts
    # An escape may stand for a letter of the key.
    if len(texts[:_SAMPLE].unique()) > _SAMPLE // 2 or (same == _BACKSLASH).any():
        return lines
    texts = texts.unique()
    starts = np.frombuffer(texts.buffers()[1], np.int64)[: len(texts)]
    return Lines(texts.buffers()[2], starts, np.append(starts[1:], len(texts.buffers()[2])))


def are_plain(lines: Lines) -> bool:
    """Whether no line is nested too deep or has a number of thousands of digits.

    Raises ValueError if the quotes of a line do not pair up.
    """
    # Brackets that a shorter line opens could not all be closed.
    long = np.flatnonzero(lines.ends - lines.starts > 2 * _DEEPEST)
    view, edges = memoryview(lines.block), zip(lines.starts[long].tolist(), lines.ends[long].tolist(), strict=True)
    joined = b"".join([view[start:end] for start, end in edges])
    starts = np.cumsum(np.append(0, (lines.ends - lines.starts)[long]))[: len(long)]
    if _is_plain(np.frombuffer(joined, np.uint8), starts):  # true whatever its strings hold
        return True
    quotes = _quotes(data := lines.data, _escapes(data))
    if (np.searchsorted(quotes, np.append(lines.starts, len(data))) & 1).any():
        raise ValueError("a string is not closed")
    bounds = np.concatenate([[0], quotes + (np.arange(len(quotes)) & 1), [len(data)]])
    outside = np.frombuffer(_every_second(lines.block, bounds), np.uint8)
    return _is_plain(outside, np.append(0, np.flatnonzero(outside == ord("\n")) + 1))


def _is_plain(data: NDArray[np.uint8], starts: Positions) -> bool:
    return not (_is_too_deep(data, starts) or _has_long_number(data))


def _is_too_deep(data: NDArray[np.uint8], starts: Positions) -> bool:
    """Whether a line may be nested too deep, judging by its number of brackets."""
    if np.count_nonzero(data | _CASE == _OPEN) <= len(starts) + _DEEPEST - 1:  # each line begins with one bracket
        return False
    brackets = np.flatnonzero((data == _OPEN) | (data == _OPEN_LIST))
    return bool(np.diff(brackets.searchsorted(starts), append=len(brackets)).max(initial=0) > _DEEPEST)


def _has_long_number(data: NDArray[np.uint8]) -> bool:
    """Whether there may be a number of thousands of digits, which Arrow accepts and `json` does not."""
    samples = data[::_SAMPLED]
    runs = samples[: len(samples) // _DIGITS * _DIGITS].reshape(-1, _DIGITS)
    return bool(((runs >= ord("0")) & (runs <= ord("9"))).all(axis=1).any())


def lines_refused(data: NDArray[np.uint8], starts: Positions) -> Positions:
    """Return the lines, of those that begin at `starts`, that have an invalid escape or an odd number of quotes."""
    escapes = _escapes(data)
    quotes, invalid = _quotes(data, escapes), escapes[~_are_valid(data, escapes)]
    unpaired = np.flatnonzero(np.diff(np.searchsorted(quotes, starts), append=len(quotes)) & 1)
    return np.union1d(np.searchsorted(starts, invalid, "right") - 1, unpaired)


def _escapes(data: NDArray[np.uint8]) -> Positions:
    """Return the backslashes that begin an escape. In a run of backslashes, every second one is itself escaped."""
    at = places(data, _BACKSLASH)
    follows = np.diff(at, prepend=-2) == 1
    if (follows[1:] & follows[:-1]).any():
        place = np.arange(len(at))
        follows = (place - np.maximum.accumulate(np.where(follows, 0, place))) & 1 == 1
    return np.asarray(at[~follows])


def _quotes(data: NDArray[np.uint8], escapes: Positions) -> Positions:
    """Return the quotes that begin or end a string."""
    quotes, after = places(data, _QUOTE), escapes[: np.searchsorted(escapes, len(data) - 1)] + 1
    return np.delete(quotes, quotes.searchsorted(after[data[after] == _QUOTE]))


def _are_valid(data: NDArray[np.uint8], at: Positions) -> NDArray[np.bool_]:
    """Return which of the escapes at these places are valid."""
    padded = np.append(data, np.zeros(_U_ESCAPE, np.uint8))
    kind = padded[at + 1]
    valid = _ESCAPES[kind]
    u = np.flatnonzero(kind == _U)
    # An escape of four digits may be half of a surrogate pair, as its first six bits show. The other half must follow
    # or precede it directly.
    digits = _HEX[padded[at[u, None] + np.arange(2, _U_ESCAPE)]]
    of_pair = (digits @ np.array([4096, 256, 16, 1], np.int32)) >> 10
    high, low = of_pair == 0xD800 >> 10, of_pair == 0xDC00 >> 10
    paired = high & np.append(low[1:], False) & np.append(np.diff(at[u]) == _U_ESCAPE, False)
    valid[u] = (digits >= 0).all(axis=1) & (high == paired) & (low == np.append(False, paired[:-1]))
    return np.asarray(valid)


def pieces(block: pa.Buffer, bounds: Positions) -> pa.LargeBinaryArray:
    """Return block[bounds[0]:bounds[1]], block[bounds[1]:bounds[2]] and so on."""
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), block])


def _every_second(block: pa.Buffer, bounds: Positions) -> pa.Buffer:
    """Return block[bounds[0]:bounds[1]], block[bounds[2]:bounds[3]] and so on, joined."""
    mask = np.zeros(len(bounds) - 1, np.bool_)
    mask[::2] = True
    return pieces(block, bounds).filter(pa.array(mask)).buffers()[2]
