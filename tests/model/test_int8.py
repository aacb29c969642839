"""int8: the specification in NumPy against exact integers, the activation scales, and what a user sees of both."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from conftest import Command

from broadsheet import pipeline
from broadsheet.pipeline import ModelError, UsageError, load_model, quantise
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.model import quantised, reference
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.model_file import ActivationScales
from broadsheet.pipeline.model.quantised import with_scales

WORDS = ["stocks fell on monday", "the home team won", "a new chip", "peace talks began", "", "x" * 500]


@pytest.fixture(scope="module")
def small(small_model: Model) -> Model:
    """A model with scales, in the text frame."""
    texts = Texts.of([word.encode() for word in WORDS])
    ids = encode(texts.data, texts.offsets, small_model.alphabet, small_model.length).ids
    return with_scales(replace(small_model, frame="text"), ids)


def test_sums_are_exact_at_their_largest() -> None:
    """Products of 255 and 127 in all 1,792 places, and random products, are compared with 64-bit integers."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (2, 24, 256), np.uint8)
    weight = rng.integers(-127, 128, (7, 256, 16)).astype(np.int8)
    values[0, :9], weight[:, :, 0], weight[:, :, 1] = 255, 127, -127
    want = sum(values[:, tap : tap + 18].astype(np.int64) @ weight[tap].astype(np.int64) for tap in range(7))
    found = quantised.conv1d(values, weight, pool=3)
    assert found.dtype == np.int32
    assert np.array_equal(found, want.reshape(2, 6, 3, 16).max(axis=2))
    assert found[0, 0, 0] == 7 * 256 * 255 * 127
    assert want[0, 0, 1] == -7 * 256 * 255 * 127


def test_a_byte_is_the_rounded_product_of_sum_and_scale() -> None:
    """Each step rounds once, to nearest even. The test compares with exact fractions, at random values and at
    halves.
    """
    rng = np.random.default_rng(1)
    scale = (2.0 ** rng.uniform(-18, -10, 64)).astype(np.float32)
    scale[:8] = 0.25
    bias = rng.integers(-(1 << 29), 1 << 29, 64).astype(np.int32)
    bias[:8] = 0
    sums = rng.integers(-60_000_000, 60_000_000, (1, 40, 64)).astype(np.int32)
    sums[:, :, :8] = rng.integers(-8, 1030, (1, 40, 8))
    here = quantised.Convolution(np.zeros((1, 1, 64), np.int8), bias, scale)
    found = quantised.requantise(sums, here)

    def nearest(value: Fraction) -> float:
        """Return the nearest float32. Python's division rounds to float64, which is exact for 24 bits and 24 by 31
        bits.
        """
        return float(np.float32(float(value)))

    for row, channel in np.ndindex(40, 64):
        total = nearest(Fraction(int(sums[0, row, channel]) + int(bias[channel])))
        product = nearest(Fraction(total) * Fraction(float(scale[channel])))
        assert found[0, row, channel] == min(255, max(0, round(product))), (row, channel)
    assert {0, 255} < set(found[0, :, :8].ravel().tolist())


def test_weights_and_bias_are_off_by_half_a_step_at_most(small: Model) -> None:
    weights = reference.prepare(small)
    integers = quantised.prepare(weights, quantised.scales_of(small))
    assert list(integers.convolutions) == ["conv2", "conv3", "conv4", "conv5", "conv6"]
    steps = [*quantised.scales_of(small).steps.values(), 1.0]
    for (name, here), step, after in zip(integers.convolutions.items(), steps, steps[1:], strict=False):
        unit = here.scale * np.float64(after) / step
        assert np.abs(here.weight * unit - weights.conv[name]).max() <= 0.501 * unit.max()
        assert np.abs(here.bias * unit * step - weights.bias[name]).max() <= 0.501 * (unit * step).max()
        assert np.abs(here.weight).max(axis=(0, 1)).min() == 127


def test_the_greatest_value_of_the_sample_is_the_greatest_byte(small: Model) -> None:
    texts = Texts.of([word.encode() for word in WORDS])
    ids = encode(texts.data, texts.offsets, small.alphabet, small.length).ids
    weights = reference.prepare(small)
    first = dict(reference.blocks(weights))["conv1"](ids).values
    x = quantised.blocks(weights, quantised.prepare(weights, quantised.scales_of(small)))[0][1](ids)
    assert x.values.max() == 255
    assert np.abs(x.values.reshape(first.shape) * small.scales.steps["conv2"] - first).max() < first.max() / 500
    assert with_scales(small, ids).scales == small.scales
    assert with_scales(small, ids[::-1][:3]).scales.found_on != small.scales.found_on


def test_scores_on_a_cpu_are_close_to_fp32_and_their_saturation_is_counted(small: Model) -> None:
    texts = Texts.of([word.encode() for word in WORDS])
    exact, engine = open_engine(small, "cpu"), open_engine(small, "cpu", "int8")
    coarse = ActivationScales({name: step / 4 for name, step in small.scales.steps.items()}, "0" * 64)
    clipped = open_engine(replace(small, scales=coarse), "cpu", "int8")
    try:
        want, found = (e.classify(texts, all_scores=True) for e in (exact, engine))
        assert 0 < np.abs(found.all_scores - want.all_scores).max() < 0.1
        assert engine.backend.precision == "int8"
        assert want.saturated == 0
        assert 1 <= found.saturated < 100 < clipped.classify(texts).saturated
        assert np.array_equal(
            engine.classify(Texts.of([b"a new chip"]), all_scores=True).all_scores[0], found.all_scores[2]
        )
    finally:
        for each in (exact, engine, clipped):
            each.close()


