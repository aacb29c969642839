"""The network in NumPy as the split kernels compute it: numbers of two fp16 parts, and the sums of tensor cores.

A tensor core adds 16 exact products to a sum and drops the bits below fp32's last bit, where other arithmetic rounds.
How many bits it keeps while it adds the 16 products is not documented; this code keeps them all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from broadsheet.pipeline.kernels.split import GROUP, SplitWeights, joined, split
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.reference import Floats, Offsets, Rows, Weights

DEPTH = 16
"""The number of products that one instruction adds."""

_BELOW_FP32 = np.int64((1 << 29) - 1)


def dropped(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values without the bits below fp32's last bit."""
    return (values.view(np.int64) & ~_BELOW_FP32).view(np.float64)


def products(rows: NDArray[np.float16], weight: NDArray[np.float16], length: int, steps_in_sum: int) -> Floats:
    """Return sums over taps and channels, fp32 [length, outputs], from rows of parts [length + kernel - 1, 2 * inputs].

    steps_in_sum: how many steps, each of GROUP products, a tensor core sums before the sum is added to the total in
    fp32.
    """
    kernel, outputs, width = weight.shape
    total, high, low = np.zeros((length, outputs), np.float32), slice(0, GROUP), slice(GROUP, 2 * GROUP)
    steps = [(slab, tap) for slab in range(0, width, 2 * GROUP) for tap in range(kernel)]
    for first in range(0, len(steps), steps_in_sum):
        operands = []
        for slab, tap in steps[first : first + steps_in_sum]:
            x = rows[tap : tap + length, slab : slab + 2 * GROUP].astype(np.float64)
            operands.append((x, weight[tap, :, slab : slab + 2 * GROUP].astype(np.float64)))
        pairs = [(x[:, a], w[:, b]) for a, b in ((low, high), (high, low)) for x, w in operands]
        pairs += [(x[:, high], w[:, high]) for x, w in operands]
        total += tensor_core_sum(pairs).astype(np.float32)
    return total


def tensor_core_sum(pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> NDArray[np.float64]:
    found = np.zeros((len(pairs[0][0]), len(pairs[0][1])))
    for x, w in pairs:
        for at in range(0, GROUP, DEPTH):
            found = dropped(found + x[:, at : at + DEPTH] @ w[:, at : at + DEPTH].T)
    return found


def finished(total: Floats, affine: Floats, relu: bool) -> Floats:
    """Apply scale, bias, and NaN for a sum that overflows; then ReLU."""
    shift = affine[1] + 0 * total
    value = (total.astype(np.float64) * affine[0] + shift).astype(np.float32)
    return np.where(value < 0, np.float32(0), value) if relu else value


def forward(ids: NDArray[np.uint8], weights: Weights, parts: SplitWeights, steps_in_sum: int = 2) -> Floats:
    """Return the logits, fp32 [N, classes], of encoded articles, uint8 [N, length]."""
    first, *rest = weights.layers
    with np.errstate(over="ignore", invalid="ignore"):
        values, offsets = reference.lookup_norm_pool(
            ids, weights.padding, weights.table, weights.bias[first.name], parts.norm[first.name], first.pool,
            weights.frame,
        )  # fmt: skip
        x = split(values)
        for layer in rest[:-1]:
            weight, affine = parts.products[layer.name], parts.affine[layer.name]
            if layer.kind == "linear":
                x = split(finished(products(x.reshape(len(ids), -1), weight, len(ids), steps_in_sum), affine, True))
                continue
            found, offsets = convolved(Rows(x, offsets), weight, affine, layer.product_relu, steps_in_sum)
            pooled = np.empty((len(ids) * layer.rows_pooled, layer.outputs), np.float32)
            for article, out in enumerate(np.split(pooled, len(ids))):
                of_article = found[offsets[article] : offsets[article + 1]]
                if layer.norm:
                    of_article[:] = np.nan if of_article.var() < parts.least_variance else of_article
                    scratch, rows = np.empty_like(of_article), len(of_article)
                    reference.norm_relu_pool(of_article, parts.norm[layer.name], layer.pool, out, scratch, rows)
                else:
                    out[:] = of_article[: len(out) * layer.pool].reshape(len(out), layer.pool, -1).max(axis=1)
            x, offsets = split(pooled), np.arange(len(ids) + 1) * layer.rows_pooled
        logits: Floats = joined(x).astype(np.float32) @ parts.last.T + weights.bias[rest[-1].name]
        return logits


def convolved(
    rows: Rows, weight: NDArray[np.float16], affine: Floats, relu: bool, steps_in_sum: int
) -> tuple[Floats, Offsets]:
    """Return the rows that depend on one article only, of all articles, and the offset at which those of each begin."""
    kernel, lengths = len(weight), np.diff(rows.offsets) - len(weight) + 1
    total = products(rows.values, weight, len(rows.values) - kernel + 1, steps_in_sum)
    inside = np.concatenate([np.arange(n) + begin for n, begin in zip(lengths, rows.offsets, strict=False)])
    return finished(total[inside], affine, relu), np.concatenate([[0], np.cumsum(lengths)])
