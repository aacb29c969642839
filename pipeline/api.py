"""The public call: from a source to labels, in one job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from distributed import Client

from .ecosystem.resident import release
from .errors import UsageError
from .graph import classify_chunks
from .job.phases import OnDemand, Request, Running
from .job.run import run_job
from .model.charcnn import Model
from .model.quantised import scales_of
from .model.several import load_models
from .options import OPTIONS, Options
from .output.folder import OutputFolder
from .output.object_store import place_of
from .report.job import JobReport, Progress
from .report.summary import doubt
from .source.find.search import printable


def classify(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    model: str | Path | Model | Iterable[str | Path | Model] = "ag-news",
    client: Client | Callable[[], AbstractContextManager[Client]] | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    text_column: str | Iterable[str] = (),
    id_column: str | Iterable[str] = (),
    keep: str | Iterable[str] = (),
    keep_all: bool = False,
    columns: Iterable[str] | None = None,
    truth_column: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    root: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    truth: str | os.PathLike[str] | None = None,
    scores: bool = False,
    top_k: int = 1,
    abstain: float | None = None,
    format: str = "parquet",  # noqa: A002 - as other libraries call it
    partition_by: str | None = None,
    where: str | None = None,
    windows: int | None = None,
    overlap: int = 0,
    window_score: str = "mean",
    chunk_size: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
    workers: int | None = None,
    endpoint: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    update: bool = False,
    strict: bool = False,
    hash: str = "listing",  # noqa: A002
    allow_mixed: bool = False,
    profile: bool = False,
    trace: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
) -> JobReport:
    """Label every article of `source`.

    Parameters
    ----------
    source : str, pathlib.Path, Paths, iterable of str or dict, NumPy, pandas, Polars, Arrow, DuckDB or Dask object
        A path, folder, glob or fsspec URL as a string, or several as `Paths`; or whatever holds text: a list, array or
        iterator of strings, or of dicts by column; a DataFrame, Series or table of pandas, Polars or Arrow; a Hugging
        Face dataset; a DuckDB relation, a ``RecordBatchReader`` or anything else with Arrow's PyCapsule interface; a
        Dask DataFrame. Iterators and readers are streamed; a job over one cannot be resumed.
    output : str or path, optional
        A folder for Parquet parts, or the URL of one in an object store, ``s3://bucket/labels``. Without one, the
        report has every row of the input in memory.
    model : str, path or Model, or several
        A shipped model's name, a model file, or a loaded `Model`. Several of these, in a list, label the texts in one
        pass; the columns of each then begin with its name, for example ``ag-news_label``.
    client : distributed.Client or callable, optional
        A Dask client, or a function that returns a context manager for one, which is entered once the job is planned.
        By default the job runs on a worker within this process, which keeps the model for the next call until
        `close`.
    progress : Progress, optional
        Notified of chunks as they finish.
    stop : callable
        Called before each chunk is submitted; once it returns True, the job finishes the chunks in flight and ends.
    text_column : str or iterable of str
        Column with the text, "text" by default. Several are joined by a space, and the result is stripped.
    id_column : str or iterable of str
        Columns to copy to the output, first.
    keep : str or iterable of str
        Further columns to copy to the output.
    keep_all : bool
        Copy every column of the input to the output.
    columns : iterable of str, optional
        Column names of a CSV or TSV without a header line.
    truth_column : str, optional
        Column with the true class, by name or by number from 1. The report then has the accuracy, and the output the
        true class by name, in a column ``truth``.
    encoding : str
        Character encoding of CSV, TSV, JSONL and text files, by a name that Python knows, for example "latin-1".
    delimiter : str, optional
        The character between the fields of a CSV file. Default: a comma, a tab in TSV files.
    root : str or path, optional
        A folder, or the beginning of a URL, above all input files: the column ``file`` has their paths relative to it.
        Default: absolute paths.
    limit : int, optional
        Label the first `limit` rows only.
    truth : str or path, optional
        Answer file of a one-hot input: float32 class indices from 0, one for each article.
    scores : bool
        Write the probability of every class, in columns ``score_<class>``.
    top_k : int
        Write the `top_k` most probable labels and their scores, in columns ``top_labels`` and ``top_scores``, where it
        is above 1.
    abstain : float, optional
        A row whose score is below it gets no label: ``label`` is null, other columns are as without this option. The
        report counts such rows.
    format : str
        "parquet", "jsonl" or "csv": of the files in the output folder.
    partition_by : str, optional
        "label": a folder for each label, named as Hive names them, ``label=Sports``; of several models, for each label
        of the first.
    where : str, optional
        Write, or return, only the rows for which this expression over the columns of the output is true, for example
        ``label == "Sports" and score >= 0.9``.
    windows : int, optional
        Label texts that are longer than the model reads in up to so many windows, each as long as the model reads; the
        output then has their number, ``n_windows``. Default: only the beginning of a text is read.
    overlap : int
        Characters that a window shares with the next.
    window_score : str
        "mean": a text's scores are the mean of its windows'. "best": they are those of the window with the highest.
    chunk_size : int, optional
        Rows in a chunk at most. Default: 512 on a CPU, 131,072 on a GPU.
    device : str
        "auto" (a GPU where one works, else the CPU), "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8". A CPU computes in fp32, or slower in int8. int8 needs a model with
        activation scales (`quantise`).
    kernels : str
        "auto", or a generation of CUDA kernels: "simt", "sm75", "sm80" or "sm90".
    workers : int, optional
        Processes of the cluster that `classify` starts where it gets no client. A script that sets this needs the
        ``if __name__ == "__main__":`` guard of multiprocessing. Default: one worker within this process.
    endpoint : str, optional
        The URL of the server of object stores (``s3://``, ``gs://``, ``az://``), where it is not the provider's own.
        Default: that of the environment, for example ``AWS_ENDPOINT_URL``.
    resume : bool
        Continue an interrupted job in its output folder, or repair that of a finished one.
    overwrite : bool
        Replace the output of an earlier job.
    update : bool
        Label only the files that are new since the job in the output folder, whose other options must be the same, and
        add them to it. Files that have changed or are gone are told, and keep their labels. An update that was
        interrupted is continued. Where there is no job yet, it is begun.
    strict : bool
        Stop at the first row that cannot be read, or file with a problem.
    hash : str
        What identifies an input file: "listing" (path, size and time of modification, or an ETag) or "full" (also a
        hash of its content, for which all of it is read beforehand).
    allow_mixed : bool
        Accept workers that differ in what decides the bits of a score, for example in GPU architecture.
    profile : bool
        Record a span for every kernel, and measure each kernel by itself at the end.
    trace : str or path, optional
        File for the timeline as JSON, which ui.perfetto.dev opens.
    report : str or path, optional
        File for a report on the job as one HTML page. Needs Matplotlib.

    Returns
    -------
    JobReport
        Counts, labels, timings, and the rows themselves (`to_pandas`, `to_arrow`, `join`).

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
    >>> report = broadsheet.classify("news.csv", "labels", text_column=["title", "body"])
    >>> report.rows_written
    100

    """
    given = locals()
    settings = Options(**{name: given[name] for name in OPTIONS})
    folder = None
    if output is not None:
        if printable(os.fspath(output)) != os.fspath(output):
            raise UsageError(f"{printable(os.fspath(output))}: the name of the output folder is not UTF-8")
        folder = OutputFolder(place_of(output, settings.endpoint))
        folder.refuse_unless(settings.resume, settings.overwrite, settings.update)
    elif settings.resume or settings.overwrite or settings.update:
        raise UsageError("without an output folder there is nothing to resume, to overwrite or to update")
    if not (client is None or isinstance(client, Client) or callable(client)):
        raise UsageError(f"client is a {type(client).__name__}: give a distributed.Client, e.g. of cluster.connect()")
    cluster = Running(client) if isinstance(client, Client) else OnDemand(client or _embedded(settings.workers))
    loaded = load_models(model)
    if settings.precision == "int8":
        for each in loaded.every:
            scales_of(each)  # each worker needs them: without them none is started
    request = Request(source, folder, loaded, cluster, settings, progress or Progress(), stop, classify_chunks)
    result = run_job(request)
    remark = doubt(result.job, result.tally)
    if progress is None and remark:  # a progress of its own shows the report at the end
        request.progress.warn(remark)
    return result


def close() -> None:
    """Release what `classify` keeps in this process: a worker, and on it the model, with the memory of its GPU. The
    engines that labels of Dask collections and DuckDB queries keep here are released too.

    A later call starts another, in half a second. At the end of the process it is released by itself; so is one whose
    job has failed or was interrupted. While a job of another thread runs, it is released at the end of that job.

    Examples
    --------
    >>> report = broadsheet.classify(["Stocks fell on Monday as oil rose."])
    >>> broadsheet.close()

    """
    from ..cluster.kept import KEPT

    KEPT.close()
    release()


def _embedded(workers: int | None) -> Callable[[], AbstractContextManager[Client]]:
    """A cluster of this machine's cores: `workers` processes, or one worker within this process, which is kept."""
    if workers is not None:
        from ..cluster.unguarded import end_in_a_worker

        end_in_a_worker()  # before the input is searched and planned

    def start() -> AbstractContextManager[Client]:
        from ..cluster import connect
        from ..cluster.kept import KEPT

        return KEPT.connect() if workers is None else connect("local", workers=workers)

    return start
