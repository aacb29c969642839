"""The network's forward pass in NumPy: the specification of every kernel, and the CPU backend of the dense frame.

Activations are channels-last rows, fp32 [R, 256]: article i of a batch is rows[offsets[i]:offsets[i + 1]], so articles
may differ in length. Every convolution is one BLAS call an article and tap, whose shape depends only on the rows of
that article, and the linear layers run in batches of fixed sizes; so no article's result depends on its neighbours.

An overflow is never hidden: from a value that is not finite on, all values of that article are NaN, up to its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .alphabet import text_ends
from .cascade import cuts
from .charcnn import Model
from .fasttext import OUTPUT, FastText, Reader
from .layers import BIAS, NORM_EPSILON, Frame, Layer
from .ngrams import NGrams, scores
from .scores import GIVEN, SOFTMAX, STEPS, in_steps

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]


class LinearBatch(NamedTuple):
    """A product of `size` rows, of which the first and the last `margin` are left zero."""

    size: int
    margin: int

    @property
    def room(self) -> int:
        return self.size - 2 * self.margin


LINEAR_BATCHES = (LinearBatch(32, 0),)
"""The products of the linear layers in the specification; `even_batches` finds faster ones."""

_SIZES = (2, 8, 32, 128)
_MARGINS = (0, 8)
_OUTPUTS_AT_ONCE = 16
"""Outputs of fc1 that are transposed at once: so few that the lines of memory that are read stay in the cache."""

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
class NGramsAlone:
    """What n-grams have without a network.

    Attributes
    ----------
    bias : float32 [classes]
        What is added to their logits.
    temperature : float
        By which the logits are divided.
    margin : float, optional
        As in `cascade`; None where there is no network to ask.
    cuts : float32 [classes], optional
        Of a model with a network that gives several labels: as in `cascade`.

    """

    bias: Floats
    temperature: float
    margin: float | None = None
    cuts: Floats | None = None


@dataclass(frozen=True)
class Weights:
    """A model's tensors in the layouts that the operations read.

    A model of n-grams alone has no more than layers, padding, frame and `alone`.

    Attributes
    ----------
    layers : tuple of Layer
        The layers.
    padding : int
        The id that follows the end of a text.
    table : float32 [7, symbols + 2, 256]
        Block 1's weights by tap and id, zero for unknown and padding.
    conv : dict of str to float32 [kernel, inputs, outputs]
        The weights of blocks 2 to 6, by layer name.
    linear : dict of str to float32 [inputs, outputs]
        Those of the linear layers, fc1's inputs in channels-last order.
    bias : dict of str to float32 [outputs]
        Of each layer.
    norm : dict of str to Norm
        Gamma and beta by layer name.
    frame : Frame
        Whether what follows a text's end counts.
    temperature : float
        Of the scores.
    link : int
        How scores follow from logits.
    alone : NGramsAlone, optional
        What the n-grams give without the network.
    linear_batches : tuple of LinearBatch
        Batches of the linear layers, the one with the least room first.

    """

    layers: tuple[Layer, ...]
    padding: int
    table: Floats
    conv: dict[str, Floats]
    linear: dict[str, Floats]
    bias: dict[str, Floats]
    norm: dict[str, Norm]
    frame: Frame
    temperature: float = 1.0
    link: int = SOFTMAX
    alone: NGramsAlone | None = None
    linear_batches: tuple[LinearBatch, ...] = LINEAR_BATCHES


def _alone(model: Model) -> NGramsAlone | None:
    if model.has_network and model.cascade is None:
        return None
    alone = model.asking("none")
    bias = alone.tensors[BIAS].astype(np.float32)
    if model.cascade is None:
        return NGramsAlone(bias, alone.temperature)
    of_labels = None if model.thresholds is None else cuts(model.thresholds)
    return NGramsAlone(bias, alone.temperature, model.cascade.margin, of_labels)


def prepare(model: Model) -> Weights:
    """Rearrange a model's tensors for the operations below."""
    alone = _alone(model)
    of_scores = (model.temperature, model.link, alone)
    if not model.has_network:
        nothing = np.empty(0, np.float32)
        return Weights(model.layers, model.alphabet.padding, nothing, {}, {}, {}, {}, model.frame, *of_scores)
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
            by_row = weight.reshape(layer.outputs, conv["conv6"].shape[2], -1).transpose(2, 1, 0)
            ordered = np.empty(by_row.shape, np.float32)
            for some in range(0, layer.outputs, _OUTPUTS_AT_ONCE):
                ordered[..., some : some + _OUTPUTS_AT_ONCE] = by_row[..., some : some + _OUTPUTS_AT_ONCE]
            linear[layer.name] = ordered.reshape(layer.inputs, layer.outputs)
        else:
            linear[layer.name] = np.ascontiguousarray(weight.T)
    for layer in model.layers:
        if layer.norm:
            gamma, beta = tensors[f"{layer.norm}.weight"], tensors[f"{layer.norm}.bias"]
            norm[layer.name] = Norm(np.ascontiguousarray(gamma.T), np.ascontiguousarray(beta.T))
    bias = {layer.name: tensors[f"{layer.name}.bias"] for layer in model.layers}
    padding = model.alphabet.padding
    return Weights(model.layers, padding, table, conv, linear, bias, norm, model.frame, *of_scores)


