"""The memory of an engine on a GPU, planned from the layer table before anything is allocated. Needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.model.charcnn import Layer

SLOTS = 3
"""Batches in flight: one copied in, one computed, one copied out."""

_ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_ALIGNMENT = 512


@dataclass(frozen=True)
class Buffer:
    """Device memory for one purpose. count: how many buffers of this size there are."""

    name: str
    bytes: int
    count: int = 1

    @property
    def total(self) -> int:
        return -(-self.bytes // _ALIGNMENT) * _ALIGNMENT * self.count


def id_pitch(length: int) -> int:
    """Bytes from the ids of one article to those of the next: a multiple of 16, for 16-byte stores."""
    return -(-length // 16) * 16


@dataclass(frozen=True)
class Activation:
    """The rows of a batch in one of two buffers, in elements: [batch, pitch, channels].

    valid: rows of an article that hold values. The pitch rounds them up to whole pool windows of the layer that reads
    them.
    """

    buffer: int
    pitch: int
    channels: int
    valid: int


@dataclass(frozen=True)
class Step:
    """A layer and the activation that it writes; it reads that of the step before. raw: a product before its norm."""

    layer: Layer
    raw: Activation | None
    out: Activation


def schedule(layers: Sequence[Layer]) -> tuple[Step, ...]:
    """The layers but the last, in order, each writing the buffer that it does not read; block 1 writes the first.

    A norm after a product is a kernel of its own, so such a layer writes both. (The head writes a slot's outputs.)
    """
    steps = []
    buffer = 1
    for layer, following in pairwise(layers):
        raw = None
        if layer.norm and not layer.is_lookup:
            buffer ^= 1
            raw = Activation(buffer, layer.rows_out, layer.outputs, layer.rows_out)
        buffer ^= 1
        pitch = -(-layer.rows_pooled // following.product_pool) * following.product_pool
        steps.append(Step(layer, raw, Activation(buffer, pitch, layer.outputs, layer.rows_pooled)))
    return tuple(steps)


def text_bytes(length: int, batch: int) -> int:
    """Bytes for the text of a batch: twice what the network reads of ASCII. Longer text makes smaller batches."""
    return 2 * length * batch


def activation_bytes(layers: Sequence[Layer], batch: int, precision: str) -> tuple[int, int]:
    """Sizes of the two buffers of the schedule."""
    sizes = [0, 0]
    for step in schedule(layers):
        for written in (step.raw, step.out):
            if written is not None:
                sizes[written.buffer] = max(sizes[written.buffer], written.pitch * written.channels)
    element = _ELEMENT_BYTES[precision]
    return sizes[0] * batch * element, sizes[1] * batch * element


def weight_bytes(layers: Sequence[Layer], precision: str) -> int:
    """Weights, norms and the tables of block 1's statistics."""
    element = _ELEMENT_BYTES[precision]
    total = 256
    for layer in layers:
        inputs = layer.ids if layer.is_lookup else layer.inputs
        of_head = 4 if layer is layers[-1] else element
        total += layer.kernel * inputs * layer.outputs * of_head + 4 * layer.outputs
        if layer.norm:
            total += 2 * layer.rows_out * layer.outputs * element
    kernel, ids = layers[0].kernel, layers[0].ids
    return total + 4 * (2 * kernel * ids + kernel * (kernel - 1) * ids * ids)


def plan(layers: Sequence[Layer], batch: int, precision: str) -> list[Buffer]:
    """Every buffer that an engine keeps on the GPU for batches of up to `batch` articles."""
    wide, narrow = activation_bytes(layers, batch, precision)
    length, classes = layers[0].rows_in, layers[-1].outputs
    return [
        Buffer("weights and tables", weight_bytes(layers, precision)),
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
