"""Reliable scores: their temperature, their reliability, the threshold from which labels are precise, and rows whose
score is too low to get a label.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as pa_dataset
import pytest
from conftest import AG_NEWS, Command, CommandHere
from distributed import Client
from scipy.optimize import minimize

from broadsheet import pipeline
from broadsheet.pipeline import classify
from broadsheet.pipeline.engine.base import Predictions, Texts
from broadsheet.pipeline.engine.cpu import CpuEngine
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.errors import ModelError, UsageError
from broadsheet.pipeline.evaluation.evaluate import evaluate
from broadsheet.pipeline.evaluation.rows import hold_out
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.scores import ByClass, fitted, fitted_by_class, log_loss, log_scores, probabilities

TRUE_TEMPERATURE = 2.5
TEXTS = [f"{i} word{i % 7} " * (1 + i % 4) for i in range(240)]


def drawn(scores: np.ndarray, seed: int = 0) -> np.ndarray:
    """Draw true classes with these probabilities, [N, classes]."""
    chance = np.random.default_rng(seed).random((len(scores), 1))
    return (scores.cumsum(axis=1) < chance).sum(axis=1).clip(max=scores.shape[1] - 1)


def scores_of(model: Model, precision: str = "fp32") -> np.ndarray:
    engine = CpuEngine(model, 2, precision)
    found = engine.classify(Texts.of([text.encode() for text in TEXTS]), all_scores=True).all_scores
    engine.close()
    return found


@pytest.fixture(scope="module")
def overconfident(small_model: Model) -> pa.Table:
    """Rows whose classes are less certain than the small model says."""
    truth = drawn(probabilities(log_scores(scores_of(small_model)), TRUE_TEMPERATURE))
    return pa.table({"text": TEXTS, "topic": [small_model.classes[i] for i in truth]})


def test_the_temperature_that_made_the_labels_is_found() -> None:
    logits = np.random.default_rng(1).normal(0, 3, (20_000, 5))
    truth = drawn(probabilities(logits, TRUE_TEMPERATURE))
    found = fitted(logits, truth)
    assert found == pytest.approx(TRUE_TEMPERATURE, rel=0.05)
    best = log_loss(logits, truth, found)
    assert best <= min(log_loss(logits, truth, found * factor) for factor in (0.99, 1.01))
    # All labels are right, so the scores could be as high as one likes.
    assert fitted(logits, logits.argmax(axis=1)) is None
    assert fitted(logits, logits.argmin(axis=1)) is None


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_temperature_changes_scores_as_it_should_and_no_label(small_model: Model, precision: str) -> None:
    model = pipeline.quantise(small_model, TEXTS) if precision == "int8" else small_model
    plain, warm = scores_of(model, precision), scores_of(replace(model, temperature=TRUE_TEMPERATURE), precision)
    expected = probabilities(log_scores(plain), TRUE_TEMPERATURE)
    np.testing.assert_allclose(warm, expected, rtol=1e-4, atol=1e-7)
    assert (warm.argmax(axis=1) == plain.argmax(axis=1)).all()


def test_a_model_file_keeps_its_temperature_and_an_earlier_one_has_none(small_model: Model) -> None:
    warm = replace(small_model, temperature=0.8)
    again = Model.from_bytes(warm.to_bytes())
    assert (again.temperature, again.digest) == (0.8, warm.digest)
    assert warm.digest != small_model.digest  # so that no job continues with other scores
    assert b"temperature" not in small_model.to_bytes()[:5000]
    assert Model.from_bytes(small_model.to_bytes()).temperature == 1
    for damaged in (0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(ModelError, match="temperature"):
            replace(small_model, temperature=damaged)
    whole = warm.to_bytes()
    with pytest.raises(ModelError, match="damaged"):
        Model.from_bytes(whole.replace(b'"temperature":"0.8"', b'"temperature":"0.9"', 1))


@pytest.mark.slow
def test_calibrate_makes_scores_better_and_evaluate_tells(
    broadsheet_in_process: Command, overconfident: pa.Table, small_model: Model, small_model_file: Path, tmp_path: Path
) -> None:
    rows, out = tmp_path / "rows.csv", tmp_path / "calibrated.safetensors"
    pa_csv.write_csv(overconfident, rows)
    made = broadsheet_in_process("calibrate", small_model_file, rows, "--label-column", "topic", "-o", out)
    assert made.returncode == 0, made.stderr
    assert "fitted on 240 rows" in made.stdout
    model = pipeline.load_model(out)
    assert model.temperature == pytest.approx(TRUE_TEMPERATURE, rel=0.3)
    assert "another name, or --overwrite" in broadsheet_in_process(
        "calibrate", small_model_file, rows, "--label-column", "topic", "-o", out
    ).stderr  # fmt: skip
    again = pipeline.calibrate(model, overconfident, label_column="topic")
    assert again.digest == model.digest  # the fit starts anew, whatever temperature the model has
    arguments = ["evaluate", out, rows, "--label-column", "topic", "--precision-target", 0.5]
    said = broadsheet_in_process(*arguments).stdout
    for expected in ("before the model's temperature", "mean score", "score from"):
        assert expected in said
    found = json.loads(broadsheet_in_process(*arguments, "--json").stdout)
    assert found["calibration_error"] < found["calibration_error_before"]
    plain = evaluate(small_model_file, overconfident, label_column="topic")
    assert found["calibration_error_before"] == pytest.approx(plain.reliability.expected_error, rel=1e-4)
    assert plain.uncalibrated is None
    assert sum(one["rows"] for one in found["reliability"]) == 240
    assert [one["name"] for one in found["thresholds"]] == [None, *model.classes]
    assert {one["target"] for one in found["thresholds"]} == {0.5}
    assert "with 95% confidence each" in said
    too_much = broadsheet_in_process(*arguments[:-1], 0.99).stdout
    assert "no score gives 99% among these rows: " in too_much
    assert "above 0 and below 1" in broadsheet_in_process(*arguments[:-1], 1).stderr
    shown = json.loads(broadsheet_in_process("inspect", out, "--json").stdout)
    assert shown["temperature"] == model.temperature
    assert shown["card"]["temperature fitted on"]["files"] == ["rows.csv"]


def test_a_temperature_that_does_not_help_is_told_and_left_out(
    broadsheet_here: CommandHere, small_model: Model, small_model_file: Path, tmp_path: Path
) -> None:
    """The scores are already right. The model then records that a temperature of 1 was fitted."""
    truth = drawn(scores_of(small_model), seed=3)
    rows, out = tmp_path / "rows.csv", tmp_path / "calibrated.safetensors"
    pa_csv.write_csv(pa.table({"text": TEXTS, "topic": [small_model.classes[i] for i in truth]}), rows)
    code, said = broadsheet_here("calibrate", small_model_file, rows, "--label-column", "topic", "-o", out)
    assert code == 0, said
    assert "scores stay as they were: temperature" in said
    assert "fitted on 240 rows, does not help" in said
    model = pipeline.load_model(out)
    about = model.card["temperature fitted on"]
    assert about["log loss after"] > about["log loss before"]
    assert (model.temperature, model.digest) == (1, small_model.digest)
    assert about["left out"] != 1
    told = {
        small_model_file: ("not calibrated: broadsheet calibrate", "no temperature was fitted: broadsheet calibrate"),
        out: ("calibrated: temperature 1", "expected calibration error 0"),
    }
    for path, (inspected, evaluated) in told.items():
        assert inspected in broadsheet_here("inspect", path)[1]
        shown = " ".join(broadsheet_here("evaluate", path, rows, "--label-column", "topic")[1].split())
        assert evaluated in shown
    assert "broadsheet calibrate" not in shown


TRUE_SLOPES, TRUE_SHIFTS = np.array([0.4, 2.0, 0.7, 1.0]), np.array([1.5, -1.0, 0.0, -1.5])


@pytest.mark.slow
def test_scores_by_class_say_how_often_a_label_is_right(
    broadsheet_here: CommandHere, small_model: Model, tmp_path: Path
) -> None:
    """For one class, low scores are too low and high ones too high; for another, the reverse. No temperature corrects
    that.

    Labels stay, the scores of a row still add up to 1, and the file says what was done.
    """
    rng = np.random.default_rng(7)
    texts = ["".join(rng.choice(list("abcdefgh ;0"), rng.integers(1, 120))) for _ in range(4000)]
    model = replace(small_model, temperature=0.15, name="sure")
    model.save(given := tmp_path / "given.safetensors")
    raw = np.concatenate([s.all_scores for s in predicted(model, texts)])
    labels, best = raw.argmax(axis=1), raw.max(axis=1).astype(np.float64)
    logits = np.log(best / (1 - best).clip(1e-12)).clip(-16, 16)
    chance = 1 / (1 + np.exp(-(logits * TRUE_SLOPES[labels] + TRUE_SHIFTS[labels])))
    truth = np.where(rng.random(len(texts)) < chance, labels, (labels + rng.integers(1, 4, len(texts))) % 4)
    rows, out = tmp_path / "rows.csv", tmp_path / "by_class.safetensors"
    pa_csv.write_csv(pa.table({"text": texts, "topic": [model.classes[i] for i in truth]}), rows)
    code, said = broadsheet_here("calibrate", given, rows, "--label-column", "topic", "--by-class", "-o", out)
    assert code == 0, said
    calibrated = pipeline.load_model(out)
    after = np.concatenate([s.all_scores for s in predicted(calibrated, texts)])
    label = np.concatenate([s.labels[:, 0] for s in predicted(calibrated, texts)])
    assert (label == labels).all()
    np.testing.assert_allclose(after.sum(axis=1), 1, atol=1e-5)
    assert (after.argmax(axis=1) != labels)[:300].any()  # other classes are likelier, but labels stay, in windows too
    in_windows = classify([*texts[:300], "oil " * 100], model=calibrated, windows=2, device="cpu").to_arrow()
    assert in_windows["label"].to_pylist()[:300] == [model.classes[i] for i in labels[:300]]
    np.testing.assert_array_equal(in_windows["score"].to_numpy()[:300], after[np.arange(300), labels[:300]])
    mended = after[np.arange(len(texts)), labels]
    enough = np.isin(labels, np.flatnonzero(np.bincount(labels, minlength=4) >= 300))
    assert len({*labels[enough]}) > 1
    for class_ in {*labels[enough]}:
        own = labels == class_
        assert np.abs(mended - chance)[own].mean() < 0.35 * np.abs(best - chance)[own].mean()
    about = calibrated.card["calibrated by class on"]
    assert about["log loss after"] < about["log loss before"] - 0.05
    alone, too = (f"{about[f'log loss {when}']:.4f}" for when in ("before", "after"))
    assert f"log loss  {alone} with the temperature alone, {too} by class too" in said
    assert said.count("before,") == 2  # calibration error and log loss, once each
    assert "then by class" in broadsheet_here("inspect", out)[1]
    assert calibrated.digest != replace(calibrated, by_class=None).digest
    assert Model.from_bytes(calibrated.to_bytes()).by_class == calibrated.by_class
    for slopes in ((1.0,) * 3, (1.0, 1.0, 1.0, 0.0), (1.0, 1.0, 1.0, float("nan"))):
        with pytest.raises(ModelError, match="slope"):
            replace(calibrated, by_class=replace_slopes(calibrated, slopes))


def replace_slopes(model: Model, slopes: tuple[float, ...]) -> ByClass:
    assert model.by_class is not None
    return ByClass(slopes, model.by_class.shifts)


def predicted(model: Model, texts: list[str]) -> list[Predictions]:
    engine = open_engine(model, "cpu", threads=2)
    made = [engine.classify(Texts.of([text.encode() for text in texts]), all_scores=True)]
    engine.close()
    return made


def test_scores_by_class_are_fitted_as_platt_does() -> None:
    """Another library finds the least of Platt's loss. A class with few labels stays as it is."""
    rng = np.random.default_rng(3)
    logits = rng.normal([0, 0, -4.5], 2, (3000, 3))
    scores = probabilities(logits, 1.0)
    truth = drawn(probabilities(logits, 2.0))
    fit = fitted_by_class(scores, truth)
    labels = scores.argmax(axis=1)
    for class_ in range(3):
        rows = labels == class_
        x, right = np.log(scores[rows, class_] / (1 - scores[rows, class_])), truth[rows] == class_
        if rows.sum() < 100:
            assert (fit.slopes[class_], fit.shifts[class_]) == (1, 0)
            continue
        target = np.where(right, (right.sum() + 1) / (right.sum() + 2), 1 / ((~right).sum() + 2))

        def loss(pair: np.ndarray, x: np.ndarray = x, target: np.ndarray = target) -> float:
            z = pair[0] * x + pair[1]
            return float((np.logaddexp(0, z) - target * z).sum())

        best = minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9}).x
        assert [fit.slopes[class_], fit.shifts[class_]] == pytest.approx(best, abs=1e-4)
    assert (labels == 2).sum() < 100 < (labels == 0).sum()


