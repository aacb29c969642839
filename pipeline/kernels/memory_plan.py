"""Plans the memory of an engine, on the GPU and page-locked on the host, before anything is allocated. Needs no GPU.

The plan follows from the layer table. Memory is counted in units, as in common/packing.cuh. A unit is a row of block
2's pooled output, and the rows of the other blocks that correspond to it. An article has a unit for each such row that
its text reaches, and `CLOSING_UNITS` more. In the dense frame every article reaches all rows.

The text of a batch and its offsets are one run of bytes, and its results are another, so that one copy moves each.
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

CLOSING_UNITS = 2
"""Units after an article's text, which the taps of convolutions read."""

_SHORT = 4
"""The number of articles in a batch of the text frame, for each article of full length that there is room for.

News articles reach a quarter of the frame.
"""


class Capacity(NamedTuple):
    """The most articles and units that the buffers of a batch have room for."""

    articles: int
    units: int


def most_units(layers: Sequence[Layer]) -> int:
    """Return the units of an article of full length.

    Models of whole texts need no units: the number and the bytes of texts limit a batch.
    """
    return 1 if len(layers) == 1 else layers[1].rows_pooled + CLOSING_UNITS


def articles_for_a_full_one(frame: Frame) -> int:
    """Return the number of articles in a batch, for each article of full length that there is room for."""
    return _SHORT if frame == "text" else 1


