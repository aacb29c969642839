"""The CUDA backend against float64 and against its NumPy twins, on one GPU and on two. Skipped where there is none."""

from __future__ import annotations

import csv
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Lock

import exact
import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, random_model
from gpu import LIMITS, STACKS_AND_FRAMES, error, hostile_texts, logits_of, opened_for, poison, random_texts

from broadsheet.pipeline import classify, load_model
from broadsheet.pipeline.engine.base import Engine, Predictions, Texts
from broadsheet.pipeline.engine.open import open_engine, why_no_gpu
from broadsheet.pipeline.errors import BroadsheetError, UsageError
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import FRAMES, Frame
from broadsheet.pipeline.model.ngrams import scores as ngram_scores
from broadsheet.pipeline.telemetry.spans import Span

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]


@pytest.fixture(scope="module", params=STACKS_AND_FRAMES, ids="-".join)
def engine(request: pytest.FixtureRequest, model: Model) -> Iterator[Engine]:
    kernels, precision, frame = request.param
    opened = opened_for(replace(model, frame=frame), kernels, precision)
    yield opened
    opened.close()


# The fewest texts, numbers around the 128 rows of a tile, and one more than whole tiles hold.
@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 4097])
def test_logits_against_float64(engine: Engine, count: int) -> None:
    model, texts = engine.model, Texts.of((random_texts(count, count) + hostile_texts())[-count:])
    ids = encode(texts.data, texts.offsets, model.alphabet, model.length).ids
    poison(engine)
    found = engine.classify(texts, all_scores=True)
    logits = logits_of(engine, texts)
    true = exact.logits(model, ids, "cuda")
    assert error(logits, true) <= LIMITS[engine.backend.precision]
    assert np.array_equal(found.labels[:, 0], logits.argmax(axis=1))
    assert np.abs(found.all_scores - reference.softmax(logits)).max() < 1e-6
    assert np.array_equal(found.scores[:, 0], found.all_scores.max(axis=1))


def test_an_article_scores_the_same_in_any_company(engine: Engine) -> None:
    """Rule 1: batch size, position, neighbours, other slots and repetition change no bit."""
    articles = random_texts(7, 700) + hostile_texts()
    alone = engine.classify(Texts.of(articles), all_scores=True)
    rng = np.random.default_rng(1)
    poison(engine)
    for batch in (1, 63, 300, engine.batch):
        order = rng.permutation(len(articles))[:300] if batch > 1 else np.arange(690, 710)
        before, engine.batch = engine.batch, batch
        try:
            found = engine.classify(Texts.of([articles[i] for i in order]), all_scores=True)
        finally:
            engine.batch = before
        assert np.array_equal(found.all_scores, alone.all_scores[order])
        assert np.array_equal(found.n_chars, alone.n_chars[order])


def test_encoding_is_the_twin_of_numpy(engine: Engine, model: Model) -> None:
    rng = np.random.default_rng(3)
    junk = [rng.integers(0, 256, n, np.uint8).tobytes() for n in rng.integers(0, 3000, 400)]
    mixed = [rng.choice(np.frombuffer("aé中😀\x80\xff".encode("latin-1", "replace"), np.uint8), 900).tobytes()]
    # Long articles, whose characters many warps count, beside each other and among short ones.
    pieces = [piece.encode() for piece in ("a", "é", "中", "😀")]
    long = [rng.integers(0, 256, n, np.uint8).tobytes() for n in (4_057, 50_000, 300_001)]
    long += [b"".join(pieces[i] for i in rng.integers(0, 4, n)) for n in (1_013, 4_100, 70_003)]
    long += ["中".encode() * 1_014, "中".encode() * 1_353, "😀".encode() * 1_014, "😀".encode() * 1_015]
    texts = Texts.of([*junk, *mixed, *hostile_texts(), *long, b"", *junk[:3]])
    want = encode(texts.data, texts.offsets, model.alphabet, model.length)
    found = engine.classify(texts)
    count = len(texts.offsets) - 1
    assert np.array_equal(engine.network._ids[:count, : model.length].get(), want.ids)
    assert np.array_equal(found.n_chars, want.n_chars)
    assert np.array_equal(found.truncated, want.truncated)
    assert np.array_equal(found.unknown_chars, want.unknown_chars)


