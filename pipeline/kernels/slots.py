"""Slots, which hold a batch in flight (its memory on host and GPU, events and results), and the name of its kernel."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import cupy as cp
import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from ..errors import BroadsheetError
from ..model.layers import Layer
from . import memory_plan
from .batch_arrays import DeviceBatch
from .driver_calls import milliseconds
from .memory_plan import ArrayPlace, Capacity, places
from .twins import Twins, page_locked, views


class Sums(NamedTuple):
    """Counts over the articles of a batch.

    Attributes
    ----------
    saturated : int
        The number of saturated activations.
    asked : int
        The number of articles that the network scored, or 0 if it scores all of them.

    """

    saturated: int
    asked: int

    def plus(self, other: Sums) -> Sums:
        return Sums(self.saturated + other.saturated, self.asked + other.asked)


class Result(NamedTuple):
    """The results of a batch in page-locked memory, valid until its slot is used again.

    Attributes
    ----------
    labels : int32 [N, k]
        The indices of the best classes, the best first.
    best : float32 [N, k]
        The scores of the best classes.
    scores : float32 [N, classes], or None
        The score of every class, if the caller wants them.
    n_chars : int64 [N]
        The number of characters in the whole text.
    truncated : uint8 [N]
        1 if the text is longer than what the model reads.
    unknown_chars : int64 [N]
        The number of characters outside the alphabet, in the part that the model reads.
    sums : Sums
        The counts over the whole batch.

    """

    labels: NDArray[np.int32]
    best: NDArray[np.float32]
    scores: NDArray[np.float32] | None
    n_chars: NDArray[np.int64]
    truncated: NDArray[np.uint8]
    unknown_chars: NDArray[np.int64]
    sums: Sums


class Slot:
    """A batch in flight: its texts and results on the host (page-locked) and on the GPU, and its events.

    A batch goes through the slot in three stages, copy in -> kernels -> copy out. An event is recorded at the beginning
    and at the end of each.

    Parameters
    ----------
    layers : sequence of Layer
        The layers of the network.
    room : Capacity
        The size of the largest batch.
    ids : uint8 [articles, pitch]
        The memory for the ids of a batch. All slots share it, since the GPU computes one batch after the other.

    Attributes
    ----------
    given, found : Twins
        The memory of the texts, and the memory of the results.
    taken : Lock
        A lock that is held from when a batch gets the slot until its results are copied.
    articles, top_k : int
        The number of articles in the batch, and of labels for each article.
    has_scores : bool
        Whether the scores of all classes are copied to the host.
    marks : list of (str, Event)
        The name of each kernel and an event before it, if `each_kernel` is True.

    """

    def __init__(self, layers: tuple[Layer, ...], room: Capacity, ids: cp.ndarray) -> None:
        sizes = memory_plan.slot_bytes(layers, room)
        self._layers, self._room, self._ids = layers, room, ids
        self._at = places(memory_plan.slot_input(layers, room))[0]
        self.given, self.found = Twins(sizes.texts), Twins(sizes.results, sizes.results_on_host)
        self.copy_begun, self.copied_in, self.compute_begun, self.computed = (cp.cuda.Event() for _ in range(4))
        self.out_begun = cp.cuda.Event()
        self.copied_out = cp.cuda.Event(block=True)  # a thread that waits for it sleeps, and does not spin on its core
        self.taken = Lock()
        self.each_kernel = False
        self.marks: list[tuple[str, cp.cuda.Event]] = []
        self.articles, self.top_k, self.has_scores = 0, 1, False

    @property
    def input(self) -> dict[str, NDArray[Any]]:
        """The input of the batch on the host. See `input_shapes`."""
        return views(self.given.host, self._at)

    @property
    def text_on_gpu(self) -> cp.ndarray:
        """The memory on the GPU for the text of a batch, uint8 [bytes], or for the ids of an encoded batch."""
        return views(self.given.device, self._at)["text"]

    def batch(self, top_k: int) -> DeviceBatch:
        """Return the arrays of the slot on the GPU, with room for the largest batch."""
        return DeviceBatch.of(
            views(self.given.device, self._at), views(self.found.device, self._results(top_k)), self._ids
        )

    def result(self, sums: Callable[[dict[str, NDArray[Any]]], Sums]) -> Result:
        """Return the results on the host. sums: a function that computes the counts of the batch from the arrays."""
        copied = {name: at for name, at in self._results(self.top_k).items() if name != memory_plan.ON_GPU_ONLY}
        on_host, count = views(self.found.host, copied), self.articles
        return Result(
            on_host["labels"][:count],
            on_host["best"][:count],
            on_host[memory_plan.SCORES][:count] if self.has_scores else None,
            on_host["n_chars"][:count],
            on_host["truncated"][:count],
            on_host["unknown_chars"][:count],
            sums(on_host),
        )

    def stages(self, anchor: cp.cuda.Event) -> list[tuple[str, str, float, float]]:
        """Return (name, lane, begin, end) for each stage of a finished batch, in milliseconds after `anchor`."""

        def after(event: cp.cuda.Event) -> float:
            return milliseconds(anchor, event)

        copies_and_kernels = [
            ("copy-in", "copy-in", after(self.copy_begun), after(self.copied_in)),
            ("kernels", "compute", after(self.compute_begun), after(self.computed)),
            ("copy-out", "copy-out", after(self.out_begun), after(self.copied_out)),
        ]
        times = [(name, after(event)) for name, event in self.marks]
        ends = [*(time for _, time in times), copies_and_kernels[1][3]]
        return copies_and_kernels + [(name, "compute", begin, ends[i + 1]) for i, (name, begin) in enumerate(times)]

    def copy_in(self, text: int, stream: cp.cuda.Stream) -> None:
        """Start to copy the input of the batch to the GPU. text: the number of bytes of its text."""
        self.given.copy_in(0, self._at["text"].start + text, stream)

    def copy_out(self, stream: cp.cuda.Stream) -> None:
        """Start to copy the results to the host."""
        at = self._results(self.top_k)
        self.found.copy_out(0, at["asked"].stop, stream)  # the last of the results that every caller reads
        if self.has_scores:
            scores = at[memory_plan.SCORES]
            row = (scores.stop - scores.start) // self._room.articles
            self.found.copy_out(scores.start, scores.start + row * self.articles, stream)

    def _results(self, top_k: int) -> dict[str, ArrayPlace]:
        return places(memory_plan.result_shapes(self._layers, self._room.articles, top_k))[0]


class Trail:
    """Remembers which kernel runs: before each kernel the stream writes its number to page-locked memory."""

    def __init__(self) -> None:
        self._names: list[str] = ["none"]
        self._at = page_locked(1, np.uint32)
        self._at[:] = 0

    def mark(self, name: str, stream: int) -> None:
        if name not in self._names:
            self._names.append(name)
        (status,) = driver.cuStreamWriteValue32(stream, self._at.ctypes.data, self._names.index(name), 0)
        if status == driver.CUresult.CUDA_ERROR_NOT_SUPPORTED:
            return  # error messages then name no kernel
        # After a kernel has failed, this call fails too. The next launch raises that error with its batch.
        if status != driver.CUresult.CUDA_SUCCESS and driver.cuStreamQuery(stream)[0] != status:
            raise BroadsheetError(f"cuStreamWriteValue32 before kernel {name}: {status.name}")

    def last(self) -> str:
        return self._names[int(self._at[0])]
