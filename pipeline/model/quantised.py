"""Blocks 2 to 6 in 8-bit integers: the specification of `--precision int8`, and the CPU backend in it.

Activations are unsigned bytes, weights signed ones, and sums 32-bit integers, which are exact: their order does not
matter. A byte stands for that many steps of its tensor, a weight for that many steps of its output
channel, and the bias is rounded to steps of the sum. A sum becomes a byte in three operations:

    float32(sum + bias) * scale, rounded to the nearest integer, at most 255 and at least 0, which is the ReLU

Each of them is one operation of IEEE 754 (a conversion, a product and a rounding, all to nearest even), with one result
on every machine. No multiply-add is among them, which a compiler might or might not contract. So every generation of
kernels gives these sums and these bytes, bit for bit. Block 1, norms and linear layers are computed as in `reference`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, UsageError
from ..processes.threads import SINGLE_THREADED_BLAS, available_cores
from . import reference
from .charcnn import Model
from .layers import Layer
from .model_file import ActivationScales
from .reference import Floats, Rows, Weights

LARGEST = 255
"""The largest activation. A value there is called saturated, since what was above is there too."""

SCALE_ROWS = 2048
"""Articles on which activation scales are found, unless there are fewer."""

_METHOD = b"largest"
_GROUP = 32

_LARGEST_WEIGHT = 127
_LARGEST_BIAS = 1 << 29
"""The largest bias: with 1,792 products of 255 and 127 the sum stays within 32 bits."""

Bytes = NDArray[np.uint8]
Sums = NDArray[np.int32]


class Convolution(NamedTuple):
    """One of blocks 2 to 6.

    Attributes
    ----------
    weight : int8 [kernel, inputs, outputs]
        Its weights.
    bias : int32 [outputs]
        Its bias, in the unit of the sums.
    scale : float32 [outputs]
        From sums to steps of the next block's input, or for the last block to values.

    """

    weight: NDArray[np.int8]
    bias: Sums
    scale: Floats


class Activations(NamedTuple):
    """values: uint8 [N, rows, channels]. overflowed: bool [N], articles on which block 1 overflows."""

    values: Bytes
    overflowed: NDArray[np.bool_]


@dataclass(frozen=True)
class Integers:
    """The convolutions after block 1 by layer name, and the step of block 2's input."""

    convolutions: dict[str, Convolution]
    first_step: float


def scales_of(model: Model) -> ActivationScales:
    """Raises UsageError for a model that has none."""
    if model.scales is None:
        raise UsageError(
            f"{model.name} has no activation scales, which --precision int8 needs: make a model that has them, with "
            "broadsheet calibrate --int8 MODEL DATA -o OUT"
        )
    return model.scales


def prepare(weights: Weights, scales: ActivationScales) -> Integers:
    """Quantise a model's weights, by output channel. Raises ModelError where fp32 cannot hold a scale."""
    layers = [layer for layer in weights.layers if layer.kind == "conv1d" and not layer.is_lookup]
    convolutions = {}
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        step = scales.steps[layer.name]
        exact, bias = weights.conv[layer.name].astype(np.float64), weights.bias[layer.name].astype(np.float64)
        unit = np.abs(exact).max(axis=(0, 1)) / _LARGEST_WEIGHT
        unit = np.maximum(unit, np.abs(bias) / step / _LARGEST_BIAS)
        unit[unit == 0] = 1  # of a channel without a weight
        scale = (step * unit / (scales.steps[following.name] if following else 1)).astype(np.float32)
        if not (np.isfinite(scale).all() and (scale > np.finfo(np.float32).tiny).all()):
            raise ModelError(f"the weights of {layer.name} and the activation scales leave the range of fp32")
        whole = np.rint(exact / unit).astype(np.int8), np.rint(bias / (step * unit)).astype(np.int32)
        convolutions[layer.name] = Convolution(*whole, scale)
    return Integers(convolutions, scales.steps[layers[0].name])


def quantise(values: Floats, step: float) -> Bytes:
    """Block 1's output as steps: fp32 by 1 / step, rounded as in `requantise`. Values are not NaN."""
    return _to_bytes(values * np.float32(1 / step))


def requantise(sums: Sums, convolution: Convolution) -> Bytes:
    """Sums to steps of the next block's input."""
    return _to_bytes(rescale(sums, convolution))


def rescale(sums: Sums, convolution: Convolution) -> Floats:
    """Sums and bias by their scale, in fp32."""
    return (sums + convolution.bias).astype(np.float32) * convolution.scale


def _to_bytes(values: Floats) -> Bytes:
    return np.clip(np.rint(values), 0, LARGEST).astype(np.uint8)


