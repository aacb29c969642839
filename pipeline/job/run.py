"""Runs a job in four steps, each a function of the result of the one before.

    prepare -> plan -> run_chunks -> finish

1. `prepare` checks the request, lists the input, and decides by the folder how the job begins.
2. `plan` cuts the input into ranges and finds their columns; meanwhile a cluster starts and loads the engines.
3. `run_chunks` runs every chunk through the graph.
4. `finish` writes the totals, the report and the timeline.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.filesize import decimal

from ..engine.open import expected_device
from ..errors import OutputError, OutputUnavailable, SourceError, UsageError, counted
from ..options import Options
from ..output.columns import columns_of
from ..output.compact import compact_folder
from ..output.finish import finish as finish_folder
from ..output.folder import OutputFolder
from ..output.formats import check_writable
from ..output.layout import PLAN, RUNS
from ..output.record import Fingerprint, ListedFile, SavedPlan, from_json, to_json
from ..output.saved_plan import listing_digest
from ..output.sidecars import check_names
from ..processes.threads import in_background
from ..report.facts import RunFacts
from ..report.job import JobReport
from ..report.problems import as_json_lines, troubles
from ..report.results import Results
from ..report.summary import unknown_labels_line
from ..report.tally import Tally
from ..report.timeline import Timeline, save_trace
from ..source.inputs import Given, RowsInMemory, open_input, planned_files
from ..source.memory.stdin import Stdin
from ..source.plan.files import Files, divided
from ..source.plan.plan import changed_chunks
from ..source.rows.limits import chunk_rows as usual_chunk_rows
from ..source.sample import with_class_numbers
from ..storage.disk import refuse_outputs, write_file
from ..storage.names import is_url
from ..telemetry.spans import Clock
from .beginning import (
    Engines,
    JobRequest,
    Outcome,
    Planned,
    Prepared,
    Resumed,
    Update,
    beginning_of,
    named_input,
    only_known,
    refuse_files,
)
from .chunks import facts_of, run_chunks
from .waits import told_waits
from .watchdog import Watchdog
from .worker import SMALL_BYTES, read_in_processes

if TYPE_CHECKING:
    from distributed import Client

_BYTES_OF_A_READER = 16 << 20
"""A GPU's worker starts one reader process for this many stored bytes: reading them takes about as long as a start."""

_HEAD_START_SECONDS = 0.2
"""Planning runs this long before a cluster starts beside it. Most errors of a request appear within this time."""


def run_job(request: JobRequest) -> JobReport:
    """Run all steps.

    An update runs them twice if a job or an update was interrupted and files have been added since.
    """
    options = request.options
    if options.update and request.folder is not None and _is_interrupted(request.folder):
        goes_on = options.replaced(update=False, changed=False, resume=True)
        report = run_job(replace(request, options=goes_on, puts_off_changed=options.changed))
        growth = report.job.growth
        if report.run.set_aside or report.run.stopped or not (growth and (growth.later or growth.put_off)):
            return report
    request.progress.phase("finding the input")
    with told_waits(request.progress.warn):
        prepared = prepare(request)
    beginning = prepared.beginning
    if isinstance(beginning, Update) and beginning.is_empty:
        return _nothing_new(prepared, beginning)
    report = _run(prepared)
    later = options.update and isinstance(beginning, Update) and beginning.growth.later
    if later and not (report.run.set_aside or report.run.stopped):
        return run_job(request)
    return report


def _is_interrupted(folder: OutputFolder) -> bool:
    """Return whether an unfinished job is in the folder."""
    try:
        return folder.is_begun and folder.manifest().totals is None
    except OutputError:
        return False


def _run(prepared: Prepared) -> JobReport:
    """Run the steps, and raise the error that stops the job.

    If the output is out of reach, the message adds the remedy.
    """
    try:
        return _steps(prepared)
    except OutputUnavailable as error:
        raise OutputUnavailable(f"{error.message}. What is committed stays: continue with --resume") from error


