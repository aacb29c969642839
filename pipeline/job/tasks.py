"""What a worker does with a chunk that was read: it labels the rows, then writes and commits them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from ..engine.base import Backend, Engine, Predictions, Texts
from ..engine.profile import measure
from ..errors import BroadsheetError, SourceError
from ..labelling.engines import ENGINES
from ..labelling.learned import looked_up_by_each
from ..labelling.pieces import in_pieces
from ..labelling.scored import score, score_chunk
from ..measures.examples import Shown, shown_of
from ..model.learned import LookedUp
from ..output.columns import ChunkRows, Columns, every_row
from ..output.formats import with_folders
from ..output.layout import PARTS, PartNames
from ..output.model_columns import ModelColumns
from ..output.object_store import open_store
from ..output.record import Entry, Judged, LearnedFrom
from ..output.sidecars import with_ids
from ..output.store import Location, Store
from ..source.plan.plan import RangeEnd, part_name
from ..source.rows.chunk import Chunk, RowRange, Selection, commonest, numbered
from ..telemetry.activity import ACTIVITY, COUNTS
from ..telemetry.profile import Profile
from ..telemetry.spans import STORE_WAITS, Place, Span, clock, drain, here, span
from .turn import Turn
from .worker import STATE


@dataclass(frozen=True)
class Job:
    """The values that every task of a job needs.

    Attributes
    ----------
    selection : Selection
        The columns of the input that the job uses.
    engines : tuple of str
        The keys under which workers hold the engine of each model.
    backend : Backend or None
        The backend of every worker; None where they may differ.
    columns : Columns
        The columns that are computed and written.
    names : PartNames
        The names of the parts.
    strict : bool
        Whether the first bad row stops the job.
    chunk_rows : int
        Rows in a chunk at most.
    out : Location or None
        Where the output folder is; None for results in memory.
    fingerprint : str
        The id of the job's `Fingerprint`.
    each_kernel : bool
        Whether to record a span for every kernel.
    shows_rows : bool
        Whether each chunk returns some rows that a report shows.

    """

    selection: Selection
    engines: tuple[str, ...]
    backend: Backend | None
    columns: Columns
    names: PartNames
    strict: bool
    chunk_rows: int
    out: Location | None
    fingerprint: str
    each_kernel: bool = False
    shows_rows: bool = False


@dataclass(frozen=True)
class SetAside:
    """A chunk that could not be labelled. A resumed job tries it again.

    Attributes
    ----------
    name : str
        The name of the chunk.
    reason : str
        Why the chunk could not be labelled.
    sources : tuple of RowRange
        The rows of the chunk; empty if they are unknown.
    number : int or None
        If all later chunks of the range are set aside as well, the number of the range; None for one chunk alone.

    """

    name: str
    reason: str
    sources: tuple[RowRange, ...]
    number: int | None = None


@dataclass(frozen=True)
class LabelledChunk:
    """A chunk that is labelled and not written yet.

    Attributes
    ----------
    chunk : Chunk
        The chunk that was read, without its text.
    predictions : tuple of Predictions
        The predictions of each model.
    doubtful : tuple of dict
        For each model, the number of rows that it could hardly judge, by reason.
    place : Place
        The worker that labelled the chunk.
    spans : list of Span
        The steps so far, with their times.
    shown : Shown
        The rows that a report shows.
    texts : bytes
        The digest of the texts if the rows stay in memory, where they may be joined to others; else empty.
    learned : tuple of LookedUp or None
        For each model, the rows that it has learned from; None if that is unknown. Empty if the rows have no truth.

    """

    chunk: Chunk
    predictions: tuple[Predictions, ...]
    doubtful: tuple[dict[str, int], ...]
    place: Place
    spans: list[Span]
    shown: Shown
    texts: bytes = b""
    learned: tuple[LookedUp | None, ...] = ()

    def numbered(self, first: int) -> LabelledChunk:
        """Return the chunk with row numbers that begin at `first` in place of 0."""
        return replace(self, chunk=numbered(self.chunk, first), shown=self.shown.numbered(first))


@dataclass(frozen=True)
class CommittedChunk:
    """A committed chunk.

    Attributes
    ----------
    name : str
        The name of the chunk.
    entry : Entry
        The entry that commits the chunk.
    spans : list of Span
        The steps of the chunk, with their times.
    place : Place or None
        The worker that labelled the chunk; None if an earlier run committed it.
    shown : Shown
        The rows that a report shows.
    rows : ChunkRows or None
        The rows of the chunk if there is no output folder.

    """

    name: str
    entry: Entry
    spans: list[Span]
    place: Place | None
    shown: Shown
    rows: ChunkRows | None = None


@dataclass(frozen=True)
class CommitReport:
    """What a task reports about a chunk that it has committed, before the task itself ends.

    Attributes
    ----------
    name : str
        The name of the chunk.
    rows : int
        The number of rows that were read.
    stored : int
        See `Chunk`.
    spans, place
        See `CommittedChunk`. They are lost if the worker is lost.

    """

    name: str
    rows: int
    stored: int
    spans: list[Span]
    place: Place


@dataclass(frozen=True)
class RowsComputed:
    """What a task reports about a chunk that is not committed yet.

    Attributes
    ----------
    name : str
        The name of the chunk.
    rows : int
        The number of rows that are labelled so far.

    """

    name: str
    rows: int


@dataclass(frozen=True)
class Stopped:
    """The task ended before the end of its range, because the job was stopped."""


Event = CommittedChunk | RangeEnd | CommitReport | RowsComputed | SetAside | Stopped
"""The messages that the client of a job receives about its chunks."""


def reported(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task in such a way that its error reaches the client.

    If an exception cannot be pickled, the client waits for ever. So every error that is no BroadsheetError is reported
    as text, in a BroadsheetError.
    """
    try:
        return function(*arguments)
    except BroadsheetError:
        raise
    except Exception as error:
        lines = traceback.format_exception(error, limit=-8)
        message = f"{function.__name__} failed with {type(error).__name__}: {error}\n{''.join(lines)}"
    raise BroadsheetError(message)


