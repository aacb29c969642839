"""What is fitted to a model's scores on rows with labels: one temperature, or with several labels a text thresholds.

A temperature is as in Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks" (2017). A network is
trained to be right, not to know how often it is: the recipe's dropout and label smoothing leave its scores too low,
other recipes too high. One number, by which all logits are divided, makes them probabilities that are right about as
often as they say. It changes no label.
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
"""The range in which a temperature is looked for, and that a model may have."""

LEAST_ROWS = 100
"""Labelled rows on which a temperature is fitted at least; on fewer it would follow a handful of mistakes."""

CARD = "temperature fitted on"
"""The key of a model's card under which it says by which rows its scores were calibrated."""

BY_CLASS = "calibrated by class on"
"""The same, of how likely the labels of each class are right."""

_STEPS = 60


def log_scores(scores: NDArray[np.floating], temperature: float = 1.0) -> Doubles:
    """Logits up to a constant of each row, of scores [N, classes] that were computed at `temperature`."""
    return np.asarray(np.log(np.maximum(scores, np.finfo(np.float32).tiny, dtype=np.float64)) * temperature)


def probabilities(logits: Doubles, temperature: float) -> Doubles:
    """Softmax of [N, classes] at a temperature, in float64."""
    powers = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def log_loss(logits: Doubles, truth: NDArray[np.int64], temperature: float, weights: Doubles | None = None) -> float:
    """The mean negative log likelihood of the true classes, [N], at a temperature. weights: [N], of the rows."""
    of_truth = probabilities(logits, temperature)[np.arange(len(truth)), truth]
    return float(np.average(-np.log(np.maximum(of_truth, np.finfo(np.float64).tiny)), weights=weights))


def fitted(logits: Doubles, truth: NDArray[np.int64], weights: Doubles | None = None) -> float | None:
    """The temperature at which the negative log likelihood of the true classes is least.

    logits: float64 [N, classes], each row up to a constant. truth: class indices [N]. weights: [N], how much each row
    counts; None: all the same. None where there is no best one
    within TEMPERATURES, as of rows that are all labelled right; their scores could then be as near to 1 as one likes.
    """

    def slope(sharpness: float) -> float:
        """Of the negative log likelihood, which is convex in one over the temperature, times N."""
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
"""Scores nearer than this to 0 or 1 are as near as that, so that their logits are finite."""


class ByClass(Struct, frozen=True):
    """How likely a label is right, from its score: by class, as in Platt, "Probabilistic Outputs for Support Vector
    Machines" (1999), of labels as in Gupta and Ramdas, "Top-label calibration" (2022).

    Attributes
    ----------
    slopes, shifts : tuple of float
        Of each class: the logit of its label's score is multiplied by the one, and the other is added.

    """

    slopes: tuple[float, ...]
    shifts: tuple[float, ...]

    def check(self, classes: int, model: str) -> None:
        """Raise ModelError unless this fits a model of so many classes, and a higher score stays a higher one."""
        if not len(self.slopes) == len(self.shifts) == classes:
            raise ModelError(f"{model}: {len(self.slopes)} slopes and {len(self.shifts)} shifts for {classes} classes")
        if not (np.isfinite([*self.slopes, *self.shifts]).all() and min(self.slopes) > 0):
            raise ModelError(f"{model}: a slope of its scores by class is not above 0, or one of them is not finite")

    def scores(self, labels: NDArray[np.integer], scores: NDArray[np.floating]) -> NDArray[np.float32]:
        """How likely labels, [N], are right, of their scores, [N]; NaN where these are."""
        class_ = np.maximum(labels, 0)
        logits = _logits(scores) * np.array(self.slopes)[class_] + np.array(self.shifts)[class_]
        return np.asarray((1 / (1 + np.exp(-logits))).astype(np.float32))


def _logits(scores: NDArray[np.floating]) -> Doubles:
    within = np.clip(scores.astype(np.float64), _SURE, 1 - _SURE)
    return np.asarray(np.log(within / (1 - within)))


