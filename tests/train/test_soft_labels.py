"""Soft labels: from teachers or columns, beside labels or instead of them, also for text without a label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import random_model
from training import LENGTH, QUICK, TOPICS, articles, one_thread, quick_train

from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.alphabet import Alphabet
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.train import SoftLabels, Trained, train
from broadsheet.pipeline.train.data import ArticleReader
from broadsheet.pipeline.train.recipe import WITH_SPACE
from broadsheet.pipeline.train.teachers import read_taught

tokenizers = pytest.importorskip("tokenizers")

__all__ = ["one_thread"]  # a fixture that every test here uses too

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
    return read_taught(table, ArticleReader(("text",), Alphabet(WITH_SPACE), LENGTH), label, columns, **options)


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
    with pytest.raises(UsageError, match="from teachers or from columns: give one"):
        SoftLabels(("p",), ("ag-news",))


@pytest.mark.slow
def test_a_student_learns_from_teachers_what_nobody_labelled() -> None:
    """The teachers are random, so their answers have no other source."""
    first, second = (replace(random_model(seed, WITH_SPACE, LENGTH, 3), classes=CLASSES) for seed in (1, 2))
    second = replace(second, classes=CLASSES[::-1])
    soft = SoftLabels(models=(first, second), unlabelled=pa.table({"text": TEXTS}), device="cpu", share=0.0)
    trained = quick_train(articles(40), replace(QUICK, epochs=1), soft_labels=soft)
    assert trained.model.card["data"]["rows"] == 44
    assert trained.model.card["data"]["held_out_rows"] == 8
    assert len(trained.model.card["soft_labels"]["teachers"]) == 2
    taught = soft.read(articles(4), ArticleReader(("text",), Alphabet(WITH_SPACE), LENGTH), "kind", None)
    taught = soft.taught(taught, np.array([], np.int64))
    logits = [reference.forward(taught.data.ids[4:], reference.prepare(model)) for model in (first, second)]
    one, other = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in logits)
    assert taught.probabilities[4:] == pytest.approx((one + other[:, ::-1]) / 2, abs=1e-5)
    assert taught.targets(0.5, np.array([], np.int64))[4:] == pytest.approx(taught.probabilities[4:])


def by_words(texts: list[str]) -> np.ndarray:
    """Return a teacher's scores by the words of each topic. The teacher knows nothing about other texts."""
    hits = [[sum(word in text.split() for word in TOPICS[name].split()) for name in CLASSES] for text in texts]
    return np.array(hits, float) ** 2 + 1e-3


def taught_by(teacher: object, **options: object) -> Trained:
    labelled = pa.table({"text": [f"{name} label{i}" for i in range(20) for name in "xyz"], "kind": [*CLASSES] * 20})
    soft = SoftLabels(models=(teacher,), unlabelled=articles(120).select(["text"]), device="cpu")
    return train(
        labelled, text_column="text", label_column="kind", soft_labels=soft, vectors=None, device="cpu", **options
    )


@pytest.mark.slow
def test_n_grams_alone_learn_from_a_function_what_nobody_labelled() -> None:
    """On a CPU, where no network is trained, they learn words that no labelled row has."""
    tested = articles(60, seed=2)
    trained = taught_by("test_soft_labels:by_words", test=tested, ngrams=1 << 16)
    assert trained.history == ()
    assert trained.model.card["test"]["accuracy"] > 0.98
    assert trained.model.card["data"]["held_out_rows"] == 12  # 12 of the labelled rows
    assert trained.model.card["soft_labels"]["teacher_accuracy"] < 0.7 < trained.model.card["held_out_accuracy"]
    for wrong, message in (("test_soft_labels:none", "there is no teacher"), ("builtins:len", "gave an array")):
        with pytest.raises(UsageError, match=message):
            taught_by(wrong)
    with pytest.raises(UsageError, match=r"can be loaded|pip install"):
        taught_by("/no/such/folder")


def silent(texts: list[str]) -> list[list[float]]:
    return [[np.nan] * len(CLASSES)] * len(texts)


def half_silent(texts: list[str]) -> np.ndarray:
    """Return scores that lack all values for texts about orbits, and some values for texts about coaches."""
    scores = by_words(texts)
    scores[["orbit" in text for text in texts]] = np.nan
    scores[["coach" in text for text in texts], 1] = np.nan
    return scores


def in_words(texts: list[str]) -> list[str]:
    return ["money"] * len(texts)


def failing(texts: list[str]) -> np.ndarray:
    raise RuntimeError("no licence")


def below_zero(texts: list[str]) -> np.ndarray:
    scores = by_words(texts)
    scores[1, 0] = -0.1
    return scores


