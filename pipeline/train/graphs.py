"""Training steps as CUDA graphs: the GPU computes faster than a host can launch kernels one by one.

A step of each kind runs without a graph the first time, which chooses the convolutions' algorithms and creates the
optimizer's state. The second time it is captured, and from then on it is replayed. The shapes of a step's tensors and
its other arguments determine its kind: above all the number of units of rows, which is rounded up so that there are
few kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_STEPS_PER_OCTAVE = 16

EAGER_CALLS = 11
"""The calls that are not captured: DistributedDataParallel measures the time of its first ten."""


class Replayed:
    """A function whose work is all on the GPU, as CUDA graphs. Its first two arguments are tensors.

    eager: the number of calls that run without a graph.
    """

    def __init__(self, function: Callable[..., Tensor | None], eager: int = EAGER_CALLS) -> None:
        self._function = function
        self._eager = eager
        self._kinds: dict[tuple[Any, ...], _Graph | None] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, ids: Tensor, targets: Tensor, *others: Any) -> Tensor | None:
        """Return the function's result, which the next call overwrites."""
        kind = (ids.shape, targets.shape, *others)
        if self._eager > 0 or kind not in self._kinds:
            self._eager -= 1
            self._kinds.setdefault(kind, None)
            return self._function(ids, targets, *others)
        graph = self._kinds[kind] or _Graph(self._function, ids, targets, others, self._pool)
        self._kinds[kind] = graph
        return graph.replay(ids, targets)

    def release(self) -> None:
        """Release all graphs. With several GPUs the graphs use NCCL's communicators, so call this before those end."""
        self._kinds.clear()


class _Graph:
    """A captured call. The gradients of its parameters and its result lie in memory that the graphs of a pool share.

    Parameters
    ----------
    function : callable
        The function of `Replayed`.
    ids, targets : Tensor
        The first two arguments, whose values may differ when the graph is replayed.
    others : tuple
        The other arguments.
    pool : Any
        The memory pool that the graphs share.

    """

    def __init__(
        self, function: Callable[..., Tensor | None], ids: Tensor, targets: Tensor, others: tuple[Any, ...], pool: Any
    ) -> None:
        self._ids, self._targets = ids.clone(), targets.clone()
        self._graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog, which has its own thread, may query the GPU meanwhile.
        with torch.cuda.graph(self._graph, pool, capture_error_mode="thread_local"):
            self._result = function(self._ids, self._targets, *others)

    def replay(self, ids: Tensor, targets: Tensor) -> Tensor | None:
        self._ids.copy_(ids)
        self._targets.copy_(targets)
        self._graph.replay()
        return self._result


def rounded(units: int) -> int:
    """Round up to one of 16 numbers between one power of two and the next."""
    step = max(1, (1 << units.bit_length()) // (2 * _STEPS_PER_OCTAVE))
    return -(-units // step) * step
