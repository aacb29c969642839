"""Models of numbers: what they learn, how every command and format shows it, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import CommandHere
from scipy.stats import spearmanr
from serving import serving

from broadsheet import pipeline
from broadsheet.pipeline.client import ServerError
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine, why_no_gpu
from broadsheet.pipeline.errors import ModelError, UsageError
from broadsheet.pipeline.evaluation.evaluate import evaluate
from broadsheet.pipeline.evaluation.numbers import NumberFigures, evaluate_numbers
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.scores import Levels
from broadsheet.pipeline.train import Trained, train

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe") for b in ("ra", "so", "ti", "va", "xu", "zen")]
NAMES = ("poor", "fair", "good", "fine", "best")


def rows(count: int, seed: int = 0) -> pa.Table:
    """Return texts whose words are worth from -1 to 1. Their sum is the exact number, and the quality is its step from
    0 to 5.
    """
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(WORDS), (count, 12))
    exact = np.linspace(-1, 1, len(WORDS))[chosen].sum(axis=1) + rng.normal(0, 0.2, count)
    quality = np.clip(np.rint(exact + 2.5), 0, 5).astype(int)
    texts = [" ".join(WORDS[i] for i in row) for row in chosen]
    names = [NAMES[min(q, 4)] for q in quality]
    return pa.table({"text": texts, "exact": exact, "quality": quality, "grade": names})


def trained(target: str = "quality", **options: object) -> Trained:
    options = {"vectors": None, "ngrams": 4096, **options}
    return train(rows(300), text_column="text", target_column=target, **options)


@pytest.fixture(scope="module")
def quality(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbers") / "quality.safetensors"
    trained(test=rows(100, 1)).model.save(path)
    return path


def test_the_figures_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    given, true = rng.normal(size=200).round(1), rng.integers(0, 6, 200).astype(float)
    figures = NumberFigures.of(given, true)
    assert figures.spearman == pytest.approx(spearmanr(given, true).statistic)
    assert figures.mean_absolute_error == pytest.approx(np.abs(given - true).mean())
    assert np.isnan(NumberFigures.of(np.ones(3), true[:3]).spearman)


def test_a_quality_is_learnt_and_evaluated(quality: Path) -> None:
    model = load_model(quality)
    assert model.classes == ("0", "1", "2", "3", "4", "5")
    card = model.card
    assert card["data"]["held_out_rows"] == 0
    assert card["data"]["cross_validated_rows"] == card["held_out"]["rows"] == 300
    assert card["held_out"]["spearman"] > 0.9
    better = card["held_out"]["root_mean_square_error"]
    assert better < card["compared with"]["median"]["root_mean_square_error"] / 2
    result = evaluate_numbers(model, rows(100, 1), label_column="quality", device="cpu")
    assert result.figures.spearman > 0.9
    for name, value in result.figures.about().items():  # from the training's own prediction, in double precision
        assert card["test"][name] == pytest.approx(value, abs=2e-3), name
    with pytest.raises(UsageError, match="evaluate_numbers"):
        evaluate(model, rows(10), label_column="quality")


def test_numbers_stay_between_the_first_level_and_the_last() -> None:
    levels = Levels(2.0, 0.5)
    labels, logits = np.array([0, 3, 3, 0], np.int32), np.array([-1e6, 1e6, 8.0, np.nan], np.float32)
    np.testing.assert_array_equal(levels.numbers_of(labels, logits, 4), np.array([2.0, 3.5, 3.5, np.nan], np.float32))
    np.testing.assert_array_equal(levels.numbers(np.array([-9.0, 2.5, 99.0]), 4), [2.0, 2.75, 3.5])


def test_the_number_is_linear_and_its_label_the_nearest_level(quality: Path) -> None:
    """The weights themselves show this: the logits of all levels are linear in one number."""
    model = load_model(quality)
    texts = [*rows(60, 2)["text"].to_pylist(), "", "unheard of", " ".join([WORDS[-1]] * 40), " ".join([WORDS[0]] * 40)]
    engine = open_engine(model, device="cpu")
    found = engine.classify(Texts.of([text.encode() for text in texts]), all_scores=True)
    numbers = found.scores[:, 0]
    np.testing.assert_array_equal(found.labels[:, 0], np.rint(numbers))
    assert (numbers.min(), numbers.max()) == (0, 5)  # words of one kind alone would exceed the range
    assert found.all_scores is not None
    np.testing.assert_allclose(found.all_scores.sum(axis=1), 1, rtol=1e-5)
    inner = (numbers > 0.5) & (numbers < 4.5)
    expected = (found.all_scores * np.arange(6)).sum(axis=1)  # the mean of the levels is the number
    np.testing.assert_allclose(expected[inner], numbers[inner], atol=0.05)


def test_every_way_of_asking_says_the_same(quality: Path, tmp_path: Path, broadsheet_here: CommandHere) -> None:
    table = rows(50, 3)
    pq.write_table(table, tmp_path / "in.parquet")
    options = ("-o", tmp_path / "out", "--model", quality, "--where", "score >= 3")
    code, told = broadsheet_here("classify", tmp_path / "in.parquet", *options)
    assert code == 0, told
    out = pq.read_table(next((tmp_path / "out" / "parts").glob("*.parquet")))
    with pipeline.load(quality, device="cpu") as classifier:
        found = [(each.label, each.score) for each in classifier(table["text"].to_pylist())]
    labelled = pipeline.label(table, model=quality, device="cpu")
    assert [*zip(labelled["label"].to_pylist(), labelled["score"].to_pylist(), strict=True)] == found
    chosen = [each for each in found if each[1] >= 3]
    assert 10 < len(chosen) < 40
    assert [*zip(out["label"].to_pylist(), out["score"].to_pylist(), strict=True)] == chosen


@pytest.mark.slow
def test_a_server_gives_each_text_one_number(quality: Path) -> None:
    with serving("--model", f"quality={quality}") as server, server.client() as client:
        (found,) = client.classify([" ".join(WORDS[-3:])])
        assert found["score"] > 3
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [" ".join(WORDS[-3:])]}
        told = httpx.post(f"{server.url}/v2/models/quality/infer", json={"inputs": [tensor]}, timeout=240).json()
        label, score, levels = (each["data"] for each in told["outputs"])
        assert (label, score, sum(levels)) == ([found["label"]], [found["score"]], pytest.approx(1))
        texts, number = [" ".join(WORDS[-3:])], {"label": found["label"], "score": found["score"]}

        def asked(path: str, **body: object) -> Any:
            return httpx.post(server.url + path, json=body, timeout=240).json()

        hub = {"function_to_apply": "none", "top_k": 3}
        assert asked("/predict", inputs=[texts]) == asked("/", inputs=texts, parameters=hub) == [[number]]
        assert asked("/predict", inputs=texts[0], raw_scores=True) == [number]
        assert "numbers" in asked("/", inputs=texts, parameters={"function_to_apply": "softmax"})["error"]
        (vllm,) = asked("/classify", input=texts, use_activation=False)["data"]
        assert (vllm["label"], vllm["probs"], vllm["num_classes"]) == (found["label"], [found["score"]], 1)
        assert asked("/classify", input=texts, raw_scores=False)["data"] == [[number]]
        sagemaker = asked("/invocations", instances=texts, configuration={"k": 2})
        assert sagemaker == [{"label": [found["label"]], "prob": [found["score"]]}]
        with pytest.raises(ServerError, match="a number: leave out top_k"):
            client.classify(["a"], top_k=2)


def test_labels_of_numbers_are_chosen_from_and_counted_by_label_alone(quality: Path, tmp_path: Path) -> None:
    given = rows(300, 7)
    report = pipeline.classify(given, tmp_path / "out", model=quality, text_column="text", partition_by="label")
    found = pq.read_table(tmp_path / "out" / "parts").to_pandas()
    assert report.models[0].scores is None  # bins from 0 to 1
    assert dict(report.models[0].labels) == found["label"].astype(str).value_counts().to_dict()
    pipeline.select(tmp_path / "out", tmp_path / "best", top="10%")
    chosen = pq.read_table(tmp_path / "best" / "parts").to_pandas()
    assert set(chosen["row"]) == set(found.sort_values(["score", "row"], ascending=[False, True])["row"][:30])
    assert [pipeline.verify(tmp_path / folder).rows_written for folder in ("out", "best")] == [300, 30]


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_numbers_that_are_not_whole(loss: str) -> None:
    model = trained("exact", loss=loss, hold_out_share=0.2).model
    assert len(model.classes) == 11
    assert model.card["data"]["held_out_rows"] == model.card["held_out"]["rows"] > 50
    assert model.card["held_out"]["mean_absolute_error"] < 0.45
    assert model.card["held_out"]["spearman"] > 0.95
    assert Model.from_bytes(model.to_bytes()).digest == model.digest


def test_an_absolute_loss_is_not_moved_by_a_few_wrong_numbers() -> None:
    table = rows(300)
    wrong = table["exact"].to_numpy().copy()
    wrong[::15] = 60.0
    spoilt = table.set_column(1, "exact", pa.array(wrong))
    errors = []
    for loss in ("absolute", "squared"):
        model = train(spoilt, text_column="text", target_column="exact", loss=loss, vectors=None, ngrams=4096).model
        errors.append(evaluate_numbers(model, rows(100, 1), label_column="exact").figures.mean_absolute_error)
    assert errors[0] < errors[1] / 2


def test_levels_in_order_have_names(tmp_path: Path) -> None:
    trained("grade", classes=NAMES).model.save(tmp_path / "grade.safetensors")
    model = load_model(tmp_path / "grade.safetensors")
    assert model.classes == NAMES
    result = evaluate_numbers(model, rows(100, 1), label_column="grade")
    assert result.figures.spearman > 0.85
    assert result.nearest > 0.5
    with pytest.raises(UsageError, match=r"'awful'.*one of poor, fair"):
        evaluate_numbers(model, pa.table({"text": ["a"], "grade": ["awful"]}), label_column="grade")


def test_what_does_not_fit_is_refused(quality: Path) -> None:
    for column, what in (([1.0, None], "one number only"), (["1", "many"], "no number"), ([2, 2], "one number only")):
        with pytest.raises(UsageError, match=what):
            train(pa.table({"text": ["a", "b"], "q": column}), text_column="text", target_column="q")
    for options in ({"label_column": "grade"}, {"balanced": True}, {"settings": ["epochs=2"]}, {"ngrams": 0}):
        with pytest.raises(UsageError, match="n-grams alone"):
            trained(**options)
    with pytest.raises(UsageError, match="loss 'cubic'"):
        trained(loss="cubic")
    for options in ({"top_k": 2}, {"abstain": 0.5}):
        with pytest.raises(UsageError, match="a number"):
            pipeline.label(rows(3), model=quality, device="cpu", **options)
    with pytest.raises(UsageError, match="a number, which has no temperature"):
        pipeline.calibrate(quality, rows(200), label_column="quality")
    with pytest.raises(ModelError, match="steps of 0"):
        replace(load_model(quality), levels=Levels(0, 0))


def test_the_command_says_how_good_it_is(tmp_path: Path, broadsheet_here: CommandHere) -> None:
    pq.write_table(rows(200), tmp_path / "in.parquet")
    made = tmp_path / "q.safetensors"
    options = ("--target-column", "quality", "--ngrams", "4096", "--vectors", "none", "-o", made)
    code, told = broadsheet_here("train", tmp_path / "in.parquet", *options)
    assert code == 0, told
    assert "6 levels, 0 to 5" in told
    assert "cross-validated: Spearman 0.9" in told
    code, told = broadsheet_here("evaluate", made, tmp_path / "in.parquet", "--label-column", "quality", "--json")
    assert json.loads(told.splitlines()[0])["figures"]["rows"] == 200
    code, told = broadsheet_here("inspect", made)
    assert "numbers from 0 to 5" in told


@pytest.mark.gpu
@pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")
def test_a_gpu_gives_the_same_numbers(quality: Path) -> None:
    model = load_model(quality)
    for count in (5, 3000):  # one CUDA graph; batches
        texts = Texts.of([text.encode() for text in rows(count, 4)["text"].to_pylist()])
        both = []
        for device in ("cpu", "cuda"):
            engine = open_engine(model, device=device)
            both.append(engine.classify(texts, all_scores=True))
            engine.close()
        np.testing.assert_allclose(both[1].scores, both[0].scores, atol=2e-5)
        assert (both[1].labels == both[0].labels).mean() > 0.999
        np.testing.assert_allclose(both[1].all_scores, both[0].all_scores, atol=1e-4)
