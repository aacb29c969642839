"""A linear classifier of each class against all others, with the squared hinge loss.

Many rows are fitted by LIBLINEAR, as scikit-learn has it. Up to MOST_ROWS are fitted by their products with each other,
of all classes at once, with Newton's method (Chapelle, "Training a Support Vector Machine in the Primal", 2007), to the
same minimum in a fifth of the time or less: products are computed once for all strengths, and of n-grams once for all
shares of their kinds, and a fit begins where the one before ended.

On nine sets with 500 rows this loss was 0.4 points better on average than multinomial logistic regression on the same
features (2 with 42 classes), the penalty of each chosen by cross-validation.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]

MOST_ROWS = 7_000
"""Products of so many rows with each other are 200 MB."""

_COMMON = 0.1  # of the rows; a feature that more of them have is multiplied as a dense one
_BLOCK = 512  # rows whose products of sparse features become dense at once
_MOST_STEPS, _MOST_DIRECTIONS, _MOST_HALVINGS = 30, 100, 8
_NEARER = 0.1  # of what a step of Newton's method is off, which the next one needs not
_SETTLED = 1e-3  # what is reached is nearer to the minimum than what moves the accuracy of any set
_LEAST, _ROUNDED = np.float32(1e-30), 1e-5


class Fitted(NamedTuple):
    """What was fitted. weights: [features, classes]. of_dense: [more, classes], of the dense ones. bias: [classes]."""

    weights: Doubles
    of_dense: Doubles
    bias: Doubles


def products(left: sp.csr_array, right: sp.csr_array) -> Singles:
    """Of N rows with M others, [N, M]."""
    rows = np.minimum(*(np.bincount(each.indices, minlength=right.shape[1]) for each in (left, right)))
    common, others = np.flatnonzero(rows > _COMMON * right.shape[0]), np.flatnonzero(rows)
    others = np.setdiff1d(others, common, assume_unique=True)
    dense, of = (each[:, common].astype(np.float32).toarray() for each in (left, right))
    found: Singles = dense @ of.T
    few, of_few = left[:, others].astype(np.float32), right[:, others].astype(np.float32).T.tocsr()
    for first in range(0, len(found), _BLOCK):
        found[first : first + _BLOCK] += (few[first : first + _BLOCK] @ of_few).toarray()
    return found


class ProductFitter:
    """Fits to N rows by their products with each other, [N, N], each fit from where the one before ended.

    products: with one added for the bias. truth, weights: as of `Fitter`.
    """

    def __init__(self, products: Singles, truth: Doubles, weights: Doubles) -> None:
        self._products, self._truth = products, truth.astype(np.float32)
        self._weights = weights if weights.ndim > 1 else np.broadcast_to(weights[:, None], truth.shape)
        self._of_rows = np.zeros(truth.shape, np.float32)

    def fit(self, strength: float) -> Singles:
        """How much each row counts, [N, classes]: weights are sums of the rows' features, with the least loss."""
        pull = (2 * self._weights / (len(self._truth) * strength)).astype(np.float32)
        of_rows = self._of_rows
        given, left = self._products @ of_rows, np.arange(self._truth.shape[1])
        for _ in range(_MOST_STEPS):
            wanted = _pulled(self._truth[:, left], given[:, left], pull[:, left])
            off = np.linalg.norm(wanted - of_rows[:, left], axis=0)
            left = left[off > _SETTLED * np.linalg.norm(wanted, axis=0)]
            if not len(left):
                break
            truth, at, its, pulls = (each[:, left] for each in (self._truth, given, of_rows, pull))
            ahead = self._step(truth, at, its, pulls) - its
            gained = self._products @ ahead
            least, factor = _loss(truth, at, its, pulls), np.ones(len(left), np.float32)
            for _ in range(_MOST_HALVINGS):
                worse = _loss(truth, at + factor * gained, its + factor * ahead, pulls) > least * (1 + _ROUNDED)
                if not worse.any():
                    break
                factor[worse] /= 2
            of_rows[:, left], given[:, left] = its + factor * ahead, at + factor * gained
        self._of_rows = of_rows
        return of_rows

    def _step(self, truth: Singles, given: Singles, of_rows: Singles, pull: Singles) -> Singles:
        """Where the loss would be least if each row stayed on its side of the margin, by conjugate gradients."""
        slope: Singles = pull * (truth * (given < 1) + (1 - truth) * (given > -1))
        counts = slope > 0
        inverse: Singles = np.where(counts, 1 / np.where(counts, slope, 1), 1).astype(np.float32)
        found: Singles = np.where(counts, of_rows, 0)

        def product(direction: Singles) -> Singles:
            multiplied: Singles = np.where(counts, self._products @ direction, 0) + inverse * direction
            return multiplied

        aim: Singles = np.where(counts, _pulled(truth, given, pull) * inverse + given, 0)
        off = aim - product(found)
        scale: Singles = (1 / (inverse + self._products.diagonal()[:, None])).astype(np.float32)
        goal = _NEARER * np.linalg.norm(off, axis=0)
        direction: Singles = scale * off
        size = (scale * off**2).sum(axis=0)
        for _ in range(_MOST_DIRECTIONS):
            ahead = product(direction)
            factor = size / np.maximum((direction * ahead).sum(axis=0), _LEAST)
            found += factor * direction
            off -= factor * ahead
            if (np.linalg.norm(off, axis=0) <= goal).all():
                break
            before, size = size, (scale * off**2).sum(axis=0)
            direction = scale * off + size / np.maximum(before, _LEAST) * direction
        return found


