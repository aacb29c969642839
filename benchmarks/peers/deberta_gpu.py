"""DeBERTa-v3-base and gte-base on one GPU beside PyTorch, in one run: bytes in host memory to scores there.

    python -m benchmarks.peers.deberta_gpu --articles-csv train.csv --output FILE

Weights are random, with the shapes of microsoft/deberta-v3-base and gte-base-en-v1.5; they take as long as trained
ones. A tokenizer of 30,000 tokens is learned from the articles first: a Unigram, the kind of DeBERTa-v3 and of
multilingual `gte`, which `tokenizers` computes, or a WordPiece, the kind of English `gte`, which our kernels compute.
All else is as in `modernbert_gpu`: the forward pass of transformers in fp16, as it is and with torch.compile.
transformers has no fused attention for DeBERTa, and has `gte` from version 5.24 on.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import BertWordPieceTokenizer, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from benchmarks.peers.modernbert_gpu import row_of
from benchmarks.record import about, parser, write
from broadsheet.pipeline.model.encoder import Distances, Encoder, Rotary, Settings
from broadsheet.pipeline.model.encoder_tokens import word_piece
from broadsheet.pipeline.model.stored_tokenizer import StoredTokenizer
from broadsheet.pipeline.model.wordpiece import WordPiece

LAYERS, WIDTH, HEADS, INNER, CLASSES = 12, 768, 12, 3072, 4
ENTRIES, LEARNED_FROM = 30_000, 20_000
DISTANCES, ROTARY = Distances(256, 512), Rotary(160_000.0)


def learned_word_piece(articles: list[str]) -> Tokenizer:
    """Return a WordPiece tokenizer, the kind of BERT and English `gte`."""
    made = BertWordPieceTokenizer()
    made.train_from_iterator(articles[:LEARNED_FROM], vocab_size=ENTRIES, show_progress=False)
    frame = [(name, made.token_to_id(name)) for name in ("[SEP]", "[CLS]")]
    tokenizer = Tokenizer.from_str(made.to_str())
    tokenizer.post_processor = processors.BertProcessing(*frame)
    return tokenizer


def learned_unigram(articles: list[str]) -> Tokenizer:
    """Return a Unigram tokenizer, the kind of DeBERTa-v3 and of multilingual models."""
    made = Tokenizer(models.Unigram())
    made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    special = ["[CLS]", "[SEP]", "[UNK]"]
    trainer = trainers.UnigramTrainer(
        vocab_size=ENTRIES, special_tokens=special, unk_token="[UNK]", show_progress=False
    )
    made.train_from_iterator(articles[:LEARNED_FROM], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return made


def drawn(tokenizer: Tokenizer, limit: int, is_gte: bool) -> Encoder:
    """Return our classifier with random weights.

    Parameters
    ----------
    tokenizer : Tokenizer
        Makes the tokens.
    limit : int
        The most tokens of a text.
    is_gte : bool
        Whether the classifier is a `gte`; otherwise it is a DeBERTa.

    """
    rng = np.random.default_rng(0)

    def random(*shape: int) -> Any:
        return rng.standard_normal(shape, np.float32) * np.float32(0.03)

    norms = ["norm", *(f"{layer}.norm{i}" for layer in range(LAYERS) for i in (1, 2))]
    weights = {f"{name}.weight": 1 + random(WIDTH) for name in norms}
    weights |= {f"{name}.bias": random(WIDTH) for name in norms}
    weights |= {"embedding": random(ENTRIES, WIDTH), "last": random(WIDTH, CLASSES)}
    weights |= {"head.0": random(WIDTH, WIDTH), "head.0.bias": random(WIDTH)}
    for layer in range(LAYERS):
        for name, size in {
            "queries": (WIDTH, 3 * WIDTH), "mix": (WIDTH, WIDTH), "inner": (WIDTH, INNER * (1 + is_gte)),
            "outer": (INNER, WIDTH),
        }.items():  # fmt: skip
            weights |= {f"{layer}.{name}": random(*size), f"{layer}.{name}.bias": random(size[1])}
        if not is_gte:
            tables = (f"{layer}.keys_at", f"{layer}.queries_at")
            weights |= {name: random(2 * DISTANCES.span, WIDTH) for name in tables}
    tokens: WordPiece | StoredTokenizer
    if tokenizer.to_str().count('"WordPiece"'):
        tokens = word_piece(tokenizer, False, ENTRIES, "it")
    else:
        tokens = StoredTokenizer(np.frombuffer(tokenizer.to_str().encode(), np.uint8))
    rules = tokens.rules if isinstance(tokens, WordPiece) else None
    settings = Settings(
        layers=LAYERS, heads=HEADS, epsilon=1e-7, activation="gelu", pooling="cls", most_tokens=limit, rules=rules,
        head=("tanh" if is_gte else "gelu",), rotary=(ROTARY,) * LAYERS if is_gte else (), is_gated=is_gte,
        distances=None if is_gte else DISTANCES,
    )  # fmt: skip
    encoder = Encoder(settings, tokens, weights)
    encoder.check(CLASSES, "it")
    return encoder


def deberta() -> Any:
    """Return the DeBERTa classifier of transformers with random weights."""
    config = transformers.DebertaV2Config(
        vocab_size=ENTRIES, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=INNER, num_labels=CLASSES, relative_attention=True, position_buckets=DISTANCES.span,
        norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False,
        type_vocab_size=0, pooler_hidden_size=WIDTH,
    )  # fmt: skip
    return transformers.DebertaV2ForSequenceClassification(config).half().cuda().eval()


def gte() -> Any:
    """Return the `gte` classifier of transformers with random weights."""
    config = transformers.GteConfig(
        vocab_size=ENTRIES, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=INNER, num_labels=CLASSES, type_vocab_size=0, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.GteForSequenceClassification(config).half().cuda().eval()


class Family(NamedTuple):
    """A family of encoders that is measured.

    Attributes
    ----------
    learned : callable
        Learns the tokenizer from articles.
    forward : callable
        Makes the module of PyTorch.
    lengths : tuple of int
        The numbers of tokens in a text.
    weights : int
        The number of weights in a layer that multiply each token.
    products : int
        The number of products of attention for each pair of tokens.

    """

    learned: Callable[[list[str]], Tokenizer]
    forward: Callable[[], Any]
    lengths: tuple[int, ...]
    weights: int
    products: int


_GATED = 4 * WIDTH**2 + 3 * WIDTH * INNER
FAMILIES = {
    "DeBERTa-v3-base": Family(learned_unigram, deberta, (64, 512), 4 * WIDTH**2 + 2 * WIDTH * INNER, 4),
    "gte-base, Unigram": Family(learned_unigram, gte, (64, 512, 2048), _GATED, 2),
    "gte-base, WordPiece": Family(learned_word_piece, gte, (64, 512), _GATED, 2),
}


def main() -> None:
    command = parser(__doc__, articles=True)
    command.add_argument("--family", choices=FAMILIES, action="append", help="measure this one alone; may be repeated")
    options = command.parse_args()
    articles = [" ".join(row[1:]) for row in csv.reader(options.articles_csv.open())]
    versions = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
    place = about(options, gpu=torch.cuda.get_device_name(), **versions)
    rows: list[dict[str, Any]] = []
    for name in options.family or FAMILIES:
        learned, forward, lengths, weights, products = FAMILIES[name]
        tokenizer = learned(articles)
        encoder, module = drawn(tokenizer, max(lengths), forward is gte), forward()
        for length in lengths:
            a_token = 2 * LAYERS * (weights + products * WIDTH * length)  # FLOP: a product and a sum count as two
            rows.append(row_of(name, encoder, tokenizer, module, articles, length, a_token))
            write({"about": place, "rows": rows}, options.output)
        del encoder, module
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
