"""The weights of an encoder's folder: read from its files, and in the shapes in which our code multiplies with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from ..errors import ModelError
from .encoder_keys import NotInKernels
from .fasttext import MOST_BYTES
from .model_file import SHARDS, read_file

Tensor = NDArray[Any]

_STORED_AS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}
"""The dtypes that are read, by their names in safetensors files, and how NumPy reads them."""


class Tensors:
    """The tensors of a file, by their names without a prefix.

    A tensor is converted when it is looked up, so unused tensors may have any dtype. Tensors in fp64, and in bf16,
    which NumPy lacks, become fp32. Old names of norms are replaced by the new ones.
    """

    def __init__(self, path: Path, name: str, prefix: str = "") -> None:
        if (path.parent / SHARDS).is_file() and not path.is_file():
            joins = "save_pretrained(DIR, max_shard_size='100GB')"
            what = f"its weights are in several files ({SHARDS}), which {joins} joins"
            raise NotInKernels(name, what, "a single one is")
        if not path.is_file():
            raise ModelError(f"{name} has no {path.name}: save it with safetensors (save_pretrained does), in one file")
        try:
            stored = safetensors.deserialize(read_file(path, MOST_BYTES))  # type: ignore[no-untyped-call]
        except safetensors.SafetensorError as error:
            raise ModelError(
                f"{name}: {path.name} is damaged ({str(error)[:200]}): download or save it again"
            ) from error
        self._name = f"{name}: {path.name}"
        self._stored = {
            key.removeprefix(prefix).replace(".gamma", ".weight").replace(".beta", ".bias"): about
            for key, about in stored
        }

    def __contains__(self, key: str) -> bool:
        return key in self._stored

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._stored:
            raise ModelError(f"{self._name} lacks the tensor {key!r}: download or save the folder again")
        about = self._stored[key]
        kind, data = about["dtype"], about["data"]
        if kind not in _STORED_AS:
            raise ModelError(f"{self._name} has the tensor {key!r} in {kind}; known are {', '.join(_STORED_AS)}")
        tensor = np.frombuffer(data, _STORED_AS[kind])
        if kind == "BF16":
            tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
        elif kind == "F64":
            tensor = tensor.astype(np.float32)
        return tensor.reshape(about["shape"])


def transposed(weight: Tensor) -> Tensor:
    """Return a matrix as [inputs, outputs], which PyTorch stores as [outputs, inputs]."""
    return np.ascontiguousarray(weight.T)


def add_layer(weights: dict[str, Tensor], name: str, weight: Tensor, bias: Tensor) -> None:
    """Add the weight and the bias of a norm or of a product, which PyTorch stores as [outputs, inputs].

    Parameters
    ----------
    weights : dict of str to ndarray
        The weights so far, by our names.
    name : str
        Our name of the norm or the product.
    weight, bias
        The tensors of the folder. The weight of a norm has one dimension.

    """
    is_norm = weight.ndim == 1
    weights[f"{name}.weight" if is_norm else name] = weight if is_norm else transposed(weight)
    weights[f"{name}.bias"] = bias
