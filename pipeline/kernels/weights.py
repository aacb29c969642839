"""A model's tensors on the GPU, in the orders and precisions that the kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.kernels.storage import Storage
from pipeline.kernels.tables import (
    StatisticsTables,
    eight_bit_order,
    fixed_point,
    rescale_table,
    statistics_tables,
)
from pipeline.kernels.tiles import LookupTile, tile
from pipeline.model.alphabet import Alphabet
from pipeline.model.quantised import Integers
from pipeline.model.reference import Weights

_LARGEST = {"fp16": 65_504.0, "bf16": 255 * 2.0**120}
"""The largest numbers of both types."""


@dataclass(frozen=True)
class DeviceAlphabet:
    """byte_ids uint8 [256]; points uint32 [P] ascending and point_ids uint8 [P]: symbols beyond ASCII."""

    byte_ids: cp.ndarray
    points: cp.ndarray
    point_ids: cp.ndarray
    unknown: int


@dataclass(frozen=True)
class DeviceTable:
    """Block 1's table. entries: fp32 [kernel, ids, channels] with affine the bias, fp32 [channels]; or for 16 bits
    uint16 [slices, kernel, ids, channels of a slice] with affine fp32 [3, channels], as in sm80/lookup_norm_pool.cu.
    """

    entries: cp.ndarray
    affine: cp.ndarray


@dataclass(frozen=True)
class DeviceNorm:
    """gamma and beta, [rows, channels]."""

    gamma: cp.ndarray
    beta: cp.ndarray


@dataclass(frozen=True)
class DeviceWeights:
    """`reference.Weights` on the GPU.

    table: block 1's. products: by layer name [kernel, inputs, outputs] fp32, or [kernel, outputs, inputs] in 16 or 8
    bits; fc3 stays fp32 [outputs, inputs] always. bias: fp32, or of products in 8 bits as in `rescale_table`.
    steps_in_one: of the 8-bit output of block 1.
    """

    alphabet: DeviceAlphabet
    statistics: StatisticsTables
    table: DeviceTable
    products: dict[str, cp.ndarray]
    bias: dict[str, cp.ndarray]
    norm: dict[str, DeviceNorm]
    steps_in_one: float


def upload(
    weights: Weights, integers: Integers | None, alphabet: Alphabet, generation: str, stored: Storage, architecture: str
) -> DeviceWeights:
    """Rearrange and copy a model's tensors to the GPU; takes about 30 ms for the shipped model.

    integers: the convolutions after block 1, for products in 8 bits.
    """
    first, *rest = weights.layers
    precision = stored.rest
    at = tile(generation, "int8" if integers else precision, architecture, first)
    bias = weights.bias[first.name]
    table = DeviceTable(cp.asarray(weights.table), cp.asarray(bias))
    if isinstance(at, LookupTile):
        entries, affine = fixed_point(weights.table, bias)
        if integers and not np.isfinite(affine).all():
            raise UsageError("the weights of block 1 are too large for 8-bit activations: use --precision fp32")
        kernel, ids, channels = entries.shape
        slices = entries.reshape(kernel, ids, channels // at.channels, at.channels).transpose(2, 0, 1, 3)
        table = DeviceTable(cp.asarray(np.ascontiguousarray(slices)), cp.asarray(affine))
    byte_ids, points, point_ids = alphabet.tables
    sums = statistics_tables(weights)
    products = {}
    biases = {name: cp.asarray(bias) for name, bias in weights.bias.items()}
    for layer in rest:
        if integers and layer.kind == "conv1d":
            found = integers.convolutions[layer.name]
            by_output = found.weight.transpose(0, 2, 1)
            if generation == "sm90" and not layer.norm:
                by_output = by_output[:, eight_bit_order(layer.outputs)]
            products[layer.name] = cp.asarray(np.ascontiguousarray(by_output))
            biases[layer.name] = cp.asarray(rescale_table(found.bias, found.scale))
            continue
        weight = weights.conv[layer.name] if layer.kind == "conv1d" else weights.linear[layer.name][None]
        if layer is rest[-1]:
            products[layer.name] = cp.asarray(np.ascontiguousarray(weight[0].T))
        else:
            products[layer.name] = _to_device(weight if precision == "fp32" else weight.transpose(0, 2, 1), precision)
    return DeviceWeights(
        DeviceAlphabet(cp.asarray(byte_ids), cp.asarray(points), cp.asarray(point_ids), alphabet.unknown),
        sums._replace(first=cp.asarray(sums.first), pairs=cp.asarray(sums.pairs)),
        table,
        products,
        biases,
        {
            name: DeviceNorm(_to_device(norm.gamma, precision), _to_device(norm.beta, precision))
            for name, norm in weights.norm.items()
        },
        1 / integers.first_step if integers else 1.0,
    )


def _to_device(values: NDArray[Any], precision: str) -> cp.ndarray:
    """fp16 as float16; bf16, which NumPy does not have, as the uint16 of its bits, rounded to nearest even."""
    values = np.ascontiguousarray(values, np.float32)
    if precision == "fp32":
        return cp.asarray(values)
    if np.abs(values).max(initial=0) > _LARGEST[precision]:
        others = "--precision bf16 or --precision fp32" if precision == "fp16" else "--precision fp32"
        raise UsageError(f"a weight of this model does not fit {precision}: use {others}")
    if precision == "fp16":
        return cp.asarray(values.astype(np.float16))
    bits = values.view(np.uint32)
    return cp.asarray(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))
