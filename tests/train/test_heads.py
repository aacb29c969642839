"""Several label columns in one model: each head gives what a model of it alone would, and one pass computes
all heads.
"""

from __future__ import annotations

import json
import random
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from conftest import Command, random_model
from distributed import Client
from numpy.typing import NDArray
from training import one_thread

from broadsheet import pipeline
from broadsheet.pipeline import ModelError, UsageError, classify, heads_of, load_model
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.evaluation.evaluate import evaluate
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.ngrams import Kinds, NGrams, scores
from broadsheet.pipeline.train import Recipe, Trained, train
from broadsheet.pipeline.train.linear import Fitter, ProductFitter
from broadsheet.pipeline.train.objective import OneLabel, SeveralColumns

torch = pytest.importorskip("torch")

__all__ = ["one_thread"]  # a fixture that every test here uses too

CLASSES = {"topic": ("sport", "space", "money", "war"), "tone": ("good", "bad"), "size": ("war", "bad", "2")}
HEADS = tuple((name, len(classes)) for name, classes in CLASSES.items())
TEXTS = [f"Article {i} of the day, on {'sport' if i % 3 else 'a café, and money'} " * (1 + i % 5) for i in range(70)]
NEARLY = 1e-6
WORDS = {
    "topic": {"sport": "match team goal coach", "space": "orbit comet star moon", "money": "bank stock price loan"},
    "tone": {"good": "great lovely happy bright", "bad": "awful poor sad grim"},
}


@pytest.fixture(scope="module", params=["network", "n-grams", "both"])
def both(request: pytest.FixtureRequest) -> Model:
    """A random model with three heads."""
    classes = tuple(f"{name}: {label}" for name, labels in CLASSES.items() for label in labels)
    model = replace(random_model(seed=4, length=123, classes=len(classes)), classes=classes, heads=HEADS, name="both")
    if request.param == "network":
        return replace(model, temperature=1.7)
    rng = np.random.default_rng(0)
    table = rng.integers(-3000, 3000, (1 << 12, len(classes) + 1)).astype(np.int16)
    table[:, -1] = np.abs(table[:, -1])
    ngrams = NGrams(Kinds(2, (2, 4), 200), table, rng.random((2, len(classes)), np.float32) / 50)
    alone = {} if request.param == "both" else {"tensors": {"fc3.bias": model.tensors["fc3.bias"]}}
    return replace(model, ngrams=ngrams, **alone)


def logits_of(model: Model, texts: list[str]) -> NDArray[np.float64]:
    given = Texts.of([text.encode() for text in texts])
    if model.has_network:
        ids = encode(given.data, given.offsets, model.alphabet, model.length).ids
        found = reference.forward(ids, reference.prepare(model)).astype(np.float64)
    else:
        found = np.tile(model.tensors["fc3.bias"].astype(np.float64), (len(texts), 1))
    return found if model.ngrams is None else found + scores(given.data, given.offsets, model.ngrams)


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.slow
def test_each_head_has_the_softmax_of_its_own_logits(both: Model, client: Client) -> None:
    rows = classify(TEXTS, model=both, client=client, chunk_size=32, scores=True, top_k=2)
    table, logits, first = rows.to_arrow(), logits_of(both, TEXTS) / both.temperature, 0
    for name, classes in CLASSES.items():
        expected = softmax(logits[:, first : first + len(classes)])
        first += len(classes)
        found = np.column_stack([table[f"{name}_score_{label}"] for label in classes])
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert table[f"{name}_label"].to_pylist() == [classes[i] for i in expected.argmax(axis=1)]
        assert [best[0] for best in table[f"{name}_top_labels"].to_pylist()] == table[f"{name}_label"].to_pylist()
    assert [each.name for each in rows.models] == list(CLASSES)


def same(found: pa.Table, expected: pa.Table) -> None:
    """Assert that tables are the same up to the rounding of scores."""
    assert found.schema == expected.schema
    for name in expected.column_names:
        if "score" not in name:
            assert found[name].equals(expected[name]), name
            continue
        both = (table[name].combine_chunks() for table in (found, expected))
        ours, theirs = (c.flatten() if pa.types.is_list(c.type) else c for c in both)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=NEARLY, err_msg=name)


@pytest.mark.slow
# One window, overlapping windows whose scores are averaged, and the best of several.
@pytest.mark.parametrize("windows", [{}, {"windows": 3, "overlap": 20}, {"windows": 4, "window_score": "best"}])
def test_a_job_is_that_of_its_heads_as_models(both: Model, client: Client, windows: dict[str, object]) -> None:
    options = {"client": client, "chunk_size": 32, "top_k": 3, "scores": True, **windows}
    same(
        classify(TEXTS, model=both, **options).to_arrow(),
        classify(TEXTS, model=heads_of(both), **options).to_arrow(),
    )
    plain = {"client": client, "where": "tone_label == 'good' and topic_score > 0.3", **windows}
    same(classify(TEXTS, model=both, **plain).to_arrow(), classify(TEXTS, model=heads_of(both), **plain).to_arrow())


