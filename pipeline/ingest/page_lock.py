"""Page-locks the slots of the readers, so that the GPU copies blocks from them without the host's help."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress

import cupy as cp

from ..source.read.ring import Ring
from ..source.read.ring_messages import PIECE_BYTES
from ..telemetry.remarks import REMARKS

_PORTABLE = 1  # cudaHostRegisterPortable: for every CUDA context of the process

_REMARK = (
    "the host does not page-lock memory for reading, so a GPU copied its input more slowly: raise the limit of locked "
    "memory (ulimit -l), or the memory of the job"
)


class PageLocks:
    """Page-locks the slots of a ring, each from its first use on, as far as it is used.

    By then a reader has filled the slot, so the host has made its pages, which is three quarters of the work. Locking
    all slots ahead would take that time in this process, and would use their memory even if a job needs few. If the
    host allows no more locks, the GPU copies from the other slots at a lower rate, and a remark says so until the end.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._locked: dict[int, int] = {}  # how many of its first bytes are locked, by slot
        self._refused: str | None = None  # the reason why no more slots are locked
        self._one_at_a_time = threading.Lock()

    def lock(self, slot: int) -> None:
        """Page-lock a slot, unless it is locked already."""
        self._lock(slot, self._ring.slot_bytes)

    def lock_for_pieces(self, slot: int) -> None:
        """Page-lock the part of a slot that holds pieces of messages, unless it is locked already."""
        self._lock(slot, min(self._ring.slot_bytes, PIECE_BYTES))

    def _lock(self, slot: int, size: int) -> None:
        with self._one_at_a_time:
            locked = self._locked.get(slot, 0)
            if locked >= size or self._refused is not None:
                return
            address = self._address(slot)
            try:
                if locked:  # it was used for pieces before, and is now used for a block
                    cp.cuda.runtime.hostUnregister(address)
                    del self._locked[slot]
                cp.cuda.runtime.hostRegister(address, size, _PORTABLE)
                self._locked[slot] = size
            except cp.cuda.runtime.CUDARuntimeError as error:
                self._refused = f"{_REMARK} ({error})"
                REMARKS[self._refused] = None

    def close(self) -> None:
        """Unlock all slots. None of them may be in use."""
        for slot in self._locked:
            with suppress(cp.cuda.runtime.CUDARuntimeError):  # after a failure of the GPU every call fails
                cp.cuda.runtime.hostUnregister(self._address(slot))
        self._locked.clear()
        if self._refused is not None:
            REMARKS.pop(self._refused, None)

    def _address(self, slot: int) -> int:
        with self._ring.block(slot, self._ring.slot_bytes) as memory:
            return ctypes.addressof(ctypes.c_char.from_buffer(memory))
