"""The network in PyTorch, in the channels-last order that tensor cores read.

`CharCNN` has the modules of the layer table. `TorchModule` is such a network with the weights of a model, which you can
run, fine-tune or export with PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import UsageError
from ..model.charcnn import Model
from ..model.layers import NORM_EPSILON, Frame, Layer
from ..model.ngrams import of_network
from ..model.several import load_one

_CHANNELS_MULTIPLE = 8  # tensor cores need rows of a multiple of 16 bytes

ARTICLES_IN_CACHE = 32
"""The number of articles that a CPU computes at once. 32 at once are 1.4 times as fast as 256."""

_ON_A_GPU = 512  # articles that a GPU computes at once


class CharCNN(nn.Module):
    """The network of a layer table. Its state dict has the names and shapes of the model file.

    The initial weights are PyTorch's defaults, drawn from its global generator. For training, `packed.py` computes the
    same network with less work.

    Parameters
    ----------
    layers : tuple of Layer
        The layers, as `model.layers.layer_table` returns them.
    frame : Frame
        Whether positions after the end of a text count ("dense") or not ("text").
    compute : torch.dtype
        The type in which convolutions, fc1 and fc2 compute. Everything else computes in the weights' type, float32.
    dropout : float
        The share of the inputs of fc2 and fc3 that training sets to zero.
    input_dropout : float
        The share of the inputs of fc1 that training sets to zero.

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
        """Compute the logits, float32 [N, classes], of encoded articles, uint8 [N, length]."""
        x = self._one_hot(ids)
        for layer in self._layers:
            if layer.kind == "conv1d":
                x = self._convolve(x, self.get_parameter(f"{layer.name}.weight"))
                x = x + self.get_parameter(f"{layer.name}.bias")
                if layer.norm:
                    x = self._normalise(x, layer.norm)
                x = F.relu(x)
                if layer.is_lookup and self._frame == "text":
                    x = torch.where(self._of_text(ids, layer), x, 0.0)
                if layer.pool > 1:
                    x = pooled(x, layer.pool)
        return self.head(x.transpose(1, 2).flatten(1))

    def head(self, x: Tensor) -> Tensor:
        """Compute the logits [N, classes] from the input of fc1, [N, channels * rows] in channel-major order."""
        for layer in self._layers:
            if layer.kind == "conv1d":
                continue
            weight, bias = self.get_parameter(f"{layer.name}.weight"), self.get_parameter(f"{layer.name}.bias")
            x = F.dropout(x, self._dropout[layer.name], self.training)
            compute = self._compute if layer.relu else weight.dtype
            x = F.linear(x.to(compute), weight.to(compute)).to(weight.dtype) + bias
            if layer.relu:
                x = F.relu(x)
        return x

    def _one_hot(self, ids: Tensor) -> Tensor:
        """Return one-hot codes, [N, length, symbols rounded up]. The columns after the symbols get weights of zero."""
        symbols = self._layers[0].inputs
        columns = torch.arange(symbols + -symbols % _CHANNELS_MULTIPLE, device=ids.device)
        return (ids[:, :, None].int() == columns.int()).to(self._compute)

    def _of_text(self, ids: Tensor, first: Layer) -> Tensor:
        """Return whether each of block 1's rows comes before the end of its article's text, bool [N, rows, 1]."""
        row = torch.arange(first.rows_out, device=ids.device)
        return (row < reached_rows(ids, first, "text")[:, None])[:, :, None]

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        """Convolve [N, rows, inputs] to [N, rows - kernel + 1, outputs], in the weights' dtype."""
        dtype = weight.dtype
        weight = F.pad(weight, (0, 0, 0, x.shape[2] - weight.shape[1])).to(self._compute)
        weight = weight[:, :, None].contiguous(memory_format=torch.channels_last)
        rows = x.to(self._compute).transpose(1, 2)[:, :, None]
        return F.conv2d(rows, weight)[:, :, 0].transpose(1, 2).to(dtype)

    def _normalise(self, x: Tensor, name: str) -> Tensor:
        norm = self.get_submodule(name)
        assert isinstance(norm, nn.LayerNorm)
        gamma, beta = norm.weight.t().contiguous(), norm.bias.t().contiguous()
        return F.layer_norm(x.contiguous(), gamma.shape, gamma, beta, norm.eps)

    def load_tensors(self, tensors: Mapping[str, NDArray[np.generic]]) -> None:
        """Load the tensors of a model file, fp32 or fp16."""
        self.load_state_dict({name: torch.from_numpy(np.array(t, np.float32)) for name, t in tensors.items()})


