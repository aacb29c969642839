"""Holds the facts of a job and of one run of it: its settings, how its input has grown, and each model's figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..errors import counted, first_of
from ..labelling.counts import rows_above
from ..measures.accuracy import Confusion
from ..measures.examples import Shown
from ..measures.intervals import Interval, wilson
from ..measures.overlap import Overlap
from ..output.compact import Compacted
from ..telemetry.profile import Profile
from .tally import Reach, Tally, confusion_in, overlap_in
from .timeline import Timeline

UPDATE_CHANGED = "--update --changed"
"""The flags that label only the files that have changed, if a job can be updated."""


@dataclass(frozen=True)
class Growth:
    """The files of the input compared with those that were labelled before.

    Attributes
    ----------
    new : int
        The number of files that this update labels.
    before : int
        The number of files that were labelled before this update.
    changed : tuple of str
        Files with another size, time or hash than when they were labelled. They are not labelled again.
    gone : tuple of str
        Files that are no longer there. Their labels stay.
    later : int
        The number of files that are new since the continued job or update began. The next update labels them.
    again : int
        The number of changed files that this update labels again.
    removed : int
        The number of files that are gone and whose labels this update removes.
    put_off : int
        The number of files that have changed or are gone since the continued job began. An update that follows at once
        labels them.

    """

    new: int
    before: int
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    later: int = 0
    again: int = 0
    removed: int = 0
    put_off: int = 0

    def __str__(self) -> str:
        parts = [counted(self.new, "new file")] if self.new else []
        parts += [f"{count:,} {what}" for count, what in ((self.again, "changed"), (self.removed, "removed")) if count]
        if (self.later or self.put_off) and not parts:
            return ""
        return f"{', '.join(parts) or 'nothing new'}; {counted(self.before, 'file')} labelled before"

    @property
    def lines(self) -> list[str]:
        """A line for each kind of difference: changed, gone, new since the job began, and put off."""
        lines = []
        if self.changed:
            verb, their, them = ("has", "its", "it") if len(self.changed) == 1 else ("have", "their", "them")
            lines.append(
                f"{counted(len(self.changed), 'file')} {verb} changed since {their} rows were labelled; {their} labels "
                f"are the old ones: {first_of(self.changed)}. To label {them} again, give --update --changed"
            )
        if self.gone:
            verb, their = ("is", "its") if len(self.gone) == 1 else ("are", "their")
            lines.append(f"{counted(len(self.gone), 'file')} {verb} gone; {their} labels stay: {first_of(self.gone)}")
        if self.later:
            verb, them = ("is", "it") if self.later == 1 else ("are", "them")
            lines.append(f"{counted(self.later, 'file')} {verb} new since this began: --update labels {them}")
        if self.put_off:
            verb = "has changed or is" if self.put_off == 1 else "have changed or are"
            lines.append(f"{counted(self.put_off, 'file')} {verb} gone since the job began: an update follows")
        return lines


@dataclass(frozen=True)
class JobFacts:
    """The facts of a job that are known before its first chunk.

    Attributes
    ----------
    model : str
        The name of the model.
    classes : tuple of str
        The names of the labels.
    output : str or None
        The output folder; None for rows in memory.
    backend : str
        The device, precision and kernels of the workers.
    precision : str
        "fp32", "fp16", "bf16" or "int8".
    chunk_rows : int
        The limit of rows in a chunk.
    answers : str, optional
        The answer file that the labels are compared with.
    no_gpu : str, optional
        Why the CPU was chosen, if the device was "auto" and something on the workers points to a GPU.
    meant_for : str, optional
        The texts that the model is for, if its card says so.
    growth : Growth, optional
        How the input of an update differs from the files that were labelled before.
    models : tuple of (str, tuple of str)
        The name and the labels of each model, in order. `model` has all names. `classes` and `meant_for` are those of
        the first model.
    max_quarantined : str or int
        How many rows may be in quarantine, as the option of the same name gives it.
    max_unread : str or int
        How many files may have a problem, as the option of the same name gives it.
    files : int
        The number of files of the input, including those that cannot be read; 0 for rows in memory.
    repair_flags : str
        The flags of the cheapest job that labels files after they are repaired.
    second : str
        The model that is asked only about some texts: the "network" of the models, or the "encoder".
    label_numbers_from : int, optional
        The number of the first class in a truth column of class numbers.
    label_map : tuple of str
        The labels of the user's label map.

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
    growth: Growth | None = None
    models: tuple[tuple[str, tuple[str, ...]], ...] = ()
    max_quarantined: str | int = "100%"
    max_unread: str | int = "0"
    files: int = 0
    repair_flags: str = UPDATE_CHANGED
    second: str = "network"
    label_numbers_from: int | None = None
    label_map: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelFigures:
    """The figures of one of a job's models.

    Attributes
    ----------
    name : str
        The name of the model.
    labels : Counter of str
        The number of written rows by label.
    scores : dict of str to tuple of int, or None
        The number of written rows by label, and by score in the bins of `counts.SCORES`; None if they are unknown.
    unlabelled : int
        The number of written rows without a label.
    confusion : Confusion or None
        The number of rows by true and predicted class; None without a truth column.
    right : dict of str to tuple of int, or None
        The number of written rows with a label and a truth, as "right" and "wrong", by bin; None without a truth.
    overlap : Overlap or None
        How many of the rows of `confusion` the model has learned from; None if it is unknown.

    """

    name: str
    labels: Counter[str]
    scores: dict[str, tuple[int, ...]] | None
    unlabelled: int
    confusion: Confusion | None
    right: dict[str, tuple[int, ...]] | None = None
    overlap: Overlap | None = None

    @property
    def accuracy(self) -> float | None:
        """The share of rows whose label is the true class; None without a truth column."""
        return None if self.confusion is None else self.confusion.accuracy

    @property
    def bins(self) -> list[int]:
        """The number of labels of all classes by bin of `counts.SCORES`; empty if they are unknown."""
        return [sum(column) for column in zip(*(self.scores or {}).values(), strict=True)]

    @property
    def accuracy_kept(self) -> list[float | None]:
        """For each of `counts.THRESHOLDS`, the share of right labels among those above it; empty without a truth."""
        return [right / rows if rows else None for right, rows in self._right_kept]

    @property
    def intervals_kept(self) -> list[Interval | None]:
        """The 95 % confidence interval of each share in `accuracy_kept`."""
        return [wilson(right, rows) if rows else None for right, rows in self._right_kept]

    @property
    def _right_kept(self) -> list[tuple[int, int]]:
        """For each of `counts.THRESHOLDS`, the number of right labels and of all labels with a truth that reach it."""
        if not self.right:
            return []
        right, wrong = (rows_above(self.right[name]) for name in ("right", "wrong"))
        return [(r, r + w) for r, w in zip(right, wrong, strict=True)]


