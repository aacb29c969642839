"""Launchers of the slow variants' own kernels, beside those of pipeline/kernels/ops.py."""

from __future__ import annotations

from pathlib import Path

import cupy as cp
import numpy as np

from pipeline.kernels.catalog import WARP, WARPS, Kernel
from pipeline.kernels.ops import Operations
from pipeline.kernels.storage import Storage
from pipeline.kernels.weights import DeviceNorm
from pipeline.model.layers import NORM_EPSILON

FOLDER = Path(__file__).resolve().parent
DENSE_CHANNELS = 128
"""Of the one-hot input of a dense block 1: the products take whole slabs of channels."""

_THREADS = WARPS * WARP


def kernels(stored: Storage, channels: int = 256, pool: int = 3) -> dict[str, Kernel]:
    """Every kernel of this folder by name, for fp32 or 16 bits. `compile_kernel` takes a whole path as well."""
    element = stored.norms.name
    sources = {
        "bias": ("elementwise.cu", f"add_bias<{element}, {_THREADS}>"),
        "ReLU": ("elementwise.cu", f"relu<{element}, {_THREADS}>"),
        "zeros after text": ("elementwise.cu", f"clear_after_text<{element}, {_THREADS}>"),
        "max pool": ("elementwise.cu", f"max_pool<{element}, {pool}, {_THREADS}>"),
        "layer norm": ("elementwise.cu", f"layer_norm<{element}, {channels}, {WARPS}>"),
        "one-hot": ("one_hot.cu", f"one_hot<{element}, {DENSE_CHANNELS}, {_THREADS}>"),
        "columns to ids": ("one_hot.cu", f"columns_to_ids<{_THREADS}>"),
        "transpose": ("transpose.cu", f"transpose<{element}, {WARP}, {WARPS}>"),
    }
    return {name: Kernel(name, str(FOLDER / file), instance) for name, (file, instance) in sources.items()}


class SlowOperations:
    """The steps that the product fuses or does without; everything on CuPy's current stream."""

    def __init__(self, ops: Operations) -> None:
        self._ops = ops
        self._kernels = kernels(ops.stored)

    def add_bias(self, values: cp.ndarray, bias: cp.ndarray) -> None:
        vectors = values.size // 8
        self._launch("bias", vectors, values, bias, np.int64(vectors), np.int32(values.shape[-1]))

    def relu(self, values: cp.ndarray) -> None:
        vectors = values.size // 8
        self._launch("ReLU", vectors, values, np.int64(vectors))

    def max_pool(self, values: cp.ndarray, rows_out: int, out: cp.ndarray) -> None:
        """values [N, rows, channels] to the first `rows_out` rows of out [N, pitch, channels]."""
        count, rows, channels = values.shape
        vectors = count * rows_out * channels // 8
        sizes = (np.int32(size) for size in (rows, rows_out, out.shape[1], channels))
        self._launch("max pool", vectors, values, out, np.int64(vectors), *sizes)

    def clear_after_text(self, values: cp.ndarray, text_end: cp.ndarray) -> None:
        """values [N, rows, channels], zero from row text_end, int32 [N], on."""
        _, rows, channels = values.shape
        vectors = values.size // 8
        sizes = (np.int64(vectors), np.int32(rows), np.int32(channels))
        self._launch("zeros after text", vectors, values, text_end, *sizes)

    def layer_norm(self, values: cp.ndarray, norm: DeviceNorm) -> None:
        """The first rows of values [N, pitch, channels], as many as the norm has, in place."""
        count, pitch, _ = values.shape
        arguments = (
            values,
            norm.gamma,
            norm.beta,
            np.int32(len(norm.gamma)),
            np.int32(pitch),
            np.float32(NORM_EPSILON),
        )
        self._ops._launch(self._kernels["layer norm"], (count,), arguments)

    def one_hot(self, ids: cp.ndarray, length: int, symbols: int, out: cp.ndarray) -> None:
        """ids uint8 [N, pitch] to out [N, length, DENSE_CHANNELS]."""
        vectors = out.size // 8
        sizes = (np.int32(size) for size in (ids.shape[1], length, symbols))
        self._launch("one-hot", vectors, ids, *sizes, np.int64(vectors), out)

    def columns_to_ids(self, columns: cp.ndarray, out: cp.ndarray) -> None:
        """columns fp32 [N, symbols, length] to out uint8 [N, pitch]."""
        count, symbols, length = columns.shape
        pitch = out.shape[1]
        arguments = (columns, np.int32(symbols), np.int32(length), np.int32(pitch), out)
        self._ops._launch(self._kernels["columns to ids"], (-(-pitch // _THREADS), count), arguments)

    def transpose(self, values: cp.ndarray, out: cp.ndarray) -> None:
        """values [N, rows, columns] to out [N, columns, rows]."""
        count, rows, columns = values.shape
        grid = (-(-columns // WARP), -(-rows // WARP), count)
        self._ops._launch(self._kernels["transpose"], grid, (values, out, np.int32(rows), np.int32(columns)))

    def _launch(self, name: str, vectors: int, *arguments: object) -> None:
        self._ops._launch(self._kernels[name], (-(-vectors // _THREADS),), arguments)
