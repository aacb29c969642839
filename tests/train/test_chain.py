"""Chains of n-grams and an encoder: which texts reach the encoder, what chains promise for new rows, what is
refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from conftest import CommandHere, examples
from encoders import logits, minilm, needs_minilm, saved
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct
from safetensors.numpy import load_file, save_file
from scipy.stats import binom

from broadsheet.pipeline.engine.base import Predictions, Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.evaluation.chain import Top, fitted_chain, least_score, refuse_few
from broadsheet.pipeline.evaluation.evaluate import evaluate
from broadsheet.pipeline.evaluation.fitting import calibrate
from broadsheet.pipeline.evaluation.numbers import evaluate_numbers
from broadsheet.pipeline.job.estimate import dry_run
from broadsheet.pipeline.measures.intervals import most_lost
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.train import SoftLabels, train

pytestmark = needs_minilm

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe") for b in ("ra", "so", "ti", "va", "xu", "zen")]
QUICK: dict[str, Any] = {"text_column": "text", "vectors": None, "ngrams": 1 << 14, "device": "cpu"}


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 6)) for _ in range(count)]


def judge(folder: Path, classes: int) -> Path:
    """Save a random encoder. With one output, its numbers have a mean of about 2.5 and a standard deviation of 1."""
    saved(folder, classes=classes, num_hidden_layers=1)
    if classes == 1:
        raw = logits(folder, texts(50, seed=9))
        tensors = dict(load_file(folder / "model.safetensors"))
        tensors["classifier.weight"] /= raw.std()
        tensors["classifier.bias"] = np.array([2.5 - raw.mean() / raw.std()], np.float32)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def number_judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judge(tmp_path_factory.mktemp("number") / "judge", 1)


@pytest.fixture(scope="module")
def class_judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judge(tmp_path_factory.mktemp("classes") / "judge", 3)


@pytest.fixture(scope="module")
def student(number_judge: Path) -> Model:
    """n-grams that learn numbers."""
    return train(
        pa.table({"text": texts(600)}), soft_labels=SoftLabels(models=(number_judge,), device="cpu"), **QUICK
    ).model


@pytest.fixture(scope="module")
def chain(class_judge: Path) -> Model:
    soft = SoftLabels(models=(class_judge,), unlabelled=pa.table({"text": texts(598)}), device="cpu")
    of = {"keep_teacher": True, "top": "30%", "top_of": "class 1", "recall": 0.9, "hold_out_share": 0.5}
    return train(pa.table({"text": texts(2, seed=1)}), soft_labels=soft, **of, **QUICK).model


def answers(model: Model, given_texts: list[str], **how: Any) -> Predictions:
    engine = open_engine(model, "cpu", threads=2)
    try:
        return engine.classify(Texts.of([text.encode() for text in given_texts]), all_scores=True, **how)
    finally:
        engine.close()


def assert_asked_where_it_matters(model: Model, encoder: Model, by: Any) -> None:
    """Assert that each text has the bits of the encoder or of n-grams alone, depending on its score.

    by: that score, computed from predictions.
    """
    assert model.cascade is not None
    of, new = model.cascade.selection, texts(300, seed=4)
    assert of
    chained, whole, alone = (answers(one, new) for one in (model, encoder, model.asking("none")))
    rows = by(alone) >= np.float32(of.least)
    assert 0 < chained.asked == rows.sum() < 300
    for name in ("labels", "scores", "all_scores"):
        mine, theirs, ngrams = (getattr(each, name) for each in (chained, whole, alone))
        np.testing.assert_array_equal(mine[rows], theirs[rows])
        np.testing.assert_array_equal(mine[~rows], ngrams[~rows])
    assert (by(chained)[~rows] < of.cut).all()
    wanted = by(whole) >= of.cut
    assert 0.1 < wanted.mean() < 0.5
    assert rows[wanted].mean() > 0.85
    for network, expected in (("all", whole), ("none", alone)):
        np.testing.assert_array_equal(answers(model.asking(network), new).all_scores, expected.all_scores)
    again = Model.from_bytes(model.to_bytes())
    assert (again.digest, again.cascade) == (model.digest, model.cascade)
    np.testing.assert_array_equal(answers(again, new).all_scores, chained.all_scores)


@pytest.mark.slow
def test_a_chain_of_classes_asks_about_what_may_be_above_its_cut(chain: Model, class_judge: Path) -> None:
    assert_asked_where_it_matters(chain, load_model(class_judge), lambda found: found.all_scores[:, 1])
    assert chain.card["network asked"]["promise"].items() >= {"top": 0.3, "of": "class 1", "recall": 0.9}.items()
    table = pa.table({"text": texts(200, seed=5), "kind": ["class 1"] * 200})
    result = evaluate(chain, table, label_column="kind", device="cpu")
    assert result.networks.keys() == result.found.keys() == {"uncertain", "all", "none"}
    alone, some, whole = (result.found[name] for name in ("none", "uncertain", "all"))
    assert (some.precision, whole) == (1, (1, 1, 1))
    assert some.recall > max(0.85, alone.recall)
    assert 0 == alone.share < some.share < 1
    first, scores = (answers(one, table["text"].to_pylist()).all_scores for one in map(chain.asking, ("none", "all")))
    assert chain.cascade is not None
    assert chain.cascade.selection
    wanted = scores[:, 1] >= np.float32(chain.cascade.selection.cut)
    for share in (0, 0.05, 0.3, 1):
        best = np.argsort(-first[:, 1], kind="stable")[: round(200 * share)]
        assert dict(result.recalls)[share] == pytest.approx(wanted[best].sum() / wanted.sum())


@pytest.mark.slow
def test_a_chain_of_numbers_from_the_command_to_a_job(
    number_judge: Path, tmp_path: Path, broadsheet_here: CommandHere
) -> None:
    source, file = tmp_path / "in.csv", tmp_path / "chain.safetensors"
    pa_csv.write_csv(pa.table({"text": texts(600)}), source)
    how = ("--keep-teacher", "--hold-out", 0.5, "--vectors", "none", "--ngrams", 1 << 14, "--device", "cpu")
    of = ("--top", "20%", "--recall", 0.9)
    code, told = broadsheet_here("train", "--unlabelled", source, "--teacher", number_judge, "-o", file, *how, *of)
    assert code == 0, told
    refused, message = broadsheet_here("train", "-o", tmp_path / "m.safetensors", *how[:3])
    assert (refused, "name DATA to learn" in message) == (2, True)
    _, shown = broadsheet_here("inspect", number_judge)  # its error is not known
    assert "numbers from 0 to 5; labels: the nearest level" in " ".join(shown.split())
    assert "90% of the top 20% by its score are in them" in told
    model = load_model(file)
    assert_asked_where_it_matters(model, load_model(number_judge), lambda found: found.scores[:, 0])
    pa_csv.write_csv(pa.table({"text": texts(90, seed=6), "number": np.zeros(90)}), tmp_path / "new.csv")
    code, told = broadsheet_here("classify", tmp_path / "new.csv", "-o", tmp_path / "out", "--model", file)
    assert code == 0, told
    chained = answers(model, texts(90, seed=6))
    assert f"encoder asked {chained.asked} times for 90 rows" in " ".join(told.split())
    found = pq.read_table(tmp_path / "out" / "parts")
    np.testing.assert_array_equal(found["score"].to_numpy(), chained.scores[:, 0])
    estimate = dry_run(tmp_path / "new.csv", model=model, device="cpu")
    assert estimate.seconds_of_encoder is not None
    assert dry_run(tmp_path / "new.csv", model=model, device="cpu", network="none").seconds_of_encoder is None
    code, told = broadsheet_here("classify", tmp_path / "new.csv", "--model", file, "--dry-run")
    assert "alone about" in told
    result = evaluate_numbers(model, tmp_path / "new.csv", label_column="number", device="cpu")
    assert (result.found["uncertain"].precision, result.found["none"].share) == (1, 0)
    assert result.found["uncertain"].share == pytest.approx(chained.asked / 90)
    code, told = broadsheet_here("evaluate", file, tmp_path / "new.csv", "--label-column", "number", "--json")
    assert json.loads(told.splitlines()[0])["found"]["all"] == {"share": 1, "recall": 1, "precision": 1}
    picture = ("--asked", tmp_path / "asked.png")
    code, told = broadsheet_here("evaluate", file, tmp_path / "new.csv", "--label-column", "number", *picture)
    assert "recall" in told
    assert pytest.importorskip("matplotlib.image").imread(tmp_path / "asked.png").shape[1] > 500
    for what, more in (("ag-news", ()), (file, ("--network", "all"))):
        arguments = (what, tmp_path / "new.csv", "--label-column", "number", *picture, "--overwrite", *more)
        code, told = broadsheet_here("evaluate", *arguments)
        assert code == 2
        assert "--asked is for a chain that is to find a share" in " ".join(told.split())


def test_calibrate_promises_something_else_by_other_rows(
    chain: Model, tmp_path: Path, broadsheet_here: CommandHere
) -> None:
    rows = pa.table({"text": texts(400, seed=7)})
    labels = calibrate(chain, rows, agreement=0.97, device="cpu")
    assert labels.cascade is not None
    assert not labels.cascade.selection
    assert labels.cascade.margin > 0
    new = texts(400, seed=8)
    whole, found = answers(labels.asking("all"), new), answers(labels, new)
    assert 0 < found.asked < 400
    assert (found.labels == whole.labels).mean() > 0.95
    chain.save(tmp_path / "chain.safetensors")
    pa_csv.write_csv(rows, tmp_path / "in.csv")
    command = ("calibrate", tmp_path / "chain.safetensors", tmp_path / "in.csv", "-o", tmp_path / "m.safetensors")
    code, told = broadsheet_here(*command, "--top", "0.25", "--top-of", "class 2", "--recall", "0.8")
    assert code == 0, told
    assert "80% of the top 25% by its score for class 2" in told
    of = load_model(tmp_path / "m.safetensors").cascade
    assert of is not None
    assert of.selection
    assert (of.selection.label, of.selection.recall) == (2, 0.8)
    for options, message in ((("--label-column", "kind"), "leave out the label column"), ((), "too few")):
        code, told = broadsheet_here(*command, "--overwrite", *options)
        assert code != 0
        assert message in " ".join(told.split())


def test_a_student_of_numbers_learns_the_teachers(student: Model, number_judge: Path) -> None:
    encoder = load_model(number_judge)
    assert student.levels is not None
    assert encoder.levels is not None
    assert (student.classes, student.levels.low, student.encoder) == (encoder.classes, encoder.levels.low, None)
    new = texts(200, seed=3)
    own, theirs = (answers(model, new).scores[:, 0] for model in (student, encoder))
    assert np.corrcoef(own, theirs)[0, 1] > 0.6
    assert student.card["soft_labels"]["teachers"] == [str(number_judge)]


@settings(max_examples=examples(60))
@given(rows=st.integers(1, 20_000), share=st.floats(0.5, 0.9995))
def test_the_bound_is_that_of_the_binomial(rows: int, share: float) -> None:
    lost = most_lost(rows, share)
    assert -1 <= lost < rows
    assert binom.cdf(lost, rows, 1 - share) <= 0.05 * (1 + 1e-9)
    assert binom.cdf(lost + 1, rows, 1 - share) > 0.05 * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["number", "class", "labels"])
def test_a_promise_holds_on_rows_that_nobody_fitted(
    student: Model, number_judge: Path, chain: Model, class_judge: Path, kind: str
) -> None:
    """The promise holds in 19 of 20 draws for any scores, and the chain asks about no more texts than it has to."""
    rng = np.random.default_rng(0)
    first, encoder, top, agreement = chain.asking("none"), load_model(class_judge), None, 0.97
    count, draws = 60_000, 200
    if kind == "number":
        first, encoder = student, load_model(number_judge)
        whole = np.clip(rng.gamma(2, 0.8, (count, 1)), 0, 5)
        alone = np.clip(1 + 0.4 * whole + rng.normal(0, 0.3, (count, 1)), 0, 5)
    else:
        both = rng.normal(0, 2, (count, 3))
        whole, alone = (
            np.exp(of) / np.exp(of).sum(1, keepdims=True) for of in (both, both + rng.normal(0, 0.7, both.shape))
        )
    if kind != "labels":
        top = Top(Fraction(1, 10), 0.95, 0 if kind == "number" else 2)
    kept = []
    for _ in range(draws):
        rows = rng.choice(count, 1500, replace=False)
        cascade = fitted_chain(first, encoder, alone[rows], whole[rows], agreement, top).cascade
        assert cascade is not None
        new = np.setdiff1d(np.arange(count), rows)
        if top is None:
            sure = np.diff(np.sort(np.log(alone[new]) * first.temperature, axis=1)[:, 1:])[:, 0]
            differ = alone[new].argmax(1) != whole[new].argmax(1)
            kept.append(1 - (differ & (sure >= cascade.margin)).mean())
        else:
            of = cascade.selection
            assert of
            assert of.least <= of.cut
            wanted = whole[new, top.label] >= of.cut
            kept.append((alone[new, top.label] >= of.least)[wanted].mean())
    promised = agreement if top is None else top.recall
    assert np.mean(np.array(kept) >= promised) > 0.91  # 0.95, less three standard deviations of 200 draws
    assert np.mean(kept) < promised + (0.035 if top is None else 0.045)  # the cut of 1,500 rows is uncertain too


def test_a_first_model_of_higher_scores_asks_about_what_is_above_the_cut_by_itself(
    student: Model, number_judge: Path
) -> None:
    """A text whose first score reaches the cut could be chosen by that score alone, so the encoder is asked."""
    whole = np.linspace(0, 5, 2000)[:, None]
    cascade = fitted_chain(
        student, load_model(number_judge), whole + 9, whole, 0.9, Top(Fraction(1, 10), 0.9, 0)
    ).cascade
    assert cascade is not None
    assert cascade.selection
    assert cascade.selection.least == cascade.selection.cut


def test_texts_whose_first_score_is_the_least_are_asked_about(chain: Model) -> None:
    """The encoder is asked about them when the chain is fitted, and when it is used."""
    assert chain.cascade is not None
    assert chain.cascade.selection
    new = texts(40, seed=7)
    first = np.sort(answers(chain.asking("none"), new).all_scores[:, 1])[::-1]
    selection = replace_struct(chain.cascade.selection, least=float(first[9]), cut=max(1.0, float(first[0])))
    at_least = replace(chain, cascade=replace_struct(chain.cascade, selection=selection))
    assert answers(at_least, new).asked == np.count_nonzero(first >= first[9])
    rng = np.random.default_rng(0)
    whole = rng.dirichlet(np.ones(3), 3000)
    alone = np.round(whole * 8) / 8  # so that many texts share a score
    top = Top(Fraction(1, 10), 0.9, 1)
    fitted = fitted_chain(chain.asking("none"), chain.asking("all"), alone, whole, 0.9, top).cascade
    assert fitted is not None
    assert fitted.selection
    assert np.count_nonzero(alone[:, 1] == fitted.selection.least) > 30
    assert fitted.share == np.mean(alone[:, 1] >= fitted.selection.least)


@pytest.mark.slow
@pytest.mark.parametrize("is_tied", [False, True])
def test_the_promise_is_about_the_top_of_all_texts_and_not_that_of_the_sample(is_tied: bool) -> None:
    """Where both models nearly agree, the error of the sample's cut alone would break the promise in 9 of 100 draws."""
    rng = np.random.default_rng(0)
    encoder = rng.normal(size=1_000_000)
    first = 0.98 * encoder + np.sqrt(1 - 0.98**2) * rng.normal(size=len(encoder))
    encoder = np.round(encoder, 1) if is_tied else encoder
    top = np.sort(first[encoder >= np.quantile(encoder, 0.9)])
    draws, failures = 1200, 0
    for _ in range(draws):
        rows = rng.integers(0, len(encoder), 8000)
        least = least_score(first[rows], encoder[rows], 0.1, 0.95)
        failures += np.searchsorted(top, least) > 0.05 * len(top)
    assert failures <= binom.ppf(0.999, draws, 0.05)


