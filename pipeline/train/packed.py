"""The network in PyTorch as it is trained: without the rows that the texts do not reach.

A text of n characters reaches n rows of block 1, a third of them after its pool, a ninth after that of block 2, and so
many of each block from there on. Articles lie one after another: each has ceil(n / 9) + 2 groups, and a group is nine
rows of block 1, three rows of block 2's input, and one row of blocks 3 to 6. The two groups after the text are what the
windows of its last rows look at; from block 2 on, the rows there are constant ones. In the dense frame every article
reaches all rows. All of it is computed on the device of the ids; only the number of groups of a batch has to be known
to the host.

On a GPU, block 1 is computed by the kernels of `kernels/training/`: it is half of a step's time, where PyTorch does it,
which goes through memory some forty times for what these kernels read and write four times.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from ..kernels.catalog import FIRST_CAPABILITY, NUMBERS, Kernel, first_block
from ..model.layers import NORM_EPSILON, Layer
from .network import CharCNN, pooled, reached_rows

GROUP = 9
"""Rows of block 1 in a group: the pools of blocks 1 and 2 are 3 wide each."""

_AFTER = 2  # groups after a text: blocks 3 to 6 look two rows ahead, and block 2 six of its rows

_NUMBERS = {torch.float32: "float", torch.bfloat16: "BFloat"}


@dataclass(frozen=True)
class Layout:
    """The groups of N articles, G of them. Those that no article needs belong to an empty article, number N.

    Attributes
    ----------
    article : int64 [G]
        The article of each group.
    number : int64 [G]
        The number of each group within its article.
    reached : int64 [N + 1]
        Rows of block 1 that the text reaches.
    groups : int64 [N + 1]
        How many groups each article has, and last those of the empty one.

    """

    article: Tensor
    number: Tensor
    reached: Tensor
    groups: Tensor

    def is_text(self, rows_of_group: int) -> Tensor:
        """Whether the text reaches each row, of which a group has 9 or 1: bool [G, rows_of_group]."""
        rows_of_one = GROUP // rows_of_group
        row = self.number[:, None] * rows_of_group + torch.arange(rows_of_group, device=self.number.device)
        return row * rows_of_one < self.reached[self.article][:, None]


def groups_of(reached: Tensor) -> Tensor:
    """How many groups articles need that reach so many rows."""
    return (reached + GROUP - 1) // GROUP + _AFTER


def lay_out(reached: Tensor, total: int) -> Layout:
    """The layout of a batch in `total` groups, at least as many as its articles need."""
    groups = groups_of(reached)
    ends = groups.cumsum(0)
    index = torch.arange(total, device=reached.device)
    article = torch.searchsorted(ends, index, right=True)
    zero = ends.new_zeros(1)
    begins = torch.cat([zero, ends])
    rest = total - ends[-1:]
    return Layout(article, index - begins[article], torch.cat([reached, zero]), torch.cat([groups, rest]))


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


class _FirstBlock(torch.autograd.Function):
    """The rows that block 2 reads. Those that the text does not reach are the bias. Of those that an article has beyond
    its groups only the number counts; it is negative where the groups have more rows than the article.
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
        """Rows [3 G, channels].

        Parameters
        ----------
        ctx : FunctionCtx
            Keeps what the backward pass needs.
        table : Tensor [taps * ids, channels]
            The weights by tap and id, with the bias in them.
        bias : Tensor [channels]
            The bias.
        gamma, beta : Tensor [rows, channels]
            Of the norm.
        windows : int64 [9 G, 7]
            Table rows of each row's characters.
        layout : Layout
            The groups of the articles.
        layer : Layer
            Block 1.
        compute : torch.dtype
            The type of the result.

        """
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
        pooled_rows = table.new_empty(groups * GROUP // layer.pool, channels, dtype=compute)
        chosen = table.new_empty(pooled_rows.shape, dtype=torch.uint8)
        of_groups = norms[layout.article]
        launch(kernels.normalise_and_pool, sums, of_groups, number, of_text, gamma, beta, pooled_rows, chosen)
        ctx.save_for_backward(table, bias, gamma, windows, sums, norms, number, chosen, others)
        ctx.layout, ctx.kernels, ctx.size = layout, kernels, size  # type: ignore[attr-defined]
        return pooled_rows

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the table, the bias, γ and β."""
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
    """Launch a kernel on PyTorch's stream of this thread, which is autograd's in the backward pass."""
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


class PackedCNN(CharCNN):
    """The same network, parameters and logits, for training: of the text frame it computes only the rows that the texts
    reach, and of block 1 sums of table rows.
    """

    def groups(self, ids: Tensor) -> Tensor:
        """How many groups of rows each article needs, int64 [N]."""
        return groups_of(reached_rows(ids, self._layer("conv1"), self._frame))

    def forward(self, ids: Tensor, groups: int | None = None) -> Tensor:
        """Logits [N, classes] of encoded articles, uint8 [N, length].

        groups: at least as many as the articles need together; where it is known, the device is not waited for.
        """
        return self.head(self.body(ids, int(self.groups(ids).sum()) if groups is None else groups))

    def body(self, ids: Tensor, groups: int) -> Tensor:
        """Blocks 1 to 6: [N, channels * rows], channel-major."""
        layout = lay_out(reached_rows(ids, self._layer("conv1"), self._frame), groups)
        x = self._first_block(ids, layout)
        products = self._products(x, "conv2")
        x = products.view(groups, -1, products.shape[1]).amax(1)  # bias and ReLU commute with the pool
        constant = F.relu(self.get_parameter("conv2.bias"))
        text = layout.is_text(1)
        x = torch.where(text, F.relu(x.to(constant.dtype) + self.get_parameter("conv2.bias")), constant)
        for name in ("conv3", "conv4", "conv5"):
            constant = F.relu(self._constant(name, constant))
            products = self._products(x, name).to(constant.dtype) + self.get_parameter(f"{name}.bias")
            x = torch.where(text, F.relu(products), constant)
        return self._last_block(x, constant, layout)

    def _layer(self, name: str) -> Layer:
        return next(layer for layer in self._layers if layer.name == name)

    def _first_block(self, ids: Tensor, layout: Layout) -> Tensor:
        """Rows [3 G, channels] of block 2's input.

        Rows that the text does not reach are the bias, so the norm's statistics over all rows are those of the rows
        here, and of so many more (or fewer) rows that are the bias.
        """
        layer = self._layer("conv1")
        bias, norm = self.get_parameter("conv1.bias"), self.get_submodule("norm1")
        assert isinstance(norm, nn.LayerNorm)
        windows, text = self._windows(ids, layout)
        if can_compute(ids.device, layer):
            learnt = self._table(), bias, norm.weight.t(), norm.bias.t()
            rows: Tensor = _FirstBlock.apply(*learnt, windows, layout, layer, self._compute)  # type: ignore[no-untyped-call]
            return rows
        sums: Tensor = _TableSum.apply(self._table(), windows, self._compute)  # type: ignore[no-untyped-call]
        x = sums.view(len(text), -1)  # [G, 9 * channels]
        others = (layer.rows_out - GROUP * layout.groups).to(x.dtype)
        size = layer.rows_out * layer.outputs

        def of_articles(by_group: Tensor, rest: Tensor) -> Tensor:
            return (x.new_zeros(len(others)).index_add(0, layout.article, by_group) + others * rest) / size

        mean = of_articles(x.sum(1), bias.sum())
        x = x - mean[layout.article, None]
        squares = of_articles(x.square().sum(1), x.new_zeros(()))
        squares = squares + others * (bias - mean[:, None]).square().sum(1) / size
        x = x * torch.rsqrt(squares + norm.eps)[layout.article, None]
        gamma, beta = (self._by_group(parameter, layout) for parameter in (norm.weight, norm.bias))
        x = torch.addcmul(beta, x, gamma).view(len(text), GROUP, -1)
        x = torch.where(text[:, :, None], x, 0.0)
        return F.relu(x.view(-1, layer.pool, layer.outputs).amax(1))

    def _windows(self, ids: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Table rows of each row's characters, int64 [9 G, 7], and which rows are text, bool [G, 9]."""
        layer = self._layer("conv1")
        text = layout.is_text(GROUP)
        flat = F.pad(ids, (0, layer.kernel, 0, 1), value=layer.ids - 1)  # and one empty article
        row = (layout.number[:, None] * GROUP + torch.arange(GROUP, device=ids.device)).clamp(max=layer.rows_out)
        at = (layout.article[:, None] * flat.shape[1] + row)[:, :, None]
        tap = torch.arange(layer.kernel, device=ids.device)
        symbol = torch.where(text[:, :, None], flat.flatten()[at + tap].long(), layer.ids - 1)
        return (symbol + tap * layer.ids).view(-1, layer.kernel), text

    def _table(self) -> Tensor:
        """Block 1's weights as rows, [taps * ids, channels]: zero for what is no symbol. Tap 0 has the bias too."""
        weight = self.get_parameter("conv1.weight").permute(2, 1, 0)
        table = F.pad(weight, (0, 0, 0, 2))
        bias = F.pad(self.get_parameter("conv1.bias")[None, None], (0, 0, 0, 0, 0, len(table) - 1))
        return (table + bias).flatten(0, 1)

    def _by_group(self, parameter: Tensor, layout: Layout) -> Tensor:
        """A norm's parameter [channels, rows] for each group, [G, 9 * channels]."""
        rows = parameter.t()
        count = -(-len(rows) // GROUP) + 1
        groups = F.pad(rows, (0, 0, 0, count * GROUP - len(rows))).reshape(count, -1)
        return groups.index_select(0, layout.number.clamp(max=count - 1))

    def _products(self, rows: Tensor, name: str) -> Tensor:
        """A product for each row of [R, channels]: of that row and those after it. Those of the last rows are less."""
        compute = self._compute
        weight = self.get_parameter(f"{name}.weight").to(compute)
        weight = weight[:, :, None].contiguous(memory_format=torch.channels_last)
        image = rows.to(compute)[None, None].permute(0, 3, 1, 2)
        after = weight.shape[3] - 1
        return F.conv2d(image, weight, padding=(0, after))[0, :, 0, after:].t()

    def _constant(self, name: str, before: Tensor) -> Tensor:
        """The products, and bias, of rows that are all `before`."""
        return self.get_parameter(f"{name}.weight").sum(2) @ before + self.get_parameter(f"{name}.bias")

    def _last_block(self, x: Tensor, constant: Tensor, layout: Layout) -> Tensor:
        """Block 6, of all rows: what its norm makes of the constant ones differs from article to article."""
        layer = self._layer("conv6")
        constant = self._constant("conv6", constant)
        products = self._products(x, "conv6").to(constant.dtype) + self.get_parameter("conv6.bias")
        articles, rows = len(layout.groups) - 1, layer.rows_out
        # What is no row of an article goes to a last one that is cut off.
        is_row = layout.is_text(1)[:, 0] & (layout.number < rows)
        to = torch.where(is_row, layout.article * rows + layout.number, articles * rows)
        every = x.new_zeros(articles * rows + 1, layer.outputs).index_copy(0, to, products - constant)
        every = every[:-1].view(articles, rows, -1) + constant
        return pooled(F.relu(self._normalise(every, "norm6")), layer.pool).transpose(1, 2).flatten(1)


class _TableSum(torch.autograd.Function):
    """The sum of seven table rows for each row; the gradient of the table is a product with the rows' one-hot codes,
    in `compute`, since summing by index would be many conflicting additions to few rows.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, table: Tensor, windows: Tensor, compute: torch.dtype) -> Tensor:
        """Rows [R, channels] of `table`, summed for each of `windows`, [R, taps]."""
        ctx.save_for_backward(windows)
        ctx.shape, ctx.compute = table.shape, compute  # type: ignore[attr-defined]
        return F.embedding_bag(windows, table, mode="sum")

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the table."""
        (windows,), (gradient,) = ctx.saved_tensors, gradients  # type: ignore[attr-defined]
        codes = gradient.new_zeros((len(windows), ctx.shape[0]), dtype=ctx.compute)  # type: ignore[attr-defined]
        codes.scatter_(1, windows, 1.0)
        return (codes.t() @ gradient.to(codes.dtype)).to(gradient.dtype), None, None
