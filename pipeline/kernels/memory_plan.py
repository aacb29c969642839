"""The memory of an engine on a GPU, planned from the layer table before anything is allocated. Needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.model.charcnn import Layer

SLOTS = 3
"""Batches on their way: one copied in, one computed, one copied out."""

_ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_ALIGNMENT = 512


@dataclass(frozen=True)
class Buffer:
    """count: how many there are of it."""

    name: str
    bytes: int
    count: int = 1

    @property
    def total(self) -> int:
        return -(-self.bytes // _ALIGNMENT) * _ALIGNMENT * self.count


def id_pitch(length: int) -> int:
    """Bytes from one article's ids to the next: whole 16-byte stores."""
    return -(-length // 16) * 16


def row_pitch(layer: Layer, following: Layer) -> int:
    """Rows from one article to the next behind `layer`: whole pool windows for the layer that reads them."""
    pool = 1 if following.norm or following.kind == "linear" else following.pool
    return -(-layer.rows_pooled // pool) * pool


def text_bytes(length: int, batch: int) -> int:
    """Room for the text of a batch: twice what the network reads of ASCII; longer text makes smaller batches."""
    return 2 * length * batch


def activation_bytes(layers: Sequence[Layer], batch: int, precision: str) -> tuple[int, int]:
    """Sizes of the two buffers that layers write in turn, block 1 into the first.

    A norm is a step of its own, so a block with one behind a product writes both.
    """
    sizes = [0, 0]
    turn = 0
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        if following is None:
            break  # the head writes to a slot's outputs
        if layer.kind == "conv1d" and layer.norm and layer is not layers[0]:
            sizes[turn] = max(sizes[turn], layer.rows_out * layer.outputs)
            turn ^= 1
        rows = row_pitch(layer, following) if layer.kind == "conv1d" else 1
        sizes[turn] = max(sizes[turn], rows * layer.outputs)
        turn ^= 1
    element = _ELEMENT_BYTES[precision]
    return sizes[0] * batch * element, sizes[1] * batch * element


def weight_bytes(layers: Sequence[Layer], ids: int, precision: str) -> int:
    """Weights, norms and the tables of block 1's statistics. `ids`: of the alphabet, unknown and padding included."""
    element = _ELEMENT_BYTES[precision]
    total = 256
    for layer in layers:
        inputs = ids if layer.name == "conv1" else layer.inputs
        of_head = 4 if layer is layers[-1] else element
        total += layer.kernel * inputs * layer.outputs * of_head + 4 * layer.outputs
        if layer.norm:
            total += 2 * layer.rows_out * layer.outputs * element
    kernel = layers[0].kernel
    return total + 4 * (2 * kernel * ids + kernel * (kernel - 1) * ids * ids)


def plan(layers: Sequence[Layer], length: int, ids: int, batch: int, precision: str) -> list[Buffer]:
    """Every buffer that an engine keeps on the GPU for batches of up to `batch` articles."""
    wide, narrow = activation_bytes(layers, batch, precision)
    classes = layers[-1].outputs
    return [
        Buffer("weights and tables", weight_bytes(layers, ids, precision)),
        Buffer("text", text_bytes(length, batch), SLOTS),
        Buffer("offsets", 8 * (batch + 1), SLOTS),
        Buffer("ids", id_pitch(length) * batch),
        Buffer("statistics", (8 + 4) * batch),
        Buffer("activations, first", wide),
        Buffer("activations, second", narrow),
        Buffer("scores and logits", 2 * 4 * classes * batch, SLOTS),
        Buffer("labels and best scores", 2 * 4 * classes * batch, SLOTS),
        Buffer("counts of characters", (8 + 8 + 1) * batch, SLOTS),
    ]


def planned_bytes(buffers: Sequence[Buffer]) -> int:
    return sum(buffer.total for buffer in buffers)
