"""A job in its phases: prepare -> plan -> execute -> finish, each a function of the result of the one before.

prepare: check the request, and an output folder that may exist; list the input. plan: put its files into groups, and
find its columns; beside it a cluster starts, and loads the engines. execute: run every chunk through the graph. finish:
write the totals, the report and the timeline.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from ..engine.open import expected_device
from ..errors import OutputError, OutputUnavailable, SourceError, UsageError
from ..options import Options
from ..output.columns import columns_of
from ..output.finish import finish as finish_folder
from ..output.folder import OutputFolder
from ..output.formats import check_writable
from ..output.layout import MANIFEST, PLAN
from ..output.record import WRITER, Fingerprint, ListedFile, Manifest, listing_digest, to_json
from ..output.saved_plan import changes, plan_again, plan_from
from ..processes.threads import in_background
from ..report.facts import Growth, JobFacts, RunFacts
from ..report.job import JobReport
from ..report.perfetto import save_trace
from ..report.results import Results, origin_of
from ..report.tally import Tally
from ..report.timeline import Timeline
from ..source.find.files import Files
from ..source.inputs import Given, Rows, Scanners, identify, open_input, planned_files
from ..source.limits import CHUNK_ROWS
from ..source.memory.stdin import Stdin
from ..source.open.changes import changed_chunks
from ..source.plan.scan import Scanner
from ..telemetry.spans import Clock
from .execute import execute, refuse_difference
from .phases import Engines, Executed, OnDemand, Planned, Prepared, Request, Running
from .update import Update, begin, only_known, unfinished
from .watchdog import Watchdog

if TYPE_CHECKING:
    from distributed import Client

_SCANNED_BY_WORKERS = 1 << 30
"""Bytes to scan for the beginnings of records, from which workers do it: fewer take threads here half a second."""

_HEAD_START_SECONDS = 0.2
"""The time that planning has before a cluster starts beside it: most errors of a request show by then."""


def run_job(request: Request) -> JobReport:
    """Run all phases; of an update twice, where a job or an update was interrupted and files have come since."""
    options = request.options
    if options.update and request.folder is not None and _is_interrupted(request.folder):
        report = run_job(replace(request, options=options.changed(update=False, resume=True)))
        if report.run.set_aside or report.run.stopped or not (report.job.growth and report.job.growth.later):
            return report
    prepared = prepare(request)
    update = prepared.update
    if prepared.before is not None and update is not None and update.is_empty:
        return _nothing_new(prepared, prepared.before, update)
    report = _run(prepared)
    if options.update and update and update.growth.later and not (report.run.set_aside or report.run.stopped):
        return run_job(request)
    return report


def _is_interrupted(folder: OutputFolder) -> bool:
    """Whether a job was begun there and is not finished."""
    try:
        return folder.is_begun and folder.manifest().totals is None
    except OutputError:
        return False


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
        planned = plan(prepared, engines, partial(_scanner, prepared, lambda: client), lambda: len(client.nthreads()))
        return finish(planned, execute(planned, client, engines))
    with in_background(_with_engines(request.cluster, request), _HEAD_START_SECONDS) as started:
        scanner = partial(_scanner, prepared, lambda: started()[0])
        planned = plan(prepared, None, scanner, lambda: len(started()[0].nthreads()))
        began = time.perf_counter()
        client, engines = started()
        engines = replace(engines, seconds=time.perf_counter() - began)
        executed = execute(planned, client, engines)
    return finish(planned, executed)


@contextmanager
def _with_engines(cluster: OnDemand, request: Request) -> Iterator[tuple[Client, Engines]]:
    with cluster.connect() as client:
        yield client, _start_engines(client, request)


def prepare(request: Request) -> Prepared:
    """Find the input. Raises UsageError for no input, or where the job to be resumed is a different one."""
    began, started = time.perf_counter(), time.time()
    folder, options = request.folder, request.options
    options.selection(request.models)
    if options.resume and isinstance(request.source, Stdin):
        raise UsageError("stdin cannot be read a second time, so its job cannot be resumed: save it to a file first")
    symbols, length = len(request.models.first.alphabet), request.models.first.length
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
        settings, digest = options.settings(chunk_rows, request.models), request.models.digest
        now = msgspec.structs.replace(before.fingerprint, settings=settings, model=digest, writer=WRITER)
        refuse_difference(folder, before.fingerprint, now, options.update)
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
    options, models, folder, found = request.options, request.models, request.folder, prepared.found
    facts = JobFacts(
        models.name,
        models.first.classes,
        None if folder is None else str(folder.path),
        str(fingerprint.backend),
        fingerprint.backend.precision,
        fingerprint.settings.chunk_size,
        meant_for=models.first.meant_for,
        models=tuple((model.name, model.classes) for model in models.every),
        left_out=found.left_out if isinstance(found, Files) else (),
        growth=update.growth,
    )
    problems = found.problems if isinstance(found, Files) else ()
    tally = Tally.after(update.earlier, models.first.classes, problems, [(path, None) for path, _ in problems])
    schema = folder.schema(before) if folder else pa.schema([])
    results = Results(schema, folder, fingerprint.id, origin_of(request.source, options.selection(models)))
    report = JobReport(facts, tally, RunFacts(Timeline(prepared.started, Clock(0.0, 0.0))), results)
    report.run.seconds = time.perf_counter() - prepared.began
    _explain(report, options)
    request.progress.finished(report)
    return report


def plan(prepared: Prepared, engines: Engines | None, scanner: Scanners, workers: Callable[[], int]) -> Planned:
    """Put the input into groups, or take these from the job to be resumed. engines: of a cluster that runs already.
    scanner: makes the one for large files, which are scanned beside the job. workers: how many there are.

    Raises UsageError for columns that do not exist, and with `strict` SourceError for input that cannot be read.
    """
    request, before = prepared.request, prepared.before
    from ...cluster.protocol import count_gpus

    options, models = request.options, request.models
    device = engines.backend.device if engines else expected_device(options.device, count_gpus())
    chunk_rows = options.chunk_size or (before.fingerprint.settings.chunk_size if before else CHUNK_ROWS[device])
    saved = None
    if request.folder and before and isinstance(prepared.found, Files):
        settings, path = before.fingerprint.settings, request.folder.path / PLAN
        asked = replace(
            options.selection(models),
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
        job_input = planned_files(saved, scanner, workers)
    else:
        selection = options.selection(models)
        job_input = open_input(prepared.found, selection, chunk_rows, saved, scanner, options.limit, workers)
    if options.strict and job_input.problems:
        raise SourceError(f"{job_input.problems[0][1]} (--strict stops here)")
    columns = columns_of(job_input.selection, options.model_columns(models), options.where)
    if request.folder is not None:
        names = options.settings(chunk_rows, models).names
        check_writable(columns.written, names, columns.models[0].labels)
    seconds = time.perf_counter() - prepared.began - (engines.seconds if engines else 0.0)
    return Planned(prepared, job_input, columns, chunk_rows, seconds)


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
            finish_folder(folder, totals, schema, job, executed.counted, number, updates)
        run.timings["commit"] = time.perf_counter() - committing
        run.seconds = time.perf_counter() - prepared.began
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:6]}"
        folder.record_run(name, to_json(report.to_dict()), run.timeline.spans.to_table())
    _explain(report, options)
    prepared.request.progress.finished(report)
    return report


def _explain(report: JobReport, options: Options) -> None:
    """Write the requested trace and page. Raises OutputError where one cannot be written."""
    try:
        if options.trace is not None:
            save_trace(report.run.timeline, os.fspath(options.trace))
        if options.report is not None:
            from ..report.page import save_page  # Matplotlib takes a while to load

            save_page(report, os.fspath(options.report))
            report.run.page = os.fspath(options.report)
    except OSError as error:
        raise OutputError(f"{error.filename} cannot be written: {error.strerror}") from error


def _set_aside_changed(planned: Planned, run: RunFacts, fingerprint: Fingerprint) -> None:
    """Set aside the chunks of input that is no longer what was planned. With `strict`, raises SourceError instead."""
    options = planned.prepared.request.options
    changed = [] if planned.input.plan is None else changed_chunks(planned.input.plan)
    if options.settings(planned.chunk_rows, planned.prepared.request.models).truth != fingerprint.settings.truth:
        changed.append((os.fspath(options.truth or ""), "the answers have changed since the job was planned"))
    if changed and options.strict:
        raise SourceError(f"{changed[0][1]} (--strict stops here)")
    before = {name for name, _ in run.set_aside}
    run.set_aside += [(name, reason) for name, reason in changed if name not in before]


def _start_engines(client: Client, request: Request) -> Engines:
    from ...cluster import start_engines
    from ...cluster.interrupts import heard_in_collections

    heard_in_collections()
    began, options = time.perf_counter(), request.options
    how = (options.device, options.precision, options.kernels, options.allow_mixed)
    with Watchdog(client, "the model is not loaded", request.progress.warn, request.progress.patience):
        found = [start_engines(client, model, *how) for model in request.models.every]
    keys, backends = zip(*found, strict=True)
    return Engines(keys, backends[0], time.perf_counter() - began)


def _scanner(prepared: Prepared, client: Callable[[], Client]) -> AbstractContextManager[Scanner | None]:
    """The workers of a cluster, where there is much to scan; else None: threads here scan."""
    found = prepared.found
    if not isinstance(found, Files) or found.bytes_to_scan < _SCANNED_BY_WORKERS:
        return nullcontext()
    from ...cluster.scanner import workers_scanner

    return workers_scanner(client())
