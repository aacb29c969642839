"""An engine's memory, on the GPU and page-locked on the host, planned from the layer table before anything is
allocated. Needs no GPU.

It is counted in units, the twin of common/packing.cuh. A unit is a row of block 2's pooled output, and what the other
blocks have in its place. An article has one for each such row that its text reaches, and `CLOSING` more. In the dense
frame every article reaches all rows.

The text of a batch and its offsets are one run of bytes, and its results are another, so that one copy takes all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.alphabet import head_bytes
from ..model.charcnn import Model
from ..model.fasttext import FastText
from ..model.layers import WHOLE, Frame, Layer
from ..model.ngrams import NGrams
from .storage import Element, Storage
from .tables import fasttext_bytes, ngram_bytes

CLOSING = 2

_SHORT = 4
"""Articles in a batch of the text frame for each one of full length that there is room for. News articles reach a
quarter of the frame.
"""


class Capacity(NamedTuple):
    """What the buffers of a batch have room for."""

    articles: int
    units: int


def most_units(layers: Sequence[Layer]) -> int:
    """Units of an article of full length. Whole texts need none: their number and their bytes bound a batch."""
    return 1 if len(layers) == 1 else layers[1].rows_pooled + CLOSING


def articles_for_a_full_one(frame: Frame) -> int:
    """Articles in a batch for each one of full length that there is room for."""
    return _SHORT if frame == "text" else 1


def capacity(layers: Sequence[Layer], batch: int, frame: Frame) -> Capacity:
    """Room for `batch` articles; in the text frame for fewer where they are long."""
    return Capacity(batch, -(-batch // articles_for_a_full_one(frame)) * most_units(layers))


def units_by_length(layers: Sequence[Layer], frame: Frame) -> NDArray[np.int64]:
    """The units of an article by the index after its last character, from 0 to the length that the network reads."""
    if len(layers) == 1:
        return np.zeros(1, np.int64)
    first, second, *_ = layers
    lengths = np.arange(first.rows_in + 1)
    if frame == "dense":
        return np.full(len(lengths), most_units(layers))
    rows = np.minimum(-(-lengths // first.pool), first.rows_pooled)
    reach: NDArray[np.int64] = np.minimum(-(-rows // second.pool), second.rows_pooled)
    return reach + CLOSING


_ARRAY_ALIGNMENT = 256

_MOST_SMALL = 32
"""Articles of a small batch. Of more, kernels take longer than their launches."""


class ArrayPlace(NamedTuple):
    """An array within a run of bytes.

    Attributes
    ----------
    start : int
        Its first byte.
    shape : tuple of int
        Its shape.
    dtype : type
        Its type.

    """

    start: int
    shape: tuple[int, ...]
    dtype: type[np.generic]

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * np.dtype(self.dtype).itemsize


Shapes = dict[str, tuple[tuple[int, ...], type[np.generic]]]
"""Shapes and types of arrays by name."""

SCORES, ON_GPU_ONLY = "scores", "logits"
"""The results that are copied to the host only where they are wanted, and those that are not copied."""


def small_batch(layers: Sequence[Layer], room: Capacity) -> int:
    """Articles of the largest such batch, which a network has room for whatever their lengths."""
    return min(_MOST_SMALL, room.units // most_units(layers))


def input_shapes(count: int, text: int) -> Shapes:
    """What a batch is given: the number of its articles, their offsets, and their text, of so many bytes at most. The
    text is last, so that one copy takes all that a batch has of it.
    """
    return {"count": ((1,), np.int32), "offsets": ((count + 1,), np.int64), "text": ((text,), np.uint8)}


def small_input(layers: Sequence[Layer], count: int) -> Shapes:
    return input_shapes(count, count * head_bytes(layers[0].rows_in))


def result_shapes(layers: Sequence[Layer], count: int, top_k: int) -> Shapes:
    """What a batch results in. First comes what every caller reads, then the scores of all classes, and last what stays
    on the GPU.
    """
    classes = layers[-1].outputs
    return {
        "labels": ((count, top_k), np.int32),
        "best": ((count, top_k), np.float32),
        "n_chars": ((count,), np.int64),
        "truncated": ((count,), np.uint8),
        "unknown_chars": ((count,), np.int64),
        "saturated": ((1,), np.uint64),
        "asked": ((1,), np.int32),
        SCORES: ((count, classes), np.float32),
        ON_GPU_ONLY: ((count, classes), np.float32),
    }


def places(arrays: Shapes) -> tuple[dict[str, ArrayPlace], int]:
    """Where arrays lie that follow each other, aligned for every kernel, by name; and how many bytes they take."""
    by_name, end = {}, 0
    for name, (shape, dtype) in arrays.items():
        by_name[name] = ArrayPlace(end, shape, dtype)
        end = -(-by_name[name].stop // _ARRAY_ALIGNMENT) * _ARRAY_ALIGNMENT
    return by_name, end


def small_bytes(layers: Sequence[Layer], most: int) -> tuple[int, int]:
    """Bytes for the text and for the results of small batches of up to `most` articles."""
    classes = layers[-1].outputs
    return places(small_input(layers, most))[1], places(result_shapes(layers, most, classes))[1]


SLOTS = 4
"""Batches in flight: one is copied in, one computed, one copied out, and one waits for the thread that has its results.
"""

_ALIGNMENT = 512


@dataclass(frozen=True)
class Buffer:
    """Memory for one purpose.

    Attributes
    ----------
    name : str
        The purpose.
    bytes : int
        Bytes of one buffer.
    count : int
        How many buffers of this size there are.

    """

    name: str
    bytes: int
    count: int = 1

    @property
    def total(self) -> int:
        return -(-self.bytes // _ALIGNMENT) * _ALIGNMENT * self.count


def id_pitch(length: int) -> int:
    """Bytes from the ids of one article to those of the next: a multiple of 16, for 16-byte stores. Whole texts: 0."""
    return 0 if length == WHOLE else -(-length // 16) * 16


@dataclass(frozen=True)
class Activation:
    """A batch between two layers, in one of two buffers.

    Attributes
    ----------
    buffer : int
        Which of the two, 0 or 1.
    packed : bool
        Whether it is [units, rows, channels], as up to block 6, or [articles, rows, channels].
    rows : int
        Rows of a unit or of an article.
    channels : int
        Channels of a row.
    element : Element
        The type of its numbers.

    """

    buffer: int
    packed: bool
    rows: int
    channels: int
    element: Element

    def bytes(self, room: Capacity) -> int:
        return (room.units if self.packed else room.articles) * self.rows * self.channels * self.element.bytes


@dataclass(frozen=True)
class LayerStep:
    """A layer and what it writes. It reads what the step before has written.

    Attributes
    ----------
    layer : Layer
        The layer.
    raw : Activation or None
        The product before its norm, where a kernel of its own computes the norm.
    out : Activation
        The activation that it writes.

    """

    layer: Layer
    raw: Activation | None
    out: Activation


@cache
def schedule(layers: tuple[Layer, ...], stored: Storage) -> tuple[LayerStep, ...]:
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
        steps.append(LayerStep(layer, raw, Activation(buffer, packed, rows, layer.outputs, stored.read_by(following))))
    return tuple(steps)


def slot_input(layers: Sequence[Layer], room: Capacity) -> Shapes:
    return input_shapes(room.articles, text_bytes(layers, room))


class SlotBytes(NamedTuple):
    """Bytes of a batch in flight.

    Attributes
    ----------
    texts : int
        Of its texts, with their offsets.
    results : int
        Of its results on the GPU.
    results_on_host : int
        Of those that have a twin on the host.

    """

    texts: int
    results: int
    results_on_host: int


def slot_bytes(layers: Sequence[Layer], room: Capacity) -> SlotBytes:
    results, size = places(result_shapes(layers, room.articles, layers[-1].outputs))
    return SlotBytes(places(slot_input(layers, room))[1], size, results[ON_GPU_ONLY].start)


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


class Parts(NamedTuple):
    """What a model computes. alone: whether its n-grams give labels without the network, of all articles or of some."""

    network: bool = True
    alone: bool = False

    @classmethod
    def of(cls, model: Model) -> Parts:
        return cls(model.has_network, model.cascade is not None or not model.has_network)


NETWORK_ALONE = Parts()


def plan(
    layers: tuple[Layer, ...],
    batch: int,
    stored: Storage,
    frame: Frame,
    ngrams: NGrams | FastText | None = None,
    parts: Parts = NETWORK_ALONE,
) -> list[Buffer]:
    """Every buffer that an engine keeps on the GPU.

    Parameters
    ----------
    layers : tuple of Layer
        The layers of the network; one for a model of whole texts.
    batch : int
        Articles of a batch at most.
    stored : Storage
        The types in memory.
    frame : Frame
        Whether what follows the text's end counts.
    ngrams : NGrams or FastText, optional
        The branch beside the network, or what stands in its place.
    parts : Parts
        What the model computes.

    """
    room = capacity(layers, batch, frame)
    of_slot = slot_bytes(layers, room)
    ids = id_pitch(WHOLE if len(layers) == 1 else layers[0].rows_in) * batch
    of_network: list[Buffer] = []
    if parts.network:
        wide, narrow = activation_bytes(layers, room, stored)
        of_network = [
            Buffer("weights and tables", weight_bytes(layers, stored)),
            Buffer("statistics", (8 + 4) * batch),
            Buffer("packing", 4 * (batch + 1) + 8 + room.units),
            Buffer("activations, first", wide),
            Buffer("activations, second", narrow),
            *([Buffer("articles that the network is asked about", ids + 4 * batch)] if parts.alone else []),
        ]
    return [
        *of_network,
        Buffer("texts", of_slot.texts, SLOTS),
        Buffer("ids", ids),
        Buffer("results", of_slot.results, SLOTS),
        Buffer("small batches", sum(small_bytes(layers, small_batch(layers, room)))),
        *([Buffer("n-grams", ngram_bytes(ngrams))] if isinstance(ngrams, NGrams) else []),
        *(_of_fasttext(ngrams, batch, stored) if isinstance(ngrams, FastText) else []),
    ]


def _of_fasttext(model: FastText, batch: int, stored: Storage) -> list[Buffer]:
    tables = fasttext_bytes(model, stored.is_exact)
    return [Buffer("table and dictionary", tables), Buffer("mean rows", 4 * batch * model.table.shape[1])]


def page_locked(layers: Sequence[Layer], batch: int, frame: Frame) -> list[Buffer]:
    """What an engine keeps page-locked on the host: a twin of each slot's texts and results. CuPy allocates powers of
    two.
    """
    room = capacity(layers, batch, frame)
    of_slot = slot_bytes(layers, room)
    text, results = small_bytes(layers, small_batch(layers, room))
    return [
        Buffer("texts", _power_of_two(of_slot.texts), SLOTS),
        Buffer("results", _power_of_two(of_slot.results_on_host), SLOTS),
        Buffer("text of small batches", _power_of_two(text)),
        Buffer("results of small batches", _power_of_two(results)),
    ]


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def planned_bytes(buffers: Sequence[Buffer]) -> int:
    return sum(buffer.total for buffer in buffers)
