"""Soft labels: by teachers or in columns, beside labels or in their place, of text that has no label too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from conftest import random_model
from test_train import LENGTH, QUICK, TOPICS, articles, one_thread, quick_train

from pipeline.errors import UsageError
from pipeline.model import reference
from pipeline.model.alphabet import Alphabet
from pipeline.train import SoftLabels
from pipeline.train.data import ArticleReader, read_taught
from pipeline.train.recipe import WITH_SPACE

__all__ = ["one_thread"]  # a fixture of every test here too

CLASSES = tuple(sorted(TOPICS))
TEXTS = ["a bank", "a comet", "a match", "a goal"]
TABLE = pa.table(
    {
        "text": TEXTS,
        "kind": ["money", None, "sport", ""],
        "score_sport": [0.1, 0.0, None, 3.0],
        "score_money": [0.8, 0.25, None, 1.0],
        "score_space": [0.1, 0.75, None, 0.0],
    }
)
COLUMNS = ("score_sport", "score_money", "score_space")


def read(table: pa.Table, columns: tuple[str, ...] = COLUMNS, label: str | None = "kind", **options: object):
    return read_taught(table, ArticleReader(("text",), Alphabet(WITH_SPACE), LENGTH), label, columns, None, **options)


def test_columns_of_probabilities_are_by_class_and_rows_without_a_label_have_the_most_probable_one() -> None:
    taught = read(TABLE, classes=CLASSES)
    assert taught.data.labels.tolist() == [0, 1, 2, 2]
    assert taught.labelled.tolist() == [True, False, True, False]
    half = taught.targets(0.5, np.array([0]))  # row 0 is held out
    assert half.tolist() == [[1, 0, 0], [0.25, 0.75, 0], [0, 0, 1], [0.25, 0, 0.75]]
    assert taught.targets(0.5, np.array([], np.int64))[0] == pytest.approx([0.9, 0.05, 0.05])
    lists = pa.table({"text": TEXTS, "p": [[0.8, 0.1, 0.1], [0.25, 0.75, 0], [0, 0, 1], [0.25, 0, 0.75]]})
    alone = read(lists, ("p",), None, classes=CLASSES)
    assert alone.targets(0.5, np.array([], np.int64)).tolist()[1:] == half.tolist()[1:]


def test_soft_labels_that_are_none_are_told() -> None:
    for value, message in (([0.5, 0.5], "2 probabilities a row"), ([-1.0, 1.0, 1.0], "negative")):
        table = pa.table({"text": ["a"], "p": [value]})
        with pytest.raises(UsageError, match=message):
            read(table, ("p",), None, classes=CLASSES)
    with pytest.raises(UsageError, match="row 1 has neither"):
        read(pa.table({"text": ["a", "b"], "kind": ["money", None], "p": [None, None]}), ("p",), classes=CLASSES)
    with pytest.raises(UsageError, match="either from teachers or"):
        SoftLabels(("p",), ("ag-news",))


def test_a_student_learns_from_teachers_what_nobody_labelled() -> None:
    """From random ones, whose answers have no other source."""
    first, second = (replace(random_model(seed, WITH_SPACE, LENGTH, 3), classes=CLASSES) for seed in (1, 2))
    second = replace(second, classes=CLASSES[::-1])
    soft = SoftLabels(models=(first, second), unlabelled=pa.table({"text": TEXTS}), device="cpu", share=0.0)
    trained = quick_train(articles(40), replace(QUICK, epochs=1), soft_labels=soft)
    assert trained.model.card["data"]["rows"] == 44
    assert trained.model.card["data"]["held_out_rows"] == 8
    assert len(trained.model.card["soft_labels"]["teachers"]) == 2
    taught = soft.read(articles(4), ArticleReader(("text",), Alphabet(WITH_SPACE), LENGTH), "kind", None)
    logits = [reference.forward(taught.data.ids[4:], reference.prepare(model)) for model in (first, second)]
    one, other = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in logits)
    assert taught.probabilities[4:] == pytest.approx((one + other[:, ::-1]) / 2, abs=1e-5)
    assert taught.targets(0.5, np.array([], np.int64))[4:] == pytest.approx(taught.probabilities[4:])