def test_the_rows_that_training_held_out_can_be_taken_from_its_data(
    overconfident: pa.Table, small_model: Model
) -> None:
    by_share = pipeline.calibrate(small_model, overconfident, label_column="topic", held_out=0.5)
    truth = np.array([small_model.classes.index(name) for name in overconfident.column("topic").to_pylist()])
    rows = overconfident.take(pa.array(hold_out(truth, 0.5, np.arange(len(truth)))[1]))
    given_apart = pipeline.calibrate(small_model, rows, label_column="topic")
    assert by_share.temperature == given_apart.temperature
    other = overconfident.set_column(1, "topic", pa.array(["no class", *overconfident.column("topic").to_pylist()[1:]]))
    with pytest.raises(UsageError, match="1 rows have no class of the model"):
        pipeline.calibrate(small_model, other, label_column="topic", held_out=0.5)


def test_rows_of_which_no_temperature_follows_are_refused(overconfident: pa.Table, small_model: Model) -> None:
    with pytest.raises(UsageError, match="needs 100 or more"):
        pipeline.calibrate(small_model, overconfident.slice(0, 99), label_column="topic")
    labels = scores_of(small_model).argmax(axis=1)
    right = pa.table({"text": TEXTS, "topic": [small_model.classes[i] for i in labels]})
    with pytest.raises(UsageError, match="all are labelled right"):
        pipeline.calibrate(small_model, right, label_column="topic")


