"""Broadsheet: labels for very large collections of short texts, by a character-level CNN on a Dask graph.

>>> import pipeline
>>> report = pipeline.classify(["Stocks fell on Monday as oil rose."])
>>> report.to_pandas()["label"][0]
'Business'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.api import classify, close
    from pipeline.classifier import Classifier, Prediction, load
    from pipeline.client import AsyncClient, Client, ServerError
    from pipeline.ecosystem.onnx import export_onnx, onnx_inputs
    from pipeline.ecosystem.push import push
    from pipeline.errors import BroadsheetError, ModelError, OutputError, SourceError, UsageError
    from pipeline.estimate import Estimate, dry_run
    from pipeline.int8_scales import quantise
    from pipeline.labelled import label
    from pipeline.model.charcnn import Model, load_model
    from pipeline.options import Options
    from pipeline.output.verify import verify
    from pipeline.report.job import JobReport
    from pipeline.source.inputs import Paths
    from pipeline.temperature import calibrate
    from pipeline.train.module import torch_module

    __version__: str

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

_MODULES = {
    "AsyncClient": "client",
    "Classifier": "classifier",
    "Client": "client",
    "Estimate": "estimate",
    "JobReport": "report.job",
    "Model": "model.charcnn",
    "Options": "options",
    "Paths": "source.inputs",
    "Prediction": "classifier",
    "ServerError": "client",
    "calibrate": "temperature",
    "classify": "api",
    "close": "api",
    "dry_run": "estimate",
    "export_onnx": "ecosystem.onnx",
    "label": "labelled",
    "load": "classifier",
    "load_model": "model.charcnn",
    "onnx_inputs": "ecosystem.onnx",
    "push": "ecosystem.push",
    "quantise": "int8_scales",
    "torch_module": "train.module",
    "verify": "output.verify",
}

_MODULES_OF_TOOLS = ("duckdb", "sklearn")


def __getattr__(name: str) -> Any:
    """Import what a public name stands for when it is first asked for: whoever imports a part imports only that."""
    if name == "__version__":
        return import_module("importlib.metadata").version("broadsheet")
    if name in _MODULES_OF_TOOLS:
        return import_module(f"pipeline.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pipeline.{_MODULES.get(name, 'errors')}"), name)
