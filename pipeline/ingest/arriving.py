"""Copies texts that a reader process has decoded from the slots of the ring to the memory of a GPU."""

from __future__ import annotations

from collections.abc import Callable

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from ..errors import BroadsheetError
from ..kernels.driver_calls import copy
from ..source.read.ring_messages import OnHost, Place
from .texts import GpuTexts
from .workspace import lasting, workspace


def place_on_gpu(lock: Callable[[int], None], size: int) -> Place:
    """Allocate memory for texts of `size` bytes: on the current GPU, or on this host if the GPU has none left.

    Parameters
    ----------
    lock : callable
        Page-locks a slot of the ring, by the slot's number.
    size : int
        The bytes of the texts.

    """
    try:
        return _OnGpu(lock, size)
    except cp.cuda.memory.OutOfMemoryError:
        cp.get_default_memory_pool().free_all_blocks()
        return OnHost(size)


class _OnGpu:
    """A destination in the memory of the current GPU (see `Place`).

    Parameters
    ----------
    lock, size
        See `place_on_gpu`.

    """

    def __init__(self, lock: Callable[[int], None], size: int) -> None:
        self._lock = lock
        with workspace():
            self._data = lasting(size)

    def write(self, at: int, piece: NDArray[np.uint8], slot: int) -> None:
        """Copy a piece to its destination (see `Place`). Raises BroadsheetError if the GPU fails."""
        self._lock(slot)
        try:
            with workspace() as space:
                copy(self._data.data.ptr + at, piece.ctypes.data, len(piece), space.stream)
                space.settle()
        except (cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError) as error:
            raise BroadsheetError(f"GPU {cp.cuda.Device().id} failed to copy texts to its memory: {error}") from error

    def texts(self, offsets: NDArray[np.int64], is_blank: NDArray[np.bool_]) -> GpuTexts:
        return GpuTexts(self._data, offsets, is_blank)
