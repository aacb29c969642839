"""Cuts a byte stream into records, in blocks of bounded size, with each record's position in the file."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from mmap import mmap
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..rows.chunk import HEAD_BYTES, BadRow
from ..rows.limits import LIMITS, Limits

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Split:
    """The records of one buffer.

    Attributes
    ----------
    starts, ends : ndarray
        int64 [n], where the content of each record begins and ends, without the line end.
    problems : dict of int to str
        The reason why a record cannot be parsed, by its index.
    consumed : int
        The bytes of the buffer that are no longer needed.
    overlong : bytes
        If the rest begins with a line over the limit, which the caller must skip: the bytes of which each ends a line.
        Otherwise empty.

    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    problems: dict[int, str]
    consumed: int
    overlong: bytes = b""


class Splitter(Protocol):
    """Finds the records of `buffer`, which begins at a record. final: whether the stream ends with it."""

    def __call__(self, buffer: bytes, final: bool) -> Split: ...


@dataclass(frozen=True)
class Records:
    """n records in file order.

    Attributes
    ----------
    data : bytes
        The bytes that hold the records.
    starts, ends : ndarray
        int64 [n]: record i is ``data[starts[i]:ends[i]]``.
    offsets : ndarray
        int64 [n], the byte of the file at which each record begins.
    problems : dict of int to str
        The reason why a record cannot be parsed, by its index.

    """

    data: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    offsets: NDArray[np.int64]
    problems: dict[int, str]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64 [n], the bytes of each record."""
        return self.ends - self.starts

    @cached_property
    def _bad(self) -> list[int]:
        return sorted(self.problems)

    def raw(self, i: int) -> tuple[int, bytes]:
        """Return the byte offset and the first bytes of record i."""
        start = int(self.starts[i])
        return int(self.offsets[i]), self.data[start : min(int(self.ends[i]), start + HEAD_BYTES)]

    def bad_rows(self, first_row: int) -> list[BadRow]:
        """Return the records that cannot be parsed. first_row: the row of the file that is record 0 of these."""
        bad = []
        for i, reason in self.problems.items():
            offset, head = self.raw(i)
            bad.append(BadRow(first_row + i, offset, reason, head))
        return bad

    def slice(self, first: int, last: int) -> Records:
        bad = self._bad[bisect_left(self._bad, first) : bisect_left(self._bad, last)]
        problems = {i - first: self.problems[i] for i in bad}
        part = slice(first, last)
        return Records(self.data, self.starts[part], self.ends[part], self.offsets[part], problems)


class Readable(Protocol):
    """A stream that returns up to `size` bytes, or none at the end."""

    def read(self, size: int, /) -> bytes: ...


Guess = Callable[[bytes | mmap, int, int], int]
"""Returns how many bytes between two places are probably whole records. A record begins at the first place."""


def up_to_last_line_end(data: bytes | mmap, begin: int, end: int) -> int:
    """Guess that the records end at the last line end."""
    return max(data.rfind(b"\n", begin, end) + 1 - begin, 0)


def read_into(stream: Readable, room: memoryview) -> int:
    """Read up to as many bytes as `room` has. Streams that are decompressed have no `readinto`."""
    if hasattr(stream, "readinto"):
        return int(stream.readinto(room))
    piece = stream.read(len(room))
    room[: len(piece)] = piece
    return len(piece)


class Blocks:
    """Yields blocks of a stream that probably end where a record ends. Then it is a stream of the blocks that do not,
    and of the remaining bytes.

    Parameters
    ----------
    stream : Readable
        The stream.
    guess : callable
        Returns where a block probably ends.
    at : int
        The byte of the file that is the stream's position.
    stop : int or None
        The byte up to which there are blocks; None for the end.
    block_bytes : int
        How many bytes are read in one go.

    """

    def __init__(self, stream: Readable, guess: Guess, at: int, stop: int | None, block_bytes: int) -> None:
        self._stream, self._guess, self._at, self._block_bytes = stream, guess, at, block_bytes
        self._left = None if stop is None else max(0, stop - at)
        self._given: deque[memoryview] = deque()
        self._held = b""
        self._failure: Exception | None = None

    def __iter__(self) -> Iterator[tuple[memoryview, int]]:
        """Yield each block, and the byte of the file at which it begins."""
        while True:
            wanted = self._block_bytes if self._left is None else min(self._block_bytes, self._left)
            data, self._failure = read_onto(self._held, self._stream, wanted)
            got = len(data) - len(self._held)
            self._left = None if self._left is None else self._left - got
            stop = self._guess(data, 0, len(data)) if got and self._failure is None else 0
            self._held = data[stop:]
            if not stop:
                return
            self._given.append(memoryview(data)[:stop])
            yield self._given[-1], self._at
            self._at += stop

    def accept(self) -> None:
        """Note that the first block that was yielded and not yet accepted does end where a record ends."""
        self._given.popleft()

    def read(self, size: int) -> bytes:
        """Return the bytes that follow the accepted blocks, piece by piece. Raises the errors of the stream."""
        if self._given:
            return bytes(self._given.popleft())
        if self._held:
            held, self._held = self._held, b""
            return held
        if self._failure is not None:
            raise self._failure
        return self._stream.read(size)


def read_onto(held: bytes, stream: Readable, size: int, at_once: bool = False) -> tuple[bytes, Exception | None]:
    """Return the held bytes and up to `size` more. There are fewer only at the end of the stream, or before an error,
    which is returned too. at_once: read only one piece of the stream. Bytes that come in pieces are copied once.
    """
    pieces, room = [held], size
    try:
        while room > 0 and (piece := stream.read(room)):  # `Blocks` returns what it holds, which may be more
            pieces.append(piece)
            room = 0 if at_once else room - len(piece)
    except Exception as error:  # a file system or decompressor may raise any error; the bytes before it are good
        return b"".join(pieces), error
    return b"".join(pieces) if held or len(pieces) > 2 else pieces[-1], None  # `join` releases the GIL, `+` does not


@dataclass
class Extent:
    """Says which records of a stream are read: those that begin before a byte. It also notes where they begin and end.

    Attributes
    ----------
    stop : int or None
        The byte of the file; None for all records up to the end.
    begin : int or None
        The byte at which the first record begins; None until one has been read.
    after : int or None
        The byte at which the first record that is not read begins, or the file ends; None until all have been read.

    """

    stop: int | None = None
    begin: int | None = None
    after: int | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        """`begin` and `after`, which are equal if there is no record; -1 for a value that is not known."""
        after = -1 if self.after is None else self.after
        return after if self.begin is None else self.begin, after


TAIL_BYTES = 64 << 10
"""How many bytes are first read after the stop. Each further read has twice as many. Another worker
reads them again.
"""


def read_records(
    stream: Readable,
    split: Splitter,
    offset: int,
    extent: Extent | None = None,
    limits: Limits = LIMITS,
    as_they_arrive: bool = False,
) -> Iterator[Records]:
    """Yield blocks of records from a stream.

    Parameters
    ----------
    stream : Readable
        The stream.
    split : Splitter
        Finds the records.
    offset : int
        The byte of the file that is the stream's position. A record begins there.
    extent : Extent, optional
        Says which records are read; by default all. This sets its other fields.
    limits : Limits
        The limits on sizes.
    as_they_arrive : bool
        Whether to yield records without waiting until a block is full.

    Yields
    ------
    Records
        Each record is in one block. An error of the stream is raised after the records before it.

    """
    extent = extent or Extent()
    buffer, tail = b"", TAIL_BYTES
    skipping = b""  # the bytes of which each ends the line over the limit that is being skipped
    failure: Exception | None = None
    final = False
    while not final:
        # Read the next bytes: a block, or a little at a time after the stop.
        held, wanted = len(buffer), limits.block_bytes
        if extent.stop is not None:
            left = extent.stop - offset - held
            wanted = min(wanted, left if left > 0 else tail)
            tail = tail if left > 0 else 2 * tail
        buffer, failure = read_onto(buffer, stream, wanted, as_they_arrive)
        final = failure is not None or len(buffer) == held
        # Skip the rest of a line over the limit.
        if skipping:
            end = _line_end(buffer, skipping)
            if end < 0 and not final:
                offset, buffer = offset + len(buffer), b""
                continue
            end = len(buffer) if end < 0 else end
            offset, buffer = offset + end, buffer[end:]
            skipping = b""
        if not buffer:
            continue
        # Find the records, and keep those that begin before the stop.
        parts = split(buffer, final and failure is None)
        records = Records(buffer, parts.starts, parts.ends, parts.starts + offset, parts.problems)
        inside = len(records) if extent.stop is None else int(records.offsets.searchsorted(extent.stop))
        is_beyond = inside < len(records)
        if is_beyond:
            extent.after = int(records.offsets[inside])
            records = records.slice(0, inside)
        if len(records):
            extent.begin = int(records.offsets[0]) if extent.begin is None else extent.begin
            yield records
        if is_beyond:
            return
        offset, buffer = offset + parts.consumed, buffer[parts.consumed :]
        # Report a line over the limit as one bad record, and skip it.
        if parts.overlong:
            if extent.stop is not None and offset >= extent.stop:
                extent.after = offset
                return
            skipping = parts.overlong
            extent.begin = offset if extent.begin is None else extent.begin
            yield _single(buffer[:HEAD_BYTES], offset, limits.long_line)
    # Report the bytes before an error of the stream as one bad record, then raise the error.
    if failure is not None:
        if buffer:
            yield _single(buffer[:HEAD_BYTES], offset, "cut off where the file could not be read on")
        raise failure
    extent.after = offset + len(buffer)


def _single(head: bytes, offset: int, reason: str) -> Records:
    return Records(head, np.array([0]), np.array([len(head)]), np.array([offset]), {0: reason})


def _line_end(buffer: bytes, ends: bytes) -> int:
    """Return the position after the first byte that ends a line, or -1. (The LF of a CRLF is then a blank line.)"""
    places = [place for place in (buffer.find(end) for end in ends) if place >= 0]
    return min(places) + 1 if places else -1


_TILE = 512 << 10
"""How many bytes are searched in one go, so that they stay in a core's cache."""


