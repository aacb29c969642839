"""Batches of a few articles as CUDA graphs, on a GPU: the bits of kernels that are launched one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from gpu import STACKS_AND_FRAMES, opened_for, poison, random_texts, texts_of_every_kind

from pipeline.engine.base import Engine, Predictions, Texts
from pipeline.engine.open import why_no_gpu
from pipeline.model.alphabet import head_bytes
from pipeline.model.charcnn import Model
from pipeline.telemetry.spans import Span

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
    """Of every size, among poisoned buffers, again with other texts, and after a batch that is launched otherwise."""
    articles = [text for text in texts_of_every_kind(3) if len(text) <= head_bytes(engine.model.length)]
    rng, most = np.random.default_rng(3), engine.small.most
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


def test_a_part_of_a_larger_buffer_is_labelled(engine: Engine) -> None:
    articles = random_texts(4, 60)
    whole = Texts.of(articles)
    part = Texts(whole.data, whole.offsets[20:25])
    assert_same(engine.classify(part, 1, True), engine.classify(Texts.of(articles[20:24]), 1, True, [], True))


def test_a_long_article_and_a_larger_batch_take_no_graph(engine: Engine) -> None:
    before = graphs(engine)
    longest = head_bytes(engine.model.length)
    found = engine.classify(Texts.of([b"a" * (longest + 1)]))
    engine.classify(Texts.of(random_texts(5, engine.small.most + 1)))
    assert graphs(engine) == before
    assert found.n_chars[0] == longest + 1
    assert engine.classify(Texts.of([b"a" * longest])).n_chars[0] == longest


def test_a_graph_has_a_span(engine: Engine) -> None:
    spans: list[Span] = []
    engine.classify(Texts.of([b"stocks fell"]), spans=spans)
    assert [span.name for span in spans] == ["kernels"]
    assert 0 < spans[0].seconds < 1
