"""Every setting of a training run, what is chosen where the user says nothing, and what the network begins with.

The defaults of `Recipe` are those of the shipped AG News model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError, install
from ..model.alphabet import PUBLISHED
from ..model.charcnn import Model, load_model
from ..model.layers import Frame
from ..model.ngrams import BITS, MOST_READ, MOST_TABLE_BYTES, Kinds
from .data import TextBuffers

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


_TABLE_BYTES = 32 << 20
_MOST_BITS = 20
_MOST_TEXTS = 0.95  # so many are read to their end
_FEW_ROWS = 5_000
_FEW = Recipe(
    batch_size=32, learning_rate=2e-4, dropout=0.2, input_dropout=0.1,
    dropped_words=0.05, random_characters=0.02, erased_spans=1,
)  # fmt: skip
_MANY_ROWS = 20_000  # with which 4 and 5 characters say as much as 2 to 5, in half the time (docs/kernels.md)


def sees_gpu(device: str) -> bool:
    """Whether PyTorch is to train on a GPU: where that is asked for, or where it finds one."""
    return device == "cuda" or (device == "auto" and _finds_gpu())


def _finds_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def fits_on_gpu(device: str) -> bool:
    """Whether n-grams of many rows are fitted on a GPU."""
    return device != "cpu" and find_spec("cupy") is not None and _finds_gpu()


def need_pytorch(what: str) -> None:
    """Raise UsageError where it is missing. what: that needs it."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{what} needs PyTorch ({error}): {install('train-network')}") from error


def recipe_for(rows: int, settings: Sequence[str] = ()) -> Recipe:
    """The recipe for so many rows, with `NAME=VALUE` settings changed.

    Few rows say little in a step: at the rate, dropout and augmentation of many, noise moves the network more than what
    it could learn (docs/accuracy.md). With smaller batches an epoch has more steps.
    """
    return (_FEW if rows < _FEW_ROWS else Recipe()).with_settings(list(settings))


def ngram_bits(buckets: int | None, classes: int) -> int | None:
    """The bits of a bucket's number, for so many buckets: None for a default by the classes. None for no branch.

    Raises UsageError for a number that is no power of two, or out of range.
    """
    row = 2 * (classes + 1)
    if buckets is None:
        return min(_MOST_BITS, (_TABLE_BYTES // row).bit_length() - 1)
    if buckets == 0:
        return None
    bits = buckets.bit_length() - 1
    if buckets != 1 << bits or not BITS[0] <= bits <= BITS[1]:
        known = f"a power of two from {1 << BITS[0]} to {1 << BITS[1]:,}, or 0"
        raise UsageError(f"{buckets} buckets for n-grams: give {known}")
    if buckets * row > MOST_TABLE_BYTES:
        most = 1 << ((MOST_TABLE_BYTES // row).bit_length() - 1)
        raise UsageError(f"{buckets:,} buckets for n-grams are too many for {classes} classes: at most {most:,}")
    return bits


def kinds_for(text: TextBuffers, length: int) -> Kinds:
    """Words, pairs of words, and 2 to 5 characters (of many rows 4 and 5), in as many characters as most texts have, or
    the network reads.
    """
    continues = (text.data & 0xC0) == 0x80
    before = np.concatenate([[0], np.cumsum(~continues)])
    characters = np.diff(before[text.offsets])
    most = int(np.quantile(characters, _MOST_TEXTS)) if len(characters) else 0
    lowest = 2 if len(characters) < _MANY_ROWS else 4
    return Kinds(2, (lowest, 5), min(max(length, most), MOST_READ))


_LENGTH = 1014


class Beginning(NamedTuple):
    """What the network begins with.

    Attributes
    ----------
    alphabet, length, frame : str, int, str
        What it reads of a text.
    tensors : dict of str to ndarray
        Those that it begins with, by name; none for random ones.

    """

    alphabet: str
    length: int
    frame: Frame
    tensors: dict[str, NDArray[Any]]


def beginning(
    init: str | Path | Model | None, alphabet: str | None, length: int | None, frame: Frame | None
) -> Beginning:
    """Begin with a model, or with nothing. alphabet, length, frame: what the user asked for, None for any.

    Raises UsageError where `init` differs from what was asked for, or has no network; ModelError where there is none.
    """
    if init is None:
        return Beginning(alphabet or WITH_SPACE, _LENGTH if length is None else length, frame or "text", {})
    model = load_model(init)
    if not model.has_network:
        raise UsageError(f"{model.name} holds n-grams alone: there is no network to begin with")
    asked = {"alphabet": alphabet, "length": length, "frame": frame}
    its = {"alphabet": model.alphabet.symbols, "length": model.length, "frame": model.frame}
    for name, value in asked.items():
        if value is not None and value != its[name]:
            told = f"{model.name} was trained with the {name} {its[name]!r}, not {value!r}"
            raise UsageError(f"{told}: leave the {name} to it, or begin without it")
    body = {name: tensor for name, tensor in model.tensors.items() if not name.startswith("fc3.")}
    return Beginning(model.alphabet.symbols, model.length, model.frame, body)