def output_of(job: Job) -> Store | None:
    """The store of the job's output folder; None for results in memory."""
    return None if job.out is None else open_store(job.out)


def profile_engine(key: str) -> Profile:
    """Measure the kernels of the engine of this process, one by one."""
    with ENGINES.use([key]) as [(engine, _)], ENGINES.computing:
        return measure(engine)


def refuse_bad_rows(chunk: Chunk, job: Job) -> None:
    """With `job.strict`, raise SourceError for the first bad row, or for a file with a problem."""
    if not job.strict:
        return
    if chunk.problems:
        raise SourceError(f"{chunk.problems[0]} (--strict stops here)")
    if len(chunk.quarantine):
        bad = chunk.quarantine.slice(0, 1).to_pylist()[0]
        raise SourceError(f"{bad['file']}: row {bad['row']}: {bad['reason']} (--strict stops here)")


def infer(
    chunk: Chunk, spans: list[Span], job: Job, tell: Callable[[RowsComputed], None] = lambda _: None
) -> LabelledChunk:
    """Label a chunk with each model of the job, on the engines of this worker.

    Parameters
    ----------
    chunk : Chunk
        The chunk.
    spans : list of Span
        The spans of its reading. The spans of labelling are appended.
    job : Job
        The job.
    tell : callable, optional
        Called now and then with the number of rows that are labelled, if a CPU takes seconds for the chunk.

    Raises
    ------
    BroadsheetError
        If the worker does not have the engines.
    UsageError
        If the model overflows on every row.
    SourceError
        With `job.strict`, if the model overflows on one row.

    """
    models, scoring = job.columns.models, job.columns.scoring
    # The time since the chunk was read is a span, if this process read it: clocks of two processes may differ.
    if spans and spans[-1].where == here():
        spans.append(Span("queue", spans[-1].end, max(0.0, time.time() - spans[-1].end), here(), "wait"))
    if job.shows_rows:
        scoring = (replace(scoring[0], top_k=max(2, scoring[0].top_k)), *scoring[1:])
    # Compute the predictions while this chunk has its turn on the engines.
    with ENGINES.use(job.engines) as held:
        engines, place = [engine for engine, _ in held], held[0][1]

        def computed(texts: Texts) -> tuple[Predictions, ...]:
            nonlocal place
            _refuse_other_backend(engines, job)
            with closing(Turn(spans, place.device, number_of(chunk.name))) as turn:
                label = partial(
                    score, engines=engines, scoring=scoring, spans=spans, each_kernel=job.each_kernel, turn=turn
                )
                if place.device != "cpu":
                    predictions = label(texts)
                else:
                    predictions = in_pieces(texts, label, lambda rows: tell(RowsComputed(chunk.name, rows)))
            place = replace(place, clock=clock())
            return predictions

        chunk = with_folders(chunk, job.names)
        scored = score_chunk(chunk, engines, scoring, is_first=chunk.name == part_name(0, 0), compute=computed)
    # Count the rows, and refuse bad ones before anything is written.
    ACTIVITY.count(len(chunk))
    COUNTS.add(text_bytes=chunk.text_bytes)
    chunk, of_first = scored.chunk, scored.predictions[0]
    refuse_bad_rows(chunk, job)
    # A report shows rows whose two best labels are close. With several labels a text, both would be given.
    shown = Shown()
    if job.shows_rows and models[0].thresholds is None:
        shown = shown_of(chunk, of_first.labels, of_first.scores, models[0].classes)
    # Keep what writing needs: the labels that were asked for, and no text.
    cut = tuple(predictions.cut(columns.top_k) for predictions, columns in zip(scored.predictions, models, strict=True))
    texts = chunk.digest if job.out is None else b""
    learned = () if chunk.truth is None else tuple(looked_up_by_each([engine.model for engine in engines], chunk))
    return LabelledChunk(chunk.without_text(), cut, scored.doubtful, place, spans, shown, texts, learned)


