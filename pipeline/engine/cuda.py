"""The CUDA engine: one per process and GPU, with weights and buffers allocated once, and batches in a ring of slots.

    plan batches -> copy in -> kernels -> copy out -> predictions

While one batch computes, the next is copied in and the previous one is copied out. Each slot has page-locked memory on
the host and a buffer on the GPU. Three streams run the copies and the kernels, and events order them. The ring
continues from call to call: the first batches of one call are copied in while the last batches of another compute.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from ..errors import BroadsheetError, NoRoom, UsageError
from ..kernels import memory_plan
from ..kernels.catalog import choose_generation, largest_batch
from ..kernels.compile import compiler_name
from ..kernels.driver_calls import make_current
from ..kernels.memory_plan import articles_for_a_full_one, units_by_length
from ..kernels.network import Network, Wanted
from ..kernels.slots import Result, Slot, Sums
from ..kernels.small_batches import SmallBatches
from ..kernels.twins import NotPageLocked, copy_small
from ..model import quantised, reference
from ..model.alphabet import Encoded, head_bytes, of_ids
from ..model.charcnn import Model
from ..model.layers import CLASSES
from ..telemetry.activity import ACTIVITY, DEVICE_ACTIVITIES
from ..telemetry.spans import Span, device_spans
from .base import ALONE, Backend, Predictions, Texts

_BATCH_PER_SM = 64
"""The articles of full length in a batch, per SM.

A tile has 64 units of block 2, so such a batch is a whole number of waves there.
"""

_FIRST_SHARE = 4
"""The first of several batches has the articles of a full batch divided by this number."""

_ALONE_TIMES, _ALONE_SHARE = 2, 1 / 8
"""A model whose n-grams may decide alone has batches that are `_ALONE_TIMES` times larger.

They must take at most `_ALONE_SHARE` of the free memory. The host launches the same kernels for a batch, however few
of its articles need the network.
"""

_LEAST_BATCH = 64
_BATCH_OF_REFERENCE = 512
"""The articles in a batch of the engine that labels articles whose values tensor cores cannot represent in fp32."""

_ANCHOR_SECONDS, _ANCHOR_SECONDS_OF_IDLE = 60.0, 10.0
"""The seconds after which the clocks of host and GPU are compared again. Until then they differ by some microseconds.

They are compared earlier if the GPU is idle, since otherwise the comparison waits for the batches in flight.
"""

_ANCHOR_TRIES = 3
"""How often the clocks are compared. Only the shortest try counts: on a busy host others may be milliseconds late."""

_FREE_SHARE = 0.8
"""The largest share of the free memory that an engine plans to allocate."""

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY of the driver, cudaErrorMemoryAllocation of the runtime


class Batch(NamedTuple):
    """Some articles of a chunk that are computed together.

    Attributes
    ----------
    first, last : int
        The range of articles, from number `first` to before `last`.
    units : int
        The most units of these articles, as in `memory_plan`.
    has_long : bool
        Whether one of them has more bytes than `head_bytes`.
    given : Encoded, optional
        Their ids and counts, if the host has encoded them, or if the GPU already has for another model.

    """

    first: int
    last: int
    units: int
    has_long: bool = False
    given: Encoded | None = None


def number_on_host(device: int) -> int:
    """Return a GPU's number among all GPUs of the host. CUDA_VISIBLE_DEVICES hides and renumbers them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return int(visible[device]) if device < len(visible) and visible[device].strip().isdigit() else device


