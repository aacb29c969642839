"""The whole network on one GPU: its weights and buffers, three streams, and the kernels in their order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from ..model.alphabet import Alphabet, head_bytes
from ..model.fasttext import FastText, Reader
from ..model.layers import WHOLE
from ..model.ngrams import NGrams, scores, scores_of_ids
from ..model.quantised import Integers
from ..model.reference import Weights
from ..processes.threads import available_cores
from . import memory_plan
from .catalog import Kernel, branch_kernels, fasttext_kernels, gather_kernel, network_kernels
from .memory_plan import CLOSING, capacity
from .ops import Asked, DeviceEncoded, Launched, Packing, Scored, operations
from .slots import Result, Slot, Sums, Trail
from .tables import fasttext_shape
from .weights import (
    DeviceFastText,
    DeviceNGrams,
    upload,
    upload_alone,
    upload_alphabet,
    upload_fasttext,
    upload_ngrams,
)

_COPYING_THREADS = 4
_COPIED_AT_ONCE = 1 << 20


class Network:
    """Weights on a GPU, buffers for batches once `allocate` is called, and the launches from text to labels.

    Parameters
    ----------
    weights : Weights
        The network's tensors. Those of n-grams alone have no network.
    integers : Integers or None
        Blocks 2 to 6 in 8 bits, for int8.
    ngrams : NGrams or FastText or None
        The branch beside the network, or fastText's model in its place.
    alphabet : Alphabet
        The characters that the model reads.
    length : int
        How many of them it reads of a text; `WHOLE` for all.
    generation : str
        The kernel generation, such as "sm90".
    precision : str
        The precision, such as "fp16".
    device : cupy.cuda.Device
        The GPU.

    Attributes
    ----------
    whole : bool
        Whether every article takes all rows of the frame, those beyond its text too.

    """

    def __init__(
        self, weights: Weights, integers: Integers | None, ngrams: NGrams | FastText | None, alphabet: Alphabet,
        length: int, generation: str, precision: str, device: cp.cuda.Device,
    ) -> None:  # fmt: skip
        self.layers, self.frame = weights.layers, weights.frame
        self._of_scores = (weights.temperature, weights.link)
        self.whole = self.frame == "dense"
        self.parts = memory_plan.Parts(bool(weights.conv), weights.alone is not None)
        self._length = length
        self._padding = alphabet.padding
        self._trail = Trail()
        self._marked: Slot | None = None
        self._capturing = False
        self.watcher: Launched | None = None
        self.ops = operations(generation, precision, device, self._mark)
        kernels: list[Kernel] = []
        if self.parts.network:
            kernels += network_kernels(generation, precision, self.ops.architecture, self.layers, self.frame)
            kernels += [gather_kernel()] if self.parts.alone else []
        if isinstance(ngrams, NGrams):
            kernels += branch_kernels(ngrams.kinds, ngrams.bits, self.layers[-1].outputs)
        elif ngrams is not None:
            shape = fasttext_shape(ngrams.table.shape[1], self.ops.stored.is_exact)
            kernels += fasttext_kernels(shape, self.layers[-1].outputs)
        self.ops.prepare(kernels)
        self._spelled, self._alphabet = alphabet, upload_alphabet(alphabet)
        self._ngrams = ngrams
        self._branch: DeviceNGrams | DeviceFastText | None = None
        if isinstance(ngrams, NGrams):
            self._branch = upload_ngrams(ngrams)
        elif ngrams is not None:
            self._branch = upload_fasttext(ngrams, self.ops.stored.is_exact)
        self._alone = None if weights.alone is None else upload_alone(weights.alone)
        if self.parts.network:
            self._weights = upload(weights, integers, generation, precision, self.ops.architecture)
            self._constants = self._after_text()
        cp.cuda.get_current_stream().synchronize()  # the streams below do not wait for it
        self._in, self.compute, self._out = (cp.cuda.Stream(non_blocking=True) for _ in range(3))
        self.slots: list[Slot] = []
        self._copying = ThreadPoolExecutor(min(_COPYING_THREADS, available_cores()), "broadsheet-copy")

    def _after_text(self) -> dict[str, cp.ndarray]:
        """The output of each convolution after block 1, [outputs], beyond the text, where all rows are alike."""
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
        return memory_plan.plan(self.layers, batch, self.ops.stored, self.frame, self._ngrams, self.parts)

    def allocate(self, batch: int) -> None:
        """Allocate every buffer of the plan.

        Raises CuPy's OutOfMemoryError, or NotPageLocked; `release` then frees those allocated.
        """
        self.room = capacity(self.layers, batch, "dense" if self.whole else self.frame)
        self._ids = cp.empty((batch, memory_plan.id_pitch(self._length)), np.uint8)
        if self.parts.network:
            sizes = memory_plan.activation_bytes(self.layers, self.room, self.ops.stored)
            self._activations = [cp.empty(size, np.uint8) for size in sizes]
            self._statistics = cp.empty((batch, 2), np.float32)
            self._text_end = cp.empty(batch, np.int32)
            self._first_unit = cp.empty(batch + 1, np.int32)
            self._counts = cp.empty(2, np.int32)
            self._closing = cp.empty(self.room.units, np.uint8)
        if isinstance(self._branch, DeviceFastText):
            self._means = cp.empty((batch, self._branch.columns), np.float32)
        if self.parts.network and self.parts.alone:
            self._asked_ids, self._asked_rows = cp.empty_like(self._ids), cp.empty(batch, np.int32)
        for _ in range(memory_plan.SLOTS):
            self.slots.append(Slot(self.layers, self.room))

    def release(self) -> None:
        self.slots.clear()
        self._activations = []
        self._ids = self._statistics = self._text_end = self._first_unit = self._counts = self._closing = None
        self._asked_ids = self._asked_rows = self._means = None

    def close(self) -> None:
        """Release the weights too."""
        self.release()
        self._copying.shutdown()
        if self.parts.network:
            del self._weights, self._constants
        del self._branch, self._alone

    def start_text(
        self,
        slot: Slot,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        units: int,
        top_k: int,
        keep: cp.ndarray | None = None,
    ) -> None:
        """Start a batch of text: copy it, encode it, and launch the kernels.

        Parameters
        ----------
        slot : Slot
            A free slot, which the batch takes.
        data : uint8 [bytes]
            UTF-8 on the host or the GPU, of which ``data[offsets[0]:offsets[-1]]`` is the batch.
        offsets : int64 [N + 1]
            Where each article begins, and where the last ends.
        units : int
            Units that the batch takes at most.
        top_k : int
            Labels of each article.
        keep : uint8 [N, pitch], optional
            An array on the GPU that the ids are copied to.

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
            self.score_ngrams(text, bounds, slot.scored(count, self.layers[-1].outputs, top_k))
        self._finish_start(slot, ids, units, top_k, keep)

    def _copy(self, data: NDArray[np.uint8], to: NDArray[np.uint8]) -> None:
        """Copy by several threads: one alone copies long texts at hardly the rate at which the GPU labels them."""
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
        text: tuple[NDArray[np.uint8], NDArray[np.int64]] | None,
        units: int,
        top_k: int,
        keep: cp.ndarray | None = None,
    ) -> None:
        """Start a batch that is encoded already.

        Parameters
        ----------
        slot : Slot
            A free slot, which the batch takes.
        ids : uint8 [N, length]
            The ids, on the host.
        text : tuple of uint8 [bytes] and int64 [N + 1], or None
            The text and its offsets on the host, where there is text.
        units : int
            Units that the batch takes at most.
        top_k : int
            Labels of each article.
        keep : uint8 [N, pitch], optional
            An array on the GPU that the ids are copied to.

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
        if (beside := self._beside(ids, text)) is not None:
            out = slot.scored(len(ids), self.layers[-1].outputs, top_k)
            means = self._means_of(out)
            (out.logits if means is None else means).set(beside, self.compute)
            with self.compute:
                self._from_means(means, out)
        self._finish_start(slot, slot.device["text"][:size].reshape(len(ids), pitch), units, top_k, keep)

    def _beside(
        self, ids: NDArray[np.uint8], text: tuple[NDArray[np.uint8], NDArray[np.int64]] | None
    ) -> NDArray[np.float32] | None:
        """What the branch adds to the logits of a batch that is encoded on the host, or for a model of fastText's its
        mean rows; with the bits of the kernel.
        """
        if isinstance(self._ngrams, NGrams):
            return scores_of_ids(ids, self._spelled, self._ngrams) if text is None else scores(*text, self._ngrams)
        if self._ngrams is None or text is None:
            return None
        shape = fasttext_shape(self._ngrams.table.shape[1], self.ops.stored.is_exact)
        return Reader(self._ngrams, shape.bits).means(*text)

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
        """Launch the network on ids that are on the GPU or will be, and the copies of the results.

        Parameters
        ----------
        slot : Slot
            The slot of the batch.
        ids : uint8 [N, pitch]
            The ids, on the GPU.
        units : int
            Units that the batch takes at most.
        top_k : int
            Labels of each article.
        keep : uint8 [N, pitch], optional
            An array on the GPU that the ids are copied to.

        """
        slot.articles, slot.top_k = len(ids), top_k
        with self.compute:
            if keep is not None:
                keep[...] = ids
            scored = slot.scored(len(ids), self.layers[-1].outputs, top_k)
            self.forward(ids, units, scored, slot.device["saturated"], slot.device["asked"])
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
        if self.parts.alone:
            slot.copy_out("asked", 1, self._out)
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
            self.sums(host),
        )

    def sums(self, host: dict[str, NDArray[Any]]) -> Sums:
        """What is counted of a batch."""
        saturated = int(host["saturated"][0]) if self.ops.stored.is_int8 else 0
        return Sums(saturated, int(host["asked"][0]) if self.parts.alone else 0)

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
        """Text on the GPU to ids, on the current stream. The characters of long articles are not counted. Of a model
        that reads whole texts, those of all are, and nothing else.
        """
        if self._length == WHOLE:
            for counts in (out.n_chars, out.truncated, out.unknown_chars):
                counts.data.memset_async(0, counts.nbytes, cp.cuda.get_current_stream())
            self.ops.count_characters(data, offsets, len(data), WHOLE, out.n_chars)
            return
        self.ops.encode(data, offsets, self._alphabet, self._length, out)

    def score_ngrams(self, data: cp.ndarray, offsets: cp.ndarray, out: Scored) -> None:
        """What the branch adds to the logits of text on the GPU, to `out.logits`, on the current stream."""
        if isinstance(self._branch, DeviceFastText):
            means = self._means_of(out)
            self.ops.fasttext(data, offsets, self._branch, out.logits if means is None else means)
            self._from_means(means, out)
        elif self._branch is not None:
            self.ops.ngrams(data, offsets, self._branch, out.logits)

    def _means_of(self, out: Scored) -> cp.ndarray | None:
        """Memory for a batch's mean rows; None for a model whose mean rows are its logits, or that has none."""
        branch = self._branch
        if not isinstance(branch, DeviceFastText) or (branch.output is None and branch.tree is None):
            return None
        return self._means[: len(out.logits)]

    def _from_means(self, means: cp.ndarray | None, out: Scored) -> None:
        if means is not None and isinstance(self._branch, DeviceFastText):
            self.ops.fasttext_logits(means, self._branch, out)

    def forward(self, ids: cp.ndarray, units: int, out: Scored, saturated: cp.ndarray, asked_count: cp.ndarray) -> None:
        """Ids on the GPU to scores, on the current stream.

        Parameters
        ----------
        ids : uint8 [N, pitch]
            The ids.
        units : int
            Units that the articles take at most.
        out : Scored
            Where the results go. `out.logits` already holds what a branch adds to the logits.
        saturated : uint64 [1]
            Where saturated values are counted, in int8.
        asked_count : int32 [1]
            Where the articles are counted about which the network is asked, of a model whose n-grams can be alone.

        """
        asked, stream = None, cp.cuda.get_current_stream()
        if self.ops.stored.is_int8:
            saturated.data.memset_async(0, saturated.nbytes, stream)
        if (alone := self._alone) is not None:
            asked_count.data.memset_async(0, asked_count.nbytes, stream)
            temperature, several = alone.temperature, self._of_scores[1]
            if not self.parts.network:
                self.ops.ngrams_alone(alone.bias, out, temperature, several)
                return
            asked = Asked(self._asked_rows, asked_count)
            self.ops.ngrams_alone(alone.bias, out, temperature, several, alone.margin, alone.cuts, asked)
            self.ops.gather(ids, asked, self._asked_ids)
            ids = self._asked_ids[: len(ids)]
        self._ask(ids, units, out, saturated, asked)

    def _ask(self, ids: cp.ndarray, units: int, out: Scored, saturated: cp.ndarray, asked: Asked | None) -> None:
        """The network alone.

        Parameters
        ----------
        ids : uint8 [N, pitch]
            The ids.
        units : int
            Units that the articles take at most.
        out : Scored
            Where the results go.
        saturated : uint64 [1]
            Where saturated values are counted, in int8.
        asked : Asked or None
            Which articles these are, of which the host knows only how many there are at most; None for all of the
            batch.

        """
        count, weights = len(ids), self._weights
        statistics, text_end = self._statistics[:count], self._text_end[:count]
        packing = Packing(self._first_unit[: count + 1], self._counts, self._closing, units)
        first, *rest = memory_plan.schedule(self.layers, self.ops.stored)
        self.ops.norm_statistics(ids, self._length, first.layer, weights.statistics, statistics, text_end, asked)
        self.ops.pack(text_end, self.layers, self.whole, packing, asked)
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
        self.ops.head(x, last, weight, bias, out, of_block_1, beside, *self._of_scores, asked)

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
