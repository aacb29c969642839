"""The temperature of scores, on a GPU: the softmax kernel against its twin, in batches and in graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu import STACKS, logits_of, opened_for, random_texts

from pipeline.engine.base import Texts
from pipeline.engine.open import why_no_gpu
from pipeline.model import reference
from pipeline.model.charcnn import Model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]


@pytest.mark.parametrize(("kernels", "precision"), STACKS)
def test_scores_are_those_of_the_twin_at_the_same_temperature(model: Model, kernels: str, precision: str) -> None:
    plain, warm = (opened_for(replace(model, temperature=t), kernels, precision) for t in (1.0, 0.7))
    try:
        texts = Texts.of(random_texts(5, 300))
        before, after = (engine.classify(texts, all_scores=True) for engine in (plain, warm))
        logits = logits_of(warm, texts)
        np.testing.assert_array_equal(logits, logits_of(plain, texts))  # they are the same; the softmax is not
        np.testing.assert_allclose(after.all_scores, reference.softmax(logits, 0.7), rtol=2e-5)
        np.testing.assert_array_equal(after.labels, before.labels)
        assert not np.array_equal(after.scores, before.scores)
        few = Texts.of(random_texts(6, 5))  # one CUDA graph
        by_graph, one_by_one = warm.classify(few, all_scores=True), warm.classify(few, 1, True, [], True)
        np.testing.assert_array_equal(by_graph.all_scores, one_by_one.all_scores)
    finally:
        plain.close()
        warm.close()
