"""A batch in flight, and which kernel of one runs: its memory on host and GPU, its events, its results."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

import cupy as cp
import numpy as np
from cuda.bindings import driver
from numpy.typing import DTypeLike, NDArray

from ..errors import BroadsheetError
from ..model.layers import Layer
from . import memory_plan
from .memory_plan import Capacity
from .ops import DeviceEncoded, Scored


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
    scores : float32 [N, classes]
        The score of every class.
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
    scores: NDArray[np.float32]
    n_chars: NDArray[np.int64]
    truncated: NDArray[np.uint8]
    unknown_chars: NDArray[np.int64]
    sums: Sums


def page_locked(size: int, dtype: DTypeLike) -> NDArray[Any]:
    """An array in page-locked memory of the host. CuPy's own is in `cupyx`, which takes 0.07 s to import."""
    kind = np.dtype(dtype)
    return np.ndarray(size, kind, cp.cuda.alloc_pinned_memory(size * kind.itemsize))


class NotPageLocked(Exception):
    """The host has no room for page-locked memory, or does not allow it."""


class Slot:
    """A batch in flight: its text on the host (page-locked) and on the GPU, its results on both, and its events.

    Events are recorded at the beginning and the end of the copy in, of the kernels and of the copy out.

    Parameters
    ----------
    layers : sequence of Layer
        The layers of the network.
    room : Capacity
        What a batch takes at most.

    Attributes
    ----------
    taken : Lock
        Held from when a batch gets the slot until its results are copied.
    marks : list of (str, Event)
        Of each kernel, with `each_kernel`: its name and an event before it.

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
        counts = (self.device[name][: len(ids)] for name in ("n_chars", "truncated", "unknown_chars"))
        return DeviceEncoded(ids, *counts)

    def scored(self, count: int, classes: int, k: int) -> Scored:
        def table(name: str, columns: int) -> cp.ndarray:
            return self.device[name][: count * columns].reshape(count, columns)

        return Scored(table("logits", classes), table("scores", classes), table("labels", k), table("best", k))

    def stages(self, anchor: cp.cuda.Event) -> list[tuple[str, str, float, float]]:
        """(name, lane, begin, end) of each stage of a finished batch, in milliseconds after `anchor`."""

        def after(event: cp.cuda.Event) -> float:
            return float(cp.cuda.get_elapsed_time(anchor, event))

        copies_and_kernels = [
            ("copy-in", "copy-in", after(self.copy_begun), after(self.copied_in)),
            ("kernels", "compute", after(self.begun), after(self.computed)),
            ("copy-out", "copy-out", after(self.out_begun), after(self.copied_out)),
        ]
        times = [(name, after(event)) for name, event in self.marks]
        ends = [*(time for _, time in times), copies_and_kernels[1][3]]
        return copies_and_kernels + [(name, "compute", begin, ends[i + 1]) for i, (name, begin) in enumerate(times)]

    def copy_in(self, name: str, size: int, stream: cp.cuda.Stream) -> None:
        nbytes = size * self.host[name].itemsize
        self.device[name].data.copy_from_host_async(self.host[name].ctypes.data, nbytes, stream)

    def copy_out(self, name: str, size: int, stream: cp.cuda.Stream) -> None:
        nbytes = size * self.host[name].itemsize
        self.device[name].data.copy_to_host_async(self.host[name].ctypes.data, nbytes, stream)


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
