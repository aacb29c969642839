"""Every setting of a training run; the defaults are the recipe of the shipped AG News model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ..errors import UsageError
from ..model.alphabet import PUBLISHED

_SECOND_HYPHEN = PUBLISHED.rindex("-")

WITH_SPACE = PUBLISHED[:_SECOND_HYPHEN] + " " + PUBLISHED[_SECOND_HYPHEN + 1 :]
"""The published alphabet with the space in place of its second '-', which is never used."""

ALPHABETS = {"with-space": WITH_SPACE, "published": PUBLISHED}


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run; the defaults trained the shipped model.

    Attributes
    ----------
    epochs : int
        Passes over the training rows.
    batch_size : int
        Rows in a step; the last, smaller batch of an epoch is left out.
    learning_rate : float
        Peak rate of AdamW (Loshchilov and Hutter, 2019). It rises along a cosine, and falls along one to zero.
    fc1_rate : float
        The learning rate of fc1, relative to the others. AdamW moves every weight by about the rate, and fc1 sums 8,704
        inputs where the convolutions sum 490 to 1,792: at the full rate the first epochs are lost to fc1's jumps.
    init_rate : float
        The learning rate of layers that come from another model (`init`), relative to the others.
    warmup : float
        Share of all steps in which the rate rises.
    weight_decay : float
        Decay of all weights but biases, multiplied by the learning rate in each step.
    clip : float
        Maximum norm of the gradient.
    average : float
        Decay of the exponential average of the weights, which becomes the model. Its window is at most a tenth of the
        run.
    label_smoothing : float
        Probability spread evenly over the classes.
    dropout : float
        Dropout before fc2 and fc3.
    input_dropout : float
        Dropout before fc1.
    dropped_words : float
        Mean share of the words of an article that are erased in an epoch, up to 0.5.
    random_characters : float
        Share of characters that are replaced in an epoch.
    erased_spans : int
        Spans of an article that are erased in an epoch.
    span_length : int
        Characters of the longest such span.
    shift : int
        Positions by which an article is moved to the right at most.
    cut : int
        Positions by which it is moved to the left at most.

    Raises
    ------
    UsageError
        For a value out of range.

    Examples
    --------
    >>> Recipe(epochs=10).with_settings(["dropout=0.5"]).dropout
    0.5

    """

    epochs: int = 80
    batch_size: int = 256
    learning_rate: float = 1e-3
    fc1_rate: float = 0.1
    init_rate: float = 0.1
    warmup: float = 0.3
    weight_decay: float = 0.2
    clip: float = 1.0
    average: float = 0.999
    label_smoothing: float = 0.1
    dropout: float = 0.6
    input_dropout: float = 0.24
    dropped_words: float = 0.1
    random_characters: float = 0.06
    erased_spans: int = 4
    span_length: int = 20
    shift: int = 64
    cut: int = 40

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "span_length", "learning_rate", "fc1_rate", "init_rate", "clip"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}, it must be above 0")
        for name in ("erased_spans", "shift", "cut", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is {getattr(self, name)}, it must be at least 0")
        for name in ("warmup", "average", "label_smoothing", "dropout", "input_dropout", "random_characters"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, it must be at least 0 and below 1")
        if not 0 <= self.dropped_words <= 0.5:
            raise UsageError(f"dropped_words is {self.dropped_words}, it must be from 0 to 0.5")

    def with_settings(self, settings: list[str]) -> Recipe:
        """The recipe with `NAME=VALUE` settings changed. Raises UsageError for an unknown name or invalid value."""
        types = {f.name: int if f.type == "int" else float for f in fields(self)}
        values: dict[str, Any] = {}
        for setting in settings:
            name, _, value = setting.partition("=")
            if name not in types:
                raise UsageError(f"no setting {name!r}: choose one of {', '.join(types)}")
            try:
                values[name] = types[name](value)
            except ValueError as error:
                kind = "an integer" if types[name] is int else "a number"
                raise UsageError(f"{name} is {value!r}, it must be {kind}") from error
        return replace(self, **values)

    def to_dict(self) -> dict[str, Any]:
        """The settings by name."""
        return asdict(self)