def reached_rows(ids: Tensor, first: Layer, frame: Frame) -> Tensor:
    """Count block 1's rows before the end of each text, int64 [N]. ids: uint8 [N, length]."""
    if frame == "dense":
        return torch.full((len(ids),), first.rows_out, device=ids.device)
    position = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    padding = first.inputs + 1
    return ((ids != padding) * position).amax(1).clamp(max=first.rows_out)


def pooled(x: Tensor, width: int) -> Tensor:
    """Return the maximum of each window of `width` rows, [N, rows // width, channels], of x: [N, rows, channels]."""
    count = x.shape[1] // width
    windows = x[:, : count * width].reshape(x.shape[0], count, width, x.shape[2])
    return windows.amax(2)


def predict(network: CharCNN, ids: Tensor) -> Tensor:
    """Compute the logits, float32 [N, classes], without dropout, and without TF32 if the network computes in fp32."""
    training = network.training
    batch_size = ARTICLES_IN_CACHE if ids.device.type == "cpu" else _ON_A_GPU
    network.eval()
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        logits = torch.cat([network(batch) for batch in torch.split(ids, batch_size)])
    network.train(training)
    return logits


class TorchModule(CharCNN):
    """The network with a model's weights, in fp32. `torch_module` makes one.

    The parameters have the names and shapes of the tensors in the model file. If the model has n-grams, their ``table``
    and ``scale`` are buffers. The last row of ``table``, after the rows of the buckets, is zero.
    """

    def __init__(self, model: Model) -> None:
        branch = of_network(model.ngrams, model.name, "there is no module of PyTorch's for it")
        super().__init__(model.layers, model.frame)
        self.load_tensors(model.tensors)
        self._temperature, self._multi_label = model.temperature, model.is_multi_label
        self._has_ngrams = branch is not None
        if branch is not None:
            table = torch.from_numpy(branch.table)
            self.register_buffer("table", F.pad(table, (0, 0, 0, 1)))
            self.register_buffer("scale", torch.from_numpy(branch.scale))
        self.eval()

    def forward(self, ids: Tensor, ngrams: Tensor | None = None, ngram_times: Tensor | None = None) -> Tensor:
        """Compute the scores, float32 [N, classes], of encoded texts. Parameters: the arrays of `onnx_inputs`."""
        logits = self.logits(ids, ngrams, ngram_times)
        return torch.sigmoid(logits) if self._multi_label else torch.softmax(logits / self._temperature, 1)

    def logits(self, ids: Tensor, ngrams: Tensor | None = None, ngram_times: Tensor | None = None) -> Tensor:
        """Compute the logits, float32 [N, classes], before the temperature and the softmax, or before the sigmoid."""
        logits = super().forward(ids)
        if self._has_ngrams:
            if ngrams is None or ngram_times is None:
                raise UsageError("the model has n-grams: give all arrays of broadsheet.onnx_inputs")
            logits = logits + self._branch(ngrams, ngram_times)
        return logits

    def _branch(self, ngrams: Tensor, times: Tensor) -> Tensor:
        """Compute what the n-grams add to the logits, [N, classes], as `model/ngrams.py` defines it."""
        rows = self.get_buffer("table")[ngrams.long()].float() * times[..., None]
        squares = (rows[..., -1] * times).sum(2)[..., None]
        kinds = rows[..., :-1].sum(2) * self.get_buffer("scale") / squares.clamp(min=1).sqrt()
        return torch.where(squares > 0, kinds, 0.0).sum(1)


def torch_module(model: str | Path | Model) -> TorchModule:
    """Make a PyTorch module with the weights of a model. Needs the extra ``train``.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.

    Returns
    -------
    TorchModule
        On the CPU, in evaluation mode. It takes the arrays of `onnx_inputs` as tensors, and returns scores, float32
        [N, classes]. Its method ``logits`` returns the logits, before the softmax or sigmoid.

    Raises
    ------
    ModelError
        For a model that cannot be loaded.

    Examples
    --------
    >>> module = broadsheet.torch_module("ag-news")
    >>> inputs = broadsheet.onnx_inputs("ag-news", ["Stocks fell on Monday."])
    >>> module(*map(torch.from_numpy, inputs.values())).argmax(1)
    tensor([2])

    """
    return TorchModule(load_one(model))
