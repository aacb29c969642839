"""Finds rows whose label is probably wrong, by the probabilities of models that were not fitted to these rows.

The method is confident learning (Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset
Labels", 2021). How sure a model is that a label is wrong says more than only whether it disagrees. So its scores have
to be good probabilities even near zero and one.

Three models, which err on different rows, judge each row: the trained model, a naive Bayes classifier on words (Rennie
and others, "Tackling the Poor Assumptions of Naive Bayes Text Classifiers", 2003), and the labels of the most similar
texts. A logistic regression turns their log scores into probabilities. For each fifth of the rows, it is fitted to the
other rows (Wolpert, "Stacked Generalization", 1992). docs/wrong_labels.md says how many wrong labels this finds.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray

from ..evaluation.decisions import DECISION, KEY, TEXT, key_of
from ..model.ngrams import Kinds
from .branch import Bags, bags, folds_of
from .data import LabelledArticles
from .vectors import WordVectors

Rows = NDArray[np.int64]
Doubles = NDArray[np.float64]

COLUMNS = ("file", "row", "truth", "truth_score", "label", "score", DECISION, TEXT, KEY)
"""The columns of the table. If the user named an id column, it comes after `row`."""

_WORDS, _BITS = Kinds(words=1, characters=(0, 0), reads=1014), 18
_SMOOTHING = 0.3  # naive Bayes adds this many occurrences of each word
_NEIGHBOURS = 20  # the number of similar texts whose labels judge a row
_LEAST_SHARE = 0.01  # every class gets this much of the neighbours' weight, so that no share is zero
_BLOCK = 512  # rows whose neighbours are found at once
_FOLDS = 5
_LEAST_SCORE = 1e-9  # lower scores count as this one, since zero has no logarithm


def suspects(
    data: LabelledArticles,
    fit: Rows,
    rows: Rows,
    scores: Doubles,
    decided: NDArray[np.bool_] | None = None,
    vectors: WordVectors | None = None,
) -> pa.Table:
    """Return those of `rows` whose label is probably wrong, the most probably wrong first.

    A row is doubted if another class than its label has the highest probability. The doubted rows are listed in the
    order of the probability of their own label, `truth_score`, the lowest first. The number of listed rows is that of
    the doubted rows whose most probable class has at least the probability that this class has, on average, in the rows
    that have it as their label.

    Parameters
    ----------
    data : LabelledArticles
        All articles, with one label each.
    fit : int64 [M]
        The numbers of the rows to which the model was fitted.
    rows : int64 [N]
        The numbers of the rows to judge: rows that were held out, or some of `fit`, which were held out in turn.
    scores : float64 [N, classes]
        The probabilities of the rows to judge, by a model that was not fitted to them.
    decided : bool [all articles], optional
        The articles whose label a person has decided. They are not listed.
    vectors : WordVectors, optional
        Word vectors, which also measure how similar texts are.

    Returns
    -------
    pyarrow.Table
        The table with the columns of COLUMNS: `truth`, the label of the row; `label`, the most probable class, with
        its `score`; an empty `decision`; and the text with its key.

    """
    # Compute the probabilities of each row's classes from the log scores of three models.
    truth, each = data.labels[rows], np.arange(len(rows))
    grams = bags(*data.text.rows(np.union1d(fit, rows)), _WORDS, _BITS, vectors)
    log_scores = [np.log(np.maximum(scores, _LEAST_SCORE)), _naive_bayes(data, fit, rows, grams)]
    log_scores.append(neighbours(data, fit, rows, grams))
    stacked = _stacked(log_scores, truth, data.text.rows(rows).numbered())
    probable = scores if stacked is None else stacked
    # Choose the rows to list.
    label, count = probable.argmax(axis=1), len(data.classes)
    truth_scores, best = probable[each, truth], probable[each, label]
    usual = np.bincount(truth, truth_scores, count) / np.maximum(np.bincount(truth, minlength=count), 1)
    is_doubted = label != truth
    if decided is not None:
        is_doubted &= ~decided[rows]
    doubted = np.flatnonzero(is_doubted)
    listed = int((best >= usual[label])[doubted].sum())
    found = doubted[np.argsort(truth_scores[doubted], kind="stable")][:listed]
    # Make the table.
    assert data.places is not None
    table = data.places.take(pa.array(rows[found]))
    for name, numbers, probabilities in (("truth", truth, truth_scores), ("label", label, best)):
        table = table.append_column(name, pa.array([data.classes[i] for i in numbers[found]], pa.string()))
        of_name = "truth_score" if name == "truth" else "score"
        table = table.append_column(of_name, pa.array(probabilities[found].astype(np.float32)))
    texts = data.text.rows(rows[found]).column
    keys = pa.array([key_of(text) for text in texts.to_pylist()], pa.string())
    for name, column in ((DECISION, pa.array([""] * len(found), pa.string())), (TEXT, texts), (KEY, keys)):
        table = table.append_column(name, column)
    return table


def _naive_bayes(data: LabelledArticles, fit: Rows, rows: Rows, grams: Bags) -> Doubles:
    """Return the log probabilities of `rows`, [N, classes], by naive Bayes classifiers that were not fitted to them.

    grams: the n-grams of the rows of `fit` and `rows`, in ascending order of their numbers.
    """
    from sklearn.naive_bayes import ComplementNB

    both = np.union1d(fit, rows)
    words = sp.csr_matrix((grams.words > 0).astype(np.float64))
    if np.isin(rows, fit).any():  # each of `fit` is held out in turn
        judged = [fit[fold] for fold in folds_of(data.labels[fit], data.text.numbered()[fit])]
    else:
        judged = [rows]
    given = np.zeros((len(data.labels), len(data.classes)))
    for others in judged:
        learned, judged_rows = (np.searchsorted(both, some) for some in (np.setdiff1d(fit, others), others))
        model = ComplementNB(alpha=_SMOOTHING).fit(words[learned], data.labels[both[learned]])
        given[np.ix_(others, model.classes_)] = model.predict_log_proba(words[judged_rows])
    return given[rows]


def neighbours(data: LabelledArticles, fit: Rows, rows: Rows, grams: Bags) -> Doubles:
    """Return the log shares of the classes, [N, classes], among the texts of `fit` that are most similar to each row.

    The similarity of two texts is the cosine of the TF-IDF of their words, plus the cosine of their mean word vectors
    if there are any. Rows with the same text are not neighbours. grams: the n-grams of the rows of `fit` and `rows`, in
    ascending order of their numbers.
    """
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.preprocessing import normalize

    both = np.union1d(fit, rows)
    learned, of_rows = np.searchsorted(both, fit), np.searchsorted(both, rows)
    words = TfidfTransformer(sublinear_tf=True).fit_transform(sp.csr_matrix(grams.words)).astype(np.float32)
    means = None if grams.pretrained is None else normalize(grams.pretrained.sums).astype(np.float32)
    texts, nearest = data.text.rows(both).numbered(), min(_NEIGHBOURS, len(fit))
    of_class = np.eye(len(data.classes))[data.labels[fit]]
    shares = np.zeros((len(rows), len(data.classes)))
    for first in range(0, len(rows), _BLOCK):
        block = of_rows[first : first + _BLOCK]
        alike = (words[block] @ words[learned].T).toarray()
        if means is not None:
            alike += means[block] @ means[learned].T
        alike[texts[block][:, None] == texts[learned]] = 0
        near = np.argpartition(-alike, nearest - 1, axis=1)[:, :nearest]
        weights = np.maximum(np.take_along_axis(alike, near, axis=1), 0)
        shares[first : first + _BLOCK] = np.einsum("nk,nkc->nc", weights, of_class[near])
    shares += _LEAST_SHARE * shares.sum(axis=1, keepdims=True) + _LEAST_SCORE
    return np.asarray(np.log(shares / shares.sum(axis=1, keepdims=True)))


def _stacked(log_scores: list[Doubles], truth: Rows, texts: Rows) -> Doubles | None:
    """Turn the scores of several models into probabilities, [N, classes], by a logistic regression.

    Returns None if there are too few texts or classes for a fit.

    Parameters
    ----------
    log_scores : list of float64 [N, classes]
        The log probabilities of each model.
    truth : int64 [N]
        The class index of each row.
    texts : int64 [N]
        A number for each row's text. Rows with the same text are held out together.

    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folds = min(_FOLDS, len(np.unique(texts)))
    there = np.unique(truth)
    if folds < 2 or len(there) < 2:
        return None
    features = np.column_stack(log_scores)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    options: Any = {"cv": GroupKFold(folds, shuffle=True, random_state=0), "groups": texts, "method": "predict_proba"}
    with warnings.catch_warnings():
        # scikit-learn warns if only one fold has a class, and if a fit of many classes stops early.
        warnings.simplefilter("ignore")
        given = cross_val_predict(model, features, truth, **options)
    probable = np.zeros_like(log_scores[0])
    probable[:, there] = given
    return probable
