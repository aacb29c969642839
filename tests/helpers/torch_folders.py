"""Tiny folders of many model families with random weights, written by transformers and sentence-transformers, and the
scores and vectors that these libraries compute.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine, vectors
from broadsheet.pipeline.model import encoder_folder
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.encoder import Encoder
from broadsheet.pipeline.model.loading import load_model

WIDTH, PLACES = 32, 64
CORPUS = [
    "The harbour ferry is late, and the harbour was closed on Monday.", "Stocks fell as oil prices rose again today.",
    "The striker scored twice in the final of the cup.", "Le café était fermé à midi.", "漢字とかなの文章です。",
    "Москва сообщила о новых мерах.", "한국어 문장입니다.", "عربي نص قصير", "word " * 30,
    "don't under_score 12,345.67 €",
]  # fmt: skip
TEXTS = [
    *CORPUS, "", " ", "a", "é" * 200, "the ferry " * 60, "  two  spaces\tand\nlines ", "😀 emoji <s> </s> [SEP] [CLS]",
    "x" * 150, "\x00 nul", "ABC abc ÀÉ",
]  # fmt: skip

_SIZES = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": PLACES,
}  # fmt: skip
_LOCAL = {
    "local_attention": 8, "global_attn_every_n_layers": 2, "layer_types": None,
    "cls_token_id": 1, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("unigram", {"embedding_size": 16}),
    "bart": ("bytes", {"d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
                       "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}),
    "bert": ("unigram", {}),
    "camembert": ("unigram", {"max_position_embeddings": PLACES + 4}),
    "convbert": ("words", {"embedding_size": WIDTH, "head_ratio": 1}),
    "deberta": ("bytes", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16,
                          "position_biased_input": False, "pooler_hidden_size": WIDTH}),
    "deberta-v2": ("unigram", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8,
                               "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False,
                               "pooler_hidden_size": WIDTH}),
    "electra": ("words", {"embedding_size": 16}),
    "eurobert": ("bytes", {"num_key_value_heads": 2, "head_dim": 16}),
    "fnet": ("unigram", {}),
    "gpt2": ("bytes", {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": PLACES}),
    "gte": ("unigram", {}),
    "modernbert": ("bytes", _LOCAL),
    "mpnet": ("words", {"max_position_embeddings": PLACES + 4}),
    "nomic_bert": ("words", {}),
    "qwen2": ("bytes", {"num_key_value_heads": 2}),
    "roberta": ("bytes", {"max_position_embeddings": PLACES + 4, "hidden_act": "silu"}),
    "t5": ("unigram", {"d_model": WIDTH, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2,
                       "decoder_start_token_id": 0}),
    "xlm-roberta": ("unigram", {"max_position_embeddings": PLACES + 4, "hidden_act": "silu"}),
}  # fmt: skip
"""For each family by its name in transformers: the kind of its tokenizer, and settings beyond those that all share."""

SPECIAL = {"pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
_NUMBERS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@cache  # a tokenizer that is trained again may number its entries differently
def tokenizer_of(kind: str) -> Any:
    """Return a small tokenizer that puts <s> before a text and </s> after it. kind: "words", "bytes" or "unigram"."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokens = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    if kind == "words":
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=300, special_tokens=tokens, show_progress=False)
    elif kind == "bytes":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=tokens, initial_alphabet=alphabet, show_progress=False
        )
    else:
        made = Tokenizer(models.Unigram())
        made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=tokens, unk_token="<unk>", show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    frame = [("<s>", 1), ("</s>", 2)]
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=frame)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=PLACES, model_input_names=["input_ids", "attention_mask"], **SPECIAL
    )


def _config(family: str, **more: Any) -> tuple[Any, Any]:
    import transformers

    kind, own = FAMILIES[family]
    tokenizer = tokenizer_of(kind)
    settings = {**_SIZES, **own, "vocab_size": len(tokenizer) + 8, **_NUMBERS, **more}
    if settings.get("layer_types", 0) is None:
        del settings["layer_types"]
    return transformers.AutoConfig.for_model(family, **settings), tokenizer


