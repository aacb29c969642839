"""A job in its phases: prepare -> plan -> execute -> finish, each a function of the result of the one before.

prepare: check the request, and an output folder that may exist; list the input. plan: put its files into groups, and
find its columns; beside it a cluster starts, and loads the engines. execute: run every chunk through the graph. finish:
write the totals, the report and the timeline.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from pipeline.beside import beside
from pipeline.engine.base import Backend
from pipeline.engine.open import expected_device, why_gpu_unused
from pipeline.errors import OutputError, OutputUnavailable, SourceError, UsageError
from pipeline.graph import Event, classify_chunks
from pipeline.model.charcnn import Model
from pipeline.options import Options
from pipeline.output.account import Committed
from pipeline.output.columns import Columns, columns_of
from pipeline.output.folder import OutputFolder
from pipeline.output.layout import MANIFEST, PLAN, PartNames
from pipeline.output.part_files import check_writable
from pipeline.output.record import WRITER, Fingerprint, ListedFile, Manifest, SavedPlan, listing_digest, to_json
from pipeline.output.saved_plan import changes, plan_again, plan_bytes, plan_from
from pipeline.report.explain import explain
from pipeline.report.growth import Growth
from pipeline.report.job import EXAMPLES, JobFacts, JobReport, Progress, Run
from pipeline.report.reach import Reach
from pipeline.report.results import Results, origin_of
from pipeline.report.tally import Tally
from pipeline.report.timeline import Timeline
from pipeline.source.changes import changed_chunks
from pipeline.source.files import Files
from pipeline.source.group import GroupEnd, part_name
from pipeline.source.inputs import Given, JobInput, Rows, Scanners, Source, identify, open_input, planned_files
from pipeline.source.limits import CHUNK_ROWS
from pipeline.source.one_core import slow_to_read
from pipeline.source.scan import Scanner
from pipeline.source.stdin import Stdin
from pipeline.tasks import Done, Job, SetAside, profile_engine
from pipeline.telemetry.clocks import Clock
from pipeline.update import Update, begin, only_known, unfinished
from pipeline.watchdog import Watchdog

if TYPE_CHECKING:
    from distributed import Client

_SCANNED_BY_WORKERS = 1 << 30
"""Bytes to scan for the beginnings of records, from which workers do it: fewer take threads here half a second."""

_HEAD_START_SECONDS = 0.2
"""The time that planning has before a cluster starts beside it: most errors of a request show by then."""

_SECONDS_BETWEEN_CLAIMS = 2.0
"""After so long a job notices that another has overwritten its folder."""


@dataclass(frozen=True)
class Running:
    """A cluster that runs already. Its workers' devices determine the chunk size, and the workers may help to plan."""

    client: Client

    def connect(self) -> AbstractContextManager[Client]:
        return nullcontext(self.client)


@dataclass(frozen=True)
class OnDemand:
    """A cluster that is started while the job is planned; it ends with the job."""

    connect: Callable[[], AbstractContextManager[Client]]


@dataclass(frozen=True)
class Request:
    """What the user requests. folder: None for rows in memory. stop: called before each chunk is submitted."""

    source: Any
    folder: OutputFolder | None
    model: Model
    cluster: Running | OnDemand
    options: Options
    progress: Progress
    stop: Callable[[], bool]


@dataclass(frozen=True)
class Engines:
    """The model on every worker. key: by which tasks find it. backend: that they share. seconds: the job waited."""

    key: str
    backend: Backend
    seconds: float


@dataclass(frozen=True)
class Prepared:
    """A request whose input is found. identity: SHA-256 of the listing of its files, or of what identifies rows in
    memory. before: the manifest of a job that is resumed or updated. saved: its plan, with those of its updates, where
    it is there. update: the one that is begun or continued. growth: how the input differs from what was labelled.
    began, started: the same moment by `time.perf_counter` and in seconds since the epoch.
    """

    request: Request
    found: Given
    identity: str
    before: Manifest | None
    saved: SavedPlan | None
    update: Update | None
    growth: Growth | None
    began: float
    started: float


@dataclass(frozen=True)
class Planned:
    """A prepared job whose groups are known. seconds: planning took, without the loading of engines."""

    prepared: Prepared
    input: JobInput
    columns: Columns
    chunk_rows: int
    seconds: float


@dataclass(frozen=True)
class Executed:
    """A job whose chunks are done. counted: the digest of the entry of each chunk in the report's totals."""

    report: JobReport
    fingerprint: Fingerprint
    counted: dict[str, bytes]


