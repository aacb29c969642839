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
    """The slots of a ring that are page-locked: each from its first use on, as far as it is used.

    A reader has filled a slot by then, so the host has made its pages, which is three quarters of the work. To lock all
    slots ahead would take that time in this process, and their memory also where a job uses few. Where the host allows
    no more, the GPU copies from the other slots all the same, at a lower rate: a remark says so until the end.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._locked: dict[int, int] = {}  # of each slot, its first bytes
        self._refused: str | None = None  # why no more slots are locked
        self._one_at_a_time = threading.Lock()

    def lock(self, slot: int) -> None:
        """Page-lock a slot, unless it is."""
        self._lock(slot, self._ring.slot_bytes)

    def lock_for_pieces(self, slot: int) -> None:
        """Page-lock that part of a slot which holds pieces of messages, unless it is."""
        self._lock(slot, min(self._ring.slot_bytes, PIECE_BYTES))

    def _lock(self, slot: int, size: int) -> None:
        with self._one_at_a_time:
            locked = self._locked.get(slot, 0)
            if locked >= size or self._refused is not None:
                return
            address = self._address(slot)
            try:
                if locked:  # it was used for pieces, and is now for a block
                    cp.cuda.runtime.hostUnregister(address)
                    del self._locked[slot]
                cp.cuda.runtime.hostRegister(address, size, _PORTABLE)
                self._locked[slot] = size
            except cp.cuda.runtime.CUDARuntimeError as error:
                self._refused = f"{_REMARK} ({error})"
                REMARKS[self._refused] = None

    def close(self) -> None:
        """Unlock all slots. None may be in use."""
        for slot in self._locked:
            with suppress(cp.cuda.runtime.CUDARuntimeError):  # after a failure of the GPU every call fails
                cp.cuda.runtime.hostUnregister(self._address(slot))
        self._locked.clear()
        if self._refused is not None:
            REMARKS.pop(self._refused, None)

    def _address(self, slot: int) -> int:
        with self._ring.block(slot, self._ring.slot_bytes) as memory:
            return ctypes.addressof(ctypes.c_char.from_buffer(memory))