def _save(model: Any, tokenizer: Any, folder: Path) -> Path:
    import torch

    generator = torch.Generator().manual_seed(1)
    # With the weights of a new model, all texts have nearly the same scores.
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            deviation = 1.25 / weight.shape[-1] ** 0.5
            if name.endswith("Attention.q.weight"):  # T5 folds the scale of its attention into these weights
                deviation /= model.config.d_kv**0.5
            weight.data.normal_(0, deviation, generator=generator)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def classifier(folder: Path, family: str, classes: int = 3, **more: Any) -> Path:
    """Save a classifier as transformers does, and return its folder."""
    import transformers

    names = {i: f"class {i}" for i in range(classes)}
    config, tokenizer = _config(family, id2label=names, label2id={n: i for i, n in names.items()}, **more)
    return _save(transformers.AutoModelForSequenceClassification.from_config(config), tokenizer, folder)


def body(folder: Path, family: str, **more: Any) -> Path:
    """Save an encoder without a head as transformers does, and return its folder."""
    import transformers

    config, tokenizer = _config(family, **more)
    kind = transformers.T5EncoderModel if family == "t5" else transformers.MODEL_MAPPING[type(config)]
    return _save(kind(config), tokenizer, folder)


def sentences(folder: Path, family: str, pooling: Any = "mean", more: Sequence[str] = (), **settings: Any) -> Path:
    """Save an encoder as sentence-transformers does, and return its folder. more: modules after the pooling."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules.layer_norm import LayerNorm
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    plain = body(folder.with_name(f"{folder.name}-plain"), family)
    torch.manual_seed(3)
    width = WIDTH * (1 if isinstance(pooling, str) else len(pooling))
    made = {
        "Dense": lambda: Dense(width, 24, activation_function=torch.nn.SiLU()), "Normalize": Normalize,
        "LayerNorm": lambda: LayerNorm(width),
    }  # fmt: skip
    modules = [Transformer(str(plain)), Pooling(WIDTH, pooling), *(made[one]() for one in more)]
    library = SentenceTransformer(modules=modules, device="cpu", **settings)
    library.save(str(folder), create_model_card=False)
    return folder


def by_transformers(folder: Path, texts: Sequence[str]) -> list[dict[str, float]]:
    """Return the scores of all labels, computed text by text by the pipeline of transformers."""
    import torch
    import transformers

    scores = transformers.pipeline("text-classification", model=str(folder), device="cpu", dtype=torch.float32)
    places = scores.tokenizer.model_max_length
    return [
        {one["label"]: one["score"] for one in scores(text, top_k=None, truncation=True, max_length=places)}
        for text in texts
    ]


def by_sentence_transformers(folder: Path, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the vectors, computed text by text."""
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(folder), device="cpu")
    return np.stack([library.encode(text, show_progress_bar=False) for text in texts])


def classified(model: Model, texts: Sequence[str]) -> Any:
    """Return our engine's result on a CPU, with the scores of all classes."""
    engine = open_engine(model, "cpu", threads=1)
    try:
        return engine.classify(Texts.of([text.encode() for text in texts]), all_scores=True)
    finally:
        engine.close()


def with_drawn_biases(folder: Path) -> Path:
    """Change the folder's biases and norm weights so that they are not all zero or all one, and return the folder."""
    from safetensors.numpy import load_file, save_file

    rng, tensors = np.random.default_rng(3), load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            tensors[name] = tensor + rng.normal(0, 0.3, tensor.shape).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def compare_vectors(folder: Path) -> None:
    """Assert that NumPy computes the same vectors as sentence-transformers."""
    (encoder, *_), _ = encoder_folder.read(folder, "it")
    assert isinstance(encoder, Encoder)
    texts = Texts.of([text.encode() for text in TEXTS])
    found = vectors(encoder, texts.data, texts.offsets, "cpu")
    np.testing.assert_allclose(found, by_sentence_transformers(folder, TEXTS), atol=1e-5)


def compare(folder: Path, texts: list[str]) -> Model:
    """Assert that NumPy computes the same scores as transformers, whatever other texts are in the batch.

    Return the model.
    """
    model = load_model(folder)
    assert isinstance(model.encoder, Encoder)
    expected, found = by_transformers(folder, texts), classified(model, texts)
    if model.levels is None:
        wanted, have = np.array([[one[name] for name in model.classes] for one in expected]), found.all_scores
    else:
        wanted, have = np.array([one["class 0"] for one in expected]), found.scores[:, 0]
    np.testing.assert_allclose(have, wanted, atol=1e-5, rtol=1e-5)
    assert np.ptp(wanted, axis=0).max() > 0.05  # the texts differ in their scores
    again = classified(Model.from_bytes(model.to_bytes()), texts[::-1])
    np.testing.assert_array_equal(again.scores[::-1], found.scores)
    return model


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
