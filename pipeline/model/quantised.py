"""Blocks 2 to 6 in 8-bit integers: the specification of `--precision int8`, and its CPU backend.

Activations are unsigned bytes, weights are signed bytes, and sums are 32-bit integers. Sums are exact, so their order
does not matter. An activation counts steps of its tensor, a weight counts steps of its output channel, and the bias is
rounded to steps of the sum. A sum becomes an activation in three operations:

    float32(sum + bias) * scale, rounded to the nearest integer, at most 255 and at least 0, which is the ReLU

The conversion, the product and the rounding are each one operation of IEEE 754, to nearest even, with the same result
on every machine. There is no multiply-add among them, which a compiler may or may not contract. So every generation of
kernels gives the same sums and bytes, bit for bit. Block 1, norms and linear layers are computed as in `reference`.
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
"""The largest activation. An activation of this value is called saturated, since all larger values become it too."""

SCALE_ROWS = 2048
"""The number of articles on which activation scales are measured, if there are enough."""

_METHOD = b"largest"  # the name of the way to measure scales, in `ActivationScales.found_on`
_GROUP = 32  # articles that one thread computes at once

_LARGEST_WEIGHT = 127
_LARGEST_BIAS = 1 << 29
"""The largest bias, with which a sum of 1,792 products of 255 and 127 fits into 32 bits."""

Bytes = NDArray[np.uint8]
Sums = NDArray[np.int32]


class Convolution(NamedTuple):
    """The convolution of one of blocks 2 to 6.

    Attributes
    ----------
    weight : int8 [kernel, inputs, outputs]
        The weights.
    bias : int32 [outputs]
        The bias, in the unit of the sums.
    scale : float32 [outputs]
        The factor that turns sums into steps of the next block's input or, for the last of these blocks, into values.

    """

    weight: NDArray[np.int8]
    bias: Sums
    scale: Floats


class Activations(NamedTuple):
    """The output of a block for N articles.

    values: uint8 [N, rows, channels]. overflowed: bool [N], whether block 1 overflowed on the article.
    """

    values: Bytes
    overflowed: NDArray[np.bool_]


@dataclass(frozen=True)
class Integers:
    """A model's convolutions in integers.

    convolutions: those after block 1, by the names of their layers. first_step: the step of block 2's input.
    """

    convolutions: dict[str, Convolution]
    first_step: float


def scales_of(model: Model) -> ActivationScales:
    """Return the activation scales of a model. Raises UsageError if it has none."""
    if model.scales is None:
        raise UsageError(
            f"{model.name} has no activation scales, which --precision int8 needs: make a model that has them, with "
            "broadsheet calibrate --int8 MODEL DATA -o OUT"
        )
    return model.scales


def prepare(weights: Weights, scales: ActivationScales) -> Integers:
    """Quantise a model's weights, by output channel. Raises ModelError if a scale does not fit into fp32."""
    layers = [layer for layer in weights.layers if layer.kind == "conv1d" and not layer.is_lookup]
    convolutions = {}
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        step = scales.steps[layer.name]
        exact, bias = weights.conv[layer.name].astype(np.float64), weights.bias[layer.name].astype(np.float64)
        unit = np.abs(exact).max(axis=(0, 1)) / _LARGEST_WEIGHT
        unit = np.maximum(unit, np.abs(bias) / step / _LARGEST_BIAS)
        unit[unit == 0] = 1  # a channel whose weights are all zero
        scale = (step * unit / (scales.steps[following.name] if following else 1)).astype(np.float32)
        if not (np.isfinite(scale).all() and (scale > np.finfo(np.float32).tiny).all()):
            raise ModelError(f"the weights of {layer.name} and the activation scales leave the range of fp32")
        whole = np.rint(exact / unit).astype(np.int8), np.rint(bias / (step * unit)).astype(np.int32)
        convolutions[layer.name] = Convolution(*whole, scale)
    return Integers(convolutions, scales.steps[layers[0].name])


def quantise(values: Floats, step: float) -> Bytes:
    """Return block 1's output in steps: the product of fp32 with 1 / step, rounded as in `requantise`.

    The values must not be NaN.
    """
    return _to_bytes(values * np.float32(1 / step))


def requantise(sums: Sums, convolution: Convolution) -> Bytes:
    """Turn sums into steps of the next block's input."""
    return _to_bytes(rescale(sums, convolution))