def lookup_norm_pool(
    ids: NDArray[np.uint8], padding: int, table: Floats, bias: Floats, norm: Norm, pool: int, frame: Frame
) -> Rows:
    """Block 1: each output row is the bias plus one table row a tap; then layer norm, ReLU, max pool.

    Returns N articles of (length - kernel + 1) // pool rows. A window that lies wholly in the padding is the bias, so
    only the windows that touch text are summed. In the text frame, these are also the rows that are kept: after ReLU,
    all others are zero.

    Parameters
    ----------
    ids : uint8 [N, length]
        The ids.
    padding : int
        The id that follows the end of a text.
    table : float32 [kernel, ids, channels]
        The weights by tap and id.
    bias : float32 [channels]
        The bias.
    norm : Norm
        Gamma and beta.
    pool : int
        Rows of a window of the pool.
    frame : Frame
        "text" or "dense".

    """
    kernel, _, channels = table.shape
    count, length = ids.shape
    rows = length - kernel + 1
    out = np.empty((count * (rows // pool), channels), np.float32)
    offsets = np.arange(count + 1) * (rows // pool)
    window = np.empty((rows, channels), np.float32)
    gathered = np.empty_like(window)
    for article, touched in enumerate(np.minimum(text_ends(ids, padding), rows)):
        window[:] = bias
        for tap in range(kernel):
            part = gathered[:touched]
            # "clip" only avoids a buffer in NumPy: every id is within the table.
            np.take(table[tap], ids[article, tap : tap + touched], axis=0, out=part, mode="clip")
            window[:touched] += part
        kept = touched if frame == "text" else rows
        norm_relu_pool(window, norm, pool, out[offsets[article] : offsets[article + 1]], gathered, kept)
    return Rows(out, offsets)


def conv1d(rows: Rows, weight: Floats, bias: Floats, pool: int = 1, norm: Norm | None = None) -> Rows:
    """A valid convolution as a sum over taps of shifted products; then layer norm if given, ReLU, max pool.

    Parameters
    ----------
    rows : Rows
        N articles; one of L rows gives (L - kernel + 1) // pool rows.
    weight : float32 [kernel, inputs, outputs]
        The weights.
    bias : float32 [outputs]
        The bias.
    pool : int
        Rows of a window of the pool.
    norm : Norm, optional
        Gamma and beta.

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
            relu_pool(acc, pool, target)
            if not np.isfinite(acc).all():  # ReLU makes a zero of minus infinity
                target.fill(np.nan)
        else:
            norm_relu_pool(acc, norm, pool, target, part, len(acc))
    return Rows(out, offsets)


def relu_pool(values: Floats, pool: int, out: Floats) -> None:
    """ReLU, then the greatest of each `pool` rows; rows after the last whole window are left out."""
    windows = values[: len(out) * pool].reshape(len(out), pool, values.shape[1])
    np.maximum(windows[:, 0], 0, out=out)
    for other in range(1, pool):
        np.maximum(out, windows[:, other], out=out)


def norm_relu_pool(values: Floats, norm: Norm, pool: int, out: Floats, scratch: Floats, kept: int) -> None:
    """Layer norm over all values, ReLU, max pool. NumPy sums pairwise, in an order that depends on the shape alone.

    Parameters
    ----------
    values : float32 [rows, channels]
        The rows of an article, which are overwritten.
    norm : Norm
        Gamma and beta.
    pool : int
        Rows of a window of the pool.
    out : float32 [rows // pool, channels]
        Where the result goes.
    scratch : float32 [rows, channels]
        Memory that is overwritten.
    kept : int
        Rows from this one on are zero after ReLU.

    """
    values -= values.mean()
    np.multiply(values, values, out=scratch)
    variance = scratch.mean()
    # Of an infinite variance the scale would be zero, and every value beta.
    values *= 1 / np.sqrt(variance + np.float32(NORM_EPSILON)) if np.isfinite(variance) else np.float32(np.nan)
    values *= norm.gamma
    values += norm.beta
    values[kept:] = 0
    relu_pool(values, pool, out)


def even_batches(weights: Mapping[str, Floats]) -> tuple[LinearBatch, ...]:
    """Batches in which a row has the same bits at each position and in each batch, with this BLAS.

    OpenBLAS's kernels for AVX2 (Haswell, Zen) sum the first and last eight rows of a product in another order than
    those between. Found by a test, since no BLAS documents this: a batch of one row, repeated, must give equal rows.
    BLAS must be limited to one thread, as it is in the engine.
    """
    rng = np.random.default_rng(0)
    rows = {name: rng.standard_normal(len(weight), np.float32) for name, weight in weights.items()}

    def products(size: int) -> Floats:
        sums = [_product(np.tile(rows[name], (size, 1)), weight) for name, weight in weights.items()]
        return np.concatenate(sums, axis=1)

    with np.errstate(over="ignore", invalid="ignore"):  # of weights that overflow on every article
        by_size = {size: products(size) for size in _SIZES}
    best: tuple[LinearBatch, ...] = (LinearBatch(1, 0),)
    for least, rest in ((size, _SIZES[place + 1 :]) for place, size in enumerate(_SIZES)):
        row = by_size[least][0]
        if not _all_equal(by_size[least], row):
            continue
        batches = [LinearBatch(least, 0)]
        for size in rest:
            margin = next((m for m in _MARGINS if 2 * m < size and _all_equal(by_size[size][m : size - m], row)), None)
            batches += [] if margin is None else [LinearBatch(size, margin)]
        best = max(best, tuple(batches), key=lambda batches: batches[-1].room)
    return best


def _all_equal(rows: Floats, row: Floats) -> bool:
    return np.array_equal(rows, np.broadcast_to(row, rows.shape), equal_nan=True)


def _product(x: Floats, weight: Floats) -> Floats:
    """x weight, as the transpose of weight^T x^T, in which OpenBLAS for AVX2 treats more rows alike."""
    product: Floats = weight.T @ x.T
    return product.T


def linear(
    x: Floats, weight: Floats, bias: Floats | np.float32, relu: bool, batches: tuple[LinearBatch, ...] = LINEAR_BATCHES
) -> Floats:
    """x weight + bias, in batches; then ReLU if `relu`. A row with a value that is not finite becomes NaN.

    Parameters
    ----------
    x : float32 [N, inputs]
        The input.
    weight : float32 [inputs, outputs]
        The weights.
    bias : float32 [outputs], or one number
        The bias.
    relu : bool
        Whether ReLU follows.
    batches : tuple of LinearBatch
        Batches in which a row has the same bits at each position, the one with the least room first.

    """
    out = np.empty((len(x), weight.shape[1]), np.float32)
    first = 0
    while first < len(x):
        left = len(x) - first
        batch = next((batch for batch in batches if batch.room >= left), batches[-1])
        taken = min(left, batch.room)
        part = np.zeros((batch.size, x.shape[1]), np.float32)
        part[batch.margin : batch.margin + taken] = x[first : first + taken]
        out[first : first + taken] = _product(part, weight)[batch.margin : batch.margin + taken]
        first += taken
    out += bias
    out[~np.isfinite(out).all(axis=1)] = np.nan
    if relu:
        np.maximum(out, 0, out=out)
    return out


def softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """Probabilities fp32 [N, classes] of the logits over `temperature`; NaN where `linear` found an overflow."""
    powers: Floats = np.exp((logits - logits.max(axis=1, keepdims=True)) * np.float32(1 / temperature))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def sigmoid(logits: Floats) -> Floats:
    """The probability of each class apart, fp32 [N, classes]; NaN where `linear` found an overflow."""
    with np.errstate(over="ignore"):  # of a logit far below zero, whose score is zero
        scores: Floats = np.float32(1) / (np.exp(-logits) + np.float32(1))
    return scores


def class_scores(logits: Floats, model: Model) -> Floats:
    """The scores of a model's classes, fp32 [N, classes]: they add up to 1 where it gives each text one label."""
    if model.link == SOFTMAX:
        return softmax(logits, model.temperature)
    return logits if model.link == GIVEN else in_steps(logits) if model.link == STEPS else sigmoid(logits)


def of_texts(ngrams: NGrams | FastText) -> Callable[[NDArray[np.uint8], Offsets], Floats]:
    """A function from texts to fp32 [N, classes], as `ngrams.scores`: what n-grams add to the logits of a network, or
    the logits of a model of fastText's. BLAS must be limited to one thread, here and where the function is called.
    """
    if isinstance(ngrams, NGrams):
        return partial(scores, ngrams=ngrams)
    reader, output, is_tree = Reader(ngrams), ngrams.output, ngrams.link == GIVEN
    if output is None:
        return (lambda data, offsets: ngrams.tree(reader.means(data, offsets))) if is_tree else reader.means
    weight = np.ascontiguousarray(output.T)
    batches = even_batches({OUTPUT: weight})

    def logits(data: NDArray[np.uint8], offsets: Offsets) -> Floats:
        outputs = linear(reader.means(data, offsets), weight, np.float32(0), False, batches)
        return ngrams.tree(outputs) if is_tree else outputs

    return logits


def top_k(scores: Floats, k: int) -> tuple[NDArray[np.int32], Floats]:
    """The k best classes, int32 [N, k], best first and the lowest index first on a tie, and their scores.

    Where the scores are NaN, so are the best, and the classes are NO_LABEL.
    """
    order = scores.argmax(axis=1)[:, None].astype(np.int32)
    best = np.take_along_axis(scores, order, axis=1)
    if k > 1 or np.isnan(best).any():  # else there is nothing to sort
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k].astype(np.int32)
        best = np.take_along_axis(scores, order, axis=1)
    order[np.isnan(best)] = NO_LABEL
    return order, best


def blocks(weights: Weights) -> list[tuple[str, Callable[[Any], Any]]]:
    """The nine blocks by name, in order: from ids uint8 [N, length], over Rows and fp32 [N, 1024], to logits."""
    first, *rest = weights.layers
    run: list[tuple[str, Callable[[Any], Any]]] = [(first.name, partial(_first_block, weights=weights, layer=first))]
    run += [(layer.name, partial(_block, weights=weights, layer=layer)) for layer in rest]
    return [(name, without_warnings(block)) for name, block in run]


def without_warnings(block: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """NumPy would warn of an overflow, in the thread where it happens; the scores tell of which article it is."""

    def quiet(x: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            return block(x)

    return quiet


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
    return linear(values, weights.linear[name], bias, layer.relu, weights.linear_batches)


def forward(ids: NDArray[np.uint8], weights: Weights) -> Floats:
    """Logits fp32 [N, classes] of encoded articles, uint8 [N, length]."""
    x: Any = ids
    for _, block in blocks(weights):
        x = block(x)
    return np.asarray(x)
