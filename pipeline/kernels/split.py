"""Splits fp32 numbers into two fp16 parts, x = high + low, as common/split.cuh stores them. Needs no GPU.

Both parts together hold 22 bits, if the channels of a model are scaled. A part below 2^-24 is lost, and a part above
65,504 is infinite. So each channel of each activation is stored multiplied by a power of two, which changes only its
exponent. The weights of the next layer are divided by this power, and multiplied by another power for each output. The
powers come from the values of the channel on a text of random characters: its largest value there, before ReLU, is
scaled to between 2^8 and 2^9. An article may have values 128 times as large before a part is infinite, and with it
every score. It may have values 2,000 times smaller before they lose a bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..model.layers import NORM_EPSILON
from ..model.reference import Floats, Norm, Weights

GROUP = 32
"""The count of numbers whose parts are stored together: first all high parts, then all low parts."""

_TYPICAL_EXPONENT = 9
"""The exponent of the largest value that a channel has on a text of random characters, once it is scaled."""

_WEIGHT_EXPONENT = 14
"""The exponent of an output's largest weight, once it is scaled."""

_LARGEST_EXPONENT = 120
"""The largest exponent of a scale. Above it, scaled biases would overflow fp32."""

_LEAST_SHARE = 2.0**-20
"""The least variance of block 6 before its norm, as a share of the variance on that text.

The parts of an article with a smaller variance may lack bits.
"""

_SEED = 0

Doubles = NDArray[np.float64]
Exponents = NDArray[np.int32]


@dataclass(frozen=True)
class SplitWeights:
    """A model's tensors as the split kernels read them.

    Attributes
    ----------
    products : dict of str to float16 [kernel, outputs, 2 * inputs]
        The parts of the weights, by layer name.
    affine : dict of str to float32 [2, outputs]
        The factor of a sum and the bias that is then added, by layer name.
    norm : dict of str to Norm
        Gamma and beta, multiplied by the scales of their channels, by layer name.
    last : float32 [outputs, inputs]
        The weights of the last layer, divided by the scales of its inputs.
    least_variance : float
        The least variance of block 6 before its norm. The parts of an article with less are not accurate enough.

    """

    products: dict[str, NDArray[np.float16]]
    affine: dict[str, Floats]
    norm: dict[str, Norm]
    last: Floats
    least_variance: float


