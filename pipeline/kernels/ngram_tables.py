"""The branch of n-grams as its kernel reads it, and how much memory that takes. NumPy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.ngrams import NGrams, Script, script
from ..model.reference import Floats

COLUMNS = 8
"""Columns of a row that one lane reads, in 16 bytes."""

MOST_LANES = 32


class NGramTables(NamedTuple):
    """table: int16 [slabs, buckets, columns], squares and then classes. scale: fp32 [2, slabs, columns]. script: what
    characters are.
    """

    table: NDArray[np.int16]
    scale: Floats
    script: Script


def lanes(classes: int) -> int:
    """Lanes that read a row together: a power of two, so that whole rows fit a warp."""
    found = 1
    while found < MOST_LANES and found * COLUMNS <= classes:
        found *= 2
    return found


def slabs(classes: int) -> int:
    """Parts of the classes that a warp takes one at a time, each beside the squares."""
    return -(-classes // (lanes(classes) * COLUMNS - 1))


def ngram_tables(ngrams: NGrams) -> NGramTables:
    """Rearrange a branch's table."""
    buckets, classes = len(ngrams.table), ngrams.table.shape[1] - 1
    width, count = lanes(classes) * COLUMNS, slabs(classes)
    table = np.zeros((count, buckets, width), np.int16)
    scale = np.zeros((2, count, width), np.float32)
    table[:, :, 0] = ngrams.table[:, -1]
    for slab in range(count):
        taken = slice(slab * (width - 1), min((slab + 1) * (width - 1), classes))
        held = slice(1, 1 + taken.stop - taken.start)
        table[slab, :, held] = ngrams.table[:, taken]
        scale[:, slab, held] = ngrams.scale[:, taken]
    return NGramTables(table, scale, script())


def ngram_bytes(ngrams: NGrams) -> int:
    """Of all that `ngram_tables` returns."""
    classes = ngrams.table.shape[1] - 1
    columns = slabs(classes) * lanes(classes) * COLUMNS
    return columns * (2 * len(ngrams.table) + 8) + sum(part.nbytes for part in script())
