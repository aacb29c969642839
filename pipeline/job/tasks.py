"""The tasks of a chunk, which run on a worker: read, infer, write. Plain functions of plain values, which the graph
connects.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET
from numpy.typing import NDArray

from ..engine.base import Backend, Engine, Predictions, Texts
from ..engine.profile import measure
from ..errors import BroadsheetError, SourceError
from ..labelling.counts import count_lengths
from ..labelling.engines import ENGINES
from ..labelling.scored import score, score_chunk
from ..measures.accuracy import Example, closest
from ..output.columns import Columns, every_row
from ..output.layout import PARTS, PartNames
from ..output.model_columns import ModelColumns
from ..output.object_store import open_store
from ..output.record import Entry, Judged
from ..output.sidecars import with_ids
from ..output.store import Location, Store
from ..source.chunk import Chunk, Selection
from ..source.inputs import Loaded
from ..source.memory.tables import partition_chunk
from ..source.plan.plan import GroupEnd, Unit, part_name
from ..telemetry.activity import ACTIVITY, COUNTS
from ..telemetry.profile import Profile
from ..telemetry.spans import Place, Span, clock, here, span
from .worker import STATE

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Job:
    """The values that every task of a job needs. engines: the keys under which workers hold each model. chunk_rows:
    rows in a chunk at most. names: of the parts. out: where the output folder is, or None for results in memory.
    backend: that of every worker; None where they may differ. each_kernel: record a span for every kernel. examples:
    how many of the rows whose two best classes were closest each chunk returns.
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
    examples: int = 0


@dataclass(frozen=True)
class SetAside:
    """A chunk that could not be classified, and why; a resumed job tries it again.

    sources: (file, first row, rows) of each of its pieces; empty where that is not known. group: of which it is, and
    every chunk after it that is not committed either; None where it is one chunk alone.
    """

    name: str
    reason: str
    sources: tuple[tuple[str, int, int], ...]
    group: int | None = None


@dataclass(frozen=True)
class Work:
    """A chunk between two tasks: as it was read, then without text but with predictions.

    name: of its part. sources: (file, first row, rows) of each piece it was read from. predictions, doubtful: of each
    model, the latter the rows that it could hardly judge, by reason. place: the worker it was classified on. index: of
    the pandas DataFrame that it is, as a partition of a Dask DataFrame; else None. texts: their digest, where the rows
    stay in memory and may be joined.
    """

    name: str
    sources: tuple[tuple[str, int, int], ...]
    chunk: Chunk
    predictions: tuple[Predictions, ...] = ()
    place: Place | None = None
    spans: list[Span] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    doubtful: tuple[dict[str, int], ...] = ()
    index: pd.Index | None = None
    texts: bytes = b""


@dataclass(frozen=True)
class Done:
    """A committed chunk. entry: its manifest entry. place: the worker that classified it; None where it was found
    committed. table, quarantine, index, texts: where there is no output folder, all its rows, those in quarantine, the
    index of a Dask DataFrame's partition, and the digest of the texts.
    """

    name: str
    entry: Entry
    spans: list[Span]
    place: Place | None
    examples: list[Example]
    table: pa.Table | None = None
    quarantine: pa.Table | None = None
    index: pd.Index | None = None
    texts: bytes = b""


@dataclass(frozen=True)
class Noted:
    """A chunk that a task has committed, which goes on: its name, rows, and what is lost if its worker is. stored: as
    of `GroupChunk`. spans, place: as of `Done`.
    """

    name: str
    rows: int
    stored: int
    spans: list[Span]
    place: Place


@dataclass(frozen=True)
class Stopped:
    """Chunks of a group or a run are left, since the job was stopped."""


Event = Done | GroupEnd | Noted | SetAside | Stopped
"""What a job hears of its chunks."""


