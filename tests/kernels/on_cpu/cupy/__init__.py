"""In place of CuPy where there is no GPU: arrays of NumPy, in as far as the reading of records needs them.

Memory that nobody has written holds bytes that are no valid value of anything, so that whoever reads it is noticed.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

_UNWRITTEN = 0xA5


class ndarray(np.ndarray):  # noqa: N801, the name is CuPy's
    """An array in the memory of the device that is played."""

    @property
    def data(self) -> _Memory:
        return _Memory(self.ctypes.data)

    @property
    def device(self) -> _Device:
        return _Device()


class _Memory:
    """Where an array is."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def copy_from_host_async(self, source: int, size: int, _: _Stream) -> None:
        ctypes.memmove(self.ptr, source, size)

    def copy_to_host_async(self, target: int, size: int, _: _Stream) -> None:
        ctypes.memmove(target, self.ptr, size)


class _PinnedMemory(np.ndarray):
    @property
    def ptr(self) -> int:
        return self.ctypes.data


class _Context:
    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Device(_Context):
    id = 0
    compute_capability = "90"


class _Stream(_Context):
    def __init__(self, non_blocking: bool = False) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _NeverRaised(Exception):
    pass


def _alloc_pinned_memory(size: int) -> _PinnedMemory:
    return np.empty(size, np.uint8).view(_PinnedMemory)


cuda = SimpleNamespace(
    Device=_Device,
    Stream=_Stream,
    get_current_stream=_Stream,
    alloc_pinned_memory=_alloc_pinned_memory,
    runtime=SimpleNamespace(getDevice=lambda: 0, CUDARuntimeError=_NeverRaised),
    driver=SimpleNamespace(CUDADriverError=_NeverRaised),
    memory=SimpleNamespace(OutOfMemoryError=_NeverRaised),
)


def empty(shape: int, dtype: Any) -> ndarray:
    array = np.empty(shape, dtype).view(ndarray)
    array.view(np.uint8)[...] = _UNWRITTEN
    return array


def zeros(shape: int, dtype: Any) -> ndarray:
    return np.zeros(shape, dtype).view(ndarray)


def asarray(array: Any) -> ndarray:
    return np.array(array).view(ndarray)


def asnumpy(array: ndarray) -> np.ndarray:
    return np.array(array)


def concatenate(arrays: Any) -> ndarray:
    return np.concatenate(arrays).view(ndarray)


def cumsum(array: ndarray, dtype: Any = None, out: ndarray | None = None) -> ndarray:
    return np.cumsum(array, dtype=dtype, out=out).view(ndarray)


def flatnonzero(array: ndarray) -> ndarray:
    return np.flatnonzero(array).view(ndarray)
