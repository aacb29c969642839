"""The class of peers, and a model's weights in the layout that peers use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.charcnn import Model

_CHANNELS_MULTIPLE = 8  # for rows of 16 bytes, which tensor cores need


@dataclass(frozen=True)
class Peer:
    """A network, and the articles that it labels.

    Attributes
    ----------
    name : str
        The description.
    batch : int
        The number of articles in each call of the network. It divides the number of all articles.
    run : callable
        Makes one pass over all articles. It returns when the GPU has finished, so that a host clock measures it as well
        as events do.
    logits : callable
        Returns the logits of the last pass, float32 [N, classes].

    """

    name: str
    batch: int
    run: Callable[[], None]
    logits: Callable[[], NDArray[np.float32]]


def channels_last(model: Model, dtype: type[np.floating]) -> dict[str, tuple[NDArray[np.floating], ...]]:
    """Return the tensors of each layer in the reference's channels-last order.

    These are the weight, the bias and, if a norm follows, gamma and beta. Convolutions have the shape [kernel, inputs,
    outputs], linear layers [inputs, outputs], and norms [rows, channels]. conv1 has one input for each id, zero for
    unknown characters and padding, and zeros up to a multiple of eight inputs. So its weight can be used as a table,
    and as the weight of a dense product.
    """
    laid = reference.prepare(model)
    table = np.pad(laid.table, ((0, 0), (0, -laid.table.shape[1] % _CHANNELS_MULTIPLE), (0, 0)))
    weights = {model.layers[0].name: table, **laid.conv, **laid.linear}
    by_layer = {name: (weight, laid.bias[name], *laid.norm.get(name, ())) for name, weight in weights.items()}
    return {name: tuple(tensor.astype(dtype) for tensor in tensors) for name, tensors in by_layer.items()}
