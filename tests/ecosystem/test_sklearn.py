"""The estimator, as scikit-learn uses it."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

from broadsheet import pipeline
from broadsheet.sklearn import TextClassifier

torch = pytest.importorskip("torch")

STILL = {"dropped_words": 0.0, "random_characters": 0.0, "erased_spans": 0, "shift": 0, "cut": 0}
STILL |= {"dropout": 0.0, "input_dropout": 0.0, "warmup": 0.2}
TEXTS = ["stock bank profit", "goal coach league"] * 8
TOPICS = [7, 3] * 8

APPLY = [
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def quick(**settings: object) -> TextClassifier:
    given = {"epochs": 8, "batch_size": 4, "learning_rate": 2e-3, "settings": STILL, "random_state": 0}
    given |= {"ngrams": 0, "hold_out_share": 0.0}
    return TextClassifier(**{**given, "length": 123, "device": "cpu", **settings})


@pytest.fixture(scope="module")
def fitted() -> TextClassifier:
    return quick().fit(TEXTS, TOPICS)


@pytest.mark.slow
def test_it_learns_and_predicts(fitted: TextClassifier) -> None:
    assert fitted.classes_.tolist() == [3, 7]
    assert fitted.score(TEXTS, TOPICS) == 1.0
    scores = fitted.predict_proba(pd.Series(TEXTS[:2]))
    assert scores.shape == (2, 2)
    assert fitted.predict(np.array(TEXTS[:2], object)).tolist() == [7, 3]
    with pipeline.load(fitted.model_, device="cpu") as classifier:
        assert np.array_equal(classifier.predict_proba(TEXTS[:2]), scores)


def test_it_is_pickled_as_a_model_file(fitted: TextClassifier) -> None:
    data = pickle.dumps(fitted)
    assert fitted.model_.to_bytes() in data
    again = pickle.loads(data)
    assert np.array_equal(again.predict_proba(TEXTS[:2]), fitted.predict_proba(TEXTS[:2]))
    assert again.model_.digest == fitted.model_.digest


@pytest.mark.slow
def test_pipelines_and_searches_take_it() -> None:
    alone = TextClassifier(ngrams=1 << 10, length=123, device="cpu")  # n-grams without a network are quick to fit
    assert cross_val_score(alone, TEXTS, TOPICS, cv=2).tolist() == [1.0, 1.0]
    made = Pipeline([("lower", FunctionTransformer(lambda texts: [t.lower() for t in texts])), ("topic", alone)])
    shouted = [text.upper() for text in TEXTS]
    search = GridSearchCV(made, {"topic__balanced": [False, True]}, cv=2).fit(shouted, TOPICS)
    assert search.best_score_ == 1.0
    assert search.predict(["bank", "coach"]).tolist() == [7, 3]


def test_what_it_refuses_and_why(fitted: TextClassifier) -> None:
    assert not hasattr(fitted, "partial_fit")
    with pytest.raises(AttributeError, match="rises and falls once over a whole run"):
        fitted.partial_fit(TEXTS, TOPICS)
    with pytest.raises(NotFittedError):
        clone(fitted).predict(TEXTS)
    for texts in ([["two", "dimensions"]], "a string", ["text", None], ["text", 3]):
        with pytest.raises(ValueError, match="X "):
            fitted.predict(texts)
    with pytest.raises(ValueError, match="missing label"):
        quick().fit(["one", "two"], ["a", None])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        quick().fit(["one"], ["a", "b"])


@pytest.mark.parametrize("name", APPLY)
def test_checks_of_scikit_learn_that_apply_to_text(name: str) -> None:
    getattr(estimator_checks, name)("TextClassifier", quick())


def test_scikit_learn_agrees_on_which_checks_apply() -> None:
    """`check_estimator` itself runs the checks that need no array of numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = estimator_checks.check_estimator(quick(), on_fail=None)
    assert {result["status"] for result in results} == {"passed"}
