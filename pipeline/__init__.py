"""The public names of `broadsheet`, and the module of each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import options as _options  # noqa: F401 - importing it tells errors.py which flags are keywords

if TYPE_CHECKING:  # the names of `_NAMES`, for type checkers and editors
    from .api import classify as classify, close as close, label as label  # noqa: I001 - a module, a line
    from .classifier import Classifier as Classifier, Prediction as Prediction, load as load
    from .client import AsyncClient as AsyncClient, Client as Client, ServerError as ServerError
    from .curation.explain import Explanation as Explanation, explain as explain
    from .curation.next_rows import next_rows as next_rows
    from .ecosystem.onnx import export_onnx as export_onnx, onnx_inputs as onnx_inputs
    from .ecosystem.push import push as push
    from .errors import (
        BroadsheetError as BroadsheetError,
        ModelError as ModelError,
        OutputError as OutputError,
        SourceError as SourceError,
        UsageError as UsageError,
    )
    from .job.estimate import Estimate as Estimate, dry_run as dry_run
    from .evaluation.evaluate import evaluate as evaluate
    from .evaluation.fitting import calibrate as calibrate, quantise as quantise
    from .model.charcnn import Model as Model
    from .model.loading import load_model as load_model
    from .model.recipes import prepared as prepared
    from .model.several import heads_of as heads_of
    from .options import Options as Options
    from .output.compact import compact as compact
    from .output.merge import merge as merge
    from .output.select import select as select
    from .output.verify import verify as verify
    from .report.job import JobReport as JobReport
    from .source.inputs import Paths as Paths
    from .train import train as train
    from .train.network import torch_module as torch_module

    __version__: str

_NAMES = {
    "api": ("classify", "close", "label"),
    "classifier": ("Classifier", "Prediction", "load"),
    "client": ("AsyncClient", "Client", "ServerError"),
    "curation.explain": ("Explanation", "explain"),
    "curation.next_rows": ("next_rows",),
    "ecosystem.onnx": ("export_onnx", "onnx_inputs"),
    "ecosystem.push": ("push",),
    "errors": ("BroadsheetError", "ModelError", "OutputError", "SourceError", "UsageError"),
    "job.estimate": ("Estimate", "dry_run"),
    "evaluation.evaluate": ("evaluate",),
    "evaluation.fitting": ("calibrate", "quantise"),
    "model.charcnn": ("Model",),
    "model.loading": ("load_model",),
    "model.recipes": ("prepared",),
    "model.several": ("heads_of",),
    "options": ("Options",),
    "output.compact": ("compact",),
    "output.merge": ("merge",),
    "output.select": ("select",),
    "output.verify": ("verify",),
    "report.job": ("JobReport",),
    "source.inputs": ("Paths",),
    "train": ("train",),
    "train.network": ("torch_module",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_MODULES]


def public(name: str) -> Any:
    """Import a public name when it is first used, so that importing one part does not import the others."""
    if name == "__version__":
        return import_module("importlib.metadata").version("broadsheet")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __getattr__(name: str) -> Any:
    if name == "train":  # `pipeline.train` is the package, also after its import
        return import_module(f"{__name__}.{name}")
    return public(name)
