"""The model of the peers: Broadsheet's weights in PyTorch.

Each batch is computed in the smallest of a few frames that holds its longest text.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.torch_text import CHARACTERS, TextFrame
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.loading import load_model

SIZES = (1, 16, 64, 256)
"""The sizes of batches on a GPU. A batch is padded to one of them, since `torch.compile` needs fixed shapes."""

_OF_CPU, _OF_GPU = (*CHARACTERS, None), (CHARACTERS[-1], None)
"""The frames. A GPU has fewer, since each frame must be compiled for each size."""


class Graph:
    """A compiled network as a CUDA graph, for one size of batch. Any thread may call it, but only one at a time."""

    def __init__(self, network: nn.Module, count: int, length: int) -> None:
        torch.backends.cudnn.benchmark = True
        network = network.to("cuda").eval().requires_grad_(False)
        compiled = torch.compile(network, fullgraph=True, dynamic=False)
        self.ids = torch.zeros(count, length, dtype=torch.uint8, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad():
            for _ in range(3):
                compiled(self.ids)
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph):
                self.logits = compiled(self.ids)

    def __call__(self, ids: Tensor) -> Tensor:
        self.ids.copy_(ids)
        self.graph.replay()
        return self.logits


class TorchModel:
    """The model in PyTorch.

    On a GPU, it computes in fp16 with `torch.compile` and CUDA graphs; on a CPU, in fp32 in eager mode.
    """

    def __init__(self, name: str, device: str) -> None:
        self.model = load_model(name)
        self.device = torch.device(device)
        frames = {size or self.model.length: size for size in (_OF_CPU if device == "cpu" else _OF_GPU)}
        if device == "cpu":
            self.frames = {
                longest: TextFrame(self.model, size, torch.float32).eval() for longest, size in frames.items()
            }
        else:
            self.graphs = {
                (longest, count): Graph(TextFrame(self.model, size, torch.float16), count, self.model.length)
                for longest, size in frames.items()
                for count in SIZES
            }

    def __call__(self, texts: list[str]) -> list[tuple[str, float]]:
        """Return the label of each text, with its score."""
        # Encode the texts, at most 256 at a time.
        if len(texts) > SIZES[-1]:
            return [*self(texts[: SIZES[-1]]), *self(texts[SIZES[-1] :])]
        batch = Texts.of([text[: self.model.length].encode() for text in texts])
        ids = encode(batch.data, batch.offsets, self.model.alphabet, self.model.length)[0]
        longest = min(max(map(len, texts), default=0), self.model.length)
        # Compute them in the smallest frame that holds them.
        with torch.no_grad():
            if self.device.type == "cpu":
                frame = self.frames[min(length for length in self.frames if length >= longest)]
                logits = frame(torch.from_numpy(ids))
            else:
                count = min(size for size in SIZES if size >= len(ids))
                length = min(length for length, _ in self.graphs if length >= longest)
                padded = np.full((count, ids.shape[1]), self.model.alphabet.padding, np.uint8)
                padded[: len(ids)] = ids
                logits = self.graphs[length, count](torch.from_numpy(padded))[: len(ids)]
            scores, labels = (logits / self.model.temperature).softmax(1).max(1)
        names = self.model.classes
        return [(names[i], score) for i, score in zip(labels.tolist(), scores.tolist(), strict=True)]


class NoModel:
    """A model that computes nothing, with which a benchmark measures the rest of a server."""

    def __call__(self, texts: list[str]) -> list[tuple[str, float]]:
        return [("none", 1.0)] * len(texts)


def model_of(kind: str, device: str) -> TorchModel | NoModel:
    """Return the model of a name, or one that computes nothing for "no-op"."""
    return NoModel() if kind == "no-op" else TorchModel(kind, device)
