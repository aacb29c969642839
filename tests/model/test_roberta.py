"""RoBERTa, XLM-R and CamemBERT, and BERT with tokenizers other than WordPiece: in NumPy, against transformers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandHere, examples
from encoders import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from pyarrow.parquet import read_table
from torch_folders import (
    CORPUS,
    TEXTS,
    by_sentence_transformers,
    by_transformers,
    change,
    classified,
    classifier,
    sentences,
)

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine, vectors
from broadsheet.pipeline.errors import ModelError
from broadsheet.pipeline.model import encoder_folder
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.encoder import Encoder
from broadsheet.pipeline.model.loading import load_model

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra torch)")
pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed (extra torch)")
pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)

TOLERANCE = 1e-5
PADDED = ["<pad>", "a <pad> b", "<pad><pad> the ferry <pad>is late", "the ferry " * 60 + "<pad>"]
"""Texts that spell out the padding token. In these families it takes a position, and changes no other token's
position.
"""


def own(folder: Path, family: str, classes: int = 3, **more: Any) -> Path:
    return classifier(folder, family, classes, **{"hidden_act": "gelu", **more})


@pytest.mark.parametrize(
    ("family", "classes", "more"),
    [
        ("roberta", 3, {}),
        ("xlm-roberta", 4, {"problem_type": "multi_label_classification", "hidden_act": "gelu_new"}),
        ("xlm-roberta", 1, {"problem_type": "regression"}),
        ("camembert", 2, {"pad_token_id": 1, "layer_norm_eps": 1e-5}),
        ("bert", 3, {"type_vocab_size": 1}),
    ],
)
def test_scores_are_those_of_transformers(tmp_path: Path, family: str, classes: int, more: dict[str, Any]) -> None:
    folder = own(tmp_path / "folder", family, classes, **more)
    model = load_model(folder)
    assert isinstance(model.encoder, Encoder)
    texts = TEXTS + PADDED
    expected = by_transformers(folder, texts)
    found = classified(model, texts)
    if model.levels is None:
        wanted = np.array([[one[name] for name in model.classes] for one in expected])
        np.testing.assert_allclose(found.all_scores, wanted, atol=TOLERANCE)
    else:
        wanted = np.array([one["class 0"] for one in expected])
        np.testing.assert_allclose(found.scores[:, 0], wanted, atol=TOLERANCE, rtol=TOLERANCE)
    assert np.ptp(wanted, axis=0).max() > 0.05  # the texts differ in their scores
    again = classified(Model.from_bytes(model.to_bytes()), texts[::-1])
    np.testing.assert_array_equal(again.scores[::-1], found.scores)  # whatever other texts are in the batch


@pytest.mark.parametrize(
    ("family", "pooling", "more"), [("xlm-roberta", "mean", ("Normalize",)), ("roberta", "cls", ())]
)
def test_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, family: str, pooling: str, more: tuple[str, ...]
) -> None:
    folder = sentences(tmp_path / "folder", family, pooling, more)
    change(folder / "config.json", hidden_act="gelu")
    (encoder, *_), _ = encoder_folder.read(folder, "it")
    assert isinstance(encoder, Encoder)
    texts = Texts.of([text.encode() for text in TEXTS])
    found = vectors(encoder, texts.data, texts.offsets, "cpu")
    np.testing.assert_allclose(found, by_sentence_transformers(folder, TEXTS), atol=TOLERANCE)


@pytest.fixture(scope="module", params=["roberta", "xlm-roberta"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Any]:
    """An encoder, and the tokenizer that transformers loads from its folder."""
    import transformers

    folder = own(tmp_path_factory.mktemp("it") / "folder", request.param)
    encoder = load_model(folder).encoder
    assert isinstance(encoder, Encoder)
    return encoder, transformers.AutoTokenizer.from_pretrained(folder)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(HOSTILE | st.sampled_from(CORPUS) | st.text(max_size=200), min_size=1, max_size=8))
def test_tokens_are_those_of_transformers(both: tuple[Encoder, Any], texts: list[str]) -> None:
    encoder, library = both
    given = Texts.of([text.encode() for text in texts])
    ids, ends, is_cut = encoder.tokens_of(given.data, given.offsets)
    wanted = [library(text, truncation=True, max_length=encoder.settings.most_tokens)["input_ids"] for text in texts]
    assert [ids[a:b].tolist() for a, b in pairwise(ends.tolist())] == wanted
    assert is_cut.tolist() == [len(library(text)["input_ids"]) > encoder.settings.most_tokens for text in texts]


def test_inspect_says_that_own_kernels_compute_it(tmp_path: Path, broadsheet_here: CommandHere) -> None:
    folder = own(tmp_path / "folder", "xlm-roberta")
    code, said = broadsheet_here("inspect", folder)
    assert code == 0
    assert "own kernels on a GPU, NumPy on a CPU" in " ".join(said.split())
    code, said = broadsheet_here("inspect", folder, "--json")
    assert json.loads(said)["encoder"]["padding"] == 0


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    """The reader refuses a folder. A model file is refused too, before a GPU could read beyond the vectors."""
    folder = own(tmp_path / "folder", "roberta")
    model = load_model(folder)
    encoder = model.encoder
    assert isinstance(encoder, Encoder)
    weights = {**encoder.weights, "embedding": encoder.weights["embedding"][:10]}
    few = Encoder(encoder.settings, encoder.tokens, weights)
    few.check(3, "it")
    with pytest.raises(ModelError, match="more tokens than its embedding has rows"):
        few.tokens_of(*_given("the ferry"))
    negative = Encoder(structs.replace(encoder.settings, most_tokens=10), encoder.tokens, encoder.weights)
    with pytest.raises(ModelError, match="places"):
        negative.check(3, "it")


def _given(text: str) -> tuple[Any, Any]:
    texts = Texts.of([text.encode()])
    return texts.data, texts.offsets


def test_it_runs_as_a_job_with_windows(
    tmp_path: Path, broadsheet_here: CommandHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = own(Path("folder"), "xlm-roberta")
    Path("in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*CORPUS, "the ferry " * 200]))
    job = ("classify", "in.jsonl", "--text-column", "text", "--model", folder, "--device", "cpu")
    code, said = broadsheet_here(*job, "-o", "out", "--windows", "4")
    assert code == 0, said
    windows = read_table("out/parts")["n_windows"].to_pylist()
    assert (windows[0], windows[-1]) == (1, 4)


def test_an_engine_with_one_thread_gives_the_same_bits(tmp_path: Path) -> None:
    model = load_model(own(tmp_path / "folder", "roberta"))
    texts = Texts.of([text.encode() for text in TEXTS])
    scores = []
    for threads in (1, 2):
        engine = open_engine(model, "cpu", threads=threads)
        scores.append(engine.classify(texts, all_scores=True).all_scores)
        engine.close()
    np.testing.assert_array_equal(*scores)
