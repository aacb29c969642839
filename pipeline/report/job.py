"""Defines `JobReport`: what the job is, the totals over its rows, and how this run went."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from ..errors import counted, first_of, in_python
from ..labelling.counts import LENGTHS, THRESHOLDS, rows_above
from ..measures.accuracy import Confusion
from ..telemetry.read_by import BY_GPU, BY_HOST
from .breakdown import Breakdown, break_down
from .facts import JobFacts, ModelFigures, RunFacts, models_of
from .results import Frame, Results
from .summary import as_html, as_text, hints, not_read, repair_line, too_many_quarantined, too_many_unread
from .tally import Tally

if TYPE_CHECKING:
    import pandas as pd

    from ..output.select import OneFile

DONE, SET_ASIDE, STOPPED = 0, 3, 4
_NAMED = 10
"""How many of the skipped files are named."""


@dataclass(frozen=True, repr=False)
class JobReport:
    """The result of a job: counts, labels and timings, and the labelled rows themselves.

    Attributes
    ----------
    job : JobFacts
        What the job is: model, backend, output folder, rows in a chunk.
    tally : Tally
        The totals over the job's rows, including those of earlier runs: counts, labels, confusion, problems.
    run : RunFacts
        What this run did: timings, spans, chunks set aside.
    results : Results
        The rows, in memory or in the output folder. `to_arrow`, `to_pandas`, `join` and `quarantine` read them.

    Examples
    --------
    >>> report = broadsheet.classify(["Stocks fell on Monday as oil rose."])
    >>> report.rows_written
    1
    >>> report.to_pandas()["label"][0]
    'Business'

    """

    job: JobFacts
    tally: Tally
    run: RunFacts
    results: Results

    def __repr__(self) -> str:
        where = f" in {self.job.output!r}" if self.job.output else ""
        rows = f"{counted(self.rows_written, 'row')} labelled by {self.job.model!r}"
        return f"<JobReport: {rows}, {self.rows_quarantined:,} quarantined{where}>"

    def __str__(self) -> str:
        return as_text(self.job, self.tally, self.run)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return as_html(self.job, self.tally, self.run)

    def in_file(self, file: OneFile) -> JobReport:
        """Write the rows to one file, and return the report of the job with this file as its output.

        The folder is kept if it says why some rows are not in the file.
        """
        keep_folder = bool(self.rows_quarantined or self.tally.problems or self.exit_code)
        self.results.write(file, keep_folder)
        if keep_folder:
            self.run.remarks.append(f"what is not in {file.place}, and why, is in the folder {file.folder}")
        return replace(self, job=replace(self.job, output=str(file.place), repair_flags="--overwrite"))

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 done, 3 some of the input has no labels, 4 stopped early.

        With 3 the output has ``_SUCCESS`` if everything that can be read is done: more files could not be read than
        `max_unread` allows, more rows are in quarantine than `max_quarantined` allows, or an update found files that
        have changed. The output has no ``_SUCCESS`` if chunks were set aside, which are left for another run.
        """
        if self.run.stopped:
            return STOPPED
        changed = self.job.growth is not None and self.job.growth.changed
        return SET_ASIDE if self.run.set_aside or changed or self.beyond_limits else DONE

    @property
    def beyond_limits(self) -> list[str]:
        """A line for each limit of the user that unread files or quarantined rows exceed. The exit code is then 3."""
        unread = {path for path, _ in self.tally.problems}
        found = (
            too_many_unread(len(unread), max(self.job.files, len(unread)), self.job.max_unread),
            too_many_quarantined(self.rows_quarantined, self.rows_read, self.job.max_quarantined),
        )
        return [line for line in found if line]

    @property
    def rows_read(self) -> int:
        """The number of all rows, including those of earlier runs: rows_written + rows_filtered + rows_quarantined."""
        return self.tally.rows_read

    @property
    def rows_written(self) -> int:
        """The number of labelled rows that are written, without those that `where` filtered."""
        return self.tally.rows_written

    @property
    def rows_filtered(self) -> int:
        """The number of labelled rows that are not written, because `where` is not true for them."""
        return self.tally.rows_filtered

    @property
    def rows_quarantined(self) -> int:
        """The number of rows that could not be read. `quarantine()` returns them."""
        return self.tally.rows_quarantined

    @property
    def backend(self) -> str:
        """The device, the precision and the kernels that computed the labels."""
        return self.job.backend

    @property
    def articles_per_second(self) -> float:
        """The rows of this run divided by the time in which chunks were read, classified and written."""
        return self.run.articles_per_second

    @property
    def wrong_answers(self) -> int:
        """The number of labels that differ from the answer file."""
        confusion = self.confusion
        return 0 if confusion is None else self.rows_written + self.rows_filtered - confusion.correct

    @property
    def confusion(self) -> Confusion | None:
        """The number of rows by true and predicted class; None without a truth column."""
        return self.tally.confusion

    @property
    def accuracy(self) -> float | None:
        """The share of rows whose label is the true class; None without a truth column."""
        return None if self.confusion is None else self.confusion.accuracy

    @property
    def models(self) -> tuple[ModelFigures, ...]:
        """The figures of each model, in the order in which the models were named.

        The figures of the report itself are those of the first model.
        """
        return models_of(self.job, self.tally)

    @property
    def not_read(self) -> list[str]:
        """A line for each kind of input that was skipped or read in part, with a count and the first names."""
        growth = self.job.growth.lines if self.job.growth else []
        return [*not_read(self.tally, self.run.set_aside), *growth]

    @cached_property
    def hints(self) -> list[str]:
        """Advice on how to read more rows, or to read faster. It is computed once, so use it only after the job."""
        again = [repair_line(self.tally, self.job.repair_flags)] if self.tally.problems and self.job.output else []
        notes = [f"{first_of([*sorted(paths)])}: {note}" for note, paths in self.run.notes.items()]
        return [*again, *self.beyond_limits, *hints(self.job, self.tally, self.results), *notes, *self.run.remarks]

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of this run went. It is computed once, so use it only after the run."""
        job, asked_share = self.job, self.tally.asked_share
        return break_down(self.run.timeline, job.precision, job.chunk_rows, asked_share, job.second)

    def to_arrow(self) -> pa.Table:
        """Return the rows in input order: every row of the input, or with an output folder the labelled rows.

        Returns
        -------
        pyarrow.Table
            The columns are ``file``, ``row``, the id columns and the kept columns, ``label``, ``score``, ``truth`` if
            it was given, the columns of the options ``scores`` and ``top_k``, ``n_chars``, ``truncated`` and
            ``unknown_chars``. Without an output folder there is also ``reason``, which says why a row has no label. In
            such a row all columns but ``file``, ``row`` and ``reason`` are null, except for the id columns and the
            kept columns if the row could be parsed.

        Raises
        ------
        OutputError
            If a file of the output folder cannot be read.

        """
        return self.results.rows()

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame, with the index of the input.

        Returns
        -------
        pandas.DataFrame
            The rows and columns of `to_arrow`. If the input is a pandas Series or DataFrame, or a Dask DataFrame
            without an output folder, the result has its index. Columns of integers or booleans that contain nulls have
            a nullable type (``Int64``, ``boolean``).

        Raises
        ------
        OutputError
            If a file of the output folder cannot be read.

        Examples
        --------
        >>> frame["label"] = broadsheet.classify(frame).to_pandas()["label"]

        """
        return self.results.frame()

    def join(self, frame: Frame, suffix: str | None = None) -> Frame:
        """Add the columns that the job computed to the frame that was classified, and return the result.

        Rows are joined by position. The frame must be the one that was classified: it must have as many rows, the same
        index (pandas), and the same texts. If a list or a Series was classified, give a frame with as many rows.

        Parameters
        ----------
        frame : pandas.DataFrame, polars.DataFrame or pyarrow.Table
            The frame. It is not changed.
        suffix : str, optional
            A suffix for the name of an added column if the frame has a column of that name.

        Returns
        -------
        pandas.DataFrame, polars.DataFrame or pyarrow.Table
            The frame with the columns of `to_arrow` from ``label`` on, of the same type and with the same index.

        Raises
        ------
        UsageError
            If the frame is another one or has a column of the same name already, and for a job with an output folder.
            Join the rows of such a job by file and row, as docs/output.md shows.

        Examples
        --------
        >>> frame = broadsheet.classify(frame, text_column="body").join(frame)

        """
        return self.results.join(frame, suffix)

    def quarantine(self) -> pa.Table:
        """Return the rows that could not be read.

        Returns
        -------
        pyarrow.Table
            The rows in input order. The columns are ``file``, ``row``, ``byte_offset`` (null if unknown), ``reason``,
            and ``head``, the first 256 bytes of the row.

        Raises
        ------
        OutputError
            If a file of the output folder cannot be read.

        """
        return self.results.quarantined()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, without the rows.

        Returns
        -------
        dict
            The totals over the job and the figures of this run, as ``classify --json`` prints them.

        """
        job, tally, run = self.job, self.tally, self.run
        # Take the totals without the figures that other keys have.
        totals: dict[str, Any] = msgspec.to_builtins(tally.totals)
        del totals["confusion"]  # `truth` has it
        for name in ("others", "scores", "right", "learned"):  # `models` has them
            totals.pop(name, None)
        # Add the figures of this run, and those of each model.
        return totals | {
            "model": job.model,
            "backend": job.backend,
            "no_gpu": job.no_gpu,
            "output": job.output,
            "exit_code": self.exit_code,
            "seconds": round(run.seconds, 3),
            "timings": {name: round(seconds, 3) for name, seconds in run.timings.items()},
            "breakdown": self.breakdown.to_dict(),
            "profile": run.profile and run.profile.to_dict(),
            "workers": run.timeline.places_to_json(),
            "lengths": dict(zip(map(str, LENGTHS), tally.lengths, strict=True)),
            "articles_per_second": round(self.articles_per_second, 1),
            "chunk_rows": job.chunk_rows,
            "chunks_before": run.chunks_before,
            "rows_this_run": run.rows,
            "read_again_bytes": run.read_again,
            "read_by": _read_by(run.read_by),
            "stopped": run.stopped,
            "parts": run.compacted and asdict(run.compacted),
            "update": self.job.growth and asdict(self.job.growth),
            "left_out": _left_out(tally.left_out),
            "set_aside": [list(item) for item in run.set_aside],
            "not_read": self.not_read,
            "problems_file": run.problems,
            "hints": self.hints,
            "truth": None if self.confusion is None else _truth(self.confusion),
            "models": [
                {
                    "model": model.name,
                    "labels": dict(model.labels),
                    "kept": dict(zip(map(str, THRESHOLDS), rows_above(model.bins), strict=True))
                    if model.bins
                    else None,
                    "accuracy_kept": _by_threshold(model.accuracy_kept),
                    "accuracy_kept_intervals": _by_threshold(model.intervals_kept),
                    "truth": None if model.confusion is None else _truth(model.confusion),
                    "learned_rows": None if model.overlap is None else model.overlap.to_dict(),
                }
                for model in self.models
            ],
            "validation": job.answers and {"answers": job.answers, "wrong": self.wrong_answers},
        }


def _by_threshold(values: Sequence[object]) -> dict[str, object] | None:
    """Return values by the threshold of `counts.THRESHOLDS` that each belongs to; None if there are no values."""
    return dict(zip(map(str, THRESHOLDS), values, strict=True)) if values else None


def _left_out(skipped: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return how many files were skipped, in all and by reason, and the first of them."""
    reasons = Counter(reason for _, reason in skipped)
    return {"count": len(skipped), "first": [path for path, _ in skipped[:_NAMED]], "reasons": dict(reasons)}


