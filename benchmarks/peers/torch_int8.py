"""Blocks 2 to 6 in 8 bits with PyTorch's own integer product, `torch._int_mm`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.peer import channels_last
from benchmarks.peers.torch_peer import ChannelsLast, TableBlock1
from pipeline.model.charcnn import Model
from pipeline.model.quantised import LARGEST, scales_of

_MOST = 127
"""The greatest signed byte: `_int_mm` takes no unsigned ones, so activations have 7 bits."""


class Int8Conv(nn.Module):
    """A valid convolution over rows, [N, rows, inputs] to [N, rows - kernel + 1, outputs], by one integer product.

    weight: [kernel, inputs, outputs]. step: of its input, counted from 0 to 127.
    """

    def __init__(self, weight: Tensor, bias: Tensor, step: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.kernel, self.dtype, self.steps_in_one = len(weight), dtype, 1 / step
        unit = weight.abs().amax((0, 1)).clamp_min(1e-30) / _MOST
        whole = (weight / unit).round().to(torch.int8).flatten(0, 1)
        self.register_buffer("weight", whole.t().contiguous())
        self.register_buffer("scale", unit * step)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        x = (x.float() * self.steps_in_one).round().clamp(0, _MOST).to(torch.int8)
        rows = x.shape[1] - self.kernel + 1
        taps = torch.stack([x[:, tap : tap + rows] for tap in range(self.kernel)], 2)
        sums = torch._int_mm(taps.flatten(2).flatten(0, 1), self.weight.t())
        return (sums * self.scale + self.bias).to(self.dtype).unflatten(0, (len(x), rows))


class Int8(ChannelsLast):
    """`ChannelsLast` with these convolutions after block 1, at the activation scales of the model's file."""

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        super().__init__(model, TableBlock1, dtype)
        steps = scales_of(model).steps
        for layer, (weight, bias, *_) in zip(model.layers, channels_last(model, np.float32).values(), strict=True):
            if layer.name in steps:
                step = steps[layer.name] * LARGEST / _MOST
                given = torch.from_numpy(weight), torch.from_numpy(bias)
                self.add_module(layer.name, Int8Conv(*given, step, dtype))