def capacity(layers: Sequence[Layer], batch: int, frame: Frame) -> Capacity:
    """Return the room for `batch` articles. In the text frame, fewer articles fit if they are long."""
    return Capacity(batch, -(-batch // articles_for_a_full_one(frame)) * most_units(layers))


def units_by_length(layers: Sequence[Layer], frame: Frame) -> NDArray[np.int64]:
    """Return the units of an article by the end of its text, from 0 to the length that the network reads."""
    if len(layers) == 1:
        return np.zeros(1, np.int64)
    first, second, *_ = layers
    lengths = np.arange(first.rows_in + 1)
    if frame == "dense":
        return np.full(len(lengths), most_units(layers))
    rows = np.minimum(-(-lengths // first.pool), first.rows_pooled)
    reach: NDArray[np.int64] = np.minimum(-(-rows // second.pool), second.rows_pooled)
    return reach + CLOSING_UNITS


_ARRAY_ALIGNMENT = 256

_MOST_SMALL = 32
"""The most articles in a small batch. With more, kernels take longer than their launches."""


class ArrayPlace(NamedTuple):
    """An array within a run of bytes.

    Attributes
    ----------
    start : int
        The place of its first byte.
    shape : tuple of int
        The shape of the array.
    dtype : type
        The type of its elements.

    """

    start: int
    shape: tuple[int, ...]
    dtype: type[np.generic]

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * np.dtype(self.dtype).itemsize


Shapes = dict[str, tuple[tuple[int, ...], type[np.generic]]]
"""The shapes and types of arrays by name."""

SCORES, ON_GPU_ONLY = "scores", "logits"
"""The name of the results that are copied to the host only if they are wanted, and of those that are never copied."""


def small_batch(layers: Sequence[Layer], room: Capacity) -> int:
    """Return the most articles in a small batch. A network has room for them, however long they are."""
    return min(_MOST_SMALL, room.units // most_units(layers))


def input_shapes(count: int, text: int) -> Shapes:
    """Return the shapes of a batch's input: the number of articles, their offsets, and at most `text` bytes of text.

    The text is last, so that one copy moves the input without the unused bytes at its end.
    """
    return {"count": ((1,), np.int32), "offsets": ((count + 1,), np.int64), "text": ((text,), np.uint8)}


def small_input(layers: Sequence[Layer], count: int) -> Shapes:
    return input_shapes(count, count * head_bytes(layers[0].rows_in))


def result_shapes(layers: Sequence[Layer], count: int, top_k: int) -> Shapes:
    """Return the shapes of a batch's results.

    The results that every caller reads come first, then the scores of all classes, and last those that stay on the GPU.
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
    """Return the places of arrays that follow each other, aligned for every kernel, and their number of bytes."""
    by_name, end = {}, 0
    for name, (shape, dtype) in arrays.items():
        by_name[name] = ArrayPlace(end, shape, dtype)
        end = -(-by_name[name].stop // _ARRAY_ALIGNMENT) * _ARRAY_ALIGNMENT
    return by_name, end


def small_bytes(layers: Sequence[Layer], articles: int) -> tuple[int, int]:
    """Return the bytes for the text and for the results of small batches with up to `articles` articles."""
    classes = layers[-1].outputs
    return places(small_input(layers, articles))[1], places(result_shapes(layers, articles, classes))[1]


SLOTS = 4
"""The number of batches in flight: one is copied in, one is computed, one is copied out, and a thread reads one."""

_ALIGNMENT = 512


@dataclass(frozen=True)
class Buffer:
    """Memory for one purpose.

    Attributes
    ----------
    name : str
        The purpose.
    bytes : int
        The bytes of one buffer.
    count : int
        The number of buffers with this size.

    """

    name: str
    bytes: int
    count: int = 1

    @property
    def total(self) -> int:
        return -(-self.bytes // _ALIGNMENT) * _ALIGNMENT * self.count


def id_pitch(length: int) -> int:
    """Return the bytes from the ids of one article to those of the next.

    This is a multiple of 16, for 16-byte stores, and 0 for models of whole texts.
    """
    return 0 if length == WHOLE else -(-length // 16) * 16


@dataclass(frozen=True)
class Activation:
    """The values of a batch between two layers, in one of two buffers.

    Attributes
    ----------
    buffer : int
        The number of the buffer, 0 or 1.
    packed : bool
        Whether the shape is [units, rows, channels], as up to block 6, or [articles, rows, channels].
    rows : int
        The number of rows of a unit or of an article.
    channels : int
        The number of channels in a row.
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
    """A layer and the activations that it writes. It reads those that the previous step has written.

    Attributes
    ----------
    layer : Layer
        The layer.
    raw : Activation or None
        The product before its norm, if a separate kernel computes the norm.
    out : Activation
        The activation that it writes.

    """

    layer: Layer
    raw: Activation | None
    out: Activation


@cache
def schedule(layers: tuple[Layer, ...], stored: Storage) -> tuple[LayerStep, ...]:
    """Return the steps of all layers except the last. Each writes the buffer that it does not read, block 1 the first.

    A norm after a product is a separate kernel, so such a layer writes both. (The head writes the outputs of a slot.)
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
    """The bytes of a batch in flight.

    Attributes
    ----------
    texts : int
        The bytes of its texts and their offsets.
    results : int
        The bytes of its results on the GPU.
    results_on_host : int
        The bytes of the results that have a twin on the host.

    """

    texts: int
    results: int
    results_on_host: int


def slot_bytes(layers: Sequence[Layer], room: Capacity) -> SlotBytes:
    results, size = places(result_shapes(layers, room.articles, layers[-1].outputs))
    return SlotBytes(places(slot_input(layers, room))[1], size, results[ON_GPU_ONLY].start)


def text_bytes(layers: Sequence[Layer], room: Capacity) -> int:
    """Return the bytes for the text of a batch.

    For articles of full length, this is twice what the network reads of ASCII. Longer text makes smaller batches.
    """
    return 2 * layers[0].rows_in * (room.units // most_units(layers))


def activation_bytes(layers: tuple[Layer, ...], room: Capacity, stored: Storage) -> tuple[int, int]:
    """Return the bytes of the two buffers of the schedule."""
    sizes = [0, 0]
    for step in schedule(layers, stored):
        for written in (step.raw, step.out):
            if written is not None:
                sizes[written.buffer] = max(sizes[written.buffer], written.bytes(room))
    return sizes[0], sizes[1]


def weight_bytes(layers: Sequence[Layer], stored: Storage) -> int:
    """Return the bytes of the weights, the norms and the tables for block 1's statistics."""
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
    """The parts of a model that an engine computes.

    Attributes
    ----------
    network : bool
        Whether the model has a network.
    alone : bool
        Whether its n-grams label some or all articles without the network.

    """

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
    """Return every buffer that an engine has on the GPU.

    Parameters
    ----------
    layers : tuple of Layer
        The layers of the network. A model of whole texts has one.
    batch : int
        The most articles in a batch.
    stored : Storage
        The types of the values in memory.
    frame : Frame
        Whether the network also computes positions after the end of a text.
    ngrams : NGrams or FastText, optional
        The n-grams beside the network, or the model in place of it.
    parts : Parts
        The parts that the engine computes.

    """
    # Plan the buffers of the network.
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
    # Add those of the texts, the results and the n-grams.
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
    """Return every buffer that an engine has in page-locked memory of the host: twins of each slot's texts and results.

    CuPy allocates powers of two.
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
