"""Memory on the GPU and page-locked memory on the host, with arrays at the same places in both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import DTypeLike, NDArray

from .driver_calls import copy
from .memory_plan import ArrayPlace

_COPIED_WITH_LOCK = 1 << 20


class NotPageLocked(Exception):
    """Raised if the host has no room for page-locked memory, or does not allow it."""


def page_locked(size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array in page-locked memory of the host. (CuPy's function is in `cupyx`, whose import takes 0.07 s.)"""
    kind = np.dtype(dtype)
    return np.ndarray(size, kind, cp.cuda.alloc_pinned_memory(size * kind.itemsize))


class Twins:
    """Bytes on the GPU and a page-locked twin of them on the host, so that one copy moves many arrays.

    Parameters
    ----------
    size : int
        The number of bytes on the GPU.
    host_size : int, optional
        The number of bytes on the host, which are the twins of the first bytes on the GPU. By default `size`.

    Attributes
    ----------
    device : uint8 [size]
        The bytes on the GPU.
    host : uint8 [host_size]
        The bytes on the host.

    Raises
    ------
    NotPageLocked
        If the host has no page-locked memory for them.
    cupy.cuda.memory.OutOfMemoryError
        If the GPU has no memory for them.

    """

    def __init__(self, size: int, host_size: int | None = None) -> None:
        self.device = cp.empty(size, np.uint8)
        try:
            self.host: NDArray[np.uint8] = page_locked(size if host_size is None else host_size, np.uint8)
        except cp.cuda.runtime.CUDARuntimeError as error:
            raise NotPageLocked(error) from error

    def copy_in(self, begin: int, end: int, stream: cp.cuda.Stream) -> None:
        """Start to copy a part of the bytes to the GPU."""
        copy(self.device.data.ptr + begin, self.host.ctypes.data + begin, end - begin, stream)

    def copy_out(self, begin: int, end: int, stream: cp.cuda.Stream) -> None:
        """Start to copy a part of the bytes to the host."""
        copy(self.host.ctypes.data + begin, self.device.data.ptr + begin, end - begin, stream)


def copy_small(to: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy the bytes of a C-contiguous array to another array of the same size.

    Up to 1 MiB the function keeps Python's interpreter lock (GIL). NumPy would release it, and a busy worker waits
    longer to get it back than the copy takes.
    """
    target_bytes, source_bytes = (array.reshape(-1).view(np.uint8) for array in (to, source))
    if source_bytes.nbytes > _COPIED_WITH_LOCK:
        target_bytes[:] = source_bytes
    else:
        target_bytes.data[:] = source_bytes.data


def views(memory: Any, arrays: Mapping[str, ArrayPlace]) -> dict[str, Any]:
    """Return the arrays within bytes of the GPU or the host, by name."""
    return {name: memory[at.start : at.stop].view(at.dtype).reshape(at.shape) for name, at in arrays.items()}
