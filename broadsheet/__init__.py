"""Broadsheet under its own name: the package `pipeline`, which a file of the user's may hide.

>>> import broadsheet
>>> report = broadsheet.classify(["Stocks fell on Monday as oil rose."])
>>> report.to_pandas()
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline import (
        AsyncClient,
        BroadsheetError,
        Classifier,
        Client,
        Estimate,
        JobReport,
        Model,
        ModelError,
        Options,
        OutputError,
        Paths,
        Prediction,
        ServerError,
        SourceError,
        UsageError,
        __version__,
        calibrate,
        classify,
        close,
        dry_run,
        export_onnx,
        label,
        load,
        load_model,
        onnx_inputs,
        push,
        quantise,
        torch_module,
        verify,
    )

__all__ = [
    "AsyncClient",
    "BroadsheetError",
    "Classifier",
    "Client",
    "Estimate",
    "JobReport",
    "Model",
    "ModelError",
    "Options",
    "OutputError",
    "Paths",
    "Prediction",
    "ServerError",
    "SourceError",
    "UsageError",
    "__version__",
    "calibrate",
    "classify",
    "close",
    "dry_run",
    "export_onnx",
    "label",
    "load",
    "load_model",
    "onnx_inputs",
    "push",
    "quantise",
    "torch_module",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import what a public name stands for when it is first asked for. Raises ImportError where it is hidden."""
    if name not in __all__ and name not in ("duckdb", "sklearn"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = hidden()
    if message:
        raise ImportError(message)
    return getattr(import_module("pipeline"), name)


def __dir__() -> list[str]:
    return __all__


def hidden() -> str | None:
    """What hides one of our packages, and the remedy; None where they are found. Nothing that is found is run."""
    for package in ("pipeline", "cluster"):
        ours = Path(__file__).parent.parent / package / "__init__.py"
        spec = find_spec(package)
        found = None if spec is None else spec.origin
        if found is None:
            return f"Broadsheet's package {package!r} is not installed: install Broadsheet again"
        if os.path.realpath(found) != os.path.realpath(ours):
            return f"{found} hides Broadsheet's own package {package!r}: rename it, or run from another folder"
    return None