@pytest.mark.slow
def test_int8_beside_another_model(client: Client) -> None:
    model = random_model(seed=4, length=123, classes=4)
    names = ("a: x", "a: y", "b: x", "b: z")
    both = pipeline.quantise(replace(model, classes=names, heads=(("a", 2), ("b", 2))), TEXTS)
    options = {"client": client, "precision": "int8", "device": "cpu", "scores": True}
    other = replace(pipeline.quantise(random_model(seed=5, length=123), TEXTS), name="other")
    found = classify(TEXTS, model=[both, other], **options)
    same(found.to_arrow(), classify(TEXTS, model=[*heads_of(both), other], **options).to_arrow())
    assert found.to_arrow().column_names[2:6] == ["a_label", "a_score", "a_score_x", "a_score_y"]


@pytest.mark.slow
def test_one_engine_computes_a_chunk_once_for_all_heads(both: Model, client: Client) -> None:
    def keys() -> set[str]:
        return {*import_module("broadsheet.pipeline.labelling.engines").ENGINES.engines}

    bias = {"fc3.bias": both.tensors["fc3.bias"] + np.float32(0.5)}  # no other test has loaded these heads
    model, before = replace(both, tensors={**both.tensors, **bias}), client.run(keys)
    report = classify(TEXTS, model=model, client=client, chunk_size=35)
    new = {key for worker, held in client.run(keys).items() for key in held - before[worker]}
    assert [key.partition("-")[0] for key in new] == [model.digest[:16]]
    assert [span.name for span in report.run.timeline.spans].count("kernels") == 2  # one for each chunk


def test_heads_survive_the_file_and_damage_is_noticed(both: Model, tmp_path: Path) -> None:
    again = Model.from_bytes(both.to_bytes())
    assert (again.heads, again.digest) == (HEADS, both.digest)
    assert replace(both, heads=None).digest != both.digest
    for heads in ((), HEADS[:2], (("topic", 9),), (*HEADS[:2], ("topic", 3)), (("topic", 3), ("tone", 3), HEADS[2])):
        with pytest.raises(ModelError, match=r"its heads|of the head"):
            replace(both, heads=heads)
    with pytest.raises(ModelError, match="heads"):
        replace(both, heads=(("topic", 8), ("size", 1)))
    with pytest.raises(ModelError, match="no thresholds"):
        replace(both, temperature=1.0, thresholds=(0.5,) * 9)
    data = both.to_bytes()
    for before, after in ((b'[[\\"topic\\", 4]', b'[[\\"topic\\", 3]'), (b'[[\\"topic\\", 4]', b'[[\\"topik\\", 4]')):
        assert data.count(before) == 1
        with pytest.raises(ModelError):
            Model.from_bytes(data.replace(before, after))


@pytest.mark.slow
def test_what_takes_one_model_names_the_heads_and_a_remedy(both: Model, tmp_path: Path) -> None:
    both.save(tmp_path / "both.safetensors")
    for refused in (pipeline.load, pipeline.export_onnx, pipeline.torch_module):
        with pytest.raises(UsageError, match=r"heads topic, tone, size, and .*heads_of"):
            refused(both, *([tmp_path / "x.onnx"] if refused is pipeline.export_onnx else []))  # type: ignore[operator]
    with pytest.raises(UsageError, match="no head 'kind': its heads are topic, tone, size"):
        evaluate(both, pa.table({"text": TEXTS}), label_column="kind")
    if both.has_network:
        with pytest.raises(UsageError, match="which need its network: leave out"):
            classify(TEXTS, model=both, network="none")
    with pytest.raises(UsageError, match="two models are called 'tone'"):
        classify(TEXTS, model=[both, replace(random_model(length=123), name="tone.safetensors")])
    tone = heads_of(tmp_path / "both.safetensors")[1]
    with closing(pipeline.load(tone, device="cpu")) as classifier:
        expected = softmax(logits_of(tone, TEXTS) / tone.temperature).argmax(axis=1)
        assert classifier.predict(TEXTS) == [tone.classes[i] for i in expected]


def rows(count: int, seed: int = 0, noise: float = 0.15) -> pa.Table:
    """Return texts of a topic and a tone, with some wrong labels."""
    rng = random.Random(seed)
    made: dict[str, list[str]] = {"text": [], "topic": [], "tone": []}
    for _ in range(count):
        truth = {name: rng.choice(list(words)) for name, words in WORDS.items()}
        words = [word for name, label in truth.items() for word in rng.choices(WORDS[name][label].split(), k=3)]
        made["text"].append(" ".join(rng.sample(words, 6) + rng.choices(["the", "of", "and", "in", "a"], k=4)))
        for name, label in truth.items():
            made[name].append(rng.choice(list(WORDS[name])) if rng.random() < noise else label)
    return pa.table(made)


