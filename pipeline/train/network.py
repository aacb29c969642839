"""The network in PyTorch: the modules of the layer table, in the channels-last order that tensor cores read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from ..model.layers import NORM_EPSILON, Frame, Layer

_CHANNELS_MULTIPLE = 8  # tensor cores want 16-byte rows

ARTICLES_IN_CACHE = 32
"""How many a CPU computes at a time: 1.4 times as fast as 256."""

_ON_A_GPU = 512


class CharCNN(nn.Module):
    """The network of `layers` (`model.layer_table`) and a frame; its state dict has the model file's names and shapes.

    Convolutions and fc1, fc2 compute in `compute`, everything else in the weights' dtype, float32. Initial weights are
    PyTorch's own, drawn from its global generator. Training computes the same with less work (`packed.py`).
    """

    def __init__(
        self,
        layers: tuple[Layer, ...],
        frame: Frame,
        compute: torch.dtype = torch.float32,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self._layers, self._frame, self._compute = layers, frame, compute
        self._dropout = {"fc1": input_dropout, "fc2": dropout, "fc3": dropout}
        for layer in layers:
            if layer.kind == "conv1d":
                self.add_module(layer.name, nn.Conv1d(layer.inputs, layer.outputs, layer.kernel))
            else:
                self.add_module(layer.name, nn.Linear(layer.inputs, layer.outputs))
            if layer.norm:
                self.add_module(layer.norm, nn.LayerNorm((layer.outputs, layer.rows_out), NORM_EPSILON))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits float32 [N, classes] of encoded articles, uint8 [N, length]."""
        x = self._one_hot(ids)
        for layer in self._layers:
            module = self.get_submodule(layer.name)
            weight, bias = module.weight, module.bias
            assert isinstance(weight, Tensor)
            assert isinstance(bias, Tensor)
            if layer.kind == "conv1d":
                x = self._convolve(x, weight) + bias
                if layer.norm:
                    x = self._normalise(x, layer.norm)
                x = F.relu(x)
                if layer.is_lookup and self._frame == "text":
                    x = torch.where(self._of_text(ids, layer.rows_out), x, 0.0)
                if layer.pool > 1:
                    x = _pool(x, layer.pool)
                continue
            if x.ndim == 3:  # fc1 reads channel-major rows
                x = x.transpose(1, 2).flatten(1)
            x = F.dropout(x, self._dropout[layer.name], self.training)
            compute = self._compute if layer.relu else weight.dtype
            x = F.linear(x.to(compute), weight.to(compute)).to(bias.dtype) + bias
            if layer.relu:
                x = F.relu(x)
        return x

    def _one_hot(self, ids: Tensor) -> Tensor:
        """[N, length, symbols rounded up]: the weights of the columns after the symbols are zero."""
        symbols = self._layers[0].inputs
        columns = torch.arange(symbols + -symbols % _CHANNELS_MULTIPLE, device=ids.device)
        return (ids[:, :, None].int() == columns.int()).to(self._compute)

    def _of_text(self, ids: Tensor, rows: int) -> Tensor:
        """Whether each of block 1's rows comes before the end of its article's text, [N, rows, 1]."""
        position = torch.arange(ids.shape[1], device=ids.device)
        padding = self._layers[0].inputs + 1
        end = ((ids != padding) * (position + 1)).amax(1)
        return (position[:rows] < end[:, None])[:, :, None]

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        """[N, rows, inputs] to [N, rows - kernel + 1, outputs], in the weights' dtype."""
        kept = weight.dtype
        weight = F.pad(weight, (0, 0, 0, x.shape[2] - weight.shape[1])).to(self._compute)
        weight = weight[:, :, None].contiguous(memory_format=torch.channels_last)
        rows = x.to(self._compute).transpose(1, 2)[:, :, None]
        return F.conv2d(rows, weight)[:, :, 0].transpose(1, 2).to(kept)

    def _normalise(self, x: Tensor, name: str) -> Tensor:
        norm = self.get_submodule(name)
        assert isinstance(norm, nn.LayerNorm)
        gamma, beta = norm.weight.t().contiguous(), norm.bias.t().contiguous()
        return F.layer_norm(x.contiguous(), gamma.shape, gamma, beta, norm.eps)

    def load_tensors(self, tensors: Mapping[str, NDArray[np.generic]]) -> None:
        """Load the tensors of a model file, fp32 or fp16."""
        self.load_state_dict({name: torch.from_numpy(np.array(t, np.float32)) for name, t in tensors.items()})


def _pool(x: Tensor, width: int) -> Tensor:
    count = x.shape[1] // width
    windows = x[:, : count * width].reshape(x.shape[0], count, width, x.shape[2])
    return windows.amax(2)


def predict(network: CharCNN, ids: Tensor) -> Tensor:
    """Logits float32 [N, classes] without dropout, exact fp32 where the network computes in it."""
    training = network.training
    batch_size = ARTICLES_IN_CACHE if ids.device.type == "cpu" else _ON_A_GPU
    network.eval()
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        logits = torch.cat([network(batch) for batch in torch.split(ids, batch_size)])
    network.train(training)
    return logits
