"""The text frame on a CPU: the rows that an article's text reaches, and a constant row a layer in place of the others.

An article of n characters reaches n rows of block 1, a third of them after its pool, a ninth after that of block 2, and
that many rows of each block from there on. What follows them in a block's output is the same row for every article: the
product of its input's constant row, which is zero after block 1. It is computed once. Layer norms still take their
statistics over all rows, and the linear layers read all of block 6.

`reference` defines what is computed here. As there, a block takes Rows: of each article as many rows as its convolution
needs, the last of them constant.

The rows of many articles share a product, and still a row's bits do not depend on its neighbours: every product has
TILE rows, and each article begins at a multiple of the period in which BLAS treats rows alike, which is found at start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import reference
from ..model.alphabet import text_ends
from ..model.charcnn import NORM_EPSILON, Layer
from ..model.reference import Floats, Norm, Offsets, Rows, Weights

TILE = 96
_PERIODS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, TILE)
"""The divisors of TILE. In the last of them every row of a tile is unlike the others."""


def blocks(weights: Weights) -> list[tuple[str, Callable[[Any], Any]]]:
    """The nine blocks, as in `reference.blocks`. BLAS must be limited to one thread, here as where they are called."""
    first, *rest = (layer for layer in weights.layers if layer.kind == "conv1d")
    with np.errstate(over="ignore", invalid="ignore"):  # of weights that overflow on every article
        convolutions = _convolutions(weights, rest)
    last = convolutions[-1]
    run: list[tuple[str, Callable[[Any], Any]]] = [
        (first.name, partial(_first_block, weights=weights, layer=first, following=convolutions[0])),
        *((one.layer.name, partial(_block, here=one, following=next_one)) for one, next_one in pairwise(convolutions)),
        (last.layer.name, partial(_norm_block, here=last, norm=weights.norm[last.layer.name])),
    ]
    return [(name, reference.without_warnings(block)) for name, block in run] + reference.blocks(weights)[len(run) :]


@dataclass(frozen=True)
class _Convolution:
    """One of blocks 2 to 6.

    weight: fp32 [kernel * inputs, outputs]. before: the constant row of its input, fp32 [inputs]. step: the multiple at
    which articles begin in its products.
    """

    layer: Layer
    weight: Floats
    bias: Floats
    before: Floats
    step: int

    def rows_needed(self, reached: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many rows of input it needs, [N], where `reached` of them are not constant.

        Enough for the rows that these reach, as whole windows of the pool that follows.
        """
        pool = self.layer.product_pool
        windows = np.minimum(-(-reached // pool), self.layer.rows_out // pool)
        return windows * pool + self.layer.kernel - 1

    def products(self, rows: Rows) -> tuple[Floats, Offsets, NDArray[np.int64]]:
        """Products and bias of N articles, fp32 [R, outputs]; where each article begins, and how many rows it has."""
        kernel, values = self.layer.kernel, rows.values
        counts = np.diff(rows.offsets) - kernel + 1
        offsets = _offsets(-(-counts // self.step) * self.step)
        used = int(offsets[-1])
        # The window of each row. Those of rows between two articles may be any, since nobody reads them.
        window = np.zeros(-(-used // TILE) * TILE, np.int64)
        window[:used] = np.arange(used) + np.repeat(rows.offsets[:-1] - offsets[:-1], np.diff(offsets))
        there = max(len(values) - kernel + 1, 0)
        np.minimum(window, there - 1, out=window)
        windows = np.lib.stride_tricks.as_strided(values, (there, len(self.weight)), values.strides, writeable=False)
        sums = np.empty((len(window), self.layer.outputs), np.float32)
        for tile in range(0, len(window), TILE):
            np.matmul(windows[window[tile : tile + TILE]], self.weight, out=sums[tile : tile + TILE])
        sums += self.bias
        return sums, offsets[:-1], counts

    @property
    def after(self) -> Floats:
        """The row of its products that follows an article's own, fp32 [outputs]: that of constant rows."""
        kernel = self.layer.kernel
        constant = Rows(np.tile(self.before, (kernel, 1)), np.array([0, kernel]))
        sums, _, _ = self.products(constant)
        first: Floats = sums[0].copy()
        return first


def _convolutions(weights: Weights, layers: list[Layer]) -> list[_Convolution]:
    flat = {layer.name: weights.conv[layer.name].reshape(-1, layer.outputs) for layer in layers}
    period = next(period for period in _PERIODS if all(_repeats(weight, period) for weight in flat.values()))
    found: list[_Convolution] = []
    before = np.zeros(layers[0].inputs, np.float32)
    for layer in layers:
        step = math.lcm(period, layer.product_pool)
        found.append(_Convolution(layer, flat[layer.name], weights.bias[layer.name], before, step))
        after = found[-1].after
        before = np.maximum(after, 0) if np.isfinite(after).all() else np.full_like(after, np.nan)
    return found


def _repeats(weight: Floats, period: int) -> bool:
    """Whether, in a product of TILE rows, the result of a row is the same `period` rows further."""
    row = np.random.default_rng(0).standard_normal(len(weight), np.float32)
    product = np.tile(row, (TILE, 1)) @ weight
    return np.array_equal(product[period:], product[:-period], equal_nan=True)


def _first_block(ids: NDArray[np.uint8], weights: Weights, layer: Layer, following: _Convolution) -> Rows:
    """Block 1. A window after the text is the bias, so the statistics need no more than the windows of the text."""
    table, bias, norm = weights.table, weights.bias[layer.name], weights.norm[layer.name]
    ends = np.minimum(text_ends(ids, weights.padding), layer.rows_out)
    pooled = np.minimum(-(-ends // layer.pool), layer.rows_pooled)
    offsets = _offsets(following.rows_needed(pooled))
    out = np.empty((int(offsets[-1]), layer.outputs), np.float32)
    values, scratch = np.empty((2, layer.rows_out, layer.outputs), np.float32)
    for article, end in enumerate(ends):
        window, part = values[:end], scratch[:end]
        window[:] = bias
        for tap in range(layer.kernel):
            # "clip" only avoids a buffer in NumPy: every id is within the table.
            np.take(table[tap], ids[article, tap : tap + end], axis=0, out=part, mode="clip")
            window += part
        _normalise(window, part, bias, norm, layer.rows_out)
        begin, reached = offsets[article], pooled[article]
        values[end : reached * layer.pool] = 0
        reference.relu_pool(values, layer.pool, out[begin : begin + reached])
        out[begin + reached : offsets[article + 1]] = following.before
    return Rows(out, offsets)


def _normalise(values: Floats, scratch: Floats, rest: Floats, norm: Norm, rows: int) -> None:
    """Layer norm of the first of `rows` rows, where the others are `rest`. Overwrites `values` and `scratch`."""
    others, size = rows - len(values), rows * len(rest)
    mean = np.float32((float(values.sum()) + others * float(rest.sum())) / size)
    values -= mean
    np.multiply(values, values, out=scratch)
    variance = (float(scratch.sum()) + others * float(np.square(rest - mean).sum())) / size
    values *= np.float32(1 / np.sqrt(variance + NORM_EPSILON)) if np.isfinite(variance) else np.float32(np.nan)
    values *= norm.gamma[: len(values)]
    values += norm.beta[: len(values)]


def _block(rows: Rows, here: _Convolution, following: _Convolution) -> Rows:
    """Blocks 2 to 5: ReLU, and max pool where the layer has one."""
    pool = here.layer.pool
    sums, begins, counts = here.products(rows)
    pooled = np.empty((len(sums) // pool, here.layer.outputs), np.float32)
    reference.relu_pool(sums, pool, pooled)
    finite: NDArray[np.bool_] = np.isfinite(sums)
    offsets = _offsets(following.rows_needed(counts // pool))
    out = np.empty((int(offsets[-1]), here.layer.outputs), np.float32)
    for begin, count, first, end in zip(begins, counts, offsets[:-1], offsets[1:], strict=True):
        middle = first + count // pool
        out[first:middle] = pooled[begin // pool : (begin + count) // pool]
        if not finite[begin : begin + count].all():  # ReLU makes a zero of minus infinity
            out[first:middle] = np.nan
        out[middle:end] = following.before
    return Rows(out, offsets)


def _norm_block(rows: Rows, here: _Convolution, norm: Norm) -> Rows:
    """Block 6: layer norm of all rows, the constant ones too, ReLU, max pool."""
    layer = here.layer
    sums, begins, counts = here.products(rows)
    out = np.empty((len(counts), layer.rows_pooled, layer.outputs), np.float32)
    values, scratch = np.empty((2, layer.rows_out, layer.outputs), np.float32)
    after = here.after
    for begin, count, target in zip(begins, counts, out, strict=True):
        values[:count] = sums[begin : begin + count]
        values[count:] = after
        reference.norm_relu_pool(values, norm, layer.pool, target, scratch, layer.rows_out)
    return Rows(out.reshape(-1, layer.outputs), np.arange(len(counts) + 1) * layer.rows_pooled)


def _offsets(counts: NDArray[np.int64]) -> Offsets:
    return np.concatenate([[0], np.cumsum(counts)])
