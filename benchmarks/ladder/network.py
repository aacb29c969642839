"""The product's network with parts turned off: the same order of launches, with other operations and buffers."""

from __future__ import annotations

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from benchmarks.ladder.operations import DENSE_CHANNELS, DenseBlock1, SlowOperations, dense, kernels, plain
from benchmarks.ladder.switches import Setting
from broadsheet.pipeline.kernels.catalog import Kernel, network_kernels, product_kernel, target
from broadsheet.pipeline.kernels.memory_plan import most_units
from broadsheet.pipeline.kernels.network import Network, Wanted
from broadsheet.pipeline.kernels.slots import Slot
from broadsheet.pipeline.kernels.storage import STORAGE
from broadsheet.pipeline.kernels.tiles import product_tile
from broadsheet.pipeline.model.alphabet import Alphabet
from broadsheet.pipeline.model.layers import Frame, Layer
from broadsheet.pipeline.model.quantised import Integers
from broadsheet.pipeline.model.reference import Weights


def needed(setting: Setting, layers: tuple[Layer, ...], frame: Frame, architecture: str) -> set[tuple[str, str, str]]:
    """Return the (file, instance, target) of every kernel that a variant launches, to compile them beforehand."""
    generation, precision = setting.generation, setting.precision
    launched: list[Kernel] = [*network_kernels(generation, precision, architecture, layers, frame)]
    stored = STORAGE[generation][precision]
    products = [] if setting.table else [plain(dense(layers[0]))]
    products += [] if setting.fused else map(plain, layers[1:-1])
    launched += [product_kernel(stored, at, product_tile(generation, precision, architecture, at)) for at in products]
    launched += [] if setting.has_product_kernels else kernels(stored).values()
    return {(kernel.file, kernel.expression, target(generation, architecture)) for kernel in launched}


class LadderNetwork(Network):
    """`Network`, with what a setting turns off.

    With nothing turned off, it differs from the product only in that it has no CUDA graphs, since the replaced kernels
    are launched one by one.

    Parameters
    ----------
    setting : Setting
        The variant.
    weights, integers, alphabet, length, device
        As `Network` takes them.

    """

    has_graphs = False

    def __init__(
        self, setting: Setting, weights: Weights, integers: Integers | None, alphabet: Alphabet, length: int,
        device: cp.cuda.Device,
    ) -> None:  # fmt: skip
        super().__init__(weights, integers, None, alphabet, length, setting.generation, setting.precision, device)
        self._setting, self._symbols = setting, len(alphabet)
        self.whole = self.whole or not setting.reached
        block1 = None if setting.table else self._dense_block1(weights)
        no_bias = cp.zeros(max(layer.outputs for layer in self.layers), np.float32)
        self.ops = SlowOperations(**vars(self.ops), setting=setting, block1=block1, no_bias=no_bias)
        if not setting.streams:
            self._in = self._out = self.compute
        device.synchronize()  # these copies run on another stream than the kernels

    def _dense_block1(self, weights: Weights) -> DenseBlock1:
        """Return the weights of block 1 as a product, padded to `DENSE_CHANNELS` inputs."""
        kernel, _, outputs = weights.table.shape
        wide = np.zeros((kernel, DENSE_CHANNELS, outputs), np.float32)
        wide[:, : self._symbols] = weights.table[:, : self._symbols]
        wide = wide if self._setting.precision == "fp32" else wide.transpose(0, 2, 1)
        weight = cp.asarray(np.ascontiguousarray(wide, self.ops.stored.rows.dtype))
        return DenseBlock1(weight, self._weights.bias[self.layers[0].name], self._length, self._symbols)

    def allocate(self, batch: int) -> None:
        """Allocate buffers for batches of this size, with the kinds of memory that the setting asks for."""
        super().allocate(batch)
        self._columns: list[cp.ndarray] = []
        for slot in self.slots:
            if not self._setting.page_locked:
                for twins in (slot.given, slot.found):
                    twins.host = np.empty_like(twins.host)
            if not self._setting.text:
                self._columns.append(cp.empty((batch, self._symbols, self._length), np.float32))

    def start_columns(self, slot: Slot, columns: NDArray[np.float32], wanted: Wanted) -> None:
        """Start a batch of one-hot columns, fp32 [N, symbols, length], without a copy to the staging memory."""
        count = len(columns)
        there = self._columns[self.slots.index(slot)][:count]
        slot.input["count"][:] = count
        slot.copy_begun.record(self._in)
        slot.copy_in(0, self._in)
        there.data.copy_from_host_async(columns.ctypes.data, columns.nbytes, self._in)
        slot.copied_in.record(self._in)
        self._begin(slot)
        with self.compute:
            batch = slot.batch(wanted.top_k).first(count, 0)
            self.ops.columns_to_ids(there, batch.encoded.ids)
            self.forward(batch, count * most_units(self.layers))
        self._finish_start(slot, count, wanted)
