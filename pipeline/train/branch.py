"""Fitting the branch of n-grams: a linear classifier on TF-IDF, whose settings are chosen by cross-validation; or in
their place one on an encoder's vectors.

Importance is the inverse document frequency, times the root of how much an n-gram says about the classes: the mean,
over the rows' classes, of the absolute log ratio of its frequency within the class and outside it, as in Wang and
Manning, "Baselines and Bigrams" (2012), but one factor for all classes. Frequencies are smoothed by one more occurrence
of the n-gram, shared out among the classes as the rows are. (The largest ratio instead of the mean, and one more
occurrence in each class, as is usual, let a rare class make all n-grams seem to say much: on 18 sets with 500 rows that
was 0.8 points worse on average, and 3.4 with 23 classes of which some have few rows.)
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
_BALANCED_STRENGTHS = (10.0 ** np.arange(0, -5.6, -0.5)).tolist()  # few rows that weigh much need a larger penalty
_SHARES = (0.35, 0.65)
_VECTORS = (0.25, 0.5, 1.0)
_AROUND = (10**0.5, 1.0, 10**-0.5)  # of the strength without vectors, those that are tried with them
_FOLDS = ((2_000, 5), (10_000, 3))  # up to so many rows, so many folds
_SAYS_NOTHING = 1e-9  # of the classes: what is left of a log ratio of one by rounding
_BLOCK = 512  # texts whose n-grams are found at once


@dataclass(frozen=True)
class BranchSettings:
    """How the branch is fitted.

    Attributes
    ----------
    strength : float
        Of the penalty.
    salience : float
        The power of what n-grams say about classes.
    words : float
        The share of n-grams of words; the rest is that of n-grams of characters.
    vectors : float
        The average length of a text's mean word vector, where its n-grams have length one.

    """

    strength: float
    salience: float = 0.5
    words: float = 0.5
    vectors: float = 0.0


_PLAIN_BITS = 18
_PLAIN_STRENGTH = 1.0  # of the rows, each: as C=1 of scikit-learn's LinearSVC


class Pretrained(NamedTuple):
    """Word vectors by bucket.

    Attributes
    ----------
    columns : int64 [W]
        Which of the used buckets have a vector.
    vectors : float32 [W, d]
        The vectors, without what those of the texts' words have in common, weighed by the inverse document frequency.
    sums : float64 [N, d]
        The sums over the words of N texts.

    """

    columns: NDArray[np.int64]
    vectors: NDArray[np.float32]
    sums: Floats


class Bags(NamedTuple):
    """The n-grams of N texts.

    Attributes
    ----------
    words, letters : sparse [N, used buckets]
        How often each bucket counts, of n-grams of words and of characters.
    buckets : uint32 [used buckets]
        Which buckets are used, ascending.
    pretrained : Pretrained, optional
        Vectors of their words.
    on_gpu : bool
        Whether a fit to many of them runs on a GPU.

    """

    words: sp.csr_array
    letters: sp.csr_array
    buckets: NDArray[np.uint32]
    pretrained: Pretrained | None = None
    on_gpu: bool = False

    def rows(self, rows: NDArray[np.int64]) -> Bags:
        """The n-grams of some texts."""
        known = self.pretrained and self.pretrained._replace(sums=self.pretrained.sums[rows])
        return self._replace(words=self.words[rows], letters=self.letters[rows], pretrained=known)


class Branch(NamedTuple):
    """The result of `fit_branch`, or of `fit_head`.

    Attributes
    ----------
    ngrams : NGrams, optional
        The n-grams; what they and `bias` give a text are its logits.
    bias : float64 [classes]
        The bias.
    settings : BranchSettings
        The chosen settings.
    rows : int64 [M]
        Row numbers.
    logits : float64 [M, classes], or [M, 1]
        Logits of each of these by a fit to other rows; or a number in steps.
    plain : float64 [M, classes], or [M, 1]
        The same by a plain linear model on words, to compare with.
    vectors : WordVectors, optional
        Word vectors that were tried.
    encoder : Encoder or TorchEncoder, optional
        An encoder with a head in place of n-grams.
    has_learned_held : bool
        Whether the encoder has learned the held-out rows too, after another one had given their logits.

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
        """The logits of other texts but for the bias, [N, classes]."""
        if self.encoder is None:
            assert self.ngrams is not None
            return np.asarray(scores(*text, self.ngrams), np.float64)
        return np.asarray(vectors_of(self.encoder, *text) @ self.encoder.weights["last"], np.float64)

    def about(self) -> dict[str, Any]:
        """Its settings as a model's card has them."""
        if self.encoder is not None:
            return {"strength": self.settings.strength}
        return asdict(self.settings) | ({"word vectors": self.vectors.about} if self.vectors else {})

    def share_right(self, labels: Labels, part: slice = slice(None)) -> float:
        """Of `rows` with a label, the share for which that is right; of several labels, of all that could be given."""
        truth, logits = labels[self.rows], self.logits[:, part]
        right = (logits >= 0) == truth if truth.ndim > 1 else (logits.argmax(axis=1) == truth)[truth != NO_TRUTH]
        return float(right.mean())


