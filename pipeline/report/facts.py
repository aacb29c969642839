"""What is known of a job and of one run of it: its settings, how its input has grown, what each model says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..errors import counted, first_of
from ..labelling.counts import kept
from ..measures.accuracy import Confusion
from ..measures.examples import Shown
from ..measures.intervals import Interval, wilson
from ..measures.overlap import Overlap
from ..output.compact import Compacted
from ..telemetry.profile import Profile
from .tally import Reach, Tally, confusion_in, overlap_in
from .timeline import Timeline

UPDATE_CHANGED = "--update --changed"
"""What labels files that have changed, and leaves the others, where a job can be updated."""


@dataclass(frozen=True)
class Growth:
    """The files of the input, against those that were labelled before.

    Attributes
    ----------
    new : int
        Files that this update labels.
    before : int
        Files that were labelled before it.
    changed : tuple of str
        Files with another size, time or hash than when they were labelled, which are not labelled again.
    gone : tuple of str
        Files that are not there any more; their labels stay.
    later : int
        New files that came since the update or job that is continued began. They are left to the next update.
    again : int
        Files that have changed, which this update labels again.
    removed : int
        Files that are gone, whose labels it removes.
    put_off : int
        Files that have changed or are gone since the job that is continued began. An update that follows at once labels
        them.

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
        done = [counted(self.new, "new file")] if self.new else []
        done += [f"{count:,} {what}" for count, what in ((self.again, "changed"), (self.removed, "removed")) if count]
        if (self.later or self.put_off) and not done:
            return ""
        return f"{', '.join(done) or 'nothing new'}; {counted(self.before, 'file')} labelled before"

    @property
    def lines(self) -> list[str]:
        """A line about what has changed, and one about what is gone."""
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
    growth : Growth, optional
        Of an update: how the input differs from what was labelled before.
    models : tuple of (str, tuple of str)
        Name and labels of each model, in order; `model` has all names, `classes` and `meant_for` are the first one's.
    max_quarantined : str or int
        The option: how many rows may be in quarantine.
    max_unread : str or int
        The option: how many files may have a problem.
    files : int
        The files of the input, those that cannot be read too; 0 for rows in memory.
    repair_flags : str
        The flags of the job that labels files once they are repaired: the cheapest that does.
    second : str
        What is asked about some texts only: the "network" of the models, or the "encoder".
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
    """What one of a job's models says of its rows.

    Attributes
    ----------
    name : str
        The model.
    labels : Counter of str
        Written rows by label.
    scores : dict of str to tuple of int, or None
        Written rows by label, and by score in the bins of `counts.SCORES`; None where they are not known.
    unlabelled : int
        Written rows without a label.
    confusion : Confusion or None
        Rows by true and predicted class, where there is a truth column.
    right : dict of str to tuple of int, or None
        Written rows with a label and a truth, as "right" and "wrong", by bin; None where there is no truth.
    overlap : Overlap or None
        How many of the rows of `confusion` the model has learned from; None where that is not known.

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
        """Share of rows whose label is the true class; None without a truth column."""
        return None if self.confusion is None else self.confusion.accuracy

    @property
    def bins(self) -> list[int]:
        """Labels by bin of `counts.SCORES`, of all classes together; none where they are not known."""
        return [sum(column) for column in zip(*(self.scores or {}).values(), strict=True)]

    @property
    def accuracy_kept(self) -> list[float | None]:
        """For each of `counts.THRESHOLDS`, the share of right labels of those that reach it; none without a truth."""
        return [right / rows if rows else None for right, rows in self._right_kept]

    @property
    def intervals_kept(self) -> list[Interval | None]:
        """For each of these shares, where that of all rows like these is, with 95 % confidence."""
        return [wilson(right, rows) if rows else None for right, rows in self._right_kept]

    @property
    def _right_kept(self) -> list[tuple[int, int]]:
        """For each of `counts.THRESHOLDS`, the right labels, and all labels with a truth, that reach it."""
        if not self.right:
            return []
        right, wrong = (kept(self.right[name]) for name in ("right", "wrong"))
        return [(r, r + w) for r, w in zip(right, wrong, strict=True)]


@dataclass
class RunFacts:
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
    read_again : int
        Bytes of its input that it read twice: a part of a file was begun in the middle of a record.
    read_by : Counter of str
        The records that it read, by the keys of `telemetry.read_by`, those of committed chunks too.
    remarks : list of str
        What would make the next run faster.
    notes : dict of str to dict
        What may be amiss with the files that are the keys.
    set_aside : list of (str, str)
        Chunks without a result, each with the reason.
    stopped : bool
        Whether it was stopped early.
    seconds : float
        Its duration.
    timings : dict of str to float
        Seconds by phase: "plan", "start", "classify", "commit".
    shown : Shown
        Rows that the page shows, if one is requested.
    profile : Profile or None
        The kernels of one worker, if requested.
    page : str or None
        The file of its page, if requested.
    problems : str or None
        The file that lists what went wrong with the input; None where nothing did.
    rows_of : Counter of str
        The rows of files that are not wholly readable, and of those that are read alone.
    compacted : Compacted or None
        What was done to small parts, where that was asked for.

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
        """Rows over the time in which chunks were read, classified and written."""
        return self.rows / max(self.timings.get("classify", 0.0), 1e-9)


def models_of(job: JobFacts, tally: Tally) -> tuple[ModelFigures, ...]:
    """What each model says, in the order in which they were named."""
    figures = []
    for (name, own), one in zip(job.models or [(job.model, job.classes)], (tally, *tally.others), strict=False):
        scores, right = one.scores or None, one.right or None
        confusion = confusion_in(one, own)
        overlap = overlap_in(one, confusion)
        figures.append(ModelFigures(name, one.labels, scores, one.unlabelled, confusion, right, overlap))
    return tuple(figures)
