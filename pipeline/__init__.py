"""What `broadsheet` offers: each name, and the module that it comes from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import classify, close
    from .classifier import Classifier, Prediction, load
    from .client import AsyncClient, Client, ServerError
    from .ecosystem.labelled import label
    from .ecosystem.onnx import export_onnx, onnx_inputs
    from .ecosystem.push import push
    from .errors import BroadsheetError, ModelError, OutputError, SourceError, UsageError
    from .job.estimate import Estimate, dry_run
    from .measures.fitting import calibrate, quantise
    from .model.charcnn import Model, load_model
    from .options import Options
    from .output.verify import verify
    from .report.job import JobReport
    from .source.inputs import Paths
    from .train.module import torch_module

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

if __name__ == "pipeline":
    from broadsheet.checkout import alias

    alias(__name__)

_MODULES = {
    "AsyncClient": "client",
    "Classifier": "classifier",
    "Client": "client",
    "Estimate": "job.estimate",
    "JobReport": "report.job",
    "Model": "model.charcnn",
    "Options": "options",
    "Paths": "source.inputs",
    "Prediction": "classifier",
    "ServerError": "client",
    "calibrate": "measures.fitting",
    "classify": "api",
    "close": "api",
    "dry_run": "job.estimate",
    "export_onnx": "ecosystem.onnx",
    "label": "ecosystem.labelled",
    "load": "classifier",
    "load_model": "model.charcnn",
    "onnx_inputs": "ecosystem.onnx",
    "push": "ecosystem.push",
    "quantise": "measures.fitting",
    "torch_module": "train.module",
    "verify": "output.verify",
}

_MODULES_OF_TOOLS = ("duckdb", "sklearn")


def __getattr__(name: str) -> Any:
    """Import what a public name stands for when it is first asked for: whoever imports a part imports only that."""
    if name == "__version__":
        return import_module("importlib.metadata").version("broadsheet")
    if name in _MODULES_OF_TOOLS:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
