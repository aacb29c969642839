"""The product's network with things turned off: what each slow variant computes, in its own order of kernels."""

from __future__ import annotations

from dataclasses import replace

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from benchmarks.ladder.operations import DENSE_CHANNELS, SlowOperations, kernels
from benchmarks.ladder.switches import Setting
from pipeline.kernels.catalog import Kernel, network_kernels, product_kernel, target
from pipeline.kernels.memory_plan import most_units
from pipeline.kernels.network import Network, Slot
from pipeline.kernels.ops import Packing, Scored
from pipeline.kernels.storage import STORAGE
from pipeline.kernels.tiles import product_tile
from pipeline.kernels.weights import DeviceNorm
from pipeline.model.alphabet import Alphabet
from pipeline.model.layers import Frame, Layer
from pipeline.model.quantised import Integers
from pipeline.model.reference import Weights


def plain(layer: Layer) -> Layer:
    """The same product without norm, ReLU and pool, in tiles of its own."""
    return replace(layer, name=f"{layer.name} plain", norm=None, pool=1, relu=False)


def dense(first: Layer) -> Layer:
    """Block 1 as a product like the others, its input filled up to whole slabs of channels."""
    return replace(first, name="conv1 dense", inputs=DENSE_CHANNELS, is_lookup=False)


def needed(setting: Setting, layers: tuple[Layer, ...], frame: Frame, architecture: str) -> set[tuple[str, str, str]]:
    """Every (file, instance, target) that a variant launches, to be compiled ahead."""
    generation, precision = setting.generation, setting.precision
    found: list[Kernel] = [*network_kernels(generation, precision, architecture, layers, frame)]
    products = [dense(layers[0])] if not setting.table else []
    if not setting.fused:
        products += layers[1:-1]
    products = [plain(layer) for layer in products]
    stored = STORAGE[generation][precision]
    tiles = (product_tile(generation, precision, architecture, layer) for layer in products)
    found += [product_kernel(stored, layer, at) for layer, at in zip(products, tiles, strict=True)]
    if not (setting.fused and setting.table and setting.channels_last and setting.text):
        found += kernels(stored).values()
    return {(kernel.file, kernel.expression, target(generation, architecture)) for kernel in found}


