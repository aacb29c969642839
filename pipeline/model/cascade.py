"""Decides which texts a model's network must score: those whose label its n-grams alone are not sure about.

The n-grams give a label with a margin: the distance between their two largest logits or, of a model that gives several
labels to a text, that of the logit nearest to its class's threshold. Where the margin is large, the network changes no
label, and need not be computed. How large is fitted to rows that the model was not trained on, and kept in the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from numpy.typing import NDArray

from ..errors import ModelError
from .scores import TEMPERATURES

ASKS = ("uncertain", "all", "none")
"""The choices for which texts the network scores."""

CARD = "network asked"
"""The key of a model's card under which it says on which rows the margin was fitted, and how good it is there."""

AGREEMENT = 0.999
"""The default share of labels that must stay the same."""

_LARGEST = 1e30


class Selection(Struct, frozen=True):
    """For a model that texts are selected by: the network is asked about those that may be above a cut.

    Attributes
    ----------
    least : float
        It is asked about a text whose score by the n-grams alone is this or more. It is `cut` at most, so what it is
        not asked about is never above that.
    cut : float
        The score of the whole model from which on a text is selected.
    label : int
        The class whose score this is; 0 of a model of numbers, where it is the number.
    top : float
        Share of the rows on which this was found that are above the cut.
    recall : float
        Of these, the share that the network is asked about: at least so many, with 95 % confidence.

    """

    least: float
    cut: float
    label: Annotated[int, Meta(ge=0)]
    top: Annotated[float, Meta(gt=0, lt=1)]
    recall: Annotated[float, Meta(gt=0, lt=1)]


class Cascade(Struct, frozen=True):
    """Whom the network is asked about, and what the n-grams alone say of the others.

    Attributes
    ----------
    margin : float
        The network is asked about a text whose margin is below it.
    share : float
        Of the rows on which this was found, how many were asked about.
    agreement : float
        Of the same rows, how many had the label that the whole model gives.
    bias : tuple of float
        What stands in for the network's logits where it is not asked: their mean on those rows, for each class.
    temperature : float
        Of the scores of the n-grams alone.
    selection : Selection, optional
        By which the network is asked in place of the margin.

    """

    margin: float
    share: Annotated[float, Meta(ge=0, le=1)]
    agreement: Annotated[float, Meta(ge=0, le=1)]
    bias: tuple[float, ...]
    temperature: float = 1.0
    selection: Selection | UnsetType = UNSET

    def check(self, classes: int, model: str) -> None:
        """Raise ModelError unless this fits a model with `classes` classes."""
        if len(self.bias) != classes:
            raise ModelError(f"{model}: {len(self.bias)} biases of n-grams alone for {classes} classes")
        if not (0 <= self.margin <= _LARGEST and all(abs(value) <= _LARGEST for value in self.bias)):
            raise ModelError(f"{model}: the margin or a bias of its n-grams is not finite, or beyond {_LARGEST:g}")
        if not TEMPERATURES[0] <= self.temperature <= TEMPERATURES[1]:
            raise ModelError(f"{model}: temperature {self.temperature:g} of its n-grams alone is out of range")
        of = self.selection
        if of and not (-_LARGEST <= of.least <= of.cut <= _LARGEST and of.label < classes):
            raise ModelError(f"{model}: its selection is damaged: from {of.least:g} on for a cut of {of.cut:g}")

    @property
    def about(self) -> dict[str, object]:
        """The values that decide scores, as JSON values."""
        about = {"margin": self.margin, "bias": self.bias, "temperature": self.temperature}
        of = self.selection
        return {**about, "selection": [of.least, of.cut, of.label]} if of else about


def margins(logits: NDArray[np.float32], thresholds: Sequence[float] | None) -> NDArray[np.float32]:
    """Return how sure the label of each text is, [N], from fp32 logits [N, classes]."""
    if thresholds is not None:
        return np.asarray(np.abs(logits - cuts(thresholds)).min(axis=1))
    largest = np.sort(logits, axis=1)[:, -2:]
    return np.asarray(largest[:, 1] - largest[:, 0])


def asked(logits: NDArray[np.float32], margin: float, thresholds: Sequence[float] | None) -> NDArray[np.bool_]:
    """Return whether the network must score each text, [N]. logits: those of the n-grams alone, fp32 [N, classes]."""
    sure: NDArray[np.bool_] = margins(logits, thresholds) >= np.float32(margin)
    return ~sure


def cuts(thresholds: Sequence[float]) -> NDArray[np.float32]:
    """Return, for each class, the logit of the score from which on a text has its label."""
    return np.array([math.log(score) - math.log1p(-score) for score in thresholds], np.float32)
