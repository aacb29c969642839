"""The product's network with things turned off: what each slow variant computes, in its own order of kernels."""

from __future__ import annotations

from dataclasses import replace

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from benchmarks.ladder.operations import DENSE_CHANNELS, SlowOperations, kernels
from benchmarks.ladder.switches import Setting
from pipeline.kernels import memory_plan
from pipeline.kernels.catalog import Kernel, layer_kernel, network_kernels, norm_kernel, target
from pipeline.kernels.network import Network, Slot
from pipeline.kernels.ops import Rows, Scored
from pipeline.kernels.tiles import tile
from pipeline.kernels.weights import DeviceNorm
from pipeline.model.alphabet import Alphabet
from pipeline.model.charcnn import Layer
from pipeline.model.reference import Weights


def plain(layer: Layer) -> Layer:
    """The same product without ReLU and pool."""
    return replace(layer, pool=1, relu=False)


def dense(first: Layer) -> Layer:
    """Block 1 as a product like the others, its input filled up to whole slabs of channels."""
    return replace(first, name="conv1 dense", inputs=DENSE_CHANNELS, is_lookup=False)


def needed(setting: Setting, layers: tuple[Layer, ...], architecture: str) -> set[tuple[str, str, str]]:
    """Every (file, instance, target) that a variant launches, to be compiled ahead."""
    generation, precision = setting.generation, setting.precision
    found: list[Kernel] = [*network_kernels(generation, precision, architecture, layers)]
    products = [dense(layers[0])] if not setting.table else []
    if not setting.table:
        found.append(norm_kernel(precision, layers[0]))
    if not setting.fused:
        products = [plain(layer) for layer in (*products, *layers[1:-1])]
    found += [layer_kernel(precision, layer, tile(generation, architecture, layer)) for layer in products]
    if not (setting.fused and setting.table and setting.channels_last and setting.text):
        found += kernels(precision).values()
    return {(kernel.file, kernel.expression, target(generation, architecture)) for kernel in found}


class LadderNetwork(Network):
    """`Network` as a setting says; with nothing turned off it is the product's own."""

    def __init__(
        self, setting: Setting, weights: Weights, alphabet: Alphabet, length: int, device: cp.cuda.Device
    ) -> None:
        super().__init__(weights, alphabet, length, setting.generation, setting.precision, device)
        self._setting = setting
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
        self._finish_start(slot, ids, top_k)

    def forward(self, ids: cp.ndarray, out: Scored) -> None:
        setting, weights = self._setting, self._weights
        if setting.fused and setting.table and setting.channels_last:
            super().forward(ids, out)
            return
        first, *rest = memory_plan.schedule(self.layers)
        rows = self._turned_around(self._first_block(ids, first.out.pitch))
        x, last = rows.values, self.layers[-1]
        for layer, pitch in ((step.layer, step.out.pitch) for step in rest):
            weight, bias = weights.products[layer.name], weights.bias[layer.name]
            if layer.kind == "conv1d":
                rows = self._block(rows, layer, weight, bias, weights.norm.get(layer.name), pitch)
                rows = self._turned_around(rows)
                x = rows.values.reshape(len(ids), -1)
            else:
                x = self._hidden(x, layer, weight, bias)
        self.ops.head(x, last, weights.products[last.name], weights.bias[last.name], out)

    def _first_block(self, ids: cp.ndarray, pitch: int) -> Rows:
        weights, first, count = self._weights, self.layers[0], len(ids)
        norm = weights.norm[first.name]
        if self._setting.table:
            statistics, text_end = self._statistics[:count], self._text_end[:count]
            self.ops.norm_statistics(ids, self._length, first, weights.statistics, statistics, text_end)
            out = Rows(self._buffer(first.name, count, pitch, first.outputs), first.rows_pooled)
            self.ops.lookup_norm_pool(ids, first, weights.table, norm, statistics, text_end, out)
            return out
        columns = self._buffer("one-hot", count, self._length, DENSE_CHANNELS)
        self._slow.one_hot(ids, self._length, self._symbols, columns)
        columns = Rows(columns, self._length)
        return self._block(columns, self._dense, self._dense_weight, weights.bias[first.name], norm, pitch)

    def _block(
        self, rows: Rows, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, norm: DeviceNorm | None, pitch: int
    ) -> Rows:
        """A convolution and what follows it: in the product's kernels, or in one for each step."""
        count = len(rows.values)
        if self._setting.fused:
            out = Rows(self._buffer(layer.name, count, pitch, layer.outputs), layer.rows_pooled)
            raw = None
            if norm is not None:
                raw = Rows(self._buffer(f"{layer.name} raw", count, layer.rows_out, layer.outputs), layer.rows_out)
            self.ops.conv1d(rows, layer, weight, bias, norm, out, raw)
            return out
        raw = Rows(self._buffer(f"{layer.name} raw", count, layer.rows_out, layer.outputs), layer.rows_out)
        self.ops.conv1d(rows, replace(plain(layer), norm=None), weight, self._no_bias, None, raw)
        self._slow.add_bias(raw.values, bias)
        if norm is not None:
            self._slow.layer_norm(raw.values, norm)
        self._slow.relu(raw.values)
        if layer.pool == 1:
            return raw
        out = Rows(self._buffer(layer.name, count, pitch, layer.outputs), layer.rows_pooled)
        self._slow.max_pool(raw.values, layer.rows_pooled, out.values)
        return out

    def _hidden(self, x: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray) -> cp.ndarray:
        out = self._buffer(layer.name, len(x), layer.outputs)
        if self._setting.fused:
            self.ops.linear(x, layer, weight, bias, out)
            return out
        self.ops.linear(x, plain(layer), weight, self._no_bias, out)
        self._slow.add_bias(out, bias)
        self._slow.relu(out)
        return out

    def _turned_around(self, rows: Rows) -> Rows:
        """Stored channels-first between two layers, as a framework of that layout does: there, and back for our
        kernels, which read channels-last.
        """
        if not self._setting.channels_last:
            count, pitch, channels = rows.values.shape
            stored = self._buffer(f"channels-first {pitch}", count, channels, pitch)
            self._slow.transpose(rows.values, stored)
            self._slow.transpose(stored, rows.values)
        return rows

    def _buffer(self, name: str, count: int, *shape: int) -> cp.ndarray:
        """Of a step's own, taken at its first batch and kept."""
        if name not in self._scratch:
            self._scratch[name] = cp.empty((self._room, *shape), self._element)
        return self._scratch[name][:count]