@dataclass
class RunFacts:
    """The facts of one run of a job.

    Attributes
    ----------
    timeline : Timeline
        The spans of the run.
    reach : Reach
        How far the job is, with the chunks that tasks have committed and not returned yet.
    chunks_before : int
        The number of chunks that earlier runs committed.
    rows : int
        The number of rows that the run read.
    read_again : int
        The bytes of the input that the run read twice, because a part of a file was begun in the middle of a record.
    read_by : Counter of str
        The number of records that the run read, by the keys of `telemetry.read_by`, including those of committed
        chunks.
    remarks : list of str
        Advice that would make the next run faster.
    notes : dict of str to dict
        What may be wrong with the input: each note, with the paths that it concerns as the keys of the inner dict.
    set_aside : list of (str, str)
        Chunks without a result, each with the reason.
    stopped : bool
        Whether the run was stopped early.
    seconds : float
        The duration of the run, in seconds.
    timings : dict of str to float
        The seconds of each phase: "plan", "start", "classify", "commit".
    shown : Shown
        The rows that the page shows, if a page is requested.
    profile : Profile or None
        The kernels of one worker, if requested.
    page : str or None
        The file of the run's page, if requested.
    problems : str or None
        The file that lists the problems with the input; None if there are none.
    rows_of : Counter of str
        The number of rows of each file that could not be read completely, and of each file that is read alone.
    compacted : Compacted or None
        The result of joining small parts; None if the job did not ask for it.

    """

    timeline: Timeline = field(default_factory=Timeline)
    reach: Reach = field(default_factory=Reach)
    chunks_before: int = 0
    rows: int = 0
    read_again: int = 0
    read_by: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
    notes: dict[str, dict[str, None]] = field(default_factory=dict)
    set_aside: list[tuple[str, str]] = field(default_factory=list)
    stopped: bool = False
    seconds: float = 0.0
    timings: dict[str, float] = field(default_factory=dict)
    shown: Shown = field(default_factory=Shown)
    profile: Profile | None = None
    page: str | None = None
    problems: str | None = None
    rows_of: Counter[str] = field(default_factory=Counter)
    compacted: Compacted | None = None

    @property
    def articles_per_second(self) -> float:
        """The rows of this run divided by the time in which chunks were read, classified and written."""
        return self.rows / max(self.timings.get("classify", 0.0), 1e-9)


def models_of(job: JobFacts, tally: Tally) -> tuple[ModelFigures, ...]:
    """Return the figures of each model, in the order in which the models were named."""
    figures = []
    for (name, classes), one in zip(job.models or [(job.model, job.classes)], (tally, *tally.others), strict=False):
        scores, right = one.scores or None, one.right or None
        confusion = confusion_in(one, classes)
        overlap = overlap_in(one, confusion)
        figures.append(ModelFigures(name, one.labels, scores, one.unlabelled, confusion, right, overlap))
    return tuple(figures)
