"""Stands in for CuPy where there is no GPU: NumPy arrays with as much of CuPy as the reading of records needs.

Memory that no code has written holds bytes that are invalid for every type, so that tests notice who reads it.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

_UNWRITTEN = 0xA5

_DRIVER = """
#include <string.h>
int cuMemcpyAsync(void* to, const void* source, size_t size, void* stream) { memcpy(to, source, size); return 0; }
int cuMemsetD8Async(void* to, unsigned char value, size_t size, void* stream) { memset(to, value, size); return 0; }
int cuEventRecord(void* event, void* stream) { return 0; }
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) { return 0; }
int cuEventElapsedTime(float* milliseconds, void* first, void* last) { return 0; }
int cuGraphLaunch(void* graph, void* stream) { return 1; }
int cuLaunchKernel(void* kernel) { return 1; }
"""
"""Stands in for CUDA's driver, which `kernels/driver_calls.py` calls without CuPy."""


def _load_driver() -> None:
    """Load the stand-in for the driver, so that code that loads it by name finds this one."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "driver.c"), Path(folder, "libcuda.so.1")
        source.write_text(_DRIVER)
        command = ["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


_load_driver()


class ndarray(np.ndarray):  # noqa: N801, the name is CuPy's
    """An array in the memory of the imitated device."""

    @property
    def data(self) -> _Memory:
        return _Memory(self.ctypes.data)

    @property
    def device(self) -> _Device:
        return _Device()


class _Memory:
    """The address of an array."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


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
    ptr = 0

    def __init__(self, non_blocking: bool = False, priority: int = 0) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Event:
    ptr = 0

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Pool:
    def malloc(self, size: int) -> np.ndarray:
        return np.empty(size, np.uint8)

    def free_all_blocks(self) -> None:
        pass


class _NeverRaised(Exception):
    pass


def _alloc_pinned_memory(size: int) -> _PinnedMemory:
    return np.empty(size, np.uint8).view(_PinnedMemory)


cuda = SimpleNamespace(
    Device=_Device,
    Stream=_Stream,
    Event=_Event,
    using_allocator=lambda _: _Context(),
    get_current_stream=_Stream,
    alloc_pinned_memory=_alloc_pinned_memory,
    runtime=SimpleNamespace(getDevice=lambda: 0, free=lambda _: None, CUDARuntimeError=_NeverRaised),
    driver=SimpleNamespace(CUDADriverError=_NeverRaised),
    memory=SimpleNamespace(OutOfMemoryError=_NeverRaised),
)


def empty(shape: int, dtype: Any) -> ndarray:
    array = np.empty(shape, dtype).view(ndarray)
    array.view(np.uint8)[...] = _UNWRITTEN
    return array


def get_default_memory_pool() -> _Pool:
    return _Pool()


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
