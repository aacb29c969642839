"""The choice of texts that a model's network must score: those about whose label its n-grams are not sure.

The n-grams give a text a label and a margin: the distance between their two largest logits or, in a model that gives
several labels to a text, the least distance of a logit from the threshold of its class. If the margin is large, the
network would change no label, and need not be computed. A threshold for the margin is fitted to rows that the model was
not trained on, and is part of the model.

Here and in `Cascade`, "the network" is the encoder in a model that has an encoder.
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
"""The choices of the texts that the network scores, as in `Model.asking`."""

CARD = "network asked"
"""The key of a model's card under which the card says on which rows the margin was fitted, and how good it is there."""

AGREEMENT = 0.999
"""The default share of labels that must stay the same."""

_LARGEST = 1e30


class ScoreSelection(Struct, frozen=True):
    """The choice of texts by a model whose scores select texts: the network scores those that may be above a cut.

    Attributes
    ----------
    least : float
        The network scores a text whose score by the n-grams alone is this or more. `least` is at most `cut`, so no text
        that the network does not score has a score above the cut.
    cut : float
        The least score of the whole model with which a text is selected.
    label : int
        The class whose score selects; 0 in a model of numbers, whose number selects.
    top : float
        The share of the rows above the cut, on the rows to which this was fitted.
    recall : float
        A lower bound, with 95 % confidence, of the share of the rows above the cut that the network scores.

    """

    least: float
    cut: float
    label: Annotated[int, Meta(ge=0)]
    top: Annotated[float, Meta(gt=0, lt=1)]
    recall: Annotated[float, Meta(gt=0, lt=1)]


class Cascade(Struct, frozen=True):
    """The choice of texts that the network scores, and what the n-grams need to score the others alone.

    Attributes
    ----------
    margin : float
        The network scores each text whose margin is below this.
    share : float
        The share of the rows that the network scored, of those to which the margin was fitted.
    agreement : float
        The share of the same rows that had the label of the whole model.
    bias : tuple of float
        For each class, the value that replaces the network's logit if the network does not score a text: the mean of
        the logit on the same rows.
    temperature : float
        The temperature of the scores of the n-grams alone.
    selection : ScoreSelection, optional
        The choice that replaces the margin, in a model whose scores select texts.

    """

    margin: float
    share: Annotated[float, Meta(ge=0, le=1)]
    agreement: Annotated[float, Meta(ge=0, le=1)]
    bias: tuple[float, ...]
    temperature: float = 1.0
    selection: ScoreSelection | UnsetType = UNSET

    def check(self, classes: int, model: str) -> None:
        """Raise ModelError unless the values are in range and fit a model with `classes` classes."""
        if len(self.bias) != classes:
            raise ModelError(f"{model}: {len(self.bias)} biases of n-grams alone for {classes} classes")
        if not (0 <= self.margin <= _LARGEST and all(abs(value) <= _LARGEST for value in self.bias)):
            raise ModelError(f"{model}: the margin or a bias of its n-grams is not finite, or beyond {_LARGEST:g}")
        if not TEMPERATURES[0] <= self.temperature <= TEMPERATURES[1]:
            raise ModelError(f"{model}: temperature {self.temperature:g} of its n-grams alone is out of range")
        selection = self.selection
        if selection and not (-_LARGEST <= selection.least <= selection.cut <= _LARGEST and selection.label < classes):
            raise ModelError(
                f"{model}: its selection is damaged: from {selection.least:g} on for a cut of {selection.cut:g}"
            )

    @property
    def about(self) -> dict[str, object]:
        """All that decides scores, as JSON values."""
        about = {"margin": self.margin, "bias": self.bias, "temperature": self.temperature}
        selection = self.selection
        return {**about, "selection": [selection.least, selection.cut, selection.label]} if selection else about


def margins(logits: NDArray[np.float32], thresholds: Sequence[float] | None) -> NDArray[np.float32]:
    """Return the margin of each text, fp32 [N], from the logits of the n-grams, fp32 [N, classes]."""
    if thresholds is not None:
        return np.asarray(np.abs(logits - cuts(thresholds)).min(axis=1))
    largest = np.sort(logits, axis=1)[:, -2:]
    return np.asarray(largest[:, 1] - largest[:, 0])


def needs_network(logits: NDArray[np.float32], margin: float, thresholds: Sequence[float] | None) -> NDArray[np.bool_]:
    """Return whether the network must score each text, [N]. logits: from the n-grams alone, fp32 [N, classes]."""
    sure: NDArray[np.bool_] = margins(logits, thresholds) >= np.float32(margin)
    return ~sure


def cuts(thresholds: Sequence[float]) -> NDArray[np.float32]:
    """Return, for each class, the logit of its threshold."""
    return np.array([math.log(score) - math.log1p(-score) for score in thresholds], np.float32)
