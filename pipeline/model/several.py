"""The models of a job: one, or several that label the same texts in one pass."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path

from ..errors import UsageError
from .charcnn import Model, load_model, shipped_file
from .encoder_file import FILES
from .model_file import HUB, SHIPPED, repository_of
from .ngrams import NGrams
from .recipes import prepared, warn_if_raw
from .scores import Heads, of_head, parts_of

_NGRAMS_COST, _DENSE_COST = 1 / 80, 3.0
_ENCODER_WEIGHTS = 900_000
"""Of an encoder that takes as long for a hundred tokens as the network for a text."""

_SUFFIXES = (".safetensors", ".bin", ".ftz")


@dataclass(frozen=True)
class Models:
    """loaded: in the order in which the user named them; of each there is an engine."""

    loaded: tuple[Model, ...]

    @cached_property
    def every(self) -> tuple[Model, ...]:
        """The models, and in place of one with heads its heads: each gives a text one label, or several, or a number.
        The first counts where one has to, as for `partition_by`.
        """
        return tuple(head for model in self.loaded for head in heads_of(model))

    @property
    def first(self) -> Model:
        return self.every[0]

    @property
    def name(self) -> str:
        """The names of the models, for messages and reports."""
        named = ((model.name, _named(model.heads)) for model in self.loaded)
        return ", ".join(f"{name} ({heads})" if heads else name for name, heads in named)

    @property
    def short_names(self) -> tuple[str, ...]:
        """The names that columns have, where there are several models: of a file without folder and suffix, of a
        repository, or of a head.
        """
        of_each = ([name for name, _ in model.heads or ()] or [_short(model.name)] for model in self.loaded)
        return tuple(chain.from_iterable(of_each))

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the names of each model's columns begin with: nothing for one model alone."""
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
    def join(self) -> str:
        """The template by which the models join columns, where they do; else "".

        Raises UsageError for models that do not read the same text.
        """
        joins = {model.join: model.name for model in self.loaded}
        if len(joins) > 1:
            said = "; ".join(f"{name}: {join or 'one column'}" for join, name in joins.items())
            raise UsageError(
                f"these models read different texts ({said}): give --join or --text-column for all of them, or "
                "label in jobs of their own"
            )
        return next(iter(joins), "")

    @property
    def cost(self) -> float:
        """About how long a row takes on a CPU: 1 is a network in the text frame on an ordinary text."""
        return sum(map(_cost, self.loaded))

    @cached_property
    def digest(self) -> str:
        """A digest of all that decides labels and names of columns; for one model its own."""
        if len(self.loaded) == 1:
            return self.loaded[0].digest
        about = [(_short(model.name) if model.heads is None else "", model.digest) for model in self.loaded]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def heads_of(model: str | Path | Model) -> tuple[Model, ...]:
    """Make a model of its own of each head of a model that was trained on several label columns.

    Parameters
    ----------
    model : str, Path or Model
        As `load_model` takes it.

    Returns
    -------
    tuple of Model
        Each named by its column, with the column's classes; of a model without heads, the model itself.

    Raises
    ------
    ModelError
        For a model that cannot be loaded.

    Examples
    --------
    >>> [head.name for head in broadsheet.heads_of("ag-news")]
    ['ag-news']

    Of a model that was trained with ``label_column=["topic", "tone"]`` they are called "topic" and "tone".

    """
    whole = load_model(model)
    if whole.heads is None:
        return (whole,)
    heads = []
    for (name, _), part in zip(whole.heads, parts_of(whole.heads), strict=True):
        tensors = {n: tensor[part] if n.startswith("fc3.") else tensor for n, tensor in whole.tensors.items()}
        classes = tuple(label.removeprefix(of_head(name, "")) for label in whole.classes[part])
        ngrams = whole.ngrams.of_classes(part) if isinstance(whole.ngrams, NGrams) else None
        heads.append(replace(whole, classes=classes, tensors=tensors, name=name, ngrams=ngrams, heads=None))
    return tuple(heads)


