"""Broadsheet: a label, a score or a number for each text of a very large collection.

>>> import broadsheet
>>> report = broadsheet.classify(["Stocks fell on Monday as oil rose."])
>>> report.to_pandas()["label"][0]
'Business'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import pipeline
from .pipeline import __all__ as __all__

if TYPE_CHECKING:
    from .pipeline import *  # noqa: F403
    from .pipeline import __version__ as __version__


def __getattr__(name: str) -> Any:
    if name in ("duckdb", "sklearn"):
        return import_module(f"{__name__}.{name}")
    return pipeline.public(name)


def __dir__() -> list[str]:
    return __all__
