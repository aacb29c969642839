"""The network in PyTorch, as it is trained: it skips the rows that the texts do not reach.

A text of n characters reaches n rows of block 1, n / 3 rows after the pool of block 1, and n / 9 rows after the pool of
block 2 and in blocks 3 to 6. The rows of all articles of a batch are packed one after another, in units:

- A unit is nine rows of block 1, three rows of block 2's input, and one row of blocks 3 to 6.
- An article has ceil(n / 9) + 2 units. The windows of the text's last rows extend into the two units after the text.
  In the output of block 2 and of each later block, the rows after the text are the same for every article.
- In the dense frame, every article reaches all rows.

Everything is computed on the device of the ids. The host only needs the number of units of a batch.

On a GPU, the kernels of `kernels/training/` compute block 1. With PyTorch's operations, block 1 would take half of a
step's time: they pass through memory some forty times, where these kernels read and write it four times.
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

UNIT_ROWS = 9
"""Rows of block 1 in a unit, since the pools of blocks 1 and 2 are 3 wide each."""

_AFTER = 2  # units after a text: windows of blocks 3 to 6 extend two rows ahead, those of block 2 six input rows

# The names of the types in which block 1's kernels write the pooled rows.
_NUMBERS = {torch.float32: "float", torch.bfloat16: "BFloat"}


@dataclass(frozen=True)
class Layout:
    """The U units of N articles. Units that no article needs belong to an empty article, whose number is N.

    Attributes
    ----------
    article : int64 [U]
        The article of each unit.
    number : int64 [U]
        The number of each unit within its article.
    reached : int64 [N + 1]
        The number of block 1's rows that each text reaches; 0 for the empty article.
    units : int64 [N + 1]
        How many units each article has. The last number is that of the empty article.

    """

    article: Tensor
    number: Tensor
    reached: Tensor
    units: Tensor

    def is_text(self, rows_of_unit: int) -> Tensor:
        """Return whether the text reaches each row, bool [U, rows_of_unit]. rows_of_unit: 9 or 1 rows in a unit."""
        rows_of_block_1 = UNIT_ROWS // rows_of_unit  # in each of the rows of the unit
        row = self.number[:, None] * rows_of_unit + torch.arange(rows_of_unit, device=self.number.device)
        return row * rows_of_block_1 < self.reached[self.article][:, None]


def units_of(reached: Tensor) -> Tensor:
    """Return the number of units of articles. reached: the number of block 1's rows that each text reaches."""
    return (reached + UNIT_ROWS - 1) // UNIT_ROWS + _AFTER


def lay_out(reached: Tensor, total: int) -> Layout:
    """Lay out a batch in `total` units, which are at least as many as its articles need."""
    units = units_of(reached)
    ends = units.cumsum(0)
    index = torch.arange(total, device=reached.device)
    article = torch.searchsorted(ends, index, right=True)
    zero = ends.new_zeros(1)
    begins = torch.cat([zero, ends])
    rest = total - ends[-1:]
    return Layout(article, index - begins[article], torch.cat([reached, zero]), torch.cat([units, rest]))


def can_compute(device: torch.device, layer: Layer) -> bool:
    """Return whether the kernels run on a device: a recent GPU, with the packages that compile and launch kernels."""
    if device.type != "cuda":
        return False
    return _can_compute(torch.cuda.current_device() if device.index is None else device.index, layer)


@cache
def _can_compute(device: int, layer: Layer) -> bool:
    if torch.cuda.get_device_capability(device) < FIRST_CAPABILITY:
        return False
    try:
        _loaded(first_block(layer, UNIT_ROWS, NUMBERS[0]).sum_rows, device)
    except ImportError:
        return False
    except Exception as error:  # a CuPy for another version of CUDA raises many kinds of errors
        warnings.warn(f"block 1 is trained without its own kernels, in twice the time: {error}", stacklevel=2)
        return False
    return True


