"""The report of a job as a value: what the job is, the totals over its rows, and how this run went."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from ..errors import in_python
from ..job.tasks import Done, Noted, SetAside, Stopped
from ..measures.accuracy import LENGTHS, Confusion, Example, confusion_of
from ..output.account import Committed
from ..source.plan.group import GroupEnd, group_name
from ..telemetry.profile import Profile
from .breakdown import Breakdown, break_down
from .growth import Growth
from .join import Frame
from .reach import Reach
from .remarks import READ_AGAIN, hints, not_read
from .results import Results
from .summary import as_html, as_text
from .tally import Tally
from .timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

DONE, SET_ASIDE, STOPPED = 0, 3, 4
EXAMPLES = 10
"""How many of the rows whose two best classes were closest are kept."""

_NAMED = 10
"""How many of the files that were left out are named."""


@dataclass(frozen=True)
class JobFacts:
    """What the job is, known before its first chunk.

    Attributes
    ----------
    model : str
        Name of the model.
    classes : tuple of str
        Names of the labels.
    output : str or None
        The output folder; None for rows in memory.
    backend : str
        Device, precision and kernels of the workers.
    precision : str
        "fp32", "fp16", "bf16" or "int8".
    chunk_rows : int
        Rows in a chunk at most.
    answers : str, optional
        The answer file that the labels are compared with.
    no_gpu : str, optional
        Why the CPU was chosen, where the device was "auto" and something on the workers points to a GPU.
    meant_for : str, optional
        The texts that the model is for, where its card says so.
    left_out : tuple of str
        Files that were not read, since their suffix belongs to no format, in folders; folders that a pattern matched.
    growth : Growth, optional
        Of an update: how the input differs from what was labelled before.
    models : tuple of (str, tuple of str)
        Name and labels of each model, in order; `model` has all names, `classes` and `meant_for` are the first one's.

    """

    model: str
    classes: tuple[str, ...]
    output: str | None
    backend: str
    precision: str
    chunk_rows: int
    answers: str | None = None
    no_gpu: str | None = None
    meant_for: str | None = None
    left_out: tuple[str, ...] = ()
    growth: Growth | None = None
    models: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class OfModel:
    """What one of a job's models says of its rows.

    Attributes
    ----------
    name : str
        The model.
    labels : Counter of str
        Written rows by label.
    unlabelled : int
        Written rows without a label.
    confusion : Confusion or None
        Rows by true and predicted class, where there is a truth column.

    """

    name: str
    labels: Counter[str]
    unlabelled: int
    confusion: Confusion | None

    @property
    def accuracy(self) -> float | None:
        """Share of rows whose label is the true class; None without a truth column."""
        return None if self.confusion is None else self.confusion.accuracy


@dataclass
class Run:
    """What this run of the job did.

    Attributes
    ----------
    timeline : Timeline
        Its spans.
    reach : Reach
        How far it is, with the chunks that tasks have committed and not returned yet.
    chunks_before : int
        Chunks that earlier runs committed.
    rows : int
        Rows that it read.
    remarks : list of str
        What would make the next run faster.
    set_aside : list of (str, str)
        Chunks without a result, each with the reason.
    stopped : bool
        Whether it was stopped early.
    seconds : float
        Its duration.
    timings : dict of str to float
        Seconds by phase: "plan", "start", "classify", "commit".
    examples : list of Example
        Rows whose two best classes were closest, if requested.
    profile : Profile or None
        The kernels of one worker, if requested.
    page : str or None
        The file of its page, if requested.

    """

    timeline: Timeline = field(default_factory=Timeline)
    reach: Reach = field(default_factory=Reach)
    chunks_before: int = 0
    rows: int = 0
    remarks: list[str] = field(default_factory=list)
    set_aside: list[tuple[str, str]] = field(default_factory=list)
    stopped: bool = False
    seconds: float = 0.0
    timings: dict[str, float] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)
    profile: Profile | None = None
    page: str | None = None


@dataclass(frozen=True, repr=False)
class JobReport:
    """The result of a job: counts, labels and timings, and the labelled rows themselves.

    Attributes
    ----------
    job : JobFacts
        What the job is: model, backend, output folder, rows in a chunk.
    tally : Tally
        Totals over its rows, those of earlier runs too: counts, labels, confusion, problems.
    run : Run
        What this run did: timings, spans, chunks set aside.
    results : Results
        The rows, in memory or in the output folder; `to_arrow`, `to_pandas`, `join` and `quarantine` read them.

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
    run: Run
    results: Results

    def __repr__(self) -> str:
        where = f" in {self.job.output!r}" if self.job.output else ""
        counts = f"{self.rows_written:,} rows labelled by {self.job.model!r}, {self.rows_quarantined:,} quarantined"
        return f"<JobReport: {counts}{where}>"

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(self)

    def committed_before(self, before: Committed) -> None:
        """Count chunks that an earlier run committed, and groups that are not read again."""
        for entry in before.chunks.values():
            self.tally.add([entry])
            self.run.reach.add(entry.chunk, entry.rows_read)
        for number, end in before.closed.items():
            if group_name(number) in before.done:
                self.close(GroupEnd(number, end.files, end.chunks, end.problems, end.unread))
        self.run.reach.begin()
        self.run.chunks_before = len(before.chunks)

    def close(self, end: GroupEnd) -> None:
        """Count what was amiss with the files of a group."""
        self.tally.close(end.problems, end.unread)
        self.run.reach.close(end)

    def add(self, event: Done | GroupEnd | Noted | SetAside | Stopped) -> None:
        """Count what this run did."""
        run = self.run
        if isinstance(event, Noted):
            run.reach.note(event.name, event.rows, event.stored)
            run.timeline.add(event.name, event.rows, event.spans, event.place)
        elif isinstance(event, GroupEnd):
            self.close(event)
        elif isinstance(event, Stopped):
            run.stopped = True
        elif isinstance(event, SetAside):
            self.results.add(event)
            run.set_aside.append((event.name, event.reason))
        else:
            self.results.add(event)
            self.tally.add([event.entry])
            run.rows += event.entry.rows_read
            run.reach.add(event.name, event.entry.rows_read)
            run.examples = sorted([*run.examples, *event.examples])[:EXAMPLES]
            if event.place is not None:
                run.timeline.add(event.name, event.entry.rows_read, event.spans, event.place)

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0 done, 3 something was set aside or not wholly readable, or an update found files
        that have changed, 4 stopped early.
        """
        if self.run.stopped:
            return STOPPED
        changed = self.job.growth is not None and self.job.growth.changed
        return SET_ASIDE if self.tally.problems or self.run.set_aside or changed else DONE

    @property
    def rows_read(self) -> int:
        """All rows, of earlier runs too: rows_written + rows_filtered + rows_quarantined."""
        return self.tally.rows_read

    @property
    def rows_written(self) -> int:
        """Labelled rows, without those that `where` left out."""
        return self.tally.rows_written

    @property
    def rows_filtered(self) -> int:
        """Labelled rows for which `where` is not true; they are not written."""
        return self.tally.rows_filtered

    @property
    def rows_quarantined(self) -> int:
        """Rows that could not be read; `quarantine()` has them."""
        return self.tally.rows_quarantined

    @property
    def backend(self) -> str:
        """Device, precision and kernels that computed the labels."""
        return self.job.backend

    @property
    def articles_per_second(self) -> float:
        """Rows of this run over the time in which chunks were read, classified and written."""
        return self.run.rows / max(self.run.timings.get("classify", 0.0), 1e-9)

    @property
    def wrong_answers(self) -> int:
        """Labels that differ from the answer file."""
        confusion = self.confusion
        return 0 if confusion is None else self.rows_written + self.rows_filtered - confusion.correct

    @property
    def confusion(self) -> Confusion | None:
        """Rows by true and predicted class; None without a truth column."""
        return self.tally.confusion

    @property
    def accuracy(self) -> float | None:
        """Share of rows whose label is the true class; None without a truth column."""
        return None if self.confusion is None else self.confusion.accuracy

    @property
    def models(self) -> tuple[OfModel, ...]:
        """What each model says, in the order in which they were named; the report's own figures are the first one's."""
        name = self.job.models[0][0] if self.job.models else self.job.model
        others = zip(self.job.models[1:], self.tally.others, strict=False)
        return (
            OfModel(name, self.tally.labels, self.tally.unlabelled, self.confusion),
            *(
                OfModel(
                    name,
                    Counter(judged.labels),
                    judged.unlabelled,
                    None if judged.confusion is None else confusion_of(judged.confusion, classes),
                )
                for (name, classes), judged in others
            ),
        )

    @property
    def not_read(self) -> list[str]:
        """What was left out or read in part: a line for each kind, with a count and the first names."""
        growth = self.job.growth.lines if self.job.growth else []
        return [*not_read(self.tally, self.job.left_out, self.run.set_aside), *growth]

    @cached_property
    def hints(self) -> list[str]:
        """Lines about how more rows may be read, or faster. Found once, so ask only when the job is over."""
        again = [READ_AGAIN] if self.tally.again and self.job.output else []
        return [*again, *hints(self.tally, self.results), *self.run.remarks]

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of this run went. Computed once, so call it only when the run is over."""
        return break_down(self.run.timeline, self.job.precision)

    def to_arrow(self) -> pa.Table:
        """Return the rows in input order: every row of the input, or with an output folder those that are labelled.

        Returns
        -------
        pyarrow.Table
            Columns: ``file``, ``row``, the id columns and kept ones, ``label``, ``score``, ``truth`` where it was
            given, those of the options ``scores`` and ``top_k``, ``n_chars``, ``truncated``, ``unknown_chars``. Without
            an output folder also ``reason``: why a row has no label; then all others but the first are null. Where a
            row could be parsed it has its id and kept columns.

        Raises
        ------
        OutputError
            If a file of the output folder cannot be read.

        """
        return self.results.rows()

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as pandas has them, with the index of the input.

        Returns
        -------
        pandas.DataFrame
            The rows and columns of `to_arrow`. Where the input is a pandas Series or DataFrame, its index; so it is for
            a Dask DataFrame without an output folder. Integers and booleans are nullable (``Int64``, ``boolean``) in
            columns with nulls.

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
        """Return the frame that was classified, with the columns that the job computed added.

        Rows are joined by position. The frame has to be the one that was classified: as many rows, the same index
        (pandas), and texts of the same lengths. Where a list or a Series was classified, it is a frame with as many
        rows.

        Parameters
        ----------
        frame : pandas.DataFrame, polars.DataFrame or pyarrow.Table
            The frame. It is not changed.
        suffix : str, optional
            Appended to the name of an added column where the frame has a column of that name.

        Returns
        -------
        pandas.DataFrame, polars.DataFrame or pyarrow.Table
            The frame with the columns of `to_arrow` from ``label`` on, of the same type and with the same index.

        Raises
        ------
        UsageError
            For another frame, for a name that the frame has already, and for a job with an output folder, whose rows
            are joined by file and row: docs/output.md shows how.

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
            Rows in input order. Columns: ``file``, ``row``, ``byte_offset`` (null where unknown), ``reason``, and
            ``head``, the first 256 bytes.

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
            Totals over the job, and the figures of this run, as ``classify --json`` prints them.

        """
        job, tally, run = self.job, self.tally, self.run
        totals: dict[str, Any] = msgspec.to_builtins(tally.totals())
        del totals["confusion"]  # it is in `truth`
        totals.pop("others", None)  # they are in `models`
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
            "stopped": run.stopped,
            "update": self.job.growth and self.job.growth.to_dict(),
            "left_out": {"count": len(job.left_out), "first": list(job.left_out[:_NAMED])},
            "set_aside": [list(item) for item in run.set_aside],
            "not_read": self.not_read,
            "hints": self.hints,
            "truth": None if self.confusion is None else _truth(self.confusion),
            "models": [
                {
                    "model": each.name,
                    "labels": dict(each.labels),
                    "truth": None if each.confusion is None else _truth(each.confusion),
                }
                for each in self.models
            ],
            "validation": job.answers and {"answers": job.answers, "wrong": self.wrong_answers},
        }