def test_an_overflow_of_block_1_is_no_label(small: Model) -> None:
    """Bytes cannot hold a NaN, but it still reaches the scores."""
    tensors = {**small.tensors, "conv1.weight": small.tensors["conv1.weight"] * np.float32(1e37)}
    engine = open_engine(replace(small, tensors=tensors), "cpu", "int8")
    found = engine.classify(Texts.of([b"stocks", b""]))
    engine.close()
    assert found.labels.tolist()[0] == [-1]
    assert np.isnan(found.scores[0]).all()


def test_a_file_holds_the_scales_and_a_reader_checks_them(small: Model, small_model: Model) -> None:
    again = Model.from_bytes(small.to_bytes())
    assert again.scales == small.scales
    assert again.digest == small.digest != replace(small, scales=None).digest
    assert b'"scales"' not in small_model.to_bytes()[:4000]
    steps = dict(small.scales.steps)
    for wrong in ({"conv2": 1.0}, {**steps, "conv4": -1.0}, {**steps, "conv4": float("nan")}, {**steps, "fc1": 1.0}):
        with pytest.raises(ModelError, match="activation scale"):
            replace(small, scales=ActivationScales(wrong, "0" * 64))


def test_quantise_then_classify(
    small_model_file: Path, tmp_path: Path, broadsheet_in_process: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's commands, and their messages without scales, with scales, and for a wrong input."""
    monkeypatch.chdir(tmp_path)
    with open("news.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text"], *([f"{word} {i}"] for i, word in enumerate(WORDS * 20))])
    classify = ("classify", "news.csv", "--device", "cpu", "--precision", "int8")
    told = broadsheet_in_process(*classify, "-o", "out", "--model", small_model_file)
    assert told.returncode == 2
    assert small_model_file.name in told.stderr
    assert "broadsheet calibrate --int8 MODEL DATA -o OUT" in " ".join(told.stderr.split())
    made = broadsheet_in_process("calibrate", "--int8", small_model_file, "news.csv", "-o", "small8.safetensors")
    assert made.returncode == 0, made.stderr
    assert "activation scales found on 120 rows" in made.stdout
    again = broadsheet_in_process("calibrate", "--int8", small_model_file, "news.csv", "-o", "small8.safetensors")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    shown = json.loads(broadsheet_in_process("inspect", "small8.safetensors", "--json").stdout)
    assert list(shown["scales"]["steps"]) == ["conv2", "conv3", "conv4", "conv5", "conv6"]
    assert shown["card"]["scales found on"] == {"rows": 120, "files": ["news.csv"]}
    assert "steps of 8-bit inputs" in broadsheet_in_process("inspect", "small8.safetensors").stdout
    done = broadsheet_in_process(*classify, "-o", "out", "--model", "small8.safetensors")
    assert done.returncode == 0, done.stderr
    assert "int8" in done.stdout + done.stderr
    (Path("empty.csv")).write_text("text\n")
    for source in ("empty.csv", "nothing.csv"):
        failed = broadsheet_in_process("calibrate", "--int8", small_model_file, source, "-o", "other.safetensors")
        assert failed.returncode != 0
        assert "Traceback" not in failed.stderr
        assert not Path("other.safetensors").exists()


def test_labels_in_memory_by_a_model_quantised_here(small_model: Model) -> None:
    model = quantise(small_model, WORDS)
    scales = quantised.scales_of(model)
    coarse = ActivationScales({name: step / 4 for name, step in scales.steps.items()}, scales.found_on)
    report = pipeline.classify(WORDS, model=model, device="cpu", precision="int8")
    assert len(report.to_pandas()) == len(WORDS)
    assert f"{report.tally.saturated:,} saturated activations" in str(report)
    clipped = pipeline.classify(
        WORDS, model=replace(model, scales=coarse), device="cpu", precision="int8", chunk_size=2
    )
    assert clipped.tally.saturated > 100 > report.tally.saturated > 0
    with pytest.raises(UsageError, match=r'precision="int8" needs.+calibrate --int8'):
        pipeline.classify(WORDS, model=small_model, device="cpu", precision="int8")
    pipeline.close()


def test_the_shipped_model_in_int8_labels_as_in_fp32(ag_news: Path) -> None:
    """The test labels the last 160 test articles, with the scales in the model's file."""
    with open(ag_news / "test.csv", newline="", encoding="utf-8") as file:
        texts = Texts.of([f"{title} {text}".strip().encode() for _, title, text in list(csv.reader(file))[-160:]])
    found = []
    for precision in ("fp32", "int8"):
        engine = open_engine(load_model(), "cpu", precision)
        found.append(engine.classify(texts, all_scores=True))
        engine.close()
    want, got = found
    assert (want.labels != got.labels).sum() <= 1
    assert np.abs(want.all_scores - got.all_scores).max() < 0.05
    assert got.saturated < 16
