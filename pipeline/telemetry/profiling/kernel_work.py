"""The work of each kernel, and the time it took: the figures from which a roofline is drawn.

Work and traffic as in Williams, Waterman and Patterson, "Roofline" (2009): operations over the bytes that must move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...engine.base import Texts
from ...kernels.storage import Storage
from ...model.charcnn import Model
from ...model.ngrams import count_rows

ELEMENT_WISE, REDUCTION, PRODUCT = "element-wise", "reduction", "product"

_NORM_FLOP = 7
"""Operations of layer normalisation an element: mean, subtract, square, sum, scale, γ, β."""


@dataclass(frozen=True)
class KernelWork:
    """The work of one kernel for a batch. flop: a multiply and an add count as two; a comparison or a conversion does
    not count. least_bytes: every input, weight and output moved once.
    """

    name: str
    category: str
    flop: int
    least_bytes: int


@dataclass(frozen=True)
class KernelProfile:
    """A kernel's measurements for a batch.

    seconds: median, run alone, its input in memory. stream_seconds: median, within the whole network. modelled_bytes:
    moved by the design of the kernel, without regard to caches. counted_bytes: the same by hardware counters, where
    they could be read. occupancy: resident warps over the maximum of an SM. registers: a thread. shared_bytes: a block.
    waves: blocks over the blocks that fit the device at once. tail_waste: share of the capacity of all waves that the
    last one leaves idle. tile_waste: share of computed rows and columns that is discarded.
    """

    name: str
    category: str
    seconds: float
    stream_seconds: float
    flop: int
    least_bytes: int
    modelled_bytes: int
    counted_bytes: int | None = None
    occupancy: float | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    waves: float | None = None
    tail_waste: float | None = None
    tile_waste: float | None = None


@dataclass(frozen=True)
class Ceilings:
    """What the device reached in this run. flop_per_second: of a large product, in the engine's precision.
    bytes_per_second: of a large copy, reads and writes. how: a description of the two measurements.
    """

    flop_per_second: float
    bytes_per_second: float
    how: str


def computed_rows(model: Model, texts: Texts) -> dict[str, int]:
    """Rows of ASCII texts that each convolution computes, before its pool: all, or those that the text reaches."""
    convolutions = [layer for layer in model.layers if layer.kind == "conv1d"]
    if model.frame == "dense":
        return {layer.name: len(texts) * layer.rows_out for layer in convolutions}
    rows, found = np.diff(texts.offsets), {}
    for layer in convolutions:
        pool = layer.pool if layer.is_lookup else layer.product_pool
        rows = np.minimum(-(-rows // pool), layer.rows_out // pool)
        found[layer.name] = int(rows.sum()) * pool
    return found


def kernels_of(model: Model, texts: Texts, stored: Storage) -> list[KernelWork]:
    """Every kernel of the network over ASCII texts, from its layer table. stored: the types of weights and activations.

    Block 1 counts as a look-up: seven additions an element, and the norm.
    """
    articles, length, classes = len(texts), model.length, len(model.classes)
    works = [KernelWork("encode", ELEMENT_WISE, 0, len(texts.data) + 8 * (articles + 1) + articles * length)]
    rows = computed_rows(model, texts)
    for layer, following in zip(model.layers, [*model.layers[1:], model.layers[-1]], strict=True):
        elements = layer.rows_out * layer.outputs
        share = rows.get(layer.name, articles) / layer.rows_out  # articles' worth of rows
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
    if model.ngrams is not None:
        found, row_bytes = count_rows(texts.data, texts.offsets, model.ngrams), model.ngrams.table[0].nbytes
        moved = len(texts.data) + 4 * articles * classes + min(found * row_bytes, model.ngrams.table.nbytes)
        works.append(KernelWork("ngrams", REDUCTION, found * (classes + 1), moved))
    # softmax: subtract, exponential, sum, divide; the outputs are a label and a score
    works.append(KernelWork("head", REDUCTION, articles * 4 * classes, articles * (classes * 4 + 8)))
    return works
