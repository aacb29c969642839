"""A model whose network reads some texts only: which texts these are, and that no bit depends on other texts, on a CPU
and on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gpu import STACKS, needs_gpu, opened_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ngram_models import branch

from broadsheet.pipeline import classify, dry_run
from broadsheet.pipeline.classifier import load
from broadsheet.pipeline.engine.base import Predictions, Texts
from broadsheet.pipeline.engine.cpu import CpuEngine
from broadsheet.pipeline.errors import ModelError, UsageError
from broadsheet.pipeline.evaluation.evaluate import evaluate
from broadsheet.pipeline.evaluation.fitting import calibrate, fitted_cascade, labels_of
from broadsheet.pipeline.kernels.memory_plan import planned_bytes
from broadsheet.pipeline.model.cascade import Cascade, margins, needs_network
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.ngrams import Kinds, scores
from broadsheet.pipeline.model.several import Models, load_models
from broadsheet.pipeline.source.rows.limits import chunk_rows

WORDS = ["stocks", "fell", "monday", "oil", "rose", "home", "team", "won", "comet", "orbit", "12", "ü", "market"]


def of_both(model: Model, seed: int = 0) -> Model:
    """Return the model with n-grams, and with a margin that sends about half of random texts to the network."""
    ngrams = branch(Kinds(2, (3, 4), model.length + 40), len(model.classes), seed=seed)
    both = replace(model, frame="text", ngrams=ngrams, temperature=1.0 if model.thresholds else 1.3)
    bias = tuple(np.random.default_rng(seed).normal(size=len(model.classes)).tolist())
    texts = articles(200, seed)
    logits = np.array(bias, np.float32) + scores(texts.data, texts.offsets, ngrams)
    margin = float(np.median(margins(logits, model.thresholds)))
    return replace(both, cascade=Cascade(margin, 0.5, 0.9, bias, 1.0 if model.thresholds else 0.7))


def articles(count: int, seed: int = 0) -> Texts:
    rng = np.random.default_rng(seed)
    return Texts.of([" ".join(rng.choice(WORDS, rng.integers(0, 60))).encode() for _ in range(count)])


def rows_asked(model: Model, texts: Texts) -> np.ndarray:
    """Return which texts the network reads, by the specification."""
    assert model.ngrams is not None
    assert model.cascade is not None
    logits = np.array(model.cascade.bias, np.float32) + scores(texts.data, texts.offsets, model.ngrams)
    return needs_network(logits, model.cascade.margin, model.thresholds)


def assert_from_two(found: Predictions, all_of: Predictions, none: Predictions, rows: np.ndarray) -> None:
    """Assert that rows that the network reads have the bits of `all_of`, and the others those of `none`."""
    assert found.asked == rows.sum()
    assert np.array_equal(found.unknown_chars, all_of.unknown_chars)
    assert not none.unknown_chars.any()
    for name in ("labels", "scores", "all_scores", "n_chars", "truncated"):
        values, whole, alone = (getattr(each, name) for each in (found, all_of, none))
        assert np.array_equal(values[rows], whole[rows], equal_nan=True), name
        assert np.array_equal(values[~rows], alone[~rows], equal_nan=True), name


@pytest.fixture(scope="module", params=["one label", "several labels"])
def engines(small_model: Model, request: pytest.FixtureRequest) -> Iterator[list[CpuEngine]]:
    """Engines whose network reads some texts, all texts, and none."""
    model = small_model
    if request.param == "several labels":
        model = replace(model, thresholds=(0.2, 0.5, 0.7, 0.9)[: len(model.classes)])
    both = of_both(model)
    made = [CpuEngine(both.asking(network), 2) for network in ("uncertain", "all", "none")]
    yield made
    for engine in made:
        engine.close()


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 40), max_size=3), numbers=st.permutations(range(40)))
def test_a_text_depends_on_itself_alone(
    engines: list[CpuEngine], seed: int, cuts: list[int], numbers: list[int]
) -> None:
    """Neither the batch of a text nor its neighbours matter."""
    texts = articles(40, seed)
    some, whole, alone = (engine.classify(texts, 2, all_scores=True) for engine in engines)
    rows = rows_asked(engines[0].model, texts)
    assert_from_two(some, whole, alone, rows)
    for part in np.split(np.array(numbers), sorted(cuts)):
        given_texts = Texts.of([texts.data[texts.offsets[i] : texts.offsets[i + 1]].tobytes() for i in part])
        found = engines[0].classify(given_texts, 2, all_scores=True)
        assert found.asked == rows[part].sum()
        assert np.array_equal(found.all_scores, some.all_scores[part])  # type: ignore[index, arg-type]
        assert np.array_equal(found.labels, some.labels[part])


def test_ids_and_windows_are_asked_about_too(engines: list[CpuEngine]) -> None:
    model = engines[0].model
    texts = articles(30, 5)
    ids = texts.encoded(model.alphabet, model.length).ids
    of_ids = Texts(np.empty(0, np.uint8), np.empty(0, np.int64), ids)
    some, whole, alone = (engine.classify(of_ids, all_scores=True) for engine in engines)
    assert whole.unknown_chars.any()
    assert not alone.unknown_chars.any()
    is_whole = (some.all_scores == whole.all_scores).all(axis=1)  # type: ignore[union-attr]
    assert 0 < some.asked == is_whole.sum() < 30
    assert np.array_equal(some.all_scores[~is_whole], alone.all_scores[~is_whole])  # type: ignore[index]


def test_a_model_file_keeps_the_margin_and_needs_both_parts(small_model: Model, tmp_path: Path) -> None:
    both = of_both(small_model)
    both.save(tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert (again.cascade, again.digest) == (both.cascade, both.digest)
    assert len({both.asking(network).digest for network in ("uncertain", "all", "none")}) == 3
    assert both.asking("all").digest == replace(both, cascade=None).digest
    none = both.asking("none")
    none.save(tmp_path / "none.safetensors")
    assert (tmp_path / "none.safetensors").stat().st_size < 2 * none.ngrams.table.nbytes  # type: ignore[union-attr]
    assert load_model(tmp_path / "none.safetensors").digest == none.digest
    assert none.asking("all") is none
    with pytest.raises(UsageError, match=r"leave out network= none, or make a model .* broadsheet train"):
        small_model.asking("none")
    with pytest.raises(UsageError, match="broadsheet calibrate"):
        replace(both, cascade=None).asking("none")
    with pytest.raises(UsageError, match="choose one of uncertain, all, none"):
        both.asking("some")
    with pytest.raises(ModelError, match="without n-grams or without a network"):
        replace(small_model, cascade=both.cascade)
    with pytest.raises(ModelError, match="biases of n-grams alone for"):
        replace(both, cascade=Cascade(1.0, 0.5, 0.9, (0.0,)))


@pytest.mark.parametrize("network", ["uncertain", "all", "none"])
def test_a_job_asks_as_its_option_says(small_model: Model, tmp_path: Path, network: str) -> None:
    """A job that began with another choice cannot be resumed."""
    both, texts = of_both(small_model), articles(60, 3)
    rows = [texts.data[texts.offsets[i] : texts.offsets[i + 1]].tobytes().decode() for i in range(60)]
    (tmp_path / "in.txt").write_text("\n".join(rows) + "\n")
    report = classify(tmp_path / "in.txt", tmp_path / "out", model=both, device="cpu", network=network)
    want = load(both, device="cpu", network=network).predict_proba([row.strip() for row in rows])
    assert report.tally.asked == (rows_asked(both, texts).sum() if network == "uncertain" else 0)
    assert ("asked" in str(report)) == (network == "uncertain")
    warnings = dry_run(tmp_path / "in.txt", model=both, device="cpu", network=network).warnings
    share = f"{report.tally.asked / 60:.0%}"
    told = f"faster with --network none (n-grams alone, less exact): the network is asked about {share}"
    assert any(line.startswith(told) for line in warnings) == (network == "uncertain")
    found = pq.read_table(tmp_path / "out" / "parts")
    assert np.array_equal(found["score"].to_numpy(), want.max(axis=1))
    other = {"uncertain": "all", "all": "none", "none": "uncertain"}[network]
    with pytest.raises(UsageError, match="network="):
        classify(tmp_path / "in.txt", tmp_path / "out", model=both, device="cpu", network=other, resume=True)


def test_the_margin_keeps_what_was_asked_for() -> None:
    """Rows like those that the margin was fitted to keep the accuracy that was asked for, even if they are few."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 40_000)
    branch_of = (3 * np.eye(4)[truth] + rng.normal(size=(40_000, 4))).astype(np.float32)
    whole = branch_of + np.array([1.0, -1, 0, 2]) + 0.5 * rng.normal(size=(40_000, 4))
    for rows in (300, 5000, 20_000):
        for agreement in (0.99, 0.999):
            found = fitted_cascade(whole[:rows], branch_of[:rows], truth[:rows], agreement)
            alone = branch_of[20_000:] + np.array(found.bias, np.float32)
            kept = needs_network(alone, found.margin, None) | (
                labels_of(alone, None) == labels_of(whole[20_000:], None)
            )
            assert kept.mean() > 1 - 2.5 * (1 - agreement), (rows, agreement)
            assert 0.02 < found.share < 0.8
            assert np.allclose(np.array(found.bias), [1, -1, 0, 2], atol=0.1)
    for rows in (300, 40_000):
        equal = fitted_cascade(branch_of[:rows].astype(np.float64), branch_of[:rows], truth[:rows], 0.999)
        assert (equal.margin, equal.share, equal.agreement) == (0.0, 0.0, 1.0)