def run_job(request: Request) -> JobReport:
    """Run all phases; for an update that had been begun, and the files that came since, twice."""
    prepared = prepare(request)
    update = prepared.update
    if prepared.before is not None and update is not None and update.is_empty:
        return _nothing_new(prepared, prepared.before, update)
    report = _run(prepared)
    if request.options.update and update and update.growth.later and not (report.run.set_aside or report.run.stopped):
        return run_job(request)
    return report


def _run(prepared: Prepared) -> JobReport:
    """Raises what stops the job. Where its output is out of reach, a message says so once, with the remedy."""
    try:
        return _phases(prepared)
    except OutputUnavailable as error:
        raise OutputUnavailable(f"{error.message}. What is committed stays: continue with --resume") from error


def _phases(prepared: Prepared) -> JobReport:
    request = prepared.request
    if isinstance(request.cluster, Running):
        client = request.cluster.client
        engines = _start_engines(client, request)
        planned = plan(prepared, engines, partial(_scanner, prepared, lambda: client))
        return finish(planned, execute(planned, client, engines))
    with beside(_with_engines(request), _HEAD_START_SECONDS) as started:
        planned = plan(prepared, None, partial(_scanner, prepared, lambda: started()[0]))
        began = time.perf_counter()
        client, engines = started()
        engines = replace(engines, seconds=time.perf_counter() - began)
        executed = execute(planned, client, engines)
    return finish(planned, executed)


@contextmanager
def _with_engines(request: Request) -> Iterator[tuple[Client, Engines]]:
    with request.cluster.connect() as client:
        yield client, _start_engines(client, request)


def prepare(request: Request) -> Prepared:
    """Find the input. Raises UsageError for no input, or where the job to be resumed is a different one."""
    began, started = time.perf_counter(), time.time()
    folder, options = request.folder, request.options
    options.selection(request.model)
    if options.resume and isinstance(request.source, Stdin):
        raise UsageError("stdin cannot be read a second time, so its job cannot be resumed: save it to a file first")
    symbols, length = len(request.model.alphabet), request.model.length
    whole, by_content = options.hash == "full", folder is not None
    found = identify(
        request.source,
        symbols,
        length,
        whole_hash=whole,
        by_content=by_content,
        root=options.root,
        endpoint=options.endpoint,
    )
    if folder and options.resume and folder.is_begun and isinstance(found, Rows) and found.once:
        raise UsageError(
            f"cannot resume {folder.path}: a {found.held.kind} is read once, so which of its rows the job has labelled "
            "is not known. Start again with --overwrite. What a list, a table or files hold can be resumed"
        )
    identity = listing_digest(ListedFile(**about) for about in found.identity)
    if folder:
        folder.store.probe()
    before = folder.take_up() if folder and (options.resume or options.update) else None
    saved = update = growth = None
    if folder and before:
        # Checked before its plan is used; the backend is compared once it is known.
        chunk_rows = options.chunk_size or before.fingerprint.settings.chunk_size
        settings, digest = options.settings(chunk_rows), request.model.digest
        now = msgspec.structs.replace(before.fingerprint, settings=settings, model=digest, writer=WRITER)
        _refuse_difference(folder, before.fingerprint, now, options.update)
        update = begin(folder, before, found, options.strict) if options.update else _continued(folder, before, found)
        if update is not None:
            growth = update.growth
        elif (before.updates or folder.plan() is not None) and isinstance(found, Files):
            saved = folder.checked_plan(before)
        if saved is not None and isinstance(found, Files):
            differ = changes(saved, found)
            if differ.changed or differ.gone:
                raise UsageError(f"cannot resume {folder.path}: {differ}. Start again with --overwrite")
            growth = Growth(0, len(saved.files), later=len(differ.new)) if differ.new else None
            found = only_known(saved, found)
        elif update is None and before.fingerprint.input != identity:
            raise UsageError(f"cannot resume {folder.path}: the input changed. Start again with --overwrite")
        identity = before.fingerprint.input
    elif folder and options.update and folder.is_begun:
        raise OutputError(f"{folder.path / MANIFEST} is damaged: --resume repairs this")
    return Prepared(request, found, identity, before, saved, update, growth, began, started)


def _continued(folder: OutputFolder, before: Manifest, found: Given) -> Update | None:
    """The update that was interrupted, for a job that is resumed. Raises UsageError where its files have changed."""
    update = unfinished(folder, before, found)
    if update is None or update.saved is None or not isinstance(found, Files):
        return None
    differ = changes(update.saved, found)
    if differ.changed or differ.gone:
        differ = replace(differ, new=())
        raise UsageError(f"cannot resume the update of {folder.path}: {differ}. --update begins it anew without that")
    return update


