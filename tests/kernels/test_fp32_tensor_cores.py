"""fp32 on tensor cores: two fp16 parts a number, whose error is shown by a twin of the kernels in NumPy."""

from __future__ import annotations

from dataclasses import replace

import exact
import numpy as np
import pytest
import split_twin
from conftest import random_model
from gpu import LIMITS, error, random_texts

from pipeline import load_model
from pipeline.engine.base import Texts
from pipeline.kernels import split
from pipeline.model import reference
from pipeline.model.alphabet import encode
from pipeline.model.charcnn import Model
from pipeline.model.layers import Frame

NEWS = b"Wall St. Bears Claw Back Into the Black. Short-sellers, Wall Street's dwindling band, are seeing green again."


def ids_of(model: Model, texts: list[bytes]) -> np.ndarray:
    given = Texts.of(texts)
    return encode(given.data, given.offsets, model.alphabet, model.length).ids


def logits(model: Model, ids: np.ndarray, steps_in_sum: int = 2) -> np.ndarray:
    weights = reference.prepare(model)
    return split_twin.forward(ids, weights, split.prepare(weights), steps_in_sum)


def test_two_parts_hold_22_bits() -> None:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((40, 64)) * 2.0 ** rng.integers(-20, 15, (40, 64))).astype(np.float32)
    parts = split.split(values)
    assert parts.shape == (40, 128)
    assert np.array_equal(parts[:, 64:96], values[:, 32:].astype(np.float16))
    off = np.abs(split.joined(parts) - values)
    assert (off <= np.maximum(np.abs(values) * 2.0**-22, 2.0**-25)).all()
    assert np.array_equal(split.split(np.full((1, 32), 65_530, np.float32)), [[np.inf] * 32 + [-np.inf] * 32])


@pytest.mark.parametrize(("weights", "frame"), [("random", "dense"), ("trained", "text")])
def test_the_twin_is_as_accurate_as_fp32(weights: str, frame: Frame) -> None:
    model = replace(load_model() if weights == "trained" else random_model(), frame=frame)
    ids = ids_of(model, [NEWS] if weights == "trained" else random_texts(3, 1))
    true = exact.logits(model, ids)
    found = error(logits(model, ids), true)
    print(f"{weights} weights, {frame} frame: {found:.1e} off in sums of 64 products, fp32 in NumPy "
          f"{error(reference.forward(ids, reference.prepare(model)), true):.1e}")  # fmt: skip
    assert found <= LIMITS["fp32"]


def test_sums_of_a_tensor_core_must_be_short(small_model: Model) -> None:
    """Without promotion to fp32 registers what each step drops adds up."""
    ids = ids_of(small_model, random_texts(4, 3))
    true = exact.logits(small_model, ids)
    errors = [error(logits(small_model, ids, steps), true) for steps in (1, 2, 1 << 20)]
    print(f"off in sums of 32, 64 and all products: {errors}")
    assert max(errors[:2]) <= LIMITS["fp32"]
    assert errors[2] > 3 * errors[1]


def rescaled(model: Model, seed: int) -> Model:
    """The same function: each channel of block 2 is larger by a power of two, and the weights that read it smaller."""
    rng = np.random.default_rng(seed)
    powers = 2.0 ** rng.integers(-30, 30, model.tensors["conv2.bias"].shape)
    tensors = dict(model.tensors)
    tensors["conv2.weight"] = (tensors["conv2.weight"] * powers[:, None, None]).astype(np.float32)
    tensors["conv2.bias"] = (tensors["conv2.bias"] * powers).astype(np.float32)
    tensors["conv3.weight"] = (tensors["conv3.weight"] / powers[:, None]).astype(np.float32)
    return replace(model, tensors=tensors)


def test_activations_beyond_fp16_keep_every_bit(small_model: Model) -> None:
    ids = ids_of(small_model, random_texts(5, 2))
    assert np.array_equal(logits(small_model, ids), logits(rescaled(small_model, 1), ids))


def test_what_no_part_can_hold_has_no_score(small_model: Model) -> None:
    """Scales that are 2^12 too large make parts infinite, and what is too small for its parts is not scored either."""
    ids = ids_of(small_model, random_texts(5, 2))
    weights = reference.prepare(small_model)
    parts = split.prepare(weights)
    loud = {**parts.affine, "conv3": parts.affine["conv3"] * np.float32(2.0**12)}
    assert np.isnan(split_twin.forward(ids, weights, replace(parts, affine=loud))).all()
    assert np.isnan(split_twin.forward(ids, weights, replace(parts, least_variance=1e6))).all()