def _truth(confusion: Confusion) -> dict[str, Any]:
    return {
        "rows": confusion.rows,
        "accuracy": confusion.accuracy if confusion.rows else None,
        "standard_error": confusion.standard_error if confusion.rows else None,
        "without_truth": confusion.without_truth,
        "confusion": confusion.counts.tolist(),
    }


class Progress:
    """Receives the progress of a job. This class ignores it, but logs warnings; subclasses show it.

    Attributes
    ----------
    patience : float
        Seconds without any progress after which a warning says what the job waits for. The next follows after twice
        that time, and so on.

    """

    patience = 60.0

    def start(self, rows: int, dashboard: str) -> None:
        """Called before the first chunk. rows: of the whole job, 0 where not known. dashboard: its URL."""

    def advance(self, report: JobReport) -> None:
        """Called after each chunk."""

    def warn(self, message: str) -> None:
        """Called, in a thread of its own, for each worker that is lost, and when nothing progresses."""
        logging.getLogger("broadsheet").warning("%s", in_python(message))

    def stop(self) -> None:
        """Called at the end, also after an error."""

    def finished(self, report: JobReport) -> None:
        """Called once the job is over: warns of what was not read, and of what may be amiss."""
        for line in (*report.not_read, *report.hints):
            self.warn(line)
