"""fp32 on tensor cores with two fp16 parts for each number: a NumPy twin of the kernels shows the error, and the
kernels are compared with it.
"""

from __future__ import annotations

from dataclasses import replace

import exact
import numpy as np
import pytest
import split_twin
from conftest import random_model
from gpu import LIMITS, SPLIT_STACKS, error, logits_of, needs_gpu, opened_for, poison, random_texts
from overflowing import enlarged, grown

from broadsheet.pipeline import load_model
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.kernels import split
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import Frame

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


# Random weights of one scale, and trained ones, whose scales differ.
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
    """Without promotion to fp32 registers, the bits that each step drops add up."""
    ids = ids_of(small_model, random_texts(4, 3))
    true = exact.logits(small_model, ids)
    errors = [error(logits(small_model, ids, steps), true) for steps in (1, 2, 1 << 20)]
    print(f"off in sums of 32, 64 and all products: {errors}")
    assert max(errors[:2]) <= LIMITS["fp32"]
    assert errors[2] > 3 * errors[1]


def rescaled(model: Model, seed: int) -> Model:
    """Return the same function with channels of block 2 scaled by powers of two, and the weights that read them scaled
    back.
    """
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
    """Scales that are 2^12 too large make parts infinite, and values too small for their parts get no score either."""
    ids = ids_of(small_model, random_texts(5, 2))
    weights = reference.prepare(small_model)
    parts = split.prepare(weights)
    loud = {**parts.affine, "conv3": parts.affine["conv3"] * np.float32(2.0**12)}
    assert np.isnan(split_twin.forward(ids, weights, replace(parts, affine=loud))).all()
    assert np.isnan(split_twin.forward(ids, weights, replace(parts, least_variance=1e6))).all()


# fp32 on tensor cores, on a GPU: values that two fp16 parts cannot hold, and the bits of a layer beside its twin.


on_each_stack = pytest.mark.parametrize("stack", SPLIT_STACKS, ids="-".join)


def scores(model: Model, stack: tuple[str, str], texts: Texts) -> np.ndarray:
    engine = opened_for(model, *stack)
    poison(engine)
    found = engine.classify(texts, all_scores=True).all_scores
    engine.close()
    return found


@needs_gpu
@on_each_stack
def test_logits_are_those_of_the_twin(stack: tuple[str, str], small_model: Model) -> None:
    """If the twin sums as this GPU does, the two are nearer to each other than to float64. They are never far apart."""
    texts = Texts.of(random_texts(3, 40))
    ids = encode(texts.data, texts.offsets, small_model.alphabet, small_model.length).ids
    weights = reference.prepare(small_model)
    twin = split_twin.forward(ids, weights, split.prepare(weights), 1 if stack[0] == "sm80" else 2)
    engine = opened_for(small_model, *stack)
    poison(engine)
    found = logits_of(engine, texts)
    engine.close()
    true = exact.logits(small_model, ids)
    print(f"{stack}: off {error(found, true):.1e}, the twin {error(twin, true):.1e}, {error(found, twin):.1e} apart")
    assert error(found, true) <= LIMITS["fp32"]
    assert error(found, twin.astype(np.float64)) <= LIMITS["fp32"]


@needs_gpu
@on_each_stack
def test_activations_far_beyond_fp16_keep_every_bit(stack: tuple[str, str], small_model: Model) -> None:
    """Scales are powers of two, so these models give the same bits, and every article takes the same path."""
    texts = Texts.of(random_texts(6, 300))
    plain = scores(small_model, stack, texts)
    assert np.isfinite(plain).all()
    assert np.array_equal(scores(rescaled(small_model, 2), stack, texts), plain)
    assert np.array_equal(scores(enlarged(small_model, 40), stack, texts), plain)


@needs_gpu
@on_each_stack
def test_simt_takes_over_what_parts_cannot_hold(stack: tuple[str, str], small_model: Model) -> None:
    """The test makes block 3's scales on the GPU far too large, so that its parts are infinite. All articles get
    scores.
    """
    texts = Texts.of(random_texts(6, 100))
    engine, simt = opened_for(small_model, *stack), opened_for(small_model, "simt", "fp32")
    plain = engine.classify(texts, all_scores=True).all_scores
    engine.network._weights.bias["conv3"][0, :] *= np.float32(2.0**12)
    found, expected = engine.classify(texts, 2, all_scores=True), simt.classify(texts, 2, all_scores=True)
    engine.close(), simt.close()
    assert np.array_equal(found.all_scores, expected.all_scores)
    assert np.array_equal(found.labels, expected.labels)
    assert np.abs(plain - expected.all_scores).max() < 1e-5


@needs_gpu
@on_each_stack
@pytest.mark.parametrize(
    ("tensor", "largest"),
    [(f"conv{block}.weight", 3e38) for block in range(1, 7)]
    + [("conv1.weight", 1e21), ("conv6.weight", 1e21), ("norm1.weight", 3e38), ("norm6.weight", 3e38)]
    + [("fc1.weight", 3e38), ("fc2.weight", 3e38), ("fc3.weight", 3e38), ("conv2.weight", 1e-30)],
)
def test_a_label_is_right_or_missing(stack: tuple[str, str], tensor: str, largest: float, small_model: Model) -> None:
    """Where fp32 itself overflows, scaled parts may not, and then their label is right."""
    model = grown(small_model, tensor, largest, "mixed")
    texts = Texts.of([text for text in random_texts(5, 60) if len(text) > 20])
    ids = encode(texts.data, texts.offsets, model.alphabet, model.length).ids
    engine = opened_for(model, *stack)
    found = engine.classify(texts, all_scores=True)
    engine.close()
    true = exact.logits(model, ids)
    kept = ~found.overflowed
    margin = np.sort(true, axis=1)
    clear = kept & (margin[:, -1] - margin[:, -2] > 1e-4 * np.abs(margin).max(axis=1))
    assert (found.labels[clear, 0] == true.argmax(axis=1)[clear]).all()
    assert (found.labels[~kept] == reference.NO_LABEL).all()
