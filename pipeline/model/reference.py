"""The network's forward pass in NumPy: the specification of every kernel, and the CPU backend of the dense frame.

Activations are channels-last rows, fp32 [R, 256]: article i of a batch is rows[offsets[i]:offsets[i + 1]], so articles
may differ in length. A convolution calls BLAS once for each article and tap, with a shape that depends only on the rows
of that article, and the linear layers run in batches of fixed sizes. So no article's result depends on its neighbours.

An overflow is never hidden: once an article has a value that is not finite, all its later values are NaN, including its
scores.
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
    """A product of `size` rows, whose first and last `margin` rows stay zero."""

    size: int
    margin: int

    @property
    def room(self) -> int:
        """The number of rows between the margins."""
        return self.size - 2 * self.margin


LINEAR_BATCHES = (LinearBatch(32, 0),)
"""The products of the linear layers in the specification; `even_batches` finds faster ones."""

_SIZES = (2, 8, 32, 128)
_MARGINS = (0, 8)
_OUTPUTS_AT_ONCE = 16
"""How many outputs of fc1 are transposed at once: few enough that the cache lines that are read stay in the cache."""

NO_LABEL = -1
"""The class of an article whose scores are not finite."""


class Rows(NamedTuple):
    """The activations of N articles. values: fp32 [R, channels]. offsets: int64 [N + 1], ascending, offsets[-1] == R.

    The rows of article i are offsets[i]:offsets[i + 1].
    """

    values: Floats
    offsets: Offsets


class Norm(NamedTuple):
    """A layer normalisation over all of [rows, channels]. gamma, beta: fp32 [rows, channels]."""

    gamma: Floats
    beta: Floats


@dataclass(frozen=True)
class NGramsAlone:
    """The values with which n-grams score texts without a network.

    Attributes
    ----------
    bias : float32 [classes]
        The bias that is added to the logits of the n-grams.
    temperature : float
        The number by which the logits are divided.
    margin : float, optional
        The margin below which the network scores a text, as in `cascade`; None for a model without a network.
    cuts : float32 [classes], optional
        The logits of the thresholds, as in `cascade`; only for a model with a network that gives several labels.

    """

    bias: Floats
    temperature: float
    margin: float | None = None
    cuts: Floats | None = None


@dataclass(frozen=True)
class Weights:
    """A model's tensors in the layouts that the operations read.

    The fields in the order of the forward pass: `padding` and `frame` for the input; `layers` for all blocks; `table`
    for block 1; `conv` for blocks 2 to 6; `norm` for blocks 1 and 6; `linear`, with `linear_batches`, for fc1 to fc3;
    `bias` for all; and `link`, `temperature` and `alone` for the scores. A model without a network has only layers,
    padding, frame and the fields for the scores.

    Attributes
    ----------
    layers : tuple of Layer
        The layers.
    padding : int
        The id of the positions after the end of a text.
    table : float32 [7, symbols + 2, 256]
        Block 1's weights by tap and id, zero for unknown and padding.
    conv : dict of str to float32 [kernel, inputs, outputs]
        The weights of blocks 2 to 6, by layer name.
    linear : dict of str to float32 [inputs, outputs]
        The weights of the linear layers, by layer name, with fc1's inputs in channels-last order.
    bias : dict of str to float32 [outputs]
        The bias of each layer, by layer name.
    norm : dict of str to Norm
        Gamma and beta, by layer name.
    frame : Frame
        How the network treats the positions after the end of a text.
    temperature : float
        The temperature of the scores.
    link : int
        The number of the function from logits to scores, as in `scores`.
    alone : NGramsAlone, optional
        The values with which the n-grams score texts without the network.
    linear_batches : tuple of LinearBatch
        The batches of the linear layers, the one with the least room first.

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
    """Return the values with which a model's n-grams score texts alone, or None if they never do."""
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
    # Return early for a model without a network.
    alone = _alone(model)
    of_scores = (model.temperature, model.link, alone)
    if not model.has_network:
        nothing = np.empty(0, np.float32)
        return Weights(model.layers, model.alphabet.padding, nothing, {}, {}, {}, {}, model.frame, *of_scores)
    # Make the table of block 1.
    tensors = {name: np.asarray(tensor, np.float32) for name, tensor in model.tensors.items()}
    first, *rest = model.layers
    table = np.zeros((first.kernel, len(model.alphabet) + 2, first.outputs), np.float32)
    table[:, : len(model.alphabet)] = tensors[f"{first.name}.weight"].transpose(2, 1, 0)
    # Transpose the weights of the other blocks.
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
    # Transpose the norms.
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
    """Compute block 1: each output row is the bias plus one table row for each tap; then layer norm, ReLU, max pool.

    Returns N articles of (length - kernel + 1) // pool rows. A window that lies wholly in the padding gives the bias,
    so only the windows that touch text are summed. In the text frame, only their rows are kept: after the ReLU, all
    other rows are zero.

    Parameters
    ----------
    ids : uint8 [N, length]
        The ids of the characters.
    padding : int
        The id of the positions after the end of a text.
    table : float32 [kernel, ids, channels]
        The weights by tap and id.
    bias : float32 [channels]
        The bias.
    norm : Norm
        Gamma and beta.
    pool : int
        The number of rows of a window of the pool.
    frame : Frame
        "text" or "dense".

    """
    # Allocate the output, and the memory of one article.
    kernel, _, channels = table.shape
    count, length = ids.shape
    rows = length - kernel + 1
    out = np.empty((count * (rows // pool), channels), np.float32)
    offsets = np.arange(count + 1) * (rows // pool)
    window = np.empty((rows, channels), np.float32)
    gathered = np.empty_like(window)
    # Sum the windows of each article that touch text, then normalise and pool.
    for article, touched in enumerate(np.minimum(text_ends(ids, padding), rows)):
        window[:] = bias
        for tap in range(kernel):
            part = gathered[:touched]
            # The mode "clip" only avoids a buffer in NumPy: every id is within the table.
            np.take(table[tap], ids[article, tap : tap + touched], axis=0, out=part, mode="clip")
            window[:touched] += part
        rows_to_keep = touched if frame == "text" else rows
        norm_relu_pool(window, norm, pool, out[offsets[article] : offsets[article + 1]], gathered, rows_to_keep)
    return Rows(out, offsets)


def conv1d(rows: Rows, weight: Floats, bias: Floats, pool: int = 1, norm: Norm | None = None) -> Rows:
    """Compute a valid convolution as a sum over taps of shifted products; then layer norm if given, ReLU, max pool.

    Parameters
    ----------
    rows : Rows
        N articles. An article of L rows gives (L - kernel + 1) // pool rows.
    weight : float32 [kernel, inputs, outputs]
        The weights.
    bias : float32 [outputs]
        The bias.
    pool : int
        The number of rows of a window of the pool.
    norm : Norm, optional
        Gamma and beta.

    """
    # Allocate the output, and the memory of one article.
    kernel, _, outputs = weight.shape
    lengths = np.diff(rows.offsets) - kernel + 1
    offsets = np.concatenate([[0], np.cumsum(lengths // pool)])
    out = np.empty((int(offsets[-1]), outputs), np.float32)
    total, product = np.empty((2, int(lengths.max(initial=0)), outputs), np.float32)
    # Add the products of each article's taps, then normalise and pool.
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
            if not np.isfinite(acc).all():  # ReLU would turn minus infinity into 0
                target.fill(np.nan)
        else:
            norm_relu_pool(acc, norm, pool, target, part, len(acc))
    return Rows(out, offsets)


def relu_pool(values: Floats, pool: int, out: Floats) -> None:
    """Apply ReLU, then take the largest value of each `pool` rows; rows after the last whole window are left out."""
    windows = values[: len(out) * pool].reshape(len(out), pool, values.shape[1])
    np.maximum(windows[:, 0], 0, out=out)
    for other in range(1, pool):
        np.maximum(out, windows[:, other], out=out)


def norm_relu_pool(values: Floats, norm: Norm, pool: int, out: Floats, scratch: Floats, rows_to_keep: int) -> None:
    """Apply a layer norm over all values, ReLU and max pool.

    NumPy sums pairwise, in an order that depends only on the shape.

    Parameters
    ----------
    values : float32 [rows, channels]
        The rows of an article, which are overwritten.
    norm : Norm
        Gamma and beta.
    pool : int
        The number of rows of a window of the pool.
    out : float32 [rows // pool, channels]
        The array for the result.
    scratch : float32 [rows, channels]
        Memory that is overwritten.
    rows_to_keep : int
        The number of rows to keep. The rows after them are zero after ReLU.

    """
    values -= values.mean()
    np.multiply(values, values, out=scratch)
    variance = scratch.mean()
    # With an infinite variance, the scale would be 0 and every value beta, which would hide the overflow.
    values *= 1 / np.sqrt(variance + np.float32(NORM_EPSILON)) if np.isfinite(variance) else np.float32(np.nan)
    values *= norm.gamma
    values += norm.beta
    values[rows_to_keep:] = 0
    relu_pool(values, pool, out)


def even_batches(weights: Mapping[str, Floats]) -> tuple[LinearBatch, ...]:
    """Find batches in which a row gets the same bits at each position and in each batch, with this machine's BLAS.

    OpenBLAS's kernels for AVX2 (Haswell, Zen) sum the first and last eight rows of a product in another order than the
    rows between them. No BLAS documents its order, so this function tests it: a batch of one row, repeated, must give
    equal rows. BLAS must be limited to one thread, as it is in the engine.

    weights: the weights of the products, by any names.
    """
    # Multiply one row, repeated, in each size of batch.
    rng = np.random.default_rng(0)
    rows = {name: rng.standard_normal(len(weight), np.float32) for name, weight in weights.items()}

    def products(size: int) -> Floats:
        sums = [_product(np.tile(rows[name], (size, 1)), weight) for name, weight in weights.items()]
        return np.concatenate(sums, axis=1)

    with np.errstate(over="ignore", invalid="ignore"):  # weights may overflow on every article
        by_size = {size: products(size) for size in _SIZES}
    # For each size, add the larger ones that give the same bits, and choose the list with the most room.
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
    """Whether each of the rows equals one row, where NaN equals NaN."""
    return np.array_equal(rows, np.broadcast_to(row, rows.shape), equal_nan=True)


def _product(x: Floats, weight: Floats) -> Floats:
    """Return x weight, as the transpose of weight^T x^T, for which OpenBLAS on AVX2 treats more rows alike."""
    product: Floats = weight.T @ x.T
    return product.T


def linear(
    x: Floats, weight: Floats, bias: Floats | np.float32, relu: bool, batches: tuple[LinearBatch, ...] = LINEAR_BATCHES
) -> Floats:
    """Compute x weight + bias in batches, then ReLU if `relu`. A row with a value that is not finite becomes NaN.

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
        Batches in which a row gets the same bits at each position, the one with the least room first.

    """
    # Multiply in batches: the smallest one that has room for all that is left, or else the largest one.
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
    # Add the bias, mark overflows, and apply ReLU.
    out += bias
    out[~np.isfinite(out).all(axis=1)] = np.nan
    if relu:
        np.maximum(out, 0, out=out)
    return out


def softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """Return the softmax of the logits divided by `temperature`, fp32 [N, classes]; NaN for rows that overflowed."""
    powers: Floats = np.exp((logits - logits.max(axis=1, keepdims=True)) * np.float32(1 / temperature))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def sigmoid(logits: Floats) -> Floats:
    """Return the probability of each class by itself, fp32 [N, classes]; NaN for rows that overflowed."""
    with np.errstate(over="ignore"):  # a logit far below 0 overflows here, and its score is 0
        scores: Floats = np.float32(1) / (np.exp(-logits) + np.float32(1))
    return scores


def class_scores(logits: Floats, model: Model) -> Floats:
    """Return the scores of a model's classes, fp32 [N, classes]. With softmax, the scores of a text add up to 1."""
    if model.link == SOFTMAX:
        return softmax(logits, model.temperature)
    return logits if model.link == GIVEN else in_steps(logits) if model.link == STEPS else sigmoid(logits)


def of_texts(ngrams: NGrams | FastText) -> Callable[[NDArray[np.uint8], Offsets], Floats]:
    """Return a function from N texts, as `ngrams.scores` takes them, to fp32 [N, classes].

    Its result is what n-grams add to the logits of a network, or the logits of a fastText model, or, for hierarchical
    softmax, the scores of one. BLAS must be limited to one thread, here and where the function is called.
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
    """Return the k best classes, int32 [N, k], and their scores, the best first; on a tie, the lowest index first.

    A row whose scores are NaN has the classes NO_LABEL, and scores of NaN.
    """
    order = scores.argmax(axis=1)[:, None].astype(np.int32)
    best = np.take_along_axis(scores, order, axis=1)
    if k > 1 or np.isnan(best).any():  # otherwise argmax is enough
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k].astype(np.int32)
        best = np.take_along_axis(scores, order, axis=1)
    order[np.isnan(best)] = NO_LABEL
    return order, best


def blocks(weights: Weights) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return the nine blocks with their names, in order.

    The first one takes ids, uint8 [N, length]; between them are Rows and then fp32 [N, 1024]; the last one returns
    logits.
    """
    first, *rest = weights.layers
    run: list[tuple[str, Callable[[Any], Any]]] = [(first.name, partial(_first_block, weights=weights, layer=first))]
    run += [(layer.name, partial(_block, weights=weights, layer=layer)) for layer in rest]
    return [(name, without_warnings(block)) for name, block in run]


def without_warnings(block: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a block that does not make NumPy warn of an overflow: the scores show which article overflowed."""

    def quiet(x: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            return block(x)

    return quiet


def _first_block(ids: NDArray[np.uint8], weights: Weights, layer: Layer) -> Rows:
    """Compute block 1."""
    bias, norm = weights.bias[layer.name], weights.norm[layer.name]
    return lookup_norm_pool(ids, weights.padding, weights.table, bias, norm, layer.pool, weights.frame)


def _block(x: Rows | Floats, weights: Weights, layer: Layer) -> Rows | Floats:
    """Compute any other block."""
    name, bias = layer.name, weights.bias[layer.name]
    if layer.kind == "conv1d":
        assert isinstance(x, Rows)
        return conv1d(x, weights.conv[name], bias, layer.pool, weights.norm.get(name))
    # Every article has the same number of rows here, which together are the input of the linear layer.
    values = x.values.reshape(len(x.offsets) - 1, -1) if isinstance(x, Rows) else x
    return linear(values, weights.linear[name], bias, layer.relu, weights.linear_batches)


def forward(ids: NDArray[np.uint8], weights: Weights) -> Floats:
    """Return the logits, fp32 [N, classes], of encoded articles, uint8 [N, length]."""
    x: Any = ids
    for _, block in blocks(weights):
        x = block(x)
    return np.asarray(x)
