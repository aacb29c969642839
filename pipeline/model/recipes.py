"""The recipes: published models whose authors prepare the texts. Their steps are in recipes.json.

The steps are checked against the authors' code: each recipe needs these steps in Python in
`tests/model/test_preparation.py`. A recipe leaves out a figure that the authors did not publish.
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
    """Return all recipes by name. A recipe has these keys:

    - `model`: where the model is published; `source`: where its authors show their steps
    - `licence`, `labels`, `windows`, `threshold`: facts about the model, if the authors publish them
    - `steps`: the steps of the preparation
    - `join`: the template of its texts, if the model reads several columns
    - `refused`: why the model does not run here, if it does not
    - `known_by`: labels by which the model is recognised, and `most_labels`: the largest number of labels that it has;
      only if its scores differ without the steps
    """
    data = resources.files("broadsheet.pipeline").joinpath("model", "recipes.json").read_bytes()
    return {recipe["name"]: recipe for recipe in msgspec.json.decode(data)}


def prepared(model: Model, preparation: str | os.PathLike[str]) -> Model:
    """Return the model with a preparation.

    Parameters
    ----------
    model : Model
        A model, whose own preparation is replaced if it has one.
    preparation : str or path
        The name of a recipe, as `broadsheet recipes` prints it, or of a JSON file with a list of steps. A recipe with
        pieces reads the ``tokenizer.json`` beside the model's file.

    Returns
    -------
    Model
        The model, with a digest of its own.

    Raises
    ------
    UsageError
        If no recipe and no file has the name, a step is unknown, or the tokenizer is missing.

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
    """Warn if a model has the labels of a recipe's model, but no preparation."""
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
