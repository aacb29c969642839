"""Block 1 of a training step by the kernels of `kernels/training/`: half of the step's time, where PyTorch does it.

PyTorch goes through memory some forty times for what these kernels read and write four times.
"""

from __future__ import annotations

import warnings
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ..kernels.catalog import FIRST_CAPABILITY, NUMBERS, Kernel, first_block
from ..model.layers import NORM_EPSILON, Layer
from .layout import GROUP, Layout

_NUMBERS = {torch.float32: "float", torch.bfloat16: "BFloat"}


class Parameters(NamedTuple):
    """What is learnt of block 1. table: [taps * ids, channels]. bias: [channels]; it is in the table, too. gamma, beta:
    of the norm, [rows, channels].
    """

    table: Tensor
    bias: Tensor
    gamma: Tensor
    beta: Tensor


def can_compute(device: torch.device, layer: Layer) -> bool:
    """Whether the kernels run on a device: a GPU new enough, with the packages that compile and launch kernels."""
    if device.type != "cuda":
        return False
    return _can_compute(torch.cuda.current_device() if device.index is None else device.index, layer)


@cache
def _can_compute(device: int, layer: Layer) -> bool:
    if torch.cuda.get_device_capability(device) < FIRST_CAPABILITY:
        return False
    try:
        _loaded(first_block(layer, GROUP, NUMBERS[0]).sum_rows, device)
    except ImportError:
        return False
    except Exception as error:  # such as those of a CuPy for another version of CUDA, which has many
        warnings.warn(f"block 1 is trained without its own kernels, in twice the time: {error}", stacklevel=2)
        return False
    return True


def pooled(given: Parameters, windows: Tensor, layout: Layout, layer: Layer, compute: torch.dtype) -> Tensor:
    """Rows [3 G, channels] of block 2's input, in `compute`.

    windows: table rows of each row's characters, int64 [9 G, 7]. Gradients are those of the parameters.
    """
    found: Tensor = _FirstBlock.apply(*given, windows, layout, layer, compute)  # type: ignore[no-untyped-call]
    return found


class _FirstBlock(torch.autograd.Function):
    """Rows that the text does not reach are the bias. Of those that an article has beyond its groups only the number
    counts; it is negative where the groups have more rows than the article.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        table: Tensor,
        bias: Tensor,
        gamma: Tensor,
        beta: Tensor,
        windows: Tensor,
        layout: Layout,
        layer: Layer,
        compute: torch.dtype,
    ) -> Tensor:
        """Rows [3 G, channels]."""
        groups, channels = len(layout.article), layer.outputs
        launch = partial(_launch, groups)
        kernels = first_block(layer, GROUP, _NUMBERS[compute])
        sums = table.new_empty(groups, GROUP, channels)
        statistics = table.new_empty(groups, 2)
        table, gamma, beta = table.contiguous(), gamma.contiguous(), beta.contiguous()
        launch(kernels.sum_rows, windows, table, sums, statistics)

        size, of_group = layer.rows_out * channels, GROUP * channels
        others = (layer.rows_out - GROUP * layout.groups).to(table.dtype)
        means, squares = statistics.unbind(1)
        mean = (_by_article(means * of_group, layout) + others * bias.sum()) / size
        squares = _by_article(squares + of_group * (means - mean[layout.article]).square(), layout)
        squares = squares + others * (bias - mean[:, None]).square().sum(1)
        scale = torch.rsqrt(squares.clamp(min=0) / size + NORM_EPSILON)  # a sum over groups minus one over rows
        norms = torch.stack([mean, scale], 1)

        number = layout.number.int()
        of_text = (layout.reached[layout.article] - layout.number * GROUP).clamp(0, GROUP).int()
        found = table.new_empty(groups * GROUP // layer.pool, channels, dtype=compute)
        chosen = table.new_empty(found.shape, dtype=torch.uint8)
        of_groups = norms[layout.article]
        launch(kernels.normalise_and_pool, sums, of_groups, number, of_text, gamma, beta, found, chosen)
        ctx.save_for_backward(table, bias, gamma, windows, sums, norms, number, chosen, others)
        ctx.layout, ctx.kernels, ctx.size = layout, kernels, size  # type: ignore[attr-defined]
        return found

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Of the table, bias, γ and β."""
        table, bias, gamma, windows, sums, norms, number, chosen, others = ctx.saved_tensors  # type: ignore[attr-defined]
        layout, kernels, size = ctx.layout, ctx.kernels, ctx.size  # type: ignore[attr-defined]
        upstream = gradients[0].contiguous()
        launch = partial(_launch, len(sums))
        of_groups = norms[layout.article]
        gamma_gradient, beta_gradient = torch.zeros_like(gamma), torch.zeros_like(gamma)
        totals = table.new_empty(len(sums), 2)
        given = upstream, chosen, sums, of_groups, number, gamma
        launch(kernels.parameter_gradients, *given, gamma_gradient, beta_gradient, totals)

        means = _by_article(totals, layout) / size
        gradient = upstream.new_empty(len(windows), table.shape[1])
        launch(kernels.sum_gradients, *given, means[layout.article], gradient)
        codes = gradient.new_zeros(len(windows), len(table)).scatter_(1, windows, 1.0)
        (mean, scale), (first, second) = norms.unbind(1), means.unbind(1)
        second = others * scale.square() * second
        bias_gradient = (second * mean).sum() - (others * scale * first).sum() - bias * second.sum()
        return (codes.t() @ gradient).to(table.dtype), bias_gradient, gamma_gradient, beta_gradient, *[None] * 4


def _by_article(values: Tensor, layout: Layout) -> Tensor:
    """The sums [N + 1, …] of what the groups [G, …] of each article have."""
    return values.new_zeros(len(layout.groups), *values.shape[1:]).index_add(0, layout.article, values)


def _launch(groups: int, kernel: Kernel, *tensors: Tensor) -> None:
    """On PyTorch's stream of this thread, which is autograd's in the backward pass."""
    import cupy as cp

    device = tensors[0].device
    with cp.cuda.Device(device.index):
        stream = cp.cuda.Stream.from_external(torch.cuda.current_stream(device))
        function = _loaded(kernel, device.index)
        function((groups,), (kernel.threads,), [np.uint64(t.data_ptr()) for t in tensors], stream=stream)


def _loaded(kernel: Kernel, device: int) -> Any:
    import cupy as cp

    from ..kernels.ops import load

    major, minor = torch.cuda.get_device_capability(device)
    with cp.cuda.Device(device):
        return load(kernel.file, kernel.expression, f"sm_{major}{minor}")
