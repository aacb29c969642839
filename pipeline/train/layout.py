"""Where the rows of a batch lie that its texts reach, so that a network of the text frame computes no others.

A text of n characters reaches n rows of block 1, a third of them after its pool, a ninth after that of block 2, and so
many of each block from there on. Articles lie one after another: each has ceil(n / 9) + 2 groups, and a group is nine
rows of block 1, three rows of block 2's input, and one row of blocks 3 to 6. The two groups after the text are what the
windows of its last rows look at; from block 2 on, the rows there are constant ones. In the dense frame every article
reaches all rows.

All of it is computed on the device of the ids; only the number of groups of a batch has to be known to the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.layers import Frame, Layer

GROUP = 9
"""Rows of block 1 in a group: the pools of blocks 1 and 2 are 3 wide each."""

_AFTER = 2  # groups after a text: blocks 3 to 6 look two rows ahead, and block 2 six of its rows


@dataclass(frozen=True)
class Layout:
    """The groups of N articles, G of them. Those that no article needs belong to an empty article, number N.

    article: int64 [G]. number: int64 [G], of a group within its article. reached: int64 [N + 1], rows of block 1 that
    the text reaches. groups: int64 [N + 1].
    """

    article: Tensor
    number: Tensor
    reached: Tensor
    groups: Tensor

    def is_text(self, rows_of_group: int) -> Tensor:
        """Whether the text reaches each row, of which a group has 9 or 1: bool [G, rows_of_group]."""
        each = GROUP // rows_of_group
        row = self.number[:, None] * rows_of_group + torch.arange(rows_of_group, device=self.number.device)
        return row * each < self.reached[self.article][:, None]


def reached_rows(ids: Tensor, first: Layer, frame: Frame) -> Tensor:
    """Rows of block 1 that come before the end of each text, int64 [N], of ids uint8 [N, length]."""
    if frame == "dense":
        return torch.full((len(ids),), first.rows_out, device=ids.device)
    position = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    padding = first.inputs + 1
    return ((ids != padding) * position).amax(1).clamp(max=first.rows_out)


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
