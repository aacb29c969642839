"""The options of a job: how it reads, computes and writes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.errors import UsageError
from pipeline.model.charcnn import Model
from pipeline.output.record import Settings
from pipeline.report.explain import refuse_unwritable
from pipeline.source.chunk import Selection
from pipeline.source.opening import read_local, reason
from pipeline.source.search import printable


@dataclass(frozen=True)
class Options:
    """How a job reads, computes and writes; the fields are the keyword arguments of `classify`.

    Attributes
    ----------
    text_column : str or iterable of str
        Column with the text, "text" by default. Several are joined by a space, and the result is stripped.
    id_column : str or iterable of str
        Columns to copy to the output.
    columns : iterable of str, optional
        Column names of a CSV or TSV without a header line.
    truth_column : str, optional
        Column with the true class, by name or by number from 1. The report then has the accuracy.
    truth : str or path, optional
        Answer file of a one-hot input: float32 class indices from 0, one for each article.
    scores : bool
        Write the probability of every class, in columns ``score_<class>``.
    top_k : int
        Write the `top_k` most probable labels and their scores, in columns ``top_labels`` and ``top_scores``, where it
        is above 1.
    chunk_size : int, optional
        Rows in a chunk at most. Default: 512 on a CPU, 131,072 on a GPU.
    device : str
        "auto" (a GPU where one works, else the CPU), "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16" or "bf16". A CPU computes in fp32 only.
    kernels : str
        "auto", or a generation of CUDA kernels: "simt", "sm80" or "sm90".
    workers : int, optional
        Processes of the cluster that `classify` starts where it gets no client. A script that sets this needs the
        ``if __name__ == "__main__":`` guard of multiprocessing. Default: one worker within this process.
    resume : bool
        Continue an interrupted job in its output folder.
    overwrite : bool
        Replace the output of an earlier job.
    strict : bool
        Stop at the first row that cannot be read, or file with a problem.
    hash : str
        "edges" (the first and last 64 KiB) or "full": how much of each input file is hashed to identify it.
    allow_mixed : bool
        Accept workers that differ in what decides the bits of a score, for example in GPU architecture.
    profile : bool
        Record a span for every kernel, and measure each kernel by itself at the end.
    trace : str or path, optional
        File for the timeline as JSON, which ui.perfetto.dev opens.
    report : str or path, optional
        File for a report on the job as one HTML page. Needs Matplotlib.

    Raises
    ------
    UsageError
        For a value out of range, a column named twice, or a file that cannot be written.

    Examples
    --------
    >>> Options(text_column=["title", "body"], top_k=3).text_column
    ('title', 'body')

    """

    text_column: str | Iterable[str] = ()
    id_column: str | Iterable[str] = ()
    columns: Iterable[str] | None = None
    truth_column: str | None = None
    truth: str | os.PathLike[str] | None = None
    scores: bool = False
    top_k: int = 1
    chunk_size: int | None = None
    device: str = "auto"
    precision: str = "auto"
    kernels: str = "auto"
    workers: int | None = None
    resume: bool = False
    overwrite: bool = False
    strict: bool = False
    hash: str = "edges"
    allow_mixed: bool = False
    profile: bool = False
    trace: str | os.PathLike[str] | None = None
    report: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "chunk_size", "workers"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1) and (value is not None or name == "top_k"):
                raise UsageError(f"{name} is {value!r}, it must be an integer of at least 1")
        for name in ("text_column", "id_column", "columns"):
            if getattr(self, name) is not None:
                given = _names(getattr(self, name))
                object.__setattr__(self, name, given)
                if len(set(given)) < len(given):
                    raise UsageError(f"{name} names {next(n for n in given if given.count(n) > 1)!r} twice")
                _refuse_not_utf8(name, *given)
        _refuse_not_utf8("truth_column", self.truth_column or "")
        _refuse_not_utf8("truth", os.fspath(self.truth or ""))
        refuse_unwritable(self.trace, self.report)
        if self.hash not in ("edges", "full"):
            raise UsageError(f"hash {self.hash!r}: choose edges or full")

    def selection(self, model: Model) -> Selection:
        return Selection(
            text=_names(self.text_column),
            ids=_names(self.id_column),
            truth=self.truth_column,
            header=None if self.columns is None else tuple(self.columns),
            classes=model.classes,
            answers=None if self.truth is None else os.path.abspath(self.truth),
        )

    def settings(self, chunk_rows: int) -> Settings:
        """The options that change a byte of the output."""
        return Settings(
            text_columns=_names(self.text_column),
            id_columns=_names(self.id_column),
            columns=None if self.columns is None else tuple(self.columns),
            truth_column=self.truth_column,
            truth=None if self.truth is None else _digest(self.truth),
            scores=self.scores,
            top_k=self.top_k,
            chunk_size=chunk_rows,
            hash=self.hash,
        )


def _refuse_not_utf8(option: str, *values: str) -> None:
    for value in values:
        if printable(value) != value:
            raise UsageError(f"{option} is {value!r}, which is not UTF-8")


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _digest(path: str | os.PathLike[str]) -> str:
    try:
        return hashlib.sha256(read_local(os.fspath(path))).hexdigest()
    except OSError as error:
        raise UsageError(f"the answer file {path} cannot be read: {reason(error)}") from error