def with_nulls(table: pa.Table) -> pa.Table:
    """Drop the topic of every third row and the tone of every fourth, so that some rows lack both."""
    for name, every in (("topic", 3), ("tone", 4)):
        values = [None if row % every == 0 else label for row, label in enumerate(table[name].to_pylist())]
        table = table.set_column(table.column_names.index(name), name, pa.array(values, pa.string()))
    return table


def few(table: pa.Table, label_column: str | list[str], **options: object) -> Trained:
    options = {"device": "cpu", "length": 123, "ngrams": 1 << 14, "vectors": None, **options}
    return train(table, text_column="text", label_column=label_column, **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("table", [rows(400), with_nulls(rows(500))], ids=["whole", "nulls"])
@pytest.mark.parametrize("balanced", [False, True])
def test_each_head_is_as_good_as_a_model_of_its_own(table: pa.Table, balanced: bool) -> None:
    test = rows(400, seed=1, noise=0)
    trained = few(table, ["topic", "tone"], balanced=balanced, test=with_nulls(test))
    assert trained.model.heads == (("topic", 3), ("tone", 2))
    assert not trained.model.has_network
    for column in WORDS:
        alone = few(table.filter(table[column].is_valid()), column, balanced=balanced)
        ours, theirs = (evaluate(m, test, label_column=column) for m in (trained.model, alone.model))
        assert ours.confusion.accuracy > theirs.confusion.accuracy - 0.03
        assert ours.confusion.accuracy > 0.9
        assert abs(ours.reliability.expected_error - theirs.reliability.expected_error) < 0.06
        figures = trained.model.card["heads"][column]
        assert trained.compared_columns is not None
        assert figures["held_out_accuracy"] == pytest.approx(trained.compared_columns[column].model, abs=1e-6)
        assert figures["compared with"]["rows"] == table[column].is_valid().to_pylist().count(True)
        told = evaluate(trained.model, with_nulls(test), label_column=column).confusion
        assert figures["test"]["rows"] == told.rows
        assert figures["test"]["accuracy"] == pytest.approx(told.accuracy, abs=1e-6)
        assert figures["test"]["accuracy interval"] == pytest.approx(told.interval, abs=1e-6)


@pytest.mark.slow
def test_a_network_learns_all_columns(tmp_path: Path) -> None:
    recipe = Recipe(epochs=3, batch_size=32, learning_rate=3e-3, dropout=0, input_dropout=0, warmup=0.2,
                    weight_decay=0, dropped_words=0, random_characters=0, erased_spans=0, shift=0, cut=0)  # fmt: skip
    table, test = with_nulls(rows(160, noise=0)), rows(100, seed=1, noise=0)
    trained = few(table, ["topic", "tone"], recipe=recipe, ngrams=1 << 12, hold_out_share=0.3, keep_network=True)
    model = trained.model
    assert model.has_network
    assert model.cascade is None
    model.save(tmp_path / "m.safetensors")
    found = classify(test["text"].to_pylist(), model=tmp_path / "m.safetensors").to_arrow()
    for column in WORDS:
        assert np.mean(np.array(found[f"{column}_label"]) == np.array(test[column])) > 0.9
    short = replace(recipe, epochs=1)
    alone = few(table.slice(0, 80), ["topic", "tone"], recipe=short, ngrams=0, hold_out_share=0.3, init=model).model
    assert alone.heads == model.heads
    assert alone.ngrams is None
    assert np.isfinite(alone.card["heads"]["tone"]["held_out_accuracy"])


def test_the_loss_is_the_sum_over_columns_of_the_rows_that_have_a_label() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(40, 5), torch.stack([torch.randint(0, 3, (40,)), torch.randint(0, 2, (40,))], 1)
    labels[::3, 0], labels[::7, 1] = -1, -1
    weights = (0.5, 2.0, 1.0)
    objective = SeveralColumns((OneLabel(0.1, weights), OneLabel(0.2)), (3, 2))
    expected = 0.0
    for part, own, smoothing, of_classes in (
        (logits[:, :3], labels[:, 0], 0.1, torch.tensor(weights)),
        (logits[:, 3:], labels[:, 1], 0.2, None),
    ):
        loss = torch.nn.functional.cross_entropy(part, own, of_classes, ignore_index=-1, label_smoothing=smoothing)
        expected += loss.item()
    assert objective.loss(logits, labels).item() == pytest.approx(expected)
    right = objective.right(logits, labels)
    for row in range(40):
        best = logits[row, :3].argmax(), logits[row, 3:].argmax()
        assert right[row] == all(int(label) in (-1, int(found)) for label, found in zip(labels[row], best, strict=True))
    assert objective.loss(logits, torch.full_like(labels, -1)).item() == 0


def test_a_weight_of_zero_leaves_a_row_out_of_a_class() -> None:
    rng = np.random.default_rng(0)
    features, truth = rng.normal(size=(60, 8)), np.eye(3)[rng.integers(0, 3, 60)]
    weights = np.ones((60, 3))
    weights[:20, 1] = 0
    products = (features @ features.T + 1).astype(np.float32)

    def loss(of_features: np.ndarray, bias: float) -> float:
        """Return the squared hinge loss and the penalty of a class, which the fits minimise."""
        margins = (2 * truth[:, each] - 1) * (features @ of_features + bias)
        missing = np.maximum(0, 1 - margins) ** 2 * weights[:, each] / (60 * 0.01)
        return float(missing.sum() + (of_features @ of_features + bias**2) / 2)

    for each in range(3):
        kept = np.flatnonzero(weights[:, each])
        alone = Fitter(sp.csr_array(features[kept]), truth[kept][:, [each]], np.ones(len(kept)) * len(kept) / 60)
        expected = alone.fit(0.01)
        found = Fitter(sp.csr_array(features), truth, weights).fit(0.01)
        np.testing.assert_allclose(found.weights[:, each], expected.weights[:, 0], atol=1e-3)
        of_rows = ProductFitter(products, truth, weights).fit(0.01)[:, each]
        assert not of_rows[weights[:, each] == 0].any()
        least = loss(expected.weights[:, 0], expected.bias[0])
        assert loss(features.T @ of_rows, of_rows.sum()) == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"multi_label": True}, r"several label columns \(topic, tone\) there are no several labels a text"),
        ({"classes": ["a", "b"]}, "there are no classes by name"),
        ({"target_column": "score"}, "there are no numbers"),
        ({"label_column": ["topic", "topic"]}, "named twice: topic, topic"),
        ({"label_column": ["topic", "text"]}, "'text' is a label"),
        ({"label_column": ["topic", "same"]}, "column 'same' has one class only"),
    ],
)
def test_what_does_not_go_with_several_columns(options: dict[str, object], message: str) -> None:
    table = rows(40).append_column("same", pa.array(["x"] * 40))
    with pytest.raises(UsageError, match=message):
        few(table, **{"label_column": ["topic", "tone"], **options})  # type: ignore[arg-type]


