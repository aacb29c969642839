"""A job's result as a value: totals, timings, problems, and the labelled rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.accuracy import LENGTHS, Confusion, Example, confusion_of
from pipeline.errors import BroadsheetError
from pipeline.output.layout import PARTS, QUARANTINE
from pipeline.profiling.measure import Profile
from pipeline.report.breakdown import Breakdown, break_down
from pipeline.report.timeline import Timeline
from pipeline.source.chunk import QUARANTINE_SCHEMA
from pipeline.tasks import Done

if TYPE_CHECKING:
    import pandas as pd

DONE, SET_ASIDE, STOPPED = 0, 3, 4
EXAMPLES = 10
"""Rows shown whose two best classes were closest."""


@dataclass
class JobReport:
    """What came of a job.

    rows_read = rows_written + rows_quarantined. labels: rows by label. chars, truncated, unknown_chars: sums of the
    output's columns over written rows (characters, rows, characters). problems: (file, message) of files not wholly
    readable or not like the first. answers: the file of answers that the labels were checked against. set_aside:
    (chunk, reason) of chunks without a result. stopped: it was told to end early. confusion: with a truth
    column. seconds: of this run; timings: its phases in seconds; rows_this_run: without what was committed before.
    lengths: written rows by class of `metrics.LENGTHS`. timeline: the spans of this run. examples: where asked for, the
    rows of this run whose two best classes were closest. profile: where asked for, of one worker's kernels. no_gpu: why
    the CPU was taken, where that was left open.
    """

    model: str
    classes: tuple[str, ...]
    output: str | None
    schema: pa.Schema
    answers: str | None = None
    backend: str = ""
    precision: str = ""
    chunk_rows: int = 0
    chunks: int = 0
    chunks_before: int = 0
    rows_read: int = 0
    rows_written: int = 0
    rows_quarantined: int = 0
    rows_this_run: int = 0
    chars: int = 0
    truncated: int = 0
    unknown_chars: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[str, str]] = field(default_factory=list)
    set_aside: list[tuple[str, str]] = field(default_factory=list)
    stopped: bool = False
    confusion: Confusion | None = None
    seconds: float = 0.0
    timings: dict[str, float] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=lambda: [0] * len(LENGTHS))
    examples: list[Example] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline, repr=False)
    profile: Profile | None = None
    no_gpu: str | None = None
    _tables: dict[str, tuple[pa.Table, pa.Table]] = field(default_factory=dict, repr=False)

    def add_entry(self, entry: dict[str, Any]) -> None:
        """Count a committed chunk by its manifest entry."""
        self.chunks += 1
        for name in ("rows_read", "rows_written", "rows_quarantined", "chars", "truncated", "unknown_chars"):
            setattr(self, name, getattr(self, name) + entry[name])
        self.labels.update(entry["labels"])
        self.lengths = [sum(pair) for pair in zip(self.lengths, entry["lengths"], strict=True)]
        self.problems += [(entry["sources"][0][0], message) for message in entry["problems"]]
        if entry["confusion"] is not None:
            self.confusion = confusion_of(entry["confusion"], self.classes, self.confusion)

    def add_done(self, done: Done) -> None:
        """Count a chunk of this run."""
        self.add_entry(done.entry)
        self.rows_this_run += done.entry["rows_read"]
        self.timeline.add(done.name, done.entry["rows_read"], done.spans, done.place)
        self.examples = sorted([*self.examples, *done.examples])[:EXAMPLES]
        if done.table is not None and done.quarantine is not None:
            self._tables[done.name] = (done.table, done.quarantine)

    def check_rows(self) -> None:
        """Raise BroadsheetError unless every row that was read is written or quarantined."""
        if self.rows_read != self.rows_written + self.rows_quarantined:
            raise BroadsheetError(
                f"{self.rows_read:,} rows were read, but {self.rows_written:,} written and "
                f"{self.rows_quarantined:,} quarantined: please report this"
            )

    @property
    def exit_code(self) -> int:
        if self.stopped:
            return STOPPED
        return SET_ASIDE if self.problems or self.set_aside else DONE

    @property
    def articles_per_second(self) -> float:
        """Rows of this run over the time in which chunks were read, classified and written."""
        return self.rows_this_run / max(self.timings.get("classify", 0.0), 1e-9)

    @property
    def wrong_answers(self) -> int:
        """Labels that are not those of the answer file."""
        return 0 if self.confusion is None else self.rows_written - self.confusion.correct

    @property
    def accuracy(self) -> float | None:
        """Share of rows whose label is their truth; None without a truth column."""
        return None if self.confusion is None else self.confusion.accuracy

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of this run went; to be asked for when it is over."""
        return break_down(self.timeline, self.precision)

    def to_arrow(self) -> pa.Table:
        """The labelled rows in input order, read from the output folder if there is one."""
        return self._rows(0, PARTS, self.schema)

    def quarantine(self) -> pa.Table:
        """The rows that could not be read: file, row, byte_offset, reason, head."""
        return self._rows(1, QUARANTINE, QUARANTINE_SCHEMA)

    def first_quarantined(self, count: int) -> list[dict[str, Any]]:
        """The first `count` rows that could not be read, without reading them all."""
        found: list[dict[str, Any]] = []
        for table in self._pieces(1, QUARANTINE):
            found += table.slice(0, count - len(found)).to_pylist()
            if len(found) == count:
                break
        return found

    def to_pandas(self) -> pd.DataFrame:
        """The labelled rows in input order, as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def _rows(self, which: int, folder: str, schema: pa.Schema) -> pa.Table:
        return pa.concat_tables([schema.empty_table(), *self._pieces(which, folder)])

    def _pieces(self, which: int, folder: str) -> Iterator[pa.Table]:
        if self.output is None:
            for _, tables in sorted(self._tables.items()):
                yield tables[which]
        else:
            for path in sorted((Path(self.output) / folder).glob("[!.]*.parquet")):
                yield pq.ParquetFile(path).read(use_threads=False)

    def totals(self) -> dict[str, Any]:
        """What is the same however often the job was interrupted: the manifest's last word."""
        names = ("chunks", "rows_read", "rows_written", "rows_quarantined", "chars", "truncated", "unknown_chars")
        return {name: getattr(self, name) for name in names} | {
            "labels": {name: self.labels[name] for name in self.classes if self.labels[name]},
            "problems": sorted([list(problem) for problem in self.problems]),
        }

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it: totals, and what this run was."""
        truth = None
        if self.confusion is not None:
            truth = {
                "rows": self.confusion.rows,
                "accuracy": self.confusion.accuracy if self.confusion.rows else None,
                "standard_error": self.confusion.standard_error if self.confusion.rows else None,
                "without_truth": self.confusion.without_truth,
                "confusion": self.confusion.counts.tolist(),
            }
        return self.totals() | {
            "model": self.model,
            "backend": self.backend,
            "no_gpu": self.no_gpu,
            "output": self.output,
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 3),
            "timings": {name: round(seconds, 3) for name, seconds in self.timings.items()},
            "breakdown": self.breakdown.to_dict(),
            "profile": self.profile and self.profile.to_dict(),
            "workers": self.timeline.places_to_json(),
            "lengths": dict(zip(map(str, LENGTHS), self.lengths, strict=True)),
            "articles_per_second": round(self.articles_per_second, 1),
            "chunk_rows": self.chunk_rows,
            "chunks_before": self.chunks_before,
            "rows_this_run": self.rows_this_run,
            "stopped": self.stopped,
            "set_aside": [list(item) for item in self.set_aside],
            "truth": truth,
            "validation": self.answers and {"answers": self.answers, "wrong": self.wrong_answers},
        }


class Progress:
    """Is told how a job goes; this one keeps it to itself."""

    def start(self, rows: int, dashboard: str) -> None:
        """Chunks are about to run: `rows` in all (0: not known), `dashboard` the Dask page to watch."""

    def advance(self, report: JobReport) -> None:
        """One more chunk is done."""

    def stop(self) -> None:
        """No more is to come."""
