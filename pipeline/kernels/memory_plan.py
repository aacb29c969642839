"""An engine's memory, on the GPU and page-locked on the host, planned from the layer table before anything is
allocated. Needs no GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from ..model.charcnn import Layer
from ..model.frame import Frame
from ..model.ngrams import NGrams
from .ngram_tables import ngram_bytes
from .packing import Capacity, capacity, most_units
from .small_layout import small_batch, small_bytes
from .storage import Element, Storage

SLOTS = 3
"""Batches in flight: one copied in, one computed, one copied out."""

_ALIGNMENT = 512


@dataclass(frozen=True)
class Buffer:
    """Memory for one purpose. count: how many buffers of this size there are."""

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
    """A batch between two layers, in one of two buffers: packed [units, rows, channels] up to block 6, then [articles,
    rows, channels].
    """

    buffer: int
    packed: bool
    rows: int
    channels: int
    element: Element

    def bytes(self, room: Capacity) -> int:
        return (room.units if self.packed else room.articles) * self.rows * self.channels * self.element.bytes


@dataclass(frozen=True)
class Step:
    """A layer and the activation that it writes; it reads that of the step before. raw: a product before its norm."""

    layer: Layer
    raw: Activation | None
    out: Activation


@cache
def schedule(layers: tuple[Layer, ...], stored: Storage) -> tuple[Step, ...]:
    """The layers but the last, in order, each writing the buffer that it does not read; block 1 writes the first.

    A norm after a product is a kernel of its own, so such a layer writes both. (The head writes a slot's outputs.)
    """
    steps = []
    buffer = 1
    for layer, following in pairwise(layers):
        raw = None
        if layer.norm and not layer.is_lookup:
            buffer ^= 1
            raw = Activation(buffer, True, 1, layer.outputs, stored.written_by(layer))
        buffer ^= 1
        packed = following.kind == "conv1d"
        rows = following.product_pool if packed else layer.rows_pooled
        steps.append(Step(layer, raw, Activation(buffer, packed, rows, layer.outputs, stored.read_by(following))))
    return tuple(steps)


def slot_arrays(layers: Sequence[Layer], room: Capacity) -> dict[str, tuple[int, type[np.generic]]]:
    """Elements and type of each array of a batch in flight: its text and its results."""
    batch, classes = room.articles, layers[-1].outputs
    return {
        "text": (text_bytes(layers, room), np.uint8),
        "offsets": (batch + 1, np.int64),
        "labels": (batch * classes, np.int32),
        "best": (batch * classes, np.float32),
        "scores": (batch * classes, np.float32),
        "logits": (batch * classes, np.float32),
        "n_chars": (batch, np.int64),
        "truncated": (batch, np.uint8),
        "unknown_chars": (batch, np.int64),
        "saturated": (1, np.uint64),
    }


ON_GPU_ONLY = "logits"
"""The array of a slot that has no twin on the host."""


def text_bytes(layers: Sequence[Layer], room: Capacity) -> int:
    """Bytes for the text of a batch: for articles of full length, twice what the network reads of ASCII. Longer text
    makes smaller batches.
    """
    return 2 * layers[0].rows_in * (room.units // most_units(layers))


def activation_bytes(layers: tuple[Layer, ...], room: Capacity, stored: Storage) -> tuple[int, int]:
    """Sizes of the two buffers of the schedule."""
    sizes = [0, 0]
    for step in schedule(layers, stored):
        for written in (step.raw, step.out):
            if written is not None:
                sizes[written.buffer] = max(sizes[written.buffer], written.bytes(room))
    return sizes[0], sizes[1]


def weight_bytes(layers: Sequence[Layer], stored: Storage) -> int:
    """Weights, norms and the tables of block 1's statistics."""
    total = 256
    for layer in layers:
        inputs, element = layer.inputs, stored.read_by(layer).bytes
        if layer.is_lookup:
            inputs, element = layer.ids, stored.norms.bytes
        if layer is layers[-1]:
            element = 4
        total += layer.kernel * inputs * layer.outputs * element + 8 * layer.outputs
        if layer.norm:
            total += 2 * layer.rows_out * layer.outputs * stored.norms.bytes
    kernel, ids = layers[0].kernel, layers[0].ids
    return total + 4 * (2 * kernel * ids + kernel * (kernel - 1) * ids * ids)


def plan(
    layers: tuple[Layer, ...], batch: int, stored: Storage, frame: Frame, ngrams: NGrams | None = None
) -> list[Buffer]:
    """Every buffer that an engine keeps on the GPU for batches of up to `batch` articles."""
    room = capacity(layers, batch, frame)
    wide, narrow = activation_bytes(layers, room, stored)
    length, classes = layers[0].rows_in, layers[-1].outputs
    return [
        Buffer("weights and tables", weight_bytes(layers, stored)),
        Buffer("text", text_bytes(layers, room), SLOTS),
        Buffer("offsets", 8 * (batch + 1), SLOTS),
        Buffer("ids", id_pitch(length) * batch),
        Buffer("statistics", (8 + 4) * batch),
        Buffer("packing", 4 * (batch + 1) + 8 + room.units),
        Buffer("activations, first", wide),
        Buffer("activations, second", narrow),
        Buffer("scores and logits", 2 * 4 * classes * batch, SLOTS),
        Buffer("labels and best scores", 2 * 4 * classes * batch, SLOTS),
        Buffer("counts of characters", (8 + 8 + 1) * batch, SLOTS),
        Buffer("count of saturated values", 8, SLOTS),
        Buffer("small batches", sum(small_bytes(layers, small_batch(layers, room)))),
        *([] if ngrams is None else [Buffer("n-grams", ngram_bytes(ngrams))]),
    ]


def page_locked(layers: Sequence[Layer], batch: int, frame: Frame) -> list[Buffer]:
    """What an engine keeps page-locked on the host: a twin of each slot's arrays. CuPy allocates powers of two."""
    room = capacity(layers, batch, frame)
    sizes = {name: count * np.dtype(dtype).itemsize for name, (count, dtype) in slot_arrays(layers, room).items()}
    text, found = small_bytes(layers, small_batch(layers, room))
    return [
        *(Buffer(name, _power_of_two(size), SLOTS) for name, size in sizes.items() if name != ON_GPU_ONLY),
        Buffer("text of small batches", _power_of_two(text)),
        Buffer("results of small batches", _power_of_two(found)),
    ]


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def planned_bytes(buffers: Sequence[Buffer]) -> int:
    return sum(buffer.total for buffer in buffers)