def places(data: NDArray[np.uint8], value: int) -> NDArray[np.int64]:
    """Return the positions of a byte, int64, in order.

    `np.flatnonzero` tests flags one by one if some are set. So this first finds the groups of eight flags in which one
    is set, each as one number of 64 bits.
    """
    positions, room = [np.empty(0, np.int64)], np.zeros(min(_TILE, (len(data) + 8) & -8), np.bool_)
    words = room.view(np.uint64)
    for begin in range(0, len(data), _TILE):
        tile = data[begin : begin + _TILE]
        np.equal(tile, np.uint8(value), out=room[: len(tile)])
        room[len(tile) :] = False
        which = np.flatnonzero(words != 0)
        within = np.flatnonzero(words[which].view(np.bool_))
        positions.append((8 * which + begin)[within >> 3] + (within & 7))
    return np.concatenate(positions)


def count_of(data: NDArray[np.uint8], is_one: np.ufunc, value: int) -> int:
    """Count the bytes for which `is_one(byte, value)` is true, such as those that equal the value."""
    room = np.empty(min(_TILE, len(data)), np.bool_)
    tiles = (data[begin : begin + _TILE] for begin in range(0, len(data), _TILE))
    return sum(int(np.count_nonzero(is_one(tile, np.uint8(value), out=room[: len(tile)]))) for tile in tiles)


def split_lines(buffer: bytes, final: bool, limits: Limits = LIMITS) -> Split:
    """Split at line ends, LF or CRLF. The last line may lack one."""
    array = np.frombuffer(buffer, np.uint8)
    ends = places(array, 0x0A)
    consumed = int(ends[-1]) + 1 if len(ends) else 0
    if final and consumed < len(buffer):
        ends = np.append(ends, len(buffer))
        consumed = len(buffer)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)[: len(ends)]
    ends = ends - ((ends > starts) & (array[np.maximum(ends - 1, 0)] == 0x0D) if len(ends) else 0)
    problems = {int(i): limits.long_line for i in np.flatnonzero(ends - starts > limits.field_bytes)}
    overlong = b"\n" if len(buffer) - consumed > limits.field_bytes else b""
    return Split(starts, ends, problems, consumed, overlong)
