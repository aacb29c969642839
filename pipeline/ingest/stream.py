"""The CUDA stream of a thread that reads. CuPy's memory pool keeps memory for each stream, so threads keep theirs."""

from __future__ import annotations

import threading
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

_OF_THREAD = threading.local()
_ALIGNED = 64


def stream() -> cp.cuda.Stream:
    """The stream of the calling thread on the current GPU."""
    streams: dict[str, cp.cuda.Stream] = _OF_THREAD.__dict__
    device = str(cp.cuda.runtime.getDevice())
    if device not in streams:
        streams[device] = cp.cuda.Stream(non_blocking=True)
    return streams[device]


def fetched(*arrays: cp.ndarray) -> list[NDArray[Any]]:
    """Copies of arrays of the current stream on the host, once the GPU has computed them."""
    current = cp.cuda.get_current_stream()
    begins = np.cumsum([0, *(-(-array.nbytes // _ALIGNED) * _ALIGNED for array in arrays)])
    memory = cp.cuda.alloc_pinned_memory(max(int(begins[-1]), 1))
    for array, begin in zip(arrays, begins.tolist(), strict=False):
        if array.nbytes:
            array.data.copy_to_host_async(memory.ptr + begin, array.nbytes, current)
    current.synchronize()
    whole = np.frombuffer(memory, np.uint8)
    return [
        whole[begin : begin + array.nbytes].view(array.dtype).copy()
        for array, begin in zip(arrays, begins.tolist(), strict=False)
    ]
