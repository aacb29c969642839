"""An extension of griffe: a function that takes the options of a job shows each of them, as `help` does in Python."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import griffe


class Options(griffe.Extension):
    """Signature and docstring of a decorated function, as they are once it is imported."""

    def on_function(self, *, func: griffe.Function, **_others: Any) -> None:
        """Where its decorator is `takes`, of `pipeline/options/`."""
        if not any(str(one.value).startswith("takes(") for one in func.decorators):
            return
        found = getattr(import_module(func.module.path), func.name)
        func.docstring = griffe.Docstring(inspect.getdoc(found) or "", parent=func)
        own = [one for one in func.parameters if one.kind is not griffe.ParameterKind.var_keyword]
        names = {one.name for one in own}
        options = [one for one in inspect.signature(found).parameters.values() if one.name not in names]
        keyword = griffe.ParameterKind.keyword_only
        more = [griffe.Parameter(one.name, kind=keyword, default=repr(one.default)) for one in options]
        func.parameters = griffe.Parameters(*own, *more)
