"""The network asked about some texts only, on a GPU: which, by the specification, and to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from gpu import STACKS, opened_for
from test_cascade import articles, assert_from_two, of_both, rows_asked

from pipeline.engine.base import Texts
from pipeline.engine.cpu import CpuEngine
from pipeline.engine.open import why_no_gpu
from pipeline.kernels.memory_plan import planned_bytes
from pipeline.model.charcnn import Model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]


@pytest.fixture(scope="module", params=[*STACKS, "several labels"], ids=str)
def engines(request: pytest.FixtureRequest, small_model: Model) -> Iterator[list]:
    """With the network asked about some texts, about all and about none."""
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


@pytest.mark.parametrize("count", [1, 7, 32, 500])
def test_rows_that_are_asked_have_the_bits_of_all_and_others_those_of_none(engines: list, count: int) -> None:
    """As one graph and launched one by one; and in int8 saturated values are of those that are asked."""
    texts = articles(count, count)
    some, whole, alone = (engine.classify(texts, 2, all_scores=True) for engine in engines)
    assert_from_two(some, whole, alone, rows_asked(engines[0].model, texts))
    assert (whole.asked, alone.asked, alone.saturated) == (0, 0, 0)
    assert some.saturated <= whole.saturated


def test_n_grams_alone_have_the_scores_of_the_cpu(engines: list) -> None:
    texts, model = articles(300, 9), engines[2].model
    on_cpu = CpuEngine(model, 2)
    want, found = (engine.classify(texts, all_scores=True) for engine in (on_cpu, engines[2]))
    on_cpu.close()
    assert np.array_equal(found.labels, want.labels)
    assert np.abs(found.all_scores - want.all_scores).max() < 1e-6
    assert np.array_equal(found.n_chars, want.n_chars)
    assert np.array_equal(found.unknown_chars, want.unknown_chars)


def test_a_text_depends_on_itself_alone(engines: list) -> None:
    """In another order, in other batches, several times, and as ids that the host has encoded."""
    engine, texts = engines[0], articles(600, 2)
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
    some, every, alone = (each.classify(of_ids, all_scores=True) for each in engines)
    is_whole = (some.all_scores == every.all_scores).all(axis=1)
    assert some.asked == is_whole.sum()
    assert np.array_equal(some.all_scores[~is_whole], alone.all_scores[~is_whole])


@pytest.mark.parametrize("margin", [0.0, 1e20])
def test_no_text_and_every_text_may_be_asked_about(engines: list, margin: float) -> None:
    """The network's kernels have nothing to do, or as much as they ever have."""
    model, at = engines[0].model, engines[0].backend
    assert model.cascade is not None
    cascade = type(model.cascade)(margin, 0.5, 0.9, model.cascade.bias, model.cascade.temperature)
    engine = opened_for(replace(model, cascade=cascade), at.kernels, at.precision)
    try:
        for count in (1, 500):
            texts = articles(count, 4)
            found = engine.classify(texts, all_scores=True)
            want = engines[1 if margin else 2].classify(texts, all_scores=True)
            assert found.asked == (count if margin else 0)
            assert np.array_equal(found.all_scores, want.all_scores, equal_nan=True)
    finally:
        engine.close()


def test_n_grams_alone_plan_no_memory_for_a_network(engines: list) -> None:
    some, whole, alone = (planned_bytes(engine.network.plan(4096)) for engine in engines)
    assert alone < whole / 2
    assert whole < some < whole + 4096 * (engines[0].model.length + 16 + 4) + 1024