def test_the_reliability_diagram_is_drawn(
    broadsheet_here: CommandHere, overconfident: pa.Table, small_model: Model, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    rows, model, picture = tmp_path / "rows.csv", tmp_path / "warm.safetensors", tmp_path / "scores.png"
    pa_csv.write_csv(overconfident, rows)
    replace(small_model, temperature=2.0).save(model)
    code, said = broadsheet_here("evaluate", model, rows, "--label-column", "topic", "--reliability", picture)
    assert code == 0, said
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "mean score" not in said


@pytest.mark.slow
def test_the_shipped_model_is_calibrated(ag_news: Path, tmp_path: Path) -> None:
    about = pipeline.load_model("ag-news").card["temperature fitted on"]
    assert about["rows"] >= 976
    lines = (ag_news / "test.csv").read_text().splitlines(keepends=True)[::12]
    (tmp_path / "some.csv").write_text("".join(lines))
    columns = {"columns": AG_NEWS[1].split(","), "text_column": ["title", "description"], "label_column": "class"}
    result = evaluate("ag-news", tmp_path / "some.csv", **columns)
    assert result.reliability.expected_error < 0.05  # with so few rows, half of the error is chance


# Rows whose score is too low have no label: in every format, in folders, in counts, and in a pipe.


ROWS = pa.table(
    {
        "text": [f"article {i} about {'sport ' * (i % 5)}" for i in range(60)],
        "truth": [["class 0", "class 1", "class 2", "no such class"][i % 4] for i in range(60)],
    }
)
BELOW = 0.36


@pytest.fixture(scope="module")
def plain(client: Client, small_model: Model) -> pd.DataFrame:
    """Every label, however low its score."""
    return pipeline.classify(ROWS, model=small_model, client=client, text_column="text").to_pandas()


@pytest.fixture(scope="module")
def low(plain: pd.DataFrame) -> np.ndarray:
    """Which rows have a score below the limit: some, and not all."""
    found = (plain["score"] < BELOW).to_numpy()
    assert 5 < found.sum() < 55
    return found


@pytest.mark.slow
@pytest.mark.parametrize("partition_by", [None, "label"])
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_labels_are_null_in_every_format_and_folder(
    client: Client, small_model: Model, plain: pd.DataFrame, low: np.ndarray, tmp_path: Path, kind: str,
    partition_by: str | None,
) -> None:  # fmt: skip
    options = {"text_column": "text", "abstain": BELOW, "format": kind, "partition_by": partition_by, "chunk_size": 16}
    report = pipeline.classify(ROWS, tmp_path / "out", model=small_model, client=client, **options)
    rows = report.to_pandas()
    expected = plain["label"].mask(low, None)
    assert rows.set_index("row").sort_index()["label"].fillna("").tolist() == expected.fillna("").tolist()
    totals = pipeline.verify(tmp_path / "out")
    assert (totals.rows_written, totals.unlabelled) == (60, low.sum())
    assert totals.labels == expected.value_counts().to_dict()
    assert f"60 read = {60 - low.sum()} labelled + {low.sum()} without a label + 0 quarantined" in str(report)
    parts = tmp_path / "out" / "parts"
    if partition_by:
        assert any((parts / "label=__HIVE_DEFAULT_PARTITION__").iterdir())
    if partition_by and kind == "parquet":
        assert pl.read_parquet(parts, hive_partitioning=True)["label"].null_count() == low.sum()
        by_label = pa_dataset.HivePartitioning(pa.schema([("label", pa.string())]))
        assert pd.read_parquet(tmp_path / "out", partitioning=by_label)["label"].isna().sum() == low.sum()


def test_a_resumed_job_counts_the_same(client: Client, small_model: Model, low: np.ndarray, tmp_path: Path) -> None:
    options = {"model": small_model, "client": client, "text_column": "text", "chunk_size": 16}
    first = pipeline.classify(ROWS, tmp_path / "out", abstain=BELOW, **options)
    (lost,) = (tmp_path / "out" / "_entries").glob("part-000000-0000001-*")
    lost.unlink()
    again = pipeline.classify(ROWS, tmp_path / "out", abstain=BELOW, resume=True, **options)
    assert again.run.chunks_before == 3
    assert again.tally.unlabelled == first.tally.unlabelled == low.sum()
    pipeline.verify(tmp_path / "out")
    with pytest.raises(UsageError, match=r"add abstain=0.36"):
        pipeline.classify(ROWS, tmp_path / "out", resume=True, **options)
    entry = next((tmp_path / "out" / "_entries").glob("part-000000-0000002-*"))
    said = json.loads(entry.read_text())
    said["unlabelled"] -= 1
    entry.write_text(json.dumps(said))
    with pytest.raises(pipeline.OutputError, match="do not add up"):
        pipeline.verify(tmp_path / "out")


def test_where_label_and_accuracy_know_no_label(
    client: Client, small_model: Model, plain: pd.DataFrame, low: np.ndarray
) -> None:
    options = {"model": small_model, "client": client, "text_column": "text", "abstain": BELOW}
    report = pipeline.classify(ROWS, where="label is null", label_column="truth", **options)
    assert report.to_pandas()["row"].tolist() == np.flatnonzero(low).tolist()
    known = np.array([name != "no such class" for name in ROWS.column("truth").to_pylist()])
    right = plain["label"].to_numpy() == np.array(ROWS.column("truth").to_pylist())
    assert report.confusion is not None
    assert report.confusion.rows == (known & ~low).sum()
    assert report.confusion.correct == (right & ~low).sum()
    assert report.confusion.unlabelled.sum() == (known & low).sum()
    result = evaluate(small_model, ROWS, text_column="text", label_column="truth", abstain=BELOW)
    assert result.confusion.counts.tolist() == report.confusion.counts.tolist()
    assert result.abstained == (known & low).sum()
    frame = pipeline.label(ROWS.select(["text"]).to_pandas(), model=small_model, abstain=BELOW, client=client)
    assert frame["label"].isna().tolist() == low.tolist()
    assert frame["reason"].isna().all()
    assert np.allclose(frame["score"], plain["score"])


@pytest.mark.slow
def test_a_pipe_writes_null_and_goes_on(
    broadsheet: Command, small_model_file: Path, plain: pd.DataFrame, low: np.ndarray, tmp_path: Path
) -> None:
    pa_csv.write_csv(ROWS, tmp_path / "rows.csv")
    arguments = ["classify", tmp_path / "rows.csv", "-o", "-", "--model", small_model_file, "--strict"]
    run = broadsheet(*arguments, "--abstain", BELOW)
    assert run.returncode == 0, run.stderr
    labels = [json.loads(line)["label"] for line in run.stdout.splitlines()]
    assert [label is None for label in labels] == low.tolist()
    assert f"{60 - low.sum()} labelled + {low.sum()} to which no label applies" in run.stderr


def test_what_is_no_score_is_refused(broadsheet_here: CommandHere, small_model_file: Path, tmp_path: Path) -> None:
    pa_csv.write_csv(ROWS, tmp_path / "rows.csv")
    for below in (0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="abstain is"):
            pipeline.Options(abstain=below)
    code, said = broadsheet_here("evaluate", small_model_file, tmp_path / "rows.csv", "--label-column", "truth",
                                 "--abstain", BELOW)  # fmt: skip
    assert code == 0
    assert "have a score below 0.36, and no label" in " ".join(said.split())
