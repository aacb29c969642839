"""Reads the bytes of a file of records in blocks of whole records, for a worker that finds the records itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from ..formats.record_format import RecordFormat
from ..formats.records import TAIL_BYTES, Readable, read_into
from .ring import RawBlock, Slots


class RawBlocks:
    """Yields blocks of whole records of a stream, in slots that are shared with the worker. Afterwards it is a stream
    of the remaining bytes.

    The blocks hold all records that begin before the stop. They end earlier if the worker refuses a block, if a record
    is longer than a slot, or if the last record has no line end. The remaining bytes begin there.

    Parameters
    ----------
    stream : Readable
        The stream. A record begins at its position.
    form : RecordFormat
        The format, bound to the columns of the file.
    at : int
        The byte of the file that is the stream's position.
    stop : int or None
        The byte of the file before which the records begin; None for all records.
    slots : Slots
        The slots to fill.
    stored : callable
        Returns how many stored bytes of the file have been read.

    Attributes
    ----------
    at : int
        The byte of the file at which the remaining bytes begin.

    """

    def __init__(
        self,
        stream: Readable,
        form: RecordFormat,
        at: int,
        stop: int | None,
        slots: Slots,
        stored: Callable[[], int],
    ) -> None:
        self.at = at
        self._stream, self._form, self._slots, self._stored = stream, form, slots, stored
        self._stop = stop
        self._left = None if stop is None else max(0, stop - at)
        self._rest: deque[bytes] = deque()
        self._failure: Exception | None = None

    def __iter__(self) -> Iterator[RawBlock]:
        """Yield each block once its slot is filled. Stop at the first block that is refused."""
        held, is_over = b"", False  # `held`: the begun record at the end of the last slot
        while not is_over and (begin := self._slots.reserve()) is not None:
            # Fill the slot: first with the bytes of the begun record, then from the stream, up to the stop.
            memory, room = self._slots.memory, self._slots.slot_bytes
            memory[begin : begin + len(held)] = held
            wanted = room - len(held) if self._left is None else min(room - len(held), self._left)
            count, is_over = self._fill(begin + len(held), wanted)
            end = begin + len(held) + count
            # Find how many of these bytes are whole records. At the stop, read on to the end of the last one.
            size = self._form.block_end(memory, begin, end)
            if self._left == 0 and not is_over:
                size, end = self._with_last_records(begin, size, end)
                is_over = True
            is_over = is_over or not size
            held = memory[begin + size : end]
            if size:
                yield self._slots.give(size, self.at, self._stored())
                self.at += size
        # The bytes that remain are those of refused blocks, and those after the last whole record.
        self._slots.settle()
        if self._slots.is_refused:
            blocks, self.at = self._slots.withdraw()
            self._rest.extend(blocks)
        self._rest.append(held)

    def read(self, size: int) -> bytes:
        """Return the bytes that follow the blocks that the worker freed, piece by piece. Raises the errors of the
        stream.
        """
        while self._rest:
            if piece := self._rest.popleft():
                return piece
        if self._failure is not None:
            raise self._failure
        return self._stream.read(size)

    def _with_last_records(self, begin: int, size: int, end: int) -> tuple[int, int]:
        """Read on to the end of the records that begin before the stop, if the slot has room for them.

        Parameters
        ----------
        begin, end : int
            Where the bytes that were read up to the stop begin and end in the memory of the slots.
        size : int
            The number of these bytes that are whole records.

        Returns
        -------
        size, end : int
            The new number of bytes in whole records, and the new end.

        """
        assert self._stop is not None
        first, room = begin + size, begin + self._slots.slot_bytes
        before_stop = self._stop - (self.at + size)
        tail, is_over = TAIL_BYTES, False
        while before_stop > 0 and not is_over and end < room:
            count, is_over = self._fill(end, min(tail, room - end))
            end, tail = end + count, 2 * tail
            records = self._form.quick_split(self._slots.memory[first:end], False)
            beyond = records.starts[records.starts >= before_stop]
            if records.consumed >= before_stop:
                return size + (int(beyond[0]) if len(beyond) else records.consumed), end
        return size, end

    def _fill(self, begin: int, wanted: int) -> tuple[int, bool]:
        """Read up to `wanted` bytes to a place in the slots. Return their number, and whether the stream has ended."""
        count = 0
        with memoryview(self._slots.memory) as memory:
            try:
                while count < wanted:
                    with memory[begin + count : begin + wanted] as room:
                        got = read_into(self._stream, room)
                    if not got:
                        break
                    count += got
            # A file system or decompressor may raise any error; the bytes before it are good.
            except Exception as error:
                self._failure = error
        self._left = None if self._left is None else max(0, self._left - count)
        return count, count < wanted