@pytest.mark.slow
def test_calibrate_finds_a_margin_and_evaluate_compares(small_model: Model, tmp_path: Path) -> None:
    """Each class has a word of its own in most texts."""
    rng, classes = np.random.default_rng(0), small_model.classes
    truth = rng.integers(0, len(classes), 400)
    words = [f"{WORDS[label]} " * (rng.random() < 0.9) + " ".join(rng.choice(WORDS, 5)) for label in truth]
    rows = pa.table({"text": words, "kind": [classes[label] for label in truth]})
    both = replace(of_both(small_model), cascade=None)
    found = calibrate(both, rows, label_column="kind", agreement=0.95, device="cpu")
    assert found.cascade is not None
    card = found.card["network asked"]
    assert (card["rows"], card["all"]["share"], card["none"]["share"]) == (400, 1, 0)
    assert found.cascade.agreement == pytest.approx(card["uncertain"]["agreement"], abs=1e-6)
    assert found.cascade.agreement >= 0.95
    told = evaluate(found, rows, label_column="kind", device="cpu").networks
    for name, figures in told.items():
        assert figures._asdict() == pytest.approx(card[name], abs=0.006), name
    assert evaluate(small_model, rows, label_column="kind", device="cpu").networks == {}
    with pytest.raises(UsageError, match="a share of labels"):
        calibrate(both, rows, label_column="kind", agreement=1.0)


