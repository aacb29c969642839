"""The network as users of PyTorch would write it: eager with conv1d modules, and channels-last for torch.compile."""

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
"""A function from encoded articles, uint8 [N, length], to logits [N, classes]."""


def network(kind: str, model: Model, device: torch.device) -> Network:
    """Return the network of one of `benchmarks.peers.measure.KINDS`, ready for inference on `device`."""
    # TF32 would round the inputs of eager fp32 to 10 bits. cuDNN's search pays off for shapes that never change.
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
    """Return a peer whose pass computes `forward` in batches, then softmax and argmax.

    Parameters
    ----------
    name : str
        The description.
    forward : callable
        The network: ids to logits.
    ids : tensor, uint8 [N, length]
        Encoded articles.
    batch : int
        The number of articles in a batch.
    classes : int
        The number of classes of the model.

    """
    logits = torch.zeros(len(ids), classes, device=ids.device)

    def run() -> None:
        with torch.no_grad():
            for part, out in zip(ids.split(batch), logits.split(batch), strict=True):
                out.copy_(forward(part))  # the next call of a compiled network overwrites its output
            logits.softmax(1).max(1)
        if ids.is_cuda:
            torch.cuda.synchronize(ids.device)

    def answer() -> NDArray[np.float32]:
        return logits.cpu().numpy()

    return Peer(name, batch, run, answer)


def compiled(module: nn.Module, device: torch.device) -> Network:
    """Return a module compiled with torch.compile for inference on a device."""
    return torch.compile(_ready(module, device), mode="max-autotune", fullgraph=True, dynamic=False)


def _ready(module: nn.Module, device: torch.device) -> nn.Module:
    return module.to(device).eval().requires_grad_(False)


class OneHot(nn.Module):
    """From ids, uint8 [N, length], to one-hot columns [N, symbols, length].

    Unknown characters and padding are no symbols, so their columns are zero.
    """

    def __init__(self, symbols: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("symbols", torch.arange(symbols, dtype=torch.uint8), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return (ids[:, None, :] == self.symbols[:, None]).to(self.dtype)


def eager(model: Model, dtype: torch.dtype) -> nn.Sequential:
    """Return the layers one module after the other, with activations [N, channels, rows], as most users would begin.

    The parameters have the names and shapes that the model file has.
    """
    # Make the modules of each layer.
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
    # Load the weights.
    built = nn.Sequential(modules)
    built.load_state_dict({name: torch.from_numpy(np.array(t, np.float32)) for name, t in model.tensors.items()})
    return built.to(dtype)


class RowsConv(nn.Module):
    """A convolution over rows without padding, from [N, rows, inputs] to [N, rows - kernel + 1, outputs].

    It is a conv2d of height 1, whose channels-last memory format has this order. weight: [kernel, inputs, outputs].
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        by_output = weight.permute(2, 1, 0)[:, :, None]
        self.weight = nn.Parameter(by_output.contiguous(memory_format=torch.channels_last))
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x.transpose(1, 2)[:, :, None], self.weight, self.bias)[:, :, 0].transpose(1, 2)


class DenseBlock1(nn.Module):
    """The convolution of block 1 on one-hot rows, which it builds: from ids, uint8 [N, length], to [N, rows, outputs].

    table: the first weight of `channels_last`. A one-hot row has as many columns as a tap of the table has rows.
    """

    def __init__(self, table: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.conv = RowsConv(table, bias)
        self.register_buffer("columns", torch.arange(table.shape[1], dtype=torch.uint8))

    def forward(self, ids: Tensor) -> Tensor:
        return self.conv((ids[:, :, None] == self.columns).to(self.dtype))


class TableBlock1(nn.Module):
    """The convolution of block 1 as the bias plus one row of the table for each tap.

    From ids, uint8 [N, length], to [N, rows, outputs].
    """

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
    """The network on rows, [N, rows, channels], written so that a compiler can fuse everything between two products.

    The logits are float32.
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
    """Return the maximum of each `width` rows, from [N, rows, channels] to [N, rows // width, channels].

    It leaves out remaining rows. The compiler fuses amax with what comes before it; for max_pool2d it would store the
    input.
    """
    rows = x.shape[1] // width
    return x[:, : rows * width].unflatten(1, (rows, width)).amax(2)
