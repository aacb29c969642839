"""Fits the branch of n-grams: a linear classifier on TF-IDF, whose settings are chosen by cross-validation.

It also fits the head of an encoder, a linear classifier on the encoder's vectors, which replaces the n-grams.

The importance of an n-gram is its inverse document frequency, times the square root of its salience. The salience says
how much the n-gram tells about the classes: it is the mean, over the classes of the rows, of the absolute log ratio of
the n-gram's frequency within the class to that outside it. The ratio is that of Wang and Manning, "Baselines and
Bigrams" (2012), but there is one factor for all classes. Frequencies are smoothed by one more occurrence of the n-gram,
which the classes share in proportion to their rows.

The usual choices are the largest ratio instead of the mean, and one more occurrence in each class. With them, a rare
class makes all n-grams seem salient: on 18 sets with 500 rows they were 0.8 points worse on average, and 3.4 points
worse on a set with 23 classes, some of which have few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..engine.open import vectors as vectors_of
from ..evaluation.rows import strata
from ..model.encoder import Encoder
from ..model.ngrams import Grams, Kinds, NGrams, counted, find, scores
from ..model.scores import of_levels
from ..model.torch_encoder import TorchEncoder
from ..source.rows.labels import NO_TRUTH
from .answers import Answers, Floats, Labels, RowNumbers
from .data import TextBuffers
from .linear import MOST_ROWS, Fitted, Fitter, GpuFitter, NewtonFitter, NumberFitter, ProductFitter, Singles, products
from .progress import Fit, RowsDone, Tell
from .vectors import WordVectors

_STRENGTHS = (10.0 ** np.arange(-1.5, -5.6, -0.5)).tolist()
_BALANCED_STRENGTHS = (10.0 ** np.arange(0, -5.6, -0.5)).tolist()  # few rows with large weights need a larger penalty
_SHARES = (0.35, 0.65)  # shares of n-grams of words, which are tried besides one half
_VECTORS = (0.25, 0.5, 1.0)  # lengths of word vectors, relative to that of n-grams, which are tried in this order
_AROUND = (10**0.5, 1.0, 10**-0.5)  # factors of the best strength without vectors, which are tried with vectors
_FOLDS = ((2_000, 5), (10_000, 3))  # pairs of a largest number of rows, and a number of folds
_SAYS_NOTHING = 1e-9  # if all saliences are at most this, they are zero, apart from rounding
_BLOCK = 512  # texts whose n-grams are found at once


@dataclass(frozen=True)
class BranchSettings:
    """The settings with which the branch is fitted.

    Attributes
    ----------
    strength : float
        The strength of the penalty.
    salience : float
        The exponent of the n-grams' salience.
    words : float
        The share of n-grams of words. The rest is the share of n-grams of characters.
    vectors : float
        The average length of a text's mean word vector, relative to that of its n-grams, which is one.

    """

    strength: float
    salience: float = 0.5
    words: float = 0.5
    vectors: float = 0.0


_PLAIN_BITS = 18  # the plain linear model on words has 2 to this power buckets
_PLAIN_STRENGTH = 1.0  # is divided by the number of rows; the same as C=1 of scikit-learn's LinearSVC


class Pretrained(NamedTuple):
    """Word vectors by bucket.

    Attributes
    ----------
    columns : int64 [W]
        The columns of the used buckets that have a vector.
    vectors : float32 [W, d]
        The vectors, less the mean vector of the texts' words, and weighted by the inverse document frequency.
    sums : float64 [N, d]
        The sum of the vectors of the words of each of N texts.

    """

    columns: NDArray[np.int64]
    vectors: NDArray[np.float32]
    sums: Floats


class Bags(NamedTuple):
    """The n-grams of N texts.

    Attributes
    ----------
    words, letters : sparse [N, used buckets]
        The counts of n-grams of words, and of n-grams of characters, in each bucket.
    buckets : uint32 [used buckets]
        The numbers of the used buckets, ascending.
    pretrained : Pretrained, optional
        The vectors of the words.
    on_gpu : bool
        Whether a fit to many texts runs on a GPU.

    """

    words: sp.csr_array
    letters: sp.csr_array
    buckets: NDArray[np.uint32]
    pretrained: Pretrained | None = None
    on_gpu: bool = False

    def rows(self, rows: NDArray[np.int64]) -> Bags:
        """Return the n-grams of the texts with the given row numbers."""
        known = self.pretrained and self.pretrained._replace(sums=self.pretrained.sums[rows])
        return self._replace(words=self.words[rows], letters=self.letters[rows], pretrained=known)


class Branch(NamedTuple):
    """The result of `fit_branch`, or of `fit_head`.

    The fields are of three groups: the model (`ngrams` or `encoder`, with `bias`); its evaluation on rows that it was
    not fitted to (`rows`, `logits`, `plain`); and how it was fitted (`settings`, `vectors`, `has_learned_held`).

    Attributes
    ----------
    ngrams : NGrams, optional
        The n-grams. A text's logits are what its n-grams add up to, plus `bias`.
    bias : float64 [classes]
        The bias.
    settings : BranchSettings
        The chosen settings.
    rows : int64 [M]
        The numbers of the rows that have logits.
    logits : float64 [M, classes], or [M, 1]
        The logits of each of these rows, by a model that was fitted to other rows; or a number in steps.
    plain : float64 [M, classes], or [M, 1]
        The same by a plain linear model on words, to compare with.
    vectors : WordVectors, optional
        The word vectors that were tried.
    encoder : Encoder or TorchEncoder, optional
        An encoder with a head, which replaces the n-grams.
    has_learned_held : bool
        Whether the encoder has also learned the held-out rows. Their logits are those of an earlier encoder, which had
        not.

    """

    ngrams: NGrams | None
    bias: Floats
    settings: BranchSettings
    rows: RowNumbers
    logits: Floats
    plain: Floats
    vectors: WordVectors | None = None
    encoder: Encoder | TorchEncoder | None = None
    has_learned_held: bool = False

    def logits_of(self, text: TextBuffers) -> Floats:
        """Compute the logits of other texts, without the bias, [N, classes]."""
        if self.encoder is None:
            assert self.ngrams is not None
            return np.asarray(scores(*text, self.ngrams), np.float64)
        return np.asarray(vectors_of(self.encoder, *text) @ self.encoder.weights["last"], np.float64)

    def about(self) -> dict[str, Any]:
        """Return the settings for a model's card."""
        if self.encoder is not None:
            return {"strength": self.settings.strength}
        return asdict(self.settings) | ({"word vectors": self.vectors.about} if self.vectors else {})

    def share_right(self, labels: Labels, part: slice = slice(None)) -> float:
        """Return the share of `rows` with a label that are right.

        With several labels per text, the share is that of all pairs of a row and a class. part: the classes of a head.
        """
        truth, logits = labels[self.rows], self.logits[:, part]
        if truth.ndim > 1:
            return float(((logits >= 0) == truth).mean())
        return float((logits.argmax(axis=1) == truth)[truth != NO_TRUTH].mean())


