"""What a network begins with: random weights, or those of a model, whose alphabet, length and frame come along."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ..errors import UsageError
from ..model.charcnn import Model, load_model
from ..model.layers import Frame
from .recipe import WITH_SPACE

_LENGTH = 1014


class Beginning(NamedTuple):
    """alphabet, length, frame: of the network. tensors: those that it begins with, by name; none for random ones."""

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