def _read_by(records: Counter[str]) -> dict[str, Any] | None:
    """Return how many records a GPU has read, and how many the host has, by reason; None if no GPU has read any."""
    host = {reason: records[reason] for reason in BY_HOST if records[reason]}
    return {"gpu": records[BY_GPU], "host": host} if records[BY_GPU] else None


def _truth(confusion: Confusion) -> dict[str, Any]:
    return {
        "rows": confusion.rows,
        "accuracy": confusion.accuracy if confusion.rows else None,
        "standard_error": confusion.standard_error if confusion.rows else None,
        "accuracy_interval": list(confusion.interval) if confusion.rows else None,
        "without_truth": confusion.without_truth,
        "confusion": confusion.counts.tolist(),
    }


class Progress:
    """Receives the progress of a job. This class only logs warnings; subclasses show the progress.

    The order of calls: ``start -> advance and wait (many) -> stop -> finished``. Calls of `phase` and `warn` may come
    before and after these.

    Attributes
    ----------
    patience : float
        The seconds without any progress after which a warning says what the job waits for. The next warning follows
        after twice that time, and so on.
    began : float or None
        The time at which the command began, by `time.perf_counter`, from which the report counts; None to count from
        the call of `classify`.

    """

    patience = 60.0
    began: float | None = None

    def phase(self, what: str) -> None:
        """Called when a step of the job begins that may take long, such as listing the input. what: the step."""

    def start(self, rows: int, dashboard: str) -> None:
        """Called before the first chunk.

        rows: the number of rows of the whole job, 0 if it is unknown. dashboard: the URL of the dashboard.
        """

    def advance(self, report: JobReport) -> None:
        """Called after each chunk."""

    def wait(self, report: JobReport) -> None:
        """Called about ten times a second while no chunk ends."""

    def warn(self, message: str) -> None:
        """Called in a separate thread for each worker that is lost, and when nothing progresses."""
        logging.getLogger("broadsheet").warning("%s", in_python(message))

    def stop(self) -> None:
        """Called at the end of the job, also after an error."""

    def finished(self, report: JobReport) -> None:
        """Called after the job. Warns of input that was not read, and of what may be wrong with the input."""
        for line in (*report.not_read, *report.hints):
            self.warn(line)
