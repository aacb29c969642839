"""The text frame on a GPU: packed rows are the rows of the whole frame, bit for bit, whatever lies beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import exact
import numpy as np
import pytest
from gpu import LIMITS, STACKS, blocks_of, error, logits_of, opened_for, poison, random_texts, texts_of_every_kind

from pipeline.engine.base import Engine, Texts
from pipeline.engine.open import why_no_gpu
from pipeline.kernels.memory_plan import most_units, units_by_length
from pipeline.model.alphabet import encode
from pipeline.model.charcnn import Model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]


@pytest.fixture(scope="module", params=STACKS, ids="-".join)
def engine(request: pytest.FixtureRequest, model: Model) -> Iterator[Engine]:
    opened = opened_for(replace(model, frame="text"), *request.param)
    yield opened
    opened.close()


def test_packed_rows_have_the_bits_of_the_whole_frame(engine: Engine) -> None:
    texts = Texts.of(texts_of_every_kind(1))
    packed, first = blocks_of(engine, texts)
    network, layers = engine.network, engine.model.layers
    units, of_text = engine._units, np.diff(first)
    ids = encode(texts.data, texts.offsets, engine.model.alphabet, engine.model.length).ids
    ends = np.where(ids == engine.model.alphabet.padding, 0, np.arange(1, ids.shape[1] + 1)).max(axis=1)
    assert np.array_equal(of_text, units[ends])
    engine._units, network.whole = units_by_length(layers, "dense"), True
    try:
        whole, whole_first = blocks_of(engine, texts)
    finally:
        engine._units, network.whole = units, False
    most = most_units(layers)
    assert np.array_equal(whole_first, np.arange(len(texts) + 1) * most)
    assert list(packed) == list(whole) == [layer.name for layer in layers if layer.kind == "conv1d"]
    for layer in (layer for layer in layers if layer.kind == "conv1d"):
        name = layer.name
        rows = layer.rows_out // layer.product_pool  # of the frame, before a norm's pool
        constant = np.zeros(256, packed[name].dtype)
        if not layer.is_lookup:
            constant = network._constants[name].get().view(packed[name].dtype)
        for article, begin in enumerate(first[:-1]):
            reach = of_text[article] - 2
            alone = packed[name][begin : begin + of_text[article]].reshape(-1, 256)
            every = whole[name][article * most : (article + 1) * most].reshape(-1, 256)[: layer.rows_pooled]
            if not layer.is_lookup:
                alone, every = alone[: min(reach, rows)], whole[name][article * most :][:rows, 0]
            kept = min(len(alone), len(every))
            assert np.array_equal(alone[:kept], every[:kept]), (name, article)
            assert (every[kept:] == constant).all(), (name, article)


def test_every_length_among_any_neighbours(engine: Engine) -> None:
    """Against float64; and alone, shuffled or beside full articles the bits are the same, over poisoned buffers."""
    articles, model = texts_of_every_kind(2), engine.model
    texts = Texts.of(articles)
    ids = encode(texts.data, texts.offsets, model.alphabet, model.length).ids
    poison(engine)
    found = engine.classify(texts, all_scores=True).all_scores
    true = exact.logits(model, ids, "cuda")
    logits = logits_of(engine, texts)
    assert error(logits, true) <= LIMITS[engine.backend.precision]
    short = np.array([len(text) <= 20 for text in articles])
    assert error(logits[short], true[short]) <= LIMITS[engine.backend.precision]
    rng, filler = np.random.default_rng(3), random_texts(4, 500)
    for neighbours in ([], filler[:100], [b""] * 200, [b"x" * 2000] * 70):
        order = rng.permutation(len(articles) + len(neighbours))
        together = [[*articles, *neighbours][i] for i in order]
        poison(engine)
        again = engine.classify(Texts.of(together), all_scores=True).all_scores
        assert np.array_equal(again[np.argsort(order)[: len(articles)]], found)
    for i in (0, 1, 4, 20, 21, 35, 60):
        poison(engine)
        assert np.array_equal(engine.classify(Texts.of([articles[i]]), all_scores=True).all_scores[0], found[i])


def test_short_texts_make_larger_batches(engine: Engine, model: Model) -> None:
    """Of as much work: several times as many news articles, and of full articles as many as in the dense frame."""
    dense = opened_for(model, engine.backend.kernels, engine.backend.precision)
    batches = [
        [sum(1 for _ in opened.batches(Texts.of([b"x" * length] * 100_000))) for opened in (engine, dense)]
        for length in (235, 1100)
    ]
    dense.close()
    assert batches[0][0] * 2 < batches[0][1]
    assert batches[1][0] == batches[1][1]