WRONG = {
    "below_zero": r"row 1 \(the first is 0\) has negative",
    "silent": "no probabilities for any of the texts",
    "in_words": r"gave no probabilities \(ValueError: could not convert",
    "failing": r"gave no probabilities \(RuntimeError: no licence",
    "none": "there is no teacher",
    "CLASSES": "is no function",
}


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        *((f"test_soft_labels:{name}", message) for name, message in WRONG.items()),
        (":f", "there is no teacher :f"),
        (".os:path", "there is no teacher"),
        ("os:path", "is no function"),
        ("os:getcwd", r"gave no probabilities \(TypeError"),
        (replace(random_model(1, WITH_SPACE, LENGTH, 3), classes=CLASSES, name="loud"), "teacher loud has no prob"),
    ],
)
def test_a_teacher_that_says_nothing_is_refused(teacher: str | Model, message: str) -> None:
    """The last teacher is a model of ours that overflows on every text."""
    if isinstance(teacher, Model):
        weights = {name: np.full_like(values, 3e38) for name, values in teacher.tensors.items()}
        teacher = replace(teacher, tensors=weights)
    soft = SoftLabels(models=("test_soft_labels:by_words", teacher), device="cpu")
    reading = ArticleReader(("text",), Alphabet(WITH_SPACE), LENGTH)
    taught = soft.read(articles(9), reading, "kind", CLASSES)
    with pytest.raises(UsageError, match=message):
        soft.taught(taught, np.array([], np.int64))


def test_columns_without_any_probability_are_refused() -> None:
    with pytest.raises(UsageError, match="soft labels in p: no row has any"):
        read(pa.table({"text": ["a", "b"], "kind": ["money", "sport"], "p": [None, None]}), ("p",), classes=CLASSES)


def test_rows_that_a_teacher_leaves_out_are_those_of_other_teachers_or_not_trained_on() -> None:
    rows = articles(90)
    silent_of = np.array([bool({"orbit", "coach"} & {*text.split()}) for text in rows["text"].to_pylist()])
    reading = ArticleReader(("text",), Alphabet(WITH_SPACE), LENGTH)
    first, second = "test_soft_labels:half_silent", "test_soft_labels:by_words"
    none = np.array([], np.int64)
    one, both, other = (
        (soft := SoftLabels(models=models, device="cpu")).taught(soft.read(rows, reading, None, CLASSES), none)
        for models in ((first,), (first, second), (second,))
    )
    assert one.answered.tolist() == (~silent_of).tolist()
    assert both.answered.all()
    assert both.probabilities == pytest.approx(other.probabilities)
    notes: list[object] = []
    soft = SoftLabels(models=(first,), device="cpu")
    options = {"classes": CLASSES, "soft_labels": soft, "vectors": None, "ngrams": 1 << 16, "device": "cpu"}
    trained = train(rows, text_column="text", hold_out_share=0.2, tell=notes.append, **options)
    left_out = f"{silent_of.sum()} rows have no label, and no probabilities of a teacher: they are left out"
    assert left_out in [getattr(note, "text", "") for note in notes]
    assert trained.model.card["held_out_agreement"] == 1
    assert "held_out_accuracy" not in trained.model.card  # no row says what is right
    assert "agree" in trained.model.card["score of 0.9 or more"]
    assert any(getattr(note, "text", "").startswith("n-grams agree with the teacher on 100.00%") for note in notes)
    assert trained.model.card["data"]["held_out_rows"] < 18


@pytest.mark.slow
def test_a_sentence_encoder_learns_from_the_labels_and_teaches(tmp_path: Path) -> None:
    """The encoder is a folder of sentence-transformers. It does not see the labels of the rows that it is
    asked about.
    """
    transformers = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    words = sorted({word for topic in TOPICS.values() for word in topic.split()})
    splitter = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate([*words, "[UNK]"])}, "[UNK]")
    )
    splitter.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    topic = [next(i for i, name in enumerate(CLASSES) if word in TOPICS[name].split()) for word in words]
    weights = np.vstack([np.eye(3)[topic], np.zeros((1, 3))]).astype(np.float32)
    encoder = modules.StaticEmbedding(splitter, embedding_weights=weights)
    transformers.SentenceTransformer(modules=[encoder], device="cpu").save(str(tmp_path / "encoder"))
    rows = articles(30, seed=5)
    half = rows.set_column(
        1, "kind", pa.array([kind if i < 24 else None for i, kind in enumerate(rows["kind"].to_pylist())])
    )
    soft = SoftLabels(models=(tmp_path / "encoder",), device="cpu")
    taught = soft.read(half, ArticleReader(("text",), Alphabet(WITH_SPACE), LENGTH), "kind", None)
    assert taught.labelled.sum() == 24
    taught = soft.taught(taught, np.arange(4))
    truth = [CLASSES.index(kind) for kind in rows["kind"].to_pylist()]
    assert taught.data.labels.tolist() == truth
    assert taught.right(np.arange(30)) == 1.0
    assert (taught.sure()[24:] < 1).all()
    other = CLASSES[truth[0] - 1]
    wrong = rows.set_column(1, "kind", pa.array([other, *rows["kind"].to_pylist()[1:]]))
    told = soft.read(wrong, ArticleReader(("text",), Alphabet(WITH_SPACE), LENGTH), "kind", None)
    assert soft.taught(told, np.array([], np.int64)).probabilities[0].argmax() == truth[0]


def test_what_a_teacher_is_unsure_of_counts_less() -> None:
    taught = read(TABLE, classes=CLASSES)
    assert taught.sure() == pytest.approx(
        [1, 0.4881, 1, 0.4881], abs=1e-4
    )  # labelled, three quarters, labelled, the same
    assert taught.right(np.arange(4)) == 1.0  # judged on the only row that has both
