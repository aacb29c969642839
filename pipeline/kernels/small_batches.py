"""Small batches as CUDA graphs. With few articles, launching kernels one by one takes longer than running them.

A graph repeats copies and kernels with the arguments that they were captured with. So there is a graph for each number
of articles and of labels, captured when it is first needed. Values that differ between batches are at fixed addresses:
the text and its offsets on the host, and the number of units on the GPU. The kernels are the same as for a batch that
is launched kernel by kernel, and so are the bits of the scores.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.alphabet import head_bytes
from .batch_arrays import DeviceBatch
from .memory_plan import ON_GPU_ONLY, most_units, places, result_shapes, small_batch, small_bytes, small_input
from .network import Network
from .slots import Result
from .twins import Twins, views

_GRAPHS = 64
"""The number of graphs that stay in memory; the least recently used one is dropped."""


class _Captured(NamedTuple):
    """A graph, and the host arrays from which it reads a batch and to which it writes the results.

    Attributes
    ----------
    graph : cupy.cuda.Graph
        The graph.
    given : dict of str to ndarray
        The text and the offsets, as in `small_input`.
    results : dict of str to ndarray
        The results, as in `result_shapes`.

    """

    graph: Any
    given: dict[str, NDArray[Any]]
    results: dict[str, NDArray[Any]]


class SmallBatches:
    """CUDA graphs over the buffers of a network.

    Parameters
    ----------
    network : Network
        The network.

    Attributes
    ----------
    most_texts : int
        The most articles in a small batch.

    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._longest = head_bytes(network.layers[0].rows_in)
        self.most_texts = small_batch(network.layers, network.room)
        self._given, self._found = (Twins(size) for size in small_bytes(network.layers, self.most_texts))
        self._captured = lru_cache(maxsize=_GRAPHS)(self._capture)

    def fits(self, offsets: NDArray[np.int64]) -> bool:
        """Return whether a graph can label these articles.

        They must be few, and none may be so long that many warps count its characters.
        """
        return 0 < len(offsets) - 1 <= self.most_texts and int(np.diff(offsets).max()) <= self._longest

    def run(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], top_k: int) -> Result:
        """Label the texts in data[offsets[0]:offsets[-1]], UTF-8, and wait for the result.

        The result is valid until the next call.
        """
        count = len(offsets) - 1
        graph, given, results = self._captured(count, top_k)
        given["text"][: offsets[-1] - offsets[0]] = data[offsets[0] : offsets[-1]]
        given["offsets"][:] = offsets
        given["count"][:] = count
        self._network.run(graph)
        arrays = {name: results[name] for name in Result._fields if name != "sums"}
        return Result(**arrays, sums=self._network.sums(results))

    def close(self) -> None:
        """Release the graphs and the memory that they copy from and to."""
        self._captured.cache_clear()
        del self._captured, self._given, self._found

    def _capture(self, count: int, top_k: int) -> _Captured:
        network, layers = self._network, self._network.layers
        given, given_bytes = places(small_input(layers, count))
        results, _ = places(result_shapes(layers, count, top_k))
        ids, units = network.ids(count), count * most_units(layers)
        batch = DeviceBatch.of(views(self._given.device, given), views(self._found.device, results), ids)

        def work() -> None:
            self._given.copy_in(0, given_bytes, network.compute)
            network.label_texts(batch, units, has_long=False)
            self._found.copy_out(0, results[ON_GPU_ONLY].start, network.compute)

        return _Captured(network.captured(work), views(self._given.host, given), views(self._found.host, results))