def bags(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], kinds: Kinds, bits: int, vectors: WordVectors | None = None
) -> Bags:
    """The n-grams of N texts.

    Parameters
    ----------
    data : uint8 [bytes]
        UTF-8.
    offsets : int64 [N + 1]
        Text i is ``data[offsets[i]:offsets[i + 1]]``.
    kinds : Kinds
        Which n-grams.
    bits : int
        The number of buckets is 2 to this power.
    vectors : WordVectors, optional
        Vectors whose buckets count as used.

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
    common = often @ of_words / max(1.0, often.sum())  # to all words, which says nothing about a text
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

    Its settings are chosen on rows that were held out of these in turn, or if there are more than 10,000, on a fifth of
    them; its logits are scaled so that the log loss of rows that it was not fitted to is least: `held`, or if there are
    none, those on which the settings were chosen.

    Parameters
    ----------
    text : TextBuffers
        All texts.
    answers : Answers
        Their labels.
    fit : int64 [M]
        Numbers of the rows to fit to.
    held : int64 [K]
        Numbers of the rows that are held out.
    kinds : Kinds
        Which n-grams.
    bits : int
        The number of buckets is 2 to this power.
    balanced : bool
        Every class weighs the same, in the fit and in the choice. (In the fit alone it was 3.2 points of macro-F1 worse
        on average over eight sets with 500 rows, every other class a tenth of its rows.)
    vectors : WordVectors, optional
        Word vectors to try.
    tell : callable
        Called after each fit.
    on_gpu : bool
        As of `Bags`.

    """
    grams = bags(*text.rows(np.concatenate([fit, held])), kinds, bits, vectors)._replace(on_gpu=on_gpu)
    ours, others = np.arange(len(fit)), np.arange(len(fit), len(fit) + len(held))
    learned = answers.rows(fit)
    folds = folds_of(learned.labels, text.numbered()[fit])
    known = np.sort(np.concatenate(folds))
    strengths = _BALANCED_STRENGTHS if balanced else _STRENGTHS
    _, settings, logits = _chosen(grams.rows(ours), learned, folds, strengths, tell)
    sharpness = learned.rows(known).log_loss(logits[known])[1]
    rows = _Fold(grams, learned, ours, others, settings.salience)
    rows.weigh(settings)
    given = sharpness * rows.fit(settings.strength)
    of_used, bias = (sharpness * part for part in rows.weights())
    weights, all_importance = np.zeros((1 << bits, answers.classes)), np.zeros(1 << bits)
    if answers.steps is not None:
        of_used, bias = of_levels(of_used, answers.classes, True), of_levels(bias, answers.classes, False)
    weights[grams.buckets], all_importance[grams.buckets] = of_used, rows.importance
    ngrams = NGrams.of_weights(kinds, weights, all_importance)
    shares = np.sqrt([[settings.words], [1 - settings.words]]).astype(np.float32)
    ngrams = replace(ngrams, scale=ngrams.scale * shares)
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
        Without a last product.
    text, answers, fit, held, tell
        As of `fit_branch`.

    """
    rows = np.concatenate([fit, held])
    texts, learned = text.rows(rows), answers.rows(fit)
    folds = folds_of(learned.labels, texts.numbered()[: len(fit)])
    vectors = vectors_of(encoder, *texts, done=lambda done: tell(RowsDone("vectors of texts", done, len(rows))))
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
    """Fit a linear model to the first of N vectors, with a strength that is chosen by cross-validation.

    Parameters
    ----------
    vectors : float32 [N, values]
        The vectors, of length one.
    answers : Answers
        Of the first M, to which it is fitted.
    folds : list of RowNumbers
        Which of these are held out in turn.
    tell : callable
        Called after each fit.

    Returns
    -------
    Fitted, Tried
        The model, and the logits of all N, those of rows in `folds` by fits to others. Both are scaled so that the log
        loss of these rows is least.

    """
    ours, known, done = np.arange(len(answers.labels)), np.concatenate(folds), count(1)
    most = len(_BALANCED_STRENGTHS) * len(folds)
    rows = [_VectorFold(vectors, answers, np.setdiff1d(ours, held), held) for held in folds]
    weighing = BranchSettings(0.0)

    def fitted() -> None:
        tell(Fit(next(done), most, "head on vectors"))

    best = _best_strength(rows, answers, folds, weighing, _BALANCED_STRENGTHS, fitted)
    whole = _VectorFold(vectors, answers, ours, np.arange(len(vectors)))
    logits = whole.fit(best.settings.strength)
    logits[known] = best.logits[known]
    sharpness = answers.rows(known).log_loss(best.logits[known])[1]
    model = Fitted(*(sharpness * part for part in whole.fitted))
    return model, best._replace(logits=sharpness * logits)


class Tried(NamedTuple):
    """Settings, and how good they are.

    Attributes
    ----------
    loss : float
        The log loss of rows that they were not fitted to.
    settings : BranchSettings
        The settings.
    logits : float64 [N, columns]
        The logits of these rows.

    """

    loss: float
    settings: BranchSettings
    logits: Floats


def _chosen(grams: Bags, answers: Answers, folds: list[RowNumbers], strengths: Sequence[float], tell: Tell) -> Tried:
    """The settings with the least loss.

    Parameters
    ----------
    grams : Bags
        The n-grams of the rows to fit to.
    answers : Answers
        Their labels.
    folds : list of RowNumbers
        Numbers of the rows that are held out in turn.
    strengths : sequence of float
        Strengths of the penalty, descending.
    tell : callable
        Called after each fit.

    """
    weighing = BranchSettings(0.0)
    tries = len(strengths) + len(_SHARES) + (len(_VECTORS) * len(_AROUND) if grams.pretrained else 0)
    done = count(1)

    def fitted() -> None:
        tell(Fit(next(done), tries * len(folds)))

    rows = _folds(grams, answers, folds, weighing.salience)
    best = _best_strength(rows, answers, folds, weighing, strengths, fitted)
    for share in _SHARES:
        weighing = replace(weighing, words=share)
        tried = _best_strength(rows, answers, folds, weighing, [best.settings.strength], fitted)
        best = min(best, tried, key=attrgetter("loss"))
    for length in _VECTORS if grams.pretrained else ():
        weighing = replace(best.settings, vectors=length)
        # None larger than without vectors: where labels are noise, that alone would be better.
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
    """The best of descending strengths, given up where the loss is larger twice.

    Parameters
    ----------
    rows : sequence of _Fold or _VectorFold
        For each fold the rows to fit to.
    answers : Answers
        The labels of all rows.
    folds : list of RowNumbers
        Numbers of the rows that are held out in turn.
    weighing : BranchSettings
        The other settings.
    strengths : sequence of float
        Strengths of the penalty, descending.
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
    """The logits of the rows of `folds`, by a plain linear model on words, fitted to the other rows."""
    plain = BranchSettings(0.0, salience=0.0, words=1.0)
    alike = Answers.of(answers.labels, answers.classes, heads=answers.heads)
    alike = alike._replace(steps=answers.steps, absolute=answers.absolute)
    rows = _folds(grams, alike, folds, plain.salience)
    return _best_strength(rows, alike, folds, plain, [_PLAIN_STRENGTH / len(alike.labels)]).logits


