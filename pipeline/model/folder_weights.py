"""The weights of an encoder's folder, in the shapes in which our code multiplies with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensor = NDArray[Any]


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