def test_the_commands(broadsheet_in_process: Command, tmp_path: Path) -> None:
    for name, seed in (("train", 0), ("test", 1)):
        pa_csv.write_csv(with_nulls(rows(200, seed)), tmp_path / f"{name}.csv")
    model, columns = tmp_path / "both.safetensors", ["--label-column", "topic", "--label-column", "tone"]
    how = ["--device", "cpu", "--ngrams", 1 << 12, "--vectors", "none"]
    done = broadsheet_in_process(
        "train", tmp_path / "train.csv", *columns, "-o", model, *how, "--test", tmp_path / "test.csv"
    )
    assert done.returncode == 0, done.stderr
    card = load_model(model).card["heads"]
    learned = load_model(model).card["data"]
    assert learned["rows"] + learned["rows_without_label"] == 200  # rows that have neither label teach nothing
    for said in (f"{learned['rows']} texts of topic (3 classes), tone (2 classes)", *(
        f"{what}: {name} {share:.2%} (95% interval "
        for name in WORDS
        for what, share in (
            ("cross-validated", card[name]["held_out_accuracy"]),
            ("test", card[name]["test"]["accuracy"]),
        )
    )):  # fmt: skip
        assert said in done.stderr
    shown = broadsheet_in_process("inspect", model)
    assert "topic 3: money, space, sport; tone 2: bad, good" in " ".join(shown.stdout.split())
    about = json.loads(broadsheet_in_process("inspect", model, "--json").stdout)
    assert about["heads"] == {"topic": ["money", "space", "sport"], "tone": ["bad", "good"]}
    out = tmp_path / "out"
    done = broadsheet_in_process("classify", tmp_path / "test.csv", "--model", model, "-o", out, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    read = pq.read_table(out / "parts")
    assert {*read["topic_label"].to_pylist()} == {"money", "space", "sport"}
    assert {*read["tone_label"].to_pylist()} == {"bad", "good"}
    measured = broadsheet_in_process("evaluate", model, tmp_path / "test.csv", "--label-column", "tone", "--json")
    assert json.loads(measured.stdout)["rows"] == card["tone"]["test"]["rows"]
    assert json.loads(measured.stdout)["accuracy"] == pytest.approx(card["tone"]["test"]["accuracy"], abs=1e-6)
    refused = broadsheet_in_process("evaluate", model, tmp_path / "test.csv", "--label-column", "text")
    assert "its heads are topic, tone" in " ".join(refused.stderr.split())
