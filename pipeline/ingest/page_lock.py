"""Page-locks the slots of the readers, so that the GPU copies blocks from them without the host's help."""

from __future__ import annotations

import ctypes
import threading
import warnings
from contextlib import suppress

import cupy as cp

from ..source.read.ring import Ring

_PORTABLE = 1  # cudaHostRegisterPortable: for every CUDA context of the process


class PageLocks:
    """The slots of a ring that are page-locked: each from its first use on.

    To lock 1 GB takes half a second or more, so a job that uses few slots does not wait for all. Where the host allows
    no more, the GPU copies from the other slots all the same, at a lower rate.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._locked: dict[int, int] = {}  # the address of each slot
        self._is_allowed = True
        self._one_at_a_time = threading.Lock()

    def lock(self, slot: int) -> None:
        """Page-lock a slot, unless it is."""
        with self._one_at_a_time:
            if slot in self._locked or not self._is_allowed:
                return
            address = self._address(slot)
            try:
                cp.cuda.runtime.hostRegister(address, self._ring.slot_bytes, _PORTABLE)
                self._locked[slot] = address
            except cp.cuda.runtime.CUDARuntimeError as error:
                self._is_allowed = False
                warnings.warn(
                    f"the host does not page-lock memory for reading ({error}), so that the GPU copies its input more "
                    "slowly. Raise the limit of locked memory (ulimit -l), or the memory of this job",
                    RuntimeWarning,
                    stacklevel=1,
                )

    def close(self) -> None:
        """Unlock all slots. None may be in use."""
        for address in self._locked.values():
            with suppress(cp.cuda.runtime.CUDARuntimeError):  # after a failure of the GPU every call fails
                cp.cuda.runtime.hostUnregister(address)
        self._locked.clear()

    def _address(self, slot: int) -> int:
        with self._ring.block(slot, self._ring.slot_bytes) as memory:
            return ctypes.addressof(ctypes.c_char.from_buffer(memory))