@settings(max_examples=examples(20))
@given(share=st.sampled_from([0.01, 0.1, 0.3, 0.6]), recall=st.sampled_from([0.5, 0.9, 0.95]))
def test_as_many_rows_as_the_message_names_are_enough(share: float, recall: float) -> None:
    rng = np.random.default_rng(1)
    top = Top(Fraction(share).limit_denominator(), recall, 0)
    with pytest.raises(UsageError, match=r"that takes [\d,]+") as refused:
        refuse_few(1, 0.99, top)
    needed = int(re.findall(r"that takes ([\d,]+)", str(refused.value))[0].replace(",", ""))
    refuse_few(needed, 0.99, top)
    least_score(*rng.normal(size=(2, needed)), share, recall)
    with pytest.raises(UsageError, match="too few"):
        refuse_few(needed - 1, 0.99, top)
    with pytest.raises(UsageError, match="too few"):
        least_score(*rng.normal(size=(2, needed - 1)), share, recall)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"top": "10%"}, "50 held-out rows are too few .* of which 842 are held out"),
    ({}, "say which texts are wanted"),
    ({"top": "10%", "top_of": "3"}, "a number, and no class"),
    ({"top": "100%"}, "above 0 and below 1"),
    ({"top": "10 rows"}, "a share such as 10%"),
    ({"top": "10%", "keep_teacher": False}, "what a chain is to find"),
    ({"top": "10%", "classes": ["a", "b"]}, "leave out classes="),
    ({"top": "10%", "label_column": "kind"}, "learned by n-grams alone"),
    ({"top": "10%", "soft_labels": None}, "makes a chain of n-grams and a teacher"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_makes_no_chain_is_told_before_the_encoder_is_asked(
    number_judge: Path, options: dict[str, Any], message: str
) -> None:
    rows = pa.table({"text": texts(100), "kind": ["a", "b"] * 50})
    how: dict[str, Any] = {"soft_labels": SoftLabels(models=(number_judge,), device="cpu"), "keep_teacher": True}
    with pytest.raises(UsageError, match=message):
        train(rows, **QUICK, hold_out_share=0.5, **how | options)


def test_too_few_texts_are_told_as_texts_and_a_teacher_without_a_head_as_two_steps(
    class_judge: Path, tmp_path: Path
) -> None:
    """The number of texts that the message names is enough."""
    rows = pa.table({"text": texts(100)})
    soft = SoftLabels(models=(class_judge,), device="cpu")
    with pytest.raises(UsageError, match=r"about 15,000 texts, of which 2,995 are held out, and here are 100") as few:
        train(rows, soft_labels=soft, keep_teacher=True, hold_out_share=0.2, **QUICK)
    enough = int(re.findall(r"about ([\d,]+) texts", str(few.value))[0].replace(",", ""))
    refuse_few(enough // 5, 0.999, None, enough)
    (tmp_path / "encoder").mkdir()
    bare = SoftLabels(models=(tmp_path / "encoder",), device="cpu")
    labelled = rows.append_column("kind", pa.array(["a", "b"] * 50))
    with pytest.raises(UsageError, match=r"without a head.*Two steps.*keep_teacher"):
        train(labelled, label_column="kind", soft_labels=bare, keep_teacher=True, **QUICK)


def test_what_is_no_encoder_of_one_label_makes_no_chain(class_judge: Path, student: Model, tmp_path: Path) -> None:
    rows = pa.table({"text": texts(100)})
    several = replace(load_model(class_judge), thresholds=(0.5,) * 3)
    for teachers in ((student,), (several,), (class_judge, class_judge)):
        soft = SoftLabels(models=teachers, device="cpu")
        with pytest.raises(UsageError, match=r"needs one teacher: an encoder with a head|only one label can be taught"):
            train(rows, soft_labels=soft, keep_teacher=True, top="10%", **QUICK)
    soft = SoftLabels(models=(class_judge,), device="cpu")
    for options, message in (
        ({"top": "10%"}, "one of class 0, class 1, class 2"),
        ({"top": "10%", "top_of": "class 9"}, "needs a class of"),
        ({"top_of": "class 1"}, "give that too"),
        ({}, "promise that 0.999 of the labels stay, .* of which 2,995 are held out"),
    ):
        with pytest.raises(UsageError, match=message):
            train(rows, soft_labels=soft, keep_teacher=True, **options, **QUICK)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="gives numbers, but not all teachers"):
        train(rows, soft_labels=SoftLabels(models=(student, class_judge), device="cpu"), **QUICK)
    with pytest.raises(UsageError, match="the classes are not known"):  # an encoder without a head is no model of ours
        train(rows, soft_labels=SoftLabels(models=(minilm(),), device="cpu"), **QUICK)
    with pytest.raises(UsageError, match="is what a chain is to find"):
        calibrate("ag-news", rows, top="10%")