def test_encoded_input_scores_like_its_text(engine: Engine, model: Model) -> None:
    texts = Texts.of(random_texts(5, 90))
    ids = encode(texts.data, texts.offsets, model.alphabet, model.length).ids
    given = Texts(texts.data[:0], texts.offsets[:1], ids)
    want, found = engine.classify(texts, 2), engine.classify(given, 2)
    assert np.array_equal(want.scores, found.scores)
    assert np.array_equal(want.labels, found.labels)


# The shortest network, the largest alphabet with many classes, an odd number of classes, and long texts.
@pytest.mark.parametrize(
    ("symbols", "length", "classes"),
    [
        ("ab é中😀", 123, 2),
        ("".join(map(chr, range(0x400, 0x400 + 254))), 200, 1000),
        ("abcdefghijklmnopqrstuvwxyz ", 1000, 7),
        ("abcdefghijklmnopqrstuvwxyz ", 4096, 3),
    ],
)
@pytest.mark.parametrize(
    ("kernels", "precision"), [("simt", "fp32"), ("sm80", "fp16"), ("auto", "auto"), ("sm80", "fp32"), ("auto", "fp32")]
)
@pytest.mark.parametrize("frame", FRAMES)
def test_other_lengths(symbols: str, length: int, classes: int, kernels: str, precision: str, frame: Frame) -> None:
    model = replace(random_model(4, symbols, length, classes), frame=frame)
    rng = np.random.default_rng(2)
    letters = np.array([*symbols, "?", "\n"])
    sizes = [0, 1, length - 1, length, length + 1, *rng.integers(0, 2 * length, 40)]
    texts = Texts.of(["".join(letters[rng.integers(0, len(letters), n)]).encode() for n in sizes])
    ids = encode(texts.data, texts.offsets, model.alphabet, length).ids
    opened = open_engine(model, "cuda", precision, kernels=kernels)
    try:
        poison(opened)
        found = opened.classify(texts, top_k=classes)
        logits = logits_of(opened, texts)
    finally:
        opened.close()
    true = exact.logits(model, ids, "cuda")
    # A small random network can be worse conditioned than the published frame, so PyTorch's own fp16 is the measure for
    # it.
    limit = LIMITS[opened.backend.precision]
    if precision != "fp32":
        limit = max(limit, error(exact.logits(model, ids, "cuda", dtype=torch.float16), true))
    assert error(logits, true) <= limit
    labels, best = reference.top_k(reference.softmax(logits), classes)
    assert np.abs(found.scores - best).max() < 1e-6
    ties = np.isclose(best[:, :-1], best[:, 1:], rtol=1e-5).any(axis=1)
    assert np.array_equal(found.labels[~ties], labels[~ties])


def test_the_shipped_model_flips_hardly_a_label(ag_news: Path) -> None:
    """On the 7,600 test articles, compared with float64, fp32 flips none, and fp16 at most four, all of them close
    calls.
    """
    with open(ag_news / "test.csv", newline="", encoding="utf-8") as file:
        texts = Texts.of([f"{title} {text}".strip().encode() for _, title, text in csv.reader(file)])
    model = load_model().asking("all")
    ids = encode(texts.data, texts.offsets, model.alphabet, model.length).ids
    assert model.ngrams is not None
    true = exact.logits(model, ids, "cuda") + ngram_scores(texts.data, texts.offsets, model.ngrams)
    scores = np.sort(reference.softmax(true), axis=1)
    margin = scores[:, -1] - scores[:, -2]
    for kernels, precision, most in (
        ("simt", "fp32", 0),
        ("auto", "fp32", 0),
        ("sm80", "fp16", 4),
        ("auto", "fp16", 4),
    ):
        opened = open_engine(model, "cuda", precision, kernels=kernels)
        flipped = np.flatnonzero(opened.classify(texts).labels[:, 0] != true.argmax(axis=1))
        opened.close()
        print(f"{opened.backend}: {len(flipped)} labels flipped, margins {margin[flipped]}")
        assert len(flipped) <= most
        assert (margin[flipped] < 0.02).all()


