"""Rows with a wrong label are found by the model, and by the labels of the most similar texts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from broadsheet.pipeline.model.alphabet import PUBLISHED, Alphabet
from broadsheet.pipeline.model.ngrams import Kinds
from broadsheet.pipeline.train.branch import bags
from broadsheet.pipeline.train.data import ArticleReader, LabelledArticles, read_labelled
from broadsheet.pipeline.train.suspects import neighbours
from broadsheet.pipeline.train.vectors import WordVectors

ANIMALS = ("cat dog", "cat hen", "dog hen", "cat dog hen")
PLANTS = ("oak elm", "oak ash", "elm ash", "oak elm ash")


def articles(texts: list[str], kinds: list[str]) -> LabelledArticles:
    reader = ArticleReader(("text",), Alphabet(PUBLISHED), 123)
    return read_labelled(pa.table({"text": texts, "kind": kinds}), reader, "kind", None, False, None)


def shares(data: LabelledArticles, fit: np.ndarray, rows: np.ndarray, vectors: WordVectors | None = None) -> np.ndarray:
    grams = bags(*data.text.rows(np.union1d(fit, rows)), Kinds(1, (0, 0), 1014), 16, vectors)
    return np.exp(neighbours(data, fit, rows, grams))


def test_a_row_has_the_classes_of_the_texts_that_are_most_like_it() -> None:
    data = articles([*ANIMALS * 6, *PLANTS * 6], ["animal"] * 24 + ["plant"] * 24)
    every = np.arange(48)
    found = shares(data, every, every)
    assert np.allclose(found.sum(axis=1), 1)
    assert (found.argmax(axis=1) == data.labels).all()
    assert found.max(axis=1).min() > 0.9


def test_a_row_is_no_neighbour_of_itself_and_neither_is_a_copy() -> None:
    """Five copies of one text that all have the wrong label do not support each other."""
    data = articles(["cat dog owl"] * 5 + [*ANIMALS * 5, *PLANTS * 5], ["plant"] * 5 + ["animal"] * 20 + ["plant"] * 20)
    every = np.arange(45)
    assert (shares(data, every, every)[:5].argmax(axis=1) == data.classes.index("animal")).all()
    held = np.arange(5, 45)
    assert (shares(data, held, np.arange(5)).argmax(axis=1) == data.classes.index("animal")).all()


def test_word_vectors_say_that_texts_without_a_common_word_are_alike() -> None:
    data = articles(["cow pig", *ANIMALS * 6, *PLANTS * 6], ["plant"] + ["animal"] * 24 + ["plant"] * 24)
    every = np.arange(49)
    words = ["cat", "dog", "hen", "cow", "pig", "oak", "elm", "ash"]
    vectors = WordVectors(words, np.array([[1.0, 0.0]] * 5 + [[0.0, 1.0]] * 3, np.float32), {})
    without, known = (shares(data, every, every, given)[0] for given in (None, vectors))
    animal = data.classes.index("animal")
    assert without[animal] < 0.9 < known[animal]
