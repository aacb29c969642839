"""Every setting of a training run; the defaults are the recipe of the shipped AG News model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from pipeline.errors import UsageError
from pipeline.model.alphabet import PUBLISHED

_SECOND_HYPHEN = PUBLISHED.rindex("-")

WITH_SPACE = PUBLISHED[:_SECOND_HYPHEN] + " " + PUBLISHED[_SECOND_HYPHEN + 1 :]
"""The published alphabet, the space in the place of its second, never used '-'."""

ALPHABETS = {"with-space": WITH_SPACE, "published": PUBLISHED}


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    epochs, batch_size: the last, smaller batch of an epoch is left out.
    learning_rate: of AdamW at its peak; a cosine rises to it over the first `warmup` of all steps and falls to zero.
    fc1_rate: the share of it that fc1 gets. AdamW moves every weight by about the rate, and fc1 sums 8,704 of them
    where the convolutions sum 490 to 1,792: at the full rate the first epochs are spent recovering from fc1's jumps.
    weight_decay: of everything but biases (times the learning rate a step). clip: of the gradient's norm.
    average: decay of the exponential average of the weights, which is what is kept; its window is never longer than a
    tenth of the run.
    label_smoothing, dropout (before fc2 and fc3), input_dropout (before fc1): shares.
    dropped_words, random_characters: mean share of words erased and share of characters replaced in every epoch.
    erased_spans, span_length: spans of 1 to `span_length` characters erased. shift, cut: each article is moved by up to
    `shift` positions to the right, less up to `cut` to the left.

    Raises UsageError where a value is out of range.
    """

    epochs: int = 80
    batch_size: int = 256
    learning_rate: float = 1e-3
    fc1_rate: float = 0.1
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
        for name in ("epochs", "batch_size", "span_length", "learning_rate", "fc1_rate", "clip"):
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
        """The recipe with `NAME=VALUE` settings changed. Raises UsageError for a name or a value that is none."""
        types = {f.name: int if f.type == "int" else float for f in fields(self)}
        values: dict[str, Any] = {}
        for setting in settings:
            name, _, value = setting.partition("=")
            if name not in types:
                raise UsageError(f"no setting {name!r}: choose of {', '.join(types)}")
            try:
                values[name] = types[name](value)
            except ValueError as error:
                kind = "a whole number" if types[name] is int else "a number"
                raise UsageError(f"{name} is {value!r}, it must be {kind}") from error
        return replace(self, **values)

    def to_dict(self) -> dict[str, Any]:
        """The settings by name."""
        return asdict(self)
