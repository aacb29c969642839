"""How many units of memory and work an article takes, the twin of common/packing.cuh. Needs no GPU.

A unit is a row of block 2's pooled output, and what the other blocks have in its place. An article has one for each
such row that its text reaches, and `CLOSING` more. In the dense frame every article reaches all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.charcnn import Layer
from ..model.frame import Frame

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
    """Units of an article of full length."""
    return layers[1].rows_pooled + CLOSING


def articles_for_a_full_one(frame: Frame) -> int:
    """Articles in a batch for each one of full length that there is room for."""
    return _SHORT if frame == "text" else 1


def capacity(layers: Sequence[Layer], batch: int, frame: Frame) -> Capacity:
    """Room for `batch` articles; in the text frame for fewer where they are long."""
    return Capacity(batch, -(-batch // articles_for_a_full_one(frame)) * most_units(layers))


def units_by_length(layers: Sequence[Layer], frame: Frame) -> NDArray[np.int64]:
    """The units of an article by the index after its last character, from 0 to the length that the network reads."""
    first, second, *_ = layers
    lengths = np.arange(first.rows_in + 1)
    if frame == "dense":
        return np.full(len(lengths), most_units(layers))
    rows = np.minimum(-(-lengths // first.pool), first.rows_pooled)
    reach: NDArray[np.int64] = np.minimum(-(-rows // second.pool), second.rows_pooled)
    return reach + CLOSING
