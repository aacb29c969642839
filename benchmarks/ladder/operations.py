"""The product's operations with parts turned off, and the kernels of this folder that replace them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import cupy as cp
import numpy as np

from benchmarks.ladder.switches import Setting
from broadsheet.pipeline.kernels.batch_arrays import Packing
from broadsheet.pipeline.kernels.catalog import WARP, WARPS, Kernel
from broadsheet.pipeline.kernels.memory_plan import most_units
from broadsheet.pipeline.kernels.ops import Operations
from broadsheet.pipeline.kernels.storage import Storage
from broadsheet.pipeline.kernels.weights import DeviceNorm, DeviceTable
from broadsheet.pipeline.model.layers import NORM_EPSILON, Frame, Layer

FOLDER = Path(__file__).resolve().parent
DENSE_CHANNELS = 128
"""The number of channels of the one-hot input of a dense block 1, since products read whole slabs of channels."""

_THREADS = WARPS * WARP
_VECTOR = 8  # values that a thread processes at a time


@cache
def kernels(stored: Storage, channels: int = 256, pool: int = 3) -> dict[str, Kernel]:
    """Return the kernels of this folder by name, for fp32 or 16 bits. `compile_kernel` accepts their absolute paths."""
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


def plain(layer: Layer) -> Layer:
    """Return a layer without norm, ReLU and pool, whose other name gives it tiles of its own."""
    return replace(layer, name=f"{layer.name} plain", norm=None, pool=1, relu=False)


def dense(first: Layer) -> Layer:
    """Return block 1 as a product like the others, with its input padded to whole slabs of channels."""
    return replace(first, name="conv1 dense", inputs=DENSE_CHANNELS, is_lookup=False)


@dataclass(frozen=True)
class DenseBlock1:
    """Block 1 as a product.

    Attributes
    ----------
    weight : CuPy array
        The weight, with DENSE_CHANNELS inputs, in the order in which the product reads it.
    bias : CuPy array, float32 [outputs]
        The bias.
    length : int
        The number of characters of the input.
    symbols : int
        The number of symbols of the alphabet.

    """

    weight: cp.ndarray
    bias: cp.ndarray
    length: int
    symbols: int


@dataclass(frozen=True)
class SlowOperations(Operations):
    """`Operations`, with what a setting turns off.

    Without the product's kernels, the operations compute the whole frame, [N, rows, channels]. Each article has as many
    rows as in the layer's input. The taps of the last rows reach into the next article; nothing reads these rows.

    Attributes
    ----------
    setting : Setting
        The variant.
    block1 : DenseBlock1 or None
        Block 1 if it is a product, or None if it is a look-up.
    no_bias : CuPy array, float32
        As many zeros as the widest layer has outputs.

    """

    setting: Setting
    block1: DenseBlock1 | None
    no_bias: cp.ndarray

    def lookup_norm_pool(
        self, ids: cp.ndarray, layers: Sequence[Layer], frame: Frame, table: DeviceTable, norm: DeviceNorm,
        statistics: cp.ndarray, text_end: cp.ndarray, packing: Packing, out: cp.ndarray,
        steps_in_one: float = 1.0, saturated: cp.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Compute block 1, as a look-up or as a product, with its norm, ReLU and pool.

        Parameters
        ----------
        ids, layers, frame, table, norm, statistics, text_end, packing, out, steps_in_one, saturated
            As `Operations.lookup_norm_pool` takes them.

        """
        first, second, *_ = layers
        shape = (len(ids), most_units(layers) * second.product_pool, first.outputs)
        if self.block1 is None:
            super().lookup_norm_pool(
                ids, layers, frame, table, norm, statistics, text_end, packing, out, steps_in_one, saturated
            )
        else:
            columns = cp.empty((len(ids), self.block1.length, DENSE_CHANNELS), out.dtype)
            self._one_hot(ids, self.block1, columns)
            raw = cp.empty((*columns.shape[:2], first.outputs), out.dtype)
            self._plain_product(columns, dense(first), self.block1.weight, self.block1.bias, packing, raw)
            self._layer_norm(raw, norm)
            self._each("ReLU", raw)
            if frame == "text":
                self._clear_after_text(raw, text_end)
            self._max_pool(raw, shape[1], _rows(out, shape))
        self._turn_around(out, shape)

    def conv1d(
        self, rows: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, packing: Packing,
        constant: cp.ndarray | None, out: cp.ndarray, saturated: cp.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Compute a convolution. Without fusion, bias, ReLU and pool are kernels of their own.

        Parameters
        ----------
        rows, layer, weight, bias, packing, constant, out, saturated
            As `Operations.conv1d` takes them.

        """
        count = len(packing.first) - 1
        pitch = packing.unit_limit // count
        shape = (count, pitch, layer.outputs)
        if self.setting.fused:
            super().conv1d(rows, layer, weight, bias, packing, constant, out, saturated)
        else:
            read, written = _rows(rows, (count, pitch * layer.product_pool, layer.inputs)), _rows(out, shape)
            raw = written if layer.product_pool == 1 else cp.empty((*read.shape[:2], layer.outputs), out.dtype)
            self._plain_product(read, layer, weight, self.no_bias, packing, raw)
            self._each("bias", raw, bias, np.int32(layer.outputs))
            if not layer.norm:
                self._each("ReLU", raw)
            if layer.product_pool > 1:
                self._max_pool(raw, layer.rows_pooled, written)
        if not layer.norm:
            self._turn_around(out, shape)

    def norm_relu_pool(
        self, rows: cp.ndarray, layer: Layer, norm: DeviceNorm, packing: Packing, constant: cp.ndarray, out: cp.ndarray
    ) -> None:
        """Compute the norm, ReLU and pool after a convolution. Without fusion, each is a kernel of its own.

        Parameters
        ----------
        rows, layer, norm, packing, constant, out
            As `Operations.norm_relu_pool` takes them.

        """
        count = len(packing.first) - 1
        shape = (count, layer.rows_pooled, layer.outputs)
        if self.setting.fused:
            super().norm_relu_pool(rows, layer, norm, packing, constant, out)
        else:
            raw = _rows(rows, (count, packing.unit_limit // count, layer.outputs))
            self._layer_norm(raw, norm)
            self._each("ReLU", raw)
            self._max_pool(raw, layer.rows_pooled, _rows(out, shape))
        self._turn_around(out, shape)

    def linear(
        self, x: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, packing: Packing, out: cp.ndarray
    ) -> None:
        """Compute a linear layer. Without fusion, bias and ReLU are kernels of their own.

        Parameters
        ----------
        x, layer, weight, bias, packing, out
            As `Operations.linear` takes them.

        """
        if self.setting.fused:
            super().linear(x, layer, weight, bias, packing, out)
            return
        super().linear(x, plain(layer), weight, self.no_bias, packing, out)
        written = _rows(out, (len(packing.first) - 1, layer.outputs))
        self._each("bias", written, bias, np.int32(layer.outputs))
        self._each("ReLU", written)

    def columns_to_ids(self, columns: cp.ndarray, out: cp.ndarray) -> None:
        """Convert one-hot columns, fp32 [N, symbols, length], to ids in `out`, uint8 [N, pitch]."""
        count, symbols, length = columns.shape
        pitch = out.shape[1]
        arguments = (columns, np.int32(symbols), np.int32(length), np.int32(pitch), out)
        self._run("columns to ids", (-(-pitch // _THREADS), count), *arguments)

    def _plain_product(
        self, rows: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, packing: Packing, out: cp.ndarray
    ) -> None:
        """Compute a convolution without ReLU and pool. The output has as many rows as the input.

        Parameters
        ----------
        rows : CuPy array [N, pitch, inputs]
            The input.
        layer, weight, bias, packing
            As in `conv1d`.
        out : CuPy array [N, pitch, outputs]
            The output.

        """
        count = rows.shape[0] * rows.shape[1]
        all_rows = packing._replace(counts=cp.full(1, count, np.int32), unit_limit=count, closing=None)
        super().conv1d(rows, plain(layer), weight, bias, all_rows, None, out)

    def _each(self, name: str, values: cp.ndarray, *more: object) -> None:
        """Run a kernel on each value in place: add the bias, [channels], or apply ReLU."""
        bias, sizes = more[:1], more[1:]
        vectors = values.size // _VECTOR
        self._run(name, (-(-vectors // _THREADS),), values, *bias, np.int64(vectors), *sizes)

    def _max_pool(self, values: cp.ndarray, rows_out: int, out: cp.ndarray) -> None:
        """Pool values, [N, rows, channels], to the first `rows_out` rows of out, [N, pitch, channels]."""
        count, rows, channels = values.shape
        vectors = count * rows_out * channels // _VECTOR
        sizes = (np.int32(size) for size in (rows, rows_out, out.shape[1], channels))
        self._run("max pool", (-(-vectors // _THREADS),), values, out, np.int64(vectors), *sizes)

    def _clear_after_text(self, values: cp.ndarray, text_end: cp.ndarray) -> None:
        """Set values, [N, rows, channels], to zero from row `text_end`, int32 [N], on."""
        vectors = values.size // _VECTOR
        sizes = (np.int64(vectors), *map(np.int32, values.shape[1:]))
        self._run("zeros after text", (-(-vectors // _THREADS),), values, text_end, *sizes)

    def _layer_norm(self, values: cp.ndarray, norm: DeviceNorm) -> None:
        """Normalise the first rows of values, [N, pitch, channels], as many as the norm has, in place."""
        sizes = (np.int32(len(norm.gamma)), np.int32(values.shape[1]), np.float32(NORM_EPSILON))
        self._run("layer norm", (len(values),), values, norm.gamma, norm.beta, *sizes)

    def _one_hot(self, ids: cp.ndarray, block1: DenseBlock1, out: cp.ndarray) -> None:
        """Write ids, uint8 [N, pitch], as one-hot rows to out, [N, length, DENSE_CHANNELS]."""
        vectors = out.size // _VECTOR
        sizes = (np.int32(size) for size in (ids.shape[1], block1.length, block1.symbols))
        self._run("one-hot", (-(-vectors // _THREADS),), ids, *sizes, np.int64(vectors), out)

    def _turn_around(self, buffer: cp.ndarray, shape: tuple[int, int, int]) -> None:
        """Transpose rows to channels-first, as a framework with that layout stores them between two layers, and back.

        Our kernels read channels-last.
        """
        if not self.setting.channels_last:
            count, pitch, channels = shape
            rows, stored = _rows(buffer, shape), cp.empty((count, channels, pitch), buffer.dtype)
            for values, out in ((rows, stored), (stored, rows)):
                grid = (-(-values.shape[2] // WARP), -(-values.shape[1] // WARP), count)
                self._run("transpose", grid, values, out, *map(np.int32, values.shape[1:]))

    def _run(self, name: str, grid: tuple[int, ...], *arguments: object) -> None:
        self._launch(kernels(self.stored)[name], grid, arguments)


def _rows(buffer: cp.ndarray, shape: tuple[int, ...]) -> cp.ndarray:
    """Return the beginning of a larger buffer in a given shape."""
    return buffer.reshape(-1)[: int(np.prod(shape))].reshape(shape)