def head_of(model: str | Path | Model, name: str) -> Model:
    """The head of this name; of a model without heads, the model itself. Raises UsageError where no head has it."""
    whole = load_model(model)
    head = next((candidate for candidate in heads_of(whole) if whole.heads is None or candidate.name == name), None)
    if head is None:
        raise UsageError(f"{whole.name} has no head {name!r}: its heads are {_named(whole.heads)}")
    return head


def load_one(source: str | Path | Model) -> Model:
    """As `load_model`, for what takes one label column. Raises UsageError, too, for a model with heads."""
    model = load_model(source)
    if model.heads is not None:
        raise UsageError(
            f"{model.name} has the heads {_named(model.heads)}, and here one is wanted: broadsheet.heads_of() makes a "
            "model of its own of each, to be saved"
        )
    warn_if_raw(model)
    return model


def _named(heads: Heads | None) -> str:
    return ", ".join(name for name, _ in heads or ())


def load_models(
    source: str | Path | Model | Iterable[str | Path | Model],
    network: str = "uncertain",
    preparation: str | os.PathLike[str] | None = None,
) -> Models:
    """Load what the option `model` names: one model, or several. network: about which texts theirs are asked.
    preparation: what one model's texts go through.

    Warns of a model that is known and lacks its preparation.

    Raises ModelError as `load_model` does, and UsageError as `Model.asking` and `prepared` do, for no model, for two
    whose columns would have one name, and for a preparation of several models.
    """
    given = [source] if isinstance(source, str | Path | Model) else list(source)
    if not given:
        raise UsageError("no model is named: give --model")
    models = Models(tuple(_load(one, network) for one in given))
    if preparation is not None:
        if len(given) > 1:
            raise UsageError("--preparation is for one model: of several, convert each that needs one with it")
        models = Models((prepared(models.loaded[0], preparation),))
    for model in models.loaded:
        warn_if_raw(model)
    names = models.short_names
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two models are called {name!r}, by which the columns of each are named: give one of them another "
                "file name, or where it is a head, a job of its own"
            )
    return models


def forget_models() -> None:
    """Release the models that were loaded last."""
    _loaded.cache_clear()


def _load(source: str | Path | Model, network: str) -> Model:
    """A model, and the same object again while its file stays as it is: it takes longer to read and check one than to
    label thousands of texts.
    """
    if isinstance(source, Model) or str(source).startswith(HUB):
        return load_model(source).asking(network)
    name = os.fspath(source)
    shipped = str(shipped_file(name)) if name in SHIPPED else name
    states = []
    within = [f"{shipped}/{file}" for file in FILES]
    for path in (shipped, f"{shipped}.json", *within):  # what stands beside a `params.bin`, or in an encoder's folder
        with suppress(OSError):
            about = os.stat(path)
            states.append((os.path.realpath(path), about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns))
    return _loaded(name, network, tuple(states))


@lru_cache(maxsize=2)
def _loaded(name: str, network: str, states: tuple[tuple[str, int, int, int, int], ...]) -> Model:
    """states: of the files from which it is loaded."""
    return load_model(name).asking(network)


def _cost(model: Model) -> float:
    share = 1.0 if model.cascade is None else model.cascade.share
    if model.encoder is not None:
        return _NGRAMS_COST + share * model.encoder.computed_weights / _ENCODER_WEIGHTS
    if not model.has_network:
        return _NGRAMS_COST
    return _NGRAMS_COST + share * (_DENSE_COST if model.frame == "dense" else 1.0)


def _short(name: str) -> str:
    if name.startswith(HUB):
        return repository_of(name)[0].partition("/")[2]
    last = name.rstrip("/").rpartition("/")[2] or name
    return next((last.removesuffix(suffix) for suffix in _SUFFIXES if last.endswith(suffix)), last)
