"""A frozen encoder with a linear head, and an encoder as a teacher, without PyTorch."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from conftest import CommandHere
from encoders import minilm, needs_minilm, saved
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, softmax
from training import TOPICS

from broadsheet import pipeline
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.errors import ModelError, UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.train import train
from broadsheet.pipeline.train.answers import Answers
from broadsheet.pipeline.train.branch import folds_of, on_vectors

pytestmark = needs_minilm

WITHOUT_PYTORCH = """
import sys
class Missing:
    def find_spec(self, name, *of):
        if name in ("torch", "transformers", "sentence_transformers"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from broadsheet.pipeline.cli import main
main()
"""
CLASSES = sorted(TOPICS)
LIKE = 1e-2
"""The tolerance between weights, relative to the largest: the fits stop a little above the least loss."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("encoder") / "folder")


def rows(count: int, seed: int = 0) -> pa.Table:
    """Return texts with words of one or two topics, and how many of the words are of the first kind."""
    rng = random.Random(seed)
    kinds = [rng.sample(CLASSES, rng.choice((1, 1, 2))) for _ in range(count)]
    words = [rng.choices([word for kind in of for word in TOPICS[kind].split()], k=8) for of in kinds]
    worth = [sum(word in TOPICS["money"].split() for word in text) / 2 for text in words]
    columns = {"text": [" ".join(text) for text in words], "kind": [of[0] for of in kinds], "kinds": kinds}
    return pa.table(columns | {"worth": worth})


def trained(folder: Path | str, **options: Any) -> Model:
    how = {"label_column": "kind", "text_column": "text", "encoder": folder, "device": "cpu", **options}
    return train(rows(150), **how).model


def given(model: Model, texts: list[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the scores of each class, and those of the labels."""
    engine = open_engine(model, "cpu", threads=2)
    try:
        found = engine.classify(Texts.of([text.encode() for text in texts]), all_scores=True)
    finally:
        engine.close()
    assert found.all_scores is not None
    return found.all_scores, found.scores[:, 0]


def vectors(folder: Path, texts: list[str]) -> NDArray[np.float64]:
    """Return what PyTorch computes before the last product, normalised to length one."""
    import torch
    import transformers

    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        out = [model.bert(**tokens(text, return_tensors="pt")).pooler_output[0].double().numpy() for text in texts]
    return np.stack([vector / np.linalg.norm(vector) for vector in out])


def least(features: NDArray[np.float64], sides: NDArray[np.float64], strength: float) -> NDArray[np.float64]:
    """Return the weights and bias of one class with the least mean squared hinge loss and penalty."""
    design = np.column_stack([features, np.ones(len(features))])

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        short = np.maximum(1 - sides * (design @ weights), 0)
        slope = strength * weights - 2 * design.T @ (sides * short) / len(sides)
        return float(np.mean(short**2) + strength / 2 * weights @ weights), slope

    found = minimize(
        loss, np.zeros(design.shape[1]), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}
    )
    return np.asarray(found.x)


@pytest.mark.parametrize("several", [False, True])
def test_the_head_has_the_least_loss_on_the_vectors_of_transformers(folder: Path, several: bool) -> None:
    table = rows(150)
    model = trained(folder, label_column="kinds", multi_label=True) if several else trained(folder)
    assert model.ngrams is None
    assert model.encoder is not None
    kinds = table["kinds" if several else "kind"].to_pylist()
    truth = np.array([[name in of if several else name == of for name in CLASSES] for of in kinds])
    features, strength = vectors(folder, table["text"].to_pylist()), model.card["head"]["strength"]
    wanted = np.column_stack([least(features, np.where(of, 1.0, -1.0), strength) for of in truth.T])
    found = np.vstack([model.encoder.weights["last"], model.tensors["fc3.bias"]])
    factor = float((found * wanted).sum() / np.square(wanted).sum())  # the factor at which held-out rows are likeliest
    np.testing.assert_allclose(found, factor * wanted, atol=LIKE * np.abs(found).max())
    tested = rows(20, 1)["text"].to_pylist()
    logits = vectors(folder, tested) @ found[:-1] + found[-1]
    scores = expit(logits) if several else softmax(logits / model.temperature, axis=1)
    np.testing.assert_allclose(given(model, tested)[0], scores, atol=1e-5)
    assert model.card["held_out_micro_f1" if several else "held_out_accuracy"] > 0.8


def test_a_number_is_by_ridge_regression(folder: Path) -> None:
    table = rows(150)
    model = trained(folder, label_column=(), target_column="worth", test=rows(60, 1))
    features, numbers = vectors(folder, table["text"].to_pylist()), table["worth"].to_numpy()
    design = np.column_stack([features, np.ones(len(features))])
    off, scale = numbers - numbers.mean(), numbers.std()
    penalty = model.card["head"]["strength"] * len(numbers) / 2 * np.eye(design.shape[1])
    weights = np.linalg.solve(design.T @ design + penalty, design.T @ (off / scale))
    tested = rows(60, 1)
    predicted = np.column_stack([vectors(folder, tested["text"].to_pylist()), np.ones(60)]) @ weights * scale
    wanted = np.clip(predicted + numbers.mean(), numbers.min(), numbers.max())
    np.testing.assert_allclose(given(model, tested["text"].to_pylist())[1], wanted, atol=0.05)
    error = np.abs(wanted - tested["worth"].to_numpy()).mean()
    assert model.card["test"]["mean_absolute_error"] == pytest.approx(error, abs=0.05)


def test_a_row_is_judged_by_fits_to_others() -> None:
    """The labels are noise, which a head learns by heart."""
    rng = np.random.default_rng(0)
    noise, labels = rng.normal(size=(100, 500)).astype(np.float32), np.arange(100) % 2
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    fitted, tried = on_vectors(noise, Answers.of(labels, 2), folds_of(labels, np.arange(100)))
    assert ((noise @ fitted.of_dense + fitted.bias).argmax(axis=1) == labels).mean() > 0.9
    assert (tried.logits.argmax(axis=1) == labels).mean() < 0.7


def test_a_file_with_an_encoder_is_as_good_as_its_folder(folder: Path, tmp_path: Path) -> None:
    model = trained(folder)
    model.save(tmp_path / "first.safetensors")
    again = trained(tmp_path / "first.safetensors", hold_out_share=0.2)
    assert again.card["data"]["held_out_rows"] == 30
    assert again.digest == trained(folder, hold_out_share=0.2).digest != model.digest


def test_the_command_trains_and_the_file_classifies(folder: Path, tmp_path: Path, broadsheet_here: CommandHere) -> None:
    for name, table in (("rows.csv", rows(150)), ("test.csv", rows(40, 1))):
        pa_csv.write_csv(table.drop_columns("kinds"), tmp_path / name)
    columns = ("--text-column", "text", "--label-column", "kind")
    made, test, out = tmp_path / "made.safetensors", tmp_path / "test.csv", tmp_path / "out"
    how = ("--encoder", folder, "--test", test, "--device", "cpu", "-o", made)
    code, told = broadsheet_here("train", tmp_path / "rows.csv", *columns, *how)
    assert code == 0, told
    assert "makes a vector of each text" in told
    code, told = broadsheet_here("classify", test, *columns, "--model", made, "--device", "cpu", "-o", out)
    assert code == 0, told
    labels = pq.read_table(out)
    right = np.mean(np.array(labels["label"]) == np.array(labels["truth"]))
    assert load_model(made).card["test"]["accuracy"] == pytest.approx(right)
    assert right > 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ngrams": 4096}, "no options for n-grams"),
        ({"settings": ["epochs=2"], "vectors": "wordllama"}, "for word vectors, a network"),
        ({"label_column": ["kind", "text"]}, "for several label columns"),
        ({"device": "cuda"}, "for a GPU"),
    ],
)
def test_what_an_encoder_excludes_is_told(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trained(folder, **options)


def test_an_encoder_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="ag-news has no encoder: name a folder"):
        trained("ag-news")
    with pytest.raises(ModelError, match=r"has no config\.json: name the folder"):
        trained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "surprise"}')
    with pytest.raises(ModelError, match="has no models of the kind 'surprise'"):
        trained(tmp_path)


@pytest.mark.slow
def test_an_encoder_teaches_without_pytorch(tmp_path: Path) -> None:
    """The teacher knows words that no labelled row has. An encoder that our kernels lack would need PyTorch."""
    labelled = pa.table({"text": ["bank", "profit", "oil", "moon", "comet", "orbit"] * 5, "kind": [*"mmmsss"] * 5})
    pa_csv.write_csv(labelled, tmp_path / "rows.csv")
    others = {"m": ["stock market", "a loan of the market"], "s": ["the launch of a probe", "probe in space"]}
    more = [text for kind in "ms" for text in others[kind] * 10]
    pa_csv.write_csv(pa.table({"text": more}), tmp_path / "more.csv")
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / "config.json").write_text('{"model_type": "t5"}')

    def command(teacher: Path, output: str) -> subprocess.CompletedProcess[str]:
        args = ["train", "rows.csv", "--text-column", "text", "--label-column", "kind", "--teacher", str(teacher)]
        args += ["--unlabelled", "more.csv", "--vectors", "none", "--ngrams", "4096", "-o", output]
        return subprocess.run(
            [sys.executable, "-c", WITHOUT_PYTORCH, *args], cwd=tmp_path, capture_output=True, text=True
        )

    done = command(minilm(), "taught.safetensors")
    assert done.returncode == 0, done.stderr
    assert pipeline.load(tmp_path / "taught.safetensors", device="cpu").predict(["market", "probe"]) == ["m", "s"]
    refused = command(tmp_path / "refused", "none.safetensors")
    assert refused.returncode != 0
    for words in ("of the kind 't5'", "PyTorch is not installed"):
        assert words in refused.stderr
