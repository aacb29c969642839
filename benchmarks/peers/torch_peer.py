"""The network as PyTorch users write it: eager with conv1d modules, and channels-last for torch.compile."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.peers.peer import Peer, channels_last
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import NORM_EPSILON

Network = Callable[[Tensor], Tensor]
"""Encoded articles, uint8 [N, length], to logits [N, classes]."""


def network(kind: str, model: Model, device: torch.device) -> Network:
    """The network of one of `benchmarks.peers.measure.KINDS`, ready for inference on `device`."""
    # TF32 would round eager fp32's inputs to 10 bits; cuDNN's search suits shapes that never change.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    if kind == "eager-fp32":
        return _ready(eager(model, torch.float32), device)
    if kind == "eager-fp16":
        return _ready(eager(model, torch.float16), device)
    block1 = {"compiled-dense": DenseBlock1, "compiled-table": TableBlock1}[kind]
    return compiled(ChannelsLast(model, block1, torch.float16), device)


def peer(name: str, forward: Network, ids: Tensor, batch: int, classes: int) -> Peer:
    """A peer whose pass is `forward` in batches, then softmax and argmax.

    Parameters
    ----------
    name : str
        What it is, in words.
    forward : callable
        The network: ids to logits.
    ids : tensor, uint8 [N, length]
        Encoded articles.
    batch : int
        Articles in a batch.
    classes : int
        How many classes the model has.

    """
    logits = torch.zeros(len(ids), classes, device=ids.device)

    def run() -> None:
        with torch.no_grad():
            for part, out in zip(ids.split(batch), logits.split(batch), strict=True):
                out.copy_(forward(part))  # a compiled network answers in memory that its next call overwrites
            logits.softmax(1).max(1)
        if ids.is_cuda:
            torch.cuda.synchronize(ids.device)

    def answer() -> NDArray[np.float32]:
        return logits.cpu().numpy()

    return Peer(name, batch, run, answer)


def compiled(module: nn.Module, device: torch.device) -> Network:
    return torch.compile(_ready(module, device), mode="max-autotune", fullgraph=True, dynamic=False)


def _ready(module: nn.Module, device: torch.device) -> nn.Module:
    return module.to(device).eval().requires_grad_(False)


class OneHot(nn.Module):
    """Ids, uint8 [N, length], to [N, symbols, length]: unknown and padding are no symbol, so their columns are zero."""

    def __init__(self, symbols: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("symbols", torch.arange(symbols, dtype=torch.uint8), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return (ids[:, None, :] == self.symbols[:, None]).to(self.dtype)


def eager(model: Model, dtype: torch.dtype) -> nn.Sequential:
    """The layer table module by module, activations [N, channels, rows]: the first thing one would write.

    Its parameters have the model file's names and shapes.
    """
    modules: OrderedDict[str, nn.Module] = OrderedDict(one_hot=OneHot(len(model.alphabet), dtype))
    for layer in model.layers:
        if layer.kind == "conv1d":
            modules[layer.name] = nn.Conv1d(layer.inputs, layer.outputs, layer.kernel)
        else:
            if layer.name == "fc1":
                modules["flatten"] = nn.Flatten()
            modules[layer.name] = nn.Linear(layer.inputs, layer.outputs)
        if layer.norm:
            modules[layer.norm] = nn.LayerNorm((layer.outputs, layer.rows_out), NORM_EPSILON)
        if layer.relu:
            modules[f"{layer.name}_relu"] = nn.ReLU()
        if layer.pool > 1:
            modules[f"{layer.name}_pool"] = nn.MaxPool1d(layer.pool)
    built = nn.Sequential(modules)
    built.load_state_dict({name: torch.from_numpy(np.array(t, np.float32)) for name, t in model.tensors.items()})
    return built.to(dtype)


class RowsConv(nn.Module):
    """A valid convolution over rows, [N, rows, inputs] to [N, rows - kernel + 1, outputs].

    It is a conv2d of height 1, whose channels-last memory format is just that order. weight: [kernel, inputs, outputs].
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        by_output = weight.permute(2, 1, 0)[:, :, None]
        self.weight = nn.Parameter(by_output.contiguous(memory_format=torch.channels_last))
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x.transpose(1, 2)[:, :, None], self.weight, self.bias)[:, :, 0].transpose(1, 2)


class DenseBlock1(nn.Module):
    """Block 1's convolution from one-hot rows built on the GPU: ids, uint8 [N, length], to [N, rows, outputs].

    table: of `channels_last`; a one-hot row has a column for each of its rows.
    """

    def __init__(self, table: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.conv = RowsConv(table, bias)
        self.register_buffer("columns", torch.arange(table.shape[1], dtype=torch.uint8))

    def forward(self, ids: Tensor) -> Tensor:
        return self.conv((ids[:, :, None] == self.columns).to(self.dtype))


class TableBlock1(nn.Module):
    """The same convolution as the bias plus one gathered row a tap: ids, uint8 [N, length], to [N, rows, outputs]."""

    def __init__(self, table: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = nn.Parameter(table)
        self.bias = nn.Parameter(bias)

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids.int()
        total, rows = self.bias, ids.shape[1] - len(self.table) + 1
        for tap in range(len(self.table)):
            total = total + F.embedding(ids[:, tap : tap + rows], self.table[tap])
        return total


class ChannelsLast(nn.Module):
    """The network over rows, [N, rows, channels], written so that a compiler can fuse all between two products.

    Logits leave as float32.
    """

    def __init__(self, model: Model, block1: type[DenseBlock1 | TableBlock1], dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = model.layers
        for layer, tensors in zip(model.layers, channels_last(model, np.float32).values(), strict=True):
            weight, bias, *norm = map(torch.from_numpy, tensors)
            if layer.is_lookup:
                module = block1(weight, bias, dtype)
            elif layer.kind == "conv1d":
                module = RowsConv(weight, bias)
            else:
                module = nn.Linear(layer.inputs, layer.outputs)
                module.load_state_dict({"weight": weight.t(), "bias": bias})
            self.add_module(layer.name, module)
            if norm:
                module = nn.LayerNorm((layer.rows_out, layer.outputs), NORM_EPSILON)
                module.load_state_dict(dict(zip(("weight", "bias"), norm, strict=True)))
                self.add_module(layer.norm, module)
        self.to(dtype)

    def forward(self, ids: Tensor) -> Tensor:
        x = ids
        for layer in self.layers:
            if layer.name == "fc1":
                x = x.flatten(1)
            x = self.get_submodule(layer.name)(x)
            if layer.norm:
                x = self.get_submodule(layer.norm)(x)
            if layer.relu:
                x = F.relu(x)
            if layer.pool > 1:
                x = pool(x, layer.pool)
        return x.float()


def pool(x: Tensor, width: int) -> Tensor:
    """The greatest of each `width` rows, [N, rows, channels] to [N, rows // width, channels]; a rest is left out.

    Written with amax, which the compiler unrolls into what comes before it; max_pool2d would have its input stored.
    """
    rows = x.shape[1] // width
    return x[:, : rows * width].unflatten(1, (rows, width)).amax(2)