class _FirstBlock(torch.autograd.Function):
    """Computes, by our kernels, the rows that block 2 reads.

    Before the norm, rows that the text does not reach equal the bias. An article's rows beyond its units are not
    computed: only their number enters the statistics of the norm. This number is negative if the units have more rows
    than the article.
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
        """Compute the rows [3 U, channels] that block 2 reads.

        Parameters
        ----------
        ctx : FunctionCtx
            Stores the tensors for the backward pass.
        table : Tensor [taps * ids, channels]
            The weights by tap and id. Tap 0 includes the bias.
        bias : Tensor [channels]
            The bias.
        gamma, beta : Tensor [rows, channels]
            The parameters of the norm.
        windows : int64 [9 U, 7]
            The table rows of the characters in each row's window.
        layout : Layout
            The units of the articles.
        layer : Layer
            Block 1.
        compute : torch.dtype
            The type of the result.

        """
        # Sum the table rows of each row's window, and compute the mean and squared deviations of each unit.
        units, channels = len(layout.article), layer.outputs
        launch = partial(_launch, units)
        kernels = first_block(layer, UNIT_ROWS, _NUMBERS[compute])
        sums = table.new_empty(units, UNIT_ROWS, channels)
        statistics = table.new_empty(units, 2)
        table, gamma, beta = table.contiguous(), gamma.contiguous(), beta.contiguous()
        launch(kernels.sum_rows, windows, table, sums, statistics)

        # Combine the statistics of the units, and of the rows that equal the bias, to those of each article.
        size, of_unit = layer.rows_out * channels, UNIT_ROWS * channels
        others = (layer.rows_out - UNIT_ROWS * layout.units).to(table.dtype)
        means, squares = statistics.unbind(1)
        mean = (_by_article(means * of_unit, layout) + others * bias.sum()) / size
        squares = _by_article(squares + of_unit * (means - mean[layout.article]).square(), layout)
        squares = squares + others * (bias - mean[:, None]).square().sum(1)
        # With a negative number of other rows, `squares` is a difference, which rounding can make negative.
        scale = torch.rsqrt(squares.clamp(min=0) / size + NORM_EPSILON)
        norms = torch.stack([mean, scale], 1)

        # Normalise the rows, apply ReLU, and take the maximum of each window of the pool.
        number = layout.number.int()
        of_text = (layout.reached[layout.article] - layout.number * UNIT_ROWS).clamp(0, UNIT_ROWS).int()
        pooled_rows = table.new_empty(units * UNIT_ROWS // layer.pool, channels, dtype=compute)
        chosen = table.new_empty(pooled_rows.shape, dtype=torch.uint8)
        of_units = norms[layout.article]
        launch(kernels.normalise_and_pool, sums, of_units, number, of_text, gamma, beta, pooled_rows, chosen)
        ctx.save_for_backward(table, bias, gamma, windows, sums, norms, number, chosen, others)
        ctx.layout, ctx.kernels, ctx.size = layout, kernels, size  # type: ignore[attr-defined]
        return pooled_rows

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the table, the bias, γ and β."""
        table, bias, gamma, windows, sums, norms, number, chosen, others = ctx.saved_tensors  # type: ignore[attr-defined]
        layout, kernels, size = ctx.layout, ctx.kernels, ctx.size  # type: ignore[attr-defined]
        upstream = gradients[0].contiguous()
        launch = partial(_launch, len(sums))
        of_units = norms[layout.article]
        gamma_gradient, beta_gradient = torch.zeros_like(gamma), torch.zeros_like(gamma)
        totals = table.new_empty(len(sums), 2)
        given = upstream, chosen, sums, of_units, number, gamma
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
    """Sum the values of units, [U, …], by article: [N + 1, …]."""
    return values.new_zeros(len(layout.units), *values.shape[1:]).index_add(0, layout.article, values)


def _launch(units: int, kernel: Kernel, *tensors: Tensor) -> None:
    """Launch a kernel on PyTorch's stream of this thread. In the backward pass, that is autograd's stream."""
    import cupy as cp

    device = tensors[0].device
    with cp.cuda.Device(device.index):
        stream = cp.cuda.Stream.from_external(torch.cuda.current_stream(device))
        function = _loaded(kernel, device.index)
        function((units,), (kernel.threads,), [np.uint64(t.data_ptr()) for t in tensors], stream=stream)


