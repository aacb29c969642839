"""Training: it learns, resumes where it stopped with the same bits, and reports what is wrong with the labels."""

from __future__ import annotations

import itertools
import json
import random
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
import safetensors
import safetensors.numpy
from conftest import Command, random_model
from training import LENGTH, QUICK, STILL, TOPICS, articles, one_thread, quick_train  # noqa: F401 - a fixture

from broadsheet.pipeline import calibrate
from broadsheet.pipeline.errors import BroadsheetError, UsageError
from broadsheet.pipeline.evaluation.rows import hold_out
from broadsheet.pipeline.model.alphabet import Alphabet
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import Frame, layer_table
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.train import Epoch, Recipe, Step, Trained
from broadsheet.pipeline.train.branch import folds_of
from broadsheet.pipeline.train.data import ArticleReader, read_labelled
from broadsheet.pipeline.train.loop import augment
from broadsheet.pipeline.train.network import CharCNN, predict
from broadsheet.pipeline.train.objective import OneLabel
from broadsheet.pipeline.train.packed import PackedCNN
from broadsheet.pipeline.train.recipe import WITH_SPACE, recipe_for
from broadsheet.pipeline.train.teachers import hold_out_labelled

torch = pytest.importorskip("torch")


def test_balanced_losses_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    logits, labels, weights = torch.randn(50, 3), torch.randint(0, 3, (50,)), (0.5, 2.0, 1.0)
    theirs = torch.nn.functional.cross_entropy(logits, labels, torch.tensor(weights), label_smoothing=0.1)
    assert OneLabel(0.1, weights).loss(logits, labels).item() == pytest.approx(theirs.item())


@pytest.mark.slow
def test_a_few_hundred_rows_are_learnt() -> None:
    recipe = replace(QUICK, epochs=5, learning_rate=3e-3, weight_decay=0.0)
    trained = quick_train(articles(300), recipe, test=articles(60, seed=1))
    model = trained.model
    assert model.classes == ("money", "space", "sport")
    assert model.dtype == "float16"
    assert [epoch.number for epoch in trained.history] == list(range(1, 6))
    assert trained.history[-1].loss < trained.history[0].loss / 2
    card = model.card
    assert card["held_out_accuracy"] == 1.0
    assert card["test"]["accuracy"] == 1.0
    assert card["data"]["rows"] == 300
    assert card["data"]["held_out_rows"] == 60
    assert sum(card["data"]["rows_by_class"].values()) == 300
    assert len(card["data"]["files"][0]["sha256"]) == 64
    assert card["recipe"] == recipe.to_dict()
    assert (model.frame, card["frame"]) == ("text", "text")
    assert list(model.scales.steps) == ["conv2", "conv3", "conv4", "conv5", "conv6"]
    assert card["scales found on"] == {"rows": 240}
    assert Model.from_bytes(model.to_bytes()).card == card


@pytest.mark.slow
def test_small_batches_of_few_rows_do_not_leave_the_network_blind() -> None:
    """The learning rate is the recipe's. Without regularisation, every article once got the same answer, and the loss
    of two classes stayed at 0.693 for good.
    """
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(300)]
    kinds = ["a", "b"] * 160
    texts = [" ".join(rng.choices(words[:200] if kind == "a" else words[100:], k=8)) for kind in kinds]
    plain = Recipe(epochs=4, batch_size=16, dropout=0, input_dropout=0, weight_decay=0, label_smoothing=0, **STILL)
    trained = quick_train(pa.table({"text": texts, "kind": kinds}), plain, hold_out_share=0)
    assert trained.history[-1].loss < 0.3


@pytest.mark.slow
def test_scores_are_calibrated_on_the_rows_held_out() -> None:
    rows = pa.concat_tables([articles(180), articles(60)])  # 60 texts occur twice
    rng = random.Random(2)
    kinds = [rng.choice(list(TOPICS)) if rng.random() < 0.3 else kind for kind in rows.column("kind").to_pylist()]
    noisy = rows.set_column(1, "kind", pa.array(kinds))
    model = quick_train(noisy, replace(QUICK, batch_size=16, weight_decay=0.0), hold_out_share=0.5).model
    assert model.card["temperature fitted on"]["rows"] == model.card["data"]["held_out_rows"]
    again = calibrate(model, noisy, label_column="kind", held_out=0.5)  # finds the same rows
    assert model.temperature == pytest.approx(again.temperature, rel=1e-3)
    assert model.temperature != 1