def test_memory_is_what_was_planned(model: Model) -> None:
    import cupy

    from broadsheet.pipeline.engine.cuda import CudaEngine
    from broadsheet.pipeline.kernels.memory_plan import planned_bytes

    texts = Texts.of(random_texts(1, 9000))
    # What the first engine of a process leaves allocated is allocated once.
    with closing(CudaEngine(model, batch=4096)) as first:
        first.classify(texts, all_scores=True)
    cupy.get_default_memory_pool().free_all_blocks()
    before = cupy.get_default_memory_pool().total_bytes()
    opened = CudaEngine(model, batch=4096)
    opened.classify(texts)
    taken = cupy.get_default_memory_pool().total_bytes() - before
    planned = planned_bytes(opened.network.plan(4096))
    opened.classify(texts, all_scores=True)
    again = cupy.get_default_memory_pool().total_bytes() - before
    opened.close()
    print(f"planned {planned:,} bytes, taken {taken:,}")
    assert abs(taken - planned) <= 0.1 * planned
    assert again == taken
    assert cupy.get_default_memory_pool().total_bytes() <= before


def test_a_full_gpu_is_told(model: Model) -> None:
    import cupy

    from broadsheet.pipeline.engine.cuda import CudaEngine

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + 1_000_000)
    try:
        with pytest.raises(BroadsheetError, match=r"has no room for the model's weights.+Stop other programs on it"):
            CudaEngine(model)
    finally:
        pool.set_limit(size=0)


def test_too_little_memory_halves_the_batch(model: Model) -> None:
    import cupy

    from broadsheet.pipeline.engine.cuda import CudaEngine

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + 600_000_000)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            opened = CudaEngine(model, batch=8192)
        assert opened.batch in (1024, 2048)
        assert any("continuing with" in str(w.message) for w in caught)
        texts = Texts.of(random_texts(2, 5000))
        found = opened.classify(texts)
        opened.close()
    finally:
        pool.set_limit(size=0)
    whole = CudaEngine(model)
    assert np.array_equal(whole.classify(texts).scores, found.scores)
    whole.close()


def test_a_host_without_page_locked_memory_is_told(model: Model) -> None:
    import cupy

    from broadsheet.pipeline.engine.cuda import CudaEngine

    pool = cupy.cuda.PinnedMemoryPool()

    def allocate(size: int) -> object:
        if size > room:
            raise cupy.cuda.runtime.CUDARuntimeError(2)
        return pool.malloc(size)

    cupy.cuda.set_pinned_memory_allocator(allocate)
    try:
        room = 5_000_000  # the text of 2,048 articles takes 4.2 MB
        with pytest.warns(RuntimeWarning, match="page-locked memory has no room .* continuing with"):
            opened = CudaEngine(model, batch=8192)
        assert opened.batch == 2048
        opened.close()
        room = 1000
        with (
            pytest.warns(RuntimeWarning, match="continuing with"),
            pytest.raises(BroadsheetError, match=r"page-locked memory has no room .+ raise this job's limit of memory"),
        ):
            CudaEngine(model)
    finally:
        cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)


@pytest.mark.parametrize("kernels", ["simt", "auto"])
def test_a_batch_beyond_what_the_kernels_count_is_refused(model: Model, kernels: str) -> None:
    from broadsheet.pipeline.engine.cuda import CudaEngine

    with pytest.raises(UsageError, match=r"batches of at most [\d,]+ articles of this model"):
        CudaEngine(model, kernels=kernels, batch=199_728)


def test_a_gpu_without_room_for_the_kernels_is_told() -> None:
    """The test uses a process of its own, because kernels stay loaded."""
    script = """
import sys; sys.path[:0] = ["tests", "tests/helpers"]
import cupy
from conftest import random_model
from broadsheet.pipeline.engine.cuda import CudaEngine
from broadsheet.pipeline.errors import BroadsheetError
taken = []
for size in (1 << 30, 1 << 25, 1 << 20, 1 << 12):
    try:
        while True:
            taken.append(cupy.cuda.runtime.malloc(size))
    except cupy.cuda.runtime.CUDARuntimeError:
        pass
try:
    CudaEngine(random_model())
except BroadsheetError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert "has no room for the model's" in run.stdout, run.stderr
    assert "Stop other programs on it" in run.stdout


@pytest.mark.parametrize(("count", "kernel"), [(100, "conv4"), (3, "of a batch launched as one graph")])
def test_an_error_of_the_gpu_names_kernel_and_batch(count: int, kernel: str, tmp_path: Path) -> None:
    """The test uses a process of its own, which can do nothing more on that GPU after an illegal address."""
    script = f"""
