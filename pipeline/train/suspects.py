"""Rows whose label is probably wrong, as in confident learning (Northcutt, Jiang and Chuang, "Confident Learning:
Estimating Uncertainty in Dataset Labels", 2021): by probabilities of models that were not fitted to these rows.

How surely a model is wrong says more than whether it is, so its scores have to be probabilities also far from one half.
Three models see each row, which err on different rows: the one that was trained, a naive Bayes classifier on words
(Rennie and others, "Tackling the Poor Assumptions of Naive Bayes Text Classifiers", 2003), and the labels of the texts
that are most like it. A logistic regression makes probabilities of their log scores, each fifth of the rows by a fit to
the others (Wolpert, "Stacked Generalization", 1992). docs/wrong_labels.md says how many wrong labels that finds.
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
"""What the table has, beside the user's id column, which comes after `row`."""

_WORDS, _BITS = Kinds(words=1, characters=(0, 0), reads=1014), 18
_SMOOTHING = 0.3  # of naive Bayes, in occurrences of each word
_NEIGHBOURS, _LEAST_SHARE = 20, 0.01
_BLOCK = 512  # rows whose neighbours are found at once
_FOLDS = 5
_LEAST_SCORE = 1e-9


def suspects(
    data: LabelledArticles,
    fit: Rows,
    rows: Rows,
    scores: Doubles,
    decided: NDArray[np.bool_] | None = None,
    vectors: WordVectors | None = None,
) -> pa.Table:
    """Those of `rows` whose label is probably wrong, the most probable first.

    As many are listed as there are rows to which another class has the highest probability, and at least the one that
    this class has on average where it is the label: those whose own label has the lowest probability, `truth_score`,
    in its order.

    Parameters
    ----------
    data : LabelledArticles
        All articles, with one label each.
    fit : int64 [M]
        Numbers of the rows that the model was fitted to.
    rows : int64 [N]
        Numbers of the rows to judge: rows that were held out, or some of `fit`, held out in turn.
    scores : float64 [N, classes]
        Their probabilities, by a model that was not fitted to them.
    decided : bool [all articles], optional
        Whose label a person has decided: these are not listed.
    vectors : WordVectors, optional
        By which texts are alike, beside their words.

    Returns
    -------
    pyarrow.Table
        With the columns of COLUMNS: the row's `truth`, the label that it has; `label`, the probable one, with `score`;
        an empty `decision`, and the text with its key.

    """
    truth, each = data.labels[rows], np.arange(len(rows))
    grams = bags(*data.text.rows(np.union1d(fit, rows)), _WORDS, _BITS, vectors)
    log_scores = [np.log(np.maximum(scores, _LEAST_SCORE)), _naive_bayes(data, fit, rows, grams)]
    log_scores.append(neighbours(data, fit, rows, grams))
    stacked = _stacked(log_scores, truth, data.text.rows(rows).numbered())
    probable = scores if stacked is None else stacked
    label, count = probable.argmax(axis=1), len(data.classes)
    own, best = probable[each, truth], probable[each, label]
    usual = np.bincount(truth, own, count) / np.maximum(np.bincount(truth, minlength=count), 1)
    doubted = np.flatnonzero((label != truth) & ~(np.zeros(len(rows), np.bool_) if decided is None else decided[rows]))
    found = doubted[np.argsort(own[doubted], kind="stable")][: int((best >= usual[label])[doubted].sum())]
    assert data.places is not None
    table = data.places.take(pa.array(rows[found]))
    for name, numbers, probabilities in (("truth", truth, own), ("label", label, best)):
        table = table.append_column(name, pa.array([data.classes[i] for i in numbers[found]], pa.string()))
        of_name = "truth_score" if name == "truth" else "score"
        table = table.append_column(of_name, pa.array(probabilities[found].astype(np.float32)))
    texts = data.text.rows(rows[found]).column
    keys = pa.array([key_of(text) for text in texts.to_pylist()], pa.string())
    for name, column in ((DECISION, pa.array([""] * len(found), pa.string())), (TEXT, texts), (KEY, keys)):
        table = table.append_column(name, column)
    return table


def _naive_bayes(data: LabelledArticles, fit: Rows, rows: Rows, grams: Bags) -> Doubles:
    """Log probabilities of `rows`, [N, classes], by naive Bayes classifiers that were not fitted to them.

    grams: of the rows of both, in order.
    """
    from sklearn.naive_bayes import ComplementNB

    both = np.union1d(fit, rows)
    words = sp.csr_matrix((grams.words > 0).astype(np.float64))
    if np.isin(rows, fit).any():  # each was held out in turn
        judged = [fit[fold] for fold in folds_of(data.labels[fit], data.text.numbered()[fit])]
    else:
        judged = [rows]
    given = np.zeros((len(data.labels), len(data.classes)))
    for others in judged:
        learned, asked = (np.searchsorted(both, some) for some in (np.setdiff1d(fit, others), others))
        model = ComplementNB(alpha=_SMOOTHING).fit(words[learned], data.labels[both[learned]])
        given[np.ix_(others, model.classes_)] = model.predict_log_proba(words[asked])
    return given[rows]


def neighbours(data: LabelledArticles, fit: Rows, rows: Rows, grams: Bags) -> Doubles:
    """Log shares of the classes, [N, classes], among the texts of `fit` that are most like each of `rows`.

    Texts are as alike as the TF-IDF of their words has a cosine, and their mean word vectors where there are any. What
    has the same text is no neighbour. grams: of the rows of both, in order.
    """
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.preprocessing import normalize

    both = np.union1d(fit, rows)
    learned, asked = np.searchsorted(both, fit), np.searchsorted(both, rows)
    words = TfidfTransformer(sublinear_tf=True).fit_transform(sp.csr_matrix(grams.words)).astype(np.float32)
    means = None if grams.pretrained is None else normalize(grams.pretrained.sums).astype(np.float32)
    texts, nearest = data.text.rows(both).numbered(), min(_NEIGHBOURS, len(fit))
    of_class = np.eye(len(data.classes))[data.labels[fit]]
    shares = np.zeros((len(rows), len(data.classes)))
    for first in range(0, len(rows), _BLOCK):
        block = asked[first : first + _BLOCK]
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
    """Probabilities [N, classes] that several models' scores stand for; None where no model can be fitted to them.

    Parameters
    ----------
    log_scores : list of float64 [N, classes]
        Log probabilities, of each model.
    truth : int64 [N]
        Class indices.
    texts : int64 [N]
        A number for each row's text: rows of the same text are held out together.

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
    how: Any = {"cv": GroupKFold(folds, shuffle=True, random_state=0), "groups": texts, "method": "predict_proba"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class that one fold alone has; a fit of many classes that stops early
        given = cross_val_predict(model, features, truth, **how)
    probable = np.zeros_like(log_scores[0])
    probable[:, there] = given
    return probable
