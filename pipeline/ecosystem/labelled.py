"""Labels as columns of a frame: one call, from a frame to the same frame with its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ..api import classify
from ..errors import UsageError
from ..model.charcnn import Model
from ..model.several import load_models
from ..options import Options
from ..output.columns import REASON, computed_columns
from ..report.job import Progress
from ..report.join import Frame, refuse_taken
from .frames import function_for

if TYPE_CHECKING:
    from distributed import Client


def label(
    frame: Frame,
    *,
    text_column: str | Iterable[str] = (),
    truth_column: str | None = None,
    suffix: str | None = None,
    model: str | Path | Model | Iterable[str | Path | Model] = "ag-news",
    client: Client | Callable[[], AbstractContextManager[Client]] | None = None,
    progress: Progress | None = None,
    scores: bool = False,
    top_k: int = 1,
    abstain: float | None = None,
    windows: int | None = None,
    overlap: int = 0,
    window_score: str = "mean",
    chunk_size: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
    workers: int | None = None,
    strict: bool = False,
    allow_mixed: bool = False,
) -> Frame:
    """Label every row of a frame, and return the frame with the labels as columns.

    This is `classify` and then `JobReport.join`; call these two where you also want the report, with the accuracy and
    the timings. A frame that does not fit in memory is labelled as a Dask DataFrame, here when you compute it, or by
    `classify`, which makes a job of it.

    Parameters
    ----------
    frame : pandas.DataFrame, polars.DataFrame, pyarrow.Table, cudf.DataFrame, dataset, or Dask DataFrame or Bag
        The rows. It is not changed. Of a Dask collection nothing is computed yet: its partitions are labelled where
        and when Dask computes them, in each process by one engine that stays loaded. The graph holds the model's name
        and digest: give the path of a file that each worker can read. A `Model` is sent to the workers of the current
        `distributed.Client`. A `datasets.Dataset` is labelled at once by its method ``map``, an ``IterableDataset`` as
        it is read.
    text_column : str or iterable of str
        Column with the text, "text" by default. Several are joined by a space, and the result is stripped.
    truth_column : str, optional
        Column with the true class, by name or by number from 1; adds it by name as ``truth``.
    suffix : str, optional
        Appended to the name of an added column where the frame has a column of that name.
    model, client, progress, scores, top_k, abstain, windows, overlap, window_score, chunk_size, device, precision, \
kernels, workers, strict, allow_mixed
        As `classify` takes them. `client`, `progress`, `workers` and `allow_mixed` are not for Dask
        collections, which Dask computes, and datasets; nor is `truth_column` for datasets.

    Returns
    -------
    pandas.DataFrame, polars.DataFrame, pyarrow.Table, dask.dataframe.DataFrame, dask.bag.Bag or dataset
        Of a Bag of strings, a Bag of dicts, with the string as ``text``. Else of the type of `frame`: its rows in their
        order, with their index and all columns, and after these

        - ``label``, ``score``: the class, and its probability;
        - ``truth``, ``score_<class>``, ``top_labels`` and ``top_scores``, where they are asked for;
        - ``n_chars``, ``truncated``, ``unknown_chars``: characters of the text, whether it is longer than the model
          reads, and how many characters are outside its alphabet;
        - ``reason``: why a row has no label, for example since its text is null. The others are null then.

    Raises
    ------
    UsageError
        For a column, model or option that does not fit, and where the frame has a column of the same name as one that
        is added (and no `suffix` is given).
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
    options = Options(
        text_column=text_column,
        truth_column=truth_column,
        scores=scores,
        top_k=top_k,
        abstain=abstain,
        windows=windows,
        overlap=overlap,
        window_score=window_score,
        chunk_size=chunk_size,
        device=device,
        precision=precision,
        kernels=kernels,
        strict=strict,
    )
    label_here = function_for(frame)
    if label_here is not None:
        later = f"a {type(frame).__name__} is labelled as it is computed"
        for name, given in (("client", client), ("progress", progress), ("workers", workers)):
            if given is not None:
                raise UsageError(f"{name} is for frames in memory: {later}")
        if allow_mixed:
            raise UsageError(f"allow_mixed is for a job: {later}")
        made: Frame = label_here(frame, model, options, suffix)
        return made
    models = load_models(model)
    added = computed_columns(options.model_columns(models), truth_column is not None)
    refuse_taken(frame, [*added.names, REASON.name], suffix)
    report = classify(
        frame,
        text_column=text_column,
        truth_column=truth_column,
        model=models.every,
        client=client,
        progress=progress,
        scores=scores,
        top_k=top_k,
        abstain=abstain,
        windows=windows,
        overlap=overlap,
        window_score=window_score,
        chunk_size=chunk_size,
        device=device,
        precision=precision,
        kernels=kernels,
        workers=workers,
        strict=strict,
        allow_mixed=allow_mixed,
    )
    return report.join(frame, suffix)
