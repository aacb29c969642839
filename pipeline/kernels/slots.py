"""A batch in flight, and which kernel of one runs: its memory on host and GPU, its events, its results."""

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
    """Counts over the articles of a batch: saturated activations, and articles about which the network was asked (0
    where it is asked about all).
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
        Class indices, the best first.
    best : float32 [N, k]
        Their scores.
    scores : float32 [N, classes], or None
        The score of every class, where they are wanted.
    n_chars : int64 [N]
        Characters of the whole text.
    truncated : uint8 [N]
        1 where the text is longer than the model reads.
    unknown_chars : int64 [N]
        Characters outside the alphabet, in the part that the model reads.
    sums : Sums
        What is counted of the batch as a whole.

    """

    labels: NDArray[np.int32]
    best: NDArray[np.float32]
    scores: NDArray[np.float32] | None
    n_chars: NDArray[np.int64]
    truncated: NDArray[np.uint8]
    unknown_chars: NDArray[np.int64]
    sums: Sums


class Slot:
    """A batch in flight: its texts and its results on the host (page-locked) and on the GPU, and its events.

    Events are recorded at the beginning and the end of the copy in, of the kernels and of the copy out.

    Parameters
    ----------
    layers : sequence of Layer
        The layers of the network.
    room : Capacity
        What a batch takes at most.
    ids : uint8 [articles, pitch]
        Where the ids of a batch go. All slots share them, since one batch is computed after the other.

    Attributes
    ----------
    given, found : Twins
        The memory of the texts, and that of the results.
    taken : Lock
        Held from when a batch gets the slot until its results are copied.
    articles, top_k : int
        How many articles the batch has, and how many labels each gets.
    has_scores : bool
        Whether the scores of all classes are copied to the host.
    marks : list of (str, Event)
        Of each kernel, with `each_kernel`: its name and an event before it.

    """

    def __init__(self, layers: tuple[Layer, ...], room: Capacity, ids: cp.ndarray) -> None:
        sizes = memory_plan.slot_bytes(layers, room)
        self._layers, self._room, self._ids = layers, room, ids
        self._at = places(memory_plan.slot_input(layers, room))[0]
        self.given, self.found = Twins(sizes.texts), Twins(sizes.results, sizes.results_on_host)
        self.copy_begun, self.copied_in, self.begun, self.computed, self.out_begun = (cp.cuda.Event() for _ in range(5))
        self.copied_out = cp.cuda.Event(block=True)  # whoever waits for it leaves its core to others
        self.taken = Lock()
        self.each_kernel = False
        self.marks: list[tuple[str, cp.cuda.Event]] = []
        self.articles, self.top_k, self.has_scores = 0, 1, False

    @property
    def input(self) -> dict[str, NDArray[Any]]:
        """What the batch is given, on the host: as of `input_shapes`."""
        return views(self.given.host, self._at)

    @property
    def text_on_gpu(self) -> cp.ndarray:
        """Where the text of a batch goes, uint8 [bytes]; of a batch that is encoded already, its ids."""
        return views(self.given.device, self._at)["text"]

    def batch(self, top_k: int) -> DeviceBatch:
        """The arrays of the slot on the GPU, with room for the largest batch."""
        return DeviceBatch.of(
            views(self.given.device, self._at), views(self.found.device, self._results(top_k)), self._ids
        )

    def result(self, sums: Callable[[dict[str, NDArray[Any]]], Sums]) -> Result:
        """The results on the host. sums: finds what is counted of the batch in these."""
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
        """(name, lane, begin, end) of each stage of a finished batch, in milliseconds after `anchor`."""

        def after(event: cp.cuda.Event) -> float:
            return milliseconds(anchor, event)

        copies_and_kernels = [
            ("copy-in", "copy-in", after(self.copy_begun), after(self.copied_in)),
            ("kernels", "compute", after(self.begun), after(self.computed)),
            ("copy-out", "copy-out", after(self.out_begun), after(self.copied_out)),
        ]
        times = [(name, after(event)) for name, event in self.marks]
        ends = [*(time for _, time in times), copies_and_kernels[1][3]]
        return copies_and_kernels + [(name, "compute", begin, ends[i + 1]) for i, (name, begin) in enumerate(times)]

    def copy_in(self, text: int, stream: cp.cuda.Stream) -> None:
        """Begin to copy what the batch is given to the GPU, with so many bytes of its text."""
        self.given.copy_in(0, self._at["text"].start + text, stream)

    def copy_out(self, stream: cp.cuda.Stream) -> None:
        """Begin to copy the results to the host."""
        at = self._results(self.top_k)
        self.found.copy_out(0, at["asked"].stop, stream)
        if self.has_scores:
            scores = at[memory_plan.SCORES]
            row = (scores.stop - scores.start) // self._room.articles
            self.found.copy_out(scores.start, scores.start + row * self.articles, stream)

    def _results(self, top_k: int) -> dict[str, ArrayPlace]:
        return places(memory_plan.result_shapes(self._layers, self._room.articles, top_k))[0]


class Trail:
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
