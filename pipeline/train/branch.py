"""Fitting the branch of n-grams: a logistic regression on TF-IDF, whose settings are chosen by cross-validation.

Importance is the inverse document frequency, times the root of how much an n-gram says about the classes: the largest,
over the classes, of the absolute log ratio of its frequency within the class and outside it, as in Wang and Manning,
"Baselines and Bigrams" (2012), but one factor for all classes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from pipeline.model.ngrams import Grams, Kinds, NGrams, counted, find
from pipeline.model.temperature import fitted, log_loss
from pipeline.train.data import Texts
from pipeline.train.linear import Fitted, fit

Labels = NDArray[np.int64]
Floats = NDArray[np.float64]

_STRENGTHS = 10.0 ** np.arange(-2.5, -5.6, -0.5)
_SHARES = (0.35, 0.65)
_FOLDS = ((2_000, 5), (10_000, 3))  # up to so many rows, so many folds
_BLOCK = 512  # texts whose n-grams are found at once


@dataclass(frozen=True)
class Settings:
    """strength: of the penalty. salience: the power of what n-grams say about classes. words: share of their kind."""

    strength: float
    salience: float = 0.5
    words: float = 0.5


_PLAIN_STRENGTH = 0.05  # of the rows, each: as C=20 of scikit-learn's LogisticRegression


class Bags(NamedTuple):
    """N texts. words, letters: [N, used buckets], how often each counts. buckets: which they are, ascending."""

    words: sp.csr_array
    letters: sp.csr_array
    buckets: NDArray[np.uint32]

    def rows(self, rows: NDArray[np.int64]) -> Bags:
        """Those of some texts."""
        return Bags(self.words[rows], self.letters[rows], self.buckets)


class Branch(NamedTuple):
    """The result of `fit_branch`.

    ngrams, bias: [classes]; what they give a text are its logits. settings: the chosen ones. rows: M row numbers.
    logits: [M, classes], of each of these by a fit to other rows. plain: the same by a plain linear model on words, to
    compare with.
    """

    ngrams: NGrams
    bias: Floats
    settings: Settings
    rows: Labels
    logits: Floats
    plain: Floats

    def about(self) -> dict[str, Any]:
        """Its settings as a model's card has them."""
        return asdict(self.settings)


def bags(data: NDArray[np.uint8], offsets: NDArray[np.int64], kinds: Kinds, bits: int) -> Bags:
    """The n-grams of N texts: data[offsets[i]:offsets[i + 1]], UTF-8."""
    of_kinds: list[list[sp.csr_array]] = [[], []]
    for first in range(0, len(offsets) - 1, _BLOCK):
        bounds = offsets[first : first + _BLOCK + 1]
        found = find(data[bounds[0] : bounds[-1]], bounds - bounds[0], kinds, bits)
        for grams, blocks in zip(found, of_kinds, strict=True):
            blocks.append(_counts(grams, len(bounds) - 1, bits))
    words, letters = (sp.vstack(blocks, format="csr") for blocks in of_kinds)
    buckets = np.unique(np.concatenate([words.indices, letters.indices]))
    return Bags(words[:, buckets], letters[:, buckets], buckets.astype(np.uint32))


def _counts(grams: list[Grams], texts: int, bits: int) -> sp.csr_array:
    if not grams:
        return sp.csr_array((texts, 1 << bits), dtype=np.float64)
    buckets, times, offsets = counted(grams, texts, bits)
    small = buckets.astype(np.int32), offsets.astype(np.int32)
    return sp.csr_array((times.astype(np.float64), *small), (texts, 1 << bits))


def fit_branch(
    text: Texts, labels: Labels, classes: int, fit: Labels, held: Labels, kinds: Kinds, bits: int, balanced: bool
) -> Branch:
    """Fit the branch to the rows `fit` of labelled texts.

    Its settings are chosen on rows that were held out of these in turn, or if there are more than 10,000, on a fifth of
    them. Rows that it was not fitted to are `held`; or if there are none, those on which the settings were chosen.
    balanced: every class weighs the same, however many rows it has.
    """
    found = bags(*text.rows(np.concatenate([fit, held])), kinds, bits)
    ours, others = found.rows(np.arange(len(fit))), np.arange(len(fit), len(fit) + len(held))
    folds = folds_of(labels[fit])
    settings, logits = _chosen(ours, labels[fit], classes, folds, balanced)
    importance, solved, features = _fit(ours, labels[fit], classes, settings, balanced)
    weights, all_importance = np.zeros((1 << bits, classes)), np.zeros(1 << bits)
    of_used = solved.weights(features)
    weights[found.buckets], all_importance[found.buckets] = of_used, importance
    ngrams = NGrams.of_weights(kinds, weights, all_importance)
    shares = np.sqrt([[settings.words], [1 - settings.words]]).astype(np.float32)
    ngrams = replace(ngrams, scale=ngrams.scale * shares)
    if len(held):
        logits = features_of(found.rows(others), importance, settings) @ of_used + solved.bias
        plain = plain_logits(found, np.concatenate([labels[fit], labels[held]]), classes, [others])[others]
        return Branch(ngrams, solved.bias, settings, held, logits, plain)
    known = np.sort(np.concatenate(folds))
    plain = plain_logits(ours, labels[fit], classes, folds)[known]
    return Branch(ngrams, solved.bias, settings, fit[known], logits[known], plain)


