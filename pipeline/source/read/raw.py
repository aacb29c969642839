"""The bytes of a file of records in blocks of whole records, for a worker that finds the records itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from ..formats.records import Guess, Readable, read_into
from .ring import RawBlock, Slots


class RawBlocks:
    """Blocks of whole records of a stream, in slots that are shared with the worker. After these, a stream of the rest.

    The rest begins with what the worker refused, a record that is longer than a slot, or one that goes beyond the stop.

    Parameters
    ----------
    stream : Readable
        The stream; a record begins where it is.
    guess : callable
        Where a block ends.
    at : int
        The byte of the file at which it is.
    stop : int or None
        The byte up to which blocks are read; None for the end.
    slots : Slots
        Where the blocks go.
    stored : callable
        Returns how many bytes have been read of the file as it is stored.

    Attributes
    ----------
    at : int
        The byte of the file at which the rest begins.

    """

    def __init__(
        self, stream: Readable, guess: Guess, at: int, stop: int | None, slots: Slots, stored: Callable[[], int]
    ) -> None:
        self.at = at
        self._stream, self._guess, self._slots, self._stored = stream, guess, slots, stored
        self._left = None if stop is None else max(0, stop - at)
        self._rest: deque[bytes] = deque()
        self._failure: Exception | None = None

    def __iter__(self) -> Iterator[RawBlock]:
        """Each block, once its slot is filled. Ends at the first that is refused."""
        held, is_over = b"", False
        while not is_over and (begin := self._slots.reserve()) is not None:
            memory, room = self._slots.memory, self._slots.slot_bytes
            memory[begin : begin + len(held)] = held
            wanted = room - len(held) if self._left is None else min(room - len(held), self._left)
            count, is_over = self._fill(begin + len(held), wanted)
            end = begin + len(held) + count
            size = self._guess(memory, begin, end)
            is_over = is_over or self._left == 0 or not size
            held = memory[begin + size : end]
            if size:
                yield self._slots.give(size, self.at, self._stored())
                self.at += size
        self._slots.settle()
        if self._slots.is_refused:
            blocks, self.at = self._slots.withdraw()
            self._rest.extend(blocks)
        self._rest.append(held)

    def read(self, size: int) -> bytes:
        """What follows the blocks that the worker freed, piece by piece. Raises what the stream raises."""
        while self._rest:
            if piece := self._rest.popleft():
                return piece
        if self._failure is not None:
            raise self._failure
        return self._stream.read(size)

    def _fill(self, begin: int, wanted: int) -> tuple[int, bool]:
        """Read up to `wanted` bytes to a place in the slots. Returns their number, and whether the stream has ended."""
        count = 0
        with memoryview(self._slots.memory) as memory:
            try:
                while count < wanted:
                    with memory[begin + count : begin + wanted] as room:
                        got = read_into(self._stream, room)
                    if not got:
                        break
                    count += got
            except Exception as error:  # any of a file system or decompressor: what is before it is good
                self._failure = error
        self._left = None if self._left is None else self._left - count
        return count, count < wanted
