"""The tables that replace block 1's weights in the CUDA kernels, compared with block 1 itself in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from conftest import examples, random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from broadsheet.pipeline.kernels.catalog import largest_batch
from broadsheet.pipeline.kernels.memory_plan import (
    CLOSING_UNITS,
    SLOTS,
    activation_bytes,
    capacity,
    most_units,
    page_locked,
    places,
    plan,
    planned_bytes,
    result_shapes,
    schedule,
    small_batch,
    small_bytes,
    small_input,
    units_by_length,
)
from broadsheet.pipeline.kernels.storage import STORAGE
from broadsheet.pipeline.kernels.tables import eight_bit_order, fixed_point, statistics_tables
from broadsheet.pipeline.kernels.tiles import SimtTile
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.layers import layer_table
from broadsheet.pipeline.telemetry.profile import read_report

LENGTH = 123


@pytest.fixture(scope="module")
def weights() -> reference.Weights:
    return reference.prepare(random_model(3, "abcdefgh ", LENGTH))


def block_one(weights: reference.Weights, ids: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return block 1's output before the norm, [windows, channels]."""
    table, windows = weights.table.astype(np.float64), len(ids) - len(weights.table) + 1
    return weights.bias["conv1"] + sum(table[tap, ids[tap : tap + windows]] for tap in range(len(table)))


def text(weights: reference.Weights, seed: int, characters: int) -> NDArray[np.uint8]:
    ids = np.full(LENGTH, weights.padding, np.uint8)
    ids[:characters] = np.random.default_rng(seed).integers(0, weights.padding, characters)
    return ids


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10_000), characters=st.integers(0, LENGTH))
def test_mean_and_variance_follow_from_the_tables(weights: reference.Weights, seed: int, characters: int) -> None:
    """The test repeats the kernel's formula: prefix sums, cut at the first and the last windows."""
    tables, ids = statistics_tables(weights), text(weights, seed, characters)
    kernel, windows = len(weights.table), LENGTH - len(weights.table) + 1
    total, squares = windows * tables.sum_of_biases, windows * tables.sum_of_square_biases
    for s in range(characters):
        low = s - windows
        first = tables.first[min(s, kernel - 1), ids[s]] - (tables.first[low, ids[s]] if low >= 0 else 0)
        total, squares = total + first[0], squares + first[1]
        for lag in range(1, min(kernel, characters - s)):
            high = min(s, kernel - 1 - lag)
            if low < high:
                pair = tables.pairs[:, lag - 1, ids[s], ids[s + lag]]
                squares += pair[high] - (pair[low] if low >= 0 else 0)
    values = block_one(weights, ids)
    mean = total / values.size
    assert mean == pytest.approx(values.mean(), rel=1e-5, abs=1e-6)
    assert squares / values.size - mean**2 == pytest.approx(values.var(), rel=1e-5)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10_000), characters=st.integers(0, LENGTH), scale=st.sampled_from([1e-6, 1.0, 1e4]))
def test_integers_add_up_to_the_window(weights: reference.Weights, seed: int, characters: int, scale: float) -> None:
    table = weights.table * np.float32(scale)
    table[:, :, 5] = 0  # a channel that reads nothing
    entries, (unit, zero, _) = fixed_point(table, weights.bias["conv1"])
    ids, windows = text(weights, seed, characters), LENGTH - len(table) + 1
    sums = sum(entries[tap, ids[tap : tap + windows]].astype(np.int64) for tap in range(len(table)))
    assert sums.max() < 1 << 16  # a larger sum would carry into the next channel
    exact = weights.bias["conv1"] + sum(
        table[tap, ids[tap : tap + windows]].astype(np.float64) for tap in range(len(table))
    )
    assert (np.abs(sums * unit.astype(np.float64) + zero - exact) <= unit * len(table) / 2 + 1e-6 * np.abs(zero)).all()


def test_a_channel_that_may_overflow_fp32_is_no_number(weights: reference.Weights) -> None:
    table = weights.table.copy()
    table[:, :, 7] *= np.float32(1e37)
    _, affine = fixed_point(table, weights.bias["conv1"])
    assert np.isnan(affine[:, 7]).all()
    assert np.isfinite(np.delete(affine, 7, axis=1)).all()


def test_a_thread_of_sm90_holds_four_neighbouring_outputs_in_8_bits() -> None:
    """Of every 16 columns of a product, thread t holds 2t and 2t + 1, then 8 + 2t and 9 + 2t."""
    order = eight_bit_order(256)
    assert sorted(order) == list(range(256))
    for first in range(0, 256, 16):
        for thread in range(4):
            held = [order[first + 8 * half + 2 * thread + i] for half in (0, 1) for i in (0, 1)]
            assert held == list(range(first + 4 * thread, first + 4 * thread + 4))


def test_the_memory_plan_covers_every_layer() -> None:
    for length in (123, 1000, 1014, 4096):
        layers = layer_table(70, length, 4)
        first, second = activation_bytes(layers, capacity(layers, 10, "dense"), STORAGE["sm80"]["fp16"])
        assert first >= 10 * (layers[1].rows_pooled * 3 + 6) * 256 * 2
        assert second >= 10 * layers[5].rows_out * 256 * 2  # block 6 before its norm
        assert planned_bytes(plan(layers, 10, STORAGE["sm80"]["fp16"], "dense")) > first + second
        eight = activation_bytes(layers, capacity(layers, 10, "dense"), STORAGE["sm80"]["int8"])
        assert eight[1] >= 10 * layers[5].rows_out * 256 * 2  # still 16 bits
        assert first / 2 <= eight[0] < first
        of_text = activation_bytes(layers, capacity(layers, 40, "text"), STORAGE["sm80"]["fp16"])
        assert of_text[0] >= first
        assert of_text[0] >= 40 * layers[6].inputs * 2  # what fc1 reads, for each article, however short
        assert of_text[1] >= second