def _chosen(found: Bags, labels: Labels, classes: int, folds: list[Labels], balanced: bool) -> tuple[Settings, Floats]:
    """The settings with the least log loss on rows that they were not fitted to, and the logits of these rows."""
    best: tuple[float, Settings, Floats] | None = None
    for salience in (0.5, 0.0):
        before: list[Fitted | None] = [None] * len(folds)
        worse = 0
        for strength in _STRENGTHS if best is None else [best[1].strength]:
            settings = Settings(float(strength), salience)
            loss, logits, before = _tried(found, labels, classes, folds, settings, balanced, before)
            worse = 0 if best is None or loss < best[0] else worse + 1
            if not worse:
                best = (loss, settings, logits)
            elif worse > 1:
                break
    assert best is not None
    for share in _SHARES:
        settings = replace(best[1], words=share)
        loss, logits, _ = _tried(found, labels, classes, folds, settings, balanced, [None] * len(folds))
        if loss < best[0]:
            best = (loss, settings, logits)
    return best[1], best[2]


def _tried(
    found: Bags,
    labels: Labels,
    classes: int,
    folds: list[Labels],
    settings: Settings,
    balanced: bool,
    before: list[Fitted | None],
) -> tuple[float, Floats, list[Fitted | None]]:
    logits = np.zeros((len(labels), classes))
    fits: list[Fitted | None] = []
    for held, start in zip(folds, before, strict=True):
        others = np.setdiff1d(np.arange(len(labels)), held)
        inner = found.rows(others)
        importance, solved, features = _fit(inner, labels[others], classes, settings, balanced, start)
        logits[held] = features_of(found.rows(held), importance, settings) @ solved.weights(features) + solved.bias
        fits.append(solved)
    known = np.concatenate(folds)
    temperature = fitted(logits[known], labels[known]) or 1.0
    return log_loss(logits[known], labels[known], temperature), logits, fits


def plain_logits(found: Bags, labels: Labels, classes: int, folds: list[Labels]) -> Floats:
    """Of the rows of `folds`, by a plain linear model on words, fitted to the other rows."""
    settings = Settings(_PLAIN_STRENGTH / len(labels), salience=0.0, words=1.0)
    return _tried(found, labels, classes, folds, settings, False, [None] * len(folds))[1]


def folds_of(labels: Labels) -> list[Labels]:
    """Rows that are held out in turn, a like share of each class; of many rows a fifth, once."""
    count = next((folds for rows, folds in _FOLDS if len(labels) <= rows), 1)
    order = np.random.default_rng(0).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return [np.sort(order[fold :: 5 if count == 1 else count]) for fold in range(count)]


def _fit(
    found: Bags, labels: Labels, classes: int, settings: Settings, balanced: bool, start: Fitted | None = None
) -> tuple[Floats, Fitted, sp.csr_array]:
    importance = importances(found, labels, classes, settings.salience)
    features = features_of(found, importance, settings)
    targets = np.eye(classes)[labels]
    if balanced:
        rows = targets.sum(axis=0)
        targets *= len(labels) / (np.maximum(rows, 1) * np.count_nonzero(rows))
    return importance, fit(features, targets, settings.strength, start), features


def importances(found: Bags, labels: Labels, classes: int, salience: float) -> Floats:
    """Of each used bucket; 0 of those that no row has."""
    present = ((found.words + found.letters) > 0).astype(np.float64)
    of_classes = np.asarray(present.T @ np.eye(classes)[labels])
    rows = of_classes.sum(axis=1)
    idf = np.log((1 + len(labels)) / (1 + rows)) + 1
    if salience:
        within = (of_classes + 1) / (of_classes.sum(axis=0) + 1)
        outside = (rows[:, None] - of_classes + 1) / (of_classes.sum() - of_classes.sum(axis=0) + 1)
        idf *= np.abs(np.log(within / outside)).max(axis=1) ** salience
    return np.where(rows > 0, idf, 0.0)


def features_of(found: Bags, importance: Floats, settings: Settings) -> sp.csr_array:
    """The features [N, used buckets]: of each kind of length one, then weighted by the kind's share and added."""
    kinds = ((found.words, settings.words), (found.letters, 1 - settings.words))
    total = None
    for counts, share in kinds:
        weighed = counts.multiply(importance[None, :]).tocsr()
        length = np.sqrt(np.asarray(weighed.multiply(weighed).sum(axis=1)).ravel())
        scaled = sp.diags_array(np.sqrt(share) / np.maximum(length, 1e-12)) @ weighed
        total = scaled if total is None else total + scaled
    return sp.csr_array(total)
