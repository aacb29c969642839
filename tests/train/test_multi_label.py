"""Models that give several labels to a text: training, thresholds, files, jobs, formats, evaluation."""

from __future__ import annotations

import csv
import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from conftest import Command, CommandHere
from distributed import Client
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, precision_recall_fscore_support
from sklearn.multiclass import OneVsRestClassifier
from training import one_thread

from broadsheet import pipeline
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.cpu import CpuEngine
from broadsheet.pipeline.errors import ModelError, UsageError
from broadsheet.pipeline.evaluation.evaluate import evaluate_labels
from broadsheet.pipeline.evaluation.rows import hold_out, rarest
from broadsheet.pipeline.measures.accuracy import LabelCounts
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.scores import assigned, best_thresholds
from broadsheet.pipeline.train import Recipe, train

__all__ = ["one_thread"]  # a fixture that every test here uses too

TEXTS = [f"article {i} about {'sport ' * (i % 5)}{'money ' * (i % 3)}" for i in range(50)]
THRESHOLDS = (0.4, 0.5, 0.55, 0.7)
STILL = {"dropped_words": 0.0, "random_characters": 0.0, "erased_spans": 0, "shift": 0, "cut": 0}


@pytest.fixture(scope="module")
def several(small_model: Model) -> Model:
    return replace(small_model, thresholds=THRESHOLDS)


@pytest.fixture(scope="module")
def scores(several: Model) -> np.ndarray:
    engine = CpuEngine(several, 2)
    found = engine.classify(Texts.of([text.encode() for text in TEXTS]), all_scores=True).all_scores
    engine.close()
    return found


@pytest.fixture(scope="module")
def expected(several: Model, scores: np.ndarray) -> list[list[str]]:
    """Return the labels of each text, the best first."""
    return [
        [several.classes[i] for i in np.argsort(-row, kind="stable") if row[i] >= np.float32(THRESHOLDS[i])]
        for row in scores
    ]


def test_a_score_is_the_sigmoid_of_its_logit(several: Model, small_model: Model, scores: np.ndarray) -> None:
    texts = Texts.of([text.encode() for text in TEXTS])
    ids = encode(texts.data, texts.offsets, several.alphabet, several.length).ids
    logits = reference.forward(ids, reference.prepare(small_model)).astype(np.float64)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), rtol=1e-4)
    whole = pipeline.quantise(several, TEXTS)
    engine = CpuEngine(whole, 2, "int8")
    rough = engine.classify(texts, 2, all_scores=True)
    engine.close()
    assert np.abs(rough.all_scores - scores).max() < 0.05
    assert (rough.scores[:, 0] >= rough.scores[:, 1]).all()


def test_thresholds_are_those_with_the_best_f1() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random((300, 3)) < (0.5, 0.1, 0.0)
    scores = np.clip(0.3 * truth + rng.normal(0.4, 0.2, truth.shape), 0.01, 0.99).round(2).astype(np.float32)
    found = best_thresholds(scores, truth)
    for i in (0, 1):
        best = f1_score(truth[:, i], scores[:, i] >= np.float32(found[i]))
        assert best == max(f1_score(truth[:, i], scores[:, i] >= at) for at in np.unique(scores[:, i]))
    assert found[2] == 0.5  # for a class that no row has
    (lowest,) = best_thresholds(scores[:, :1], np.ones((300, 1), np.bool_))  # for a class that all rows have
    assert 0 < lowest < scores[:, 0].min()


def test_figures_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    truth, given = rng.random((2, 200, 4)) < 0.3
    truth[:, 3] = given[:, 3] = False
    counts = LabelCounts.of(("a", "b", "c", "d"), given[:80], truth[:80]) + LabelCounts.of(
        ("a", "b", "c", "d"), given[80:], truth[80:]
    )
    precision, recall, f1, support = precision_recall_fscore_support(truth[:, :3], given[:, :3])
    for i, figures in enumerate(counts.per_class()[:3]):
        assert figures[1:4] == pytest.approx((precision[i], recall[i], f1[i]))
        assert figures.support == support[i]
    assert counts.micro_f1 == pytest.approx(f1_score(truth, given, average="micro"))
    assert counts.macro_f1 == pytest.approx(f1_score(truth[:, :3], given[:, :3], average="macro"))
    assert counts.exact == (truth == given).all(axis=1).sum()