def conv1d(values: Bytes, weight: NDArray[np.int8], pool: int) -> Sums:
    """The exact sums of a valid convolution, and the greatest of each `pool` rows: int32 [N, rows, outputs].

    values: uint8 [N, rows, inputs]. A product of 256 inputs stays below 2^23, so BLAS computes it exactly in fp32.
    """
    kernel, _, outputs = weight.shape
    count, rows, _ = values.shape
    rows -= kernel - 1
    floats, taps = values.astype(np.float32), weight.astype(np.float32)
    sums = np.zeros((count, rows, outputs), np.int32)
    for tap in range(kernel):
        sums += np.matmul(floats[:, tap : tap + rows], taps[tap]).astype(np.int32)
    whole = rows // pool
    return np.asarray(sums[:, : whole * pool].reshape(count, whole, pool, outputs).max(axis=2))


def blocks(
    weights: Weights, integers: Integers, saturated: Callable[[int], object] = lambda count: None
) -> list[tuple[str, Callable[[Any], Any]]]:
    """The nine blocks, as in `reference.blocks`. saturated: called with the count of saturated values of a block."""
    named_blocks: list[tuple[str, Callable[[Any], Any]]] = []
    for layer, (name, block) in zip(weights.layers, reference.blocks(weights), strict=True):
        if layer.is_lookup:
            block = partial(_first_block, block=block, layer=layer, step=integers.first_step, saturated=saturated)
        elif layer.kind == "conv1d" and layer.norm:
            block = partial(_norm_block, weights=weights, layer=layer, here=integers.convolutions[name])
        elif layer.kind == "conv1d":
            block = partial(_block, layer=layer, here=integers.convolutions[name], saturated=saturated)
        named_blocks.append((name, block))
    return named_blocks


def _first_block(
    ids: NDArray[np.uint8], block: Callable[[Any], Rows], layer: Layer, step: float, saturated: Callable[[int], object]
) -> Activations:
    """Block 1, its output as steps.

    Parameters
    ----------
    ids : uint8 [N, length]
        The ids.
    block : callable
        Block 1 of `reference.blocks`.
    layer : Layer
        Its layer.
    step : float
        The value of one step.
    saturated : callable
        Called with the number of saturated values.

    """
    values = block(ids).values.reshape(len(ids), layer.rows_pooled, layer.outputs)
    overflowed = np.array([not np.isfinite(article).all() for article in values], np.bool_)
    steps = quantise(np.nan_to_num(values), step)
    saturated(_count_saturated(steps))
    return Activations(steps, overflowed)


def _block(x: Activations, layer: Layer, here: Convolution, saturated: Callable[[int], object]) -> Activations:
    steps = requantise(conv1d(x.values, here.weight, layer.product_pool), here)
    saturated(_count_saturated(steps))
    return x._replace(values=steps)


def _norm_block(x: Activations, weights: Weights, layer: Layer, here: Convolution) -> Rows:
    """Block 6: the sums as values, then layer norm, ReLU and max pool as in `reference`."""
    values = rescale(conv1d(x.values, here.weight, layer.product_pool), here)
    values[x.overflowed] = np.nan
    out = np.empty((len(values), layer.rows_pooled, layer.outputs), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for article, target in zip(values, out, strict=True):
            norm = weights.norm[layer.name]
            reference.norm_relu_pool(article, norm, layer.pool, target, np.empty_like(article), layer.rows_out)
    return Rows(out.reshape(-1, layer.outputs), np.arange(len(out) + 1) * layer.rows_pooled)


def _count_saturated(values: Bytes) -> int:
    return int(np.count_nonzero(values == LARGEST))


def with_scales(model: Model, ids: NDArray[np.uint8]) -> Model:
    """The model with activation scales: the greatest value of each tensor on these articles becomes the greatest byte.

    ids: uint8 [N, length]. Raises UsageError where there is no article, or the model overflows on one.
    """
    if not len(ids):
        raise UsageError("there is no text to find activation scales on")
    blocks = reference.blocks(reference.prepare(model))
    inputs = [(name, after) for (name, _), (after, _) in pairwise(blocks) if after.startswith("conv")]

    def largest(group: NDArray[np.uint8]) -> list[float]:
        x: Any = group
        maxima = []
        for _, block in blocks[: len(inputs)]:
            x = block(x)
            maxima.append(float(x.values.max()))  # NaN where one of them is
        return maxima

    groups = [ids[first : first + _GROUP] for first in range(0, len(ids), _GROUP)]
    with SINGLE_THREADED_BLAS, ThreadPoolExecutor(available_cores()) as pool:
        maxima = np.array(list(pool.map(largest, groups))).max(axis=0)
    if not np.isfinite(maxima).all():
        raise UsageError(f"{model.name}: the model overflows on a text of the sample: it cannot compute in int8")
    # A tensor that is always zero may have any step.
    steps = {after: float(most) / LARGEST or 1.0 for (_, after), most in zip(inputs, maxima, strict=True)}
    digest = hashlib.sha256(_METHOD + np.ascontiguousarray(ids).tobytes()).hexdigest()
    return replace(model, scales=ActivationScales(steps, digest))
