"""int8 on a GPU: the sums and bytes of the NumPy specification, bit for bit, in every generation of kernels."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from gpu import INT8_STACKS, blocks_of, opened_for, poison, texts_of_every_kind
from numpy.typing import NDArray

from broadsheet.pipeline import load_model
from broadsheet.pipeline.engine.base import Engine, Texts
from broadsheet.pipeline.engine.open import open_engine, why_no_gpu
from broadsheet.pipeline.kernels.memory_plan import CLOSING_UNITS
from broadsheet.pipeline.model import quantised, reference
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import FRAMES
from broadsheet.pipeline.model.model_file import ActivationScales

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]

STACKS = [(kernels, frame) for kernels, _ in INT8_STACKS for frame in FRAMES]


@pytest.fixture(scope="module", params=STACKS, ids="-".join)
def engine(request: pytest.FixtureRequest, model: Model) -> Iterator[Engine]:
    kernels, frame = request.param
    opened = opened_for(replace(model, frame=frame), kernels, "int8")
    yield opened
    opened.close()


def unpacked(packed: NDArray[np.generic], first: NDArray[np.int32], rows: int) -> NDArray[np.generic]:
    """Return the first `rows` rows of each article, [N, rows, channels], with zeros where it has fewer."""
    found = np.zeros((len(first) - 1, rows, packed.shape[2]), packed.dtype)
    for article, (begin, end) in enumerate(pairwise(first)):
        own = packed[begin:end].reshape(-1, packed.shape[2])[:rows]
        found[article, : len(own)] = own
    return found


def test_sums_and_bytes_are_those_of_the_specification(engine: Engine) -> None:
    """The test starts from block 1's bytes, over poisoned buffers, with texts of all lengths beside each other."""
    model = engine.model
    texts = Texts.of(texts_of_every_kind(5))
    packed, first = blocks_of(engine, texts)
    weights = reference.prepare(model)
    integers = quantised.prepare(weights, quantised.scales_of(model))
    one, *convolutions = (layer for layer in model.layers if layer.kind == "conv1d")
    values = unpacked(packed[one.name], first, one.rows_pooled)
    ids = encode(texts.data, texts.offsets, model.alphabet, model.length).ids
    of_cpu = quantised.blocks(weights, integers)[0][1](ids).values
    assert np.abs(values.astype(int) - of_cpu).max() <= 1
    assert (values != of_cpu).mean() < 0.01
    reach = np.diff(first) - CLOSING_UNITS
    for layer in convolutions:
        here = integers.convolutions[layer.name]
        sums = quantised.conv1d(values, here.weight, layer.product_pool)
        found = unpacked(packed[layer.name], first, sums.shape[1])
        if layer.norm:
            want = quantised.rescale(sums, here)
            want = want.view(np.uint32) if found.dtype == np.uint32 else want.astype(np.float16).view(np.uint16)
        else:
            want = values = quantised.requantise(sums, here)
        for article, rows in enumerate(reach):
            kept = min(rows, sums.shape[1])
            assert np.array_equal(found[article, :kept], want[article, :kept]), (layer.name, article)
            constant = engine.network._constants[layer.name].get().view(want.dtype)
            if model.frame == "text":
                assert (want[article, kept:] == constant).all(), (layer.name, article)


def test_saturated_values_are_counted(engine: Engine) -> None:
    """The count covers all batches, and equals the specification's in rows that the text reaches."""
    model = engine.model
    scales = quantised.scales_of(model)
    coarse = ActivationScales({name: step * 0.4 for name, step in scales.steps.items()}, scales.found_on)
    opened = opened_for(replace(model, scales=coarse), engine.backend.kernels, "int8")
    cpu = open_engine(opened.model, "cpu", "int8")
    texts = Texts.of(texts_of_every_kind(6)[::3])
    poison(opened)
    found = opened.classify(texts)
    want = cpu.classify(texts)
    calm = engine.classify(texts)
    opened.batch = 17
    again = opened.classify(texts)
    opened.close()
    cpu.close()
    assert again.saturated == found.saturated > 500
    # Rows after the last one that a pool reads are counted too. Constant rows are counted once for each article, or
    # never.
    assert 0.8 * want.saturated < found.saturated < 1.2 * want.saturated
    assert calm.saturated < found.saturated / 100


def test_an_overflow_of_block_1_is_no_label(engine: Engine, small_model: Model) -> None:
    """Bytes cannot hold a NaN, but it still reaches the scores."""
    frame, scales = engine.model.frame, quantised.scales_of(engine.model)
    tensors = {**small_model.tensors, "conv1.weight": small_model.tensors["conv1.weight"] * np.float32(1e20)}
    opened = opened_for(
        replace(small_model, tensors=tensors, frame=frame, scales=scales), engine.backend.kernels, "int8"
    )
    found = opened.classify(Texts.of([b"stocks fell", b"the home team won" * 10]))
    opened.close()
    assert (found.labels == -1).all()
    assert np.isnan(found.scores).all()


def test_hardly_a_label_of_ag_news_differs_from_fp32(ag_news: Path) -> None:
    """The shipped model differs in at most 0.3 % of 7,600 labels, and 0.1 points of accuracy."""
    with open(ag_news / "test.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[-7600:]
    texts = Texts.of([f"{title} {text}".strip().encode() for _, title, text in rows])
    truth = np.array([int(label) - 1 for label, *_ in rows])
    model = load_model().asking("all")
    for frame in (model.frame, "dense"):
        labels = {}
        for kernels, precision in (("simt", "fp32"), ("sm80", "int8"), ("auto", "int8")):
            opened = opened_for(replace(model, frame=frame), kernels, precision)
            found = opened.classify(texts)
            labels[kernels] = found.labels[:, 0]
            print(f"{frame} {opened.backend}: {found.saturated} saturated")
            opened.close()
        for kernels in ("sm80", "auto"):
            differ = (labels[kernels] != labels["simt"]).mean()
            points = (labels[kernels] == truth).mean() - (labels["simt"] == truth).mean()
            print(f"{frame} {kernels}: {differ:.4%} of labels differ, accuracy {points:+.4%}")
            assert differ <= 0.003
            if frame == model.frame:
                assert abs(points) <= 0.001
        assert np.array_equal(labels["sm80"], labels["auto"])
