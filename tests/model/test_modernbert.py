"""ModernBERT and its relatives in NumPy, against transformers: every setting of config.json, with old and new keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandHere
from msgspec import structs
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
from broadsheet.pipeline.model import encoder_file, encoder_keys
from broadsheet.pipeline.model.encoder import Encoder, Rotary
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.torch_encoder import TorchEncoder

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra torch)")
pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra torch)")
pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)

TOLERANCE = 1e-5
LONG = ["the ferry is late " * 40, "harbour " * 57]
"""Texts with more tokens than any window here."""

BIASES = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}


@pytest.mark.parametrize(
    ("classes", "more"),
    [
        (3, {"classifier_pooling": "mean", "num_hidden_layers": 4, "global_attn_every_n_layers": 3}),
        (3, {**BIASES, "classifier_pooling": "cls", "norm_eps": 1e-3}),
        (4, {"problem_type": "multi_label_classification", "hidden_activation": "gelu_new"}),
        (1, {"problem_type": "regression", "classifier_activation": "tanh", "local_attention": 31}),
        (2, {"hidden_activation": "relu", "classifier_activation": "relu", "local_attention": 1}),
        (1, {"layer_types": ["sliding_attention", "full_attention"], "local_attention": 500}),
    ],
    ids=["mean", "biases", "labels", "number", "relu", "layer types"],
)
def test_scores_are_those_of_transformers(tmp_path: Path, classes: int, more: dict[str, Any]) -> None:
    compare(with_drawn_biases(classifier(tmp_path / "folder", "modernbert", classes, **more)), TEXTS + LONG)


def test_old_keys_give_what_new_ones_give(tmp_path: Path) -> None:
    """The keys are those in ModernBERT's and mmBERT's own config.json."""
    more = {"num_hidden_layers": 4, "global_attn_every_n_layers": 3}
    folder = with_drawn_biases(classifier(tmp_path / "folder", "modernbert", **more))
    path = folder / "config.json"
    about = json.loads(path.read_text())
    for key in ("layer_types", "rope_parameters"):
        del about[key]
    about |= {
        "global_attn_every_n_layers": 3, "global_rope_theta": 80_000.0, "local_rope_theta": 3000.0,
        "layer_norm_eps": 1e-5, "position_embedding_type": "sans_pos", "repad_logits_with_grad": False,
        "reference_compile": None, "gradient_checkpointing": False, "causal_mask": False,
    }  # fmt: skip
    path.write_text(json.dumps(about))
    encoder = compare(folder, TEXTS + LONG).encoder
    assert isinstance(encoder, Encoder)
    wide, near = Rotary(80_000.0), Rotary(3000.0, 4)
    assert encoder.settings.rotary == (wide, near, near, wide)


@pytest.mark.parametrize(
    ("pooling", "more"), [("mean", ("Normalize",)), ("cls", ())], ids=["mean, normalised", "first token"]
)
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, pooling: str, more: tuple[str, ...]) -> None:
    compare_vectors(sentences(tmp_path / "folder", "modernbert", pooling, more))


def test_a_model_that_fills_masks_gives_the_mean_of_its_tokens(tmp_path: Path) -> None:
    import transformers

    folder = body(tmp_path / "folder", "modernbert")
    whole = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    whole.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["ModernBertForMaskedLM"]
    compare_vectors(folder)


def test_a_window_hides_what_lies_beyond_it(tmp_path: Path) -> None:
    """With local layers alone, a token beyond the window leaves the first token's vector unchanged; one within changes
    it.
    """
    more = {"layer_types": ["sliding_attention"] * 2, "local_attention": 8, "classifier_pooling": "cls"}
    model = load_model(classifier(tmp_path / "folder", "modernbert", **more))
    encoder = model.encoder
    assert isinstance(encoder, Encoder)
    ids = np.random.default_rng(0).integers(5, 300, 40)

    def logits_with(place: int) -> Any:
        changed = ids.copy()
        changed[place] = 301
        return encoder.logits(changed, np.array([0, len(ids)]))

    same = encoder.logits(ids, np.array([0, len(ids)]))
    assert [bool((logits_with(place) == same).all()) for place in (4, 8, 9, 39)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("key", "value", "refusal"),
    [
        ("hidden_activation", "silu", None),
        ("classifier_activation", "silu", None),
        ("head_dim", 8, "head_dim"),
        ("surprise", 1, "surprise"),
        ("classifier_pooling", "max", "classifier_pooling"),
        ("layer_types", ["full_attention"], "layer_types"),
        ("layer_types", ["full_attention", "chunked_attention"], "layer_types"),
        ("num_hidden_layers", 3, "num_hidden_layers"),
        ("intermediate_size", 64, "intermediate_size"),
        ("hidden_size", 64, "hidden_size"),
        ("vocab_size", 500, "vocab_size"),
        ("causal_mask", True, "causal_mask"),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}, "rope_scaling"),
        ("rope_parameters", {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10.0}}, None),
        ("rope_parameters", {"full_attention": {"rope_theta": 10.0, "partial_rotary_factor": 0.5}}, "partial_rotary"),
        ("rope_parameters", {"rope_theta": 10.0}, "rope_theta"),
        ("rope_parameters", {"full_attention": {"rope_theta": 0.5}}, "rope_theta"),
    ],
)
def test_other_settings_are_refused_by_name_or_left_to_pytorch(
    tmp_path: Path, key: str, value: Any, refusal: str | None
) -> None:
    folder = classifier(tmp_path / "folder", "modernbert")
    change(folder / "config.json", **{key: value})
    if refusal is None:
        model = load_model(folder)
        assert isinstance(model.encoder, TorchEncoder)
        wanted = [[one[name] for name in model.classes] for one in by_transformers(folder, TEXTS)]
        np.testing.assert_allclose(classified(model, TEXTS).all_scores, wanted, atol=TOLERANCE)
    else:
        with pytest.raises(ModelError, match=refusal) as raised:
            load_model(folder)
        assert "damaged" not in str(raised.value)


def test_every_key_that_transformers_writes_is_known() -> None:
    import transformers

    keys = encoder_keys.CONFIG["modernbert"]
    known = {*keys.read.split(), *keys.only, *" ".join(keys.unused.values()).split()}
    made = transformers.ModernBertConfig(num_labels=3, problem_type="regression", global_attn_every_n_layers=3)
    assert {*made.to_dict()} <= known


def test_a_weight_that_is_missing_is_named(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = classifier(tmp_path / "folder", "modernbert")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.attn_norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks the tensor 'layers\.1\.attn_norm\.weight'"):
        load_model(folder)


@pytest.fixture
def encoder(tmp_path: Path) -> Encoder:
    found = load_model(classifier(tmp_path / "folder", "modernbert")).encoder
    assert isinstance(found, Encoder)
    return found


Changed = Callable[[Encoder], Encoder]


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("1 rotary embeddings", {"rotary": (Rotary(10.0),)}),
        ("places", {"rotary": ()}),
        ("0.norm1", {"is_pre_norm": False}),
        ("0.inner", {"is_gated": False}),
    ],
)
def test_a_file_whose_settings_do_not_fit_its_weights_is_refused(
    encoder: Encoder, message: str, changed: dict[str, Any]
) -> None:
    other = Encoder(structs.replace(encoder.settings, **changed), encoder.tokens, encoder.weights)
    with pytest.raises(ModelError, match=message):
        other.check(3, "it")


def test_inspect_says_what_computes_it(tmp_path: Path, broadsheet_here: CommandHere) -> None:
    folder = classifier(tmp_path / "folder", "modernbert")
    code, said = broadsheet_here("inspect", folder)
    words = " ".join(said.split())
    assert code == 0, said
    assert "own kernels on a GPU, NumPy on a CPU" in words
    assert "product, gelu, layer norm, product" in words
    assert "rotary; 1 of 2 layers attend to 4 tokens on either side" in words
    code, said = broadsheet_here("inspect", folder, "--json")
    assert code == 0
    about = json.loads(said)["encoder"]
    assert about["rotary"] == [{"base": 160_000.0}, {"base": 10_000.0, "window": 4}]


def test_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    import transformers

    folder = classifier(tmp_path / "folder", "modernbert")
    read = encoder_file.read(folder, "it").encoder
    assert isinstance(read, Encoder)
    library = transformers.AutoTokenizer.from_pretrained(folder)
    given = Texts.of([text.encode() for text in TEXTS])
    ids, ends, _ = read.tokens_of(given.data, given.offsets)
    wanted = [library(text, truncation=True, max_length=read.settings.most_tokens)["input_ids"] for text in TEXTS]
    assert [ids[a:b].tolist() for a, b in pairwise(ends.tolist())] == wanted