def split(values: NDArray[np.floating]) -> NDArray[np.float16]:
    """Return the parts of numbers [..., n] as fp16 [..., 2 n]. n is a multiple of GROUP."""
    with np.errstate(over="ignore", invalid="ignore"):
        high = values.astype(np.float16)
        low = (values - high.astype(values.dtype)).astype(np.float16)
    groups = (*values.shape[:-1], values.shape[-1] // GROUP, GROUP)
    both = np.stack([high.reshape(groups), low.reshape(groups)], axis=-2)
    return both.reshape(*values.shape[:-1], 2 * values.shape[-1])


def joined(parts: NDArray[np.float16]) -> Doubles:
    """Return the numbers that `split` has split."""
    groups: Doubles = parts.reshape(*parts.shape[:-1], -1, 2, GROUP).astype(np.float64)
    numbers: Doubles = groups.sum(axis=-2).reshape(*parts.shape[:-1], parts.shape[-1] // 2)
    return numbers


def prepare(weights: Weights) -> SplitWeights:
    """Scale and split the tensors of a model. This takes about 0.3 s for the shipped model."""
    # Measure the channels on random characters, and scale block 1.
    largest, variance = _largest_values(weights)
    first, *rest = weights.layers
    products, affine, norm = {}, {}, {}
    before = _powers(largest[first.name])
    norm[first.name] = _scaled(weights.norm[first.name], before)
    # Scale and split each product. `before` has the powers of its inputs, `after` the powers of its outputs.
    for layer in rest[:-1]:
        name = layer.name
        weight = weights.conv[name] if layer.kind == "conv1d" else weights.linear[name][None]
        # The inputs of fc1 repeat the channels of block 6 for each row.
        given = np.tile(before, layer.inputs // len(before))[:, None]
        of_output = _WEIGHT_EXPONENT - _exponents(np.abs(np.ldexp(weight, -given)).max(axis=(0, 1)))
        after = np.zeros(layer.outputs, np.int32) if layer.norm else _powers(largest[name])
        products[name] = split(np.ldexp(weight, of_output - given).transpose(0, 2, 1))
        with np.errstate(over="ignore"):  # the kernel's sums are then not finite
            affine[name] = np.stack([np.ldexp(np.float32(1), after - of_output), np.ldexp(weights.bias[name], after)])
        if layer.norm:
            after = _powers(largest[name])
            norm[name] = _scaled(weights.norm[name], after)
        before = after
    # The last layer removes the scales.
    with np.errstate(over="ignore"):
        last = np.ldexp(weights.linear[rest[-1].name].T, -before)
    return SplitWeights(products, affine, norm, np.ascontiguousarray(last), variance * _LEAST_SHARE)


def _scaled(norm: Norm, powers: Exponents) -> Norm:
    with np.errstate(over="ignore"):
        gamma, beta = (np.ldexp(values, powers) for values in norm)
    return Norm(gamma, beta)


def _exponents(values: NDArray[np.floating]) -> Exponents:
    """Return the exponent of the power of two above each value, or 0 if the value is zero or not finite."""
    return np.where(np.isfinite(values) & (values > 0), np.frexp(values)[1], 0)


def _powers(largest: Doubles) -> Exponents:
    """Return the exponents of the scales of channels with these largest values."""
    return np.clip(_TYPICAL_EXPONENT - _exponents(largest), -_LARGEST_EXPONENT, _LARGEST_EXPONENT)


def _largest_values(weights: Weights) -> tuple[dict[str, Doubles], float]:
    """Return the largest value of each channel before ReLU, by layer, on random characters, and block 6's variance.

    If all values of a channel happen to be small, the value that it would have for independent inputs of the same size
    replaces them. The function computes in float64, so that every machine finds the same powers of two.
    """
    # A text of random characters that ends in the middle of the frame.
    rng = np.random.default_rng(_SEED)
    first, *rest = weights.layers
    ids = rng.integers(0, first.ids - 1, first.rows_in)
    ids[first.rows_in // 2 :] = weights.padding
    largest, variance = {}, 0.0
    # The forward pass, layer by layer.
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.zeros((first.rows_out, first.outputs)) + weights.bias[first.name]
        for tap in range(first.kernel):
            x += weights.table[tap][ids[tap : tap + first.rows_out]]
        for layer in (first, *rest[:-1]):
            usual = np.zeros(layer.outputs)
            if layer is not first:
                weight = weights.conv[layer.name] if layer.kind == "conv1d" else weights.linear[layer.name][None]
                weight = weight.astype(np.float64)
                x = x if layer.kind == "conv1d" else x.reshape(1, -1)
                rows = len(x) - layer.kernel + 1
                usual = np.sqrt((x * x).mean(axis=0) @ (weight * weight).sum(axis=0))
                x = sum(x[tap : tap + rows] @ weight[tap] for tap in range(layer.kernel)) + weights.bias[layer.name]
            if layer.norm:
                norm, variance = weights.norm[layer.name], float(x.var())
                x = (x - x.mean()) / np.sqrt(variance + NORM_EPSILON) * norm.gamma + norm.beta
                usual = (np.abs(norm.gamma) + np.abs(norm.beta)).max(axis=0)
            largest[layer.name] = np.maximum(np.abs(x).max(axis=0), usual)
            pooled = len(x) // layer.pool
            x = np.maximum(x[: pooled * layer.pool], 0).reshape(pooled, layer.pool, -1).max(axis=1)
    return largest, variance if np.isfinite(variance) else 0.0
