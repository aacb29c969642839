"""Training steps as CUDA graphs: the GPU computes faster than a host can launch kernels one by one.

A step of each kind runs as it is when it comes for the first time, which chooses the convolutions' algorithms and makes
the optimizer's state. When it comes again it is captured, and replayed from then on. What tells the kinds apart are the
shapes of the step's tensors and its other arguments: above all the number of groups of rows, which is rounded up so
that there are few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_STEPS_PER_OCTAVE = 16

EAGER_CALLS = 11
"""Calls that are not captured: in its first ten, DistributedDataParallel measures how long they take."""


class Replayed:
    """A function whose work is all on the GPU, as CUDA graphs. Of its arguments the first two are tensors.

    eager: so many calls run as they are.
    """

    def __init__(self, function: Callable[..., Tensor | None], eager: int = EAGER_CALLS) -> None:
        self._function = function
        self._eager = eager
        self._kinds: dict[tuple[Any, ...], _Graph | None] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, ids: Tensor, targets: Tensor, *others: Any) -> Tensor | None:
        """What the function returns; the next call overwrites it."""
        kind = (ids.shape, targets.shape, *others)
        if self._eager > 0 or kind not in self._kinds:
            self._eager -= 1
            self._kinds.setdefault(kind, None)
            return self._function(ids, targets, *others)
        graph = self._kinds[kind] or _Graph(self._function, ids, targets, others, self._pool)
        self._kinds[kind] = graph
        return graph.replay(ids, targets)

    def release(self) -> None:
        """Let go of all graphs: before NCCL's communicators end, which those of several GPUs use."""
        self._kinds.clear()


class _Graph:
    """A captured call. Its parameters' gradients and its result lie in memory that the graphs of a pool share.

    Parameters
    ----------
    function : callable
        The function of `Replayed`.
    ids, targets : Tensor
        Its first two arguments, whose values may differ when the graph is replayed.
    others : tuple
        Its other arguments.
    pool : Any
        The memory pool that the graphs share.

    """

    def __init__(
        self, function: Callable[..., Tensor | None], ids: Tensor, targets: Tensor, others: tuple[Any, ...], pool: Any
    ) -> None:
        self._ids, self._targets = ids.clone(), targets.clone()
        self._graph = torch.cuda.CUDAGraph()
        # The watchdog of NCCL, a thread of its own, may ask the GPU something meanwhile.
        with torch.cuda.graph(self._graph, pool, capture_error_mode="thread_local"):
            self._result = function(self._ids, self._targets, *others)

    def replay(self, ids: Tensor, targets: Tensor) -> Tensor | None:
        self._ids.copy_(ids)
        self._targets.copy_(targets)
        self._graph.replay()
        return self._result


def rounded(groups: int) -> int:
    """Up to one of 16 numbers between one power of two and the next."""
    step = max(1, (1 << groups.bit_length()) // (2 * _STEPS_PER_OCTAVE))
    return -(-groups // step) * step
