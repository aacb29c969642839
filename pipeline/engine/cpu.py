"""The CPU engine: the network in NumPy with its BLAS, for groups of articles on threads of its own.

In the dense frame, `reference` computes the network. In int8, `quantised` computes all rows of either frame. In the
text frame, only the rows that the texts reach are computed:

An article of n characters reaches n rows of block 1 and n/3 rows after its pool. It reaches n/9 rows after the pool of
block 2, and n/9 rows of each later block. All later rows in the output of a block are the same for every article: the
product of the constant row of its input, which is zero after block 1. It is computed once. Layer norms still compute
their statistics over all rows, and the linear layers read all rows of block 6. As in `reference`, which is the
specification, a block reads `Rows`: for each article as many rows as its convolution needs, the last of them constant.

The rows of many articles share a product, but the bits of a row do not depend on its neighbours. Every product has TILE
rows, and each article begins at a multiple of the period in which BLAS treats rows alike, which is measured at start.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from ..model import quantised, reference
from ..model.alphabet import text_ends
from ..model.cascade import needs_network
from ..model.charcnn import Model
from ..model.layers import BIAS, NORM_EPSILON, WHOLE, Layer
from ..model.ngrams import NGrams, scores_of_ids
from ..model.reference import Floats, Norm, Offsets, Rows, Weights
from ..processes.threads import SINGLE_THREADED_BLAS
from ..telemetry.spans import Span, span
from .base import ALONE, Backend, Predictions, Texts

TILE = 96
_PERIODS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, TILE)
"""The divisors of TILE, as possible periods. With the last one, BLAS treats every row of a tile differently."""


class CpuEngine:
    """The engine on a CPU: groups of articles on `threads` threads, each with a single-threaded BLAS.

    BLAS has one thread, since the bits of a product must not depend on how many cores a worker has. `blocks`, `groups`,
    `each_group` and `branch` are public for profiling.
    """

    batch = None
    reads_gpu_texts = False

    def __init__(self, model: Model, threads: int, precision: str = "fp32") -> None:
        self.model = model
        self.device_name = "cpu"
        self.backend = Backend("cpu", "numpy", architecture(), precision)
        self._saturated: list[int] = []
        self.memory_ready = time.time()
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "broadsheet-compute")
        self.blocks: list[tuple[str, Callable[[Any], Any]]] = []
        self._length = model.length if model.has_network else WHOLE  # n-grams alone need no ids
        self._alone = None if model.has_network and model.cascade is None else model.asking("none")
        if model.ngrams is not None:
            with SINGLE_THREADED_BLAS:
                self._of_texts = reference.of_texts(model.ngrams)
        if model.has_network:
            self._prepare(precision)

    def _prepare(self, precision: str) -> None:
        """Prepare the weights of the network. A model of n-grams alone has none."""
        weights = reference.prepare(self.model)
        with SINGLE_THREADED_BLAS:
            weights = replace(weights, linear_batches=reference.even_batches(weights.linear))
            if precision == "int8":
                integers = quantised.prepare(weights, quantised.scales_of(self.model))
                self.blocks = quantised.blocks(weights, integers, self._saturated.append)
            else:
                self.blocks = text_blocks(weights) if self.model.frame == "text" else reference.blocks(weights)
        self._largest_batch = weights.linear_batches[-1].room
        self.memory_ready = time.time()

    def classify(
        self,
        texts: Texts,
        top_k: int = 1,
        all_scores: bool = False,
        spans: list[Span] | None = None,
        each_kernel: bool = False,
        turn: AbstractContextManager[object] = ALONE,
    ) -> Predictions:
        """Label N articles.

        Parameters
        ----------
        texts, top_k, all_scores, spans, each_kernel, turn
            See `Engine.classify`.

        """
        kernels = spans if each_kernel else None
        with turn, span("kernels", spans, "compute", self.device_name):
            self._saturated.clear()
            with span("encode", kernels, "compute", self.device_name):
                ids, n_chars, truncated, unknown = texts.encoded(self.model.alphabet, self._length)
            probabilities, asked_count = self._probabilities(texts, ids, kernels)
            with span("head", kernels, "compute", self.device_name):
                labels, best = reference.top_k(probabilities, top_k)
            saturated = sum(self._saturated)
        every = probabilities if all_scores else None
        predictions = Predictions(labels, best, every, n_chars, truncated, unknown, saturated, asked=asked_count)
        return predictions.with_numbers(self.model).by_head(self.model).of_whole_texts(texts, self.model)

    def _probabilities(self, texts: Texts, ids: NDArray[np.uint8], kernels: list[Span] | None) -> tuple[Floats, int]:
        """Return the score of every class, [N, classes], and `Predictions.asked`."""
        if self.model.ngrams is None:
            return reference.class_scores(self._logits(ids, kernels), self.model), 0
        with span("ngrams", kernels, "compute", self.device_name):
            beside = self.branch(texts)
        cascade, scores, rows = self.model.cascade, np.empty_like(beside), np.ones(len(texts), np.bool_)
        if self._alone is not None:
            logits = self._alone.tensors[BIAS].astype(np.float32) + beside
            scores = reference.class_scores(logits, self._alone)
            rows &= cascade is not None and needs_network(logits, cascade.margin, self.model.thresholds)
        if rows.any():
            logits = self._logits(ids[rows], kernels) + beside[rows]
            scores[rows] = reference.class_scores(logits, self.model)
        return scores, 0 if cascade is None else int(rows.sum())

    def _logits(self, ids: NDArray[np.uint8], kernels: list[Span] | None) -> Floats:
        logits = self.each_group(lambda group: self._forward(group, kernels), self.groups(ids))
        return np.concatenate([np.empty((0, len(self.model.classes)), np.float32), *logits])

    def branch(self, texts: Texts) -> NDArray[np.float32]:
        """Return what a model's n-grams add to the logits, [N, classes]."""
        ngrams = self.model.ngrams
        if texts.ids is not None and isinstance(ngrams, NGrams):
            return scores_of_ids(texts.ids, self.model.alphabet, ngrams)
        share = max(1, -(-len(texts) // self.threads))
        parts = [texts.offsets[first : first + share + 1] for first in range(0, len(texts), share)]
        logits = self.each_group(lambda offsets: self._of_texts(texts.data, offsets), parts)
        return np.concatenate([np.empty((0, len(self.model.classes)), np.float32), *logits])

    def _forward(self, ids: NDArray[np.uint8], kernels: list[Span] | None) -> NDArray[np.float32]:
        x: Any = ids
        lane = f"thread {threading.current_thread().name.rpartition('_')[2]}"
        for name, block in self.blocks:
            with span(name, kernels, lane, self.device_name):
                x = block(x)
        return np.asarray(x)

    def groups(self, ids: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Return the articles in groups of equal size, as many groups for each thread.

        No group is larger than the batches of the linear layers.
        """
        rounds = -(-len(ids) // (self._largest_batch * self.threads))
        size = max(1, -(-len(ids) // max(1, rounds * self.threads)))
        return [ids[first : first + size] for first in range(0, len(ids), size)]

    def each_group(self, work: Callable[[Any], Any], groups: Sequence[Any]) -> list[Any]:
        """Return the result of `work` for every group. It runs on the compute threads with a single-threaded BLAS."""
        with SINGLE_THREADED_BLAS:
            return list(self._pool.map(work, groups))

    def close(self) -> None:
        self._pool.shutdown()


def architecture() -> str:
    """Return the versions of NumPy and its BLAS and their code paths on this processor.

    Together they determine the bits of a score.
    """
    loaded = [library for library in threadpool_info() if library["user_api"] == "blas"]
    blas = [b for b in loaded if "numpy" in b["filepath"]] or loaded  # others may be SciPy's or PyTorch's
    names = sorted({f"{b['internal_api']} {b.get('version')} {b.get('architecture', '')}".strip() for b in blas})
    simd = np.show_config(mode="dicts").get("SIMD Extensions", {})
    simd_levels = simd.get("found") or simd.get("baseline") or ["no SIMD"]
    return ", ".join([f"numpy {np.__version__} {simd_levels[-1]}", *names])


def text_blocks(weights: Weights) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return the nine blocks, as in `reference.blocks`. BLAS must have one thread, here and when they are called."""
    first, *rest = (layer for layer in weights.layers if layer.kind == "conv1d")
    with np.errstate(over="ignore", invalid="ignore"):  # if weights overflow on every article
        convolutions = _convolutions(weights, rest)
    last = convolutions[-1]
    run: list[tuple[str, Callable[[Any], Any]]] = [
        (first.name, partial(_first_block, weights=weights, layer=first, following=convolutions[0])),
        *((one.layer.name, partial(_block, here=one, following=next_one)) for one, next_one in pairwise(convolutions)),
        (last.layer.name, partial(_norm_block, here=last, norm=weights.norm[last.layer.name])),
    ]
    return [(name, reference.without_warnings(block)) for name, block in run] + reference.blocks(weights)[len(run) :]


@dataclass(frozen=True)
class _TextConvolution:
    """One of blocks 2 to 6.

    Attributes
    ----------
    layer : Layer
        The layer.
    weight : float32 [kernel * inputs, outputs]
        The weights of the layer.
    bias : float32 [outputs]
        The bias of the layer.
    before : float32 [inputs]
        The constant row of its input.
    step : int
        The multiple at which articles begin in its products.

    """

    layer: Layer
    weight: Floats
    bias: Floats
    before: Floats
    step: int

    def rows_needed(self, reached: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many rows of input each article needs, [N], if `reached` of them are not constant.

        These are enough for the output rows that they reach, in whole windows of the pool that follows.
        """
        pool = self.layer.product_pool
        windows = np.minimum(-(-reached // pool), self.layer.rows_out // pool)
        return windows * pool + self.layer.kernel - 1

    def products(self, rows: Rows) -> tuple[Floats, Offsets, NDArray[np.int64]]:
        """Return products plus bias of N articles, fp32 [R, outputs], where each article begins, and its row count."""
        kernel, values = self.layer.kernel, rows.values
        counts = np.diff(rows.offsets) - kernel + 1
        offsets = _offsets(-(-counts // self.step) * self.step)
        used = int(offsets[-1])
        # The window of each row. Rows between two articles may have any window, since nothing reads them.
        window = np.zeros(-(-used // TILE) * TILE, np.int64)
        window[:used] = np.arange(used) + np.repeat(rows.offsets[:-1] - offsets[:-1], np.diff(offsets))
        window_count = max(len(values) - kernel + 1, 0)
        np.minimum(window, window_count - 1, out=window)
        shape = window_count, len(self.weight)
        windows = np.lib.stride_tricks.as_strided(values, shape, values.strides, writeable=False)
        sums = np.empty((len(window), self.layer.outputs), np.float32)
        for tile in range(0, len(window), TILE):
            np.matmul(windows[window[tile : tile + TILE]], self.weight, out=sums[tile : tile + TILE])
        sums += self.bias
        return sums, offsets[:-1], counts

    @property
    def after(self) -> Floats:
        """The row of its products after an article's own rows, fp32 [outputs]: the product of constant rows."""
        kernel = self.layer.kernel
        constant = Rows(np.tile(self.before, (kernel, 1)), np.array([0, kernel]))
        sums, _, _ = self.products(constant)
        first: Floats = sums[0].copy()
        return first


def _convolutions(weights: Weights, layers: list[Layer]) -> list[_TextConvolution]:
    flat = {layer.name: weights.conv[layer.name].reshape(-1, layer.outputs) for layer in layers}
    period = next(period for period in _PERIODS if all(_repeats(weight, period) for weight in flat.values()))
    convolutions: list[_TextConvolution] = []
    before = np.zeros(layers[0].inputs, np.float32)
    for layer in layers:
        step = math.lcm(period, layer.product_pool)
        convolutions.append(_TextConvolution(layer, flat[layer.name], weights.bias[layer.name], before, step))
        after = convolutions[-1].after
        before = np.maximum(after, 0) if np.isfinite(after).all() else np.full_like(after, np.nan)
    return convolutions


def _repeats(weight: Floats, period: int) -> bool:
    """Return whether, in a product of TILE rows, equal rows that are `period` apart have equal results."""
    row = np.random.default_rng(0).standard_normal(len(weight), np.float32)
    product = np.tile(row, (TILE, 1)) @ weight
    return np.array_equal(product[period:], product[:-period], equal_nan=True)


def _first_block(ids: NDArray[np.uint8], weights: Weights, layer: Layer, following: _TextConvolution) -> Rows:
    """Compute block 1. A window after the text is the bias, so the statistics need only the windows of the text."""
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
            # Every id is within the table. "clip" only avoids a buffer in NumPy.
            np.take(table[tap], ids[article, tap : tap + end], axis=0, out=part, mode="clip")
            window += part
        _normalise(window, part, bias, norm, layer.rows_out)
        begin, reached = offsets[article], pooled[article]
        values[end : reached * layer.pool] = 0
        reference.relu_pool(values, layer.pool, out[begin : begin + reached])
        out[begin + reached : offsets[article + 1]] = following.before
    return Rows(out, offsets)


def _normalise(values: Floats, scratch: Floats, rest: Floats, norm: Norm, rows: int) -> None:
    """Compute the layer norm of the first of `rows` rows in place. The other rows all equal `rest`.

    Parameters
    ----------
    values : float32 [reached, channels]
        The first rows, which the result replaces.
    scratch : float32 [reached, channels]
        Memory that is overwritten.
    rest : float32 [channels]
        The row that all other rows equal.
    norm : Norm
        Gamma and beta.
    rows : int
        The number of all rows.

    """
    others, size = rows - len(values), rows * len(rest)
    mean = np.float32((float(values.sum()) + others * float(rest.sum())) / size)
    values -= mean
    np.multiply(values, values, out=scratch)
    variance = (float(scratch.sum()) + others * float(np.square(rest - mean).sum())) / size
    values *= np.float32(1 / np.sqrt(variance + NORM_EPSILON)) if np.isfinite(variance) else np.float32(np.nan)
    values *= norm.gamma[: len(values)]
    values += norm.beta[: len(values)]


def _block(rows: Rows, here: _TextConvolution, following: _TextConvolution) -> Rows:
    """Compute one of blocks 2 to 5: product, ReLU, and max pool if the layer has one."""
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
        if not finite[begin : begin + count].all():  # ReLU would turn minus infinity into zero
            out[first:middle] = np.nan
        out[middle:end] = following.before
    return Rows(out, offsets)


def _norm_block(rows: Rows, here: _TextConvolution, norm: Norm) -> Rows:
    """Compute block 6: product, layer norm over all rows including the constant ones, ReLU and max pool."""
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
