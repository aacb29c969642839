"""Memory that a worker shares with its reader processes.

Each reader has slots of its own. It fills them with the bytes of files, or with what it has read of them, and fills one
again once the worker has freed it.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import BroadsheetError, cause

SLOT_BYTES = 32 << 20
"""Bytes of a slot. Smaller slots would mean more launches of kernels, larger ones more memory that is page-locked."""

SLOTS_EACH = 2
"""Slots of a reader: it fills one while the worker uses the other."""

_BEFORE = mmap.ALLOCATIONGRANULARITY
"""Bytes before the first slot; the first of them is that of `Share`."""


class Share:
    """How many cores a reader may use now: all of the readers', divided by the requests under way."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def of(cls, descriptor: int) -> Share:
        """The same in a reader. descriptor: the file that the worker has made."""
        return cls(mmap.mmap(descriptor, _BEFORE))

    def get(self) -> int:
        return max(1, self._memory[0])

    def set(self, cores: int) -> None:
        self._memory[0] = min(max(1, cores), 255)


class Ring:
    """The slots of all readers, as the worker sees them. Raises BroadsheetError where the host has no memory for them.

    Parameters
    ----------
    readers : int
        How many readers there are at most.
    slot_bytes : int
        Bytes of a slot.

    Attributes
    ----------
    descriptor : int
        The file by which readers share the memory.
    memory : mmap
        The memory.
    share : Share
        How many cores each reader may use now.

    """

    def __init__(self, readers: int, slot_bytes: int = SLOT_BYTES) -> None:
        self.slot_bytes = slot_bytes
        self.descriptor = os.memfd_create("broadsheet-ring")
        size = _BEFORE + readers * SLOTS_EACH * slot_bytes
        try:
            os.ftruncate(self.descriptor, size)
            self.memory = mmap.mmap(self.descriptor, size)
        except OSError as error:
            os.close(self.descriptor)
            raise BroadsheetError(
                f"cannot share {size >> 20} MiB of memory with the processes that read: {cause(error)}. Raise the "
                "limits of memory and of file sizes (ulimit -v, ulimit -f)"
            ) from error
        self.share = Share(self.memory)

    def block(self, slot: int, size: int) -> memoryview:
        """The first `size` bytes of a slot."""
        begin = _BEFORE + slot * self.slot_bytes
        return memoryview(self.memory)[begin : begin + size]

    def close(self) -> None:
        """Close the file. The memory is freed once nobody holds a block."""
        os.close(self.descriptor)


@dataclass(frozen=True)
class Freed:
    """From the worker: it has used the first slot that was not freed yet."""


@dataclass(frozen=True)
class Refused:
    """From the worker: the host must read the first block that is not freed yet. The worker ignores the others."""


Reply = Freed | Refused
"""What the worker says of a slot that it was given. It replies in the order in which it was given them."""


@dataclass(frozen=True)
class Filled:
    """To the worker: a slot holds the next bytes of a message (`ring_messages.py`).

    Attributes
    ----------
    slot : int
        The number of the slot in the ring.
    size : int
        How many bytes there are.

    """

    slot: int
    size: int


@dataclass(frozen=True)
class RawBlock:
    """To the worker: a slot holds records of a file.

    Attributes
    ----------
    slot : int
        The number of the slot in the ring.
    size : int
        Bytes of the records; the last of them is a line end.
    at : int
        The byte of the file at which they begin.
    stored : int
        How many bytes have been read of the file as it is stored; 0 where that is not known.

    """

    slot: int
    size: int
    at: int
    stored: int


class Slots:
    """The slots of one reader, as the reader sees them.

    Parameters
    ----------
    descriptor : int
        The file that the worker has made.
    first : int
        The number of the first slot of this reader.
    slot_bytes : int
        Bytes of a slot.
    reply : callable
        Waits for the worker's next reply, and returns it.

    Attributes
    ----------
    is_refused : bool
        Whether the worker has refused a block; `withdraw` ends that.

    """

    def __init__(self, descriptor: int, first: int, slot_bytes: int, reply: Callable[[], Reply]) -> None:
        self.slot_bytes = slot_bytes
        self.memory = mmap.mmap(descriptor, SLOTS_EACH * slot_bytes, offset=_BEFORE + first * slot_bytes)
        self.is_refused = False
        self._first, self._reply = first, reply
        self._free = deque(range(SLOTS_EACH))
        self._given: deque[RawBlock | Filled] = deque()

    def reserve(self) -> int | None:
        """The place in `memory` of a free slot, for which this waits; None once the worker has refused a block."""
        while not (self._free or self.is_refused):
            self.note(self._reply())
        return None if self.is_refused else self._free[0] * self.slot_bytes

    def give(self, size: int, at: int, stored: int) -> RawBlock:
        """The message about the slot that was reserved, which now holds records."""
        block = RawBlock(self._first + self._free.popleft(), size, at, stored)
        self._given.append(block)
        return block

    def give_bytes(self, size: int) -> Filled:
        """The message about the slot that was reserved, which now holds so many bytes of a message."""
        filled = Filled(self._first + self._free.popleft(), size)
        self._given.append(filled)
        return filled

    def content(self, block: RawBlock, most: int = SLOT_BYTES) -> bytes:
        """A copy of the records of a block, or of its first `most` bytes."""
        begin = (block.slot - self._first) * self.slot_bytes
        return self.memory[begin : begin + min(block.size, most)]

    def settle(self) -> None:
        """Wait until the worker has freed every block that it was given, or has refused one."""
        while self._given and not self.is_refused:
            self.note(self._reply())

    def withdraw(self) -> tuple[list[bytes], int]:
        """The blocks from the refused one on, whose slots are then free, and the byte of the file of the first."""
        refused = [block for block in self._given if isinstance(block, RawBlock)]  # bytes of messages were freed before
        self._free.extend(block.slot - self._first for block in refused)
        self._given.clear()
        self.is_refused = False
        return [self.content(block) for block in refused], refused[0].at

    def note(self, reply: Reply) -> None:
        """Note what the worker says of the first slot that it was given and has not freed yet."""
        if isinstance(reply, Refused):
            self.is_refused = True
        else:
            self._free.append(self._given.popleft().slot - self._first)
