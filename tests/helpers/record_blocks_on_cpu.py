"""Reads blocks of records as a GPU does, on a machine without one, with the kernels of `records_on_cpu`.

The folder `tests/kernels/on_cpu`, which holds the stand-in for CuPy, has to be on the module path.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
from records_on_cpu import at, compiled

from broadsheet.pipeline.ingest.record_blocks import RecordBlocks
from broadsheet.pipeline.kernels.catalog import Kernel
from broadsheet.pipeline.kernels.record_ops import RecordOperations
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.source.rows.format import Format

_FUNCTIONS = {
    "find_changes": "changes",
    "find_insides": "insides",
    "count_line_ends": "line_ends",
    "place_line_ends": "place",
    "find_lines": "lines",
    "read_objects": "objects",
    "refuse_repeated_keys": "repeated_keys",
    "read_fields": "fields",
    "measure_values": "measure_all",
    "write_values": "write_all",
    "join_texts": "join",
    "trim_texts": "trim",
    "find_blank": "blank",
    "map_bytes": "map_all",
    "strip_texts": "strip_all",
}
"""The library's function for each kernel. It takes the kernel's arguments, with structures passed by address."""

_NUMBERS = {
    np.dtype(np.uint8): ctypes.c_uint8,
    np.dtype(np.int32): ctypes.c_int32,
    np.dtype(np.uint32): ctypes.c_uint32,
    np.dtype(np.int64): ctypes.c_int64,
    np.dtype(np.uint64): ctypes.c_uint64,
}


@cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        return compiled(Path(folder))


class OperationsOnCpu(RecordOperations):
    """Launches the kernels on the CPU."""

    def _launch(self, kernel: Kernel, blocks: int, arguments: tuple[Any, ...]) -> None:
        function = getattr(_library(), _FUNCTIONS[kernel.expression])
        if blocks:
            function(*(at(one) if isinstance(one, np.ndarray) else _NUMBERS[one.dtype](one) for one in arguments))


class RecordBlocksOnCpu(RecordBlocks):
    """Reads blocks of one file, with the interface of `RecordBlocks`."""

    def __init__(self, lock: Callable[[int], None], form: Format, path: str, selection: Selection) -> None:
        super().__init__(lock, form, path, selection)
        self._operations = OperationsOnCpu(cp.cuda.Device())