def reported(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task so that its error reaches the client.

    An exception that cannot be pickled leaves the client waiting for ever, so errors other than BroadsheetError are
    reported as text.
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
    """Measure the kernels of this process's engine one by one."""
    with ENGINES.use([key]) as [(engine, _)], ENGINES.computing:
        return measure(engine)


def read(unit: Unit, job: Job) -> Work:
    """Read a unit's rows. Raises SourceError; with `job.strict` also where a row is bad."""
    spans: list[Span] = []
    with span("read", spans, "read", number=number_of(unit.name)):
        chunk = STATE.read(unit, job.selection, spans)
    refuse_bad_rows(chunk, job)
    return Work(unit.name, unit.sources, chunk, spans=spans)


def read_partition(frame: Any, number: int, job: Job) -> Work:
    """Take the rows of a Dask DataFrame's partition, a pandas DataFrame."""
    spans: list[Span] = []
    with span("read", spans, "read", number=number):
        chunk = partition_chunk(frame, number, job.selection)
    refuse_bad_rows(chunk, job)
    file = f"partition {number}"
    return Work(part_name(0, number), ((file, 0, chunk.rows_read),), chunk, spans=spans, index=frame.index)


def refuse_bad_rows(chunk: Chunk, job: Job) -> None:
    """With `job.strict`, raise SourceError for the first bad row, or file with a problem."""
    if not job.strict:
        return
    if chunk.problems:
        raise SourceError(f"{chunk.problems[0]} (--strict stops here)")
    if len(chunk.quarantine):
        bad = chunk.quarantine.slice(0, 1).to_pylist()[0]
        raise SourceError(f"{bad['file']}: row {bad['row']}: {bad['reason']} (--strict stops here)")


def infer(work: Work, job: Job) -> Work:
    """Classify the chunk by each model of the job, on this worker's engines.

    Raises BroadsheetError where the worker does not have them; UsageError where the model overflows on every row, and
    with `job.strict` SourceError where it does on one.
    """
    spans = list(work.spans)
    models, scoring = job.columns.models, job.columns.scoring
    if job.examples:
        scoring = (replace(scoring[0], top_k=max(2, scoring[0].top_k)), *scoring[1:])
    with ENGINES.use(job.engines) as held:
        engines, place = [engine for engine, _ in held], held[0][1]

        def in_turn(texts: Texts) -> tuple[Predictions, ...]:
            nonlocal place
            with ExitStack() as turn:
                turn.enter_context(ENGINES.computing)
                _refuse_other_backend(engines, job)
                place = replace(place, clock=clock())
                if spans and spans[-1].where == here():
                    waited = time.time() - spans[-1].end
                    spans.append(Span("wait", spans[-1].end, max(0.0, waited), here(), "wait"))
                # The engine of a GPU reports activities itself, from its events.
                doing = ACTIVITY.during("computing") if place.device == "cpu" else nullcontext()
                with span("infer", spans, "infer", place.device, number_of(work.name)), doing:
                    return score(texts, engines, scoring, spans, job.each_kernel, turn.close)

        found = score_chunk(work.chunk, engines, scoring, is_first=work.name == part_name(0, 0), compute=in_turn)
    ACTIVITY.count(len(work.chunk))
    COUNTS.add(text_bytes=work.chunk.text_bytes)
    chunk, of_first = found.chunk, found.predictions[0]
    refuse_bad_rows(chunk, job)
    # Of a model that gives several labels, two that are close are both given.
    count = job.examples if models[0].thresholds is None else 0
    examples = closest(chunk, of_first.labels, of_first.scores, models[0].classes, count)
    cut = tuple(each.cut(columns.top_k) for each, columns in zip(found.predictions, models, strict=True))
    texts = work.chunk.digest(work.sources) if job.out is None else b""
    done = replace(work, chunk=chunk.without_text(), predictions=cut, doubtful=found.doubtful)
    return replace(done, place=place, spans=spans, examples=examples, texts=texts)


def _refuse_other_backend(engines: Sequence[Engine], job: Job) -> None:
    for engine in engines:
        if job.backend is not None and engine.backend != job.backend:
            raise BroadsheetError(
                f"a worker that joined computes with {engine.backend}, and the job began with {job.backend}: "
                "scores would depend on which of them takes a chunk. Use workers of one kind, or --allow-mixed"
            )


def write(work: Work, job: Job) -> Done:
    """Commit the chunk to the output folder, or return its rows. Raises OutputError."""
    place, chunk = work.place, work.chunk
    if place is None:
        raise ValueError(f"{work.name} was not classified")
    spans = list(work.spans)
    with span("write", spans, "write", number=number_of(work.name)):
        table = job.columns.table(chunk, work.predictions)
        chosen = job.columns.chosen(table)
        entry = _entry(work, chosen, job)
        table = job.columns.of_written(table, chosen)
        store = output_of(job)
        if store is None:
            rows = every_row(table, chunk, work.sources)
            _count(entry)
            return Done(work.name, entry, spans, place, work.examples, rows, chunk.quarantine, work.index, work.texts)
        bad = chunk.quarantine if job.names.folder == PARTS else with_ids(chunk)
        entry = STATE.commit(store, table, bad, entry, job.names)
    _count(entry)
    return Done(work.name, entry, spans, place, work.examples)


def _count(entry: Entry) -> None:
    COUNTS.add(
        chunks=1,
        rows_read=entry.rows_read,
        rows_written=entry.rows_written,
        rows_filtered=entry.rows_filtered,
        rows_quarantined=entry.rows_quarantined,
        written_bytes=sum(file.bytes for file in entry.files),
    )


def number_of(name: str) -> int:
    """A chunk's number in its file, by which NVTX ranges can be distinguished."""
    return int(name.rpartition("-")[2])


def infer_and_write(loaded: Loaded, job: Job) -> Done:
    """Both in one task, for a chunk whose text came with the graph. Raises as `read`, `infer` and `write` do."""
    refuse_bad_rows(loaded.chunk, job)
    return write(infer(Work(loaded.name, loaded.sources, loaded.chunk), job), job)


def _entry(work: Work, chosen: NDArray[np.bool_], job: Job) -> Entry:
    """The entry without its files: the chunk's share of the job's totals. chosen: the rows that are written."""
    chunk, planned = work.chunk, sum(rows for *_, rows in work.sources)
    if planned != chunk.rows_read:
        raise BroadsheetError(
            f"{work.name}: {planned:,} rows were planned, {chunk.rows_read:,} read: please report this"
        )
    n_chars = work.predictions[0].n_chars[chosen]
    first, *others = (
        _judged(columns, predictions, doubtful, chunk, chosen)
        for columns, predictions, doubtful in zip(job.columns.models, work.predictions, work.doubtful, strict=True)
    )
    return Entry(
        chunk=work.name,
        job=job.fingerprint,
        sources=work.sources,
        rows_read=planned,
        rows_written=len(n_chars),
        rows_filtered=len(chunk) - len(n_chars),
        rows_quarantined=len(chunk.quarantine),
        chars=int(n_chars.sum()),
        lengths=tuple(count_lengths(n_chars)),
        problems=chunk.problems,
        others=tuple(others) or UNSET,
        **msgspec.structs.asdict(first),
    )


def _judged(
    columns: ModelColumns,
    predictions: Predictions,
    doubtful: dict[str, int],
    chunk: Chunk,
    chosen: NDArray[np.bool_],
) -> Judged:
    """One model's share of the totals."""
    written = predictions if chosen.all() else predictions.take(chosen)
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
        doubtful=doubtful,
        confusion=None if chunk.truth is None else tuple(columns.pairs(predictions, chunk.truth)),
    )