def test_the_shipped_model_asks_about_few_texts() -> None:
    model = load_model()
    assert model.cascade is not None
    with closing(CpuEngine(model, 2)) as engine:
        clear = "The home team won the cup final after extra time, the coach said after the match."
        assert engine.classify(Texts.of([clear.encode(), b""])).asked == 1


def test_a_chunk_is_a_second_or_two_of_the_models_work_and_a_resume_keeps_what_there_was(
    small_model: Model, tmp_path: Path
) -> None:
    both = of_both(small_model)
    rows = [chunk_rows("cpu", load_models(both, network).cost) for network in ("all", "uncertain", "none")]
    assert rows == [512, 1024, 32_768]
    assert chunk_rows("cpu", load_models(small_model).cost) == 128  # in the dense frame
    assert chunk_rows("cpu", Models((both, small_model)).cost) == 128
    rows = [chunk_rows("cuda", load_models(both, network).cost) for network in ("all", "uncertain", "none")]
    assert rows == [131_072, 131_072, 262_144]  # its network reads more than half of the texts
    assert chunk_rows("cuda", load_models("ag-news").cost) == 262_144
    source, out = tmp_path / "in.txt", tmp_path / "out"
    source.write_text("oil rose\n" * 9000)
    classify(source, out, model=both, network="none", partition_by="label")
    (part,) = (out / "parts").glob("*/*.parquet")  # one label
    assert pq.read_metadata(part).num_rows == 9000
    before = classify(source, tmp_path / "small", model=both, network="none", chunk_size=4000).to_arrow()
    parts = sorted((tmp_path / "small" / "parts").iterdir())
    parts[1].unlink()
    again = classify(source, tmp_path / "small", model=both, network="none", resume=True)
    assert sorted((tmp_path / "small" / "parts").iterdir()) == parts
    assert again.to_arrow().equals(before)


# A network that reads some texts only, on a GPU: which texts, by the specification, and to the last bit.