def bags(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], kinds: Kinds, bits: int, vectors: WordVectors | None = None
) -> Bags:
    """Count the n-grams of N texts.

    Parameters
    ----------
    data : uint8 [bytes]
        The texts in UTF-8.
    offsets : int64 [N + 1]
        Text i is ``data[offsets[i]:offsets[i + 1]]``.
    kinds : Kinds
        The kinds of n-grams.
    bits : int
        The number of buckets is 2 to this power.
    vectors : WordVectors, optional
        Vectors, whose buckets count as used.

    """
    of_kinds: list[list[sp.csr_array]] = [[], []]
    for first in range(0, len(offsets) - 1, _BLOCK):
        bounds = offsets[first : first + _BLOCK + 1]
        both_kinds = find(data[bounds[0] : bounds[-1]], bounds - bounds[0], kinds, bits)
        for grams, blocks in zip(both_kinds, of_kinds, strict=True):
            blocks.append(_counts(grams, len(bounds) - 1, bits))
    words, letters = (sp.vstack(blocks, format="csr") for blocks in of_kinds)
    at, of_words = vectors.buckets(bits) if vectors else (np.empty(0, np.uint32), None)
    buckets = np.unique(np.concatenate([words.indices, letters.indices, at]))
    bags_of = Bags(words[:, buckets], letters[:, buckets], buckets.astype(np.uint32))
    if of_words is None:
        return bags_of
    columns = np.searchsorted(buckets, at)
    counts = bags_of.words[:, columns]
    weights = _idf(np.bincount(counts.indices, minlength=len(at)), len(offsets) - 1)
    often = weights * np.asarray(counts.sum(axis=0)).ravel()
    common = often @ of_words / max(1.0, often.sum())  # the mean vector of all words says nothing about one text
    weighed = (of_words - common) * weights[:, None]
    return bags_of._replace(pretrained=Pretrained(columns, weighed.astype(np.float32), counts @ weighed))


