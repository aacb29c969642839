"""fp32 on tensor cores, on a GPU: what two fp16 parts cannot hold, and the bits of a layer beside its twin."""

from __future__ import annotations

import exact
import numpy as np
import pytest
import split_twin
from gpu import LIMITS, SPLIT_STACKS, error, logits_of, opened_for, poison, random_texts
from overflowing import enlarged, grown
from test_fp32_tensor_cores import rescaled

from pipeline.engine.base import Texts
from pipeline.engine.open import why_no_gpu
from pipeline.kernels import split
from pipeline.model import reference
from pipeline.model.alphabet import encode
from pipeline.model.charcnn import Model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]

on_each_stack = pytest.mark.parametrize("stack", SPLIT_STACKS, ids="-".join)


def scores(model: Model, stack: tuple[str, str], texts: Texts) -> np.ndarray:
    engine = opened_for(model, *stack)
    poison(engine)
    found = engine.classify(texts, all_scores=True).all_scores
    engine.close()
    return found


@on_each_stack
def test_logits_are_those_of_the_twin(stack: tuple[str, str], small_model: Model) -> None:
    """Nearer to each other than to float64, if the twin's sums are those of this GPU; never far in any case."""
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


@on_each_stack
def test_activations_far_beyond_fp16_keep_every_bit(stack: tuple[str, str], small_model: Model) -> None:
    """Scales are powers of two, so these models give the same bits, and no article goes another way."""
    texts = Texts.of(random_texts(6, 300))
    plain = scores(small_model, stack, texts)
    assert np.isfinite(plain).all()
    assert np.array_equal(scores(rescaled(small_model, 2), stack, texts), plain)
    assert np.array_equal(scores(enlarged(small_model, 40), stack, texts), plain)


@on_each_stack
def test_simt_takes_over_what_parts_cannot_hold(stack: tuple[str, str], small_model: Model) -> None:
    """Block 3's scales on the GPU are made far too large, so its parts are infinite: all articles still have scores."""
    texts = Texts.of(random_texts(6, 100))
    engine, simt = opened_for(small_model, *stack), opened_for(small_model, "simt", "fp32")
    plain = engine.classify(texts, all_scores=True).all_scores
    engine.network._weights.bias["conv3"][0, :] *= np.float32(2.0**12)
    found, expected = engine.classify(texts, 2, all_scores=True), simt.classify(texts, 2, all_scores=True)
    engine.close(), simt.close()
    assert np.array_equal(found.all_scores, expected.all_scores)
    assert np.array_equal(found.labels, expected.labels)
    assert np.abs(plain - expected.all_scores).max() < 1e-5


@on_each_stack
@pytest.mark.parametrize(
    ("tensor", "largest"),
    [(f"conv{block}.weight", 3e38) for block in range(1, 7)]
    + [("conv1.weight", 1e21), ("conv6.weight", 1e21), ("norm1.weight", 3e38), ("norm6.weight", 3e38)]
    + [("fc1.weight", 3e38), ("fc2.weight", 3e38), ("fc3.weight", 3e38), ("conv2.weight", 1e-30)],
)
def test_a_label_is_right_or_missing(stack: tuple[str, str], tensor: str, largest: float, small_model: Model) -> None:
    """Where fp32 itself overflows, scaled parts may not, and their label is then right."""
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