def fitted_by_class(scores: NDArray[np.floating], truth: NDArray[np.int64]) -> ByClass:
    """Fit it to N rows: by logistic regression, with the targets that Platt gives a finite number of rows.

    A class with fewer than LEAST_ROWS labels, or whose higher scores are not more often right, keeps its scores.
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
    """Probabilities [N, classes] whose label, [N], gets another one, [N]; those of other classes share what is left."""
    rows = np.arange(len(every))
    given: NDArray[Any] = every * ((1 - best) / np.maximum(1 - every[rows, labels], _SURE))[:, None]
    given[rows, labels] = best
    return given


SOFTMAX, SIGMOID, STEPS, GIVEN = range(4)
"""How scores follow from logits: together, each for itself, or by a sigmoid of 512 steps; GIVEN are scores already."""


class Levels(Struct, frozen=True, omit_defaults=True):
    """How a model gives a text a number: each class is a level, at equal steps, and the number follows from its logit.

    The number is linear in the n-grams. Let x be it, counted in steps from 1 at the lowest level. The level k = 1, 2, …
    nearest to x is the one with the largest k x - k²/2, so it is the class of a linear model, which every engine
    computes; and x follows from that logit again.

    Attributes
    ----------
    low : float
        The number that the first class stands for.
    step : float
        From each level to the next one.
    spread : float
        The standard deviation of the true numbers about those that are given, in steps.
    is_limited : bool
        Whether a number is limited to the lowest and the highest level. Otherwise it may be any, and its label is still
        the nearest level.

    """

    low: float
    step: float
    spread: float = 1.0
    is_limited: bool = True

    def check(self, fits: bool, model: str) -> None:
        """Raise ModelError for a step or a spread that is not above 0, and a value that is not finite. fits: the model
        has n-grams alone, and no thresholds.
        """
        if not fits:
            raise ModelError(f"{model}: a model of numbers has n-grams alone, and no thresholds")
        values = self.low, self.step, self.spread
        if not (np.isfinite(values).all() and self.step > 0 and self.spread > 0):
            raise ModelError(f"{model}: levels from {self.low:g} in steps of {self.step:g}, spread {self.spread:g}")

    def steps(self, numbers: Doubles) -> Doubles:
        """Numbers counted in steps, from 1 at the lowest level."""
        return 1 + (numbers - self.low) / self.step

    def numbers(self, steps: Doubles, levels: int) -> Doubles:
        """The numbers for steps; `is_limited` says whether the levels limit them. levels: how many there are."""
        limited = np.clip(steps, 1, levels) if self.is_limited else steps
        return self.low + self.step * (limited - 1)

    def nearest(self, numbers: NDArray[np.floating], levels: int) -> NDArray[np.int64]:
        """The index of the level nearest to each number; the first where that is NaN. levels: how many there are."""
        steps = np.nan_to_num(self.steps(numbers.astype(np.float64)))
        return np.rint(np.clip(steps, 1, levels)).astype(np.int64) - 1

    def numbers_of(self, labels: NDArray[np.int32], logits: NDArray[np.float32], levels: int) -> NDArray[np.float32]:
        """The numbers of texts, of their classes and these classes' logits; NaN where these are."""
        class_ = np.maximum(labels, 0) + 1.0
        return self.numbers(logits / class_ + class_ / 2, levels).astype(np.float32)

    def probabilities(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The probability of each level, [N, levels], if true numbers are normally distributed around the model's."""
        return probabilities(logits.astype(np.float64), self.spread**2).astype(np.float32)


def of_levels(steps: Doubles, levels: int, weights: bool) -> Doubles:
    """The weights or bias of each level's logit, [..., levels], from those of the number in steps, [..., 1]."""
    level = np.arange(1, levels + 1)
    return np.asarray(steps * level if weights else steps * level - level**2 / 2)


def in_steps(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sigmoid of one-vs-all and negative sampling in fastText: steps of 1/32 from -8 to 8, and 0 and 1 beyond."""
    place = np.floor((np.clip(logits, -8, 8) + np.float32(8)) * np.float32(32))
    with np.errstate(over="ignore"):
        scores = np.float32(1) / (np.float32(1) + np.exp(np.float32(8) - place / np.float32(32)))
    return np.where(logits < -8, np.float32(0), np.where(logits > 8, np.float32(1), scores))


DEFAULT_THRESHOLD = 0.5
"""The threshold of a class that no held-out row has."""


def check_classes(classes: Sequence[str], model: str, heads: Heads | None) -> None:
    """Check the names: in Parquet, CSV and JSON, a label must be a text that is not taken for a missing one."""
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
"""The label columns of a model that answers for several: the name of each, and how many of the classes, in order, are
its own."""


def parts_of(heads: Heads) -> Iterator[slice]:
    """Which of the classes are each head's."""
    first = 0
    for _, count in heads:
        yield slice(first, first + count)
        first += count


def of_head(head: str, label: str) -> str:
    """The name of a head's class among those of all heads, since two heads may have classes of one name."""
    return f"{head}: {label}"


def _check_heads(heads: Heads, classes: Sequence[str], model: str) -> None:
    """Raise ModelError unless these are two heads or more, of different names, and the classes are theirs."""
    names, counts = zip(*heads, strict=True) if heads else ((), ())
    if len({*names} - {""}) < max(len(names), 2) or min(counts) < CLASSES[0] or sum(counts) != len(classes):
        shown = ", ".join(f"{name!r:.80} of {count}" for name, count in heads)
        raise ModelError(f"{model}: {len(classes)} classes do not fit its heads: {shown}")
    for name, part in zip(names, parts_of(heads), strict=True):
        for label in classes[part]:
            if len(label) <= len(of_head(name, "")) or not label.startswith(of_head(name, "")):
                raise ModelError(f"{model}: class {label!r:.80} is none of the head {name!r:.80}")


def check_thresholds(thresholds: Sequence[float], classes: Sequence[str], model: str) -> None:
    """Raise ModelError unless there is a usable one for each class."""
    if len(thresholds) != len(classes):
        raise ModelError(f"{model}: {len(thresholds)} thresholds for {len(classes)} classes")
    for name, threshold in zip(classes, thresholds, strict=True):
        if not 0 < threshold < 1:
            raise ModelError(f"{model}: the threshold of class {name!r} is {threshold:g}, not between 0 and 1")


def assigned(scores: NDArray[np.float32], thresholds: Sequence[float]) -> NDArray[np.bool_]:
    """Which classes each of N texts is given, [N, classes]: those whose score reaches its threshold.

    scores: float32 [N, classes]. None of an article without scores, which are NaN.
    """
    return np.asarray(scores >= np.asarray(thresholds, np.float32))


def best_thresholds(scores: NDArray[np.float32], truth: NDArray[np.bool_]) -> tuple[float, ...]:
    """For each class the threshold with the best F1 on N rows, both [N, classes].

    It lies half-way between the scores of two rows; of several that are as good, it is the highest.
    """
    return tuple(_best(scores[:, i], truth[:, i]) for i in range(scores.shape[1]))


def _best(scores: NDArray[np.float32], truth: NDArray[np.bool_]) -> float:
    """scores, truth: of one class, [N]. With h hits among the n highest scores, F1 is 2 h / (n + true rows)."""
    if not truth.any():
        return DEFAULT_THRESHOLD
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order].astype(np.float64), np.cumsum(truth[order])
    f1 = 2 * hits / (np.arange(1, len(ranked) + 1) + truth.sum())
    f1[:-1][ranked[1:] == ranked[:-1]] = -1  # a threshold takes all rows of a score or none
    last = int(np.argmax(f1))
    below = ranked[last + 1] if last + 1 < len(ranked) else 0.0
    threshold = np.float32((ranked[last] + below) / 2)
    return float(np.clip(threshold, np.float32(1e-6), np.float32(1 - 1e-6)))