def rescale(sums: Sums, convolution: Convolution) -> Floats:
    """Add the bias to the sums and multiply by the scale, in fp32."""
    return (sums + convolution.bias).astype(np.float32) * convolution.scale


def _to_bytes(values: Floats) -> Bytes:
    """Round values to the nearest integer from 0 to `LARGEST`."""
    return np.clip(np.rint(values), 0, LARGEST).astype(np.uint8)


def conv1d(values: Bytes, weight: NDArray[np.int8], pool: int) -> Sums:
    """Return the sums of a valid convolution, and of each `pool` rows only the largest: int32 [N, rows, outputs].

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
    """Return the nine blocks with their names, as `reference.blocks` does.

    saturated: a function that the blocks call with their number of saturated values.
    """
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
    """Compute block 1, and return its output in steps.

    Parameters
    ----------
    ids : uint8 [N, length]
        The ids of the characters.
    block : callable
        Block 1 of `reference.blocks`.
    layer : Layer
        The layer of block 1.
    step : float
        The value of one step.
    saturated : callable
        A function to call with the number of saturated values.

    """
    values = block(ids).values.reshape(len(ids), layer.rows_pooled, layer.outputs)
    overflowed = np.array([not np.isfinite(article).all() for article in values], np.bool_)
    steps = quantise(np.nan_to_num(values), step)
    saturated(_count_saturated(steps))
    return Activations(steps, overflowed)


def _block(x: Activations, layer: Layer, here: Convolution, saturated: Callable[[int], object]) -> Activations:
    """Compute one of blocks 2 to 5."""
    steps = requantise(conv1d(x.values, here.weight, layer.product_pool), here)
    saturated(_count_saturated(steps))
    return x._replace(values=steps)


def _norm_block(x: Activations, weights: Weights, layer: Layer, here: Convolution) -> Rows:
    """Compute block 6: turn the sums into values, then apply layer norm, ReLU and max pool as in `reference`."""
    values = rescale(conv1d(x.values, here.weight, layer.product_pool), here)
    values[x.overflowed] = np.nan
    out = np.empty((len(values), layer.rows_pooled, layer.outputs), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for article, target in zip(values, out, strict=True):
            norm = weights.norm[layer.name]
            reference.norm_relu_pool(article, norm, layer.pool, target, np.empty_like(article), layer.rows_out)
    return Rows(out.reshape(-1, layer.outputs), np.arange(len(out) + 1) * layer.rows_pooled)


def _count_saturated(values: Bytes) -> int:
    """Count the activations that are saturated."""
    return int(np.count_nonzero(values == LARGEST))


def with_scales(model: Model, ids: NDArray[np.uint8]) -> Model:
    """Return the model with activation scales that make each tensor's largest value on these articles the largest byte.

    ids: uint8 [N, length]. Raises UsageError if there is no article, or if the model overflows on one of them.
    """
    if not len(ids):
        raise UsageError("there is no text to find activation scales on")
    # Compute the largest output of each block before a convolution.
    blocks = reference.blocks(reference.prepare(model))
    inputs = [(name, after) for (name, _), (after, _) in pairwise(blocks) if after.startswith("conv")]

    def largest(group: NDArray[np.uint8]) -> list[float]:
        x: Any = group
        maxima = []
        for _, block in blocks[: len(inputs)]:
            x = block(x)
            maxima.append(float(x.values.max()))  # NaN if one of the values is NaN
        return maxima

    groups = [ids[first : first + _GROUP] for first in range(0, len(ids), _GROUP)]
    with SINGLE_THREADED_BLAS, ThreadPoolExecutor(available_cores()) as pool:
        maxima = np.array(list(pool.map(largest, groups))).max(axis=0)
    if not np.isfinite(maxima).all():
        raise UsageError(f"{model.name}: the model overflows on a text of the sample: it cannot compute in int8")
    # Turn the maxima into steps. A tensor that is always zero may have any step.
    steps = {after: float(maximum) / LARGEST or 1.0 for (_, after), maximum in zip(inputs, maxima, strict=True)}
    digest = hashlib.sha256(_METHOD + np.ascontiguousarray(ids).tobytes()).hexdigest()
    return replace(model, scales=ActivationScales(steps, digest))