def _steps(prepared: Prepared) -> JobReport:
    request = prepared.request
    if not callable(request.client):
        engines = _start_engines(request.client, prepared)
        with told_waits(request.progress.warn):
            planned = _planned(prepared, engines)
        return finish(planned, run_chunks(planned, request.client, engines))
    with in_background(_with_engines(request.client, prepared), _HEAD_START_SECONDS) as started:
        with told_waits(request.progress.warn):
            planned = _planned(prepared, None)
        began = time.perf_counter()
        request.progress.phase("starting workers, which load the model")
        client, engines = started()
        engines = replace(engines, seconds=time.perf_counter() - began)
        outcome = run_chunks(planned, client, engines)
    return finish(planned, outcome)


def _planned(prepared: Prepared, engines: Engines | None) -> Planned:
    """Tell the user how much is planned, and return the plan."""
    found = prepared.found.found if isinstance(prepared.found, Files) else ()
    if found:
        size = decimal(sum(file.size or 0 for file in found))
        prepared.request.progress.phase(f"planning {counted(len(found), 'file')}, {size}")
    return plan(prepared, engines)


@contextmanager
def _with_engines(
    connect: Callable[[], AbstractContextManager[Client]], prepared: Prepared
) -> Iterator[tuple[Client, Engines]]:
    with connect() as client:
        yield client, _start_engines(client, prepared)


def prepare(request: JobRequest) -> Prepared:
    """Find the input. Raises UsageError if there is none, or if the job to be resumed is a different one."""
    # Check the request, and find its input.
    began, started = time.perf_counter(), time.time()
    folder, options = request.folder, request.options
    options.selection(request.models)
    models = [model.name for model in request.models.loaded]
    refuse_files(request.source, folder.path if folder else None, models, options)
    if options.resume and isinstance(request.source, Stdin):
        raise UsageError("stdin cannot be read a second time, so its job cannot be resumed: save it to a file first")
    hashing = {"whole_hash": options.hash == "full", "by_content": folder is not None}
    given = named_input(request.source, request.models, options, **hashing)
    files = given.found if isinstance(given, Files) else ()
    # Check that the output overwrites no input, and that the job can be resumed.
    remote = [file.location for file in files if is_url(file.location)]  # `refuse_files` does not list these
    refuse_outputs({}, True, lambda: remote, str(folder.path) if folder else None)
    given = _share_of(given, request)
    if folder and options.resume and folder.is_begun and isinstance(given, RowsInMemory) and given.once:
        raise UsageError(
            f"cannot resume {folder.path}: a {given.held.kind} is read once, so which of its rows the job has labelled "
            "is not known. Start again with --overwrite. What a list, a table or files hold can be resumed"
        )
    if folder and options.part_rows and not isinstance(given, Files):
        raise UsageError("--part-rows is for files, and these rows are in memory: give a larger --chunk-size")
    # Compare with an earlier job in the folder, and leave out files that it does not know.
    identity = listing_digest(ListedFile(**about) for about in given.identity)
    if folder:
        folder.store.probe()
    beginning = beginning_of(request, given, identity)
    if beginning is not None:
        identity = beginning.before.fingerprint.input
    if isinstance(beginning, Resumed) and beginning.saved is not None and isinstance(given, Files):
        given = only_known(beginning.left or beginning.saved, given)
    return Prepared(request, given, identity, beginning, began, started)


def _share_of(given: Given, request: JobRequest) -> Given:
    """Return the requested share of the input.

    A job that resumes keeps the files that it began with. Raises UsageError.
    """
    shard, folder = request.options.shard, request.folder
    if shard is None:
        return given
    if folder is None or not isinstance(given, Files):
        raise UsageError("--shard is for files, whose labels go into a folder: leave it out")
    known = None
    with suppress(OutputError):  # a damaged plan is reported, or repaired, by a later step
        if request.options.resume and folder.is_begun and (saved := folder.plan()) is not None:
            known = {file.path for file in from_json(saved, SavedPlan, PLAN).files}
    return divided(given, shard, known)


