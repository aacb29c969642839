"""Broadsheet: labels for very large collections of short texts, by a character-level CNN on a Dask graph.

>>> import pipeline
>>> report = pipeline.classify(["Stocks fell on Monday as oil rose."])
>>> report.to_pandas()
"""

from importlib.metadata import version

from pipeline.api import classify
from pipeline.errors import BroadsheetError, ModelError, OutputError, SourceError, UsageError
from pipeline.model.charcnn import Model, load_model
from pipeline.options import Options
from pipeline.output.verify import verify
from pipeline.report.job import JobReport
from pipeline.source.inputs import Paths

__version__ = version("broadsheet")

__all__ = [
    "BroadsheetError",
    "JobReport",
    "Model",
    "ModelError",
    "Options",
    "OutputError",
    "Paths",
    "SourceError",
    "UsageError",
    "classify",
    "load_model",
    "verify",
]