def _pulled(truth: Singles, given: Singles, pull: Singles) -> Singles:
    """How much each row would count, by the slopes of its losses."""
    pulled: Singles = pull * (truth * np.maximum(1 - given, 0) - (1 - truth) * np.maximum(1 + given, 0))
    return pulled


def _loss(truth: Singles, given: Singles, of_rows: Singles, pull: Singles) -> Singles:
    """Of each class, over the strength."""
    short = truth * np.maximum(1 - given, 0) ** 2 + (1 - truth) * np.maximum(1 + given, 0) ** 2
    loss: Singles = (of_rows * given + pull * short).sum(axis=0) / 2
    return loss


class Fitter:
    """Fits to rows, as often as one likes.

    features: [rows, features]. truth: [rows, classes], from 0 to 1: by how much each class is right. weights: [rows],
    how much each counts, or [rows, classes], for each class. dense: [rows, more], of more features.
    """

    def __init__(self, features: sp.csr_array, truth: Doubles, weights: Doubles, dense: Doubles | None = None) -> None:
        self._features = features if dense is None else sp.hstack([features, sp.csr_array(dense)], format="csr")
        self._sparse, self._truth, self._weights = features.shape[1], truth, weights
        self._labels = truth.argmax(axis=1)
        alone = truth == (self._labels[:, None] == np.arange(truth.shape[1]))
        self._one_label = weights.ndim == 1 and bool(alone.all())

    def fit(self, strength: float) -> Fitted:
        """Minimise the mean squared hinge loss, summed over the classes, plus strength/2 * sum of squared weights.

        The bias is the weight of a feature that every row has, and costs as much as another.
        """
        features, classes = self._features.shape[1], self._truth.shape[1]
        slope = 2 * self._weights.mean()
        weights, bias = (
            np.zeros((features, classes)),
            (2 * self._truth[0] - 1) * slope / (slope + strength),
        )  # where all rows agree
        if self._one_label:
            there = np.unique(self._labels)
            if len(there) > 1:
                found, of = self._fitted(self._features, self._labels, self._weights, strength)
                if len(there) == 2:
                    found, of = np.vstack([-found, found]), np.concatenate([-of, of])
                weights[:, there], bias[there] = found.T, of
        else:
            for each in range(classes):
                weighs = self._weights if self._weights.ndim == 1 else self._weights[:, each]
                both = self._truth[:, each], 1 - self._truth[:, each]
                right, wrong = (np.flatnonzero(share * (weighs > 0)) for share in both)
                if len(right) and len(wrong):
                    rows, sides = np.concatenate([right, wrong]), np.repeat([1, -1], [len(right), len(wrong)])
                    shares = np.where(sides > 0, self._truth[rows, each], 1 - self._truth[rows, each])
                    found, of = self._fitted(self._features[rows], sides, weighs[rows] * shares, strength)
                    weights[:, each], bias[each] = found[0], of[0]
        return Fitted(weights[: self._sparse], weights[self._sparse :], bias)

    def _fitted(
        self, features: sp.csr_array, labels: NDArray[np.int64], weights: Doubles, strength: float
    ) -> tuple[Doubles, Doubles]:
        """Weights and biases, of classes in ascending order, or of the larger of two."""
        # LIBLINEAR's loss is a sum over the rows.
        machine = _machine("LinearSVC", features, labels, weights, C=1 / (strength * len(self._truth)))
        return machine.coef_, machine.intercept_


def _machine(kind: str, features: sp.csr_array, truth: NDArray[Any], weights: Doubles | None, **options: Any) -> Any:
    """One of LIBLINEAR's, fitted. Few rows need none: importing scikit-learn takes longer than their fit."""
    from sklearn import svm
    from sklearn.exceptions import ConvergenceWarning

    machine = getattr(svm, kind)(tol=_SETTLED, random_state=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return machine.fit(features, truth, sample_weight=weights)


class NumberFitter:
    """Fits one number to rows, as `Fitter` fits classes. numbers: [rows]. absolute: the loss, instead of its square."""

    def __init__(self, features: sp.csr_array, numbers: Doubles, dense: Doubles | None, absolute: bool) -> None:
        self._features = features if dense is None else sp.hstack([features, sp.csr_array(dense)], format="csr")
        self._sparse, self._absolute = features.shape[1], absolute
        self._centre = float(np.median(numbers) if absolute else numbers.mean())
        self._scale = float(numbers.std()) or 1.0
        self._numbers = (numbers - self._centre) / self._scale

    def fit(self, strength: float) -> Fitted:
        """Minimise the mean loss of the number over its standard deviation plus strength/2 * sum of squared weights."""
        losses = ("squared_epsilon_insensitive", "epsilon_insensitive")
        options = {"C": 1 / (strength * len(self._numbers)), "loss": losses[self._absolute], "dual": self._absolute}
        machine = _machine("LinearSVR", self._features, self._numbers, None, epsilon=0, **options)
        weights = self._scale * machine.coef_[:, None]
        bias = np.array([self._centre + self._scale * float(np.ravel(machine.intercept_)[0])])
        return Fitted(weights[: self._sparse], weights[self._sparse :], bias)
