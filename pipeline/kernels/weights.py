"""The tensors of a model on the GPU, in the orders and precisions that the kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..model.alphabet import Alphabet
from ..model.fasttext import FastText, Settings
from ..model.layers import Layer
from ..model.ngrams import Kinds, NGrams
from ..model.quantised import Integers
from ..model.reference import Floats, NGramsAlone, Weights
from . import split
from .storage import BFLOAT, FLOAT, HALF, STORAGE, Element, Storage
from .tables import (
    FastTextShape,
    StatisticsTables,
    eight_bit_order,
    fasttext_shape,
    fasttext_tables,
    fixed_point,
    ngram_tables,
    rescale_table,
    statistics_tables,
)
from .tiles import SimtLookupTile, SplitLookupTile, lookup_tile

_LARGEST = {HALF: (65_504.0, "--precision bf16 or --precision fp32"), BFLOAT: (255 * 2.0**120, "--precision fp32")}
"""The largest number of each type, and the options to use for larger ones."""


@dataclass(frozen=True)
class DeviceAlphabet:
    """The characters that a model reads.

    Attributes
    ----------
    byte_ids : uint8 [256]
        The id of each single byte.
    points : uint32 [P]
        The code points of symbols beyond ASCII, in ascending order.
    point_ids : uint8 [P]
        The ids of these symbols.
    unknown : int
        The id of all other characters.

    """

    byte_ids: cp.ndarray
    points: cp.ndarray
    point_ids: cp.ndarray
    unknown: int


@dataclass(frozen=True)
class DeviceTable:
    """The table of block 1.

    Attributes
    ----------
    entries : cupy.ndarray
        Float32 [kernel, ids, channels] for `simt/`. For `sm80/` it is [slices, kernel, ids, channels of a slice]:
        float32 for split_lookup_norm_pool.cu, and uint16 for lookup_norm_pool.cu.
    affine : cupy.ndarray
        The bias, float32 [channels], or for lookup_norm_pool.cu of `sm80/` float32 [3, channels] from `fixed_point`.

    """

    entries: cp.ndarray
    affine: cp.ndarray


@dataclass(frozen=True)
class DeviceNorm:
    """The parameters of a layer norm.

    Attributes
    ----------
    gamma, beta : cupy.ndarray
        [rows, channels], in the type `Storage.norms`.
    least_variance : float
        The least variance for numbers in two fp16 parts. An article with less gets no score.

    """

    gamma: cp.ndarray
    beta: cp.ndarray
    least_variance: float = 0


@dataclass(frozen=True)
class DeviceNGrams:
    """The n-grams of a model on the GPU.

    Attributes
    ----------
    kinds : Kinds
        The kinds of n-grams.
    classes : int
        The number of classes of the model.
    shift : int
        The number of bits by which a hash is shifted to get its bucket.
    symbols, letters : cupy.ndarray
        The arrays of `NGramTables.script`.
    table : int16 [slabs, buckets, columns]
        The table of `NGramTables`.
    scale : float32 [2, slabs, columns]
        The scale of `NGramTables`.

    """

    kinds: Kinds
    classes: int
    shift: int
    symbols: cp.ndarray
    letters: cp.ndarray
    table: cp.ndarray
    scale: cp.ndarray


@dataclass(frozen=True)
class DeviceFastText:
    """A fastText model on the GPU. `FastTextTables` describes the arrays.

    Attributes
    ----------
    kinds : Settings
        The settings of the model.
    shape : FastTextShape
        How a row is read.
    known : int
        The number of words in the dictionary, which have the first rows.
    columns : int
        The number of columns of the table.
    slots, words, ends : cupy.ndarray
        The dictionary.
    end : int
        The number of "</s>", or -1 for none.
    pruned : cupy.ndarray or None
        The row of each bucket.
    table, scale : cupy.ndarray
        The rows, and the value of one step.
    output : cupy.ndarray or None
        The matrix of the product.
    tree : tuple of cupy.ndarray, or None
        The steps and ends of the tree of hierarchical softmax, as in `fasttext.Paths`.

    """

    kinds: Settings
    shape: FastTextShape
    known: int
    columns: int
    slots: cp.ndarray
    words: cp.ndarray
    ends: cp.ndarray
    end: int
    pruned: cp.ndarray | None
    table: cp.ndarray
    scale: cp.ndarray
    output: cp.ndarray | None
    tree: tuple[cp.ndarray, cp.ndarray] | None


@dataclass(frozen=True)
class DeviceWeights:
    """The tensors of `reference.Weights` on the GPU.

    Attributes
    ----------
    statistics : StatisticsTables
        The sums that replace the outputs of block 1.
    table : DeviceTable
        The table of block 1.
    products : dict of str to cupy.ndarray
        The weights by layer name: [kernel, inputs, outputs] in fp32, [kernel, outputs, inputs] in 16 or 8 bits, or
        [kernel, outputs, 2 * inputs] in two fp16 parts. Those of the last layer are always fp32 [outputs, inputs].
    bias : dict of str to cupy.ndarray
        The biases by layer name, fp32 [outputs]. Products in 8 bits have a `rescale_table` instead, and products in two
        parts have scale and bias, [2, outputs].
    norm : dict of str to DeviceNorm
        Gamma and beta, by layer name.
    steps_in_one : float
        How many steps of block 1's 8-bit output make 1.

    """

    statistics: StatisticsTables
    table: DeviceTable
    products: dict[str, cp.ndarray]
    bias: dict[str, cp.ndarray]
    norm: dict[str, DeviceNorm]
    steps_in_one: float


@dataclass(frozen=True)
class DeviceAlone:
    """The values of `reference.NGramsAlone` on the GPU.

    Attributes
    ----------
    bias : float32 [classes]
        The bias that is added to the logits of n-grams.
    temperature : float
        The temperature of the scores.
    margin : float or None
        The margin below which the network must score an article, or None if there is no network.
    cuts : float32 [classes], or None
        The cuts of a model that gives several labels. See `cascade`.

    """

    bias: cp.ndarray
    temperature: float
    margin: float | None
    cuts: cp.ndarray | None


def upload_alphabet(alphabet: Alphabet) -> DeviceAlphabet:
    byte_ids, points, point_ids = alphabet.tables
    return DeviceAlphabet(cp.asarray(byte_ids), cp.asarray(points), cp.asarray(point_ids), alphabet.unknown)


def upload_alone(alone: NGramsAlone) -> DeviceAlone:
    cuts = None if alone.cuts is None else cp.asarray(alone.cuts)
    return DeviceAlone(cp.asarray(alone.bias), alone.temperature, alone.margin, cuts)


def upload(
    weights: Weights, integers: Integers | None, generation: str, precision: str, architecture: str
) -> DeviceWeights:
    """Rearrange the tensors of a model and copy them to the GPU. This takes about 30 ms for the shipped model.

    Parameters
    ----------
    weights : Weights
        The tensors.
    integers : Integers or None
        The convolutions after block 1, for products in 8 bits.
    generation : str
        The kernel generation, such as "sm90".
    precision : str
        The precision, such as "fp16".
    architecture : str
        The GPU's architecture, such as "sm_90".

    """
    stored = STORAGE[generation][precision]
    parts = split.prepare(weights) if stored.is_split else None
    sums = statistics_tables(weights)
    products, bias = _upload_parts(weights, parts) if parts else _upload_products(weights, stored)
    if integers:
        by_block = _upload_integers(weights.layers, integers, generation)
        products, bias = {**products, **by_block[0]}, {**bias, **by_block[1]}
    return DeviceWeights(
        sums._replace(first=cp.asarray(sums.first), pairs=cp.asarray(sums.pairs)),
        _upload_table(weights, generation, precision, architecture),
        products,
        bias,
        _upload_norms(weights, parts, stored),
        1 / integers.first_step if integers else 1.0,
    )


def upload_ngrams(ngrams: NGrams) -> DeviceNGrams:
    """Rearrange the table of a model's n-grams and copy it to the GPU."""
    table, scale, script = ngram_tables(ngrams)
    arrays = (cp.asarray(part) for part in (*script, table, scale))
    return DeviceNGrams(ngrams.kinds, ngrams.table.shape[1] - 1, 32 - ngrams.bits, *arrays)


