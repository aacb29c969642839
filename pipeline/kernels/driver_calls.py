"""Calls of the CUDA driver that keep Python's interpreter lock (GIL).

CuPy releases the lock during each call, and another thread may take it. A batch makes some twenty calls of a few
microseconds each. In a worker where many threads want the lock, the thread that feeds the GPU would wait for it twenty
times. None of these calls waits for the GPU.

The functions are documented at https://docs.nvidia.com/cuda/cuda-driver-api/. The driver accepts CuPy's streams and
events, although the runtime made them. The GPU's context must be current in the calling thread: see `make_current`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import cupy as cp

_LIBRARY = "libcuda.so.1"

_ARGUMENTS = {
    "cuMemcpyAsync": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p),
    "cuEventRecord": (ctypes.c_void_p, ctypes.c_void_p),
    "cuStreamWaitEvent": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint),
    "cuEventElapsedTime": (ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_void_p),
    "cuGraphLaunch": (ctypes.c_void_p, ctypes.c_void_p),
    "cuMemsetD8Async": (ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p),
    "cuLaunchKernel": (
        ctypes.c_void_p,
        *(ctypes.c_uint,) * 7,  # blocks and threads along three dimensions, and bytes of shared memory
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_void_p,
    ),
}


_driver = ctypes.PyDLL(_LIBRARY)  # unlike ctypes.CDLL, it keeps the lock
for _name, _types in _ARGUMENTS.items():
    _function = getattr(_driver, _name)
    _function.argtypes, _function.restype = _types, ctypes.c_int


def make_current() -> None:
    """Make the context of the current GPU current in this thread. The first call of the CUDA runtime does this."""
    cp.cuda.runtime.free(0)


def copy(to: int, source: int, size: int, stream: cp.cuda.Stream) -> None:
    """Start to copy bytes between addresses of the GPU and of page-locked memory, in any direction."""
    if size:
        _check(_driver.cuMemcpyAsync(to, source, size, stream.ptr))


def record(event: cp.cuda.Event, stream: cp.cuda.Stream) -> None:
    """Record an event, which is reached once the GPU has finished all earlier work of the stream."""
    _check(_driver.cuEventRecord(event.ptr, stream.ptr))


def wait(stream: cp.cuda.Stream, event: cp.cuda.Event) -> None:
    """Make a stream wait for an event."""
    _check(_driver.cuStreamWaitEvent(stream.ptr, event.ptr, 0))


def launch(graph: Any, stream: cp.cuda.Stream) -> None:
    """Launch a graph that was uploaded to the GPU."""
    _check(_driver.cuGraphLaunch(graph.graphExec, stream.ptr))


def clear(memory: cp.ndarray, stream: cp.cuda.Stream) -> None:
    """Start to fill a contiguous array with zeros."""
    if memory.nbytes:
        _check(_driver.cuMemsetD8Async(memory.data.ptr, 0, memory.nbytes, stream.ptr))


def start(kernel: Any, blocks: int, threads: int, arguments: Sequence[Any], stream: cp.cuda.Stream) -> None:
    """Launch a kernel without dynamic shared memory.

    Parameters
    ----------
    kernel : cupy.cuda.Function
        The kernel.
    blocks, threads : int
        The number of thread blocks in the grid, and of threads in a block.
    arguments : sequence of cupy.ndarray, or of NumPy scalars or arrays
        The arguments. The kernel gets the addresses of CuPy arrays, and all others by value.
    stream : cupy.cuda.Stream
        The stream.

    """
    values = [_value(argument) for argument in arguments]
    places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    _check(_driver.cuLaunchKernel(kernel.ptr, blocks, 1, 1, threads, 1, 1, 0, stream.ptr, places, None))


def _value(argument: Any) -> Any:
    if isinstance(argument, cp.ndarray):
        return ctypes.c_uint64(argument.data.ptr)
    data = argument.tobytes()
    return (ctypes.c_char * len(data)).from_buffer_copy(data)


def milliseconds(first: cp.cuda.Event, last: cp.cuda.Event) -> float:
    """Return the time between two events. The GPU must have reached both."""
    found = ctypes.c_float()
    _check(_driver.cuEventElapsedTime(ctypes.byref(found), first.ptr, last.ptr))
    return found.value


def _check(status: int) -> None:
    """Raise CUDADriverError if a call failed."""
    if status:
        raise cp.cuda.driver.CUDADriverError(status)
