"""The settings of a training run, their defaults, and the state in which the network begins.

The shipped AG News model was trained with the defaults of `Recipe`.
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
from ..model.charcnn import Model
from ..model.layers import Frame
from ..model.loading import load_model
from ..model.ngrams import BITS, MOST_READ, MOST_TABLE_BYTES, Kinds
from .data import TextBuffers

_SECOND_HYPHEN = PUBLISHED.rindex("-")

WITH_SPACE = PUBLISHED[:_SECOND_HYPHEN] + " " + PUBLISHED[_SECOND_HYPHEN + 1 :]
"""The published alphabet, which lists '-' twice, with a space in place of the second '-', which is never used."""

ALPHABETS = {"with-space": WITH_SPACE, "published": PUBLISHED}


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run. The shipped model was trained with the defaults.

    The settings are of three groups: steps and weights (`epochs` to `average`); regularisation (`label_smoothing`,
    `dropout`, `input_dropout`); and augmentation, which changes each article anew in every epoch (`dropped_words` to
    `cut`).

    Attributes
    ----------
    epochs : int
        Passes over the training rows.
    batch_size : int
        Rows in a step. The last, smaller batch of an epoch is left out.
    learning_rate : float
        Peak learning rate of AdamW (Loshchilov and Hutter, 2019). The rate rises along a cosine to its peak, and then
        falls along a cosine to zero.
    fc1_rate : float
        The learning rate of fc1's weights, relative to that of the other layers. AdamW moves every weight by about the
        learning rate, and fc1 sums 8,704 inputs where the convolutions sum 490 to 1,792. At the full rate, fc1's jumps
        would waste the first epochs.
    init_rate : float
        The learning rate of layers that come from another model (`init`), relative to that of the other layers.
    warmup : float
        Share of all steps in which the rate rises.
    weight_decay : float
        Decay of all weights except biases, multiplied by the learning rate in each step.
    clip : float
        Maximum norm of the gradient.
    average : float
        Decay of the exponential average of the weights. The averaged weights become the model. The window of the
        average is at most a tenth of the run.
    label_smoothing : float
        Probability that is spread evenly over the classes.
    dropout : float
        Dropout before fc2 and fc3.
    input_dropout : float
        Dropout before fc1.
    dropped_words : float
        Mean share of an article's words that each epoch erases, up to 0.5.
    random_characters : float
        Share of an article's characters that each epoch replaces.
    erased_spans : int
        Number of spans that each epoch erases in an article.
    span_length : int
        Length of the longest such span, in characters.
    shift : int
        Largest number of positions by which each epoch moves an article to the right.
    cut : int
        Largest number of positions by which each epoch moves an article to the left.

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
        """Return the recipe with `NAME=VALUE` settings changed.

        Raises UsageError for an unknown name or an invalid value.
        """
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
        """Return the settings by name."""
        return asdict(self)


_TABLE_BYTES = 32 << 20  # the largest default table of n-grams
_MOST_BITS = 20
_MOST_TEXTS = 0.95  # the share of the texts that n-grams read to their end
_FEW_ROWS = 5_000
_FEW = Recipe(
    batch_size=32, learning_rate=2e-4, dropout=0.2, input_dropout=0.1,
    dropped_words=0.05, random_characters=0.02, erased_spans=1,
)  # fmt: skip
# From this many rows on, n-grams of 4 and 5 characters say as much as those of 2 to 5, in half the time
# (docs/kernels.md).
_MANY_ROWS = 20_000


def sees_gpu(device: str) -> bool:
    """Return whether PyTorch trains on a GPU: if the user asks for one, or if PyTorch finds one by itself."""
    return device == "cuda" or (device == "auto" and _finds_gpu())


def _finds_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def fits_on_gpu(device: str) -> bool:
    """Return whether n-grams of many rows can be fitted on a GPU."""
    return device != "cpu" and find_spec("cupy") is not None and _finds_gpu()


def need_pytorch(what: str) -> None:
    """Raise UsageError if PyTorch is missing. what: the feature that needs PyTorch, for the message."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{what} needs PyTorch ({error}): {install('train-network')}") from error