def _refuse_other_backend(engines: Sequence[Engine], job: Job) -> None:
    for engine in engines:
        if job.backend is not None and engine.backend != job.backend:
            raise BroadsheetError(
                f"a worker that joined computes with {engine.backend}, and the job began with {job.backend}: "
                "scores would depend on which of them takes a chunk. Use workers of one kind, or --allow-mixed"
            )


def write(labelled: LabelledChunk, job: Job) -> CommittedChunk:
    """Write a chunk to the output folder and commit it; without a folder, return its rows. Raises OutputError."""
    chunk, spans = labelled.chunk, labelled.spans
    with span("write", spans, "write", number=number_of(chunk.name)):
        table = job.columns.table(chunk, labelled.predictions)
        chosen = job.columns.chosen(table)
        entry = _entry(labelled, chosen, job)
        table = job.columns.of_written(table, chosen)
        store = output_of(job)
        committed = CommittedChunk(chunk.name, entry, spans, labelled.place, labelled.shown)
        if store is None:
            rows = every_row(table, chunk)
            _count(entry)
            return replace(committed, rows=ChunkRows(rows, chunk.quarantine, chunk.index, labelled.texts))
        bad = chunk.quarantine if job.names.folder == PARTS else with_ids(chunk)
        entry = STATE.commit(store, table, bad, entry, job.names)
    spans += drain(STORE_WAITS)
    _count(entry)
    return replace(committed, entry=entry)


def _count(entry: Entry) -> None:
    rows = {name: getattr(entry, name) for name in ("rows_read", "rows_written", "rows_filtered", "rows_quarantined")}
    COUNTS.add(chunks=1, written_bytes=sum(file.bytes for file in entry.files), **rows)


def number_of(name: str) -> int:
    """Return the number of a chunk in its file, which tells NVTX ranges apart."""
    return int(name.rpartition("-")[2])


def _entry(labelled: LabelledChunk, chosen: NDArray[np.bool_], job: Job) -> Entry:
    """Return the entry of a chunk without its files: its share of the job's totals. chosen: the rows to write."""
    chunk = labelled.chunk
    n_chars = labelled.predictions[0].n_chars[chosen]
    return Entry.of(
        [_judged(labelled, number, columns, chosen) for number, columns in enumerate(job.columns.models)],
        n_chars,
        chunk=chunk.name,
        job=job.fingerprint,
        sources=chunk.sources,
        rows_read=chunk.rows_read,
        rows_filtered=len(chunk) - len(n_chars),
        rows_quarantined=len(chunk.quarantine),
        problems=chunk.problems,
        not_copied=commonest([{key: len(rows) for key, rows in chunk.not_copied.items()}]),
        unknown_labels=commonest([{label: len(rows) for label, rows in chunk.unknown_labels.items()}]) or UNSET,
        mapped_labels={label: len(rows) for label, rows in sorted(chunk.mapped_labels.items())} or UNSET,
    )


def _judged(labelled: LabelledChunk, number: int, columns: ModelColumns, chosen: NDArray[np.bool_]) -> Judged:
    """Return the share of one model in the totals.

    Parameters
    ----------
    labelled : LabelledChunk
        The chunk.
    number : int
        The number of the model in the job.
    columns : ModelColumns
        The columns of the model.
    chosen : bool [rows]
        Which rows are written.

    """
    chunk, predictions = labelled.chunk, labelled.predictions[number]
    written = predictions if chosen.all() else predictions.take(chosen)
    learned: LearnedFrom | UnsetType = UNSET
    if chunk.truth is not None and (found := labelled.learned[number]) is not None:
        learned = LearnedFrom(*columns.learned(predictions, chunk.truth, found))
    scores = columns.counts(written)
    return Judged(
        labels={name: sum(bins) for name, bins in scores.items()},
        scores=scores if columns.counts_scores else UNSET,
        unlabelled=columns.unlabelled(written),
        multi_label=columns.thresholds is not None,
        truncated=int(written.truncated.sum()),
        unknown_chars=int(written.unknown_chars.sum()),
        saturated=predictions.saturated,
        asked=predictions.asked,
        doubtful=labelled.doubtful[number],
        confusion=None if chunk.truth is None else tuple(columns.pairs(predictions, chunk.truth)),
        right=UNSET if chunk.truth is None else columns.right(written, chunk.truth[chosen]),
        learned=learned,
    )
