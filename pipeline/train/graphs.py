"""The network's forward and backward passes as CUDA graphs: the GPU is faster than kernels can be launched.

Body and head are captured apart, so that with several GPUs the sum of the head's gradients, five sixths of all, is
under way while the body's backward pass is computed. There is a pair of graphs for each number of groups of rows, which
is rounded up so that there are few.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.train.packed import PackedCNN

_STEPS_PER_OCTAVE = 16
_WATCHDOG_SECONDS = 0.3


class Captured(nn.Module):
    """A network on a GPU, whose training steps replay CUDA graphs. Its parameters are the network's."""

    def __init__(self, network: PackedCNN) -> None:
        super().__init__()
        self.network = network
        self._graphs: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def forward(self, ids: Tensor, groups: int) -> Tensor:
        """Logits [N, classes] of uint8 [N, length], in training mode."""
        groups = rounded(groups)
        key = len(ids), groups
        if key not in self._graphs:
            self._graphs[key] = self._captured(ids, groups)
        body, head = self._graphs[key]
        logits: Tensor = head(body(ids))
        return logits

    def _captured(self, ids: Tensor, groups: int) -> tuple[Any, Any]:
        network = self.network
        body = _Part(network.body_modules, lambda batch: network.body(batch, groups))
        head = _Part(network.head_modules, network.head)
        with torch.no_grad():
            features = network.body(ids, groups)
        torch.cuda.synchronize()
        if dist.is_initialized():  # NCCL's watchdog asks how collectives go until it knows, which would end a capture
            time.sleep(_WATCHDOG_SECONDS)
        samples = ((ids.clone(),), (torch.zeros_like(features, requires_grad=True),))
        captured: Any = torch.cuda.make_graphed_callables((body, head), samples, pool=self._pool)
        return captured[0], captured[1]


class _Part(nn.Module):
    """A part of the network that has its own parameters only."""

    def __init__(self, modules: list[nn.Module], run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x)


def rounded(groups: int) -> int:
    """Up to one of 16 numbers between one power of two and the next."""
    step = max(1, (1 << (groups.bit_length() - 1)) // _STEPS_PER_OCTAVE)
    return -(-groups // step) * step
