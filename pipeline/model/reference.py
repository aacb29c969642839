"""The network's forward pass in NumPy: the specification of every kernel, and the CPU backend.

Activations are channels-last rows, fp32 [R, 256]: article i of a batch is rows[offsets[i]:offsets[i + 1]], so articles
may differ in length. Every product is one BLAS call an article, whose shape depends only on the rows of that article,
and the linear layers run in batches of a fixed size; so no article's result depends on its neighbours.

An overflow is never hidden: from a value that is not finite on, all values of that article are NaN, up to its scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.model.charcnn import NORM_EPSILON, Layer, Model
from pipeline.model.frame import Frame

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]

LINEAR_BATCHES = (32, 16, 8, 4, 2)
"""Articles in each product of the linear layers, the fastest first; a last, smaller batch is filled with zeros."""


NO_LABEL = -1
"""The class of an article whose scores are not finite."""


class Rows(NamedTuple):
    """values: fp32 [R, channels]. offsets: int64 [N + 1], ascending, offsets[-1] == R."""

    values: Floats
    offsets: Offsets


class Norm(NamedTuple):
    """Layer normalisation over all of [rows, channels], gamma and beta fp32 [rows, channels]."""

    gamma: Floats
    beta: Floats


@dataclass(frozen=True)
class Weights:
    """A model's tensors in the layouts that the operations read.

    table: fp32 [7, symbols + 2, 256], block 1's weights by tap and id, zero for unknown and padding.
    conv: by layer name fp32 [kernel, inputs, outputs]. linear: fp32 [inputs, outputs], fc1's inputs in channels-last
    order. bias: fp32 [outputs]. norm: gamma and beta by layer name. linear_batch: one of LINEAR_BATCHES.
    """

    layers: tuple[Layer, ...]
    padding: int
    table: Floats
    conv: dict[str, Floats]
    linear: dict[str, Floats]
    bias: dict[str, Floats]
    norm: dict[str, Norm]
    frame: Frame
    linear_batch: int = LINEAR_BATCHES[0]


def prepare(model: Model) -> Weights:
    """Rearrange a model's tensors for the operations below."""
    tensors = {name: np.asarray(tensor, np.float32) for name, tensor in model.tensors.items()}
    first, *rest = model.layers
    table = np.zeros((first.kernel, len(model.alphabet) + 2, first.outputs), np.float32)
    table[:, : len(model.alphabet)] = tensors[f"{first.name}.weight"].transpose(2, 1, 0)
    conv, linear, norm = {}, {}, {}
    for layer in rest:
        weight = tensors[f"{layer.name}.weight"]
        if layer.kind == "conv1d":
            conv[layer.name] = np.ascontiguousarray(weight.transpose(2, 1, 0))
        elif layer.name == "fc1":
            channels = conv["conv6"].shape[2]
            by_row = weight.reshape(layer.outputs, channels, -1).transpose(2, 1, 0)
            linear[layer.name] = np.ascontiguousarray(by_row.reshape(layer.inputs, layer.outputs))
        else:
            linear[layer.name] = np.ascontiguousarray(weight.T)
    for layer in model.layers:
        if layer.norm:
            gamma, beta = tensors[f"{layer.norm}.weight"], tensors[f"{layer.norm}.bias"]
            norm[layer.name] = Norm(np.ascontiguousarray(gamma.T), np.ascontiguousarray(beta.T))
    bias = {layer.name: tensors[f"{layer.name}.bias"] for layer in model.layers}
    return Weights(model.layers, model.alphabet.padding, table, conv, linear, bias, norm, model.frame)


