"""A stream, and memory that is used again for the next block: what a thread needs to read a block on the GPU.

A thread borrows a workspace for each block. Workspaces do not belong to threads, because Dask starts a new thread
whenever a task leaves its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, LifoQueue
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from ..kernels.driver_calls import copy, make_current, record
from ..kernels.twins import copy_small, page_locked

_ALIGNED = 512
"""Each array begins at a multiple of this many bytes, as in CuPy's own pool."""

_FIRST = -1
"""The priority of the streams that read: their kernels are short, and the engine waits for their results."""


class Workspace:
    """A stream, and memory for arrays that nobody needs after the block.

    If sizes differ from block to block, CuPy's own pool asks the driver for memory, which takes long and holds up other
    threads.
    """

    def __init__(self) -> None:
        self.stream = cp.cuda.Stream(non_blocking=True, priority=_FIRST)
        self._reached = cp.cuda.Event(block=True, disable_timing=True)
        self._memory = cp.empty(0, np.uint8)
        self._used = self._wanted = 0
        self._on_host: NDArray[np.uint8] = page_locked(1, np.uint8)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Return a context in which the stream is CuPy's current one, and new arrays lie in this memory. The arrays
        must not be used after it.
        """
        with self.stream:
            if self._wanted > len(self._memory):
                self._memory = cp.empty(0, np.uint8)  # freed first, so that the pool may use it for the next allocation
                self._memory = cp.empty(1 << (self._wanted - 1).bit_length(), np.uint8)
            self._used = self._wanted = 0
            with cp.cuda.using_allocator(self._allocate):
                yield

    def fetch(self, *arrays: cp.ndarray) -> list[NDArray[Any]]:
        """Return copies of arrays on the host, once the GPU has computed them."""
        begins = [0]
        for array in arrays:
            begins.append(begins[-1] + -(-array.nbytes // _ALIGNED) * _ALIGNED)
        if begins[-1] > len(self._on_host):
            self._on_host = page_locked(1 << (begins[-1] - 1).bit_length(), np.uint8)
        for array, begin in zip(arrays, begins, strict=False):
            if array.nbytes:
                copy(self._on_host.ctypes.data + begin, array.data.ptr, array.nbytes, self.stream)
        self.settle()
        found = []
        for array, begin in zip(arrays, begins, strict=False):
            found.append(np.empty(array.shape, array.dtype))
            copy_small(found[-1], self._on_host[begin : begin + array.nbytes])
        return found

    def settle(self) -> None:
        """Wait for all work of the stream, and leave this core to other threads meanwhile."""
        record(self._reached, self.stream)
        self._reached.synchronize()

    def _allocate(self, size: int) -> Any:
        begin, taken = self._used, -(-size // _ALIGNED) * _ALIGNED
        self._wanted += taken
        if begin + taken > len(self._memory):
            return _lasting(size)
        self._used += taken
        return self._memory.data + begin


_FREE: dict[int, LifoQueue[Workspace]] = {}


@contextmanager
def workspace() -> Iterator[Workspace]:
    """Return a context with a workspace on the current GPU that no other thread uses."""
    make_current()
    free = _FREE.setdefault(cp.cuda.runtime.getDevice(), LifoQueue())
    try:
        space = free.get_nowait()
    except Empty:
        space = Workspace()
    try:
        with space.in_use():
            yield space
    finally:
        free.put(space)


def close_workspaces() -> None:
    """Release the memory of all workspaces. None of them may be in use."""
    _FREE.clear()
    cp.get_default_memory_pool().free_all_blocks()


def lasting(size: int) -> cp.ndarray:
    """Return an array, uint8 [size], that may be used after the context of its workspace."""
    return cp.ndarray(size, np.uint8, _lasting(size))


def _lasting(size: int) -> Any:
    return cp.get_default_memory_pool().malloc(size)