class CudaEngine:
    """A model on one GPU.

    Several threads may plan their batches and wait for results at the same time, but only one at a time gives batches
    to the GPU. `network` is public for profiling, `small` for tests.

    Parameters
    ----------
    model : Model
        The model.
    precision : str
        The precision: "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        The generation of CUDA kernels, or "auto".
    batch : int, optional
        The most articles in a batch. By default as many as free memory allows.
    device : int
        The number of the GPU among those that this process sees.

    """

    reads_gpu_texts = True

    _failed: str | None = None
    """The reason why the engine cannot compute any more. After a failure of the GPU every call fails."""

    _anchored: tuple[float, cp.cuda.Event] | None = None
    """The last comparison of the clocks of host and GPU. See `_anchor`."""

    _reference: CudaEngine | None = None
    """An engine for articles that tensor cores cannot compute in fp32. It is opened for the first of them."""

    def __init__(
        self, model: Model, precision: str = "auto", kernels: str = "auto", batch: int | None = None, device: int = 0
    ) -> None:
        self.model = model
        self.device = cp.cuda.Device(device)
        self._reference_lock = Lock()
        self._batches_begun = 0
        # Choose the kernels, prepare the weights, load both, and allocate the buffers.
        with self.device:
            digits = self.device.compute_capability
            capability = (int(digits[:-1]), int(digits[-1]))
            generation, precision = choose_generation(kernels, precision, capability)
            self.backend = Backend("cuda", generation, f"sm_{digits}, {compiler_name()}", precision)
            weights = reference.prepare(model)
            integers = None
            if precision == "int8" and model.has_network:
                integers = quantised.prepare(weights, quantised.scales_of(model))
            self._units = units_by_length(model.layers, model.frame)
            largest = largest_batch(generation, precision, f"sm_{digits}", model.layers, model.frame)
            if batch is not None and batch > largest:
                raise UsageError(f"{generation} kernels take batches of at most {largest:,} articles of this model")
            try:
                self.network = Network(
                    weights, integers, model.ngrams, model.alphabet, model.length, generation, precision, self.device
                )
            except cp.cuda.memory.OutOfMemoryError as error:
                raise NoRoom(self._no_room("the model's weights", error)) from error
            except (cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError) as error:
                if error.status == _OUT_OF_MEMORY:
                    raise NoRoom(self._no_room("the model's kernels", error)) from error
                raise BroadsheetError(f"GPU {device} cannot load the model: {error}") from error
            self._allocate(batch or self._default_batch(largest))
        self.device_name = f"cuda:{number_on_host(device)}"
        self.memory_ready = time.time()

    def _default_batch(self, largest: int) -> int:
        full = _BATCH_PER_SM * int(self.device.attributes["MultiProcessorCount"])
        # The scores of many classes take much page-locked memory, so with many classes short articles get no more room.
        by_scores = full * CLASSES[1] // len(self.model.classes)
        batch = min(largest, full * articles_for_a_full_one(self.model.frame), by_scores)
        free, _ = self.device.mem_info

        def planned(batch: int) -> int:
            return memory_plan.planned_bytes(self.network.plan(batch))

        larger = min(largest, _ALONE_TIMES * batch, by_scores)
        if self.network.parts.alone and planned(larger) <= _ALONE_SHARE * free:
            return larger
        while batch > _LEAST_BATCH and planned(batch) > _FREE_SHARE * free:
            batch //= 2
        return batch

    def _allocate(self, batch: int) -> None:
        """Allocate the planned buffers. If the memory is no longer free, try again with half the batch."""
        while True:
            try:
                self.network.allocate(batch)
                self.small = SmallBatches(self.network)
                break
            except (cp.cuda.memory.OutOfMemoryError, NotPageLocked) as error:
                self.network.release()
                what = f"batches of {batch} articles"
                if batch <= _LEAST_BATCH:
                    raise NoRoom(self._no_room(what, error)) from error
                warnings.warn(
                    f"{self._full(error)} has no room for {what}, continuing with {batch // 2}",
                    RuntimeWarning,
                    stacklevel=2,
                )
                batch //= 2
        self.batch = batch

    def _full(self, error: Exception) -> str:
        return "the host's page-locked memory" if isinstance(error, NotPageLocked) else f"GPU {self.device.id}"

    def _no_room(self, what: str, error: Exception) -> str:
        other = "raise this job's limit of memory"
        if not isinstance(error, NotPageLocked):
            other = "use another GPU (CUDA_VISIBLE_DEVICES)"
        return f"{self._full(error)} has no room for {what}: {error}. Stop other programs on it, or {other}"

    def classify(
        self,
        texts: Texts,
        top_k: int = 1,
        all_scores: bool = False,
        spans: list[Span] | None = None,
        each_kernel: bool = False,
        turn: AbstractContextManager[object] = ALONE,
    ) -> Predictions:
        """Label N articles. Raises BroadsheetError with the kernel and the batch if the GPU fails.

        Parameters
        ----------
        texts, top_k, all_scores, spans, each_kernel, turn
            See `Engine.classify`.

        """
        if self._failed:
            raise BroadsheetError(f"the GPU of this worker failed before, restart the worker: {self._failed}")
        # Make the arrays for the results.
        count = len(texts)
        classes = len(self.model.classes)
        top_k = min(top_k, classes)
        predictions = Predictions(
            labels=np.empty((count, top_k), np.int32),
            scores=np.empty((count, top_k), np.float32),
            all_scores=np.empty((count, classes), np.float32) if all_scores else None,
            n_chars=np.empty(count, np.int64),
            truncated=np.empty(count, np.bool_),
            unknown_chars=np.empty(count, np.int64),
        )
        # Label the texts, with one CUDA graph if they are few and short.
        if not _is_on_host(texts) and not texts.is_written:
            self.device.synchronize()  # the text may have been written on any stream
        if self._is_small(texts) and not each_kernel:
            with turn:
                sums = self._in_a_graph(texts, top_k, predictions, spans)
        else:
            sums = self._in_batches(texts, top_k, predictions, spans, each_kernel, turn)
        # Complete the results: articles that overflowed, numbers, and heads.
        if self.network.ops.stored.is_split and predictions.overflowed.any():
            self._classify_by_reference(texts, predictions, top_k)
        predictions = replace(predictions, saturated=sums.saturated, asked=sums.asked).with_numbers(self.model)
        return predictions.by_head(self.model).of_whole_texts(texts, self.model)

    def _is_small(self, texts: Texts) -> bool:
        """Return whether one graph can label these texts. It cannot if a profile watches each launch."""
        watched = self.network.watcher is not None
        here = texts.ids is None and _is_on_host(texts)
        return here and len(texts) <= self.batch and not watched and self.small.fits(texts.offsets)

    def _in_a_graph(self, texts: Texts, top_k: int, predictions: Predictions, spans: list[Span] | None) -> Sums:
        """Label a small batch with one CUDA graph."""
        try:
            with self.device:
                make_current()
                began_at, began = time.time(), time.perf_counter()
                result = self.small.run(texts.data, texts.offsets, top_k)
                seconds = time.perf_counter() - began
        except (cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError) as error:
            raise self._failure(error, Batch(0, len(texts), 0)) from error
        _fill(predictions, slice(None), result, result)
        _note(device_spans(began_at, [("kernels", "compute", 0.0, seconds * 1e3)], self.device_name), spans)
        return result.sums

    def _in_batches(
        self,
        texts: Texts,
        top_k: int,
        predictions: Predictions,
        spans: list[Span] | None,
        each_kernel: bool,
        turn: AbstractContextManager[object],
    ) -> Sums:
        """Label texts in batches that overlap.

        If several models share the texts, the first one keeps their ids on the GPU. Others with the same alphabet and
        length then neither copy nor encode the text.

        Parameters
        ----------
        texts : Texts
            N articles.
        top_k : int
            The number of labels for each article, at most the number of classes.
        predictions : Predictions
            The arrays for the results, except the sums.
        spans : list of Span, or None
            A list to which a span is appended for each copy and for the kernels of each batch.
        each_kernel : bool
            Whether to append a span for each kernel as well.
        turn : context manager
            See `Engine.classify`.

        """
        # Plan the batches, from ids on the GPU if another model has left them there.
        sums = Sums(0, 0)
        shared, key = texts.shared, (f"{self.device_name} {self.model.alphabet.symbols}", self.model.length)
        ids_to_share = self._room_for_ids(len(texts)) if shared is not None and key not in shared else None
        # A model with n-grams cannot use these ids, because its n-grams read the text.
        shared_ids = shared.get(key) if shared is not None and self.model.ngrams is None else None
        running: deque[tuple[Slot, Batch]] = deque()
        batch, wanted = Batch(0, 0, 0), Wanted(top_k, predictions.all_scores is not None)
        planned = list(self.batches(texts) if shared_ids is None else self._batches_of_ids_on_gpu(shared_ids))
        # Start each batch once a slot is free, and collect the results of the oldest one.
        try:
            with self.device:
                make_current()
                with turn:
                    anchor = self._anchor()
                    for batch in planned:
                        if len(running) == memory_plan.SLOTS:
                            sums = sums.plus(self._collect(*running[0], predictions, anchor, spans))
                            running.popleft()
                        slot = self._next_slot()
                        running.append((slot, batch))
                        slot.each_kernel = each_kernel and spans is not None
                        of_batch = None if ids_to_share is None else ids_to_share[batch.first : batch.last]
                        self._start(slot, texts, batch, wanted, of_batch)
                while running:
                    sums = sums.plus(self._collect(*running[0], predictions, anchor, spans))
                    running.popleft()
        except (cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError) as error:
            raise self._failure(error, running[0][1] if running else batch) from error
        finally:
            if running:  # after a failure, no slot may be refilled while its batch is in flight
                with suppress(cp.cuda.runtime.CUDARuntimeError):
                    self.network.settle()
                for slot, _ in running:
                    slot.taken.release()
        if shared is not None and ids_to_share is not None:
            shared[key] = Encoded(ids_to_share, predictions.n_chars, predictions.truncated, predictions.unknown_chars)
        return sums

    def _next_slot(self) -> Slot:
        """Return the next slot of the ring, locked. Wait until another thread has copied its last results."""
        slot = self.network.slots[self._batches_begun % memory_plan.SLOTS]
        slot.taken.acquire()
        self._batches_begun += 1
        return slot

    @property
    def _is_idle(self) -> bool:
        """Whether no batch is in flight."""
        return not any(slot.taken.locked() for slot in self.network.slots)

    def _room_for_ids(self, count: int) -> cp.ndarray | None:
        """Return memory for the ids of N articles, uint8 [N, pitch], or None if it would take half of what is free."""
        size = count * memory_plan.id_pitch(self.model.length)
        with self.device:
            free, _ = self.device.mem_info
            return cp.empty((count, size // max(count, 1)), np.uint8) if size < free // 2 else None

    def _failure(self, error: Exception, batch: Batch) -> BroadsheetError:
        where = f"kernel {self.network.last_kernel()!r}, articles {batch.first} to {batch.last} of the chunk"
        self._failed = f"{error} in {where}"
        return BroadsheetError(f"GPU {self.device.id}: {self._failed}")

    def _classify_by_reference(self, texts: Texts, predictions: Predictions, top_k: int) -> None:
        """Label the articles without scores with the `simt` kernels. Two fp16 parts overflow before fp32 does."""
        rows = predictions.overflowed
        with self._reference_lock:
            if self._reference is None:
                asked = self.model.asking("all")
                self._reference = CudaEngine(asked, "fp32", "simt", _BATCH_OF_REFERENCE, self.device.id)
            again = self._reference.classify(texts.take(rows), top_k, predictions.all_scores is not None)
        predictions.labels[rows], predictions.scores[rows] = again.labels, again.scores
        if predictions.all_scores is not None:
            predictions.all_scores[rows] = again.all_scores

    def batches(self, texts: Texts) -> Iterator[Batch]:
        """Yield runs of articles that fit in a slot. An article longer than a whole slot is encoded on the host."""
        if texts.ids is not None:
            yield from self._batches_of_ids(texts.ids)
            return
        length, offsets, room = self.model.length, texts.offsets, self.network.room
        room_for_text = memory_plan.text_bytes(self.model.layers, room)
        sizes = np.diff(offsets)
        # The number of units before each article. An article never has more characters than bytes.
        units = np.append(0, np.cumsum(self._units[np.minimum(sizes, len(self._units) - 1)]))
        has_long = bool(sizes.max(initial=0) > head_bytes(length))
        count = len(sizes)
        first = 0
        while first < count:
            by_text = int(np.searchsorted(offsets, offsets[first] + room_for_text, side="right")) - 1 - first
            if not by_text:
                bounds = offsets[first : first + 2]
                text = cp.asnumpy(texts.data[bounds[0] : bounds[1]])
                given = Texts(text, bounds - bounds[0]).encoded(self.model.alphabet, length)
                yield Batch(first, first + 1, int(units[first + 1] - units[first]), given=given)
                first += 1
                continue
            by_units = int(np.searchsorted(units, units[first] + room.units, side="right")) - 1 - first
            fits, left = min(self.batch, by_text, by_units), count - first
            size = -(-left // -(-left // fits))  # equal sizes, since a small last batch would leave the GPU half idle
            if first == 0 and fits < left and self._is_idle:
                size = max(1, fits // _FIRST_SHARE)  # the GPU is idle while the first batch is copied
            yield Batch(first, first + size, int(units[first + size] - units[first]), has_long)
            first += size

    def _batches_of_ids(self, ids: NDArray[np.uint8]) -> Iterator[Batch]:
        room, pitch = self.network.room, memory_plan.id_pitch(self.model.length)
        most_articles = min(self.batch, memory_plan.text_bytes(self.model.layers, room) // pitch)
        first = 0
        while first < len(ids):
            given = of_ids(ids[first : first + most_articles], self.model.alphabet)
            units = np.cumsum(self._units[given.n_chars])
            count = int(np.searchsorted(units, room.units, side="right"))
            if count < len(given.ids):
                given = of_ids(given.ids[:count], self.model.alphabet)
            yield Batch(first, first + count, int(units[count - 1]), given=given)
            first += count

    def _batches_of_ids_on_gpu(self, stored: Encoded) -> Iterator[Batch]:
        """Yield runs of articles whose ids are on the GPU."""
        units = self._units[np.minimum(stored.n_chars, self.model.length)]
        first = 0
        while first < len(units):
            ahead = np.cumsum(units[first : first + self.batch])
            fits = int(np.searchsorted(ahead, self.network.room.units, side="right"))
            left = len(units) - first
            size = -(-left // -(-left // fits))
            part = slice(first, first + size)
            given = Encoded(stored.ids[part], stored.n_chars[part], stored.truncated[part], stored.unknown_chars[part])
            yield Batch(first, first + size, int(ahead[size - 1]), given=given)
            first += size

    def _start(self, slot: Slot, texts: Texts, batch: Batch, wanted: Wanted, ids_copy: cp.ndarray | None) -> None:
        """Start a batch, as text or as ids.

        Parameters
        ----------
        slot : Slot
            A free slot, which the batch then uses.
        texts : Texts
            The texts of all batches.
        batch : Batch
            The batch.
        wanted : Wanted
            The results that the caller wants.
        ids_copy : uint8 [N, pitch], or None
            An array on the GPU to which the ids are copied.

        """
        offsets = texts.offsets[batch.first : batch.last + 1]
        if batch.given is None:
            self.network.start_text(slot, texts.data, offsets, batch.units, batch.has_long, wanted, ids_copy)
        elif isinstance(batch.given.ids, cp.ndarray):
            self.network.start_ids_on_gpu(slot, batch.given.ids, batch.units, wanted)
        else:
            text = None
            if texts.ids is None:
                text = cp.asnumpy(texts.data[offsets[0] : offsets[-1]]), offsets - offsets[0]
            self.network.start_ids(slot, batch.given.ids, text, batch.units, wanted, ids_copy)

    def _anchor(self) -> tuple[float, cp.cuda.Event]:
        """Return the time, on the host's clock, of an event that the GPU has recorded, and the event."""
        anchored = self._anchored
        most_seconds = _ANCHOR_SECONDS_OF_IDLE if self._is_idle else _ANCHOR_SECONDS
        if anchored is None or time.time() - anchored[0] > most_seconds:
            tries = [self._recorded() for _ in range(_ANCHOR_TRIES)]
            _, at, event = min(tries, key=lambda attempt: attempt[0])
            anchored = self._anchored = at, event
        return anchored

    def _recorded(self) -> tuple[float, float, cp.cuda.Event]:
        """Record an event. Return the seconds until the host saw it, the time when it did, and the event."""
        event, began = cp.cuda.Event(), time.time()
        event.record(self.network.compute)
        event.synchronize()
        ended = time.time()
        return ended - began, ended, event

    def _collect(
        self,
        slot: Slot,
        batch: Batch,
        predictions: Predictions,
        anchor: tuple[float, cp.cuda.Event],
        spans: list[Span] | None,
    ) -> Sums:
        """Wait for a batch, copy its rows to their places, and append its spans.

        Parameters
        ----------
        slot : Slot
            The slot of the batch.
        batch : Batch
            The batch.
        predictions : Predictions
            The arrays for the results.
        anchor : tuple of float and cupy.cuda.Event
            The result of `_anchor` before the batches.
        spans : list of Span, or None
            The list to which spans are appended.

        """
        result = self.network.finish(slot)
        _fill(predictions, slice(batch.first, batch.last), result, batch.given or result)
        at, event = anchor
        _note(device_spans(at, slot.stages(event), self.device_name), spans)
        slot.taken.release()
        return result.sums

    def close(self) -> None:
        """Release the memory of the GPU."""
        if self._reference is not None:
            self._reference.close()
        with self.device:
            self.small.close()
            self.network.close()
            cp.get_default_memory_pool().free_all_blocks()
            cp.get_default_pinned_memory_pool().free_all_blocks()


def _is_on_host(texts: Texts) -> bool:
    return isinstance(texts.data, np.ndarray)


def _note(finished: list[Span], spans: list[Span] | None) -> None:
    """Record the finished steps of the GPU for the worker's heartbeat and in `spans`."""
    for step in finished:
        if step.name in DEVICE_ACTIVITIES:
            ACTIVITY.add(step.name, step.start, step.end)
    if spans is not None:
        spans += finished


def _fill(predictions: Predictions, rows: slice, result: Result, counts: Result | Encoded) -> None:
    """Copy the results of a batch to their rows. counts: the counts of characters, from the GPU or the host."""
    copy_small(predictions.labels[rows], result.labels)
    copy_small(predictions.scores[rows], result.best)
    if predictions.all_scores is not None:
        assert result.scores is not None
        copy_small(predictions.all_scores[rows], result.scores)
    copy_small(predictions.n_chars[rows], counts.n_chars)
    copy_small(predictions.truncated[rows], counts.truncated)
    copy_small(predictions.unknown_chars[rows], counts.unknown_chars)