def upload_fasttext(model: FastText, exact: bool) -> DeviceFastText:
    """Rearrange a fastText model and copy it to the GPU. exact: see `fasttext_shape`."""
    tables, columns = fasttext_tables(model, exact), model.table.shape[1]
    slots, words, ends, end, pruned, table, scale, output, paths = tables

    def copied(array: NDArray[Any] | None) -> cp.ndarray | None:
        return None if array is None else cp.asarray(array)

    tree = None if paths is None else (cp.asarray(paths.steps), cp.asarray(paths.ends))
    dictionary = cp.asarray(slots), cp.asarray(words), cp.asarray(ends), end, copied(pruned)
    rest = cp.asarray(table), cp.asarray(scale), copied(output), tree
    return DeviceFastText(model.kinds, fasttext_shape(columns, exact), model.known, columns, *dictionary, *rest)


def _upload_table(weights: Weights, generation: str, precision: str, architecture: str) -> DeviceTable:
    first = weights.layers[0]
    at = lookup_tile(generation, precision, architecture, first)
    entries: NDArray[Any] = weights.table
    affine = weights.bias[first.name]
    if isinstance(at, SimtLookupTile):
        return DeviceTable(cp.asarray(entries), cp.asarray(affine))
    if not isinstance(at, SplitLookupTile):
        entries, affine = fixed_point(weights.table, affine)
        if precision == "int8" and not np.isfinite(affine).all():
            raise UsageError("the weights of block 1 are too large for 8-bit activations: use --precision fp32")
    kernel, ids, channels = entries.shape
    slices = entries.reshape(kernel, ids, channels // at.channels, at.channels).transpose(2, 0, 1, 3)
    return DeviceTable(cp.asarray(np.ascontiguousarray(slices)), cp.asarray(affine))


Arrays = dict[str, cp.ndarray]
"""Arrays by layer name."""


def _upload_products(weights: Weights, stored: Storage) -> tuple[Arrays, Arrays]:
    """Return the products and biases in fp32 or 16 bits, without those of blocks in 8 bits."""
    _, *rest, last = weights.layers
    products = {last.name: cp.asarray(np.ascontiguousarray(weights.linear[last.name].T))}
    for layer in rest:
        element = stored.read_by(layer)
        if layer.kind == "conv1d" and stored.is_int8:
            continue
        weight = weights.conv[layer.name] if layer.kind == "conv1d" else weights.linear[layer.name][None]
        products[layer.name] = to_device(weight if element is FLOAT else weight.transpose(0, 2, 1), element)
    return products, {name: cp.asarray(bias) for name, bias in weights.bias.items()}


def _upload_integers(layers: Sequence[Layer], integers: Integers, generation: str) -> tuple[Arrays, Arrays]:
    products, bias = {}, {}
    for layer in layers:
        convolution = integers.convolutions.get(layer.name)
        if convolution is None:
            continue
        by_output = convolution.weight.transpose(0, 2, 1)
        if generation == "sm90" and not layer.norm:
            by_output = by_output[:, eight_bit_order(layer.outputs)]
        products[layer.name] = cp.asarray(np.ascontiguousarray(by_output))
        bias[layer.name] = cp.asarray(rescale_table(convolution.bias, convolution.scale))
    return products, bias


def _upload_parts(weights: Weights, parts: split.SplitWeights) -> tuple[Arrays, Arrays]:
    last = weights.layers[-1].name
    products = {name: cp.asarray(values) for name, values in parts.products.items()}
    affine = {name: cp.asarray(values) for name, values in parts.affine.items()}
    return {**products, last: cp.asarray(parts.last)}, {**affine, last: cp.asarray(weights.bias[last])}


def _upload_norms(weights: Weights, parts: split.SplitWeights | None, stored: Storage) -> dict[str, DeviceNorm]:
    first, norms = weights.layers[0].name, {}
    for name, (gamma, beta) in (parts.norm if parts else weights.norm).items():
        least = parts.least_variance if parts and name != first else 0
        norms[name] = DeviceNorm(to_device(gamma, stored.norms), to_device(beta, stored.norms), least)
    return norms


def to_device(values: Floats, element: Element) -> cp.ndarray:
    """Copy numbers to the GPU in a type. Raises UsageError if a number does not fit.

    Half becomes float16. NumPy has no bfloat16, so BFloat becomes uint16 with its bits, rounded to nearest even.
    """
    values = np.ascontiguousarray(values, np.float32)
    if element in _LARGEST:
        largest, others = _LARGEST[element]
        if np.abs(values).max(initial=0) > largest:
            name = "fp16" if element is HALF else "bf16"
            raise UsageError(f"a weight of this model does not fit {name}: use {others}")
    if element is not BFLOAT:
        return cp.asarray(values.astype(element.dtype))
    bits = values.view(np.uint32)
    return cp.asarray(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))
