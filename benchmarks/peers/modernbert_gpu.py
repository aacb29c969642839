"""ModernBERT on one GPU beside PyTorch, in one run: bytes in host memory to scores there.

    python -m benchmarks.peers.modernbert_gpu --articles-csv train.csv --output FILE

Weights are random, with the shapes of ModernBERT-base and ModernBERT-large; they take as long as trained ones. Texts
are articles, joined and cut to one number of tokens. A byte-level BPE of 50,000 tokens is learned from the articles
first. PyTorch's forward pass in fp16 is that of transformers, with its fused attention, in batches of 65,536 tokens
without padding. It is measured from token ids, as it is ("eager") and with torch.compile ("compiled"). The faster of
the two is also measured as its users run it, from texts that the threads of `tokenizers` split into tokens first
("both").
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from msgspec.structs import replace
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from benchmarks.record import about, parser, write
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.encoder import compute_on
from broadsheet.pipeline.model.encoder import Encoder, Rotary, Settings
from broadsheet.pipeline.model.stored_tokenizer import StoredTokenizer

SHAPES = {"ModernBERT-base": (22, 768, 12, 1152), "ModernBERT-large": (28, 1024, 16, 2624)}
"""Layers, width, heads, and values between the two products of a layer."""

LENGTHS = (64, 512, 2048)
TOKENS, BATCH_TOKENS, REPEATS = 1 << 20, 1 << 16, 3
ENTRIES = 50_000


def learned(articles: list[str]) -> Tokenizer:
    """Train a byte-level BPE, the kind of ModernBERT, on articles."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["[CLS]", "[SEP]"]
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(articles, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return made


def of_shape(tokenizer: Tokenizer, shape: tuple[int, int, int, int]) -> Encoder:
    """Return our classifier with random weights. shape: as in SHAPES."""
    rng = np.random.default_rng(0)
    layers, width, heads, inner = shape

    def drawn(*shape: int) -> Any:
        return rng.standard_normal(shape, np.float32) * np.float32(0.03)

    norms = ["norm", "final", "head.norm"]
    norms += [f"{layer}.norm{i}" for layer in range(layers) for i in (1, 2) if (layer, i) != (0, 1)]
    weights = {f"{name}.weight": 1 + drawn(width) for name in norms} | {f"{name}.bias": drawn(width) for name in norms}
    weights |= {"embedding": drawn(ENTRIES, width), "last": drawn(width, 4)}
    weights |= {"head.0": drawn(width, width), "head.0.bias": drawn(width)}
    for layer in range(layers):
        for name, size in {
            "queries": (width, 3 * width), "mix": (width, width), "inner": (width, 2 * inner), "outer": (inner, width),
        }.items():  # fmt: skip
            weights |= {f"{layer}.{name}": drawn(*size), f"{layer}.{name}.bias": np.zeros(size[1], np.float32)}
    rotary = tuple(Rotary(10_000.0, 64) if layer % 3 else Rotary(160_000.0) for layer in range(layers))
    settings = Settings(
        layers=layers, heads=heads, epsilon=1e-5, activation="gelu", pooling="mean", head=("gelu", "layer_norm"),
        most_tokens=max(LENGTHS), rules=None, rotary=rotary, is_pre_norm=True, is_gated=True,
    )  # fmt: skip
    stored = StoredTokenizer(np.frombuffer(tokenizer.to_str().encode(), np.uint8))
    encoder = Encoder(settings, stored, weights)
    encoder.check(4, "ModernBERT")
    return encoder


def forward_of(shape: tuple[int, int, int, int]) -> Any:
    """Return the classifier of transformers with random weights. shape: as in SHAPES."""
    layers, width, heads, inner = shape
    config = transformers.ModernBertConfig(
        vocab_size=ENTRIES, num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
        intermediate_size=inner, num_labels=4, classifier_pooling="mean", pad_token_id=0, bos_token_id=0,
        eos_token_id=1, cls_token_id=0, sep_token_id=1, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.ModernBertForSequenceClassification(config).half().cuda().eval()


def texts_of(articles: list[str], tokenizer: Tokenizer, length: int) -> list[str]:
    """Return texts of a little more than `length` tokens each. Cut to `length`, they have about TOKENS in all."""
    rng = random.Random(0)
    joined = [" ".join(rng.choices(articles, k=2 + length // 25)) for _ in range(TOKENS // length)]
    tokenizer.no_truncation()
    return [
        text[: one.offsets[length + 8][1]] for text, one in zip(joined, tokenizer.encode_batch(joined), strict=True)
    ]


def run(forward: Callable[..., Any], ids: np.ndarray) -> None:
    """Compute texts of equal length with PyTorch, in batches, and wait for the end. ids: int64 [texts, tokens]."""
    step = BATCH_TOKENS // ids.shape[1]
    for first in range(0, len(ids), step):
        forward(input_ids=torch.from_numpy(ids[first : first + step]).cuda())
    torch.cuda.synchronize()


def both(forward: Callable[..., Any], tokenizer: Tokenizer, texts: list[str]) -> None:
    """Split texts into tokens, and compute them with PyTorch."""
    run(forward, np.array([one.ids for one in tokenizer.encode_batch(texts)], np.int64))


def measured(encoder: Encoder, tokenizer: Tokenizer, module: Any, texts: list[str], length: int) -> dict[str, float]:
    """Return the median seconds of each way for texts of `length` tokens.

    Parameters
    ----------
    encoder : Encoder
        Our encoder.
    tokenizer : Tokenizer
        Makes the same tokens for PyTorch.
    module : torch.nn.Module
        The encoder of PyTorch.
    texts : list of str
        Texts of at least `length` tokens.
    length : int
        The number of tokens to which texts are cut.

    """
    tokenizer.enable_truncation(length)
    ids = np.array([one.ids for one in tokenizer.encode_batch(texts)], np.int64)
    assert ids.shape == (len(texts), length)
    given = Texts.of([text.encode() for text in texts])
    compute = compute_on(
        Encoder(replace(encoder.settings, most_tokens=length), encoder.tokens, encoder.weights), "cuda"
    )
    torch.compiler.reset()
    compiled = torch.compile(module)
    ways: dict[str, Callable[[], object]] = {
        "ours": partial(compute.of_texts, given, True, None),
        "eager": partial(run, module, ids),
        "compiled": partial(run, compiled, ids),
        "tokenizers": partial(tokenizer.encode_batch, texts),
    }
    turns: dict[str, list[float]] = {way: [] for way in [*ways, "both"]}
    for turn in range(REPEATS + 1):
        for way, work in ways.items():
            began = perf_counter()
            work()
            turns[way].append(perf_counter() - began)
        if turn:
            faster = min((module, turns["eager"][-1]), (compiled, turns["compiled"][-1]), key=lambda one: one[1])[0]
            began = perf_counter()
            both(faster, tokenizer, texts)
            turns["both"].append(perf_counter() - began)
    compute.close()
    return {way: median(own[1:] if way in ways else own) for way, own in turns.items()}


def row_of(
    name: str, encoder: Encoder, tokenizer: Tokenizer, module: Any, articles: list[str], length: int, operations: float
) -> dict[str, Any]:
    """Measure texts of one length, and print what is found: tokens a second by each way.

    Parameters
    ----------
    name : str
        The name of the encoder.
    encoder, tokenizer, module, length
        See `measured`.
    articles : list of str
        The articles from which the texts are made.
    operations : float
        The floating-point operations of the encoder for a token.

    """
    texts = texts_of(articles, tokenizer, length)
    with torch.inference_mode():
        seconds = measured(encoder, tokenizer, module, texts, length)
    tokens = len(texts) * length
    row: dict[str, Any] = {"shape": name, "tokens": length, "texts": len(texts)}
    row["tflop_a_second"] = tokens * operations / 1e12 / seconds["ours"]
    row |= {way: tokens / one for way, one in seconds.items()}
    print({way: f"{one:,.0f}" if isinstance(one, float) else one for way, one in row.items()}, flush=True)
    return row


def main() -> None:
    command = parser(__doc__, articles=True)
    command.add_argument("--shape", choices=SHAPES, action="append", help="measure this shape alone; may be repeated")
    options = command.parse_args()
    articles = [" ".join(row[1:]) for row in csv.reader(options.articles_csv.open())]
    tokenizer = learned(articles)
    versions = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
    place = about(options, gpu=torch.cuda.get_device_name(), **versions)
    rows: list[dict[str, Any]] = []
    for name in options.shape or SHAPES:
        layers, width, _, inner = shape = SHAPES[name]
        encoder, module = of_shape(tokenizer, shape), forward_of(shape)
        for length in LENGTHS:
            # FLOP of a token: in each layer four products of width² and three of width by inner, and attention to the
            # tokens within the layer's window (`near` in all layers together).
            near = sum(min(length, 2 * (one.window or length) + 1) for one in encoder.settings.rotary)
            a_token = layers * (8 * width**2 + 6 * width * inner) + 4 * width * near
            rows.append(row_of(name, encoder, tokenizer, module, articles, length, a_token))
            write({"about": place, "rows": rows}, options.output)
        del encoder, module
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