def _counts(grams: list[Grams], texts: int, bits: int) -> sp.csr_array:
    if not grams:
        return sp.csr_array((texts, 1 << bits), dtype=np.float64)
    buckets, times, offsets = counted(grams, texts, bits)
    small = buckets.astype(np.int32), offsets.astype(np.int32)
    return sp.csr_array((times.astype(np.float64), *small), (texts, 1 << bits))


def fit_branch(
    text: TextBuffers,
    answers: Answers,
    fit: RowNumbers,
    held: RowNumbers,
    kinds: Kinds,
    bits: int,
    balanced: bool,
    vectors: WordVectors | None = None,
    tell: Tell = lambda what: None,
    on_gpu: bool = False,
) -> Branch:
    """Fit the branch to the rows `fit` of labelled texts.

    Cross-validation on these rows chooses the settings; with more than 10,000 rows, a single fifth of them does. The
    logits are then scaled to the least log loss of the rows that were held out in cross-validation.

    Parameters
    ----------
    text : TextBuffers
        All texts.
    answers : Answers
        The labels of the texts.
    fit : int64 [M]
        The numbers of the rows to fit to.
    held : int64 [K]
        The numbers of the rows that are held out.
    kinds : Kinds
        The kinds of n-grams.
    bits : int
        The number of buckets is 2 to this power.
    balanced : bool
        Whether every class weighs the same, in the fits and in the choice of the settings. (If only the fits were
        balanced, macro-F1 was 3.2 points worse on average, over eight sets with 500 rows, in which every other class
        was reduced to a tenth of its rows.)
    vectors : WordVectors, optional
        Word vectors to try.
    tell : callable
        Called after each fit.
    on_gpu : bool
        See `Bags`.

    """
    # Choose the settings by cross-validation on the rows to fit to.
    grams = bags(*text.rows(np.concatenate([fit, held])), kinds, bits, vectors)._replace(on_gpu=on_gpu)
    ours, others = np.arange(len(fit)), np.arange(len(fit), len(fit) + len(held))
    learned = answers.rows(fit)
    folds = folds_of(learned.labels, text.numbered()[fit])
    known = np.sort(np.concatenate(folds))
    strengths = _BALANCED_STRENGTHS if balanced else _STRENGTHS
    _, settings, logits = _chosen(grams.rows(ours), learned, folds, strengths, tell)
    sharpness = learned.rows(known).log_loss(logits[known])[1]
    # Fit to all of these rows, and predict the held-out ones.
    rows = _Fold(grams, learned, ours, others, settings.salience)
    rows.weigh(settings)
    given = sharpness * rows.fit(settings.strength)
    of_used, bias = (sharpness * part for part in rows.weights())
    # Make a table of n-grams from the weights.
    weights, all_importance = np.zeros((1 << bits, answers.classes)), np.zeros(1 << bits)
    if answers.steps is not None:
        of_used, bias = of_levels(of_used, answers.classes, True), of_levels(bias, answers.classes, False)
    weights[grams.buckets], all_importance[grams.buckets] = of_used, rows.importance
    ngrams = NGrams.of_weights(kinds, weights, all_importance)
    shares = np.sqrt([[settings.words], [1 - settings.words]]).astype(np.float32)
    ngrams = replace(ngrams, scale=ngrams.scale * shares)
    # Return the logits of the held-out rows, or those of cross-validation if no rows are held out.
    if len(held):
        plain = plain_logits(grams, answers.rows(np.concatenate([fit, held])), [others])[others]
        return Branch(ngrams, bias, settings, held, given, plain, vectors)
    plain = plain_logits(grams.rows(ours), learned, folds)[known]
    return Branch(ngrams, bias, settings, fit[known], sharpness * logits[known], plain, vectors)


