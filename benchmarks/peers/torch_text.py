"""The text frame as a user of PyTorch could write it.

Articles are sorted by length, and the smallest of a few frames that holds a batch computes it. All rows of a layer that
no text reaches are the same constant vector. So a network for short texts computes fewer rows, and uses this constant
where convolutions and norms read beyond them.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.peers import torch_peer
from benchmarks.peers.peer import Peer
from benchmarks.peers.torch_peer import ChannelsLast, Network, TableBlock1, pool
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import NORM_EPSILON

CHARACTERS = (225, 288, 387)
"""The lengths of the short frames; longer texts need the whole length.

They are multiples of nine, so that the windows of both pools end with the frame, and short enough that block 6 has as
many rows as a frame gives it.
"""


class TextFrame(nn.Module):
    """The network in the text frame, for articles of at most `characters` characters; None for the whole length.

    From ids, uint8 [N, length], to logits [N, classes].
    """

    def __init__(self, model: Model, characters: int | None, dtype: torch.dtype) -> None:
        super().__init__()
        first, *_ = model.layers
        self.net = ChannelsLast(model, TableBlock1, dtype)
        self.padding = model.alphabet.padding
        self.rows = characters or first.rows_out
        self.is_whole = characters is None
        row = torch.zeros(first.outputs)
        for layer in model.layers[1:]:
            if layer.kind == "conv1d":
                conv = self.net.get_submodule(layer.name)
                row = conv.weight.float().sum(3)[:, :, 0] @ row + conv.bias.float()
                row = F.relu(row) if layer.relu and not layer.norm else row
                self.register_buffer(f"after_{layer.name}", row.to(dtype))

    def forward(self, ids: Tensor) -> Tensor:
        first, *rest = self.net.layers
        x = self._first_block(ids[:, : self.rows + first.kernel - 1])
        before = None  # the vector of the rows after x
        for layer in rest:
            if layer.kind == "conv1d" and not self.is_whole:
                more = layer.kernel - 1
                x = F.pad(x, (0, 0, 0, more)) if before is None else torch.cat([x, before.expand(len(x), more, -1)], 1)
                before = self.get_buffer(f"after_{layer.name}")
            if layer.name == "fc1":
                x = x.flatten(1)
            x = self.net.get_submodule(layer.name)(x)
            if layer.norm:
                left = layer.rows_out - x.shape[1]
                x = x if self.is_whole else torch.cat([x, before.expand(len(x), left, -1)], 1)
                x = self.net.get_submodule(layer.norm)(x)
            if layer.relu:
                x = F.relu(x)
            if layer.pool > 1:
                x = pool(x, layer.pool)
        return x.float()

    def _first_block(self, ids: Tensor) -> Tensor:
        """Compute block 1, which is zero after the text.

        The statistics of the norm include the rows that are not computed, which equal the bias.
        """
        layer = self.net.layers[0]
        block, norm = self.net.get_submodule(layer.name), self.net.get_submodule(layer.norm)
        x, bias = block(ids).float(), block.bias.float()
        left, size = layer.rows_out - self.rows, layer.rows_out * layer.outputs
        mean = ((x.sum((1, 2)) + left * bias.sum()) / size)[:, None, None]
        variance = ((x - mean).square().sum((1, 2)) + left * (bias - mean[:, 0]).square().sum(1)) / size
        x = (x - mean) * torch.rsqrt(variance + NORM_EPSILON)[:, None, None]
        x = F.relu(x * norm.weight[: self.rows] + norm.bias[: self.rows])
        positions = torch.arange(self.rows, device=ids.device)
        x = torch.where(positions[:, None] < text_ends(ids, self.padding)[:, None, None], x, 0)
        return pool(x.to(block.bias.dtype), layer.pool)


def text_ends(ids: Tensor, padding: int) -> Tensor:
    """Return the index after the last character of each article that is not padding, [N]."""
    after = torch.arange(1, ids.shape[1] + 1, device=ids.device, dtype=torch.int16)
    return torch.where(ids != padding, after, 0).amax(1)


def peer(name: str, frames: dict[int, Network], model: Model, ids: Tensor, batch: int) -> Peer:
    """Return a peer whose pass sorts articles by length, and computes each batch in the smallest frame that holds it.

    Parameters
    ----------
    name : str
        The description.
    frames : dict of int to callable
        The network in each frame, by the longest text that it holds.
    model : Model
        The model.
    ids : tensor, uint8 [N, length]
        Encoded articles.
    batch : int
        The number of articles in a batch.

    """
    logits = torch.zeros(len(ids), len(model.classes), device=ids.device)

    def run() -> None:
        with torch.no_grad():
            ends, order = text_ends(ids, model.alphabet.padding).sort()
            longest = ends.view(-1, batch)[:, -1].tolist()
            for part, longest_in_batch in zip(order.split(batch), longest, strict=True):
                frame = min(characters for characters in frames if characters >= longest_in_batch)
                logits[part] = frames[frame](ids[part])
            logits.softmax(1).max(1)
        if ids.is_cuda:
            torch.cuda.synchronize(ids.device)

    def answer() -> NDArray[np.float32]:
        return logits.cpu().numpy()

    return Peer(name, batch, run, answer)


def compiled(model: Model, device: torch.device) -> dict[int, Network]:
    """Return the compiled network in each frame, by the longest text that the frame holds."""
    frames = (*(size for size in CHARACTERS if size < model.length), None)
    networks = (torch_peer.compiled(TextFrame(model, size, torch.float16), device) for size in frames)
    return {size or model.length: network for size, network in zip(frames, networks, strict=True)}
