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
from .charcnn import Model
from .encoder_file import FILES
from .loading import load_model, shipped_file
from .model_file import HUB, SHIPPED, repository_of
from .ngrams import NGrams
from .recipes import prepared, warn_if_raw
from .scores import Heads, of_head, parts_of

_NGRAMS_COST, _DENSE_COST = 1 / 80, 3.0
_ENCODER_WEIGHTS = 900_000
"""The number of weights of an encoder that takes as long for a hundred tokens as the network takes for a text."""

_SUFFIXES = (".safetensors", ".bin", ".ftz")


@dataclass(frozen=True)
class Models:
    """The models of a job. loaded: in the order in which the user named them. Each has an engine of its own."""

    loaded: tuple[Model, ...]

    @cached_property
    def every(self) -> tuple[Model, ...]:
        """The models, with each model that has heads replaced by its heads, as `heads_of` makes them."""
        return tuple(head for model in self.loaded for head in heads_of(model))

    @property
    def first(self) -> Model:
        """The first model, which counts where only one can, as in `partition_by`."""
        return self.every[0]

    @property
    def name(self) -> str:
        """The names of the models, for messages and reports."""
        named = ((model.name, _named(model.heads)) for model in self.loaded)
        return ", ".join(f"{name} ({heads})" if heads else name for name, heads in named)

    @property
    def short_names(self) -> tuple[str, ...]:
        """The names of the models, or heads, in the names of columns if there are several: the name of the head, of the
        repository, or of the file without folder and suffix.
        """
        of_each = ([name for name, _ in model.heads or ()] or [_short(model.name)] for model in self.loaded)
        return tuple(chain.from_iterable(of_each))

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The beginning of the names of each model's columns: empty if there is only one model."""
        return ("",) if len(self.every) == 1 else tuple(f"{name}_" for name in self.short_names)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes of all models, each once: the labels that true labels may have."""
        return tuple(dict.fromkeys(label for model in self.every for label in model.classes))

    @property
    def reads(self) -> int:
        """How many characters at the beginning of an article decide its labels."""
        return max(model.reads for model in self.every)

    @property
    def join(self) -> str:
        """The template by which the models join columns; "" if they read one column.

        Raises UsageError if the models do not all read the same text.
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
        """The approximate time that a row takes on a CPU: 1 for a network in the text frame on an ordinary text."""
        return sum(map(_cost, self.loaded))

    @cached_property
    def digest(self) -> str:
        """A digest of all that decides labels and names of columns; for one model, the model's own digest."""
        if len(self.loaded) == 1:
            return self.loaded[0].digest
        about = [(_short(model.name) if model.heads is None else "", model.digest) for model in self.loaded]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def heads_of(model: str | Path | Model) -> tuple[Model, ...]:
    """Split a model that was trained on several label columns into one model for each column.

    Parameters
    ----------
    model : str, Path or Model
        The model, as `load_model` takes it.

    Returns
    -------
    tuple of Model
        A model for each head, with the name and the classes of its column. For a model without heads, only the model
        itself.

    Raises
    ------
    ModelError
        If the model cannot be loaded.

    Examples
    --------
    >>> [head.name for head in broadsheet.heads_of("ag-news")]
    ['ag-news']

    The heads of a model that was trained with ``label_column=["topic", "tone"]`` are called "topic" and "tone".

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
    """Return the head with this name or, for a model without heads, the model itself.

    Raises UsageError if no head has the name.
    """
    whole = load_model(model)
    head = next((candidate for candidate in heads_of(whole) if whole.heads is None or candidate.name == name), None)
    if head is None:
        raise UsageError(f"{whole.name} has no head {name!r}: its heads are {_named(whole.heads)}")
    return head


def load_one(source: str | Path | Model) -> Model:
    """Load a model for a command that works on one label column.

    Warns of a model that lacks its preparation. Raises the errors of `load_model`, and UsageError for a model with
    heads.
    """
    model = load_model(source)
    if model.heads is not None:
        raise UsageError(
            f"{model.name} has the heads {_named(model.heads)}, and here one is wanted: broadsheet.heads_of() makes a "
            "model of its own of each, to be saved"
        )
    warn_if_raw(model)
    return model


def _named(heads: Heads | None) -> str:
    """Return the names of the heads, for messages."""
    return ", ".join(name for name, _ in heads or ())


def load_models(
    source: str | Path | Model | Iterable[str | Path | Model],
    network: str = "uncertain",
    preparation: str | os.PathLike[str] | None = None,
) -> Models:
    """Load what the option `model` names: one model or several.

    network: which texts the models' networks score, as in `Model.asking`. preparation: a preparation for one model, as
    in `prepared`.

    Warns of a published model that lacks its preparation.

    Raises ModelError as `load_model` does, and UsageError as `Model.asking` and `prepared` do. Also raises UsageError
    if there is no model, if the columns of two models would have the same name, or if there is a preparation and
    several models.
    """
    # Load the models, and give a single one its preparation.
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
    # Check that the names of their columns differ.
    names = models.short_names
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two models are called {name!r}, by which the columns of each are named: give one of them another "
                "file name, or where it is a head, a job of its own"
            )
    return models


def forget_models() -> None:
    """Release the models that `load_models` keeps in memory."""
    _loaded.cache_clear()


def _load(source: str | Path | Model, network: str) -> Model:
    """Load a model, or return the same object again while its files are unchanged.

    To read and check a model takes longer than to label thousands of texts.
    """
    if isinstance(source, Model) or str(source).startswith(HUB):
        return load_model(source).asking(network)
    name = os.fspath(source)
    shipped = str(shipped_file(name)) if name in SHIPPED else name
    states = []
    within = [f"{shipped}/{file}" for file in FILES]
    for path in (shipped, f"{shipped}.json", *within):  # also the sidecar of a params.bin, and files of an encoder
        with suppress(OSError):
            about = os.stat(path)
            states.append((os.path.realpath(path), about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns))
    return _loaded(name, network, tuple(states))


@lru_cache(maxsize=2)
def _loaded(name: str, network: str, states: tuple[tuple[str, int, int, int, int], ...]) -> Model:
    """Load a model. states: the states of its files, which are part of the key of the cache."""
    return load_model(name).asking(network)


def _cost(model: Model) -> float:
    """Return `Models.cost` for one model."""
    share = 1.0 if model.cascade is None else model.cascade.share
    if model.encoder is not None:
        return _NGRAMS_COST + share * model.encoder.computed_weights / _ENCODER_WEIGHTS
    if not model.has_network:
        return _NGRAMS_COST
    return _NGRAMS_COST + share * (_DENSE_COST if model.frame == "dense" else 1.0)


def _short(name: str) -> str:
    """Return the name of a repository, or of a file without folder and suffix."""
    if name.startswith(HUB):
        return repository_of(name)[0].partition("/")[2]
    last = name.rstrip("/").rpartition("/")[2] or name
    return next((last.removesuffix(suffix) for suffix in _SUFFIXES if last.endswith(suffix)), last)