def _nothing_new(prepared: Prepared, update: Update) -> JobReport:
    """Return the report of an update that has nothing to label.

    No worker is started. Nothing is written, unless small parts are to be joined.
    """
    request, fingerprint = prepared.request, update.before.fingerprint
    options, models, folder, given = request.options, request.models, request.folder, prepared.found
    problems, left_out = (given.problems, given.left_out) if isinstance(given, Files) else ((), ())
    unread = [(path, None) for path, _ in problems]
    tally = Tally.after(update.earlier, models.first.classes, problems, unread, left_out)
    schema = folder.schema(update.before) if folder else pa.schema([])
    results = Results(schema, folder, fingerprint.id, request.source, options.selection(models))
    facts = facts_of(prepared, fingerprint.backend, fingerprint.settings.chunk_size)
    facts = replace(facts, answers=None)  # nothing is compared
    report = JobReport(facts, tally, RunFacts(Timeline(prepared.started, Clock(0.0, 0.0))), results)
    if folder is not None:
        _join_parts(folder, request, report.run)
    report.run.seconds = _seconds_of(prepared)
    _explain(report, options)
    request.progress.finished(report)
    return report


def _join_parts(folder: OutputFolder, request: JobRequest, run: RunFacts) -> None:
    """Join small parts, if the options ask for it."""
    if request.options.part_rows is not None:
        request.progress.phase("joining small parts")
        run.compacted = compact_folder(folder, request.options.part_rows, None)


def plan(prepared: Prepared, engines: Engines | None) -> Planned:
    """Cut the input into ranges, or use those of the job to be resumed. engines: those of a cluster that already runs.

    Raises UsageError for columns that do not exist, and with `strict` SourceError for input that cannot be read.
    """
    request, beginning = prepared.request, prepared.beginning
    before = beginning.before if beginning else None
    from ...cluster.protocol import count_gpus

    # Choose the number of rows in a chunk. A resumed job keeps its number.
    options, models = request.options, request.models
    device = engines.backend.device if engines else expected_device(options.device, count_gpus())
    usual = usual_chunk_rows(device, options.cost_of_row(models))
    chunk_rows = options.chunk_size or (before.fingerprint.settings.chunk_size if before else usual)
    # Use the saved plan of an earlier run, or plan the input.
    saved, cut = None, options.layout == "parts"
    if request.folder and beginning and isinstance(prepared.found, Files):
        saved = beginning.plan(request.folder, prepared.found, options.selection(models), cut)
    if saved is not None and beginning and beginning.is_updated:
        job_input = planned_files(saved)
    else:
        selection = options.selection(models)
        if saved is None:
            selection = with_class_numbers(prepared.found, selection)
        job_input = open_input(prepared.found, selection, chunk_rows, saved, options.limit, cut)
    # Check the input and the columns of the output.
    if options.strict and job_input.problems:
        raise SourceError(f"{job_input.problems[0][1]} (--strict stops here)")
    columns = columns_of(job_input.selection, options.model_columns(models), options.where)
    if options.layout != "parts":
        if request.folder is None or job_input.plan is None:
            raise UsageError("--layout attributes writes a file beside each input file: give a folder for these")
        known = [file.path for file in beginning.whole.files] if isinstance(beginning, Update) else []
        check_names([*known, *(file.path for file in job_input.plan.files)], options.format)
    # Check that the parts can hold these columns.
    if request.folder is not None:
        names = options.settings(chunk_rows, models).names
        check_writable(columns.written, names, columns.models[0].classes)
    seconds = time.perf_counter() - prepared.began - (engines.seconds if engines else 0.0)
    return Planned(prepared, job_input, columns, chunk_rows, seconds)


