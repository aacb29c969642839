"""The work of each kernel for a batch: its operations, and the bytes that it must move.

Both are counted as in Williams, Waterman and Patterson, "Roofline" (2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..model.charcnn import Model
from ..model.ngrams import count_rows, of_network
from .storage import Storage

ELEMENT_WISE, REDUCTION, PRODUCT = "element-wise", "reduction", "product"

PROFILED = "profiles are of networks"

_NORM_FLOP = 7
"""The operations of layer normalisation per element: mean, subtract, square, sum, scale, γ, β."""


class TextBatch(Protocol):
    """N texts. See `engine.base.Texts`."""

    @property
    def data(self) -> NDArray[np.uint8]: ...
    @property
    def offsets(self) -> NDArray[np.int64]: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class KernelWork:
    """The work of one kernel for a batch.

    Attributes
    ----------
    name : str
        The name of the kernel.
    category : str
        The kind of kernel: element-wise, reduction or product.
    flop : int
        The number of operations. A multiply and an add count as two; a comparison or a conversion does not count.
    least_bytes : int
        The bytes of all inputs, weights and outputs, each moved once.

    """

    name: str
    category: str
    flop: int
    least_bytes: int


def computed_rows(model: Model, texts: TextBatch) -> dict[str, int]:
    """Return how many rows each convolution computes before its pool, for ASCII texts.

    These are all rows in the dense frame, and the rows that the texts reach in the text frame.
    """
    convolutions = [layer for layer in model.layers if layer.kind == "conv1d"]
    if model.frame == "dense":
        return {layer.name: len(texts) * layer.rows_out for layer in convolutions}
    rows, by_layer = np.diff(texts.offsets), {}
    for layer in convolutions:
        pool = layer.pool if layer.is_lookup else layer.product_pool
        rows = np.minimum(-(-rows // pool), layer.rows_out // pool)
        by_layer[layer.name] = int(rows.sum()) * pool
    return by_layer


def kernels_of(model: Model, texts: TextBatch, stored: Storage) -> list[KernelWork]:
    """Return the work of every kernel of the network for ASCII texts, from its layer table.

    stored: the types of weights and activations. Block 1 counts as a look-up: seven additions per element and the norm.
    """
    articles, length, classes = len(texts), model.length, len(model.classes)
    works = [KernelWork("encode", ELEMENT_WISE, 0, len(texts.data) + 8 * (articles + 1) + articles * length)]
    rows = computed_rows(model, texts)
    # The layers of the network.
    for layer, following in zip(model.layers, [*model.layers[1:], model.layers[-1]], strict=True):
        elements = layer.rows_out * layer.outputs
        share = rows.get(layer.name, articles) / layer.rows_out  # rows, as a number of whole articles
        norm = _NORM_FLOP * elements if layer.norm else 0
        element = (stored.norms if layer.is_lookup else stored.read_by(layer)).bytes
        weights = (layer.kernel * layer.inputs * layer.outputs + layer.outputs) * element
        weights += 2 * elements * stored.norms.bytes if layer.norm else 0
        written = layer.rows_pooled * layer.outputs * stored.read_by(following).bytes
        if layer.is_lookup:
            category, flop, read = REDUCTION, layer.kernel * elements + norm, length
        else:
            category, flop, read = PRODUCT, layer.flop + norm, layer.rows_in * layer.inputs * element
        # After block 6 every article has all rows.
        moved = share * read + (articles if layer.norm and not layer.is_lookup else share) * written
        works.append(KernelWork(layer.name, category, round(share * flop), round(moved) + weights))
    # The n-grams and the head.
    if (ngrams := of_network(model.ngrams, model.name, PROFILED)) is not None:
        rows_read, row_bytes = count_rows(texts.data, texts.offsets, ngrams), ngrams.table[0].nbytes
        moved = len(texts.data) + 4 * articles * classes + min(rows_read * row_bytes, ngrams.table.nbytes)
        works.append(KernelWork("ngrams", REDUCTION, rows_read * (classes + 1), moved))
    # The softmax subtracts, takes the exponential, sums and divides. The outputs are a label and a score.
    works.append(KernelWork("head", REDUCTION, articles * 4 * classes, articles * (classes * 4 + 8)))
    return works
