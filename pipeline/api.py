"""The public calls: `classify` turns a source into labels in one job, and `label` adds labels to a frame."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Unpack

from distributed import Client

from .ecosystem.frames import function_for
from .ecosystem.resident import release
from .errors import UsageError
from .job.beginning import JobRequest, of_one_file, rooted
from .job.run import run_job
from .job.waits import told_waits
from .model.charcnn import Model
from .model.quantised import scales_of
from .model.several import forget_models, load_models
from .options import LabelKeywords, OptionKeywords, Options, takes
from .output.columns import REASON, computed_columns
from .output.folder import OutputFolder
from .output.layout import SUCCESS
from .output.object_store import place_of
from .output.select import OneFile
from .report.job import JobReport, Progress
from .report.results import Frame, refuse_taken
from .report.summary import doubt
from .storage.names import printable


@takes(OptionKeywords)
def classify(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    model: str | Path | Model | Iterable[str | Path | Model] = "ag-news",
    client: Client | Callable[[], AbstractContextManager[Client]] | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    **options: Unpack[OptionKeywords],
) -> JobReport:
    """Label every article of `source`.

    Parameters
    ----------
    source : str, pathlib.Path, Paths, iterable of str or dict, NumPy, pandas, Polars, Arrow, DuckDB or Dask object
        A path, folder, glob or fsspec URL as a string, or several as `Paths`; or an object that holds text: a list,
        array or iterator of strings, or of dicts by column; a DataFrame, Series or table of pandas, Polars or Arrow; a
        Hugging Face dataset; a DuckDB relation, a ``RecordBatchReader`` or any other object with Arrow's PyCapsule
        interface; a Dask DataFrame. Iterators and readers are streamed; a job over one cannot be resumed.
    output : str or path, optional
        A folder for Parquet parts, or the URL of one in an object store, ``s3://bucket/labels``. Or a name that ends in
        .parquet, .jsonl or .csv: then the job writes one file at its end, and all rows must fit into memory. Without an
        output, the report holds every row of the input in memory.
    model : str, path or Model, or several
        The name of a shipped model, a model file, or a loaded `Model`. Several models in a list label the texts in one
        pass; the columns of each then begin with its name, for example ``ag-news_label``.
    client : distributed.Client or callable, optional
        A Dask client, or a function that returns a context manager for one, which is entered after the job is planned.
        By default the job runs on a worker within this process, which keeps the model for the next call until
        `close`.
    progress : Progress, optional
        An object that is notified of chunks as they finish.
    stop : callable, optional
        Called before each chunk is submitted. When it returns True, the job finishes the chunks in flight and ends.
    **options
        The options in `broadsheet.pipeline.options.OptionKeywords`.

    Returns
    -------
    JobReport
        The counts, labels, timings, and the rows themselves (`to_pandas`, `to_arrow`, `join`).

    Raises
    ------
    UsageError
        For an option, column, model or folder that does not fit the job.
    SourceError
        For bad input, with ``strict=True``.
    OutputError
        For a folder that cannot be written. Like the others it is a BroadsheetError; committed chunks stay, for
        ``resume=True``.

    Examples
    --------
    >>> report = broadsheet.classify("news.csv", "labels", text_column=["title", "body"])
    >>> report.rows_written
    100

    """
    # Find the output folder, and refuse one that the job may not write to.
    settings = rooted(source, Options(**options))
    folder = one_file = None
    if output is not None:
        if printable(os.fspath(output)) != os.fspath(output):
            raise UsageError(f"{printable(os.fspath(output))}: the name of the output folder is not UTF-8")
        if one_file := OneFile.of(output, settings.endpoint):
            settings = of_one_file(one_file, source, settings)
        folder = OutputFolder(one_file.folder if one_file else place_of(output, settings.endpoint))
        with told_waits((progress or Progress()).warn):
            folder.refuse_unless(settings.resume, settings.overwrite, settings.update)
    elif settings.resume or settings.update or (settings.overwrite and not (settings.trace or settings.report)):
        raise UsageError("without an output folder there is nothing to resume, to overwrite or to update")
    # Check the client, and load the models.
    if not (client is None or isinstance(client, Client) or callable(client)):
        raise UsageError(f"client is a {type(client).__name__}: give a distributed.Client, e.g. of cluster.connect()")
    if client is not None and settings.workers is not None:
        raise UsageError("workers is for a cluster that is started here, and client has its own: leave one of them out")
    loaded = load_models(model, settings.network, settings.preparation)
    if settings.precision == "int8":
        for one in loaded.every:
            if one.has_network:
                scales_of(one)  # each worker needs them, so fail before one is started
    # Run the job, and move its rows to one file if `output` names a file.
    on = client or _embedded(settings.workers)
    request = JobRequest(source, folder, loaded, on, settings, progress or Progress(), stop or _never)
    result = run_job(request)
    if one_file and folder and folder.store.has(SUCCESS):
        result = result.in_file(one_file)
    remark = doubt(result.job, result.tally)
    if progress is None and remark:  # a progress that the caller gave shows the report at the end
        request.progress.warn(remark)
    return result


@takes(LabelKeywords)
def label(
    frame: Frame,
    *,
    suffix: str | None = None,
    model: str | Path | Model | Iterable[str | Path | Model] = "ag-news",
    client: Client | Callable[[], AbstractContextManager[Client]] | None = None,
    progress: Progress | None = None,
    **options: Unpack[LabelKeywords],
) -> Frame:
    """Label every row of a frame, and return the frame with the labels as columns.

    This is `classify` and then `JobReport.join`. Call these two if you also want the report, with the accuracy and the
    timings. If a frame does not fit in memory, use a Dask DataFrame: here it is labelled when you compute it, and
    `classify` makes a job of it.

    Parameters
    ----------
    frame : pandas.DataFrame, polars.DataFrame, pyarrow.Table, cudf.DataFrame, dataset, or Dask DataFrame or Bag
        The rows. The frame is not changed. Nothing of a Dask collection is computed yet: its partitions are labelled
        where and when Dask computes them, in each process by one engine that stays loaded. The graph holds the model's
        name and digest: give the path of a file that each worker can read. A `Model` is sent to the workers of the
        current `distributed.Client`. The method ``map`` of a `datasets.Dataset` labels it at once; an
        ``IterableDataset`` is labelled as it is read.
    suffix : str, optional
        Appended to the name of an added column if the frame has a column of that name.
    model, client, progress
        As in `classify`. `client`, `progress`, `workers` and `allow_mixed` are not for Dask collections, which Dask
        computes, and datasets; nor is `label_column` for datasets.
    **options
        The options of `classify`.

    Returns
    -------
    pandas.DataFrame, polars.DataFrame, pyarrow.Table, dask.dataframe.DataFrame, dask.bag.Bag or dataset
        For a Bag of strings, a Bag of dicts, with the string as ``text``. Otherwise an object of the type of `frame`:
        its rows in their order, with their index and all columns, followed by these columns:

        - ``label``, ``score``: the class, and its probability;
        - ``truth``, ``score_<class>``, ``top_labels`` and ``top_scores``, if they are asked for;
        - ``n_chars``, ``truncated``, ``unknown_chars``: characters of the text, whether it is longer than the model
          reads, and how many characters are outside its alphabet;
        - ``reason``: why a row has no label, for example because its text is null. The other columns are null then.

    Raises
    ------
    UsageError
        For a column, model or option that does not fit, and if the frame has a column with the name of an added one
        (and no `suffix` is given).
    SourceError
        For a bad row, with ``strict=True``.

    Examples
    --------
    >>> frame = pd.read_csv("news.csv").head(2)
    >>> broadsheet.label(frame, text_column=["title", "body"])["label"].tolist()
    ['Business', 'Sports']

    >>> articles = dask.dataframe.read_parquet("news/")
    >>> labelled = broadsheet.label(articles[articles.year == 2024], text_column="body")
    >>> labelled[labelled.label == "Sports"].to_parquet("sports/")

    """
    settings = Options(**options)
    label_here = function_for(frame)
    if label_here is not None:
        later = f"a {type(frame).__name__} is labelled as it is computed"
        for name, given in (("client", client), ("progress", progress), ("workers", settings.workers)):
            if given is not None:
                raise UsageError(f"{name} is for frames in memory: {later}")
        if settings.allow_mixed:
            raise UsageError(f"allow_mixed is for a job: {later}")
        made: Frame = label_here(frame, model, settings, suffix)
        return made
    models = load_models(model, settings.network, settings.preparation)
    added = computed_columns(settings.model_columns(models), settings.label_column is not None)
    refuse_taken(frame, [*added.names, REASON.name], suffix)
    return classify(frame, model=models.loaded, client=client, progress=progress, **options).join(frame, suffix)


def close() -> None:
    """Release what `classify` keeps in this process: a worker, and on it the model, with the memory of its GPU.

    The engines that label Dask collections and DuckDB queries in this process are released too.

    A later call starts another worker, in half a second. The worker is also released at the end of the process, and
    after a job that failed or was interrupted. While another thread runs a job, it is released at the end of that job.

    Examples
    --------
    >>> report = broadsheet.classify(["Stocks fell on Monday as oil rose."])
    >>> broadsheet.close()

    """
    from ..cluster.kept import KEPT

    KEPT.close()
    release()
    forget_models()


def _never() -> bool:
    return False


def _embedded(workers: int | None) -> Callable[[], AbstractContextManager[Client]]:
    """Return a cluster of this machine's cores: `workers` processes, or one worker in this process, which is kept."""
    if workers is not None:
        from ..cluster.unguarded import end_in_a_worker

        end_in_a_worker()  # before the job looks for the input and plans

    def start() -> AbstractContextManager[Client]:
        from ..cluster import connect
        from ..cluster.kept import KEPT

        return KEPT.connect() if workers is None else connect("local", workers=workers)

    return start
