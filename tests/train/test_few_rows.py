"""Few labelled rows: n-grams learn what a network cannot learn yet, and a run says how reliable its accuracy is."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
import scipy.sparse as sp
from conftest import Command
from jobs import children_of
from scipy.optimize import minimize
from training import LENGTH, QUICK, articles

from broadsheet.pipeline.classifier import load
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.cpu import CpuEngine
from broadsheet.pipeline.engine.profile import _cpu_kernels, sample
from broadsheet.pipeline.errors import BroadsheetError, UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.ngrams import scores
from broadsheet.pipeline.train import Epoch, Fit, Note, Oddities, Recipe, Trained, train
from broadsheet.pipeline.train.after import factors
from broadsheet.pipeline.train.linear import Fitter, NewtonFitter, Problem, Processes, ProductFitter
from broadsheet.pipeline.train.progress import Stuck


def few(table: pa.Table, **options: object) -> Trained:
    options = {"device": "cpu", "length": LENGTH, "ngrams": 1 << 14, "vectors": None, **options}
    return train(table, text_column="text", label_column="kind", **options)  # type: ignore[arg-type]


def noise(count: int) -> pa.Table:
    """Return rows whose labels have nothing to do with their texts. Two of three rows are of one class."""
    table = articles(count, seed=4)
    kinds = np.random.default_rng(0).choice(["a", "a", "b"], count)
    return table.set_column(1, "kind", pa.array(kinds))


@pytest.fixture(scope="module")
def trained() -> Trained:
    return few(articles(150), test=articles(100, seed=1))


def test_n_grams_alone_learn_from_few_rows(trained: Trained, tmp_path: Path) -> None:
    """They need no network, which would take a CPU a thousand times as long, and the model file has the same format."""
    model = trained.model
    assert trained.history == ()
    assert model.card["test"]["accuracy"] > 0.98
    assert not model.has_network
    with closing(CpuEngine(model, threads=1)) as engine:
        assert [one.name for one in _cpu_kernels(engine, sample(model, 4))] == ["encode", "ngrams", "head"]
    model.save(tmp_path / "m.safetensors")
    classifier = load(tmp_path / "m.safetensors", device="cpu")
    assert classifier.predict(["the coach and the team match", "orbit of the comet"]) == ["sport", "space"]
    assert load_model(tmp_path / "m.safetensors").digest == model.digest


def test_accuracy_stands_beside_that_of_simple_models(trained: Trained) -> None:
    told = trained.compared
    assert told is not None
    assert told.rows == 150  # each row is held out once
    assert told.model == pytest.approx(trained.model.card["held_out_accuracy"], abs=1e-6)
    assert told.most_frequent < 0.5 < told.linear
    card = trained.model.card["compared with"]
    assert card["most frequent class"] == pytest.approx(told.most_frequent, abs=1e-6)


def test_rows_with_a_wrong_label_are_found_by_models_that_have_not_seen_them(
    broadsheet_in_process: Command, tmp_path: Path
) -> None:
    """A file of its own lists where these rows are, their labels, and the labels that they should have."""
    right = articles(150)
    kinds, wrong = right["kind"].to_pylist(), [7, 64, 120, 149]
    other = {"sport": "space", "space": "sport"}
    given = [other.get(kind, "sport") if i in wrong else kind for i, kind in enumerate(kinds)]
    rows, found = tmp_path / "rows.csv", tmp_path / "suspects.csv"
    table = right.set_column(right.column_names.index("kind"), "kind", pa.array(given))
    pa_csv.write_csv(table.append_column("key", pa.array([f"k{i:03}" for i in range(150)])), rows)
    command: list[object] = [
        "train",
        str(rows),
        "--text-column",
        "text",
        "--label-column",
        "kind",
        "-o",
        tmp_path / "m.safetensors",
    ]
    command += ["--device", "cpu", "--vectors", "none", "--ngrams", 1 << 14, "--suspects", found, "--id-column", "key"]
    command = [str(argument) for argument in command]
    made = broadsheet_in_process(*command)
    assert made.returncode == 0, made.stderr
    suspects = pa_csv.read_csv(found)
    assert suspects.column_names == [
        "file", "row", "key", "truth", "truth_score", "label", "score", "decision", "text", "text_key",
    ]  # fmt: skip
    assert {*suspects["row"].to_pylist()[: len(wrong)]} == {*wrong}
    assert suspects["truth_score"].to_pylist() == sorted(suspects["truth_score"].to_pylist())
    assert len(suspects) <= 6
    for row in suspects.to_pylist():
        at = row["row"]
        assert row["file"] == str(rows)
        assert (row["key"], row["truth"], row["text"]) == (f"k{at:03}", given[at], right["text"][at].as_py())
        assert row["label"] == kinds[at] if at in wrong else row["label"] != given[at]
    assert f"{len(suspects)} of 150 rows, each judged by a model that has not seen it, may have a wrong" in made.stdout
    assert "rows with a score of 0.9 or more" in made.stderr
    assert "another name, or --overwrite" in broadsheet_in_process(*command).stderr
    several = broadsheet_in_process(*command, "--overwrite", "--label-column", "text")
    assert (several.returncode, "in one column" in several.stderr) == (2, True)


def test_a_model_that_is_no_better_than_guessing_is_called_so() -> None:
    told = few(noise(120)).compared
    assert told is not None
    assert "not clearly better than always giving the most frequent class" in told.lines()[-1]


def test_what_was_learned_by_heart_does_not_count() -> None:
    """The labels and the words are random, and each text occurs twice, so nobody can label a new text. Held-out rows,
    and the rows of a fold, share no text with the others.
    """
    rng = np.random.default_rng(5)
    words = ["".join(rng.choice(list("abcdefghij"), 5)) for _ in range(600)]
    texts = [" ".join(rng.choice(words, 12)) for _ in range(150)]
    kinds = list(rng.choice(["a", "b"], 150))
    near = [f"{texts[0]} more", texts[1].upper()]
    rows = pa.table({"text": [*texts, *texts, *near], "kind": [*kinds, *kinds, *kinds[:2]]})
    told: list[object] = []
    test = pa.table({"text": [texts[2], near[0], "of words that were never seen"], "kind": ["a", "b", "a"]})
    in_turn = few(rows, tell=told.append, test=test)
    held_out = few(rows, hold_out_share=0.4, ngrams=1 << 14)
    for trained in (in_turn, held_out):
        assert trained.model.card["held_out_accuracy"] < 0.6
    assert in_turn.model.card["copies"] == {"same text": 300, "nearly the same text": 2}
    notes = [what.text for what in told if isinstance(what, Note)]
    assert notes[0].startswith("300 of 302 rows have the same text as another row")
    assert notes[1].startswith("2 of 302 rows have nearly the same text as another row")
    assert notes[2].startswith("2 of 3 test rows have the same text as a row of the training data, 0 more")


def test_one_text_is_too_few() -> None:
    for options in ({}, {"multi_label": True, "label_separator": "|"}):
        with pytest.raises(UsageError, match="have the same text"):
            few(pa.table({"text": ["x"] * 2, "kind": ["a", "b|c"]}), **options)


def test_labels_that_no_n_gram_tells_make_a_model_that_can_be_saved(tmp_path: Path) -> None:
    """Words that no row has get the weight of the median n-gram, from word vectors."""
    pytest.importorskip("wordllama")
    texts, kinds = np.repeat(["good movie", "bad film"], 50), np.tile(["a", "b"], 50)
    model = few(pa.table({"text": texts, "kind": kinds}), vectors="wordllama").model
    model.save(tmp_path / "model.safetensors")
    scores = load(tmp_path / "model.safetensors", device="cpu").predict_proba(["good movie"])
    assert scores == pytest.approx(np.full((1, 2), 0.5), abs=0.01)


def test_balanced_classes_weigh_the_same() -> None:
    """For texts that say nothing, the model gives the frequent class, or either class if they are balanced."""
    rows, texts = noise(120), articles(100, seed=6)["text"].to_pylist()
    rare = [load(few(rows, balanced=on).model, device="cpu").predict(texts).count("b") for on in (False, True)]
    assert rare[0] < 25 < rare[1]


@pytest.mark.slow
def test_network_and_n_grams_are_added() -> None:
    """They are added as logits. An impossible number of buckets is refused."""
    rows = articles(120)
    model = few(rows, recipe=QUICK, hold_out_share=0.0, dtype="float32").model
    assert model.has_network
    assert model.cascade is None  # without held-out rows, no margin can be fitted
    assert model.ngrams is not None
    texts = Texts.of([text.encode() for text in rows["text"].to_pylist()])
    found = load(model, device="cpu").predict_proba(rows["text"].to_pylist())
    without = load(replace(model, ngrams=None), device="cpu").predict_proba(rows["text"].to_pylist())
    moved = np.log(found / without) * model.temperature - scores(texts.data, texts.offsets, model.ngrams)
    assert np.ptp(moved, axis=1).max() < 1e-3
    with pytest.raises(UsageError, match="a power of two"):
        few(rows, ngrams=1000)


def test_a_network_begins_with_another_and_reads_as_that_does(small_model: Model) -> None:
    """All layers but the last are kept. With almost no learning rate they stay the same, up to the rounding of AdamW's
    decay.
    """
    recipe = replace(QUICK, epochs=1, learning_rate=1e-9)
    model = train(
        articles(40), text_column="text", label_column="kind", init=small_model, recipe=recipe, ngrams=0, device="cpu",
        dtype="float32",
    ).model  # fmt: skip
    assert (model.alphabet, model.length, model.frame) == (small_model.alphabet, small_model.length, small_model.frame)
    for name, tensor in model.tensors.items():
        if not name.startswith("fc3."):
            assert np.abs(tensor - small_model.tensors[name]).max() <= 1e-6, name
    with pytest.raises(UsageError, match="was trained with the length"):
        few(articles(40), init=small_model, length=small_model.length + 1)


def test_a_loss_that_does_not_move_is_told_once_with_what_helps() -> None:
    told: list[object] = []
    stuck = Stuck(told.append, np.array([0, 1] * 50), 2, Recipe(epochs=40))
    for number in range(1, 20):
        stuck(Epoch(number, 0.693, 0.5))
    notes = [what.text for what in told if isinstance(what, Note)]
    assert len(told) == 20
    assert len(notes) == 1
    assert "after 4 of 40 epochs" in notes[0]
    assert "a learning rate of 0.0001" in notes[0]
    told.clear()
    moving = Stuck(told.append, np.array([0, 1] * 50), 2, Recipe(epochs=40))
    moving(Epoch(10, 0.6, 0.7))
    assert told == [Epoch(10, 0.6, 0.7)]


@pytest.mark.slow
# Few held-out rows, and many.
@pytest.mark.parametrize("rows", [25, 400])
def test_a_network_that_is_worse_never_makes_the_model_worse(rows: int) -> None:
    """The combination is hardly ever worse than n-grams alone on rows that did not decide about it."""
    worse = lost = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = rng.integers(0, 3, rows + 2000)
        branch = np.eye(3)[truth] * 2 + rng.normal(size=(rows + 2000, 3))
        network = rng.normal(size=(rows + 2000, 3)) * rng.choice([0.1, 1, 10])
        factor, its = factors(network[:rows], branch[:rows], truth[:rows])
        right = (factor * network + its * branch).argmax(axis=1) == truth
        alone = branch.argmax(axis=1) == truth
        worse += bool(factor)
        lost += alone[rows:].mean() - right[rows:].mean() > 0.005
    assert worse <= 3
    assert lost <= 1


def test_a_network_with_which_rows_are_likelier_is_kept_though_one_less_is_right() -> None:
    rng = np.random.default_rng(9)
    truth = rng.integers(0, 3, 976)
    branch = np.eye(3)[truth] * 4 + rng.normal(size=(976, 3)) * 1.2
    network = np.eye(3)[truth] * 0.5 + rng.normal(size=(976, 3))
    factor, its = factors(network, branch, truth)
    right = ((factor * network + its * branch).argmax(axis=1) == truth).sum()
    assert factor > 0.4
    assert right < (branch.argmax(axis=1) == truth).sum()
    noise = rng.normal(size=(976, 3))
    assert factors(noise, branch, truth)[0] == 0 < factors(noise, branch, truth, always=True)[0]


def test_rare_classes_and_fits_are_told() -> None:
    rows = articles(200)
    kinds = ["other" if row < 3 else kind for row, kind in enumerate(rows["kind"].to_pylist())]
    told: list[object] = []
    few(rows.set_column(1, "kind", pa.array(kinds)), tell=told.append, vectors=None)
    (odd,) = next(what.found for what in told if isinstance(what, Oddities))
    assert (odd.what, odd.rows, odd.which) == ("fewer than 20 rows of a class", 3, "'other' 3")
    assert "--balanced" not in odd.remedy
    fits = [what for what in told if isinstance(what, Fit)]
    assert [fit.done for fit in fits] == list(range(1, len(fits) + 1))
    assert {fit.most for fit in fits} == {55}  # five folds, nine strengths and two shares


def test_of_several_labels_the_better_network_counts_too() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random((500, 4)) < 0.3
    good, bad = np.where(truth, 2, -2) + rng.normal(size=(500, 4)), 5 * rng.normal(size=(500, 4))
    assert factors(bad, good, truth)[0] == 0
    network, branch = factors(good, bad, truth)
    assert network > 1 > 0.1 > branch


def test_factors_find_the_better_of_two() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 4000)
    good = np.eye(3)[truth] * 2 + rng.normal(size=(4000, 3))
    assert factors(good, rng.normal(size=(4000, 3)), truth)[0] > 1
    assert factors(np.empty((0, 3)), np.empty((0, 3)), np.empty(0, np.int64)) == (0.5, 0.5)


@pytest.mark.parametrize("kind", ["one label", "two classes", "several labels", "soft"])
def test_the_linear_model_has_the_least_loss(kind: str) -> None:
    """SciPy on dense arrays gives the least loss. Rows are weighted, and half of the features are dense."""
    rng = np.random.default_rng(3)
    rows, classes, strength = 60, 2 if kind == "two classes" else 3, 0.05
    features, weights = rng.normal(size=(rows, 8)), rng.uniform(0.5, 1.5, rows)
    truth = np.eye(classes)[np.where(features[:, 0] > 0.3, 1, 0) + (kind != "two classes") * (features[:, 5] > 0)]
    if kind == "several labels":
        truth = np.maximum(truth, truth[::-1])
    elif kind == "soft":
        truth = 0.8 * truth + 0.2 * rng.dirichlet(np.ones(classes), rows)
    found = Fitter(sp.csr_array(features[:, :4]), truth, weights, features[:, 4:]).fit(strength)
    every = np.column_stack([features, np.ones(rows)])

    def loss(flat: np.ndarray) -> float:
        of = flat.reshape(9, classes)
        short = truth * np.maximum(1 - every @ of, 0) ** 2 + (1 - truth) * np.maximum(1 + every @ of, 0) ** 2
        return float((weights[:, None] * short).sum() / rows + strength / 2 * (flat**2).sum())

    least = minimize(loss, np.zeros(9 * classes), options={"gtol": 1e-7}).x.reshape(9, classes)
    assert np.vstack([found.weights, found.of_dense, found.bias]) == pytest.approx(least, abs=2e-3)
    alike = ProductFitter((every @ every.T).astype(np.float32), truth, weights)
    alike.fit(10 * strength)
    assert every.T @ alike.fit(strength) == pytest.approx(least, abs=2e-3)
    arrays = (each.astype(np.float32) for each in (every, every.T, truth, weights[:, None]))
    by_newton = NewtonFitter(*arrays)
    by_newton.fit(10 * strength)
    assert by_newton.fit(strength) == pytest.approx(least, abs=2e-3)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_fit_that_begins_far_off_gets_there(classes: int) -> None:
    """There are more rows than words, no words shared by classes, and almost no penalty: Newton's first steps lead
    astray.
    """
    rng = np.random.default_rng(5)
    truth = rng.integers(classes, size=400)
    words = np.where(rng.random((400, 8)) < 0.4, 5 * classes + rng.integers(3, size=(400, 8)), 5 * truth[:, None])
    words = np.where(words < 5 * classes, words + rng.integers(5, size=(400, 8)), words)
    counts = np.apply_along_axis(np.bincount, 1, words, minlength=5 * classes + 3).astype(float)
    features = counts / np.linalg.norm(counts, axis=1, keepdims=True)
    products = (1 + features @ features.T).astype(np.float32)
    given = products @ ProductFitter(products, np.eye(classes)[truth], np.ones(400)).fit(3e-6)
    assert np.mean(given.argmax(axis=1) == truth) >= 0.99  # about one row in a hundred has common words only


@pytest.mark.slow
def test_processes_fit_to_the_bits_of_one_and_tell_how_they_ended() -> None:
    rng = np.random.default_rng(4)
    features = sp.random_array((300, 50), density=0.2, format="csr", rng=rng)
    truth = np.eye(5)[rng.integers(0, 5, 300)]
    for problem in (
        Problem(features, truth, np.ones(300), one_label=True),
        Problem(features, 0.8 * truth + 0.04, rng.uniform(0.5, 1.5, 300), one_label=False),
    ):
        processes = Processes(problem, 2)
        for strength in (0.1, 0.001):
            for part, (weights, bias) in zip(problem.parts, processes.fit(problem.parts, strength), strict=True):
                own_weights, own_bias = problem.fit(part, strength)
                assert np.array_equal(weights, own_weights)
                assert np.array_equal(bias, own_bias)
    children_of(os.getpid(), "broadsheet.pipeline.train.linear")[0].kill()
    with pytest.raises(BroadsheetError, match="a process that fits n-grams was ended by SIGKILL"):
        processes.fit(problem.parts, 0.1)


@pytest.mark.slow
def test_the_command_says_what_it_does(broadsheet_in_process: Command, tmp_path: Path) -> None:
    pa_csv.write_csv(articles(80), tmp_path / "rows.csv")
    options = ["--label-column", "kind", "--device", "cpu", "--ngrams", "16384", "--length", str(LENGTH)]
    result = broadsheet_in_process("train", tmp_path / "rows.csv", *options, "-o", tmp_path / "m.safetensors")
    assert result.returncode == 0, result.stderr
    assert "the model has n-grams only" in result.stderr
    assert "on the same 80 rows: always the most frequent class" in result.stderr