class LadderNetwork(Network):
    """`Network` as a setting says; with nothing turned off it is the product's own.

    What differs from the product's kernels computes the whole frame, [N, rows, channels]: each article has as many rows
    as in the layer's input, of which the last ones, whose taps reach into the next article, are never read.
    """

    def __init__(
        self, setting: Setting, weights: Weights, integers: Integers | None, alphabet: Alphabet, length: int,
        device: cp.cuda.Device,
    ) -> None:  # fmt: skip
        super().__init__(weights, integers, alphabet, length, setting.generation, setting.precision, device)
        self._setting = setting
        self._element = self.ops.stored.rows.dtype
        self.whole = self.frame == "dense" or not setting.reached
        self._slow = SlowOperations(self.ops)
        self._symbols = len(alphabet)
        self._scratch: dict[str, cp.ndarray] = {}
        self._room = 0
        self._no_bias = cp.zeros(max(layer.outputs for layer in self.layers[:-1]), np.float32)
        self._dense = dense(self.layers[0])
        if not setting.table:
            kernel, _, outputs = weights.table.shape
            wide = np.zeros((kernel, DENSE_CHANNELS, outputs), np.float32)
            wide[:, : self._symbols] = weights.table[:, : self._symbols]
            wide = wide if setting.precision == "fp32" else wide.transpose(0, 2, 1)
            self._dense_weight = cp.asarray(np.ascontiguousarray(wide, self._element))
        self._most = most_units(self.layers)
        if not setting.streams:
            self._in = self._out = self.compute
        device.synchronize()  # these copies ran on another stream than the kernels will

    def allocate(self, batch: int) -> None:
        super().allocate(batch)
        self._room = batch
        for slot in self.slots:
            if not self._setting.page_locked:
                slot.host = {name: np.empty(array.shape, array.dtype) for name, array in slot.host.items()}
            if not self._setting.text:
                slot.device["columns"] = cp.empty((batch, self._symbols, self._length), np.float32)

    def release(self) -> None:
        super().release()
        self._scratch = {}

    def start_columns(self, slot: Slot, columns: NDArray[np.float32], top_k: int) -> None:
        """Send a batch on its way that is one-hot, fp32 [N, symbols, length], straight from where it lies."""
        there = slot.device["columns"][: len(columns)]
        slot.copy_begun.record(self._in)
        there.data.copy_from_host_async(columns.ctypes.data, columns.nbytes, self._in)
        slot.copied_in.record(self._in)
        ids = self._ids[: len(columns)]
        self._begin(slot)
        with self.compute:
            self._slow.columns_to_ids(there, ids)
        self._finish_start(slot, ids, len(columns) * self._most, top_k)

    def forward(self, ids: cp.ndarray, units: int, out: Scored, saturated: cp.ndarray) -> None:
        setting, weights = self._setting, self._weights
        if setting.fused and setting.table and setting.channels_last:
            super().forward(ids, units, out, saturated)
            return
        first, count = self.layers[0], len(ids)
        self._packing = Packing(self._first_unit[: count + 1], self._counts, None, count * self._most)
        text_end = self._text_end[:count]
        self.ops.norm_statistics(ids, self._length, first, weights.statistics, self._statistics[:count], text_end)
        self.ops.pack(text_end, self.layers, self.whole, self._packing._replace(closing=self._closing))
        x = self._turned_around(self._first_block(ids))
        for layer in self.layers[1:-1]:
            weight, bias = weights.products[layer.name], weights.bias[layer.name]
            if layer.kind == "conv1d":
                x = self._turned_around(self._block(x, layer, weight, bias, weights.norm.get(layer.name)))
            else:
                x = self._hidden(x.reshape(count, -1), layer, weight, bias)
        last = self.layers[-1]
        self.ops.head(x, last, weights.products[last.name], weights.bias[last.name], out)

    def _first_block(self, ids: cp.ndarray) -> cp.ndarray:
        weights, (first, second, *_), count = self._weights, self.layers, len(ids)
        norm, rows = weights.norm[first.name], self._most * second.product_pool
        out = self._buffer(first.name, count, rows, first.outputs)
        text_end = self._text_end[:count]
        if self._setting.table:
            statistics = self._statistics[:count]
            self.ops.lookup_norm_pool(
                ids, self.layers, self.frame, weights.table, norm, statistics, text_end, self._packing, out
            )
            return out
        columns = self._buffer("one-hot", count, self._length, DENSE_CHANNELS)
        self._slow.one_hot(ids, self._length, self._symbols, columns)
        raw = self._product(columns, plain(self._dense), self._dense_weight, weights.bias[first.name])
        self._slow.layer_norm(raw, norm)
        self._slow.relu(raw)
        if self.frame == "text":
            self._slow.clear_after_text(raw, text_end)
        self._slow.max_pool(raw, rows, out)
        return out

    def _block(
        self, rows: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, norm: DeviceNorm | None
    ) -> cp.ndarray:
        """A convolution and what follows it: in the product's kernels, or in one for each step."""
        count = len(rows)
        if self._setting.fused:
            raw = self._buffer(f"{layer.name} raw", count, self._most, layer.outputs)
            self.ops.conv1d(rows, layer, weight, bias, self._packing, None, raw)
            if norm is None:
                return raw
            out = self._buffer(layer.name, count, layer.rows_pooled, layer.outputs)
            self.ops.norm_relu_pool(raw, layer, norm, self._packing, self._constants[layer.name], out)
            return out
        raw = self._product(rows, plain(layer), weight, self._no_bias)
        self._slow.add_bias(raw, bias)
        if norm is not None:
            self._slow.layer_norm(raw, norm)
        self._slow.relu(raw)
        if layer.pool == 1:
            return raw
        out = self._buffer(layer.name, count, self._most if norm is None else layer.rows_pooled, layer.outputs)
        self._slow.max_pool(raw, layer.rows_pooled, out)
        return out

    def _product(self, rows: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray) -> cp.ndarray:
        """A convolution without ReLU and pool, a row of the output for each one of the input."""
        count, pitch, _ = rows.shape
        out = self._buffer(f"{layer.name} raw", count, pitch, layer.outputs)
        packing = self._packing._replace(counts=cp.full(1, count * pitch, np.int32), most=count * pitch)
        self.ops.conv1d(rows, layer, weight, bias, packing, None, out)
        return out

    def _hidden(self, x: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray) -> cp.ndarray:
        out = self._buffer(layer.name, len(x), layer.outputs)
        if self._setting.fused:
            self.ops.linear(x, layer, weight, bias, self._packing, out)
            return out
        self.ops.linear(x, plain(layer), weight, self._no_bias, self._packing, out)
        self._slow.add_bias(out, bias)
        self._slow.relu(out)
        return out

    def _turned_around(self, rows: cp.ndarray) -> cp.ndarray:
        """Stored channels-first between two layers, as a framework of that layout does: there, and back for our
        kernels, which read channels-last.
        """
        if not self._setting.channels_last:
            count, pitch, channels = rows.shape
            stored = self._buffer(f"channels-first {pitch}", count, channels, pitch)
            self._slow.transpose(rows, stored)
            self._slow.transpose(stored, rows)
        return rows

    def _buffer(self, name: str, count: int, *shape: int) -> cp.ndarray:
        """Of a step's own, taken at its first batch and kept."""
        if name not in self._scratch:
            self._scratch[name] = cp.empty((self._room, *shape), self._element)
        return self._scratch[name][:count]
