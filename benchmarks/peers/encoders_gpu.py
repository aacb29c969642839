"""Encoders on one GPU beside PyTorch, in one run: bytes in host memory to scores there.

    python -m benchmarks.peers.encoders_gpu --encoder DIR --articles-csv train.csv --output FILE

The vocabulary is that of DIR. Weights are random, with the shapes of MiniLM, e5-small and BERT-base; they take as long
as trained ones. PyTorch's forward pass in fp16 gets texts sorted by length, in padded batches, and uses its fused
attention. It is measured from tokens on the GPU ("forward"), and as its users run it, from texts that the threads of
`tokenizers` split into tokens first ("both").
"""

from __future__ import annotations

import csv
import random
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from msgspec.structs import replace
from tokenizers import Tokenizer

from benchmarks.record import about, parser, write
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.encoder import compute_on
from broadsheet.pipeline.model import encoder_file
from broadsheet.pipeline.model.encoder import Encoder

SHAPES = {"MiniLM": (6, 384, 12, 1536), "e5-small": (12, 384, 12, 1536), "BERT-base": (12, 768, 12, 3072)}
"""Layers, width, heads, and values between the two products of a layer."""

BATCH_TOKENS, JOINED, REPEATS = 1 << 16, 16, 3


def of_shape(read: Encoder, shape: tuple[int, int, int, int]) -> Encoder:
    """Return an encoder with random weights, which reads 512 tokens of a text. shape: as in SHAPES."""
    rng = np.random.default_rng(0)
    layers, width, heads, inner = shape

    def drawn(*shape: int) -> Any:
        return rng.normal(0, 0.03, shape).astype(np.float32)

    norms = ["norm", *(f"{layer}.norm{i}" for layer in range(layers) for i in (1, 2))]
    weights = {f"{name}.weight": 1 + drawn(width) for name in norms} | {f"{name}.bias": drawn(width) for name in norms}
    weights |= {"embedding": drawn(len(read.tokens.ends), width), "places": drawn(512, width), "last": drawn(width, 4)}
    for layer in range(layers):
        for name, size in {
            "queries": (width, 3 * width), "mix": (width, width), "inner": (width, inner), "outer": (inner, width),
        }.items():  # fmt: skip
            weights |= {f"{layer}.{name}": drawn(*size), f"{layer}.{name}.bias": drawn(size[1])}
    settings = replace(read.settings, layers=layers, heads=heads, most_tokens=512, pooling="mean", head=())
    return Encoder(settings, read.tokens, weights)


class Forward:
    """PyTorch's forward pass, from token ids to a vector for each text."""

    def __init__(self, encoder: Encoder) -> None:
        self.heads, self.layers = encoder.settings.heads, encoder.settings.layers
        tensors = {name: torch.tensor(weight).cuda().half() for name, weight in encoder.weights.items()}
        self.weights = {
            name: one.T.contiguous() if one.ndim > 1 and name[0].isdigit() else one for name, one in tensors.items()
        }

    def batches(self, tokens: list[list[int]]) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Return batches on the GPU: padded token ids, [texts, tokens], and a mask of real tokens; None if all are."""
        ordered, first, out = sorted(tokens, key=len), 0, []
        while first < len(ordered):
            longest = len(ordered[min(first + 1024, len(ordered) - 1)])
            some = ordered[first : first + max(8, BATCH_TOKENS // longest)]
            ids, sizes = np.zeros((len(some), len(some[-1])), np.int64), np.array([*map(len, some)])
            is_token = np.arange(ids.shape[1]) < sizes[:, None]
            ids[is_token] = np.concatenate(some)
            mask = None if is_token.all() else torch.from_numpy(is_token[:, None, None]).cuda()
            out.append((torch.from_numpy(ids).cuda(), mask))
            first += len(some)
        return out

    def __call__(self, batches: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        for ids, mask in batches:
            self._batch(ids, mask)
        torch.cuda.synchronize()

    def _batch(self, ids: torch.Tensor, mask: torch.Tensor | None) -> None:
        weights, (texts, most) = self.weights, ids.shape

        def linear(x: torch.Tensor, name: str) -> torch.Tensor:
            return F.linear(x, weights[name], weights[f"{name}.bias"])

        def norm(x: torch.Tensor, name: str) -> torch.Tensor:
            return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

        x = norm(weights["embedding"][ids] + weights["places"][:most], "norm")
        for layer in range(self.layers):
            three = linear(x, f"{layer}.queries").view(texts, most, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(*three, attn_mask=mask).transpose(1, 2).reshape(x.shape)
            x = norm(x + linear(mixed, f"{layer}.mix"), f"{layer}.norm1")
            x = norm(x + linear(F.gelu(linear(x, f"{layer}.inner")), f"{layer}.outer"), f"{layer}.norm2")
        x.mean(1)


def both(forward: Forward, tokenizer: Tokenizer, texts: list[str]) -> None:
    """Split texts into tokens, and compute their vectors."""
    forward(forward.batches([one.ids for one in tokenizer.encode_batch(texts)]))


def main() -> None:
    command = parser(__doc__, articles=True)
    command.add_argument("--encoder", type=Path, required=True, help="folder of BERT's kind, for its vocabulary")
    options = command.parse_args()
    read, rng = encoder_file.read(options.encoder, "it").encoder, random.Random(0)
    tokenizer = Tokenizer.from_file(str(options.encoder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)
    articles = [" ".join(row[1:]) for row in csv.reader(options.articles_csv.open())]
    joined = [" ".join(rng.choices(articles, k=JOINED)) for _ in range(5000)]
    rows: list[dict[str, Any]] = []
    for name, shape in SHAPES.items():
        encoder = of_shape(read, shape)
        forward, compute = Forward(encoder), compute_on(encoder, "cuda")
        with torch.inference_mode():
            for texts in (rng.choices(articles, k=57_600_000 // shape[1]), joined):
                given = Texts.of([text.encode() for text in texts])
                tokens = [one.ids for one in tokenizer.encode_batch(texts)]
                ways = {
                    "ours": partial(compute.of_texts, given, True, None),
                    "forward": partial(forward, forward.batches(tokens)),
                    "both": partial(both, forward, tokenizer, texts),
                }
                turns: dict[str, list[float]] = {way: [] for way in ways}
                for _ in range(REPEATS + 1):
                    for way, work in ways.items():
                        began = perf_counter()
                        work()
                        turns[way].append(perf_counter() - began)
                seconds = {way: median(own[1:]) for way, own in turns.items()}
                length = sum(map(len, tokens)) / len(texts)
                # FLOP of a token: in each layer four products of width², two of width by inner, and attention.
                a_token = shape[0] * (8 * shape[1] ** 2 + 4 * shape[1] * shape[3] + 4 * shape[1] * length)
                tflop = len(texts) * length * a_token / 1e12
                rows.append(
                    {"shape": name, "tokens": length, "texts": len(texts), "tflop_a_second": tflop / seconds["ours"]}
                )
                rows[-1] |= {way: len(texts) / one for way, one in seconds.items()}
        compute.close()
    write({"about": about(options, gpu=torch.cuda.get_device_name()), "rows": rows}, options.output)


if __name__ == "__main__":
    main()
