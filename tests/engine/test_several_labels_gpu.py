"""Several labels a text, on a GPU: the kernel's sigmoids against their twin, in batches and in graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import random_model
from gpu import STACKS, logits_of, opened_for, random_texts

from pipeline.engine.base import Texts
from pipeline.engine.open import why_no_gpu
from pipeline.model import reference
from pipeline.model.charcnn import Model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]


@pytest.mark.parametrize(("kernels", "precision"), STACKS)
def test_scores_are_those_of_the_twin(model: Model, kernels: str, precision: str) -> None:
    engine = opened_for(replace(model, thresholds=(0.5,) * 4), kernels, precision)
    try:
        texts = Texts.of(random_texts(7, 300))
        found = engine.classify(texts, 3, all_scores=True)
        expected = reference.sigmoid(logits_of(engine, texts))
        np.testing.assert_allclose(found.all_scores, expected, rtol=2e-5)
        labels, best = reference.top_k(found.all_scores, 3)
        np.testing.assert_array_equal(found.labels, labels)
        np.testing.assert_array_equal(found.scores, best)
        few = Texts.of(random_texts(8, 5))  # one CUDA graph
        by_graph, one_by_one = engine.classify(few, 3, True), engine.classify(few, 3, True, [], True)
        np.testing.assert_array_equal(by_graph.all_scores, one_by_one.all_scores)
        np.testing.assert_array_equal(by_graph.labels, one_by_one.labels)
    finally:
        engine.close()


def test_an_overflow_has_no_scores() -> None:
    model = random_model(3, classes=70)
    weight = model.tensors["fc3.weight"].copy()
    weight[40] = 3e38
    model = replace(model, tensors={**model.tensors, "fc3.weight": weight}, thresholds=(0.5,) * 70)
    engine = opened_for(model, "simt", "fp32")
    try:
        found = engine.classify(Texts.of(random_texts(9, 40)), 2, all_scores=True)
        expected = reference.sigmoid(logits_of(engine, Texts.of(random_texts(9, 40))))
        lost = ~np.isfinite(expected).all(axis=1)
        assert np.isnan(found.all_scores[lost]).all()
        assert (found.labels[lost] == -1).all()
    finally:
        engine.close()