def fit_head(
    encoder: Encoder | TorchEncoder, text: TextBuffers, answers: Answers, fit: RowNumbers, held: RowNumbers, tell: Tell
) -> Branch:
    """Fit a linear head on an encoder's vectors, as `fit_branch` fits n-grams.

    Parameters
    ----------
    encoder : Encoder or TorchEncoder
        An encoder without a last product.
    text, answers, fit, held, tell
        See `fit_branch`.

    """
    rows = np.concatenate([fit, held])
    texts, learned = text.rows(rows), answers.rows(fit)
    folds = folds_of(learned.labels, texts.numbered()[: len(fit)])
    vectors = vectors_of(
        encoder, *texts, tell=lambda rows_done: tell(RowsDone("vectors of texts", rows_done, len(rows)))
    )
    (_, weights, bias), chosen = on_vectors(vectors, learned, folds, tell)
    judged = [np.arange(len(fit), len(rows))] if len(held) else folds
    at = np.sort(np.concatenate(judged))
    plain = plain_on_words(texts, answers.rows(rows), judged)[at]
    if answers.steps is not None:
        weights, bias = of_levels(weights, answers.classes, True), of_levels(bias, answers.classes, False)
    encoder = replace(encoder, weights={**encoder.weights, "last": np.ascontiguousarray(weights, np.float32)})
    return Branch(None, bias, chosen.settings, rows[at], chosen.logits[at], plain, encoder=encoder)


def on_vectors(
    vectors: Singles, answers: Answers, folds: list[RowNumbers], tell: Tell = lambda what: None
) -> tuple[Fitted, Tried]:
    """Fit a linear model to the first M of N vectors. Cross-validation chooses the strength of the penalty.

    Parameters
    ----------
    vectors : float32 [N, values]
        The vectors, of length one.
    answers : Answers
        The labels of the first M vectors, to which the model is fitted.
    folds : list of RowNumbers
        The rows among these that are held out in turn.
    tell : callable
        Called after each fit.

    Returns
    -------
    Fitted
        The model.
    Tried
        The logits of all N vectors. The logits of rows in `folds` come from models that were fitted to other rows. The
        model and the logits are scaled to the least log loss of the rows in `folds`.

    """
    ours, known, numbers = np.arange(len(answers.labels)), np.concatenate(folds), count(1)
    fits = len(_BALANCED_STRENGTHS) * len(folds)
    rows = [_VectorFold(vectors, answers, np.setdiff1d(ours, held), held) for held in folds]
    weighing = BranchSettings(0.0)

    def fitted() -> None:
        tell(Fit(next(numbers), fits, "head on vectors"))

    best = _best_strength(rows, answers, folds, weighing, _BALANCED_STRENGTHS, fitted)
    whole = _VectorFold(vectors, answers, ours, np.arange(len(vectors)))
    logits = whole.fit(best.settings.strength)
    logits[known] = best.logits[known]
    sharpness = answers.rows(known).log_loss(best.logits[known])[1]
    model = Fitted(*(sharpness * part for part in whole.fitted))
    return model, best._replace(logits=sharpness * logits)


class Tried(NamedTuple):
    """Settings that were tried, and how good they are.

    Attributes
    ----------
    loss : float
        The log loss of held-out rows.
    settings : BranchSettings
        The settings.
    logits : float64 [N, columns]
        The logits of the held-out rows, and zeros for other rows. From `on_vectors`, the logits of all rows.

    """

    loss: float
    settings: BranchSettings
    logits: Floats


