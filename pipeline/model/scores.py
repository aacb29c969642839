"""The functions from logits to scores and labels, and the values that are fitted to rows with labels: a temperature,
scores by class, or a threshold for each class.

A temperature is as in Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks" (2017). Training
makes a network right, but does not teach it how often it is right: the recipe's dropout and label smoothing make its
scores too low, other recipes make them too high. Dividing all logits by one number, the temperature, makes the scores
probabilities: labels with a score of 0.9 are right about nine times in ten. It changes no label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..errors import ModelError
from .layers import CLASSES

Doubles = NDArray[np.float64]
TEMPERATURES = (0.05, 20.0)
"""The range of temperatures in which `fitted` searches, and that a model may have."""

LEAST_ROWS = 100
"""The least number of labelled rows to fit a temperature to. With fewer rows, a handful of mistakes would decide it."""

CARD = "temperature fitted on"
"""The key of a model's card under which the card says on which rows the temperature was fitted."""

BY_CLASS = "calibrated by class on"
"""The key of a model's card under which the card says on which rows the scores by class were fitted."""

_STEPS = 60  # of each search


def log_scores(scores: NDArray[np.floating], temperature: float = 1.0) -> Doubles:
    """Return logits, except for a constant in each row, of scores [N, classes] that were computed at `temperature`."""
    return np.asarray(np.log(np.maximum(scores, np.finfo(np.float32).tiny, dtype=np.float64)) * temperature)


def probabilities(logits: Doubles, temperature: float) -> Doubles:
    """Return the softmax of logits, [N, classes], at a temperature, in float64."""
    powers = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def log_loss(logits: Doubles, truth: NDArray[np.int64], temperature: float, weights: Doubles | None = None) -> float:
    """Return the mean negative log likelihood of the true classes, [N], at a temperature.

    weights: [N], how much each row counts; None if all count the same.
    """
    of_truth = probabilities(logits, temperature)[np.arange(len(truth)), truth]
    return float(np.average(-np.log(np.maximum(of_truth, np.finfo(np.float64).tiny)), weights=weights))


def fitted(logits: Doubles, truth: NDArray[np.int64], weights: Doubles | None = None) -> float | None:
    """Return the temperature with the least negative log likelihood of the true classes.

    Returns None if no temperature within TEMPERATURES is best. For example, if the labels of all rows are right, a
    lower temperature is always better, and brings the scores nearer to 1.

    logits: float64 [N, classes], except for a constant in each row. truth: class indices [N]. weights: [N], how much
    each row counts; None if all count the same.
    """

    def slope(sharpness: float) -> float:
        """Return N times the slope of the negative log likelihood, which is convex in 1 / temperature."""
        expected = (probabilities(logits, 1 / sharpness) * logits).sum(axis=1)
        differences = expected - logits[np.arange(len(truth)), truth]
        return float(differences.sum() if weights is None else differences @ weights)

    low, high = 1 / TEMPERATURES[1], 1 / TEMPERATURES[0]
    if slope(low) >= 0 or slope(high) <= 0:
        return None
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return float(np.float32((low * high) ** -0.5))


_SURE = 2.0**-24
"""The least distance of a score from 0 and 1. Scores are clipped to it, so that their logits are finite."""


