"""fastText's models on a GPU: the kernels against the specification to the last bit, and engines with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from fasttext_models import LOSSES, branch, hostile, model_of
from gpu import on_gpu
from numpy.typing import NDArray

from broadsheet.pipeline.engine.base import Engine, Texts
from broadsheet.pipeline.engine.cpu import CpuEngine
from broadsheet.pipeline.engine.open import open_engine, why_no_gpu
from broadsheet.pipeline.kernels.memory_plan import planned_bytes
from broadsheet.pipeline.kernels.tables import fasttext_shape
from broadsheet.pipeline.model.fasttext import FastText, Reader

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]

READ = {
    "2 classes, pairs": {"columns": 2, "classes": 2, "words": 2, "characters": (0, 0), "buckets": 1000},
    "3 classes, no end": {"columns": 3, "words": 5, "characters": (0, 0), "buckets": 77, "has_end": False},
    "4, pruned": {"columns": 4, "classes": 4, "words": 1, "characters": (1, 3), "buckets": 500, "pruned": True},
    "8": {"columns": 8, "classes": 8, "words": 3, "characters": (3, 6), "buckets": 501},
    "16 columns, pruned": {
        "columns": 16,
        "folded": False,
        "words": 1,
        "characters": (2, 4),
        "buckets": 999,
        "pruned": True,
    },
    "60 columns, long n-grams": {"columns": 60, "folded": False, "words": 32, "characters": (2, 2), "buckets": 1001},
    "100 columns, no lowest": {"columns": 100, "folded": False, "words": 1, "characters": (0, 4), "buckets": 2000},
    "256 columns": {"columns": 256, "folded": False, "words": 2, "characters": (2, 5), "buckets": 333},
    "300 columns in two slabs": {
        "columns": 300,
        "folded": False,
        "words": 4,
        "characters": (3, 3),
        "buckets": 99,
        "pruned": True,
    },
    "words alone": {"columns": 2, "classes": 2, "words": 1, "characters": (0, 0), "buckets": 0},
}


def by_kernel(texts: Texts, of: FastText, exact: bool) -> NDArray[np.float32]:
    import cupy as cp

    from broadsheet.pipeline.kernels.ops import operations
    from broadsheet.pipeline.kernels.weights import upload_fasttext

    ops = operations("simt", "fp32", cp.cuda.Device())
    out = cp.full((len(texts), of.table.shape[1]), cp.nan, cp.float32)
    ops.fasttext(on_gpu(texts), upload_fasttext(of, exact), out)
    return out.get()


@pytest.mark.parametrize("exact", [True, False], ids=["32 bits", "16 bits"])
@pytest.mark.parametrize("name", READ)
def test_mean_rows_are_those_of_numpy_to_the_last_bit(name: str, exact: bool) -> None:
    of = branch(**READ[name], seed=1)
    texts = Texts.of(hostile(len(name), 1500))
    bits = fasttext_shape(of.table.shape[1], exact).bits
    found, want = by_kernel(texts, of, exact), Reader(of, bits).means(texts.data, texts.offsets)
    assert np.array_equal(found.view(np.uint32), want.view(np.uint32))


ENGINES = [
    *((loss, 6, folded, precision) for loss in LOSSES for folded in (True, False) for precision in ("fp32", "fp16")),
    ("softmax", 2102, False, "fp16"),
    ("hierarchical softmax", 2102, False, "fp16"),
    ("softmax", 2, True, "int8"),
    ("softmax", 16_000, False, "bf16"),
]


@pytest.fixture(scope="module", params=ENGINES, ids=lambda given: " ".join(map(str, given)))
def engines(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, CpuEngine]]:
    loss, classes, folded, precision = request.param
    made = branch(24, 2, (2, 4), 3000, loss=loss, classes=classes, folded=folded, pruned=classes == 6, seed=classes)
    model = model_of(made)
    with closing(open_engine(model, "cuda", precision)) as on_gpu, closing(CpuEngine(model, 2)) as on_cpu:
        yield on_gpu, on_cpu


def test_scores_are_those_of_the_cpu(engines: tuple[Engine, CpuEngine]) -> None:
    on_gpu, _ = engines
    texts, classes = Texts.of(hostile(3, 600)), len(on_gpu.model.classes)
    found, want = (engine.classify(texts, min(classes, 5), all_scores=True) for engine in engines)
    limit = 1e-6 if on_gpu.backend.precision == "fp32" else 1e-4
    off = np.abs(found.all_scores - want.all_scores)
    if on_gpu.model.ngrams.kinds.loss in ("one-vs-all", "negative sampling"):  # a logit may fall into the next step
        assert (off > limit).mean() < 0.01
        assert off.max() < 1 / 32 / 4 + limit
    else:
        assert off.max() < limit
    best = np.take_along_axis(want.all_scores, found.labels.astype(np.int64), axis=1)
    assert np.abs(best - want.scores).max() < (0.01 if off.max() > limit else 2 * limit)
    for name in ("n_chars", "truncated", "unknown_chars"):
        assert np.array_equal(getattr(found, name), getattr(want, name)), name


def test_a_text_depends_on_itself_alone(engines: tuple[Engine, CpuEngine]) -> None:
    """The text is in another order, in small batches, in one graph, in the GPU's memory, or too long for a batch."""
    import cupy as cp

    engine, _ = engines
    articles = [*hostile(4, 300), b"a long text of </S> many words " * 4000, "日本 語".encode() * 9000]
    whole = engine.classify(Texts.of(articles), all_scores=True).all_scores
    numbers = np.random.default_rng(0).permutation(len(articles))
    before, engine.batch = engine.batch, 37
    try:
        some = engine.classify(Texts.of([articles[i] for i in numbers]), all_scores=True).all_scores
    finally:
        engine.batch = before
    assert np.array_equal(some, whole[numbers])
    for first, last in ((0, 1), (20, 27), (100, 132)):
        few = Texts.of(articles[first:last])
        assert np.array_equal(engine.classify(few, all_scores=True).all_scores, whole[first:last])
        one_by_one = engine.classify(few, all_scores=True, spans=[], each_kernel=True).all_scores
        assert np.array_equal(one_by_one, whole[first:last])
    texts = Texts.of(articles)
    there = Texts(cp.asarray(texts.data), texts.offsets)
    assert np.array_equal(engine.classify(there, all_scores=True).all_scores, whole)