def _chosen(grams: Bags, answers: Answers, folds: list[RowNumbers], strengths: Sequence[float], tell: Tell) -> Tried:
    """Choose the settings with the least loss: first the strength, then the share of words, then that of vectors.

    Parameters
    ----------
    grams : Bags
        The n-grams of the rows to fit to.
    answers : Answers
        The labels of these rows.
    folds : list of RowNumbers
        The numbers of the rows that are held out in turn.
    strengths : sequence of float
        The strengths of the penalty, descending.
    tell : callable
        Called after each fit.

    """
    weighing = BranchSettings(0.0)
    tries = len(strengths) + len(_SHARES) + (len(_VECTORS) * len(_AROUND) if grams.pretrained else 0)
    numbers = count(1)

    def fitted() -> None:
        tell(Fit(next(numbers), tries * len(folds)))

    rows = _folds(grams, answers, folds, weighing.salience)
    best = _best_strength(rows, answers, folds, weighing, strengths, fitted)
    for share in _SHARES:
        weighing = replace(weighing, words=share)
        tried = _best_strength(rows, answers, folds, weighing, [best.settings.strength], fitted)
        best = min(best, tried, key=attrgetter("loss"))
    for length in _VECTORS if grams.pretrained else ():
        weighing = replace(best.settings, vectors=length)
        # No strength is above the largest one without vectors. If the labels are noise, a larger penalty would seem
        # better by itself, and the vectors with it.
        around = [min(best.settings.strength * factor, strengths[0]) for factor in _AROUND]
        tried = _best_strength(rows, answers, folds, weighing, around, fitted)
        if tried.loss >= best.loss:
            break
        best = tried
    return best


def _folds(grams: Bags, answers: Answers, folds: list[RowNumbers], salience: float) -> list[_Fold]:
    inner = (np.setdiff1d(np.arange(len(answers.labels)), held) for held in folds)
    return [_Fold(grams, answers.rows(rows), rows, held, salience) for rows, held in zip(inner, folds, strict=True)]


def _best_strength(
    rows: Sequence[_Fold | _VectorFold],
    answers: Answers,
    folds: list[RowNumbers],
    weighing: BranchSettings,
    strengths: Sequence[float],
    fitted: Callable[[], None] = lambda: None,
) -> Tried:
    """Choose the best of descending strengths. Stop as soon as the two last losses are larger than the best one.

    Parameters
    ----------
    rows : sequence of _Fold or _VectorFold
        The rows to fit to, for each fold.
    answers : Answers
        The labels of all rows.
    folds : list of RowNumbers
        The numbers of the rows that are held out in turn.
    weighing : BranchSettings
        The other settings.
    strengths : sequence of float
        The strengths of the penalty, descending.
    fitted : callable
        Called after each fit.

    """
    for fold in rows:
        fold.weigh(weighing)
    known = np.concatenate(folds)
    of_known = answers.rows(known)
    tried: list[Tried] = []
    for strength in strengths:
        logits = np.zeros((len(answers.labels), answers.columns))
        for held, fold in zip(folds, rows, strict=True):
            logits[held] = fold.fit(strength)
            fitted()
        tried.append(Tried(of_known.log_loss(logits[known])[0], replace(weighing, strength=strength), logits))
        best = min(tried, key=attrgetter("loss"))
        if best.loss < min(it.loss for it in tried[-2:]):
            break
    return best


def plain_logits(grams: Bags, answers: Answers, folds: list[RowNumbers]) -> Floats:
    """Return the logits of the rows of `folds`, by plain linear models on words that are fitted to the other rows."""
    plain = BranchSettings(0.0, salience=0.0, words=1.0)
    alike = Answers.of(answers.labels, answers.classes, heads=answers.heads)
    alike = alike._replace(steps=answers.steps, absolute=answers.absolute)
    rows = _folds(grams, alike, folds, plain.salience)
    return _best_strength(rows, alike, folds, plain, [_PLAIN_STRENGTH / len(alike.labels)]).logits


def plain_on_words(text: TextBuffers, answers: Answers, folds: list[RowNumbers]) -> Floats:
    """Return the same as `plain_logits` for texts whose n-grams are not counted yet."""
    return plain_logits(bags(*text, Kinds(2, (0, 0), 1014), _PLAIN_BITS), answers, folds)


def folds_of(labels: Labels, texts: NDArray[np.int64]) -> list[RowNumbers]:
    """Return the rows to hold out in turn: folds with equal shares of the texts of each class.

    With more than 10,000 rows, there is only one fold, with a fifth of them. texts: a number for each row's text; see
    `hold_out`. Rows with the same text are in the same fold.
    """
    count = next((folds for rows, folds in _FOLDS if len(labels) <= rows), 1)
    _, first, of_row = np.unique(texts, return_index=True, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(first))
    of_class = strata(labels)[first]
    fold = np.empty(len(first), np.int64)
    fold[order[np.argsort(of_class[order], kind="stable")]] = np.arange(len(first)) % (5 if count == 1 else count)
    return [np.flatnonzero(fold[of_row] == number) for number in range(count)]