def recipe_for(rows: int, settings: Sequence[str] = ()) -> Recipe:
    """Return the recipe for a number of rows, with `NAME=VALUE` settings changed.

    With few rows, a step learns little. At the learning rate, dropout and augmentation that suit many rows, noise would
    then move the network more than the rows do (docs/accuracy.md). Smaller batches give an epoch more steps.
    """
    return (_FEW if rows < _FEW_ROWS else Recipe()).with_settings(list(settings))


def ngram_bits(buckets: int | None, classes: int) -> int | None:
    """Return the bits of a bucket's number, or None if there is no branch of n-grams.

    Raises UsageError for a number of buckets that is no power of two, or that is out of range.

    Parameters
    ----------
    buckets : int or None
        The number of buckets: 0 for no branch, None for a default that depends on the number of classes.
    classes : int
        The number of classes.

    """
    row = 2 * (classes + 1)  # bytes of a bucket: an int16 for each class, and one for the squared importance
    if buckets is None:
        return min(_MOST_BITS, (_TABLE_BYTES // row).bit_length() - 1)
    if buckets == 0:
        return None
    bits = buckets.bit_length() - 1
    if buckets != 1 << bits or not BITS[0] <= bits <= BITS[1]:
        known = f"a power of two from {1 << BITS[0]} to {1 << BITS[1]:,}, or 0"
        raise UsageError(f"{buckets} buckets for n-grams: give {known}")
    if buckets * row > MOST_TABLE_BYTES:
        most_buckets = 1 << ((MOST_TABLE_BYTES // row).bit_length() - 1)
        raise UsageError(
            f"{buckets:,} buckets for n-grams are too many for {classes} classes: at most {most_buckets:,}"
        )
    return bits


def kinds_for(text: TextBuffers, length: int) -> Kinds:
    """Return the kinds of n-grams for some texts.

    They are words, pairs of words, and 2 to 5 characters (4 and 5 if there are many rows). N-grams read as many
    characters as most of the texts have, and at least `length`, which is what the network reads.
    """
    continues = (text.data & 0xC0) == 0x80  # in UTF-8, these bytes continue a character
    before = np.concatenate([[0], np.cumsum(~continues)])
    characters = np.diff(before[text.offsets])
    usual_length = int(np.quantile(characters, _MOST_TEXTS)) if len(characters) else 0
    lowest = 2 if len(characters) < _MANY_ROWS else 4
    return Kinds(2, (lowest, 5), min(max(length, usual_length), MOST_READ))


_LENGTH = 1014  # the length of the published network


class Beginning(NamedTuple):
    """The input settings and the weights with which the network begins.

    Attributes
    ----------
    alphabet : str
        The characters that the network reads.
    length : int
        How many characters of a text the network reads.
    frame : str
        Whether positions after the end of a text count ("dense") or not ("text").
    tensors : dict of str to ndarray
        Weights by name, which the network begins with. All others are random.

    """

    alphabet: str
    length: int
    frame: Frame
    tensors: dict[str, NDArray[Any]]


def beginning(
    init: str | Path | Model | None, alphabet: str | None, length: int | None, frame: Frame | None
) -> Beginning:
    """Return how the network begins: with the weights of the model `init`, or with random weights if `init` is None.

    Raises UsageError if the model differs from the options of the user, or if it has no network; ModelError if the
    model cannot be loaded.

    Parameters
    ----------
    init : str, Path, Model or None
        The model to begin with.
    alphabet, length, frame
        The options of the user; None for an option that the user did not give.

    """
    if init is None:
        return Beginning(alphabet or WITH_SPACE, _LENGTH if length is None else length, frame or "text", {})
    model = load_model(init)
    if not model.has_network:
        raise UsageError(f"{model.name} has no network to begin with: name a model with a network, or none")
    requested = {"alphabet": alphabet, "length": length, "frame": frame}
    its = {"alphabet": model.alphabet.symbols, "length": model.length, "frame": model.frame}
    for name, value in requested.items():
        if value is not None and value != its[name]:
            message = f"{model.name} was trained with the {name} {its[name]!r}, not {value!r}"
            raise UsageError(f"{message}: leave out the {name}, or begin with another model, or with none")
    body = {name: tensor for name, tensor in model.tensors.items() if not name.startswith("fc3.")}
    return Beginning(model.alphabet.symbols, model.length, model.frame, body)
