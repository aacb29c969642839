"""The network in PyTorch as it is trained: without the rows that the texts do not reach (`layout.py`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from ..model.layers import Layer
from . import first_block
from .layout import GROUP, Layout, groups_of, lay_out, reached_rows
from .network import CharCNN


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

    def head(self, x: Tensor) -> Tensor:
        """The linear layers: logits [N, classes]."""
        for layer in map(self._layer, ("fc1", "fc2", "fc3")):
            weight, bias = self.get_parameter(f"{layer.name}.weight"), self.get_parameter(f"{layer.name}.bias")
            x = F.dropout(x, self._dropout[layer.name], self.training)
            compute = self._compute if layer.relu else weight.dtype
            x = F.linear(x.to(compute), weight.to(compute)).to(weight.dtype) + bias
            if layer.relu:
                x = F.relu(x)
        return x

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
        if first_block.can_compute(ids.device, layer):
            given = first_block.Parameters(self._table(), bias, norm.weight.t(), norm.bias.t())
            return first_block.pooled(given, windows, layout, layer, self._compute)
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
        layer, norm = self._layer("conv6"), self.get_submodule("norm6")
        assert isinstance(norm, nn.LayerNorm)
        constant = self._constant("conv6", constant)
        products = self._products(x, "conv6").to(constant.dtype) + self.get_parameter("conv6.bias")
        articles, rows = len(layout.groups) - 1, layer.rows_out
        # What is no row of an article goes to a last one that is cut off.
        is_row = layout.is_text(1)[:, 0] & (layout.number < rows)
        to = torch.where(is_row, layout.article * rows + layout.number, articles * rows)
        every = x.new_zeros(articles * rows + 1, layer.outputs).index_copy(0, to, products - constant)
        every = every[:-1].view(articles, rows, -1) + constant
        gamma, beta = norm.weight.t().contiguous(), norm.bias.t().contiguous()
        every = F.relu(F.layer_norm(every, gamma.shape, gamma, beta, norm.eps))
        windows = every[:, : layer.rows_pooled * layer.pool].reshape(articles, layer.rows_pooled, layer.pool, -1)
        features: Tensor = windows.amax(2).transpose(1, 2).flatten(1)
        return features


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
