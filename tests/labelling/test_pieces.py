"""A chunk that a CPU labels piece by piece has the scores of one call, and reports its progress."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
from conftest import random_model

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import opened
from broadsheet.pipeline.labelling.pieces import in_pieces
from broadsheet.pipeline.labelling.scored import Scoring, score
from broadsheet.pipeline.labelling.windows import Windows
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model

WORDS = ["oil", "prices", "rose", "as", "the", "market", "fell", "after", "a", "striker", "scored", "twice"]


def texts_of(rows: int) -> list[bytes]:
    """Return short and long texts, some empty, and some outside the model's alphabet."""
    rng = np.random.default_rng(3)
    lengths = rng.choice([0, 1, 7, 30, 400], rows)
    made = [" ".join(rng.choice(WORDS, length)) + ("é" * 9 if length == 7 else "") for length in lengths]
    return [text.encode() for text in made]


@pytest.mark.parametrize("kind", ["shipped", "windows", "int8", "several"])
def test_pieces_have_the_scores_of_one_call(kind: str, small_model: Model) -> None:
    models = [load_model("ag-news")] if kind != "several" else [small_model, random_model(2, length=123, classes=3)]
    windows = Windows(3, part="spread") if kind == "windows" else None
    scoring = [Scoring(2, True, windows)] * len(models)
    texts = replace(Texts.of(texts_of(40)), n_chars=None)
    with opened(models, "cpu", "int8" if kind == "int8" else "fp32", "auto") as engines:
        label = partial(score, engines=engines, scoring=scoring)
        whole, told = label(texts), []
        found = in_pieces(texts, label, told.append, 5, 0.01)
    assert told, "it was labelled in one piece"
    assert told == sorted({*told})
    assert 5 <= told[0] <= told[-1] < 40
    for one, other in zip(found, whole, strict=True):
        for field in fields(one):
            a, b = getattr(one, field.name), getattr(other, field.name)
            assert (a is None) == (b is None), field.name
            if isinstance(a, np.ndarray):
                assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b, field.name) if a is not None else None


def test_no_text_is_one_piece_and_few_are_too() -> None:
    with opened([load_model("ag-news")], "cpu", "fp32", "auto") as engines:
        label = partial(score, engines=engines, scoring=[Scoring()])
        for rows in (0, 1, 60):
            told: list[int] = []
            (found,) = in_pieces(Texts.of(texts_of(rows)), label, told.append)
            assert (len(found.labels), told) == (rows, [])