@pytest.mark.parametrize("folded", [True, False])
def test_a_text_that_no_batch_has_room_for_has_the_same_bits(folded: bool) -> None:
    from broadsheet.pipeline.engine.cuda import CudaEngine

    model = model_of(branch(24, 2, (2, 4), 3000, loss="hierarchical softmax", folded=folded))
    articles = [b"one", "ein längerer Text ".encode() * 20_000, b"two", b"long " * 100_000]
    with closing(CudaEngine(model, batch=64)) as small, closing(CudaEngine(model)) as large:
        given = [batch.given for batch in small.batches(Texts.of(articles))]
        assert [each is not None for each in given] == [False, True, False, True]
        found, want = (each.classify(Texts.of(articles), all_scores=True) for each in (small, large))
        assert np.array_equal(found.all_scores, want.all_scores)
        assert np.array_equal(found.n_chars, [3, 360_000, 3, 500_000])
        assert np.array_equal(want.n_chars, found.n_chars)


def test_what_is_planned_is_what_is_taken() -> None:
    import cupy as cp

    from broadsheet.pipeline.engine.cuda import CudaEngine

    model = model_of(branch(200, 2, (2, 4), 100_000, folded=False, loss="hierarchical softmax", classes=900))
    cp.get_default_memory_pool().free_all_blocks()
    before = cp.get_default_memory_pool().used_bytes()
    with closing(CudaEngine(model, batch=4096)) as engine:
        taken = cp.get_default_memory_pool().used_bytes() - before
        planned = planned_bytes(engine.network.plan(4096))
    assert abs(taken - planned) < 0.02 * planned
