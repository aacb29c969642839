"""The models of a job: one, or several that label the same texts in one pass."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import UsageError
from .charcnn import Model, load_model
from .model_file import HUB, repository_of

_NGRAMS_COST, _DENSE_COST = 1 / 80, 3.0
_SUFFIXES = (".safetensors", ".bin")


@dataclass(frozen=True)
class Models:
    """every: in the order in which the user named them; the first counts where one has to, as for `partition_by`."""

    every: tuple[Model, ...]

    @property
    def first(self) -> Model:
        return self.every[0]

    @property
    def name(self) -> str:
        """For messages and reports."""
        return ", ".join(model.name for model in self.every)

    @property
    def short_names(self) -> tuple[str, ...]:
        """By which columns are named, where there are several: the name of a file without folder and suffix,
        or of a repository.
        """
        return tuple(_short(model.name) for model in self.every)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Of each model's columns: nothing for one model alone."""
        return ("",) if len(self.every) == 1 else tuple(f"{name}_" for name in self.short_names)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Every class that one of them has, each once: what a truth may name."""
        return tuple(dict.fromkeys(label for model in self.every for label in model.classes))

    @property
    def reads(self) -> int:
        """Characters at the beginning of an article on which its labels depend."""
        return max(model.reads for model in self.every)

    @property
    def cost(self) -> float:
        """Of labelling a row on a CPU, about: 1 is that of a network in the text frame, of an ordinary text."""
        return sum(map(_cost, self.every))

    @cached_property
    def digest(self) -> str:
        """Of all that decides labels and names of columns; of one model its own."""
        if len(self.every) == 1:
            return self.first.digest
        about = [(name, model.digest) for name, model in zip(self.short_names, self.every, strict=True)]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def load_models(source: str | Path | Model | Iterable[str | Path | Model], network: str = "uncertain") -> Models:
    """Load what the option `model` names: one model, or several. network: about which texts theirs are asked.

    Raises ModelError as `load_model` does, and UsageError as `Model.asking` does, for no model, and for two
    whose columns would have one name.
    """
    given = [source] if isinstance(source, str | Path | Model) else list(source)
    if not given:
        raise UsageError("no model is named: give --model")
    models = Models(tuple(load_model(one).asking(network) for one in given))
    names = models.short_names
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two models are called {name!r}, by which the columns of each are named: give one of them another "
                "file name"
            )
    return models


def _cost(model: Model) -> float:
    if not model.has_network:
        return _NGRAMS_COST
    share = 1.0 if model.cascade is None else model.cascade.share
    return _NGRAMS_COST + share * (_DENSE_COST if model.frame == "dense" else 1.0)


def _short(name: str) -> str:
    if name.startswith(HUB):
        return repository_of(name)[0].partition("/")[2]
    last = name.rstrip("/").rpartition("/")[2] or name
    return next((last.removesuffix(suffix) for suffix in _SUFFIXES if last.endswith(suffix)), last)
