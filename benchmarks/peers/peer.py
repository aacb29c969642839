"""What a peer is, and a model's weights as peers lay them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.charcnn import Model

_CHANNELS_MULTIPLE = 8  # tensor cores want 16-byte rows


@dataclass(frozen=True)
class Peer:
    """A network that is built, and the articles it is to label.

    Attributes
    ----------
    name : str
        What it is, in words.
    batch : int
        Articles in each call of the network; it divides their number.
    run : callable
        Makes one pass over all articles. It returns when the GPU is done, so a host clock measures it as well as events
        do.
    logits : callable
        Returns those of the last pass, float32 [N, classes].

    """

    name: str
    batch: int
    run: Callable[[], None]
    logits: Callable[[], NDArray[np.float32]]


def channels_last(model: Model, dtype: type[np.floating]) -> dict[str, tuple[NDArray[np.floating], ...]]:
    """By layer: weight, bias, and gamma and beta where a norm follows, in the reference's channels-last orders.

    Convolutions [kernel, inputs, outputs], linear layers [inputs, outputs], norms [rows, channels]. conv1's inputs, one
    an id, are zero for unknown and padding and up to a multiple of eight: a table, and the weight of a dense product.
    """
    laid = reference.prepare(model)
    table = np.pad(laid.table, ((0, 0), (0, -laid.table.shape[1] % _CHANNELS_MULTIPLE), (0, 0)))
    weights = {model.layers[0].name: table, **laid.conv, **laid.linear}
    by_layer = {name: (weight, laid.bias[name], *laid.norm.get(name, ())) for name, weight in weights.items()}
    return {name: tuple(tensor.astype(dtype) for tensor in tensors) for name, tensors in by_layer.items()}
