"""A model as a PyTorch module, to run, fine-tune or export with PyTorch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pipeline.model.charcnn import Model, load_model
from pipeline.train.network import CharCNN


class TorchModule(CharCNN):
    """The network with a model's weights, in fp32; `torch_module` makes one.

    Its state dict has the names and shapes of the tensors in the model file.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model.layers, model.frame)
        self.load_tensors(model.tensors)
        self._temperature, self._multi_label = model.temperature, model.is_multi_label
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        """Scores float32 [N, classes] of encoded texts, uint8 [N, length]."""
        logits = self.logits(ids)
        return torch.sigmoid(logits) if self._multi_label else torch.softmax(logits / self._temperature, 1)

    def logits(self, ids: Tensor) -> Tensor:
        """What `forward` takes the softmax (at the model's temperature) or the sigmoid of: float32 [N, classes]."""
        return super().forward(ids)


def torch_module(model: str | Path | Model) -> TorchModule:
    """Make a PyTorch module with the weights of a model. Needs the extra ``train``.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.

    Returns
    -------
    TorchModule
        On the CPU, in evaluation mode. It takes ``ids``, uint8 [N, length], as `onnx_inputs` makes them, and returns
        scores, float32 [N, classes]; its method ``logits`` returns what is before the softmax.

    Raises
    ------
    ModelError
        For a model that cannot be loaded.

    Examples
    --------
    >>> module = pipeline.torch_module("ag-news")
    >>> ids = pipeline.onnx_inputs("ag-news", ["Stocks fell on Monday."])["ids"]
    >>> module(torch.from_numpy(ids)).argmax(1)
    tensor([2])

    """
    return TorchModule(load_model(model))
