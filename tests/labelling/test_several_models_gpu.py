"""Several models on a GPU: text is copied and encoded once for those that read alike, and the bits are those of each
alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import random_model
from gpu import hostile_texts, random_texts

from pipeline.engine.base import Engine, Texts
from pipeline.engine.open import opened, why_no_gpu
from pipeline.labelling.scored import Scoring, score
from pipeline.model.charcnn import Model
from pipeline.model.several import heads_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]


def encoders(engine: Engine) -> list[str]:
    """Each kernel that encodes is added here when it is launched."""
    launched: list[str] = []

    def watch(kernel, grid, arguments) -> None:
        if "encode" in kernel.name:
            launched.append(kernel.name)

    engine.network.watcher = watch
    return launched


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_models_that_read_alike_share_the_ids_and_keep_their_bits(model: Model, precision: str) -> None:
    articles = random_texts(5, 3000) + hostile_texts() + random_texts(6, 9000)
    texts = Texts.of([article for article in articles if _is_utf8(article)])
    others = [random_model(seed=8), replace(random_model(seed=9), frame="text"), random_model(seed=3, length=200)]
    models = [model, *others]
    with opened(models, "cuda", precision) as engines:
        scoring = [Scoring(2, True) for _ in models]
        alone = [engine.classify(texts, 2, True) for engine in engines]
        counts = [encoders(engine) for engine in engines]
        together = score(texts, engines, scoring)
        for expected, found in zip(alone, together, strict=True):
            for name in ("labels", "scores", "all_scores", "n_chars", "truncated", "unknown_chars"):
                assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name
        assert counts[0]
        assert counts[3]  # of another length
        assert not counts[1]
        assert not counts[2]


def _is_utf8(article: bytes) -> bool:
    try:
        article.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_heads_say_what_models_of_their_own_say(model: Model, precision: str) -> None:
    texts = Texts.of([article for article in random_texts(5, 3000) if _is_utf8(article)])
    names = ("a: x", "a: y", "b: x", "b: y")
    both = replace(model, classes=names, heads=(("a", 2), ("b", 2)))
    heads = heads_of(both)
    with opened([both], "cuda", precision) as together, opened(heads, "cuda", precision) as alone:
        scoring = [Scoring(2, True), Scoring(1, False)]
        found, expected = score(texts, together, scoring), score(texts, alone, scoring)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-5)
        sure = theirs.scores[:, 0] > 0.5 + 1e-4
        assert (ours.labels[sure] == theirs.labels[sure]).all()
    np.testing.assert_allclose(found[0].all_scores, expected[0].all_scores, atol=1e-5)
    assert found[1].all_scores is None