@pytest.fixture(scope="module", params=[*STACKS, "several labels"], ids=str)
def gpu_engines(request: pytest.FixtureRequest, small_model: Model) -> Iterator[list]:
    """Engines whose network reads some texts, all texts, and none."""
    model, stack = small_model, request.param
    if stack == "several labels":
        model, stack = replace(model, thresholds=(0.2, 0.5, 0.7, 0.9)[: len(model.classes)]), STACKS[0]
    first = opened_for(replace(model, frame="text"), *stack)
    both = of_both(first.model)
    first.close()
    made = [opened_for(both.asking(network), *stack) for network in ("uncertain", "all", "none")]
    yield made
    for engine in made:
        engine.close()


@needs_gpu
# One text, a few texts, as many as a warp has threads, and several batches.
@pytest.mark.parametrize("count", [1, 7, 32, 500])
def test_rows_that_are_asked_have_the_bits_of_all_and_others_those_of_none(gpu_engines: list, count: int) -> None:
    """The kernels run as one graph, and one by one. In int8, only rows that the network reads count as saturated."""
    texts = articles(count, count)
    some, whole, alone = (engine.classify(texts, 2, all_scores=True) for engine in gpu_engines)
    assert_from_two(some, whole, alone, rows_asked(gpu_engines[0].model, texts))
    assert (whole.asked, alone.asked, alone.saturated) == (0, 0, 0)
    assert some.saturated <= whole.saturated


@needs_gpu
def test_n_grams_alone_have_the_scores_of_the_cpu(gpu_engines: list) -> None:
    texts, model = articles(300, 9), gpu_engines[2].model
    on_cpu = CpuEngine(model, 2)
    want, found = (engine.classify(texts, all_scores=True) for engine in (on_cpu, gpu_engines[2]))
    on_cpu.close()
    assert np.array_equal(found.labels, want.labels)
    assert np.abs(found.all_scores - want.all_scores).max() < 1e-6
    assert np.array_equal(found.n_chars, want.n_chars)
    assert np.array_equal(found.unknown_chars, want.unknown_chars)


@needs_gpu
def test_a_text_depends_on_itself_alone_on_a_gpu(gpu_engines: list) -> None:
    """The text is read in another order, in other batches, several times, and as ids that the host has encoded."""
    engine, texts = gpu_engines[0], articles(600, 2)
    whole = engine.classify(texts, all_scores=True)
    numbers = np.random.default_rng(0).permutation(600)
    data = [texts.data[texts.offsets[i] : texts.offsets[i + 1]].tobytes() for i in numbers]
    before = engine.batch
    for batch in (before, 37):
        engine.batch = batch
        try:
            found = engine.classify(Texts.of(data), all_scores=True)
        finally:
            engine.batch = before
        assert found.asked == whole.asked
        assert np.array_equal(found.all_scores, whole.all_scores[numbers], equal_nan=True)
    alphabet, length = engine.model.alphabet, engine.model.length
    of_ids = Texts(np.empty(0, np.uint8), np.empty(0, np.int64), texts.encoded(alphabet, length).ids)
    some, every, alone = (each.classify(of_ids, all_scores=True) for each in gpu_engines)
    is_whole = (some.all_scores == every.all_scores).all(axis=1)
    assert some.asked == is_whole.sum()
    assert np.array_equal(some.all_scores[~is_whole], alone.all_scores[~is_whole])


@needs_gpu
@pytest.mark.parametrize("margin", [0.0, 1e20])
def test_no_text_and_every_text_may_be_asked_about(gpu_engines: list, margin: float) -> None:
    """The network's kernels then have no work, or as much as ever."""
    model, at = gpu_engines[0].model, gpu_engines[0].backend
    assert model.cascade is not None
    cascade = type(model.cascade)(margin, 0.5, 0.9, model.cascade.bias, model.cascade.temperature)
    engine = opened_for(replace(model, cascade=cascade), at.kernels, at.precision)
    try:
        for count in (1, 500):
            texts = articles(count, 4)
            found = engine.classify(texts, all_scores=True)
            want = gpu_engines[1 if margin else 2].classify(texts, all_scores=True)
            assert found.asked == (count if margin else 0)
            assert np.array_equal(found.all_scores, want.all_scores, equal_nan=True)
    finally:
        engine.close()


@needs_gpu
def test_n_grams_alone_plan_no_memory_for_a_network(gpu_engines: list) -> None:
    some, whole, alone = (planned_bytes(engine.network.plan(4096)) for engine in gpu_engines)
    assert alone < whole / 2
    assert whole < some < whole + 4096 * (gpu_engines[0].model.length + 16 + 4) + 1024