def _loaded(kernel: Kernel, device: int) -> Any:
    import cupy as cp

    from ..kernels.ops import load

    major, minor = torch.cuda.get_device_capability(device)
    with cp.cuda.Device(device):
        return load(kernel.file, kernel.expression, f"sm_{major}{minor}")


class PackedCNN(CharCNN):
    """The network for training, with the parameters and logits of `CharCNN`.

    In the text frame, it computes only the rows that the texts reach. Block 1 is a sum of table rows in both frames.
    """

    def units(self, ids: Tensor) -> Tensor:
        """Return how many units of rows each article needs, int64 [N]."""
        return units_of(reached_rows(ids, self._layer("conv1"), self._frame))

    def forward(self, ids: Tensor, units: int | None = None) -> Tensor:
        """Compute the logits [N, classes] of encoded articles, uint8 [N, length].

        units: a number of units that is enough for all articles. If you give it, the host does not wait for the
        device.
        """
        return self.head(self.body(ids, int(self.units(ids).sum()) if units is None else units))

    def body(self, ids: Tensor, units: int) -> Tensor:
        """Compute blocks 1 to 6: [N, channels * rows], channel-major."""
        layout = lay_out(reached_rows(ids, self._layer("conv1"), self._frame), units)
        x = self._first_block(ids, layout)
        products = self._products(x, "conv2")
        x = products.view(units, -1, products.shape[1]).amax(1)  # bias and ReLU commute with the pool
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
        """Compute the rows [3 U, channels] of block 2's input.

        Before the norm, rows that the text does not reach equal the bias. So the norm's statistics over all rows of an
        article are those of the rows in its units, plus those of the other rows, which equal the bias. If the units
        have more rows than the article, the number of other rows is negative.
        """
        # Use our kernels if they run on this device.
        layer = self._layer("conv1")
        bias, norm = self.get_parameter("conv1.bias"), self.get_submodule("norm1")
        assert isinstance(norm, nn.LayerNorm)
        windows, text = self._windows(ids, layout)
        if can_compute(ids.device, layer):
            learnt = self._table(), bias, norm.weight.t(), norm.bias.t()
            rows: Tensor = _FirstBlock.apply(*learnt, windows, layout, layer, self._compute)  # type: ignore[no-untyped-call]
            return rows
        # Sum the table rows of each row's window.
        sums: Tensor = _TableSum.apply(self._table(), windows, self._compute)  # type: ignore[no-untyped-call]
        x = sums.view(len(text), -1)  # [U, 9 * channels]
        others = (layer.rows_out - UNIT_ROWS * layout.units).to(x.dtype)
        size = layer.rows_out * layer.outputs

        def of_articles(by_unit: Tensor, rest: Tensor) -> Tensor:
            return (x.new_zeros(len(others)).index_add(0, layout.article, by_unit) + others * rest) / size

        # Normalise with the mean and the variance of each article.
        mean = of_articles(x.sum(1), bias.sum())
        x = x - mean[layout.article, None]
        squares = of_articles(x.square().sum(1), x.new_zeros(()))
        squares = squares + others * (bias - mean[:, None]).square().sum(1) / size
        x = x * torch.rsqrt(squares + norm.eps)[layout.article, None]
        gamma, beta = (self._by_unit(parameter, layout) for parameter in (norm.weight, norm.bias))
        x = torch.addcmul(beta, x, gamma).view(len(text), UNIT_ROWS, -1)
        # Set rows after the text to zero, then pool; ReLU commutes with the pool.
        x = torch.where(text[:, :, None], x, 0.0)
        return F.relu(x.view(-1, layer.pool, layer.outputs).amax(1))

    def _windows(self, ids: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return the table rows of each row's characters, int64 [9 U, 7], and which rows are text, bool [U, 9]."""
        layer = self._layer("conv1")
        text = layout.is_text(UNIT_ROWS)
        flat = F.pad(ids, (0, layer.kernel, 0, 1), value=layer.ids - 1)  # pad each article, and add an empty one
        row = (layout.number[:, None] * UNIT_ROWS + torch.arange(UNIT_ROWS, device=ids.device)).clamp(
            max=layer.rows_out
        )
        at = (layout.article[:, None] * flat.shape[1] + row)[:, :, None]
        tap = torch.arange(layer.kernel, device=ids.device)
        symbol = torch.where(text[:, :, None], flat.flatten()[at + tap].long(), layer.ids - 1)
        return (symbol + tap * layer.ids).view(-1, layer.kernel), text

    def _table(self) -> Tensor:
        """Return block 1's weights as a table, [taps * ids, channels].

        The unknown character and padding have rows of zeros. The rows of tap 0 include the bias.
        """
        weight = self.get_parameter("conv1.weight").permute(2, 1, 0)
        table = F.pad(weight, (0, 0, 0, 2))
        bias = F.pad(self.get_parameter("conv1.bias")[None, None], (0, 0, 0, 0, 0, len(table) - 1))
        return (table + bias).flatten(0, 1)

    def _by_unit(self, parameter: Tensor, layout: Layout) -> Tensor:
        """Return a norm's parameter [channels, rows] by unit, [U, 9 * channels]."""
        rows = parameter.t()
        count = -(-len(rows) // UNIT_ROWS) + 1
        units = F.pad(rows, (0, 0, 0, count * UNIT_ROWS - len(rows))).reshape(count, -1)
        return units.index_select(0, layout.number.clamp(max=count - 1))

    def _products(self, rows: Tensor, name: str) -> Tensor:
        """Return the convolution without bias of rows [R, channels]: [R, outputs].

        Each window begins at its row. Windows that extend beyond the last row see zeros there.
        """
        compute = self._compute
        weight = self.get_parameter(f"{name}.weight").to(compute)
        weight = weight[:, :, None].contiguous(memory_format=torch.channels_last)
        image = rows.to(compute)[None, None].permute(0, 3, 1, 2)
        after = weight.shape[3] - 1
        return F.conv2d(image, weight, padding=(0, after))[0, :, 0, after:].t()

    def _constant(self, name: str, before: Tensor) -> Tensor:
        """Return the convolution, with bias, of rows that all equal `before`."""
        return self.get_parameter(f"{name}.weight").sum(2) @ before + self.get_parameter(f"{name}.bias")

    def _last_block(self, x: Tensor, constant: Tensor, layout: Layout) -> Tensor:
        """Compute block 6 for all rows: after its norm, even the constant rows differ from article to article."""
        layer = self._layer("conv6")
        constant = self._constant("conv6", constant)
        products = self._products(x, "conv6").to(constant.dtype) + self.get_parameter("conv6.bias")
        articles, rows = len(layout.units) - 1, layer.rows_out
        # Rows that belong to no article are copied to an extra last row, which is then cut off.
        is_row = layout.is_text(1)[:, 0] & (layout.number < rows)
        to = torch.where(is_row, layout.article * rows + layout.number, articles * rows)
        every = x.new_zeros(articles * rows + 1, layer.outputs).index_copy(0, to, products - constant)
        every = every[:-1].view(articles, rows, -1) + constant
        return pooled(F.relu(self._normalise(every, "norm6")), layer.pool).transpose(1, 2).flatten(1)


class _TableSum(torch.autograd.Function):
    """Sums seven table rows for each row.

    The backward pass multiplies the gradient by the one-hot codes of the rows, in the type `compute`. Adding by index
    instead would make many additions conflict on a few table rows.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, table: Tensor, windows: Tensor, compute: torch.dtype) -> Tensor:
        """Sum the rows of `table` for each of `windows`, [R, taps]: [R, channels]."""
        ctx.save_for_backward(windows)
        ctx.shape, ctx.compute = table.shape, compute  # type: ignore[attr-defined]
        return F.embedding_bag(windows, table, mode="sum")

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Compute the gradient of the table."""
        (windows,), (gradient,) = ctx.saved_tensors, gradients  # type: ignore[attr-defined]
        codes = gradient.new_zeros((len(windows), ctx.shape[0]), dtype=ctx.compute)  # type: ignore[attr-defined]
        codes.scatter_(1, windows, 1.0)
        return (codes.t() @ gradient.to(codes.dtype)).to(gradient.dtype), None, None
