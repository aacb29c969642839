"""Whether there is room for another engine, on a GPU or in the memory of the host."""

from __future__ import annotations

import psutil

_LEAST_FREE = 0.25
"""Of a GPU's memory: an engine plans for four fifths of what is free, so with less its batches become small."""

_LEAST_AVAILABLE = 0.1
_MOST_USED = 0.6
"""Of a worker's limit: from 0.6 on Dask spills results, from 0.8 on it pauses."""


def is_short_of_memory(device: str, limit: int | None) -> bool:
    """device: "cpu" or "cuda". limit: bytes that this process may use of the host; None without one."""
    host = psutil.virtual_memory()
    if host.available < _LEAST_AVAILABLE * host.total:
        return True
    if limit and psutil.Process().memory_info().rss > _MOST_USED * limit:
        return True
    if device == "cuda":
        try:
            import cupy
        except ImportError:
            return False  # opening the engine says what is missing

        free, total = cupy.cuda.Device().mem_info
        return bool(free < _LEAST_FREE * total)
    return False
