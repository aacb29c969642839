"""Batches of a few articles as CUDA graphs: to launch their kernels one by one takes longer than to run them.

A graph repeats copies and kernels with the arguments that they were captured with, so there is one for each number of
articles and of labels, made when it is first needed. What differs from batch to batch lies at fixed places: the text
and its offsets on the host, and on the GPU the number of units, which products read there anyway. Kernels and bits are
those of a batch that is launched one by one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from ..model.alphabet import head_bytes
from .memory_plan import ArrayPlace, most_units, places, result_shapes, small_batch, small_bytes, small_input
from .network import Network
from .ops import DeviceEncoded, Scored
from .slots import NotPageLocked, Result, page_locked

_KEPT = 64
"""Graphs, of those used last."""


class _Twins:
    """Bytes on the GPU and as many page-locked ones on the host, in which arrays lie at the same places."""

    def __init__(self, size: int) -> None:
        self.device = cp.empty(size, np.uint8)
        try:
            self.host = page_locked(size, np.uint8)
        except cp.cuda.runtime.CUDARuntimeError as error:
            raise NotPageLocked(error) from error

    # The runtime's own call: CuPy's copies of a memory pointer refuse to be captured.

    def copy_in(self, size: int, stream: cp.cuda.Stream) -> None:
        to_gpu = cp.cuda.runtime.memcpyHostToDevice
        cp.cuda.runtime.memcpyAsync(self.device.data.ptr, self.host.ctypes.data, size, to_gpu, stream.ptr)

    def copy_out(self, size: int, stream: cp.cuda.Stream) -> None:
        to_host = cp.cuda.runtime.memcpyDeviceToHost
        cp.cuda.runtime.memcpyAsync(self.host.ctypes.data, self.device.data.ptr, size, to_host, stream.ptr)


class _Captured(NamedTuple):
    """A graph, and the arrays on the host where it finds a batch and leaves its results.

    Attributes
    ----------
    graph : cupy.cuda.Graph
        The graph.
    given : dict of str to ndarray
        Text and offsets, as in `small_input`.
    results : dict of str to ndarray
        The results, as in `result_shapes`.

    """

    graph: Any
    given: dict[str, NDArray[Any]]
    results: dict[str, NDArray[Any]]


class SmallBatches:
    """Graphs over the buffers of a network. most: articles of a batch."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._longest = head_bytes(network.layers[0].rows_in)
        self.most = small_batch(network.layers, network.room)
        self._given, self._found = (_Twins(size) for size in small_bytes(network.layers, self.most))
        self._captured = lru_cache(maxsize=_KEPT)(self._capture)

    def take(self, offsets: NDArray[np.int64]) -> bool:
        """Whether these articles are few enough, and none so long that its characters are counted by many warps."""
        return 0 < len(offsets) - 1 <= self.most and int(np.diff(offsets).max()) <= self._longest

    def run(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], top_k: int) -> Result:
        """Label data[offsets[0]:offsets[-1]], UTF-8, and wait for it. The result is valid until the next call."""
        count = len(offsets) - 1
        graph, given, results = self._captured(count, top_k)
        given["text"][: offsets[-1] - offsets[0]] = data[offsets[0] : offsets[-1]]
        given["offsets"][:] = offsets
        self._network.run(graph)
        arrays = {name: results[name] for name in Result._fields if name != "sums"}
        return Result(**arrays, sums=self._network.sums(results))

    def close(self) -> None:
        """Release the graphs, and the memory that they copy from and to."""
        self._captured.cache_clear()
        del self._captured, self._given, self._found

    def _capture(self, count: int, top_k: int) -> _Captured:
        network, layers = self._network, self._network.layers
        given, given_bytes = places(small_input(layers, count))
        results, result_bytes = places(result_shapes(layers, count, top_k))
        text, out = _views(self._given.device, given), _views(self._found.device, results)
        encoded = DeviceEncoded(network.ids(count), out["n_chars"], out["truncated"], out["unknown_chars"])
        scored = Scored(out["logits"], out["scores"], out["labels"], out["best"])

        def work() -> None:
            self._given.copy_in(given_bytes, network.compute)
            network.encode(text["text"], text["offsets"], encoded)
            network.score_ngrams(text["text"], text["offsets"], scored)
            network.forward(encoded.ids, count * most_units(layers), scored, out["saturated"], out["asked"])
            self._found.copy_out(result_bytes, network.compute)

        return _Captured(network.captured(work), _views(self._given.host, given), _views(self._found.host, results))


def _views(of: Any, arrays: dict[str, ArrayPlace]) -> dict[str, Any]:
    """Arrays within bytes of the GPU or the host."""
    return {name: of[at.start : at.stop].view(at.dtype).reshape(at.shape) for name, at in arrays.items()}