class Stop(Exception):
    pass


SHORT = Recipe(epochs=3, batch_size=16)
SIXTY = articles(60)


@pytest.fixture(scope="module")
def whole() -> Trained:
    """A run that is not interrupted."""
    torch.set_num_threads(1)
    return quick_train(SIXTY, SHORT, dtype="float32")


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(whole: Trained, tmp_path: Path) -> None:
    options = {"checkpoint_every": 1, "dtype": "float32"}
    path = tmp_path / "run.checkpoint"

    def stop(what: object) -> None:
        if isinstance(what, Epoch) and what.number == 2:
            raise Stop

    with pytest.raises(Stop):
        quick_train(SIXTY, SHORT, checkpoint=path, tell=stop, **options)
    torch.manual_seed(99)
    resumed = quick_train(SIXTY, SHORT, checkpoint=path, resume=True, **options)
    assert resumed.history == whole.history
    assert resumed.model.to_bytes() == whole.model.to_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 5])
def test_an_interrupted_run_leaves_a_checkpoint_and_ends_with_the_same_bits(
    whole: Trained, tmp_path: Path, at: int
) -> None:
    """The interruption comes within an epoch of three steps, or between two epochs."""
    options = {"checkpoint": tmp_path / "run.checkpoint", "dtype": "float32"}
    steps = itertools.count(1)

    def interrupt(what: object) -> None:
        if isinstance(what, Step) and next(steps) == at:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        quick_train(SIXTY, SHORT, tell=interrupt, **options)
    assert next(steps) == at + 1
    with pytest.raises(UsageError, match="resume=True"):
        quick_train(SIXTY, SHORT, **options)
    resumed = quick_train(SIXTY, SHORT, resume=True, **options)
    assert resumed.history == whole.history
    assert resumed.model.to_bytes() == whole.model.to_bytes()