def _nothing_new(prepared: Prepared, before: Manifest, update: Update) -> JobReport:
    """The report of an update that has nothing to do. Nothing is written, and no worker is started."""
    request, fingerprint = prepared.request, before.fingerprint
    options, model, folder, found = request.options, request.model, request.folder, prepared.found
    facts = JobFacts(
        model.name,
        model.classes,
        None if folder is None else str(folder.path),
        str(fingerprint.backend),
        fingerprint.backend.precision,
        fingerprint.settings.chunk_size,
        meant_for=model.meant_for,
        left_out=found.left_out if isinstance(found, Files) else (),
        growth=update.growth,
    )
    problems = found.problems if isinstance(found, Files) else ()
    tally = Tally.after(update.earlier, model.classes, problems, [(path, None) for path, _ in problems])
    schema = folder.schema(before) if folder else pa.schema([])
    results = Results(schema, folder, fingerprint.id, origin_of(request.source, options.selection(model)))
    report = JobReport(facts, tally, Run(Timeline(prepared.started, Clock(0.0, 0.0))), results)
    report.run.seconds = time.perf_counter() - prepared.began
    explain(report, options.trace, options.report)
    request.progress.finished(report)
    return report


def plan(prepared: Prepared, engines: Engines | None, scanner: Scanners) -> Planned:
    """Put the input into groups, or take these from the job to be resumed. engines: of a cluster that runs already.
    scanner: makes the one for large files, which are scanned beside the job.

    Raises UsageError for columns that do not exist, and with `strict` SourceError for input that cannot be read.
    """
    request, before = prepared.request, prepared.before
    from cluster.protocol import count_gpus

    options, model = request.options, request.model
    device = engines.backend.device if engines else expected_device(options.device, count_gpus())
    chunk_rows = options.chunk_size or (before.fingerprint.settings.chunk_size if before else CHUNK_ROWS[device])
    saved = None
    if request.folder and before and isinstance(prepared.found, Files):
        settings, path = before.fingerprint.settings, request.folder.path / PLAN
        asked = replace(
            options.selection(model),
            text=settings.text_columns,
            kept=settings.kept_columns,
            keep_all=settings.keep_all,
            truth=settings.truth_column,
            header=settings.columns,
            encoding=settings.encoding,
            delimiter=settings.delimiter,
        )
        data = request.folder.plan()
        if prepared.update is not None:
            saved = prepared.update.plan(prepared.found, asked)
        elif before.updates and prepared.saved is not None:
            saved = plan_again(prepared.saved, prepared.found.found, asked)
        elif data is not None:
            saved = plan_from(data, prepared.found.found, asked, settings.chunk_size, path, settings.limit)
    if saved is not None and before and (prepared.update or before.updates):
        job_input = planned_files(saved, scanner)
    else:
        job_input = open_input(prepared.found, options.selection(model), chunk_rows, saved, scanner, options.limit)
    if options.strict and job_input.problems:
        raise SourceError(f"{job_input.problems[0][1]} (--strict stops here)")
    columns = columns_of(job_input.selection, model.classes, options.top_k, options.scores, options.where)
    if request.folder is not None:
        check_writable(columns.written, PartNames(options.format, options.partition_by is not None), model.classes)
    seconds = time.perf_counter() - prepared.began - (engines.seconds if engines else 0.0)
    return Planned(prepared, job_input, columns, chunk_rows, seconds)


