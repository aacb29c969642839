"""A job's result as a value: what it was, what its rows came to, and how this run went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from pipeline.accuracy import LENGTHS, Confusion, Example
from pipeline.output.record import Entry
from pipeline.profiling.measure import Profile
from pipeline.report.breakdown import Breakdown, break_down
from pipeline.report.results import Results
from pipeline.report.tally import Tally
from pipeline.report.timeline import Timeline
from pipeline.tasks import Done, SetAside

if TYPE_CHECKING:
    import pandas as pd

DONE, SET_ASIDE, STOPPED = 0, 3, 4
EXAMPLES = 10
"""Rows shown whose two best classes were closest."""


@dataclass(frozen=True)
class JobFacts:
    """What the job is, known before its first chunk.

    output: the folder, None for rows in memory. backend: what its workers compute with, in words. answers: the file
    that the labels are checked against. no_gpu: why the CPU was taken, where that was left open.
    """

    model: str
    classes: tuple[str, ...]
    output: str | None
    backend: str
    precision: str
    chunk_rows: int
    answers: str | None = None
    no_gpu: str | None = None


@dataclass
class Run:
    """What this run did.

    chunks_before: committed before it began. rows: read by it. set_aside: (chunk, reason) of chunks without a result.
    stopped: it was told to end early. timings: its phases, in seconds. timeline: its spans. examples: where asked for,
    its rows whose two best classes were closest. profile: where asked for, of one worker's kernels.
    """

    timeline: Timeline = field(default_factory=Timeline)
    chunks_before: int = 0
    rows: int = 0
    set_aside: list[tuple[str, str]] = field(default_factory=list)
    stopped: bool = False
    seconds: float = 0.0
    timings: dict[str, float] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)
    profile: Profile | None = None


@dataclass(frozen=True)
class JobReport:
    """What came of a job, made from what happened to its chunks.

    Attributes
    ----------
    job : JobFacts
        What the job is: model, backend, output folder, rows in a chunk.
    tally : Tally
        What its rows came to: counts, labels, confusion, problems.
    run : Run
        What this run did: timings, spans, chunks set aside.

    """

    job: JobFacts
    tally: Tally
    run: Run
    results: Results = field(repr=False)

    def committed_before(self, entries: Iterable[Entry]) -> None:
        """Count chunks that an earlier run committed."""
        self.tally.add(entries)
        self.run.chunks_before = self.tally.chunks

    def add(self, event: Done | SetAside) -> None:
        """Count a chunk of this run."""
        run = self.run
        if isinstance(event, SetAside):
            run.set_aside.append((event.name, event.reason))
            return
        self.tally.add([event.entry])
        self.results.add(event)
        run.rows += event.entry.rows_read
        run.timeline.add(event.name, event.entry.rows_read, event.spans, event.place)
        run.examples = sorted([*run.examples, *event.examples])[:EXAMPLES]

    @property
    def exit_code(self) -> int:
        """What the command ends with: 0 done, 3 something was set aside or not wholly readable, 4 stopped early."""
        if self.run.stopped:
            return STOPPED
        return SET_ASIDE if self.tally.problems or self.run.set_aside else DONE

    @property
    def rows_read(self) -> int:
        """All rows, of earlier runs too: rows_written + rows_quarantined."""
        return self.tally.rows_read

    @property
    def rows_written(self) -> int:
        """Labelled rows."""
        return self.tally.rows_written

    @property
    def rows_quarantined(self) -> int:
        """Rows that could not be read; `quarantine()` has them."""
        return self.tally.rows_quarantined

    @property
    def backend(self) -> str:
        """What computed the labels, in words."""
        return self.job.backend

    @property
    def articles_per_second(self) -> float:
        """Rows of this run over the time in which chunks were read, classified and written."""
        return self.run.rows / max(self.run.timings.get("classify", 0.0), 1e-9)

    @property
    def wrong_answers(self) -> int:
        """Labels that are not those of the answer file."""
        confusion = self.confusion
        return 0 if confusion is None else self.rows_written - confusion.correct

    @property
    def confusion(self) -> Confusion | None:
        """True classes by predicted ones; None without a truth column."""
        return self.tally.confusion

    @property
    def accuracy(self) -> float | None:
        """Share of rows whose label is their truth; None without a truth column."""
        return None if self.confusion is None else self.confusion.accuracy

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of this run went; to be asked for when it is over."""
        return break_down(self.run.timeline, self.job.precision)

    def to_arrow(self) -> pa.Table:
        """The labelled rows in input order, read from the output folder if there is one."""
        return self.results.labelled()

    def to_pandas(self) -> pd.DataFrame:
        """The labelled rows in input order, as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def quarantine(self) -> pa.Table:
        """The rows that could not be read: file, row, byte_offset, reason, head."""
        return self.results.quarantined()

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it: totals, and what this run was."""
        job, tally, run = self.job, self.tally, self.run
        totals: dict[str, Any] = msgspec.to_builtins(tally.totals())
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
            "set_aside": [list(item) for item in run.set_aside],
            "truth": None if self.confusion is None else _truth(self.confusion),
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
    """Is notified of how a job goes; this one does nothing with it."""

    def start(self, rows: int, dashboard: str) -> None:
        """Chunks are about to run: `rows` in all (0: not known), `dashboard` the Dask page to watch."""

    def advance(self, report: JobReport) -> None:
        """One more chunk is done."""

    def stop(self) -> None:
        """No more is to come."""
