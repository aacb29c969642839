"""The public call: from a source to labels, in one job."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any

from distributed import Client

from pipeline.errors import UsageError
from pipeline.job import OnDemand, Request, Running, run_job
from pipeline.model.charcnn import Model, load_model
from pipeline.options import Options
from pipeline.output.folder import OutputFolder
from pipeline.report.job import JobReport, Progress
from pipeline.source.search import printable


def classify(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    model: str | Path | Model = "ag-news",
    client: Client | Callable[[], AbstractContextManager[Client]] | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> JobReport:
    """Label every article of `source`.

    Parameters
    ----------
    source : str, pathlib.Path, Paths, list of str, pandas, Arrow or Dask object
        A path, folder, glob or fsspec URL as a string, or several as `Paths`; or articles in memory: a list of strings,
        a pandas Series or DataFrame, an Arrow array, table or dataset, a Dask DataFrame.
    output : str or path, optional
        A folder for Parquet parts. Without one, results and quarantined rows come back in memory.
    model : str, path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    client : distributed.Client or callable, optional
        A Dask client, or a function that returns a context manager for one, which is entered once the job is planned.
        By default the job runs on a worker within this process.
    progress : Progress, optional
        Notified of chunks as they finish.
    stop : callable
        Called before each chunk is submitted; once it returns True, the job finishes the chunks in flight and ends.
    **options
        The fields of `Options`.

    Returns
    -------
    JobReport
        Counts, labels, timings, and the rows themselves (`to_pandas`, `to_arrow`).

    Raises
    ------
    UsageError
        For an option, column, model or folder that does not fit the job.
    SourceError
        For bad input, with ``strict=True``.
    OutputError
        For a folder that cannot be written. Like the others it is a BroadsheetError; chunks committed by then are kept,
        for ``resume=True``.

    Examples
    --------
    >>> report = pipeline.classify("news.csv", "labels", text_column=["title", "body"])
    >>> report.rows_written
    100

    """
    unknown = sorted(set(options) - {field.name for field in fields(Options)})
    if unknown:
        raise TypeError(f"classify() got an unexpected keyword argument {unknown[0]!r}")
    settings = Options(**options)
    folder = None
    if output is not None:
        if printable(os.fspath(output)) != os.fspath(output):
            raise UsageError(f"{printable(os.fspath(output))}: the name of the output folder is not UTF-8")
        folder = OutputFolder(Path(output).absolute())
        folder.refuse_unless(settings.resume, settings.overwrite)
    elif settings.resume or settings.overwrite:
        raise UsageError("without an output folder there is nothing to resume or to overwrite")
    if not (client is None or isinstance(client, Client) or callable(client)):
        raise UsageError(f"client is a {type(client).__name__}: give a distributed.Client, e.g. of cluster.connect()")
    cluster = Running(client) if isinstance(client, Client) else OnDemand(client or _embedded(settings.workers))
    request = Request(source, folder, load_model(model), cluster, settings, progress or Progress(), stop)
    return run_job(request)


def _embedded(workers: int | None) -> Callable[[], AbstractContextManager[Client]]:
    """A cluster of this machine's cores: `workers` processes, or one worker within this process."""

    def start() -> AbstractContextManager[Client]:
        from cluster import connect

        return connect("local", workers=workers, processes=workers is not None)

    return start
