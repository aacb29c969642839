"""The n-gram branch on a GPU: its kernel against the twin, and engines with it, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from gpu import LIMITS, STACKS, hostile_texts, on_gpu, opened_for, poison, random_texts
from ngram_models import HOSTILE, KINDS, PIECES, branch, scored
from numpy.typing import NDArray

from broadsheet.pipeline.engine.base import Engine, Texts
from broadsheet.pipeline.engine.cpu import CpuEngine
from broadsheet.pipeline.engine.open import why_no_gpu
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.ngrams import Kinds, NGrams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]


def articles_of_every_kind(seed: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    mixed = [b"".join(rng.choice(PIECES, rng.integers(0, 400))) for _ in range(200)]
    junk = [rng.integers(0, 256, n, np.uint8).tobytes() for n in (1, 31, 32, 33, 500, 3000, 20_000)]
    # Characters without white space, with few equal n-grams, so that the counts of one article take several parts.
    dense = [bytes(rng.choice(list(b"abcdefghijklmnopqrstuvwxyz"), n)) for n in (600, 1014, 5000, 20_000)]
    return [*mixed, *junk, *dense, *HOSTILE, *hostile_texts(), *random_texts(seed, 300)]


def by_kernel(articles: list[bytes], at: NGrams) -> NDArray[np.float32]:
    import cupy as cp

    from broadsheet.pipeline.kernels.ops import operations
    from broadsheet.pipeline.kernels.weights import upload_ngrams

    texts, ops = Texts.of(articles), operations("simt", "fp32", cp.cuda.Device())
    out = cp.full((len(articles), at.table.shape[1] - 1), cp.nan, cp.float32)
    ops.ngrams(on_gpu(texts), upload_ngrams(at), out)
    return out.get()


# Even and odd numbers, powers of two, and numbers around 256.
@pytest.mark.parametrize("classes", [2, 4, 7, 8, 60, 255, 256, 1000])
def test_the_kernel_is_the_twin_of_numpy(classes: int) -> None:
    articles = articles_of_every_kind(classes)
    for kinds in (*KINDS, Kinds(2, (3, 5), 4096), Kinds(2, (3, 6), 16_384)):
        at = branch(kinds, classes, seed=classes)
        found, want = by_kernel(articles, at), scored(articles, at)
        assert np.array_equal(found.view(np.uint32), want.view(np.uint32)), kinds


def test_a_large_table_of_the_kernel_is_the_twin_of_numpy() -> None:
    """The numbers in the buckets have 20 bits, beside counts in 32 and in 64 bits."""
    articles, rng = articles_of_every_kind(1), np.random.default_rng(1)
    table = rng.integers(-32_767, 32_768, (1 << 20, 5)).astype(np.int16)
    table[:, -1] = rng.integers(0, 14_000, len(table))
    for reads in (1014, 2000):
        at = NGrams(Kinds(2, (3, 5), reads), table, np.full((2, 4), 1e-4, np.float32))
        found, want = by_kernel(articles, at), scored(articles, at)
        assert np.array_equal(found.view(np.uint32), want.view(np.uint32))


@pytest.fixture(scope="module", params=STACKS, ids="-".join)
def engines(request: pytest.FixtureRequest, model: Model) -> Iterator[tuple[Engine, Engine]]:
    """Engines of a model without n-grams, and of the same model with them."""
    text = replace(model, frame="text")
    plain = opened_for(text, *request.param)
    both = opened_for(replace(text, scales=plain.model.scales, ngrams=branch(Kinds(2, (3, 5), 1400))), *request.param)
    yield plain, both
    plain.close()
    both.close()


def test_the_engine_adds_the_branch_to_the_logits(engines: tuple[Engine, Engine]) -> None:
    _, both = engines
    articles = articles_of_every_kind(2)
    texts = Texts.of(articles)
    alone, found = (engine.classify(texts, all_scores=True).all_scores for engine in engines)
    assert alone is not None
    assert found is not None
    assert both.model.ngrams is not None
    moved = np.log(found.astype(np.float64)) - np.log(alone.astype(np.float64)) - scored(articles, both.model.ngrams)
    assert np.ptp(moved, axis=1).max() < 1e-4
    assert np.abs(found - alone).max() > 0.01
    on_cpu = CpuEngine(both.model, 2)
    want = on_cpu.classify(Texts.of(articles[:100]), all_scores=True).all_scores
    on_cpu.close()
    assert np.abs(found[:100] - want).max() < 10 * LIMITS[both.backend.precision]


def test_neighbours_batches_and_ids_change_no_bit(engines: tuple[Engine, Engine]) -> None:
    """The host may also encode the text: for ids, and for an article that is longer than a batch."""
    _, engine = engines
    articles = [*random_texts(3, 300), b"a long text " * 2_000_000]
    whole = engine.classify(Texts.of(articles), all_scores=True).all_scores
    assert whole is not None
    before, engine.batch = engine.batch, 37
    try:
        some = engine.classify(Texts.of(articles[100:200]), all_scores=True).all_scores
    finally:
        engine.batch = before
    assert np.array_equal(some, whole[100:200])
    assert np.array_equal(engine.classify(Texts.of([articles[-1][:6000]]), all_scores=True).all_scores, whole[-1:])
    rng, symbols = np.random.default_rng(4), list(engine.model.alphabet.symbols)
    texts = Texts.of(["".join(rng.choice(symbols, n)).encode() for n in rng.integers(0, 400, 60)])
    ids = encode(texts.data, texts.offsets, engine.model.alphabet, engine.model.length).ids
    of_ids = Texts(np.empty(0, np.uint8), np.empty(0, np.int64), ids)
    of_text = engine.classify(texts, all_scores=True).all_scores
    assert of_text is not None
    found = engine.classify(of_ids, all_scores=True).all_scores
    assert found is not None
    assert np.array_equal(found, of_text)


def test_a_graph_of_a_few_texts_gives_the_bits_of_single_launches(engines: tuple[Engine, Engine]) -> None:
    _, engine = engines
    articles = [text for text in articles_of_every_kind(5) if len(text) <= 4 * engine.model.length]
    for count in (1, 2, 31):
        texts = Texts.of(articles[:count])
        want = engine.classify(texts, all_scores=True, spans=[], each_kernel=True).all_scores
        poison(engine)
        assert np.array_equal(engine.classify(texts, all_scores=True).all_scores, want, equal_nan=True)


def test_the_kernel_has_a_row_in_the_profile(engines: tuple[Engine, Engine]) -> None:
    from broadsheet.pipeline.engine import profile_cuda

    _, engine = engines
    found = profile_cuda.kernels(engine, Texts.of([b"The home team won, and stocks fell on Monday. " * 5] * 256))
    (row,) = [kernel for kernel in found if kernel.name == "ngrams"]
    assert row.seconds > 0
    assert row.stream_seconds > 0
