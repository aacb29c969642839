"""Memory that a worker shares with its reader processes.

Each reader has slots of its own. It fills a slot with the bytes of files, or with the rows that it has read from them.
Once the worker has freed the slot, the reader fills it again.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import BroadsheetError, cause

SLOT_BYTES = 32 << 20
"""The size of a slot in bytes. Smaller slots would need more launches of kernels, and larger ones more page-locked
memory.
"""

SLOTS_EACH = 2
"""The number of slots of a reader. It fills one while the worker uses the other."""

_BEFORE = mmap.ALLOCATIONGRANULARITY
"""The bytes before the first slot. `Share` uses the first of them."""


class Share:
    """The number of cores that a reader may use now: the cores of all readers, divided by the requests under way."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def of(cls, descriptor: int) -> Share:
        """Return a reader's view of the share. descriptor: the file that the worker has made."""
        return cls(mmap.mmap(descriptor, _BEFORE))

    def get(self) -> int:
        return max(1, self._memory[0])

    def set(self, cores: int) -> None:
        self._memory[0] = min(max(1, cores), 255)


class Ring:
    """The slots of all readers, as the worker sees them. Raises BroadsheetError if the host has no memory for them.

    Parameters
    ----------
    readers : int
        The largest number of readers.
    slot_bytes : int
        The size of a slot in bytes.

    Attributes
    ----------
    descriptor : int
        The file through which readers share the memory.
    memory : mmap
        The memory.
    share : Share
        The number of cores that each reader may use now.

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
        """Return a view of the first `size` bytes of a slot."""
        begin = _BEFORE + slot * self.slot_bytes
        return memoryview(self.memory)[begin : begin + size]

    def close(self) -> None:
        """Close the file. The memory is freed once nobody holds a block."""
        os.close(self.descriptor)


@dataclass(frozen=True)
class Freed:
    """The worker tells the reader that it has used the first slot that it had not freed yet."""


@dataclass(frozen=True)
class Refused:
    """The worker tells the reader that the host must read the first block that is not freed yet. The worker ignores the
    blocks after it.
    """


Reply = Freed | Refused
"""The worker's reply about a slot. The replies come in the order in which the worker received the slots."""


@dataclass(frozen=True)
class Filled:
    """The reader tells the worker that a slot holds the next bytes of a message (`ring_messages.py`).

    Attributes
    ----------
    slot : int
        The number of the slot in the ring.
    size : int
        The number of bytes.

    """

    slot: int
    size: int


@dataclass(frozen=True)
class RawBlock:
    """The reader tells the worker that a slot holds records of a file.

    Attributes
    ----------
    slot : int
        The number of the slot in the ring.
    size : int
        The number of bytes of the records. The last byte is a line end.
    at : int
        The byte of the file at which the records begin.
    stored : int
        How many stored bytes of the file have been read; 0 if that is not known.

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
        The size of a slot in bytes.
    reply : callable
        Waits for the worker's next reply and returns it.

    Attributes
    ----------
    is_refused : bool
        Whether the worker has refused a block. `withdraw` resets this.

    """

    def __init__(self, descriptor: int, first: int, slot_bytes: int, reply: Callable[[], Reply]) -> None:
        self.slot_bytes = slot_bytes
        self.memory = mmap.mmap(descriptor, SLOTS_EACH * slot_bytes, offset=_BEFORE + first * slot_bytes)
        self.is_refused = False
        self._first, self._reply = first, reply
        self._free = deque(range(SLOTS_EACH))
        self._given: deque[RawBlock | Filled] = deque()

    def reserve(self) -> int | None:
        """Wait for a free slot and return its place in `memory`. Return None if the worker has refused a block."""
        while not (self._free or self.is_refused):
            self.note(self._reply())
        return None if self.is_refused else self._free[0] * self.slot_bytes

    def give(self, size: int, at: int, stored: int) -> RawBlock:
        """Return the message that the reserved slot now holds records."""
        block = RawBlock(self._first + self._free.popleft(), size, at, stored)
        self._given.append(block)
        return block

    def give_bytes(self, size: int) -> Filled:
        """Return the message that the reserved slot now holds `size` bytes of a message."""
        filled = Filled(self._first + self._free.popleft(), size)
        self._given.append(filled)
        return filled

    def content(self, block: RawBlock, max_bytes: int = SLOT_BYTES) -> bytes:
        """Return a copy of the records of a block, or of its first `max_bytes` bytes."""
        begin = (block.slot - self._first) * self.slot_bytes
        return self.memory[begin : begin + min(block.size, max_bytes)]

    def settle(self) -> None:
        """Wait until the worker has freed all blocks that it was sent, or has refused one."""
        while self._given and not self.is_refused:
            self.note(self._reply())

    def withdraw(self) -> tuple[list[bytes], int]:
        """Take back the blocks from the refused one on, and free their slots. Return their content, and the byte of the
        file at which the first of them begins.
        """
        # Slots with bytes of messages were freed before.
        refused = [block for block in self._given if isinstance(block, RawBlock)]
        self._free.extend(block.slot - self._first for block in refused)
        self._given.clear()
        self.is_refused = False
        return [self.content(block) for block in refused], refused[0].at

    def note(self, reply: Reply) -> None:
        """Note the worker's reply about the first slot that it was sent and has not freed yet."""
        if isinstance(reply, Refused):
            self.is_refused = True
        else:
            self._free.append(self._given.popleft().slot - self._first)