class ByClass(Struct, frozen=True):
    """A function for each class from a label's score to the probability that the label is right.

    It is a sigmoid of each class, as in Platt, "Probabilistic Outputs for Support Vector Machines" (1999), fitted to
    labels only, as in Gupta and Ramdas, "Top-label calibration" (2022).

    Attributes
    ----------
    slopes, shifts : tuple of float
        For each class, the numbers by which the logit of the label's score is multiplied, and that is then added.

    """

    slopes: tuple[float, ...]
    shifts: tuple[float, ...]

    def check(self, classes: int, model: str) -> None:
        """Raise ModelError unless this fits a model with this number of classes, and keeps the order of scores."""
        if not len(self.slopes) == len(self.shifts) == classes:
            raise ModelError(f"{model}: {len(self.slopes)} slopes and {len(self.shifts)} shifts for {classes} classes")
        if not (np.isfinite([*self.slopes, *self.shifts]).all() and min(self.slopes) > 0):
            raise ModelError(f"{model}: a slope of its scores by class is not above 0, or one of them is not finite")

    def scores(self, labels: NDArray[np.integer], scores: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the probability that each label, [N], with its score, [N], is right; NaN if the score is NaN."""
        class_ = np.maximum(labels, 0)
        logits = _logits(scores) * np.array(self.slopes)[class_] + np.array(self.shifts)[class_]
        return np.asarray((1 / (1 + np.exp(-logits))).astype(np.float32))


def _logits(scores: NDArray[np.floating]) -> Doubles:
    """Return the logits of scores, which are the inverse of the sigmoid."""
    within = np.clip(scores.astype(np.float64), _SURE, 1 - _SURE)
    return np.asarray(np.log(within / (1 - within)))


def fitted_by_class(scores: NDArray[np.floating], truth: NDArray[np.int64]) -> ByClass:
    """Fit scores by class to N rows: by logistic regression, with Platt's targets for a finite number of rows.

    The scores of a class stay the same if fewer than LEAST_ROWS rows have its label, or if its higher scores are not
    more often right.

    scores: [N, classes]. truth: class indices [N].
    """
    labels, fits = scores.argmax(axis=1), []
    logits = _logits(scores.max(axis=1))
    for class_ in range(scores.shape[1]):
        rows = labels == class_
        right = truth[rows] == class_
        x = np.stack([logits[rows], np.ones(len(right))], axis=1)
        target = np.where(right, (right.sum() + 1) / (right.sum() + 2), 1 / ((~right).sum() + 2))
        fit = np.array([1.0, 0.0])
        for _ in range(_STEPS if len(right) >= LEAST_ROWS else 0):
            p = 1 / (1 + np.exp(-x @ fit))
            curvature = (x.T * (p * (1 - p))) @ x
            fit = fit - np.linalg.solve(curvature + 1e-9 * np.eye(2), x.T @ (p - target))
        fits.append(fit if np.isfinite(fit).all() and fit[0] > 0 else np.array([1.0, 0.0]))
    slopes, shifts = np.array(fits, np.float32).T.tolist()
    return ByClass(tuple(slopes), tuple(shifts))


def with_best(every: NDArray[np.floating], labels: NDArray[np.integer], best: NDArray[np.floating]) -> NDArray[Any]:
    """Replace the probability of each row's label, and scale the row's other probabilities so that the sum is 1.

    every: probabilities [N, classes]. labels: class indices [N]. best: the labels' new probabilities, [N].
    """
    rows = np.arange(len(every))
    scaled: NDArray[Any] = every * ((1 - best) / np.maximum(1 - every[rows, labels], _SURE))[:, None]
    scaled[rows, labels] = best
    return scaled


SOFTMAX, SIGMOID, STEPS, GIVEN = range(4)
"""The functions from logits to scores: softmax over all classes; the sigmoid of each logit by itself; a sigmoid of 512
steps of each logit; or GIVEN, which is no function: the model computes scores itself.
"""


class Levels(Struct, frozen=True, omit_defaults=True):
    """The scale of a model that gives each text a number: each class is a level of the scale, at equal steps.

    The number is linear in the n-grams, or in the encoder's vector of the text. Let x be the number, counted in steps,
    with the lowest level at 1. The level k = 1, 2, … nearest to x is the one with the largest k x - k²/2. So it is the
    class of a linear model with these logits, which every engine computes, and x follows from the logit of that class.

    Attributes
    ----------
    low : float
        The number of the first level.
    step : float
        The distance from each level to the next one.
    spread : float
        The standard deviation of the true numbers around those that the model gives, in steps.
    is_limited : bool
        Whether the model's numbers are limited to the range from the lowest to the highest level. Without the limit,
        the label of a number is still the nearest level.

    """

    low: float
    step: float
    spread: float = 1.0
    is_limited: bool = True

    def check(self, fits: bool, model: str) -> None:
        """Raise ModelError if the step or the spread is not above 0, or a value is not finite, or levels do not fit.

        fits: whether levels fit the model, which must have no network and no thresholds.
        """
        if not fits:
            raise ModelError(f"{model}: a model of numbers has neither a network of characters nor thresholds")
        values = self.low, self.step, self.spread
        if not (np.isfinite(values).all() and self.step > 0 and self.spread > 0):
            raise ModelError(f"{model}: levels from {self.low:g} in steps of {self.step:g}, spread {self.spread:g}")

    def steps(self, numbers: Doubles) -> Doubles:
        """Return numbers in steps, with the lowest level at 1."""
        return 1 + (numbers - self.low) / self.step

    def numbers(self, steps: Doubles, levels: int) -> Doubles:
        """Return the numbers for steps, limited to the levels if `is_limited` is true. levels: the number of levels."""
        limited = np.clip(steps, 1, levels) if self.is_limited else steps
        return self.low + self.step * (limited - 1)

    def nearest(self, numbers: NDArray[np.floating], levels: int) -> NDArray[np.int64]:
        """Return the index of the level nearest to each number, or 0 for NaN. levels: the number of levels."""
        steps = np.nan_to_num(self.steps(numbers.astype(np.float64)))
        return np.rint(np.clip(steps, 1, levels)).astype(np.int64) - 1

    def numbers_of(self, labels: NDArray[np.int32], logits: NDArray[np.float32], levels: int) -> NDArray[np.float32]:
        """Return the numbers of N texts from their classes and the logits of these classes; NaN for a logit of NaN."""
        class_ = np.maximum(labels, 0) + 1.0
        return self.numbers(logits / class_ + class_ / 2, levels).astype(np.float32)

    def probabilities(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probability of each level, [N, levels].

        It assumes that the true numbers are normally distributed around the model's numbers.
        """
        return probabilities(logits.astype(np.float64), self.spread**2).astype(np.float32)


def of_levels(steps: Doubles, levels: int, weights: bool) -> Doubles:
    """Return the weights or the bias of each level's logit, [..., levels], from those of the number, [..., 1].

    steps: the weights or the bias by which a linear model gives the number in steps. weights: whether they are weights.
    """
    level = np.arange(1, levels + 1)
    return np.asarray(steps * level if weights else steps * level - level**2 / 2)


def in_steps(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return fastText's sigmoid for one-vs-all and negative sampling: in steps of 1/32 from -8 to 8, else 0 or 1."""
    place = np.floor((np.clip(logits, -8, 8) + np.float32(8)) * np.float32(32))
    with np.errstate(over="ignore"):
        scores = np.float32(1) / (np.float32(1) + np.exp(np.float32(8) - place / np.float32(32)))
    return np.where(logits < -8, np.float32(0), np.where(logits > 8, np.float32(1), scores))


DEFAULT_THRESHOLD = 0.5
"""The threshold of a class that occurs in no held-out row."""


def check_classes(classes: Sequence[str], model: str, heads: Heads | None) -> None:
    """Raise ModelError for names that Parquet, CSV and JSON cannot write, or that read back as a missing label."""
    if len(set(classes)) != len(classes):
        raise ModelError(f"{model}: two classes have the same name")
    if "" in classes:
        raise ModelError(f"{model}: class {1 + classes.index('')} has no name")
    try:
        "".join(classes).encode()
    except UnicodeEncodeError as error:
        raise ModelError(f"{model}: the name of a class is not valid Unicode") from error
    if heads is not None:
        _check_heads(heads, classes, model)


Heads = tuple[tuple[str, int], ...]
"""The label columns of a model that has several: the name of each, and how many of the classes, in order, belong to it.
"""


def parts_of(heads: Heads) -> Iterator[slice]:
    """Yield the slice of the classes that belongs to each head."""
    first = 0
    for _, count in heads:
        yield slice(first, first + count)
        first += count


def of_head(head: str, label: str) -> str:
    """Return the name of a head's class in the model, which includes the head, since heads may share names."""
    return f"{head}: {label}"


def _check_heads(heads: Heads, classes: Sequence[str], model: str) -> None:
    """Raise ModelError unless there are two or more heads with different names, and the classes belong to them."""
    names, counts = zip(*heads, strict=True) if heads else ((), ())
    if len({*names} - {""}) < max(len(names), 2) or min(counts) < CLASSES[0] or sum(counts) != len(classes):
        shown = ", ".join(f"{name!r:.80} of {count}" for name, count in heads)
        raise ModelError(f"{model}: {len(classes)} classes do not fit its heads: {shown}")
    for name, part in zip(names, parts_of(heads), strict=True):
        for label in classes[part]:
            if len(label) <= len(of_head(name, "")) or not label.startswith(of_head(name, "")):
                raise ModelError(f"{model}: class {label!r:.80} is none of the head {name!r:.80}")


def check_thresholds(thresholds: Sequence[float], classes: Sequence[str], model: str) -> None:
    """Raise ModelError unless each class has a threshold between 0 and 1."""
    if len(thresholds) != len(classes):
        raise ModelError(f"{model}: {len(thresholds)} thresholds for {len(classes)} classes")
    for name, threshold in zip(classes, thresholds, strict=True):
        if not 0 < threshold < 1:
            raise ModelError(f"{model}: the threshold of class {name!r} is {threshold:g}, not between 0 and 1")


def assigned(scores: NDArray[np.float32], thresholds: Sequence[float]) -> NDArray[np.bool_]:
    """Return whether each of N texts gets each class, bool [N, classes]: whether the score reaches the threshold.

    scores: float32 [N, classes]. An article without scores, which are NaN, gets no class.
    """
    return np.asarray(scores >= np.asarray(thresholds, np.float32))


def best_thresholds(scores: NDArray[np.float32], truth: NDArray[np.bool_]) -> tuple[float, ...]:
    """Return, for each class, the threshold with the best F1 on N rows.

    A threshold is half-way between the scores of two rows. If several thresholds are equally good, the highest is
    returned.

    scores, truth: [N, classes].
    """
    return tuple(_best(scores[:, i], truth[:, i]) for i in range(scores.shape[1]))


def _best(scores: NDArray[np.float32], truth: NDArray[np.bool_]) -> float:
    """Return the threshold of one class with the best F1. scores, truth: [N].

    With h hits among the n highest scores, F1 is 2 h / (n + true rows).
    """
    if not truth.any():
        return DEFAULT_THRESHOLD
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order].astype(np.float64), np.cumsum(truth[order])
    f1 = 2 * hits / (np.arange(1, len(ranked) + 1) + truth.sum())
    f1[:-1][ranked[1:] == ranked[:-1]] = -1  # no threshold separates rows with the same score
    last = int(np.argmax(f1))
    below = ranked[last + 1] if last + 1 < len(ranked) else 0.0
    threshold = np.float32((ranked[last] + below) / 2)
    return float(np.clip(threshold, np.float32(1e-6), np.float32(1 - 1e-6)))