def finish(planned: Planned, outcome: Outcome) -> JobReport:
    """Check that every row is accounted for, and that no input has changed; write the totals, report and timeline.

    Raises BroadsheetError if a row is not accounted for, and OutputError if a file cannot be written.
    """
    # Check the counts, and set aside the ranges whose files have changed.
    prepared, report, job = planned.prepared, outcome.report, outcome.fingerprint.id
    run = report.run
    folder, options = prepared.request.folder, prepared.request.options
    report.tally.check()
    _set_aside_changed(planned, run, outcome.fingerprint)
    # Write the totals, and join small parts.
    if folder is not None:
        prepared.request.progress.phase("checking what was written")
        committing = time.perf_counter()
        folder.check_claim(job)
        if not run.set_aside and not run.stopped:
            beginning = prepared.beginning
            number = beginning.number if isinstance(beginning, Update) else 0
            updates = len(beginning.before.updates) if beginning else 0
            totals, schema = report.tally.totals, planned.columns.written
            finish_folder(folder, totals, schema, job, outcome.counted, number, updates)
            _join_parts(folder, prepared.request, run)
        run.timings["commit"] = time.perf_counter() - committing
    # Record this run in the folder, and write the report and the timeline.
    run.seconds = _seconds_of(prepared)
    if folder is not None:
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:6]}"
        found = troubles(report)
        run.problems = f"{folder.path / RUNS / name}.problems.jsonl" if found else None
        folder.record_run(name, to_json(report.to_dict()), as_json_lines(found), run.timeline.spans.to_table())
    _explain(report, options)
    prepared.request.progress.finished(report)
    _refuse_unknown_truth(report, options)
    return report


def _seconds_of(prepared: Prepared) -> float:
    """Return the seconds since the command began, or, without a command, since the job began."""
    began = prepared.request.progress.began
    return time.perf_counter() - (prepared.began if began is None else began)


def _refuse_unknown_truth(report: JobReport, options: Options) -> None:
    """Raise UsageError if no true class is one of the model's: the column is wrong, or another model is needed."""
    judged = report.confusion
    if judged is not None and judged.without_truth and not judged.rows and not judged.unlabelled.any():
        column = "the file of --truth" if options.label_column is None else f"column {options.label_column!r}"
        unknown = unknown_labels_line(report.tally.unknown_labels, judged.classes)
        raise UsageError(
            f"{column} holds no class of the model in any of {judged.without_truth:,} rows, so nothing could be "
            f"compared. The labels stay. The classes are {', '.join(judged.classes)}"
            + (f"; {unknown}" if unknown else "")
        )


def _explain(report: JobReport, options: Options) -> None:
    """Write the requested trace and page. Raises OutputError where one cannot be written."""
    if options.trace is not None:
        save_trace(report.run.timeline, os.fspath(options.trace))
    if options.report is not None:
        from ..report.page import page  # Matplotlib is slow to import

        write_file(options.report, page(report).encode())
        report.run.page = os.fspath(options.report)


def _set_aside_changed(planned: Planned, run: RunFacts, fingerprint: Fingerprint) -> None:
    """Set aside the chunks whose input has changed since the job was planned.

    With `strict`, raise SourceError instead.
    """
    options = planned.prepared.request.options
    changed = [] if planned.input.plan is None else changed_chunks(planned.input.plan)
    if options.settings(planned.chunk_rows, planned.prepared.request.models).truth != fingerprint.settings.truth:
        changed.append((os.fspath(options.truth or ""), "the answers have changed since the job was planned"))
    if changed and options.strict:
        raise SourceError(f"{changed[0][1]} (--strict stops here)")
    before = {name for name, _ in run.set_aside}
    run.set_aside += [(name, reason) for name, reason in changed if name not in before]


def _start_engines(client: Client, prepared: Prepared) -> Engines:
    from ...cluster import start_engines
    from ...cluster.interrupts import heard_in_collections

    heard_in_collections()
    request, given = prepared.request, prepared.found
    began, options = time.perf_counter(), request.options
    stored = sum(file.stored for file in given.found) if isinstance(given, Files) else 0
    at_once = 0 if stored <= SMALL_BYTES else -(-stored // _BYTES_OF_A_READER)
    reading = partial(read_in_processes, at_once=at_once)
    engine_options = (options.device, options.precision, options.kernels, options.allow_mixed, reading)
    with Watchdog(client, "the model is not loaded", request.progress.warn, request.progress.patience):
        started = [start_engines(client, model, *engine_options) for model in request.models.loaded]
    keys, backends = zip(*started, strict=True)
    return Engines(keys, backends[0], time.perf_counter() - began)