def execute(planned: Planned, client: Client, engines: Engines) -> Executed:
    """Run every chunk that is not committed yet. Raises what stops the job; chunks committed by then are kept."""
    began = time.perf_counter()
    prepared, request = planned.prepared, planned.prepared.request
    options, model, folder = request.options, request.model, request.folder
    backend = engines.backend
    fingerprint = Fingerprint(prepared.identity, model.digest, backend, options.settings(planned.chunk_rows), WRITER)
    job = _job(planned, engines, fingerprint)
    answers = None if options.truth is None else os.fspath(options.truth)
    no_gpu = None
    if options.device == "auto" and backend.device == "cpu":
        no_gpu = next(iter(client.run(why_gpu_unused).values()), None)
    left_out = prepared.found.left_out if isinstance(prepared.found, Files) else ()
    facts = JobFacts(
        model.name,
        model.classes,
        None if job.out is None else str(job.out),
        str(backend),
        backend.precision,
        planned.chunk_rows,
        answers,
        no_gpu,
        model.meant_for,
        left_out,
        prepared.growth,
    )
    unread = planned.input.plan.unread if planned.input.plan else ()
    update = prepared.update
    tally = Tally.after(update.earlier if update else None, model.classes, planned.input.problems, unread)
    origin = origin_of(request.source, planned.input.selection)
    results = Results(planned.columns.written, folder, fingerprint.id, origin)
    groups = planned.input.plan.groups if planned.input.plan else ()
    reach = Reach(planned.input.rows, {group.number: group.bytes for group in groups})
    report = JobReport(facts, tally, Run(_timeline(client, prepared.started), reach), results)
    report.run.timings |= {"plan": planned.seconds, "start": time.perf_counter() - began + engines.seconds}
    before = Committed({}, {})
    if folder and prepared.before:
        _refuse_difference(folder, prepared.before.fingerprint, fingerprint, options.update)
        if update is not None and planned.input.plan is not None:
            if update.saved is None:
                folder.begin_update(update.number, plan_bytes(planned.input.plan), fingerprint.id)
            else:
                folder.go_on(fingerprint.id)
        elif planned.input.plan is not None and folder.plan() is None:
            folder.restore_plan(plan_bytes(planned.input.plan), fingerprint.id)
    elif folder:
        plan = planned.input.plan
        saved = None if plan is None else plan_bytes(plan)
        folder.create(fingerprint, planned.columns.written, saved, options.resume, options.overwrite)
    if folder and (options.resume or (update and update.saved)):
        number = update.number if update else 0
        before = folder.committed(fingerprint.id, model.classes, planned.columns.written, number)
    report.committed_before(before)
    counted = {name: entry.digest for name, entry in before.chunks.items()}
    chunks = planned.input.chunks(before.done, partial(_close, folder, fingerprint.id, report))
    _compute(client, planned, job, report, chunks, counted)
    if options.profile:
        report.run.profile = _profile(client, engines.key)
    return Executed(report, fingerprint, counted)


def finish(planned: Planned, executed: Executed) -> JobReport:
    """Check that every row is accounted for, and that no input has changed; write the totals, report and timeline.

    Raises BroadsheetError where a row is not accounted for, OutputError where a file cannot be written.
    """
    prepared, report, job = planned.prepared, executed.report, executed.fingerprint.id
    run = report.run
    folder, options = prepared.request.folder, prepared.request.options
    report.tally.check()
    _set_aside_changed(planned, run, executed.fingerprint)
    run.seconds = time.perf_counter() - prepared.began
    if folder is not None:
        committing = time.perf_counter()
        folder.check_claim(job)
        if not run.set_aside and not run.stopped:
            number = prepared.update.number if prepared.update else 0
            updates = len(prepared.before.updates) if prepared.before else 0
            totals, schema = report.tally.totals(), planned.columns.written
            folder.finish(totals, schema, job, executed.counted, number, updates)
        run.timings["commit"] = time.perf_counter() - committing
        run.seconds = time.perf_counter() - prepared.began
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:6]}"
        folder.record_run(name, to_json(report.to_dict()), run.timeline.spans.to_table())
    explain(report, options.trace, options.report)
    prepared.request.progress.finished(report)
    return report


def _set_aside_changed(planned: Planned, run: Run, fingerprint: Fingerprint) -> None:
    """Set aside the chunks of input that is no longer what was planned. With `strict`, raises SourceError instead."""
    options = planned.prepared.request.options
    changed = [] if planned.input.plan is None else changed_chunks(planned.input.plan)
    if options.settings(planned.chunk_rows).truth != fingerprint.settings.truth:
        changed.append((os.fspath(options.truth or ""), "the answers have changed since the job was planned"))
    if changed and options.strict:
        raise SourceError(f"{changed[0][1]} (--strict stops here)")
    before = {name for name, _ in run.set_aside}
    run.set_aside += [(name, reason) for name, reason in changed if name not in before]


def _refuse_difference(folder: OutputFolder, before: Fingerprint, now: Fingerprint, update: bool) -> None:
    """Raise UsageError, naming what changed, unless the job begun in the folder is this one."""
    found = list(before.differences(now))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        what = "update" if update else "resume"
        raise UsageError(f"cannot {what} {folder.path}: {found[0]}{more}. Start again with --overwrite")


def _start_engines(client: Client, request: Request) -> Engines:
    from cluster import start_engines

    began, options = time.perf_counter(), request.options
    with Watchdog(client, "the model is not loaded", request.progress.warn, request.progress.patience):
        key, backend = start_engines(
            client, request.model, options.device, options.precision, options.kernels, options.allow_mixed
        )
    return Engines(key, backend, time.perf_counter() - began)


