"""A model as a PyTorch module, to run, fine-tune or export with PyTorch."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..errors import UsageError
from ..model.charcnn import Model, load_model
from .network import CharCNN


class TorchModule(CharCNN):
    """The network with a model's weights, in fp32; `torch_module` makes one.

    The parameters have the names and shapes of the tensors in the model file. N-grams are buffers, of which ``table``
    has a row of zeros after those of the buckets.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model.layers, model.frame)
        self.load_tensors(model.tensors)
        self._temperature, self._multi_label = model.temperature, model.is_multi_label
        self._has_ngrams = model.ngrams is not None
        if model.ngrams is not None:
            table = torch.from_numpy(model.ngrams.table)
            self.register_buffer("table", F.pad(table, (0, 0, 0, 1)))
            self.register_buffer("scale", torch.from_numpy(model.ngrams.scale))
        self.eval()

    def forward(self, ids: Tensor, ngrams: Tensor | None = None, ngram_times: Tensor | None = None) -> Tensor:
        """Scores float32 [N, classes] of encoded texts: the arrays of `onnx_inputs`, as tensors."""
        logits = self.logits(ids, ngrams, ngram_times)
        return torch.sigmoid(logits) if self._multi_label else torch.softmax(logits / self._temperature, 1)

    def logits(self, ids: Tensor, ngrams: Tensor | None = None, ngram_times: Tensor | None = None) -> Tensor:
        """What `forward` takes the softmax (at the model's temperature) or the sigmoid of: float32 [N, classes]."""
        logits = super().forward(ids)
        if self._has_ngrams:
            if ngrams is None or ngram_times is None:
                raise UsageError("the model has n-grams: give all arrays of broadsheet.onnx_inputs")
            logits = logits + self._branch(ngrams, ngram_times)
        return logits

    def _branch(self, ngrams: Tensor, times: Tensor) -> Tensor:
        """What the n-grams add to the logits, [N, classes], as `model/ngrams.py` has it."""
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
        [N, classes]; its method ``logits`` returns what is before the softmax.

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
    return TorchModule(load_model(model))
