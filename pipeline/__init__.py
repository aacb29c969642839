"""What `broadsheet` offers: each public name, and the module that it comes from."""

from __future__ import annotations

import ast
import inspect
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ == "pipeline":
    from broadsheet.checkout import alias

    alias(__name__)

from . import options as _options  # noqa: F401 - with it errors.py knows which flags are keywords

if TYPE_CHECKING:  # the one list: type checkers and editors read it as it stands, and Python by `_MODULES`
    from .api import classify as classify, close as close, label as label  # noqa: I001 - a module, a line
    from .classifier import Classifier as Classifier, Prediction as Prediction, load as load
    from .client import AsyncClient as AsyncClient, Client as Client, ServerError as ServerError
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
    from .measures.fitting import calibrate as calibrate, quantise as quantise
    from .model.charcnn import Model as Model, load_model as load_model
    from .options import Options as Options
    from .output.verify import verify as verify
    from .report.job import JobReport as JobReport
    from .source.inputs import Paths as Paths
    from .train.network import torch_module as torch_module

    __version__: str

_MODULES = {
    name.name: node.module
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[__name__])))
    if isinstance(node, ast.ImportFrom) and node.level and node.module
    for name in node.names
}
_MODULES_OF_TOOLS = ("duckdb", "sklearn")

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    """Import what a public name stands for when it is first asked for: whoever imports a part imports only that."""
    if name == "__version__":
        return import_module("importlib.metadata").version("broadsheet")
    if name in _MODULES_OF_TOOLS:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