def _scanner(prepared: Prepared, client: Callable[[], Client]) -> AbstractContextManager[Scanner | None]:
    """The workers of a cluster, where there is much to scan; else None: threads here scan."""
    found = prepared.found
    if not isinstance(found, Files) or found.bytes_to_scan < _SCANNED_BY_WORKERS:
        return nullcontext()
    from cluster.scanner import workers_scanner

    return workers_scanner(client())


def _job(planned: Planned, engines: Engines, fingerprint: Fingerprint) -> Job:
    """The values that every task needs."""
    request = planned.prepared.request
    options, model = request.options, request.model
    return Job(
        selection=planned.input.selection,
        classes=model.classes,
        engine=engines.key,
        backend=None if options.allow_mixed else engines.backend,
        columns=planned.columns,
        names=fingerprint.settings.names,
        top_k=options.top_k,
        strict=options.strict,
        chunk_rows=planned.chunk_rows,
        out=request.folder.path if request.folder else None,
        fingerprint=fingerprint.id,
        each_kernel=options.profile,
        examples=EXAMPLES if options.report else 0,
    )


def _timeline(client: Client, started: float) -> Timeline:
    from cluster import client_clock

    clock = client_clock(client)
    return Timeline(started + clock.offset, clock)


def _close(folder: OutputFolder | None, job: str, report: JobReport, end: GroupEnd) -> None:
    """Commit the end of what is not closed by a worker, where there is an output folder."""
    if folder is not None:
        folder.close(end, job)
    report.close(end)


def _compute(
    client: Client, planned: Planned, job: Job, report: JobReport, chunks: Iterator[Source], counted: dict[str, bytes]
) -> None:
    """Run the chunks. counted: the digests of the entries in the report, by chunk; those of this run are added."""
    began = time.perf_counter()
    from cluster.progress import DashboardProgress

    request, timeline = planned.prepared.request, report.run.timeline
    progress = DashboardProgress(request.progress, client, report)
    progress.start(planned.input.rows, client.dashboard_link)
    Thread(target=_tell_what_is_slow, args=(planned.input, report.run, progress), daemon=True).start()
    try:
        checked = began
        with Watchdog(client, "no chunk has finished", progress.warn, progress.patience) as watchdog:
            sources = _until(request.stop, timeline.watch(chunks), report.run)
            for event in classify_chunks(client, sources, job, watchdog, request.stop):
                for one in _found(event, request.folder, job):
                    if isinstance(one, Done):
                        if one.name in counted:
                            continue  # a group is read again, of which it was committed before
                        counted[one.name] = one.entry.digest
                    report.add(one)
                progress.advance(report)
                if request.folder and time.perf_counter() - checked > _SECONDS_BETWEEN_CLAIMS:
                    request.folder.check_claim(job.fingerprint)
                    checked = time.perf_counter()
    finally:
        progress.stop()
    report.run.timings["classify"] = time.perf_counter() - began
    timeline.ended = time.time() + timeline.clock.offset


def _tell_what_is_slow(job_input: JobInput, run: Run, progress: Progress) -> None:
    """Say it at the beginning of a job, which takes long if it is so, and does not wait for this."""
    if job_input.plan is not None and (remark := slow_to_read(job_input.plan.files)):
        run.remarks.append(remark)
        progress.warn(remark)


def _found(event: Event, folder: OutputFolder | None, job: Job) -> Iterator[Event]:
    """The event; for what is set aside, first the chunks of it that were committed, and then what is left."""
    if folder is None or not isinstance(event, SetAside):
        yield event
        return
    entries = folder.chunks_of(event.name if event.group is None else event.group, job.fingerprint, job.names)
    yield from (Done(name, entry, [], None, []) for name, entry in entries.items())
    if event.group is not None:
        names = (part_name(event.group, chunk) for chunk in itertools.count())
        yield replace(event, name=next(name for name in names if name not in entries))
    elif not entries:
        yield event


def _until(stop: Callable[[], bool], chunks: Iterator[Source], run: Run) -> Iterator[Source]:
    for chunk in chunks:
        if stop():
            run.stopped = True
            return
        yield chunk


def _profile(client: Client, key: str) -> Any:
    """The kernels of one worker: the others compute in the same way."""
    first = min(client.scheduler_info(n_workers=-1)["workers"])
    return client.run(profile_engine, key, workers=[first])[first]
