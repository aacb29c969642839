"""Where the text and the results of a batch lie that is launched as one graph: one run of bytes each, so that one copy
takes all of it. Needs no GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..model.alphabet import head_bytes
from ..model.charcnn import Layer
from .packing import Capacity, most_units

_ALIGNMENT = 256


_MOST = 32
"""Articles of such a batch. Of more, kernels take longer than their launches."""


class Place(NamedTuple):
    """An array within a run of bytes."""

    start: int
    shape: tuple[int, ...]
    dtype: type[np.generic]

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * np.dtype(self.dtype).itemsize


Shapes = dict[str, tuple[tuple[int, ...], type[np.generic]]]
"""Shapes and types of arrays by name."""


def small_batch(layers: Sequence[Layer], room: Capacity) -> int:
    """Articles of the largest such batch, which a network has room for whatever their lengths."""
    return min(_MOST, room.units // most_units(layers))


def small_input(layers: Sequence[Layer], count: int) -> Shapes:
    return {"offsets": ((count + 1,), np.int64), "text": ((count * head_bytes(layers[0].rows_in),), np.uint8)}


def small_output(layers: Sequence[Layer], count: int, top_k: int) -> Shapes:
    classes = layers[-1].outputs
    return {
        "labels": ((count, top_k), np.int32),
        "best": ((count, top_k), np.float32),
        "scores": ((count, classes), np.float32),
        "logits": ((count, classes), np.float32),
        "n_chars": ((count,), np.int64),
        "truncated": ((count,), np.uint8),
        "unknown_chars": ((count,), np.int64),
        "saturated": ((1,), np.uint64),
    }


def places(arrays: Shapes) -> tuple[dict[str, Place], int]:
    """Where arrays lie that follow each other, aligned for every kernel, and how many bytes all take."""
    found, end = {}, 0
    for name, (shape, dtype) in arrays.items():
        found[name] = Place(end, shape, dtype)
        end = -(-found[name].stop // _ALIGNMENT) * _ALIGNMENT
    return found, end


def small_bytes(layers: Sequence[Layer], most: int) -> tuple[int, int]:
    """For the text and for the results of such batches of up to `most` articles."""
    classes = layers[-1].outputs
    return places(small_input(layers, most))[1], places(small_output(layers, most, classes))[1]
