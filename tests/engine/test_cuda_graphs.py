"""Batches of a few articles as CUDA graphs on a GPU give the bits of kernels that are launched one by one. Softmax with
a temperature and sigmoids are compared with their twins, in batches and in graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import random_model
from gpu import STACKS, STACKS_AND_FRAMES, logits_of, opened_for, poison, random_texts, texts_of_every_kind

from broadsheet.pipeline.engine.base import Engine, Predictions, Texts
from broadsheet.pipeline.engine.open import why_no_gpu
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.alphabet import head_bytes
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.telemetry.spans import Span

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]


@pytest.fixture(scope="module", params=STACKS_AND_FRAMES, ids="-".join)
def engine(request: pytest.FixtureRequest, model: Model) -> Iterator[Engine]:
    kernels, precision, frame = request.param
    opened = opened_for(replace(model, frame=frame), kernels, precision)
    yield opened
    opened.close()


def assert_same(found: Predictions, want: Predictions) -> None:
    for name in ("labels", "scores", "all_scores", "n_chars", "truncated", "unknown_chars"):
        assert np.array_equal(getattr(found, name), getattr(want, name), equal_nan=name.endswith("scores")), name
    assert found.saturated == want.saturated


def graphs(engine: Engine) -> int:
    return engine.small._captured.cache_info().currsize


def test_a_graph_gives_the_bits_of_single_launches(engine: Engine) -> None:
    """Graphs of every size run over poisoned buffers, with other texts again, and after a batch of single launches."""
    articles = [text for text in texts_of_every_kind(3) if len(text) <= head_bytes(engine.model.length)]
    rng, most = np.random.default_rng(3), engine.small.most_texts
    before = graphs(engine)
    for turn in range(2):
        for count in (1, 2, 3, 8, 31, most):
            texts = Texts.of([articles[i] for i in rng.integers(0, len(articles), count)])
            for top_k in (1, 3):
                want = engine.classify(texts, top_k, True, [], True)
                poison(engine)
                assert_same(engine.classify(texts, top_k, True), want)
        engine.classify(Texts.of(random_texts(turn, 500)))
    assert graphs(engine) - before == 12


def test_any_batch_is_one_graph_with_the_bits_of_single_launches(engine: Engine) -> None:
    """A graph has the grids of the largest batch, and finds in memory how many articles a batch has."""
    network = engine.network
    network._graph_of.cache_clear()
    for count, seed in ((33, 5), (700, 6), (engine.batch + 1, 7), (64, 8)):
        texts = Texts.of(texts_of_every_kind(seed) + random_texts(seed, count))
        want = engine.classify(texts, 2, True, [], True)
        poison(engine)
        assert_same(engine.classify(texts, 2, True), want)
    slots = len(network.slots)
    assert network._graph_of.cache_info().misses <= 2 * slots  # texts with long ones among them, or none
    # Without a watcher, no kernel is launched outside a graph.
    launched = network._graph_of.cache_info().hits + network._graph_of.cache_info().misses
    engine.classify(Texts.of(random_texts(9, 500)))
    after = network._graph_of.cache_info()
    assert after.hits + after.misses == launched + 1


def test_a_part_of_a_larger_buffer_is_labelled(engine: Engine) -> None:
    articles = random_texts(4, 60)
    whole = Texts.of(articles)
    part = Texts(whole.data, whole.offsets[20:25])
    assert_same(engine.classify(part, 1, True), engine.classify(Texts.of(articles[20:24]), 1, True, [], True))


def test_a_long_article_and_a_larger_batch_take_no_graph(engine: Engine) -> None:
    before = graphs(engine)
    longest = head_bytes(engine.model.length)
    found = engine.classify(Texts.of([b"a" * (longest + 1)]))
    engine.classify(Texts.of(random_texts(5, engine.small.most_texts + 1)))
    assert graphs(engine) == before
    assert found.n_chars[0] == longest + 1
    assert engine.classify(Texts.of([b"a" * longest])).n_chars[0] == longest


def test_a_graph_has_a_span(engine: Engine) -> None:
    spans: list[Span] = []
    engine.classify(Texts.of([b"stocks fell"]), spans=spans)
    assert [span.name for span in spans] == ["kernels"]
    assert 0 < spans[0].seconds < 1


# Several labels for each text, on a GPU: the kernel's sigmoids against their twin, in batches and in graphs.


@pytest.mark.parametrize(("kernels", "precision"), STACKS)
def test_scores_are_those_of_the_twin(model: Model, kernels: str, precision: str) -> None:
    engine = opened_for(replace(model, thresholds=(0.5,) * 4), kernels, precision)
    try:
        texts = Texts.of(random_texts(7, 300))
        found = engine.classify(texts, 3, all_scores=True)
        expected = reference.sigmoid(logits_of(engine, texts))
        np.testing.assert_allclose(found.all_scores, expected, rtol=2e-5)
        labels, best = reference.top_k(found.all_scores, 3)
        np.testing.assert_array_equal(found.labels, labels)
        np.testing.assert_array_equal(found.scores, best)
        few = Texts.of(random_texts(8, 5))  # one CUDA graph
        by_graph, one_by_one = engine.classify(few, 3, True), engine.classify(few, 3, True, [], True)
        np.testing.assert_array_equal(by_graph.all_scores, one_by_one.all_scores)
        np.testing.assert_array_equal(by_graph.labels, one_by_one.labels)
    finally:
        engine.close()


def test_an_overflow_has_no_scores() -> None:
    model = random_model(3, classes=70)
    weight = model.tensors["fc3.weight"].copy()
    weight[40] = 3e38
    model = replace(model, tensors={**model.tensors, "fc3.weight": weight}, thresholds=(0.5,) * 70)
    engine = opened_for(model, "simt", "fp32")
    try:
        found = engine.classify(Texts.of(random_texts(9, 40)), 2, all_scores=True)
        expected = reference.sigmoid(logits_of(engine, Texts.of(random_texts(9, 40))))
        lost = ~np.isfinite(expected).all(axis=1)
        assert np.isnan(found.all_scores[lost]).all()
        assert (found.labels[lost] == -1).all()
    finally:
        engine.close()


# The temperature of scores, on a GPU: the softmax kernel against its twin, in batches and in graphs.


@pytest.mark.parametrize(("kernels", "precision"), STACKS)
def test_scores_are_those_of_the_twin_at_the_same_temperature(model: Model, kernels: str, precision: str) -> None:
    plain, warm = (opened_for(replace(model, temperature=t), kernels, precision) for t in (1.0, 0.7))
    try:
        texts = Texts.of(random_texts(5, 300))
        before, after = (engine.classify(texts, all_scores=True) for engine in (plain, warm))
        logits = logits_of(warm, texts)
        np.testing.assert_array_equal(logits, logits_of(plain, texts))  # the logits are equal, but the softmax is not
        np.testing.assert_allclose(after.all_scores, reference.softmax(logits, 0.7), rtol=2e-5)
        np.testing.assert_array_equal(after.labels, before.labels)
        assert not np.array_equal(after.scores, before.scores)
        few = Texts.of(random_texts(6, 5))  # one CUDA graph
        by_graph, one_by_one = warm.classify(few, all_scores=True), warm.classify(few, 1, True, [], True)
        np.testing.assert_array_equal(by_graph.all_scores, one_by_one.all_scores)
    finally:
        plain.close()
        warm.close()