class _VectorFold:
    """Rows to fit to, and other rows whose logits are wanted, as in `_Fold`, but with vectors instead of n-grams."""

    def __init__(self, vectors: Singles, answers: Answers, rows: RowNumbers, others: RowNumbers) -> None:
        ours, its, self._others = vectors[rows], answers.rows(rows), vectors[others]
        self._fitter: NewtonFitter | NumberFitter
        if its.steps is not None:
            nothing = sp.csr_array((len(rows), 0))
            self._fitter = NumberFitter(nothing, its.steps, ours.astype(np.float64), its.absolute)
        else:
            design, truth = np.column_stack([ours, np.ones(len(ours), np.float32)]), its.shares().astype(np.float32)
            self._fitter = NewtonFitter(design, design.T, truth, its.weights[:, None].astype(np.float32))

    def weigh(self, settings: BranchSettings) -> None:
        """Do nothing: only the strength of the penalty matters for vectors, and `fit` gets it."""

    def fit(self, strength: float) -> Floats:
        """Fit to the rows, and return the logits of the other rows."""
        solved = self._fitter.fit(strength)
        self.fitted = solved if isinstance(solved, Fitted) else Fitted(solved[:0], solved[:-1], solved[-1])
        return np.asarray(self._others @ self.fitted.of_dense + self.fitted.bias)


class _Fold:
    """Rows to fit to, and other rows whose logits are wanted.

    The stages: `weigh` computes the features for all settings except the strength of the penalty; `fit` fits with a
    strength, and predicts the other rows; `weights` returns the weights of the last fit.

    Parameters
    ----------
    grams : Bags
        The n-grams of all rows.
    answers : Answers
        The labels of `rows`.
    rows : int64 [M]
        The numbers of the rows to fit to.
    others : int64 [K]
        The numbers of the rows whose logits are wanted.
    salience : float
        See `BranchSettings`.

    """

    def __init__(self, grams: Bags, answers: Answers, rows: RowNumbers, others: RowNumbers, salience: float) -> None:
        self._grams, self._count, self._answers = grams.rows(np.concatenate([rows, others])), len(rows), answers
        self._truth = answers.shares()
        self._known_importance = importances(self._grams.rows(np.arange(self._count)), self._truth, salience)
        self._letters: Singles | None = None

    def weigh(self, settings: BranchSettings) -> None:
        """Compute the weighted features of all rows, and prepare the fits."""
        # Scale the mean word vectors of the texts. Words that no row has get the median importance.
        grams, self.importance, ours = self._grams, self._known_importance, slice(self._count)
        self._pretrained = grams.pretrained if settings.vectors else None
        dense = None
        if (known := self._pretrained) is not None:
            self.importance = self.importance.copy()
            new = known.columns[self.importance[known.columns] == 0]
            self.importance[new] = np.median(self.importance[self.importance > 0])
            means = known.sums / (_lengths(grams.words, self.importance) / np.sqrt(settings.words))[:, None]
            self._scale = settings.vectors / max(float(np.sqrt(np.square(means[ours]).sum(axis=1).mean())), 1e-12)
            dense = self._scale * means
        # Weigh the n-grams of both kinds.
        words = _of_kind(grams.words, self.importance, settings.words)
        letters = _of_kind(grams.letters, self.importance, 1 - settings.words)
        self._features, self._dense = sp.csr_array(words + letters), dense
        # Choose how to fit: numbers, many rows by their features, or few rows by their products with each other. The
        # product of two rows is the sum of 1 for the bias, the products of n-grams of words with all n-grams, those of
        # n-grams of characters with each other, and those of the word vectors.
        answers, of_ours = self._answers, dense if dense is None else dense[ours]
        self._fitter: ProductFitter | Fitter | GpuFitter | NumberFitter
        if answers.steps is not None:
            self._fitter = NumberFitter(self._features[ours], answers.steps, of_ours, answers.absolute)
        elif self._count > MOST_ROWS:
            kind = GpuFitter if grams.on_gpu else Fitter
            self._fitter = kind(self._features[ours], self._truth, answers.weights, of_ours)
        else:
            self._products = 1 + products(words, self._features[ours]) + products(letters, words[ours])
            if settings.words < 1:
                self._products += (1 - settings.words) * self._of_letters()
            if dense is not None and of_ours is not None:
                self._products += dense.astype(np.float32) @ of_ours.astype(np.float32).T
            self._fitter = ProductFitter(self._products[ours], self._truth, answers.weights)

    def _of_letters(self) -> Singles:
        """Return the products of the n-grams of characters of all rows with those of the rows to fit to.

        The n-grams that occur in the rows to fit to have the same importance with all settings. So their products are
        computed only once, and then divided by the lengths of the features, which depend on the settings.
        """
        letters = self._grams.letters
        if self._letters is None:
            ours = _of_kind(letters[: self._count], self._known_importance, 1.0)
            self._letters = products(letters.multiply(self._known_importance).tocsr(), ours)
        return np.asarray(self._letters / _lengths(letters, self.importance)[:, None], np.float32)

    def fit(self, strength: float) -> Floats:
        """Fit to the rows, and return the logits of the other rows."""
        self._solved = self._fitter.fit(strength)
        others = slice(self._count, None)
        if self._pretrained is None and not isinstance(self._solved, Fitted):
            return (self._products[others] @ self._solved).astype(np.float64)
        weights, bias = self.weights()  # if other n-grams share a bucket with a word, they get its vector's weights too
        return np.asarray(self._features[others] @ weights + bias)

    def weights(self) -> tuple[Floats, Floats]:
        """Return the weights of the last fit, [used buckets, classes], and its bias, [classes].

        The weights of the word vectors are added to those of the words' buckets.
        """
        if isinstance(self._solved, Fitted):
            weights, of_dense, bias = self._solved.weights.copy(), self._solved.of_dense, self._solved.bias
        else:
            of_rows = self._solved.astype(np.float64)
            weights, bias = self._features[: self._count].T @ of_rows, of_rows.sum(axis=0)
            of_dense = of_rows if self._dense is None else self._dense[: self._count].T @ of_rows
        if self._pretrained is not None:
            of_words = self._pretrained.vectors @ (self._scale * of_dense)
            weights[self._pretrained.columns] += of_words / self.importance[self._pretrained.columns, None]
        return weights, bias


