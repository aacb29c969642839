"""DeBERTa-v2 and DeBERTa-v3 in NumPy, against transformers: every setting of their attention, at every distance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandHere
from torch_folders import (
    TEXTS,
    body,
    change,
    classifier,
    compare,
    compare_vectors,
    sentences,
    with_drawn_biases,
)

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.errors import ModelError
from broadsheet.pipeline.model.encoder import Distances, Encoder
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.torch_encoder import TorchEncoder

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra torch)")
pytest.importorskip("transformers", reason="transformers is not installed (extra torch)")
pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra torch)")
pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)

LONG = ["the ferry is late " * 40, "harbour " * 57]
V3 = {"max_position_embeddings": 512, "position_buckets": 256}


@pytest.mark.parametrize(
    ("classes", "more"),
    [
        (3, {}),
        (3, {"share_att_key": False, "norm_rel_ebd": "none", "type_vocab_size": 2, "num_hidden_layers": 3}),
        (4, {"problem_type": "multi_label_classification", "pos_att_type": "c2p|p2c", "pooler_hidden_act": "tanh"}),
        (1, {"problem_type": "regression", "max_relative_positions": 20, "layer_norm_eps": 1e-3}),
        (2, {"hidden_act": "relu", "problem_type": "single_label_classification", "position_buckets": 3}),
    ],
    ids=["classes", "own projections", "labels", "number", "relu"],
)
def test_scores_are_those_of_transformers(tmp_path: Path, classes: int, more: dict[str, Any]) -> None:
    compare(with_drawn_biases(classifier(tmp_path / "folder", "deberta-v2", classes, **more)), TEXTS + LONG)


@pytest.mark.parametrize("more", [V3, {**V3, "position_buckets": 32, "max_relative_positions": 100}])
def test_texts_reach_over_all_distances(tmp_path: Path, more: dict[str, Any]) -> None:
    """In DeBERTa-v3, each distance up to 128 has a vector of its own, and farther ones, up to 511, share vectors."""
    folder = with_drawn_biases(classifier(tmp_path / "folder", "deberta-v2", **more))
    change(folder / "tokenizer_config.json", model_max_length=512)
    rng = np.random.default_rng(0)
    words = ["ferry", "late", "harbour", "oil", "cup", "the"]
    texts = [" ".join(rng.choice(words, size)) for size in (20, 35, 55, 120, 300)]
    encoder = compare(folder, texts).encoder
    assert isinstance(encoder, Encoder)
    given = Texts.of([text.encode() for text in texts])
    sizes = np.diff(encoder.tokens_of(given.data, given.offsets).ends)
    assert sizes.max() == 512
    assert ((sizes > 129) & (sizes < 256)).any()
    assert (sizes < 128).any()


@pytest.mark.parametrize(("span", "farthest"), [(256, 512), (8, 64), (3, 64), (32, 100), (320, 512), (256, 4096)])
def test_kinds_of_distances_are_those_of_transformers(span: int, farthest: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    apart = np.arange(-8191, 8192)
    kinds = make_log_bucket_position(torch.from_numpy(apart), span, farthest).to(torch.long)
    wanted = torch.clamp(kinds + span, 0, 2 * span - 1).numpy()
    np.testing.assert_array_equal(Distances(span, farthest).rows(apart), wanted)


@pytest.mark.parametrize(("pooling", "more"), [("mean", ("Normalize",)), ("cls", ())])
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, pooling: str, more: tuple[str, ...]) -> None:
    compare_vectors(sentences(tmp_path / "folder", "deberta-v2", pooling, more))


def test_a_folder_without_a_head_gives_the_mean_of_its_tokens(tmp_path: Path) -> None:
    compare_vectors(body(tmp_path / "folder", "deberta-v2"))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"conv_kernel_size": 3, "conv_act": "gelu"}, "its conv_kernel_size is 3"),
        ({"position_biased_input": True}, "its position_biased_input is True"),
        ({"pos_att_type": ["c2p"]}, "its pos_att_type is ['c2p']"),
        ({"relative_attention": False}, "its relative_attention is False"),
        ({"position_buckets": -1}, "it has -1 position_buckets"),
        ({"pooler_hidden_act": "silu"}, "its pooler_hidden_act is 'silu'"),
        ({"hidden_act": "silu"}, "its hidden_act is 'silu'"),
    ],
)
def test_what_our_kernels_lack_is_computed_by_pytorch(tmp_path: Path, more: dict[str, Any], reason: str) -> None:
    """DeBERTa-v2-xlarge, for example, has a convolution."""
    model = load_model(classifier(tmp_path / "folder", "deberta-v2", **more))
    assert isinstance(model.encoder, TorchEncoder)
    assert reason in model.card["computed by"]


def test_inspect_says_how_it_counts_distances(tmp_path: Path, broadsheet_here: CommandHere) -> None:
    code, said = broadsheet_here("inspect", classifier(tmp_path / "folder", "deberta-v2"))
    words = " ".join(said.split())
    assert code == 0, said
    assert "by the distance of two tokens: each up to 4, groups from there to 64" in words
    assert "runs in own kernels on a GPU, NumPy on a CPU" in words


def test_vectors_of_other_distances_than_config_says_are_refused(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "folder", "deberta-v2")
    change(folder / "config.json", position_buckets=16)
    with pytest.raises(ModelError, match="position_buckets are 16, but it has 16 vectors of distances in place of 32"):
        load_model(folder)


def test_the_config_of_deberta_v3_is_read(tmp_path: Path) -> None:
    """The config is that of microsoft/deberta-v3-base, without its sizes."""
    folder = with_drawn_biases(classifier(tmp_path / "folder", "deberta-v2", pooler_hidden_size=32))
    path = folder / "config.json"
    about = json.loads(path.read_text())
    kept = ("architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "id2label")
    of_v3 = {
        "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
        "pos_att_type": "p2c|c2p", "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-7,
        "max_position_embeddings": 512, "relative_attention": True, "position_buckets": 8, "share_att_key": True,
        "norm_rel_ebd": "layer_norm", "max_relative_positions": -1, "position_biased_input": False,
        "type_vocab_size": 0,
    }  # fmt: skip
    path.write_text(json.dumps({key: about[key] for key in (*kept, "vocab_size")} | of_v3))
    compare(folder, TEXTS + LONG)
