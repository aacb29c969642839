"""Published models whose authors prepare the texts: what they do, checked against their code, is in recipes.json.

Where a figure is not in what the authors published, it is left out. A recipe needs the steps of its authors in
`tests/model/test_preparation.py`.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError, did_you_mean
from .charcnn import Model
from .preparation import Steps, read_steps, with_tokenizer


@cache
def recipes() -> dict[str, dict[str, Any]]:
    """All of them, by name.

    Each says where its model is published (`model`), and where its authors show their steps (`source`); of the model
    `licence`, `labels`, `windows` and `threshold`, as far as they say that; `steps`; `join`, the template of its texts,
    where it reads several columns; and `refused`, why it does not run here. Where scores differ without the steps, it
    has labels that tell the model (`known_by`), and how many it has (`most_labels`).
    """
    data = resources.files("broadsheet.pipeline").joinpath("model", "recipes.json").read_bytes()
    return {recipe["name"]: recipe for recipe in msgspec.json.decode(data)}


def prepared(model: Model, preparation: str | os.PathLike[str]) -> Model:
    """The model with a preparation.

    Parameters
    ----------
    model : Model
        A model, whose own preparation is replaced if it has one.
    preparation : str or path
        A recipe's name, as `broadsheet recipes` prints them, or a JSON file: a list of steps. A recipe with pieces
        reads the ``tokenizer.json`` beside the model's file.

    Returns
    -------
    Model
        With a digest of its own.

    Raises
    ------
    UsageError
        For a name that is no recipe's and no file's, a step that is unknown, or a missing tokenizer.

    Examples
    --------
    >>> model = broadsheet.prepared(broadsheet.load_model("ag-news"), "oh-eli5")
    >>> print(model.preparation)
    strip; lines

    """
    given, known = os.fspath(preparation), recipes()
    if given in known:
        steps = known[given]["steps"]
        what = f"the preparation {given}"
        made = with_tokenizer(msgspec.convert(steps, Steps), Path(model.name).parent, what) if steps else None
    elif os.path.exists(given):
        made = read_steps(Path(given))
    else:
        remedy = did_you_mean(given, known) or f": a recipe's name ({', '.join(known)}) or a JSON file"
        raise UsageError(f"no preparation {given!r}{remedy}")
    join = known[given].get("join") if given in known else None
    return replace(model if join is None else model.joining(join), preparation=made)


def warn_if_raw(model: Model) -> None:
    """Warn of a model that has the labels of one of the recipes, and no preparation."""
    if model.preparation is not None or model.has_network:
        return
    for name, recipe in recipes().items():
        labels = {*recipe.get("known_by", ())}
        if labels and labels <= {*model.classes} and len(model.classes) <= recipe["most_labels"]:
            warnings.warn(
                f"{model.name} has the labels of {recipe['model']}, whose authors prepare each text before it reads "
                f"it: scores are theirs with --preparation {name}",
                stacklevel=3,
            )
            return
