"""The order in which kernels read an encoder's weights: what their products and epilogues compute from it, in NumPy.

The kernels themselves need a GPU (tests/engine/test_families_gpu.py). This module writes out their arithmetic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from broadsheet.pipeline.kernels.tables import (
    ROTARY_HEAD,
    distance_table,
    encoder_shape,
    head_tables,
    turn_table,
    weight_table,
)
from broadsheet.pipeline.model.encoder import Distances, Encoder, Rotary, Settings, turns
from broadsheet.pipeline.model.stored_tokenizer import StoredTokenizer

TOKENS = 20
SHAPES = {"a tile has 128 outputs": (128,), "a tile has 192 outputs, or 128": (192, 128)}


def drawn(width: int, heads: int, inner: int, **settings: Any) -> Encoder:
    """Return an encoder of one layer with random weights, none of whose sizes a tile divides."""
    rng = np.random.default_rng(0)
    gated = settings.get("is_gated", False)
    sizes = {"queries": (width, 3 * width), "mix": (width, width), "outer": (inner, width)}
    sizes["inner"] = (width, inner * (1 + gated))
    weights = {f"0.{name}": rng.normal(0, 1, size).astype(np.float32) for name, size in sizes.items()}
    weights |= {f"0.{name}.bias": rng.normal(0, 1, size[1]).astype(np.float32) for name, size in sizes.items()}
    weights |= {"embedding": np.zeros((9, width), np.float32)}
    weights |= {f"head.norm.{part}": rng.normal(0, 1, width).astype(np.float32) for part in ("weight", "bias")}
    made = Settings(1, heads, 1e-5, "relu", "mean", ("normalise", "layer_norm"), 64, None, **settings)
    return Encoder(made, StoredTokenizer(np.zeros(0, np.uint8)), weights)


@pytest.fixture(scope="module")
def rows() -> Any:
    return np.random.default_rng(1).normal(0, 1, (TOKENS, 120)).astype(np.float32)


def filled(rows: Any, width: int) -> Any:
    return np.pad(rows, [(0, 0), (0, width - rows.shape[1])])


def product(encoder: Encoder, shape: Any, rows: Any, name: str) -> Any:
    layer = next(one for one in shape.layers if one.name == name)
    weight, bias = (weight_table(encoder, shape, f"0.{name}{part}") for part in ("", ".bias"))
    assert weight.shape == (layer.outputs, layer.inputs)
    assert bias.shape == (layer.outputs,)
    return filled(rows, layer.inputs) @ weight.T + bias


def attention(queries: Any, heads: int, head: int, size: int) -> Any:
    query, key, value = queries[:, : 3 * heads * head].reshape(TOKENS, 3, heads, head).transpose(1, 2, 0, 3)
    scores = np.exp(query @ key.transpose(0, 2, 1) / np.sqrt(size))
    return ((scores / scores.sum(2, keepdims=True)) @ value).transpose(1, 0, 2).reshape(TOKENS, -1)


@pytest.mark.parametrize("tiles", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rotary", [(), (Rotary(10_000.0),)], ids=["places", "rotary"])
def test_attention_of_filled_heads_is_that_of_the_specification(
    tiles: tuple[int, ...], rotary: tuple[Rotary, ...], rows: Any
) -> None:
    encoder = drawn(120, 3, 200, rotary=rotary)
    shape = encoder_shape(encoder, tiles)
    assert shape is not None
    assert shape.head == ROTARY_HEAD
    queries = product(encoder, shape, rows * 0.05, "queries")
    if rotary:  # common/rotary.cuh
        table, turned = turn_table(encoder, rotary[0])[:TOKENS, None], 2 * 3 * shape.head
        low, high = queries[:, :turned].reshape(TOKENS, -1, shape.head // 2, 2).transpose(3, 0, 1, 2)
        cosine, sine = table[..., 0], table[..., 1]
        both = np.stack([low * cosine - high * sine, high * cosine + low * sine], axis=-1)
        queries[:, :turned] = both.reshape(TOKENS, -1)
    found = product(encoder, shape, attention(queries, 3, shape.head, 40), "mix")
    wanted = encoder._attention(rows * 0.05, [slice(0, TOKENS)], np.arange(TOKENS), 0)
    np.testing.assert_allclose(found[:, :120], wanted, atol=1e-4)
    assert not found[:, 120:].any()


@pytest.mark.parametrize("tokens", [1, 20, 64, 150])
def test_a_row_of_distances_is_that_of_its_query_and_key(tokens: int) -> None:
    """sm80/distances.cu: query i and key j have row `most` + j - i."""
    distances = Distances(8, 64)
    encoder = drawn(120, 3, 200, distances=distances)
    rng = np.random.default_rng(2)
    for name in ("0.keys_at", "0.queries_at"):
        encoder.weights[name] = rng.normal(0, 1, (16, 120)).astype(np.float32)  # type: ignore[index]
    encoder = replace(encoder, settings=structs.replace(encoder.settings, most_tokens=150))
    shape = encoder_shape(encoder)
    assert shape is not None
    table = distance_table(encoder, shape, 0)
    most = len(table) // 2
    assert most == 256  # whole blocks of queries
    i, j = np.indices((tokens, tokens))
    of_heads = table[most + j - i].reshape(tokens, tokens, 2, 3, ROTARY_HEAD)
    for kind, name in enumerate(("0.keys_at", "0.queries_at")):
        wanted = encoder.weights[name][distances.rows(i - j)].reshape(tokens, tokens, 3, 40)
        np.testing.assert_array_equal(of_heads[:, :, kind, :, :40], wanted)
        assert not of_heads[..., 40:].any()


def test_lanes_bring_each_score_its_terms() -> None:
    """sm80/distances.cu: a warp has the products of 16 queries, and of 64 keys, with 80 distances, in blocks of eight.

    A lane has two neighbouring columns of a row of each block. The values at (i, 16 + j - i) of the first product and
    at (16 + j - i, j) of the second move to the lane that has score (i, j).
    """
    rng = np.random.default_rng(0)
    by_key, by_query = rng.normal(size=(16, 80)), rng.normal(size=(80, 64))
    lane = np.arange(32)
    row, column = lane // 4, lane % 4 * 2
    scores = np.zeros((16, 64))
    for n, low, i in np.ndindex(8, 2, 2):
        of_row = [[by_key[row + 8 * low, (n + late - low) * 8 + column + k] for k in (0, 1)] for late in (1, 2)]
        even, odd = (np.where(column + k + row < 8, of_row[1][k], of_row[0][k]) for k in (0, 1))
        given = np.where(row % 2 == i, even, odd)
        along_row = given[(lane & ~3) | (column + i - row & 7) >> 1]
        of_column = [by_query[(n + late - low) * 8 + row, n * 8 + column + i] for late in (1, 2)]
        given = np.where(row <= column + i, of_column[1], of_column[0])
        along_column = given[(column + i - row & 7) << 2 | lane % 4]
        scores[row + 8 * low, n * 8 + column + i] = along_row + along_column
    i, j = np.indices((16, 64))
    np.testing.assert_array_equal(scores, by_key[i, 16 + j - i] + by_query[16 + j - i, j])


@pytest.mark.parametrize("tiles", SHAPES.values(), ids=SHAPES)
def test_of_each_16_gated_outputs_a_thread_makes_two_neighbours(tiles: tuple[int, ...], rows: Any) -> None:
    encoder = drawn(120, 3, 200, is_gated=True)
    shape = encoder_shape(encoder, tiles)
    assert shape is not None
    both = product(encoder, shape, rows, "inner").reshape(TOKENS, -1, 2, 4, 2)  # group, half, thread, value and gate
    made = (np.maximum(both[..., 0], 0) * both[..., 1]).transpose(0, 1, 3, 2).reshape(TOKENS, -1)
    found = product(encoder, shape, made, "outer")
    wanted = encoder._products(encoder._inner(rows, [slice(0, TOKENS)], 0), [slice(0, TOKENS)], "0.outer")
    np.testing.assert_allclose(found[:, :120], wanted, rtol=1e-4, atol=1e-2)


def test_a_width_gets_the_tile_with_the_least_to_fill_up() -> None:
    by_width = {}
    for width in (384, 768, 1024):
        shape = encoder_shape(drawn(width, width // 64, 64), (192, 128))
        assert shape is not None
        by_width[width] = {layer.name: layer.outputs for layer in shape.layers if layer.name in ("mix", "outer")}
    assert by_width == {width: {"mix": width, "outer": width} for width in (384, 768, 1024)}


def test_angles_are_those_of_their_formula() -> None:
    """Su et al., "RoFormer" (2021): at position p, pair i of d / 2 turns by p / base ** (2 i / d)."""
    found = turns(Rotary(10_000.0), 8, 50)
    place, pair = np.indices((50, 4))
    angle = place / 10_000.0 ** (2 * pair / 8)
    np.testing.assert_allclose(found, np.stack([np.cos(angle), np.sin(angle)], axis=2), atol=1e-5)


def test_a_norm_in_a_head_has_its_weight_and_bias() -> None:
    encoder = drawn(8, 2, 8)
    tables = head_tables(encoder, False)
    kind, inputs, outputs, weight, bias = tables.steps[1].tolist()
    assert (kind, inputs, outputs) == (5, 8, 8)
    np.testing.assert_array_equal(tables.weights[weight : weight + 8], encoder.weights["head.norm.weight"])
    np.testing.assert_array_equal(tables.weights[bias : bias + 8], encoder.weights["head.norm.bias"])