def plain_on_words(text: TextBuffers, answers: Answers, folds: list[RowNumbers]) -> Floats:
    """The same of texts whose n-grams are yet to be found."""
    return plain_logits(bags(*text, Kinds(2, (0, 0), 1014), _PLAIN_BITS), answers, folds)


def folds_of(labels: Labels, texts: NDArray[np.int64]) -> list[RowNumbers]:
    """Rows that are held out in turn, a like share of the texts of each class; of many rows a fifth, once.

    texts: as of `hold_out`; rows of one text are in one fold.
    """
    count = next((folds for rows, folds in _FOLDS if len(labels) <= rows), 1)
    _, first, of_row = np.unique(texts, return_index=True, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(first))
    of_class = strata(labels)[first]
    fold = np.empty(len(first), np.int64)
    fold[order[np.argsort(of_class[order], kind="stable")]] = np.arange(len(first)) % (5 if count == 1 else count)
    return [np.flatnonzero(fold[of_row] == number) for number in range(count)]


class _VectorFold:
    """As `_Fold`, by vectors of the rows."""

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
        """Vectors are as they are."""

    def fit(self, strength: float) -> Floats:
        """Fit to the rows; the logits of the others."""
        solved = self._fitter.fit(strength)
        self.fitted = solved if isinstance(solved, Fitted) else Fitted(solved[:0], solved[:-1], solved[-1])
        return np.asarray(self._others @ self.fitted.of_dense + self.fitted.bias)


