"""The processes of a run, each with its own GPU (or cores), in PyTorch's DistributedDataParallel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_NEVER = 1 << 30
"""DistributedDataParallel measures a step again after this many steps. It cannot do so while a step is captured."""


@dataclass(frozen=True)
class ProcessGroup:
    """The process `rank` of `size`, which is this one. With more than one, torch.distributed is initialised.

    The processes share each batch, and average the gradients.
    """

    rank: int = 0
    size: int = 1

    def share(self, count: int) -> slice:
        """Return the part of `count` rows that this process computes."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return a model whose gradients are averaged over the processes during the backward pass.

        On a GPU, all later work of this thread goes to one stream, including captures of CUDA graphs.
        DistributedDataParallel keeps the autograd nodes that add up the gradients. They belong to the stream on which
        they were made, and a capture fails when it meets a node of another stream.
        """
        if self.size == 1:
            return model
        if next(model.parameters()).is_cuda:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            torch.cuda.set_stream(stream)
            torch.cuda.graph.default_capture_stream = stream
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        wrapped._set_ddp_runtime_logging_sample_rate(_NEVER)  # type: ignore[no-untyped-call]
        return wrapped

    def apart(self, model: nn.Module, more_follows: bool) -> AbstractContextManager[Any]:
        """Return a context for the backward pass of a part of this process's share of a batch.

        more_follows: whether another part follows. If so, the pass only adds up the gradients in this process. The pass
        of the last part then averages the sums over the processes.
        """
        return model.no_sync() if more_follows and isinstance(model, DistributedDataParallel) else nullcontext()

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over the processes."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def maximum(self, values: Tensor) -> Tensor:
        """Return the largest value over all processes, for each value."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def of_first(self, value: Any) -> Any:
        """Return the first process's value in all processes."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def copy_of_first(self, tensors: list[Tensor]) -> None:
        """Copy the first process's tensors to the other processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)