def importances(grams: Bags, truth: Floats, salience: float) -> Floats:
    """Return the importance of each used bucket; 0 for a bucket that no row has.

    truth: [N, classes], how far each class is right, from 0 to 1. salience: the exponent of the salience.
    """
    present = ((grams.words + grams.letters) > 0).astype(np.float64)
    of_classes = np.asarray(present.T @ truth)
    rows = np.asarray(present.sum(axis=0)).ravel()
    idf = _idf(rows, len(truth))
    sums = of_classes.sum(axis=0)
    tells = (sums > 0) & (sums < rows.sum())  # classes that some rows have, and others do not
    if salience and tells.any():
        of_classes, sums = of_classes[:, tells], sums[tells]
        share = truth.mean(axis=0)[tells]
        within = (of_classes + share) / (sums + share)
        outside = (rows[:, None] - of_classes + 1 - share) / (rows.sum() - sums + 1 - share)
        saliences = np.abs(np.log(within / outside)) @ (share / share.sum())
        if saliences.max(initial=0) > _SAYS_NOTHING:
            idf *= saliences**salience
    return np.where(rows > 0, idf, 0.0)


def _idf(rows: NDArray[np.integer], total: int) -> Floats:
    """Return the inverse document frequency of n-grams that `rows` of `total` rows have."""
    return np.asarray(np.log((1 + total) / (1 + rows)) + 1)


def _of_kind(counts: sp.csr_array, importance: Floats, share: float) -> sp.csr_array:
    """Return the features of one kind of n-grams, [N, used buckets]: of length one, times the root of its share."""
    scaled = sp.diags_array(np.sqrt(share) / _lengths(counts, importance)) @ counts.multiply(importance[None, :])
    return sp.csr_array(scaled)


def _lengths(counts: sp.csr_array, importance: Floats) -> Floats:
    """Return the lengths of N texts' features of one kind of n-grams, before they are scaled."""
    return np.asarray(np.maximum(np.sqrt(counts.power(2) @ np.square(importance)), 1e-12))