def lookup_norm_pool(
    ids: NDArray[np.uint8], padding: int, table: Floats, bias: Floats, norm: Norm, pool: int, frame: Frame
) -> Rows:
    """Block 1: each output row is the bias plus one table row a tap; then layer norm, ReLU, max pool.

    ids: uint8 [N, length]. table: fp32 [kernel, ids, channels]. Returns N articles of (length - kernel + 1) // pool
    rows. A window that lies wholly in the padding is the bias, so only the windows that touch text are summed. In the
    text frame, these are also the rows that are kept: after ReLU, all others are zero.
    """
    kernel, _, channels = table.shape
    count, length = ids.shape
    rows = length - kernel + 1
    out = np.empty((count * (rows // pool), channels), np.float32)
    offsets = np.arange(count + 1) * (rows // pool)
    window = np.empty((rows, channels), np.float32)
    gathered = np.empty_like(window)
    for article in range(count):
        text = np.flatnonzero(ids[article] != padding)
        touched = min(int(text[-1]) + 1, rows) if len(text) else 0
        window[:] = bias
        for tap in range(kernel):
            part = gathered[:touched]
            # "clip" only avoids a buffer in NumPy: every id is within the table.
            np.take(table[tap], ids[article, tap : tap + touched], axis=0, out=part, mode="clip")
            window[:touched] += part
        kept = touched if frame == "text" else rows
        _norm_relu_pool(window, norm, pool, out[offsets[article] : offsets[article + 1]], gathered, kept)
    return Rows(out, offsets)


def conv1d(rows: Rows, weight: Floats, bias: Floats, pool: int = 1, norm: Norm | None = None) -> Rows:
    """A valid convolution as a sum over taps of shifted products; then layer norm if given, ReLU, max pool.

    weight: fp32 [kernel, inputs, outputs]. An article of L rows gives (L - kernel + 1) // pool rows.
    """
    kernel, _, outputs = weight.shape
    lengths = np.diff(rows.offsets) - kernel + 1
    offsets = np.concatenate([[0], np.cumsum(lengths // pool)])
    out = np.empty((int(offsets[-1]), outputs), np.float32)
    total, product = np.empty((2, int(lengths.max(initial=0)), outputs), np.float32)
    for article, length in enumerate(lengths):
        begin = rows.offsets[article]
        acc, part = total[:length], product[:length]
        np.matmul(rows.values[begin : begin + length], weight[0], out=acc)
        for tap in range(1, kernel):
            np.matmul(rows.values[begin + tap : begin + tap + length], weight[tap], out=part)
            acc += part
        acc += bias
        target = out[offsets[article] : offsets[article + 1]]
        if norm is None:
            _relu_pool(acc, pool, target)
            if not np.isfinite(acc).all():  # ReLU makes a zero of minus infinity
                target.fill(np.nan)
        else:
            _norm_relu_pool(acc, norm, pool, target, part, len(acc))
    return Rows(out, offsets)


def _relu_pool(values: Floats, pool: int, out: Floats) -> None:
    windows = values[: len(out) * pool].reshape(len(out), pool, values.shape[1])
    np.maximum(windows[:, 0], 0, out=out)
    for other in range(1, pool):
        np.maximum(out, windows[:, other], out=out)


def _norm_relu_pool(values: Floats, norm: Norm, pool: int, out: Floats, scratch: Floats, kept: int) -> None:
    """Rows from `kept` on are zero after ReLU. Overwrites `values` and `scratch`. NumPy sums pairwise, in an order that
    depends on the shape alone.
    """
    values -= values.mean()
    np.multiply(values, values, out=scratch)
    variance = scratch.mean()
    # Of an infinite variance the scale would be zero, and every value beta.
    values *= 1 / np.sqrt(variance + np.float32(NORM_EPSILON)) if np.isfinite(variance) else np.float32(np.nan)
    values *= norm.gamma
    values += norm.beta
    values[kept:] = 0
    _relu_pool(values, pool, out)


def even_batch(weights: Weights) -> int:
    """The largest of LINEAR_BATCHES in which the result of a row does not depend on its position, with this BLAS.

    OpenBLAS's kernels for AVX2 (Haswell, Zen) sum rows 6 to 11 of every twelve in another order than the other rows.
    Found by a test, since no BLAS documents this: a batch of one row, repeated, must give equal rows. BLAS must be
    limited to one thread, as it is in the engine.
    """
    rng = np.random.default_rng(0)
    rows = {name: rng.standard_normal(len(weight), np.float32) for name, weight in weights.linear.items()}
    with np.errstate(over="ignore", invalid="ignore"):  # of weights that overflow on every article
        for batch in LINEAR_BATCHES:
            products = (np.tile(rows[name], (batch, 1)) @ weight for name, weight in weights.linear.items())
            if all(np.array_equal(product[1:], product[:-1], equal_nan=True) for product in products):
                return batch
    return 1


def linear(x: Floats, weight: Floats, bias: Floats, relu: bool, batch: int = LINEAR_BATCHES[0]) -> Floats:
    """x weight + bias, `batch` rows at a time; then ReLU if `relu`. x: fp32 [N, inputs], weight [inputs, outputs].

    A row with a value that is not finite becomes NaN.
    """
    out = np.empty((len(x), weight.shape[1]), np.float32)
    for first in range(0, len(x), batch):
        part = x[first : first + batch]
        taken = len(part)
        if taken < batch:
            part = np.concatenate([part, np.zeros((batch - taken, x.shape[1]), np.float32)])
        out[first : first + taken] = (part @ weight)[:taken]
    out += bias
    out[~np.isfinite(out).all(axis=1)] = np.nan
    if relu:
        np.maximum(out, 0, out=out)
    return out


def softmax(logits: Floats) -> Floats:
    """Probabilities fp32 [N, classes]; NaN where `linear` found an overflow."""
    powers: Floats = np.exp(logits - logits.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def top_k(scores: Floats, k: int) -> tuple[NDArray[np.int32], Floats]:
    """The k best classes, int32 [N, k], best first and the lowest index first on a tie, and their scores.

    Where the scores are NaN, so are the best, and the classes are NO_LABEL.
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k].astype(np.int32)
    best = np.take_along_axis(scores, order, axis=1)
    order[np.isnan(best)] = NO_LABEL
    return order, best


def blocks(weights: Weights) -> list[tuple[str, Callable[[Any], Any]]]:
    """The nine blocks by name, in order: from ids uint8 [N, length], over Rows and fp32 [N, 1024], to logits."""
    first, *rest = weights.layers
    run: list[tuple[str, Callable[[Any], Any]]] = [(first.name, partial(_first_block, weights=weights, layer=first))]
    run += [(layer.name, partial(_block, weights=weights, layer=layer)) for layer in rest]
    return [(name, partial(_without_warnings, block)) for name, block in run]


def _without_warnings(block: Callable[[Any], Any], x: Any) -> Any:
    """NumPy would warn of an overflow, in the thread where it happens; the scores tell of which article it is."""
    with np.errstate(over="ignore", invalid="ignore"):
        return block(x)


def _first_block(ids: NDArray[np.uint8], weights: Weights, layer: Layer) -> Rows:
    bias, norm = weights.bias[layer.name], weights.norm[layer.name]
    return lookup_norm_pool(ids, weights.padding, weights.table, bias, norm, layer.pool, weights.frame)


def _block(x: Rows | Floats, weights: Weights, layer: Layer) -> Rows | Floats:
    name, bias = layer.name, weights.bias[layer.name]
    if layer.kind == "conv1d":
        assert isinstance(x, Rows)
        return conv1d(x, weights.conv[name], bias, layer.pool, weights.norm.get(name))
    # Every article has the same rows here, so they are the linear layers' inputs.
    values = x.values.reshape(len(x.offsets) - 1, -1) if isinstance(x, Rows) else x
    return linear(values, weights.linear[name], bias, layer.relu, weights.linear_batch)


def forward(ids: NDArray[np.uint8], weights: Weights) -> Floats:
    """Logits fp32 [N, classes] of encoded articles, uint8 [N, length]."""
    x: Any = ids
    for _, block in blocks(weights):
        x = block(x)
    return np.asarray(x)
