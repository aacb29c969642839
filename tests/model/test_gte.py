"""`gte` in NumPy, against transformers: as transformers saves it, and as its authors publish it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import encoder_folders
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from torch_folders import (
    TEXTS,
    body,
    by_transformers,
    change,
    classified,
    classifier,
    compare,
    compare_vectors,
    sentences,
    with_drawn_biases,
)

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.errors import ModelError
from broadsheet.pipeline.model.encoder import Encoder, Rotary
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.torch_encoder import TorchEncoder
from broadsheet.pipeline.model.wordpiece import WordPiece

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra torch)")
pytest.importorskip("transformers.models.gte", reason="needs transformers 5.24")
pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra torch)")
pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)

LONG = ["the ferry is late " * 40, "harbour " * 57]
_OF_AUTHORS = {
    "model_type": "new", "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"}, "pack_qkv": True,
    "position_embedding_type": "rope", "layer_norm_type": "layer_norm", "logn_attention_scale": False,
    "logn_attention_clip1": False, "unpad_inputs": True, "use_memory_efficient_attention": True,
    "rope_theta": 20_000.0, "rope_scaling": None,
}  # fmt: skip
"""Keys of config.json as the authors' program writes them."""


@pytest.mark.parametrize(
    ("classes", "more"),
    [
        (3, {"num_hidden_layers": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        (4, {"problem_type": "multi_label_classification", "hidden_act": "gelu_new", "type_vocab_size": 0}),
        (1, {"problem_type": "regression", "layer_norm_eps": 1e-3, "type_vocab_size": 2}),
        (2, {"hidden_act": "relu", "problem_type": "single_label_classification"}),
    ],
    ids=["classes", "labels", "number", "relu"],
)
def test_scores_are_those_of_transformers(tmp_path: Path, classes: int, more: dict[str, Any]) -> None:
    compare(with_drawn_biases(classifier(tmp_path / "folder", "gte", classes, **more)), TEXTS + LONG)


@pytest.mark.parametrize(("pooling", "more"), [("mean", ("Normalize",)), ("cls", ())])
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, pooling: str, more: tuple[str, ...]) -> None:
    compare_vectors(sentences(tmp_path / "folder", "gte", pooling, more))


def test_a_folder_without_a_head_gives_the_mean_of_its_tokens(tmp_path: Path) -> None:
    compare_vectors(body(tmp_path / "folder", "gte"))


def test_tokens_of_bert_are_made_from_bytes(tmp_path: Path) -> None:
    """gte-base-en-v1.5 has WordPiece tokens; other models of the family have Unigram tokens."""
    model = compare(encoder_folders.classifier(tmp_path / "folder", "gte"), encoder_folders.TEXTS)
    assert isinstance(model.encoder, Encoder)
    assert isinstance(model.encoder.tokens, WordPiece)


def published(folder: Path, **keys: Any) -> Path:
    """Rewrite a folder in the form that the authors' program saves."""
    tensors = load_file(folder / "model.safetensors")
    theirs = {f"new.{name.removeprefix('gte.')}" if "." in name[:4] else name: t for name, t in tensors.items()}
    save_file(theirs, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    about = json.loads(path.read_text())
    del about["rope_parameters"]
    architectures = [one.replace("Gte", "New") for one in about["architectures"]]
    path.write_text(json.dumps(about | _OF_AUTHORS | {"architectures": architectures} | keys))
    (folder / "modeling.py").write_text("raise SystemExit('code of the folder has run')")
    return folder


@pytest.mark.parametrize("of_classifier", ["unigram", "words"])
def test_what_authors_publish_gives_what_transformers_gives(tmp_path: Path, of_classifier: str) -> None:
    def made(name: str) -> Path:
        base = {"rope_parameters": {"rope_type": "default", "rope_theta": 20_000.0}}
        if of_classifier == "words":
            return with_drawn_biases(encoder_folders.classifier(tmp_path / name, "gte", **base))
        return with_drawn_biases(classifier(tmp_path / name, "gte", **base))

    texts = encoder_folders.TEXTS if of_classifier == "words" else TEXTS + LONG
    original, model = made("original"), load_model(published(made("published")))
    assert isinstance(model.encoder, Encoder)
    wanted = np.array([[*sorted_scores(one, model.classes)] for one in by_transformers(original, texts)])
    np.testing.assert_allclose(classified(model, texts).all_scores, wanted, atol=1e-5)


def sorted_scores(scores: dict[str, float], classes: tuple[str, ...]) -> list[float]:
    return [scores[name] for name in classes]


def test_a_config_of_the_authors_that_transformers_reads_gives_what_it_gives(tmp_path: Path) -> None:
    """JQL's snowflake-arctic-embed-m-v2.0 has such a config, of a kind that transformers knows."""
    folder = with_drawn_biases(classifier(tmp_path / "folder", "gte"))
    path = folder / "config.json"
    about = json.loads(path.read_text())
    del about["rope_parameters"]
    code = {"AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel"}
    of_authors = _OF_AUTHORS | {"model_type": "gte", "auto_map": code, "rope_theta": 700.0, "unpad_inputs": "false"}
    path.write_text(json.dumps(about | of_authors | {"matryoshka_dimensions": [256]}))
    encoder = compare(folder, TEXTS + LONG).encoder
    assert isinstance(encoder, Encoder)
    assert encoder.settings.rotary[0] == Rotary(700.0)


def test_scaled_angles_are_those_of_the_authors(tmp_path: Path) -> None:
    """The authors' NTKScalingRotaryEmbedding computes 1 / (base * factor) ** (2 i / d), divided by factor **
    (2 / d).
    """
    import transformers

    folder = with_drawn_biases(classifier(tmp_path / "original", "gte"))
    library = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    size, factor, base = 16, 2.0, 20_000.0
    speeds = 1.0 / ((base * factor) ** (torch.arange(0, size, 2).float() / size)) / factor ** (2 / size)
    library.gte.rotary_emb.inv_freq = speeds
    model = load_model(published(folder, rope_scaling={"type": "ntk", "factor": factor}))
    encoder = model.encoder
    assert isinstance(encoder, Encoder)
    assert encoder.settings.rotary == (Rotary(base * factor, stretch=factor ** (2 / size)),) * 2
    for text in (LONG[0], TEXTS[0]):
        given = Texts.of([text.encode()])
        ids, ends, _ = encoder.tokens_of(given.data, given.offsets)
        with torch.inference_mode():
            wanted = library(torch.from_numpy(ids.astype(np.int64))[None]).logits.numpy()
        bias = library.classifier.bias.detach().numpy()
        np.testing.assert_allclose(encoder.logits(ids, ends) + bias, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "its rope_scaling is"),
        ({"logn_attention_scale": True}, "logn_attention_scale is True"),
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type is 'rms_norm'"),
        ({"pack_qkv": False}, "pack_qkv is False"),
        ({"architectures": ["SurpriseModel"]}, "it brings code of its own"),
    ],
)
def test_what_would_change_scores_is_refused_by_name(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(published(classifier(tmp_path / "folder", "gte"), **keys))


def test_what_our_kernels_lack_is_computed_by_pytorch(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "folder", "gte", hidden_act="silu")
    model = load_model(folder)
    assert isinstance(model.encoder, TorchEncoder)
    assert "its hidden_act is 'silu'" in model.card["computed by"]
    change(folder / "config.json", hidden_act="gelu", surprise=1)
    with pytest.raises(ModelError, match="has the key 'surprise'"):
        load_model(folder)