@pytest.mark.parametrize("length", [123, 200, 1014])
def test_rows_beyond_an_articles_units_are_the_same_for_every_article(length: int) -> None:
    """The reference shows this, as it may compute or copy these rows. An article's units hold all rows that differ."""
    model = replace(random_model(3, "abcdefgh ", length), frame="text")
    prepared, units = reference.prepare(model), units_by_length(model.layers, "text")
    rng = np.random.default_rng(length)
    ends = sorted({0, 1, 2, 3, 4, 9, 10, 50, length - 7, length - 6, length - 5, length})
    ids = np.full((len(ends), length), model.alphabet.padding, np.uint8)
    for article, end in enumerate(ends):
        ids[article, :end] = rng.integers(0, model.alphabet.padding, end)
    x = ids
    for layer, (name, block) in zip(model.layers[:5], reference.blocks(prepared)[:5], strict=True):
        x = block(x)
        rows = x.values.reshape(len(ends), -1, 256)
        for article, end in enumerate(ends):
            read = rows[article, : 3 * most_units(model.layers)]  # the rows that block 2 reads; it may drop the last
            beyond = read[3 * units[end] if layer.is_lookup else units[end] - CLOSING_UNITS :]
            assert np.allclose(beyond, rows[0, -1], atol=1e-6), (name, end)
        if layer.is_lookup:
            differ = np.abs(rows - rows[0]).max(axis=2) > 0
            assert [int(np.flatnonzero(d)[-1]) + 1 if d.any() else 0 for d in differ] == [
                min(-(-end // 3), layer.rows_pooled) for end in ends
            ]


def test_an_article_takes_its_text_or_the_whole_frame() -> None:
    layers = layer_table(70, 1014, 4)
    for layer in layers[1:6]:  # below an article's last row, its taps read no more than the closing units
        assert (layer.product_pool - 1 + layer.kernel - 1) // layer.product_pool <= CLOSING_UNITS
    units = units_by_length(layers, "text")
    assert [units[end] for end in (0, 1, 9, 10, 235, 990, 991, 1014)] == [2, 3, 3, 4, 29, 112, 112, 112]
    assert (units_by_length(layers, "dense") == most_units(layers)).all()
    assert capacity(layers, 400, "text") == (400, 100 * most_units(layers))
    assert capacity(layers, 400, "dense") == (400, 400 * most_units(layers))


def test_page_locked_memory_is_planned_too() -> None:
    """With many classes it holds mostly scores, labels and best scores. CuPy allocates powers of two."""
    buffers = page_locked(layer_table(70, 1014, 1000), 8448, "dense")
    results = next(buffer for buffer in buffers if buffer.name == "results")
    assert results.bytes > 3 * 4 * 1000 * 8448
    assert (results.total, results.count) == (SLOTS * (128 << 20), SLOTS)
    assert planned_bytes(buffers) == sum(buffer.total for buffer in buffers) < 1 << 30


# The shortest and the longest network, the published length, and a round one.
@pytest.mark.parametrize("length", [123, 1000, 1014, 4096])
def test_the_largest_batch_is_what_32_bits_and_a_grid_can_count(length: int) -> None:
    layers = layer_table(70, length, 4)
    pitch = 3 * most_units(layers)
    for generation, precision in ((name, each) for name, known in STORAGE.items() for each in known):
        most = largest_batch(generation, precision, "sm_90", layers, "dense")
        assert largest_batch(generation, precision, "sm_90", layers, "text") == 4 * most
        vectors = pitch * 256 // 8
        assert (most + 1) * vectors < 1 << 31
        if generation == "simt":
            assert most * pitch <= 65_535 * SimtTile.rows < (most + 1) * pitch
        if generation == "sm90":
            assert (most + 2) * vectors >= 1 << 31


def test_arrays_of_a_small_batch_lie_beside_each_other() -> None:
    layers = layer_table(70, 1014, 1000)
    for count in (1, 3, 32):
        for arrays in (small_input(layers, count), result_shapes(layers, count, 1000)):
            found, size = places(arrays)
            at = sorted(found.values(), key=lambda place: place.start)
            assert all(one.stop <= other.start for one, other in pairwise(at))
            assert at[-1].stop <= size <= max(small_bytes(layers, 32))
            assert all(place.start % 256 == 0 for place in at)
    assert small_batch(layers, capacity(layers, 4, "text")) == 1
    assert small_batch(layers, capacity(layers, 10_000, "dense")) == 32


def test_no_layer_writes_the_buffer_that_it_reads() -> None:
    source = None
    for step in schedule(layer_table(70, 1014, 4), STORAGE["sm90"]["fp16"]):
        for written in filter(None, (step.raw, step.out)):
            assert written.buffer != source
            source = written.buffer


def test_the_report_of_ncu_is_read() -> None:
    lines = [
        "==PROF== Connected to process 1",
        '"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"',
        '"","","Mbyte","Kbyte"',
        '"0","encode","1,234.5","10"',
        '"1","conv1d","0.5","2,000"',
        "==PROF== Disconnected",
    ]
    assert read_report(lines) == [1_234_510_000, 2_500_000]
    assert read_report(lines[:1]) == []