class _Fold:
    """Rows to fit to, and others, whose logits are wanted; `weigh` says by which settings, but for their strength.

    Parameters
    ----------
    grams : Bags
        The n-grams of all rows.
    answers : Answers
        The labels of `rows`.
    rows : int64 [M]
        Numbers of the rows to fit to.
    others : int64 [K]
        Numbers of the rows whose logits are wanted.
    salience : float
        As of `BranchSettings`.

    """

    def __init__(self, grams: Bags, answers: Answers, rows: RowNumbers, others: RowNumbers, salience: float) -> None:
        self._grams, self._count, self._answers = grams.rows(np.concatenate([rows, others])), len(rows), answers
        self._truth = answers.shares()
        self._known_importance = importances(self._grams.rows(np.arange(self._count)), self._truth, salience)
        self._letters: Singles | None = None

    def weigh(self, settings: BranchSettings) -> None:
        """Weigh the rows."""
        grams, self.importance, ours = self._grams, self._known_importance, slice(self._count)
        self._known, dense = grams.pretrained if settings.vectors else None, None
        if (known := self._known) is not None:
            self.importance = self.importance.copy()  # words that no row has weigh as the median n-gram
            new = known.columns[self.importance[known.columns] == 0]
            self.importance[new] = np.median(self.importance[self.importance > 0])
            means = known.sums / (_lengths(grams.words, self.importance) / np.sqrt(settings.words))[:, None]
            self._scale = settings.vectors / max(float(np.sqrt(np.square(means[ours]).sum(axis=1).mean())), 1e-12)
            dense = self._scale * means
        words = _of_kind(grams.words, self.importance, settings.words)
        letters = _of_kind(grams.letters, self.importance, 1 - settings.words)
        self._features, self._dense = sp.csr_array(words + letters), dense
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
        """The products of n-grams of characters; those that the rows have weigh the same whatever the settings."""
        letters = self._grams.letters
        if self._letters is None:
            ours = _of_kind(letters[: self._count], self._known_importance, 1.0)
            self._letters = products(letters.multiply(self._known_importance).tocsr(), ours)
        return np.asarray(self._letters / _lengths(letters, self.importance)[:, None], np.float32)

    def fit(self, strength: float) -> Floats:
        """Fit to the rows; the logits of the others."""
        self._solved = self._fitter.fit(strength)
        others = slice(self._count, None)
        if self._known is None and not isinstance(self._solved, Fitted):
            return (self._products[others] @ self._solved).astype(np.float64)
        weights, bias = self.weights()  # of words, which other n-grams' buckets may be too
        return np.asarray(self._features[others] @ weights + bias)

    def weights(self) -> tuple[Floats, Floats]:
        """The weights [used buckets, classes] of the last fit, with what it gives the words' vectors; and the bias."""
        if isinstance(self._solved, Fitted):
            weights, of_dense, bias = self._solved.weights.copy(), self._solved.of_dense, self._solved.bias
        else:
            of_rows = self._solved.astype(np.float64)
            weights, bias = self._features[: self._count].T @ of_rows, of_rows.sum(axis=0)
            of_dense = of_rows if self._dense is None else self._dense[: self._count].T @ of_rows
        if self._known is not None:
            of_words = self._known.vectors @ (self._scale * of_dense)
            weights[self._known.columns] += of_words / self.importance[self._known.columns, None]
        return weights, bias


def importances(grams: Bags, truth: Floats, salience: float) -> Floats:
    """The importance of each used bucket; 0 for one that no row has. truth: [N, classes], by how much each is right."""
    present = ((grams.words + grams.letters) > 0).astype(np.float64)
    of_classes = np.asarray(present.T @ truth)
    rows = np.asarray(present.sum(axis=0)).ravel()
    idf = _idf(rows, len(truth))
    sums = of_classes.sum(axis=0)
    some = (sums > 0) & (sums < rows.sum())
    if salience and some.any():
        of_classes, sums = of_classes[:, some], sums[some]
        share = truth.mean(axis=0)[some]
        within = (of_classes + share) / (sums + share)
        outside = (rows[:, None] - of_classes + 1 - share) / (rows.sum() - sums + 1 - share)
        told = np.abs(np.log(within / outside)) @ (share / share.sum())
        if told.max(initial=0) > _SAYS_NOTHING:
            idf *= told**salience
    return np.where(rows > 0, idf, 0.0)


def _idf(rows: NDArray[np.integer], of: int) -> Floats:
    """The inverse document frequency of what so many rows have of so many."""
    return np.asarray(np.log((1 + of) / (1 + rows)) + 1)


def _of_kind(counts: sp.csr_array, importance: Floats, share: float) -> sp.csr_array:
    """The features [N, used buckets] of one kind of n-grams: of length one, then weighted by the kind's share."""
    scaled = sp.diags_array(np.sqrt(share) / _lengths(counts, importance)) @ counts.multiply(importance[None, :])
    return sp.csr_array(scaled)


def _lengths(counts: sp.csr_array, importance: Floats) -> Floats:
    """The lengths of N texts' features of one kind of n-grams, before they are scaled."""
    return np.asarray(np.maximum(np.sqrt(counts.power(2) @ np.square(importance)), 1e-12))