import sys; sys.path[:0] = ["tests", "tests/helpers"]
import cupy
from conftest import random_model
from broadsheet.pipeline.engine.base import Texts
from gpu import random_texts
from broadsheet.pipeline.engine.cuda import CudaEngine
from broadsheet.pipeline.errors import BroadsheetError
engine = CudaEngine(random_model())
nowhere = cupy.cuda.UnownedMemory(1 << 45, 1024, None)
engine.network._weights.bias["conv4"] = cupy.ndarray(256, cupy.float32, cupy.cuda.MemoryPointer(nowhere, 0))
for _ in range(2):
    try:
        engine.classify(Texts.of([text[:1000] for text in random_texts(1, {count})]))
    except BroadsheetError as error:
        print(error)
import os; os._exit(0)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120)
    first, second = run.stdout.strip().splitlines()
    assert kernel in first
    assert f"articles 0 to {count}" in first
    assert "restart the worker" in second


def test_the_whole_job_on_the_gpu(model: Model, tmp_path: Path) -> None:
    articles = random_texts(11, 3000)
    report = classify([a.decode() for a in articles], tmp_path / "out", model=model, device="cuda", chunk_size=700)
    assert report.backend.startswith("cuda")
    opened = open_engine(model, "cuda")
    alone = opened.classify(Texts.of(articles))
    opened.close()
    table = pq.ParquetDataset(tmp_path / "out" / "parts").read().sort_by("row")
    assert np.array_equal(table["score"].to_numpy(), alone.scores[:, 0])


def test_auto_takes_the_gpu(small_model: Model) -> None:
    opened = open_engine(small_model)
    opened.close()
    assert opened.backend.device == "cuda"


# Engines on two GPUs of one process. Skipped where there are fewer.


@pytest.mark.parametrize("kernels", ["simt", "sm80", "auto"])
def test_two_gpus_of_a_process_score_alike(kernels: str, model: Model) -> None:
    """Each GPU has its own kernels, which may use more than 48 KB of shared memory on both."""
    import cupy

    from broadsheet.pipeline.engine.cuda import CudaEngine

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU")
    texts = Texts.of(random_texts(3, 3000))
    first, second = (CudaEngine(model, kernels=kernels, batch=1024, device=device) for device in (0, 1))
    found = [engine.classify(texts, all_scores=True).all_scores for engine in (first, second, first)]
    for engine in (first, second):
        engine.close()
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


# Consecutive chunks on a GPU, each begun by a thread of its own before the labels of the last chunk are ready.


def chunks(count: int, articles: int) -> list[Texts]:
    """Return chunks of articles of 0 to 1,500 characters. Some chunks hold few articles, and are one graph."""
    draw = np.random.default_rng(0)
    words = [f"word{number} " for number in range(500)]
    found = []
    for number in range(count):
        many = articles if number % 4 else 5
        of_each = draw.integers(0, 150, many)
        drawn = draw.integers(0, len(words), (many, 150))
        texts = ["".join(words[i] for i in row[:size]) for row, size in zip(drawn, of_each, strict=True)]
        found.append(Texts.of([text.encode() for text in texts]))
    return found


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_chunks_of_several_threads_keep_their_bits_and_leave_no_gap(precision: str) -> None:
    from broadsheet.pipeline.engine.cuda import CudaEngine

    engine, lock = CudaEngine(load_model(), precision, batch=2048), Lock()
    texts = chunks(24, 9000)
    alone = [engine.classify(each, 2, all_scores=True) for each in texts]
    spans: list[list[Span]] = [[] for _ in texts]
    left_early: dict[int, bool] = {}

    @contextmanager
    def turn(number: int) -> Iterator[None]:
        with lock:
            yield
            left_early[number] = not engine._is_idle

    def label(number: int) -> Predictions:
        return engine.classify(texts[number], 2, True, spans[number], False, turn(number))

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(label, range(len(texts))))
    for one, other in zip(alone, together, strict=True):
        for name in ("labels", "scores", "all_scores", "n_chars", "truncated", "unknown_chars"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert one.saturated == other.saturated
    several = [number for number, each in enumerate(spans) if len(each) > 3]  # chunks of more than one graph
    assert all(left_early[number] for number in several)  # the next chunk is copied in while results are copied out
    kernels = sorted((span.start, span.end) for number in several for span in spans[number] if span.name == "kernels")
    # Each call may compare the clocks of host and GPU anew, with an error of some tenths of a millisecond.
    assert all(after[0] > before[1] - 5e-4 for before, after in pairwise(kernels))
    engine.close()