@pytest.mark.slow
def test_a_checkpoint_is_safetensors_and_of_one_run_only(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    recipe = replace(QUICK, epochs=1, batch_size=16)
    rows = articles(40)
    with pytest.raises(UsageError, match="nothing to resume"):
        quick_train(rows, recipe, checkpoint=path, resume=True)
    quick_train(rows, recipe, checkpoint=path, checkpoint_every=1)
    with safetensors.safe_open(path, "np") as file:
        assert {key.partition("/")[0] for key in file.keys()} == {"weights", "average", "first", "second"}  # noqa: SIM118
    with pytest.raises(UsageError, match="differs in recipe, seed"):
        quick_train(rows, replace(recipe, dropout=0.5), seed=1, checkpoint=path, resume=True)
    with pytest.raises(UsageError, match="differs in frame"):
        quick_train(rows, recipe, frame="dense", checkpoint=path, resume=True)
    with pytest.raises(UsageError, match="differs in data"):
        quick_train(articles(40, seed=5), recipe, checkpoint=path, resume=True)
    old = {"format": "broadsheet-checkpoint/1", "job": {}, "steps": 2, "history": []}
    path.write_bytes(safetensors.numpy.save({}, {"about": json.dumps(old)}))
    with pytest.raises(UsageError, match="another version of Broadsheet"):
        quick_train(rows, recipe, checkpoint=path, resume=True)
    for about in ("[]", '{"format": "broadsheet-checkpoint/2", "job": 3}', "[" * 100_000, None):
        path.write_bytes(b"not safetensors" if about is None else safetensors.numpy.save({}, {"about": about}))
        with pytest.raises(UsageError, match="is not a checkpoint"):
            quick_train(rows, recipe, checkpoint=path, resume=True)


@pytest.mark.slow
def test_training_leaves_the_callers_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    quick_train(articles(40), replace(QUICK, epochs=1))
    assert torch.rand(1) == expected


@pytest.mark.slow
def test_a_run_that_diverges_stops_with_a_message() -> None:
    with pytest.raises(BroadsheetError, match="lower learning_rate="):
        quick_train(articles(64), replace(QUICK, learning_rate=1e30, warmup=0.0))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"text": ["a", "b"], "other": ["x", "y"]}), "kind"),
        (pa.table({"text": ["a", "b"], "kind": ["x", "x"]}), "one class only, 'x'"),
        (pa.table({"text": ["a", "b"], "kind": ["x", None]}), "one class only, 'x'"),
        (pa.table({"text": ["a", " "], "kind": ["", "y"]}), "no row to learn from: 1 have no text, 1 have no labels"),
        (pa.table({"text": ["a"] * 1001, "kind": range(1001)}), "1,001 classes"),
    ],
)
def test_bad_labels_are_told(table: pa.Table, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        quick_train(table)


def read(table: pa.Table, **options: object):
    return read_labelled(table, ArticleReader(("text",), Alphabet(WITH_SPACE), LENGTH), "kind", **options)


def test_labels_are_names_or_numbers() -> None:
    rows = pa.table({"text": list("abc"), "kind": [10, 9, 10]})
    assert read(rows).classes == ("9", "10")
    assert read(rows).labels.tolist() == [1, 0, 1]
    named = read(pa.table({"text": list("abc"), "kind": ["2", "1", "1"]}), classes=("red", "blue"))
    assert named.labels.tolist() == [1, 0, 0]
    with pytest.raises(UsageError, match="holds '2', '1', which is none of red, blue"):
        read(pa.table({"text": list("abc"), "kind": ["2", "red", "1"]}), classes=("red", "blue"))
    with pytest.raises(UsageError, match=r"holds numbers \(3\), which are more than the 2 classes"):
        read(pa.table({"text": ["a"], "kind": ["3"]}), classes=("red", "blue"))


def test_unreadable_rows_are_left_out_and_counted() -> None:
    data = read(pa.table({"text": ["a", None, "b"], "kind": ["x", "y", "y"]}))
    assert (len(data), data.skipped) == (2, 1)
    assert data.about()["unreadable_rows"] == 1


def test_rows_are_held_out_class_by_class() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    fit, held = hold_out(labels, 0.1, np.arange(160))
    assert np.bincount(labels[held]).tolist() == [10, 5, 1]
    assert sorted([*fit, *held]) == list(range(160))


def test_rows_of_one_text_are_held_out_together_whatever_their_class() -> None:
    labels, texts = np.tile([0, 1, 1, 1], 50), np.repeat(np.arange(100), 2)
    fit, held = hold_out(labels, 0.2, texts)
    folds = folds_of(labels, texts)
    assert not set(texts[fit]) & set(texts[held])
    assert len(set(texts[held])) == 20
    assert sorted(np.concatenate(folds)) == list(range(200))
    assert sum(len(set(texts[fold])) for fold in folds) == 100
    taught = np.array([True, False] * 100)
    fit, held = hold_out_labelled(labels, taught, 0.2, texts)
    assert taught[held].all()
    assert not set(texts[fit]) & set(texts[held])


def test_recipe_settings() -> None:
    assert Recipe().with_settings(["epochs=3", "dropout=0.25"]) == Recipe(epochs=3, dropout=0.25)
    with pytest.raises(UsageError, match="a recipe, or settings"):
        quick_train(articles(4), settings=["epochs=3"])
    for setting, message in (("epoch=3", "no setting"), ("epochs=x", "an integer"), ("dropout=1", "below 1")):
        with pytest.raises(UsageError, match=message):
            Recipe().with_settings([setting])


def ids_of(text: str, alphabet: Alphabet, length: int) -> torch.Tensor:
    ids = [alphabet.symbols.find(c) if c in alphabet.symbols else alphabet.unknown for c in text]
    return torch.tensor([ids + [alphabet.padding] * (length - len(ids))], dtype=torch.uint8)


def text_of(ids: torch.Tensor, alphabet: Alphabet) -> str:
    marks = alphabet.symbols + "?" + "_"
    return "".join(marks[i] for i in ids.tolist())


@pytest.mark.parametrize("symbols", [WITH_SPACE, WITH_SPACE.replace(" ", "-", 1)[:59]])
def test_dropped_words_are_whole_words(symbols: str) -> None:
    alphabet = Alphabet(symbols)
    words = ["one", "two", "three", "four"] * 5
    article = ids_of(" ".join(words), alphabet, 120)
    torch.manual_seed(0)
    changed = augment(article.repeat(50, 1), alphabet, Recipe(**{**STILL, "dropped_words": 0.25}))
    assert changed.dtype == torch.uint8
    space = "?" if " " not in symbols else " "
    dropped = 0
    for row in changed:
        text = text_of(row, alphabet).rstrip("_")
        at = 0
        for word in words:
            found = text[at : at + len(word)]
            assert found in (word, "?" * len(word))
            dropped += found != word
            assert text[at + len(word) : at + len(word) + 1] in ("", space)
            at += len(word) + 1
    assert 0.15 < dropped / (50 * len(words)) < 0.35


def test_augmentation_moves_and_changes_within_its_bounds() -> None:
    alphabet = Alphabet(WITH_SPACE)
    article = ids_of("abcdefghij" * 5, alphabet, 80)
    torch.manual_seed(0)
    same = augment(article, alphabet, Recipe(**STILL))
    assert torch.equal(same, article)
    moved = augment(article.repeat(100, 1), alphabet, Recipe(**{**STILL, "shift": 9, "cut": 5}))
    texts = {text_of(row, alphabet) for row in moved}
    whole = "_" * 9 + "abcdefghij" * 5 + "_" * 40
    assert texts <= {whole[9 - move : 89 - move] if move >= 0 else whole[9 - move :][:80].ljust(80, "_")
                     for move in range(-5, 10)}  # fmt: skip
    assert len(texts) > 10
    noisy = augment(article.repeat(100, 1), alphabet, Recipe(**{**STILL, "random_characters": 0.5}))
    assert (noisy[:, 50:] == alphabet.padding).all()
    assert 0.4 < (noisy[:, :50] != article[:, :50]).float().mean() < 0.6
    erased = augment(article.repeat(100, 1), alphabet, Recipe(**{**STILL, "erased_spans": 1, "span_length": 7}))
    gone = (erased == alphabet.unknown).sum(1)
    assert gone.min() >= 1
    assert gone.max() == 7
    assert (erased[:, 50:] == alphabet.padding).all()


def test_the_network_is_the_reference(small_model: Model) -> None:
    from broadsheet.pipeline.model import reference

    rng = np.random.default_rng(0)
    model = random_model(seed=2, length=200, classes=7, symbols=WITH_SPACE[:64])
    for each in (small_model, replace(small_model, frame="text"), model, replace(model, frame="text")):
        ids = rng.integers(0, len(each.alphabet) + 2, (9, each.length)).astype(np.uint8)
        ids[np.arange(each.length) >= [[0], [1], [2], [9], [40], [each.length // 2], *[[each.length]] * 3]] = (
            each.alphabet.padding
        )
        network = CharCNN(each.layers, each.frame)
        network.load_tensors(each.tensors)
        found = predict(network, torch.from_numpy(ids)).numpy()
        assert np.abs(found - reference.forward(ids, reference.prepare(each))).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("frame", ["text", "dense"])
@pytest.mark.parametrize("length", [LENGTH, 131, 200])
def test_the_packed_network_is_the_plain_one(frame: Frame, length: int) -> None:
    """Logits and every gradient are equal in float64, for texts of all kinds of lengths, beside rows that no text
    needs.
    """
    layers = layer_table(30, length, 4)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 31, (9, length), dtype=torch.uint8, generator=generator)
    ends = torch.tensor([0, 1, 2, 9, 40, length // 2, length - 6, length - 1, length])
    ids[torch.arange(length) >= ends[:, None]] = 31
    labels = torch.randint(0, 4, (9,), generator=generator)
    torch.manual_seed(0)
    packed = PackedCNN(layers, frame, torch.float64).double()
    for parameter in packed.parameters():
        torch.nn.init.normal_(parameter, parameter.mean().item(), 0.05)
    plain = CharCNN(layers, frame, torch.float64).double()
    plain.load_state_dict(packed.state_dict())
    found = packed(ids, int(packed.units(ids).sum()) + 5)
    expected = plain(ids)
    assert (found - expected).abs().max() < 1e-12
    for logits in (found, expected):
        torch.nn.functional.cross_entropy(logits, labels).backward()
    for (name, ours), theirs in zip(packed.named_parameters(), plain.parameters(), strict=True):
        assert (ours.grad - theirs.grad).abs().max() < 1e-10 * theirs.grad.abs().max(), name


@pytest.mark.slow
def test_the_command_writes_a_model_that_classifies(broadsheet_in_process: Command, tmp_path: Path) -> None:
    pa_csv.write_csv(articles(48), tmp_path / "rows.csv")
    (tmp_path / "alphabet.txt").write_text("abcdefghijklmnopqrstuvwxyz ")
    arguments = ["train", "rows.csv", "--label-column", "kind", "-o", "topics.safetensors", "--epochs", "1"]
    arguments += ["--batch-size", "16", "--length", LENGTH, "--alphabet", "alphabet.txt", "--hold-out", "0.25"]
    arguments += ["--device", "cpu", "--note", "three topics", "--set", "dropout=0.5", "--test", "rows.csv"]
    run = broadsheet_in_process(*arguments, "--keep-network", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "48 texts of 3 classes, 12 of them held out" in run.stderr
    assert re.search(r"on CPU, fp32: 32 articles an epoch\n  an epoch takes about [\d.]+ s, 1 epochs", run.stderr)
    assert "epoch   1/1  loss 1." in run.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alphabet.txt", "rows.csv", "topics.safetensors"]
    about = json.loads(broadsheet_in_process("inspect", "topics.safetensors", "--json", cwd=tmp_path).stdout)
    assert about["alphabet"] == "abcdefghijklmnopqrstuvwxyz "
    assert about["classes"] == sorted(TOPICS)
    assert about["frame"] == "text"
    assert about["card"]["command"].startswith("broadsheet train rows.csv --label-column kind")
    assert about["card"]["note"] == "three topics"
    few = recipe_for(36, ["epochs=1", "batch_size=16", "dropout=0.5"])
    assert about["card"]["recipe"] == few.to_dict()
    assert few.learning_rate < Recipe().learning_rate
    labelled = broadsheet_in_process(
        *("classify", "rows.csv", "-o", "out", "--model", "topics.safetensors", "--json"),
        *("--device", "cpu", "--precision", "int8"),
        cwd=tmp_path,
    )
    assert json.loads(labelled.stdout)["rows_written"] == 48
    again = broadsheet_in_process(*arguments, cwd=tmp_path)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


@pytest.mark.slow
def test_n_grams_need_no_pytorch_and_the_command_says_that_the_network_does(
    broadsheet: Command, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    pa_csv.write_csv(articles(60), tmp_path / "rows.csv")
    arguments = ["train", tmp_path / "rows.csv", "--label-column", "kind", "-o", tmp_path / "m.safetensors"]
    run = broadsheet(*arguments, "--epochs", "1", env={"PYTHONPATH": str(tmp_path)})
    assert run.returncode == 2
    assert "'torch>=" in run.stderr.partition("pip install")[2]
    run = broadsheet(*arguments, "--vectors", "none", "--ngrams", 1 << 12, env={"PYTHONPATH": str(tmp_path)})
    assert run.returncode == 0, run.stderr
    assert load_model(tmp_path / "m.safetensors").card["held_out_accuracy"] > 0.9


@pytest.mark.slow
def test_the_training_curve(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from broadsheet.pipeline.train.progress import draw_curve, plot_curve

    figure = draw_curve([Epoch(n, 1 / n, 0.9 - 0.5 / n) for n in range(1, 40)])
    figure.draw_without_rendering()
    (legend,) = figure.legends
    for axes in figure.axes:
        assert not legend.get_window_extent().overlaps(axes.get_window_extent())  # the axes contain all curves
    for accuracy in (0.5, float("nan")):
        plot_curve([Epoch(n, 1 / n, accuracy) for n in range(1, 4)], tmp_path / "curve.png")
        assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
