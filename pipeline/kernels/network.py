"""The whole network on one GPU: its weights and buffers, three streams, and the kernels in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, NamedTuple

import cupy as cp
import numpy as np
from cuda.bindings import driver
from numpy.typing import DTypeLike, NDArray

from ..errors import BroadsheetError
from ..model.alphabet import Alphabet, head_bytes
from ..model.layers import Layer
from ..model.ngrams import NGrams
from ..model.quantised import Integers
from ..model.reference import Weights
from ..processes.threads import available_cores
from . import memory_plan
from .catalog import Kernel, network_kernels, ngrams_kernel, target
from .memory_plan import CLOSING, Capacity, capacity
from .ops import DeviceEncoded, Launched, Packing, Scored, load, operations
from .weights import upload, upload_ngrams

_COPYING_THREADS = 4
_COPIED_AT_ONCE = 1 << 20


class Result(NamedTuple):
    """The results of a batch in page-locked memory, valid until its slot is used again."""

    labels: NDArray[np.int32]
    best: NDArray[np.float32]
    scores: NDArray[np.float32]
    n_chars: NDArray[np.int64]
    truncated: NDArray[np.uint8]
    unknown_chars: NDArray[np.int64]
    saturated: int


def page_locked(size: int, dtype: DTypeLike) -> NDArray[Any]:
    """An array in page-locked memory of the host. CuPy's own is in `cupyx`, which takes 0.07 s to import."""
    kind = np.dtype(dtype)
    return np.ndarray(size, kind, cp.cuda.alloc_pinned_memory(size * kind.itemsize))


class NotPageLocked(Exception):
    """The host has no room for page-locked memory, or does not allow it."""


class Slot:
    """A batch in flight: its text on the host (page-locked) and on the GPU, its results on both, and its events.

    taken: held from when a batch gets the slot until its results are copied. Events are recorded at the beginning and
    the end of the copy in, the kernels and the copy out. marks: one before each kernel, with `each_kernel`.
    """

    def __init__(self, layers: Sequence[Layer], room: Capacity) -> None:
        arrays = memory_plan.slot_arrays(layers, room)
        self.device = {name: cp.empty(size, dtype) for name, (size, dtype) in arrays.items()}
        try:
            self.host = {
                name: page_locked(size, dtype)
                for name, (size, dtype) in arrays.items()
                if name != memory_plan.ON_GPU_ONLY
            }
        except cp.cuda.runtime.CUDARuntimeError as error:
            raise NotPageLocked(error) from error
        self.copy_begun, self.copied_in, self.begun, self.computed, self.out_begun, self.copied_out = (
            cp.cuda.Event() for _ in range(6)
        )
        self.taken = Lock()
        self.each_kernel = False
        self.marks: list[tuple[str, cp.cuda.Event]] = []
        self.articles = 0
        self.top_k = 1

    def encoded(self, ids: cp.ndarray) -> DeviceEncoded:
        found = (self.device[name][: len(ids)] for name in ("n_chars", "truncated", "unknown_chars"))
        return DeviceEncoded(ids, *found)

    def scored(self, count: int, classes: int, k: int) -> Scored:
        def table(name: str, columns: int) -> cp.ndarray:
            return self.device[name][: count * columns].reshape(count, columns)

        return Scored(table("logits", classes), table("scores", classes), table("labels", k), table("best", k))

    def stages(self, anchor: cp.cuda.Event) -> list[tuple[str, str, float, float]]:
        """(name, lane, begin, end) of each stage of a finished batch, in milliseconds after `anchor`."""

        def after(event: cp.cuda.Event) -> float:
            return float(cp.cuda.get_elapsed_time(anchor, event))

        found = [
            ("copy-in", "copy-in", after(self.copy_begun), after(self.copied_in)),
            ("kernels", "compute", after(self.begun), after(self.computed)),
            ("copy-out", "copy-out", after(self.out_begun), after(self.copied_out)),
        ]
        times = [(name, after(event)) for name, event in self.marks]
        ends = [*(time for _, time in times), found[1][3]]
        return found + [(name, "compute", begin, ends[i + 1]) for i, (name, begin) in enumerate(times)]

    def copy_in(self, name: str, size: int, stream: cp.cuda.Stream) -> None:
        nbytes = size * self.host[name].itemsize
        self.device[name].data.copy_from_host_async(self.host[name].ctypes.data, nbytes, stream)

    def copy_out(self, name: str, size: int, stream: cp.cuda.Stream) -> None:
        nbytes = size * self.host[name].itemsize
        self.device[name].data.copy_to_host_async(self.host[name].ctypes.data, nbytes, stream)


