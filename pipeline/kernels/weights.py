"""A model's tensors on the GPU, in the orders and precisions that the kernels read."""

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
"""The largest numbers of both types, and what to use for larger ones."""


@dataclass(frozen=True)
class DeviceAlphabet:
    """byte_ids uint8 [256]; points uint32 [P] ascending and point_ids uint8 [P]: symbols beyond ASCII."""

    byte_ids: cp.ndarray
    points: cp.ndarray
    point_ids: cp.ndarray
    unknown: int


@dataclass(frozen=True)
class DeviceTable:
    """Block 1's table. entries: fp32 [kernel, ids, channels] with affine the bias, fp32 [channels]; or [slices, kernel,
    ids, channels of a slice], fp32 for sm80/split_lookup_norm_pool.cu, and uint16 with affine fp32 [3, channels] for
    sm80/lookup_norm_pool.cu.
    """

    entries: cp.ndarray
    affine: cp.ndarray


@dataclass(frozen=True)
class DeviceNorm:
    """gamma and beta, [rows, channels]. least_variance: below it an article gets no score, where it is in two parts."""

    gamma: cp.ndarray
    beta: cp.ndarray
    least_variance: float = 0


@dataclass(frozen=True)
class DeviceNGrams:
    """A branch, as in `NGramTables`. shift: from a hash to its bucket."""

    kinds: Kinds
    classes: int
    shift: int
    symbols: cp.ndarray
    letters: cp.ndarray
    table: cp.ndarray
    scale: cp.ndarray


@dataclass(frozen=True)
class DeviceFastText:
    """A model of fastText's, as in `FastTextTables`. steps, ends_of_steps: its tree, if it has one."""

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
    """`reference.Weights` on the GPU.

    table: block 1's. products: by layer name [kernel, inputs, outputs] fp32, or [kernel, outputs, inputs] in 16 or 8
    bits, or [kernel, outputs, 2 * inputs] in two fp16 parts; fc3 is fp32 [outputs, inputs] always. bias: fp32; of
    products in 8 bits as in `rescale_table`, of those in two parts [2, outputs], scale and bias. steps_in_one: of the
    8-bit output of block 1.
    """

    statistics: StatisticsTables
    table: DeviceTable
    products: dict[str, cp.ndarray]
    bias: dict[str, cp.ndarray]
    norm: dict[str, DeviceNorm]
    steps_in_one: float


@dataclass(frozen=True)
class DeviceAlone:
    """`reference.NGramsAlone` on the GPU."""

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
    """Rearrange and copy a model's tensors to the GPU; takes about 30 ms for the shipped model.

    integers: the convolutions after block 1, for products in 8 bits.
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
    """Rearrange and copy a branch's table to the GPU."""
    table, scale, script = ngram_tables(ngrams)
    arrays = (cp.asarray(part) for part in (*script, table, scale))
    return DeviceNGrams(ngrams.kinds, ngrams.table.shape[1] - 1, 32 - ngrams.bits, *arrays)


def upload_fasttext(model: FastText, exact: bool) -> DeviceFastText:
    """Rearrange and copy a model of fastText's to the GPU. exact: as of `fasttext_shape`."""
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
"""By layer name."""


def _upload_products(weights: Weights, stored: Storage) -> tuple[Arrays, Arrays]:
    """Products and biases in fp32 or 16 bits; those of blocks in 8 bits are left out."""
    _, *rest, last = weights.layers
    products = {last.name: cp.asarray(np.ascontiguousarray(weights.linear[last.name].T))}
    for layer in rest:
        element = stored.read_by(layer)
        if layer.kind == "conv1d" and stored.is_int8:
            continue
        weight = weights.conv[layer.name] if layer.kind == "conv1d" else weights.linear[layer.name][None]
        products[layer.name] = _to_device(weight if element is FLOAT else weight.transpose(0, 2, 1), element)
    return products, {name: cp.asarray(bias) for name, bias in weights.bias.items()}


def _upload_integers(layers: Sequence[Layer], integers: Integers, generation: str) -> tuple[Arrays, Arrays]:
    products, bias = {}, {}
    for layer in layers:
        found = integers.convolutions.get(layer.name)
        if found is None:
            continue
        by_output = found.weight.transpose(0, 2, 1)
        if generation == "sm90" and not layer.norm:
            by_output = by_output[:, eight_bit_order(layer.outputs)]
        products[layer.name] = cp.asarray(np.ascontiguousarray(by_output))
        bias[layer.name] = cp.asarray(rescale_table(found.bias, found.scale))
    return products, bias


def _upload_parts(weights: Weights, parts: split.SplitWeights) -> tuple[Arrays, Arrays]:
    last = weights.layers[-1].name
    products = {name: cp.asarray(values) for name, values in parts.products.items()}
    affine = {name: cp.asarray(values) for name, values in parts.affine.items()}
    return {**products, last: cp.asarray(parts.last)}, {**affine, last: cp.asarray(weights.bias[last])}


def _upload_norms(weights: Weights, parts: split.SplitWeights | None, stored: Storage) -> dict[str, DeviceNorm]:
    first, found = weights.layers[0].name, {}
    for name, (gamma, beta) in (parts.norm if parts else weights.norm).items():
        least = parts.least_variance if parts and name != first else 0
        found[name] = DeviceNorm(_to_device(gamma, stored.norms), _to_device(beta, stored.norms), least)
    return found


def _to_device(values: Floats, element: Element) -> cp.ndarray:
    """Half as float16; BFloat, which NumPy does not have, as the uint16 of its bits, rounded to nearest even."""
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
