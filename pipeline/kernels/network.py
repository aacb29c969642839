"""A whole model on one GPU: its weights and buffers, three streams, and the kernels in their order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from ..model.alphabet import Alphabet
from ..model.fasttext import FastText, Reader
from ..model.layers import WHOLE
from ..model.ngrams import NGrams, scores, scores_of_ids
from ..model.quantised import Integers
from ..model.reference import Weights
from ..processes.threads import available_cores
from . import memory_plan
from .batch_arrays import DeviceBatch, NetworkRows, Packing, Scored
from .catalog import Kernel, branch_kernels, fasttext_kernels, gather_kernel, network_kernels
from .driver_calls import copy, launch, record, wait
from .memory_plan import CLOSING_UNITS, capacity
from .ops import Launched, operations
from .slots import Result, Slot, Sums, Trail
from .tables import fasttext_shape
from .twins import copy_small
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

_GRAPHS = 24
"""The number of graphs that stay in memory, eight for each slot. The least recently used one is dropped."""


class Wanted(NamedTuple):
    """The results that a caller wants: `top_k` labels for each article, and whether the scores of all classes."""

    top_k: int
    all_scores: bool


class _Launches(NamedTuple):
    """The kernels that a batch needs, and how many labels they find.

    Attributes
    ----------
    reads_text : bool
        Whether the batch is text. If not, its ids are on the GPU.
    has_long : bool
        See `Network.label_texts`.
    top_k : int
        The number of labels for each article.

    """

    reads_text: bool
    has_long: bool
    top_k: int


class Network:
    """The weights of a model on a GPU, its buffers once `allocate` is called, and the launches from text to labels.

    A batch goes through these stages, each on a stream of its own:

        copy in -> encode -> n-grams -> network, if the n-grams are unsure -> copy out
        (_in)      (compute)                                                  (_out)

    Parameters
    ----------
    weights : Weights
        The tensors of the model. A model of n-grams alone has no network.
    integers : Integers or None
        The blocks 2 to 6 in 8 bits, for int8.
    ngrams : NGrams or FastText or None
        The n-grams beside the network, or a fastText model in place of it.
    alphabet : Alphabet
        The characters that the model reads.
    length : int
        The number of characters that it reads of a text, or `WHOLE` for all.
    generation : str
        The kernel generation, such as "sm90".
    precision : str
        The precision, such as "fp16".
    device : cupy.cuda.Device
        The GPU.

    Attributes
    ----------
    whole : bool
        Whether every article takes all rows of the frame, including those beyond its text.
    has_graphs : bool
        Whether the kernels of a batch are launched as one CUDA graph. Launching them one by one takes a hundred calls,
        and before each call the thread may wait for Python's interpreter lock (GIL).

    """

    has_graphs = True

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
        self._is_capturing = self._marks_graph = False
        self._graph_of = lru_cache(maxsize=_GRAPHS)(self._capture)
        self.watcher: Launched | None = None
        # Compile and load every kernel of the model.
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
        # Copy the weights to the GPU.
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
        cp.cuda.get_current_stream().synchronize()  # the streams below do not wait for this one
        self._in, self.compute, self._out = (cp.cuda.Stream(non_blocking=True) for _ in range(3))
        self.slots: list[Slot] = []
        self._copying = ThreadPoolExecutor(min(_COPYING_THREADS, available_cores()), "broadsheet-copy")

    def _after_text(self) -> dict[str, cp.ndarray]:
        """Return the output [outputs] of each convolution after block 1 beyond the text, where all rows are equal."""
        units = CLOSING_UNITS + 1
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

        Raises CuPy's OutOfMemoryError, or NotPageLocked. `release` then frees the buffers that were allocated.
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
            self._network_ids, self._network_rows = cp.empty_like(self._ids), cp.empty(batch, np.int32)
        for _ in range(memory_plan.SLOTS):
            self.slots.append(Slot(self.layers, self.room, self._ids))

    def release(self) -> None:
        self._graph_of.cache_clear()
        self.slots.clear()
        self._activations = []
        self._ids = self._statistics = self._text_end = self._first_unit = self._counts = self._closing = None
        self._network_ids = self._network_rows = self._means = None

    def close(self) -> None:
        """Release the buffers and the weights."""
        self.release()
        self._copying.shutdown()
        if self.parts.network:
            del self._weights, self._constants
        del self._branch, self._alone, self._alphabet

    def start_text(
        self,
        slot: Slot,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        units: int,
        has_long: bool,
        wanted: Wanted,
        ids_copy: cp.ndarray | None = None,
    ) -> None:
        """Start a batch of text: copy it, encode it, and launch the kernels.

        Parameters
        ----------
        slot : Slot
            A free slot, which the batch then uses.
        data : uint8 [bytes]
            UTF-8 on the host or the GPU, of which ``data[offsets[0]:offsets[-1]]`` is the batch.
        offsets : int64 [N + 1]
            Where each article begins, and where the last ends.
        units : int
            The most units of the batch.
        has_long : bool
            See `label_texts`. It may be True for a batch that has no such article.
        wanted : Wanted
            The results that the caller wants.
        ids_copy : uint8 [N, pitch], optional
            An array on the GPU to which the ids are copied.

        """
        # Copy the text and its offsets to the GPU.
        count, size = len(offsets) - 1, int(offsets[-1] - offsets[0])
        text = data[offsets[0] : offsets[-1]]
        given = slot.input
        given["count"][:] = count
        copy_small(given["offsets"][: count + 1], offsets)
        if isinstance(text, np.ndarray):
            self._copy(text, given["text"][:size])
            record(slot.copy_begun, self._in)
            slot.copy_in(size, self._in)
        else:
            record(slot.copy_begun, self._in)
            slot.copy_in(0, self._in)
            copy(slot.text_on_gpu.data.ptr, text.data.ptr, size, self._in)
        record(slot.copied_in, self._in)
        # Launch the kernels, and the copy of the results.
        self._begin(slot)
        self._launch(slot, _Launches(True, has_long, wanted.top_k), count, size, units)
        if ids_copy is not None:
            copy(ids_copy.data.ptr, self._ids.data.ptr, ids_copy.nbytes, self.compute)
        self._finish_start(slot, count, wanted)

    def _copy(self, data: NDArray[np.uint8], to: NDArray[np.uint8]) -> None:
        """Copy bytes with several threads. One thread would copy long texts hardly faster than the GPU labels them."""
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
        wanted: Wanted,
        ids_copy: cp.ndarray | None = None,
    ) -> None:
        """Start a batch that the host has encoded.

        Parameters
        ----------
        slot : Slot
            A free slot, which the batch then uses.
        ids : uint8 [N, length]
            The ids, on the host.
        text : tuple of uint8 [bytes] and int64 [N + 1], or None
            The text and its offsets on the host, if there is text.
        units : int
            The most units of the batch.
        wanted : Wanted
            The results that the caller wants.
        ids_copy : uint8 [N, pitch], optional
            An array on the GPU to which the ids are copied.

        """
        # Copy the ids to the GPU, padded to the pitch.
        count, pitch = len(ids), memory_plan.id_pitch(self._length)
        slot.input["count"][:] = count
        staged = slot.input["text"][: count * pitch].reshape(count, pitch)
        staged[:, : self._length] = ids
        staged[:, self._length :] = self._padding
        record(slot.copy_begun, self._in)
        slot.copy_in(count * pitch, self._in)
        record(slot.copied_in, self._in)
        # Compute the n-grams on the host, and copy their part of the logits to the GPU.
        self._begin(slot)
        if (beside := self._beside(ids, text)) is not None:
            batch = slot.batch(wanted.top_k).first(count, 0)
            means = self._means_of(batch.scored)
            (batch.scored.logits if means is None else means).set(beside, self.compute)
            with self.compute:
                self._from_means(means, batch)
        # Launch the network, and the copy of the results.
        given = slot.text_on_gpu[: count * pitch].reshape(count, pitch)
        self._launch_ids(slot, given, units, wanted)
        if ids_copy is not None:
            copy(ids_copy.data.ptr, given.data.ptr, ids_copy.nbytes, self.compute)
        self._finish_start(slot, count, wanted)

    def _beside(
        self, ids: NDArray[np.uint8], text: tuple[NDArray[np.uint8], NDArray[np.int64]] | None
    ) -> NDArray[np.float32] | None:
        """Return what the n-grams add to the logits of a batch that the host has encoded.

        For a fastText model, these are its mean rows. The bits are those of the kernel.
        """
        if isinstance(self._ngrams, NGrams):
            return scores_of_ids(ids, self._spelled, self._ngrams) if text is None else scores(*text, self._ngrams)
        if self._ngrams is None or text is None:
            return None
        shape = fasttext_shape(self._ngrams.table.shape[1], self.ops.stored.is_exact)
        return Reader(self._ngrams, shape.bits).means(*text)

    def start_ids_on_gpu(self, slot: Slot, ids: cp.ndarray, units: int, wanted: Wanted) -> None:
        """Start a batch whose ids, uint8 [N, pitch], are on the GPU, where another network left them for this one.

        A model with n-grams cannot do this, since it needs the text.
        """
        slot.input["count"][:] = len(ids)
        record(slot.copy_begun, self._in)
        slot.copy_in(0, self._in)
        record(slot.copied_in, self._in)
        self._begin(slot)
        self._launch_ids(slot, ids, units, wanted)
        self._finish_start(slot, len(ids), wanted)

    def _begin(self, slot: Slot) -> None:
        """Make the kernels wait for the slot's copy."""
        wait(self.compute, slot.copied_in)
        record(slot.compute_begun, self.compute)
        slot.marks = []

    def _launch_ids(self, slot: Slot, ids: cp.ndarray, units: int, wanted: Wanted) -> None:
        """Launch the kernels of a batch whose ids, uint8 [N, pitch], are on the GPU."""
        copy(self._ids.data.ptr, ids.data.ptr, ids.nbytes, self.compute)
        self._launch(slot, _Launches(False, False, wanted.top_k), len(ids), 0, units)

    def _launch(self, slot: Slot, launches: _Launches, count: int, size: int, units: int) -> None:
        """Launch the kernels of a batch: as one graph, or one by one if each of them is observed.

        Parameters
        ----------
        slot : Slot
            The slot of the batch.
        launches : _Launches
            The kernels that the batch needs.
        count, size, units : int
            The number of articles in the batch, the bytes of its text, and the most units of it.

        """
        if self.has_graphs and not slot.each_kernel and self.watcher is None:
            launch(self._graph_of(slot, launches), self.compute)
            return
        self._marked = slot if slot.each_kernel else None
        with self.compute:
            self._label(slot.batch(launches.top_k).first(count, size), launches, units)
        self._marked = None

    def _capture(self, slot: Slot, launches: _Launches) -> Any:
        """Return a graph for any batch in a slot. The kernels read in memory how many articles the batch has."""
        batch = slot.batch(launches.top_k)
        return self.captured(lambda: self._label(batch, launches, self.room.units), is_marked=True)

    def _label(self, batch: DeviceBatch, launches: _Launches, units: int) -> None:
        if launches.reads_text:
            self.label_texts(batch, units, launches.has_long)
        else:
            self.forward(batch, units)

    def _finish_start(self, slot: Slot, count: int, wanted: Wanted) -> None:
        """Start to copy the results of a batch of `count` articles to the host, after the kernels."""
        record(slot.computed, self.compute)
        slot.articles, slot.top_k, slot.has_scores = count, *wanted
        wait(self._out, slot.computed)
        record(slot.out_begun, self._out)
        slot.copy_out(self._out)
        record(slot.copied_out, self._out)

    def settle(self) -> None:
        """Wait for all batches in flight."""
        for stream in (self._in, self.compute, self._out):
            stream.synchronize()

    def finish(self, slot: Slot) -> Result:
        """Wait for the batch of a slot, and return its results."""
        slot.copied_out.synchronize()
        return slot.result(self.sums)

    def sums(self, host: dict[str, NDArray[Any]]) -> Sums:
        """Return the counts over a batch. host: its results on the host."""
        saturated = int(host["saturated"][0]) if self.ops.stored.is_int8 else 0
        return Sums(saturated, int(host["asked"][0]) if self.parts.alone else 0)

    def ids(self, count: int) -> cp.ndarray:
        """Return the memory for the ids of a batch, uint8 [N, pitch]."""
        return self._ids[:count]

    def captured(self, work: Callable[[], None], is_marked: bool = False) -> Any:
        """Return a graph of the work that `work` puts on the stream `compute`. This does not run it.

        is_marked: whether the graph marks each kernel before it begins, so that an error names it.
        """
        self._is_capturing, self._marks_graph = True, is_marked
        self.compute.begin_capture()
        try:
            with self.compute:
                work()
        finally:
            self._is_capturing = False
            graph = self.compute.end_capture()
        graph.upload(self.compute)
        return graph

    def run(self, graph: Any) -> None:
        """Launch a graph and wait for it."""
        self._trail.mark("any, of a batch launched as one graph", self.compute.ptr)
        launch(graph, self.compute)
        self.compute.synchronize()

    def label_texts(self, batch: DeviceBatch, units: int, has_long: bool) -> None:
        """Compute the scores of texts on the GPU, on the current stream.

        Parameters
        ----------
        batch : DeviceBatch
            The batch.
        units : int
            The most units of its articles.
        has_long : bool
            Whether an article has more bytes than `head_bytes`. Many warps count its characters.

        """
        texts, n_chars = batch.texts, batch.encoded.n_chars
        if self._length == WHOLE:
            stream = cp.cuda.get_current_stream()
            for counts in (n_chars, batch.encoded.truncated, batch.encoded.unknown_chars):
                counts.data.memset_async(0, counts.nbytes, stream)
            self.ops.count_characters(texts, WHOLE, n_chars)
        else:
            self.ops.encode(texts, self._alphabet, self._length, batch.encoded)
            if has_long:
                self.ops.count_characters(texts, self._length, n_chars)
        self._score_branch(batch)
        self.forward(batch, units)

    def _score_branch(self, batch: DeviceBatch) -> None:
        """Compute what the n-grams or the fastText model add to the logits of texts."""
        if isinstance(self._branch, DeviceFastText):
            means = self._means_of(batch.scored)
            logits = batch.scored.logits
            self.ops.fasttext(batch.texts, self._branch, logits if means is None else means)
            self._from_means(means, batch)
        elif self._branch is not None:
            self.ops.ngrams(batch.texts, self._branch, batch.scored.logits)

    def _means_of(self, out: Scored) -> cp.ndarray | None:
        """Return the memory for a batch's mean rows, or None if the model has none or they are its logits."""
        branch = self._branch
        if not isinstance(branch, DeviceFastText) or (branch.output is None and branch.tree is None):
            return None
        return self._means[: len(out.logits)]

    def _from_means(self, means: cp.ndarray | None, batch: DeviceBatch) -> None:
        if means is not None and isinstance(self._branch, DeviceFastText):
            self.ops.fasttext_logits(means, batch.texts.count, self._branch, batch.scored)

    def forward(self, batch: DeviceBatch, units: int) -> None:
        """Compute the scores of ids on the GPU, on the current stream.

        Parameters
        ----------
        batch : DeviceBatch
            The batch. Its logits already have the part of the n-grams.
        units : int
            The most units of its articles.

        """
        network_rows, stream, count = None, cp.cuda.get_current_stream(), batch.texts.count
        ids, out = batch.encoded.ids, batch.scored
        if self.ops.stored.is_int8:
            batch.saturated.data.memset_async(0, batch.saturated.nbytes, stream)
        if (alone := self._alone) is not None:
            batch.asked.data.memset_async(0, batch.asked.nbytes, stream)
            temperature, link = alone.temperature, self._of_scores[1]
            if not self.parts.network:
                self.ops.ngrams_alone(alone.bias, count, out, temperature, link)
                return
            network_rows = NetworkRows(self._network_rows, batch.asked)
            self.ops.ngrams_alone(alone.bias, count, out, temperature, link, alone.margin, alone.cuts, network_rows)
            self.ops.gather(ids, network_rows, self._network_ids)
            ids, count = self._network_ids[: len(ids)], network_rows.count
        rows = None if network_rows is None else network_rows.rows
        self._run_network(ids, count, rows, units, out, batch.saturated)

    def _run_network(
        self, ids: cp.ndarray, count: cp.ndarray, which: cp.ndarray | None, units: int, out: Scored,
        saturated: cp.ndarray,
    ) -> None:  # fmt: skip
        """Compute the network alone.

        Parameters
        ----------
        ids : uint8 [N, pitch]
            The ids.
        count : int32 [1]
            The number of articles, at most N.
        which : int32 [N], or None
            The numbers of these articles in the batch, or None for all of them.
        units : int
            The most units of the articles.
        out : Scored
            The arrays for the results.
        saturated : uint64 [1]
            The counter of saturated values, in int8.

        """
        # Block 1: statistics, the places of the rows, and the look-up.
        articles, weights = len(ids), self._weights
        statistics, text_end = self._statistics[:articles], self._text_end[:articles]
        packing = Packing(self._first_unit[: articles + 1], self._counts, self._closing, units)
        first, *rest = memory_plan.schedule(self.layers, self.ops.stored)
        self.ops.norm_statistics(ids, count, self._length, first.layer, weights.statistics, statistics, text_end)
        self.ops.pack(text_end, count, self.layers, self.whole, packing)
        norm, rows = weights.norm[first.layer.name], self._activation(first.out)
        self.ops.lookup_norm_pool(
            ids, self.layers, self.frame, weights.table, norm, statistics, text_end, packing, rows,
            weights.steps_in_one, saturated,
        )  # fmt: skip
        # The other convolutions and linear layers.
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
        # The last layer and the scores.
        last = self.layers[-1]
        x = rows[: articles * last.inputs].reshape(articles, last.inputs)
        of_block_1 = statistics if self.ops.stored.is_int8 else None
        beside = None if self._branch is None else out.logits
        weight, bias = weights.products[last.name], weights.bias[last.name]
        self.ops.head(x, count, last, weight, bias, out, of_block_1, beside, *self._of_scores, which)

    def _activation(self, at: memory_plan.Activation) -> cp.ndarray:
        """Return the whole memory of an activation, so that tensor maps are the same for every batch."""
        return self._activations[at.buffer][: at.bytes(self.room)].view(at.element.dtype)

    def _mark(self, kernel: Kernel, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        stream = cp.cuda.get_current_stream()
        if self._is_capturing:
            if self._marks_graph:
                self._trail.mark(kernel.name, stream.ptr)
            return
        self._trail.mark(kernel.name, stream.ptr)
        if self.watcher is not None:
            self.watcher(kernel, grid, arguments)
        if self._marked is not None:
            event = cp.cuda.Event()
            event.record(stream)
            self._marked.marks.append((kernel.name, event))

    def last_kernel(self) -> str:
        """Return the kernel that the GPU began last. This also works after a failure, when every CUDA call fails."""
        return self._trail.last()