class Network:
    """Weights on a GPU, buffers for batches once `allocate` is called, and the launches from text to labels.

    integers: blocks 2 to 6, for int8. ngrams: the branch beside the network, if there is one. whole: every article
    takes all rows of the frame, those beyond its text too.
    """

    def __init__(
        self, weights: Weights, integers: Integers | None, ngrams: NGrams | None, alphabet: Alphabet, length: int,
        generation: str, precision: str, device: cp.cuda.Device,
    ) -> None:  # fmt: skip
        self.layers, self.frame = weights.layers, weights.frame
        self._of_scores = (weights.temperature, weights.multi_label)
        self.whole = self.frame == "dense"
        self._length = length
        self._padding = alphabet.padding
        self._trail = _Trail()
        self._marked: Slot | None = None
        self._capturing = False
        self.watcher: Launched | None = None
        self.ops = operations(generation, precision, device, self._mark)
        kernels = network_kernels(generation, precision, self.ops.architecture, self.layers, self.frame)
        if ngrams is not None:
            kernels.append(ngrams_kernel(ngrams.kinds, ngrams.bits, self.layers[-1].outputs))
        for kernel in kernels:
            load(kernel.file, kernel.expression, target(generation, self.ops.architecture))
        self._weights = upload(weights, integers, alphabet, generation, precision, self.ops.architecture)
        self._ngrams, self._branch = ngrams, None if ngrams is None else upload_ngrams(ngrams)
        self._constants = self._after_text()
        cp.cuda.get_current_stream().synchronize()  # the streams below do not wait for it
        self._in, self.compute, self._out = (cp.cuda.Stream(non_blocking=True) for _ in range(3))
        self.slots: list[Slot] = []
        self._copying = ThreadPoolExecutor(min(_COPYING_THREADS, available_cores()), "broadsheet-copy")

    def _after_text(self) -> dict[str, cp.ndarray]:
        """What each convolution after block 1 gives, [outputs], where no text reaches: of rows that are all alike."""
        units = CLOSING + 1
        packing = Packing(cp.empty(0, np.int32), cp.asarray([units, 0], np.int32), None, units)
        constants = {}
        stored, saturated = self.ops.stored, cp.zeros(1, np.uint64)
        row = cp.zeros(self.layers[0].outputs, stored.rows.dtype)
        for layer in self.layers[1:]:
            if layer.kind == "conv1d":
                rows = cp.tile(row, (units * layer.product_pool, 1))
                out = cp.empty((units, layer.outputs), stored.written_by(layer).dtype)
                weight, bias = self._weights.products[layer.name], self._weights.bias[layer.name]
                self.ops.conv1d(rows, layer, weight, bias, packing, None, out, saturated)
                row = constants[layer.name] = out[0].copy()
        return constants

    def plan(self, batch: int) -> list[memory_plan.Buffer]:
        return memory_plan.plan(self.layers, batch, self.ops.stored, self.frame, self._ngrams)

    def allocate(self, batch: int) -> None:
        """Allocate every buffer of the plan.

        Raises CuPy's OutOfMemoryError, or NotPageLocked; `release` then frees those allocated.
        """
        self.room = capacity(self.layers, batch, "dense" if self.whole else self.frame)
        sizes = memory_plan.activation_bytes(self.layers, self.room, self.ops.stored)
        self._activations = [cp.empty(size, np.uint8) for size in sizes]
        self._ids = cp.empty((batch, memory_plan.id_pitch(self._length)), np.uint8)
        self._statistics = cp.empty((batch, 2), np.float32)
        self._text_end = cp.empty(batch, np.int32)
        self._first_unit = cp.empty(batch + 1, np.int32)
        self._counts = cp.empty(2, np.int32)
        self._closing = cp.empty(self.room.units, np.uint8)
        for _ in range(memory_plan.SLOTS):
            self.slots.append(Slot(self.layers, self.room))

    def release(self) -> None:
        self.slots.clear()
        self._activations = []
        self._ids = self._statistics = self._text_end = self._first_unit = self._counts = self._closing = None

    def close(self) -> None:
        """Release the weights too."""
        self.release()
        self._copying.shutdown()
        del self._weights, self._constants, self._branch

    def start_text(
        self,
        slot: Slot,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        units: int,
        top_k: int,
        keep: cp.ndarray | None = None,
    ) -> None:
        """Start a batch: data[offsets[0]:offsets[-1]], UTF-8, on host or GPU. units: that it takes at most. keep: uint8
        [N, pitch], for the ids.
        """
        count, size = len(offsets) - 1, int(offsets[-1] - offsets[0])
        given, is_on_host = data[offsets[0] : offsets[-1]], isinstance(data, np.ndarray)
        if is_on_host:
            self._copy(given, slot.host["text"][:size])
        slot.host["offsets"][: count + 1] = offsets
        slot.copy_begun.record(self._in)
        if is_on_host:
            slot.copy_in("text", size, self._in)
        else:
            slot.device["text"].data.copy_from_device_async(given.data, size, self._in)
        slot.copy_in("offsets", count + 1, self._in)
        slot.copied_in.record(self._in)
        ids = self.ids(count)
        self._begin(slot)
        text, bounds, encoded = slot.device["text"], slot.device["offsets"][: count + 1], slot.encoded(ids)
        with self.compute:
            self.encode(text, bounds, encoded)
            if np.diff(offsets).max() > head_bytes(self._length):
                self.ops.count_characters(text, bounds, size, self._length, encoded.n_chars)
            self.score_ngrams(text, bounds, slot.scored(count, self.layers[-1].outputs, top_k).logits)
        self._finish_start(slot, ids, units, top_k, keep)

    def _copy(self, data: NDArray[np.uint8], to: NDArray[np.uint8]) -> None:
        """By several threads: one alone copies long texts at hardly the rate at which the GPU labels them."""
        if len(data) <= _COPIED_AT_ONCE:
            to[:] = data
            return
        parts = [slice(at, at + _COPIED_AT_ONCE) for at in range(0, len(data), _COPIED_AT_ONCE)]
        for _ in self._copying.map(lambda part: np.copyto(to[part], data[part]), parts):
            pass

    def start_ids(
        self,
        slot: Slot,
        ids: NDArray[np.uint8],
        beside: NDArray[np.float32] | None,
        units: int,
        top_k: int,
        keep: cp.ndarray | None = None,
    ) -> None:
        """Start a batch that is encoded already, ids uint8 [N, length]. units: that it takes at most. beside: what the
        branch adds to its logits, fp32 [N, classes], of a model that has one. keep: as of `start_text`.
        """
        pitch = memory_plan.id_pitch(self._length)
        size = len(ids) * pitch
        staged = slot.host["text"][:size].reshape(len(ids), pitch)
        staged[:, : self._length] = ids
        staged[:, self._length :] = self._padding
        slot.copy_begun.record(self._in)
        slot.copy_in("text", size, self._in)
        slot.copied_in.record(self._in)
        self._begin(slot)
        if beside is not None:
            slot.scored(len(ids), self.layers[-1].outputs, top_k).logits.set(beside, self.compute)
        self._finish_start(slot, slot.device["text"][:size].reshape(len(ids), pitch), units, top_k, keep)

    def start_kept(self, slot: Slot, ids: cp.ndarray, units: int, top_k: int) -> None:
        """Start a batch whose ids, uint8 [N, pitch], are on the GPU: those that another network has kept. Not for a
        model with a branch, which needs the text.
        """
        slot.copy_begun.record(self._in)
        slot.copied_in.record(self._in)
        self._begin(slot)
        self._finish_start(slot, ids, units, top_k)

    def _begin(self, slot: Slot) -> None:
        """Make the kernels wait for the slot's copy."""
        self.compute.wait_event(slot.copied_in)
        slot.begun.record(self.compute)
        slot.marks = []
        self._marked = slot if slot.each_kernel else None

    def _finish_start(
        self, slot: Slot, ids: cp.ndarray, units: int, top_k: int, keep: cp.ndarray | None = None
    ) -> None:
        slot.articles, slot.top_k = len(ids), top_k
        with self.compute:
            if keep is not None:
                keep[...] = ids
            scored = slot.scored(len(ids), self.layers[-1].outputs, top_k)
            self.forward(ids, units, scored, slot.device["saturated"])
        slot.computed.record(self.compute)
        self._marked = None
        self._out.wait_event(slot.computed)
        slot.out_begun.record(self._out)
        classes = self.layers[-1].outputs
        sizes = {"labels": top_k, "best": top_k, "scores": classes, "n_chars": 1, "truncated": 1, "unknown_chars": 1}
        for name, columns in sizes.items():
            slot.copy_out(name, len(ids) * columns, self._out)
        if self.ops.stored.is_int8:
            slot.copy_out("saturated", 1, self._out)
        slot.copied_out.record(self._out)

    def settle(self) -> None:
        """Wait for all batches in flight."""
        for stream in (self._in, self.compute, self._out):
            stream.synchronize()

    def finish(self, slot: Slot) -> Result:
        """Wait for a slot's batch."""
        slot.copied_out.synchronize()
        count, k, classes = slot.articles, slot.top_k, self.layers[-1].outputs
        host = slot.host
        return Result(
            host["labels"][: count * k].reshape(count, k),
            host["best"][: count * k].reshape(count, k),
            host["scores"][: count * classes].reshape(count, classes),
            host["n_chars"][:count],
            host["truncated"][:count],
            host["unknown_chars"][:count],
            int(host["saturated"][0]) if self.ops.stored.is_int8 else 0,
        )

    def ids(self, count: int) -> cp.ndarray:
        """Where the ids of a batch are, uint8 [N, pitch]."""
        return self._ids[:count]

    def captured(self, work: Callable[[], None]) -> Any:
        """A graph of what `work` puts on the stream `compute`, which is not done yet."""
        self._capturing = True
        self.compute.begin_capture()
        try:
            with self.compute:
                work()
        finally:
            self._capturing = False
            graph = self.compute.end_capture()
        return graph

    def run(self, graph: Any) -> None:
        """Launch a graph, and wait for it."""
        self._trail.mark("any, of a batch launched as one graph", self.compute.ptr)
        graph.launch(self.compute)
        self.compute.synchronize()

    def encode(self, data: cp.ndarray, offsets: cp.ndarray, out: DeviceEncoded) -> None:
        """Text on the GPU to ids, on the current stream. The characters of long articles are not counted."""
        self.ops.encode(data, offsets, self._weights.alphabet, self._length, out)

    def score_ngrams(self, data: cp.ndarray, offsets: cp.ndarray, out: cp.ndarray) -> None:
        """What the branch adds to the logits of text on the GPU, fp32 [N, classes], on the current stream."""
        if self._branch is not None:
            self.ops.ngrams(data, offsets, self._branch, out)

    def forward(self, ids: cp.ndarray, units: int, out: Scored, saturated: cp.ndarray) -> None:
        """Ids on the GPU, uint8 [N, pitch], to scores, on the current stream. units: that they take at most. saturated:
        uint64 [1], the count of saturated values in int8. `out.logits` already holds what a branch adds to them.
        """
        count, weights = len(ids), self._weights
        statistics, text_end = self._statistics[:count], self._text_end[:count]
        packing = Packing(self._first_unit[: count + 1], self._counts, self._closing, units)
        if self.ops.stored.is_int8:
            saturated.data.memset_async(0, saturated.nbytes, cp.cuda.get_current_stream())
        first, *rest = memory_plan.schedule(self.layers, self.ops.stored)
        self.ops.norm_statistics(ids, self._length, first.layer, weights.statistics, statistics, text_end)
        self.ops.pack(text_end, self.layers, self.whole, packing)
        norm, rows = weights.norm[first.layer.name], self._activation(first.out)
        self.ops.lookup_norm_pool(
            ids, self.layers, self.frame, weights.table, norm, statistics, text_end, packing, rows,
            weights.steps_in_one, saturated,
        )  # fmt: skip
        for step in rest:
            name, written = step.layer.name, self._activation(step.out)
            weight, bias = weights.products[name], weights.bias[name]
            if step.layer.kind == "linear":
                self.ops.linear(rows, step.layer, weight, bias, packing, written)
            else:
                constant = self._constants[name]
                product = written if step.raw is None else self._activation(step.raw)
                self.ops.conv1d(rows, step.layer, weight, bias, packing, constant, product, saturated)
                if step.raw is not None:
                    self.ops.norm_relu_pool(product, step.layer, weights.norm[name], packing, constant, written)
            rows = written
        last = self.layers[-1]
        x = rows[: count * last.inputs].reshape(count, last.inputs)
        of_block_1 = statistics if self.ops.stored.is_int8 else None
        beside = None if self._branch is None else out.logits
        weight, bias = weights.products[last.name], weights.bias[last.name]
        self.ops.head(x, last, weight, bias, out, of_block_1, beside, *self._of_scores)

    def _activation(self, at: memory_plan.Activation) -> cp.ndarray:
        """All the room for it, so that tensor maps are the same for every batch."""
        return self._activations[at.buffer][: at.bytes(self.room)].view(at.element.dtype)

    def _mark(self, kernel: Kernel, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        if self._capturing:
            return
        stream = cp.cuda.get_current_stream()
        self._trail.mark(kernel.name, stream.ptr)
        if self.watcher is not None:
            self.watcher(kernel, grid, arguments)
        if self._marked is not None:
            event = cp.cuda.Event()
            event.record(stream)
            self._marked.marks.append((kernel.name, event))

    def last_kernel(self) -> str:
        """The kernel that the GPU began last. It works after a failure too, when every CUDA call fails."""
        return self._trail.last()


class _Trail:
    """Which kernel runs: before each one the stream itself writes a number to page-locked memory."""

    def __init__(self) -> None:
        self._names: list[str] = ["none"]
        self._at = page_locked(1, np.uint32)
        self._at[:] = 0

    def mark(self, name: str, stream: int) -> None:
        if name not in self._names:
            self._names.append(name)
        (status,) = driver.cuStreamWriteValue32(stream, self._at.ctypes.data, self._names.index(name), 0)
        if status == driver.CUresult.CUDA_ERROR_NOT_SUPPORTED:
            return  # without marks, an error names no kernel
        # After a kernel has failed, this call fails too; the launch that follows raises that error with its batch.
        if status != driver.CUresult.CUDA_SUCCESS and driver.cuStreamQuery(stream)[0] != status:
            raise BroadsheetError(f"cuStreamWriteValue32 before kernel {name}: {status.name}")

    def last(self) -> str:
        return self._names[int(self._at[0])]