def test_every_class_has_its_share_of_held_out_rows() -> None:
    labels = np.random.default_rng(2).random((400, 4)) < (0.6, 0.3, 0.1, 0.05)
    fit, held = hold_out(rarest(labels), 0.25, np.arange(len(labels)))
    assert sorted([*fit, *held]) == list(range(400))
    assert (np.abs(labels[held].mean(axis=0) - labels.mean(axis=0)) < 0.06).all()
    assert labels[held].any(axis=0).all()


def test_a_model_file_keeps_its_thresholds(several: Model, small_model: Model) -> None:
    again = Model.from_bytes(several.to_bytes())
    assert (again.thresholds, again.digest) == (THRESHOLDS, several.digest)
    assert several.digest != small_model.digest
    for thresholds in ((0.5,) * 3, (0.5, 0.5, 0.5, 1.0), (0.5, 0.5, 0.5, float("nan"))):
        with pytest.raises(ModelError, match="threshold"):
            replace(small_model, thresholds=thresholds)
    with pytest.raises(ModelError, match="no temperature"):
        replace(several, temperature=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_job_writes_lists_of_labels_and_scores(
    client: Client, several: Model, scores: np.ndarray, expected: list[list[str]], tmp_path: Path, kind: str
) -> None:
    options = {"model": several, "client": client, "chunk_size": 16, "top_k": 2, "scores": True}
    report = pipeline.classify(TEXTS, tmp_path / "out", format=kind, **options)
    rows = report.to_arrow().to_pydict()
    assert rows["labels"] == expected
    for row, given in enumerate(rows["scores"]):
        assert given == sorted(given, reverse=True)
        best = scores[row][[several.classes.index(name) for name in expected[row]]]
        np.testing.assert_allclose(given, best, rtol=1e-6)
    assert np.allclose(rows["score_class 1"], scores[:, 1])
    assert all(len(best) == 2 for best in rows["top_labels"])
    totals = pipeline.verify(tmp_path / "out")
    counts = {name: sum(name in given for given in expected) for name in several.classes}
    assert totals.labels == {name: rows for name, rows in counts.items() if rows}
    assert totals.unlabelled == sum(not given for given in expected)
    if kind == "csv":
        file = min((tmp_path / "out" / "parts").iterdir())
        assert pd.read_csv(file)["labels"].tolist() == ["|".join(given) for given in expected[:16]]


def test_rows_without_any_label_are_counted(client: Client, several: Model, scores: np.ndarray, tmp_path: Path) -> None:
    high = replace(several, thresholds=(0.99, 0.99, float(np.median(scores[:, 2])), 0.99))
    report = pipeline.classify(TEXTS, tmp_path / "out", model=high, client=client)
    labels = report.to_arrow().column("labels").to_pylist()
    none = sum(not given for given in labels)
    assert 0 < none < 50
    assert report.tally.unlabelled == none
    assert f"{50 - none} labelled + {none} without a label" in str(report)
    pipeline.verify(tmp_path / "out")


@pytest.mark.slow
def test_label_a_pipe_and_a_classifier_give_the_same(
    broadsheet: Command, client: Client, several: Model, expected: list[list[str]], tmp_path: Path
) -> None:
    several.save(tmp_path / "several.safetensors")
    frame = pipeline.label(pd.DataFrame({"text": TEXTS}), model=several, client=client)
    assert [list(given) for given in frame["labels"]] == expected
    (tmp_path / "texts.txt").write_text("\n".join(text.strip() for text in TEXTS))
    stripped = [text.strip() for text in TEXTS]
    run = broadsheet("classify", tmp_path / "texts.txt", "-o", "-", "--model", tmp_path / "several.safetensors")
    assert run.returncode == 0, run.stderr
    piped = [json.loads(line)["labels"] for line in run.stdout.splitlines()]
    with pipeline.load(several, device="cpu") as classifier:
        held = classifier.label_sets(stripped)
        with pytest.raises(UsageError, match="use label_sets"):
            classifier.predict(stripped)
    assert [list(given.labels) for given in held] == piped


def test_what_several_labels_cannot_be_is_told(several: Model, small_model: Model, tmp_path: Path) -> None:
    rows = pa.table({"text": TEXTS, "topic": ["class 0"] * 50})
    for options, message in (
        ({"label_column": "topic"}, "broadsheet evaluate"),
        ({"partition_by": "label"}, "folder of each"),
        ({"abstain": 0.9}, "its own thresholds"),
    ):
        with pytest.raises(UsageError, match=message):
            pipeline.classify(rows, tmp_path / "out", model=several, **options)
    named = replace(several, classes=("a|b", "c", "d", "e"))
    with pytest.raises(UsageError, match="separates labels"):
        pipeline.classify(rows, tmp_path / "out", model=named, format="csv")
    with pytest.raises(UsageError, match="no temperature"):
        pipeline.calibrate(several, rows, label_column="topic")
    with pytest.raises(UsageError, match="gives each text one label"):
        evaluate_labels(small_model, rows, label_column="topic")


def labelled(count: int, seed: int = 0) -> pa.Table:
    """Return rows that begin with the letters of their labels: none, one or two."""
    rng = random.Random(seed)
    topics = {"money": "x", "space": "z", "sport": "q"}
    chosen = [sorted(rng.sample([*topics], rng.choice([0, 1, 1, 2]))) for _ in range(count)]
    texts = [" ".join([topics[name] * 20 for name in names] + [f"and so on {i}"]) for i, names in enumerate(chosen)]
    return pa.table({"text": texts, "topics": chosen})


@pytest.mark.slow
def test_training_learns_sets_of_labels_and_thresholds() -> None:
    recipe = Recipe(epochs=6, batch_size=16, learning_rate=3e-3, dropout=0.0, input_dropout=0.0, warmup=0.2, **STILL)
    rows, test = labelled(160), labelled(60, seed=1)
    made = train(
        rows, text_column="text", label_column="topics", recipe=recipe, hold_out_share=0.25, device="cpu", length=123,
        multi_label=True, ngrams=0, test=test,
    )  # fmt: skip
    model, card = made.model, made.model.card
    assert model.has_network
    assert model.ngrams is None
    assert model.classes == ("money", "space", "sport")
    assert model.is_multi_label
    assert card["test"]["micro_f1"] > 0.8
    assert card["data"]["rows_by_class"]["money"] == sum("money" in names for names in rows.column(1).to_pylist())
    result = evaluate_labels(model, test, label_column="topics", device="cpu")
    assert result.counts.micro_f1 == pytest.approx(card["test"]["micro_f1"], abs=0.02)
    assert result.counts.rows == 60


def joined_articles(ag_news: Path, count: int) -> pa.Table:
    """Return articles, every other one joined with the next, so that it has the topics of both."""
    with (ag_news / "test.csv").open(newline="", encoding="utf-8") as file:
        rows = [(kind, f"{title} {text}") for kind, title, text in itertools.islice(csv.reader(file), count)]
    parts = [rows[i : i + 2] if i % 3 == 0 else rows[i : i + 1] for i in range(count) if i % 3 != 1]
    return pa.table(
        {
            "text": [" ".join(text for _, text in part) for part in parts],
            "topics": [sorted({kind for kind, _ in part}) for part in parts],
        }
    )


@pytest.mark.slow
def test_n_grams_alone_learn_sets_of_labels_from_few_rows(ag_news: Path) -> None:
    """They do better than a TF-IDF model for each class with the best of three strengths."""
    rows = joined_articles(ag_news, 900)
    rows, test = rows.slice(0, 200), rows.slice(200)
    made = train(
        rows, text_column="text", label_column="topics", multi_label=True, device="cpu", ngrams=1 << 16, test=test
    ).model
    assert not made.has_network
    result = evaluate_labels(made, test, label_column="topics", device="cpu")
    assert result.counts.micro_f1 == pytest.approx(made.card["test"]["micro_f1"], abs=0.002)
    assert len(result.to_dict()["classes"]) == 4
    truth, wanted = (
        [[name in names for name in made.classes] for names in t["topics"].to_pylist()] for t in (test, rows)
    )
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    found, others = words.fit_transform(rows["text"].to_pylist()), words.transform(test["text"].to_pylist())
    theirs = [OneVsRestClassifier(LogisticRegression(C=c)).fit(found, wanted).predict(others) for c in (1, 10, 100)]
    for average, ours in (("micro", result.counts.micro_f1), ("macro", result.counts.macro_f1)):
        assert ours > max(f1_score(truth, given, average=average) for given in theirs)


@pytest.mark.slow
def test_the_commands_read_lists_and_separators(
    broadsheet_in_process: Command, broadsheet_here: CommandHere, tmp_path: Path
) -> None:
    rows = labelled(40)
    pq.write_table(rows, tmp_path / "rows.parquet")
    joined = ["; ".join(names) for names in rows.column(1).to_pylist()]
    pa_csv.write_csv(pa.table({"text": rows.column(0), "topics": joined}), tmp_path / "rows.csv")
    settings = ["--epochs", 1, "--batch-size", 8, "--length", 123, "--device", "cpu", "--quiet", "--multi-label"]
    models = []
    pd.DataFrame(rows.to_pydict()).to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    for name, more in (("rows.parquet", []), ("rows.jsonl", []), ("rows.csv", ["--label-separator", ";"])):
        path = tmp_path / f"{name}.safetensors"
        run = broadsheet_in_process(
            "train", tmp_path / name, "-o", path, "--label-column", "topics", "--text-column", "text", *settings, *more
        )
        assert run.returncode == 0, run.stderr
        models.append(pipeline.load_model(path))
    assert models[0].digest == models[1].digest == models[2].digest
    evaluated = [
        json.loads(broadsheet_in_process("evaluate", path, data, "--label-column", "topics", *more, "--json").stdout)
        for path, data, more in (
            (tmp_path / "rows.csv.safetensors", tmp_path / "rows.csv", ["--label-separator", ";"]),
            (tmp_path / "rows.parquet.safetensors", tmp_path / "rows.parquet", []),
        )
    ]
    assert evaluated[0]["classes"] == evaluated[1]["classes"]
    assert evaluated[0]["rows"] == 40
    code, said = broadsheet_here("evaluate", tmp_path / "rows.csv.safetensors", tmp_path / "rows.parquet",
                                 "--label-column", "topics")  # fmt: skip
    assert code == 0
    assert "micro F1" in said
    code, said = broadsheet_here("evaluate", tmp_path / "rows.csv.safetensors", tmp_path / "rows.csv",
                                 "--label-column", "topics")  # fmt: skip
    assert code == 2
    assert "--label-separator" in said
    shown = json.loads(broadsheet_in_process("inspect", tmp_path / "rows.csv.safetensors", "--json").stdout)
    assert len(shown["thresholds"]) == 3


def test_labels_of_other_kinds_are_refused() -> None:
    def read(column: pa.Array, **options: object) -> None:
        rows = pa.table({"text": ["a", "b"], "topics": column})
        train(rows, text_column="text", label_column="topics", device="cpu", length=123, multi_label=True, **options)

    for column, message in (
        (pa.array([["x"], None]), "one class only, 'x'"),  # the other row is left out
        (pa.array([["x"], [None]]), "a label that is null, empty or NaN"),
        (pa.array(["x", "y"]), "label_separator="),
        (pa.array([1.5, 2.5]), "label_separator="),
    ):
        with pytest.raises(UsageError, match=message):
            read(column)
    with pytest.raises(UsageError, match="multi_label=True"):
        train(labelled(4), text_column="text", label_column="topics", label_separator=";")


def test_given_labels_need_a_score() -> None:
    assert not assigned(np.full((2, 3), np.nan, np.float32), (0.5,) * 3).any()
