"""The step of a job that labels its chunks: it counts those that are committed, and runs the others in the graph."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

from ..engine.base import Backend
from ..engine.open import why_gpu_unused
from ..measures.examples import Shown
from ..options import Options
from ..output.account import Entries
from ..output.commit import commit_end, is_of
from ..output.folder import OutputFolder
from ..output.record import WRITER, Fingerprint
from ..output.saved_plan import plan_bytes
from ..report.facts import UPDATE_CHANGED, JobFacts, RunFacts
from ..report.job import JobReport, Progress
from ..report.results import Results
from ..report.tally import Reach, Tally
from ..report.timeline import Source, Timeline
from ..source.inputs import JobInput
from ..source.plan.files import Files
from ..source.plan.plan import RangeEnd, part_name, range_name
from ..source.sample import slow_to_read
from ..telemetry.read_by import OTHER_RANGES
from .again import refuse_difference, save_asked
from .beginning import Engines, Outcome, Planned, Prepared, Resumed, Update
from .graph import classify_chunks
from .progress import DashboardProgress
from .tasks import CommitReport, CommittedChunk, Event, Job, RowsComputed, SetAside, Stopped, profile_engine
from .watchdog import Watchdog

if TYPE_CHECKING:
    from distributed import Client

_SECONDS_BETWEEN_CLAIMS = 2.0
"""A job checks this often whether another job has overwritten its folder."""


def run_chunks(planned: Planned, client: Client, engines: Engines) -> Outcome:
    """Run every chunk that is not committed yet. Raises the error that stops the job; committed chunks stay."""
    # The fingerprint and the values that every task needs.
    began = time.perf_counter()
    prepared, request = planned.prepared, planned.prepared.request
    options, models, folder = request.options, request.models, request.folder
    backend = engines.backend
    settings = options.settings(planned.chunk_rows, models)
    fingerprint = Fingerprint(prepared.identity, models.digest, backend, settings, WRITER)
    job = _job(planned, engines, fingerprint)
    # The report, in which everything is counted.
    no_gpu = None
    if options.device == "auto" and backend.device == "cpu":
        no_gpu = next(iter(client.run(why_gpu_unused, on_error="ignore").values()), None)
    rules = planned.input.selection.rules
    facts = facts_of(prepared, backend, planned.chunk_rows, no_gpu)
    facts = replace(facts, label_numbers_from=rules.numbers_from, label_map=tuple(rules.classes_of))
    unread = planned.input.plan.unread if planned.input.plan else ()
    left_out = planned.input.plan.left_out if planned.input.plan else ()
    earlier = prepared.beginning.earlier if isinstance(prepared.beginning, Update) else None
    tally = Tally.after(earlier, models.first.classes, planned.input.problems, unread, left_out)
    results = Results(planned.columns.written, folder, fingerprint.id, request.source, planned.input.selection)
    of_files = planned.input.plan.ranges if planned.input.plan else ()
    reach = Reach(planned.input.rows, {range_.number: range_.bytes for range_ in of_files})
    report = JobReport(facts, tally, RunFacts(_timeline(client, prepared.started), reach), results)
    report.run.timings |= {"plan": planned.seconds, "start": time.perf_counter() - began + engines.seconds}
    # Count what earlier runs have committed, and run the rest.
    before = _open_folder(planned, folder, fingerprint) if folder else Entries({}, {})
    _count_earlier(report, before)
    counted = {name: entry.digest for name, entry in before.chunks.items()}
    ranges = planned.input.ranges(before, partial(_close, folder, fingerprint.id, report))
    _compute(client, planned, job, report, ranges, counted)
    if options.profile and models.loaded[0].encoder is None:  # the steps of an encoder have only spans
        report.run.profile = _profile(client, engines.keys[0])
    return Outcome(report, fingerprint, counted)


def facts_of(prepared: Prepared, backend: Backend, chunk_rows: int, no_gpu: str | None = None) -> JobFacts:
    """Return what is known about a job before its first chunk. no_gpu: why it does not use a GPU."""
    request, beginning = prepared.request, prepared.beginning
    models, truth = request.models, request.options.truth
    return JobFacts(
        model=models.name,
        classes=models.first.classes,
        output=None if request.folder is None else str(request.folder.path),
        backend=str(backend),
        precision=backend.precision,
        chunk_rows=chunk_rows,
        answers=None if truth is None else os.fspath(truth),
        no_gpu=no_gpu,
        meant_for=models.first.meant_for,
        growth=beginning.growth if beginning else None,
        models=tuple((model.name, model.classes) for model in models.every),
        max_quarantined=request.options.max_quarantined,
        max_unread=request.options.max_unread,
        files=_count_files(prepared),
        repair_flags=_repair_flags(request.options),
        second=next((model.second for model in models.loaded if model.cascade), "network"),
    )


def _count_files(prepared: Prepared) -> int:
    """Return the number of files that the job or the update labels; 0 for rows in memory."""
    if not isinstance(prepared.found, Files):
        return 0
    labelled = prepared.beginning.files if isinstance(prepared.beginning, Update) else prepared.found.found
    return len(labelled) + len(prepared.found.problems)


def _repair_flags(options: Options) -> str:
    """Return the flags for a job that labels files after they are repaired."""
    if options.shard is not None:
        return "of the merged folder, --update --changed"
    return UPDATE_CHANGED if options.limit is None else "--overwrite"


def _open_folder(planned: Planned, folder: OutputFolder, fingerprint: Fingerprint) -> Entries:
    """Start or continue the job in its folder, and return the entries that stay. Raises UsageError for another job."""
    request, beginning, plan = planned.prepared.request, planned.prepared.beginning, planned.input.plan
    options = request.options
    schema, job, number, goes_on = planned.columns.written, fingerprint.id, 0, options.resume
    if beginning is not None:
        refuse_difference(folder, beginning.before.fingerprint, fingerprint, options.update)
        if isinstance(beginning, Update) and plan is not None:
            number, goes_on = beginning.number, beginning.saved is not None
            if goes_on:
                folder.go_on(job)
            else:
                folder.begin_update(number, plan_bytes(plan, beginning.withdrawn), job)
        elif plan is not None and folder.plan() is None:
            folder.restore_plan(plan_bytes(plan), job)
        if isinstance(beginning, Resumed) and beginning.saved is not None and beginning.put_off:
            folder.put_off(beginning.put_off, beginning.saved, job)
    else:
        saved = None if plan is None else plan_bytes(plan)
        folder.create(fingerprint, schema, saved, options.resume or options.update, options.overwrite)
    save_asked(folder, request.source, request.models, options, partial(folder.check_claim, job))
    fits = partial(is_of, models=planned.columns.models)
    return folder.keep_entries(job, fits, schema, number) if goes_on else Entries({}, {})


def _job(planned: Planned, engines: Engines, fingerprint: Fingerprint) -> Job:
    """Return the values that every task needs."""
    request = planned.prepared.request
    options = request.options
    return Job(
        selection=planned.input.selection,
        engines=engines.keys,
        backend=None if options.allow_mixed else engines.backend,
        columns=planned.columns,
        names=fingerprint.settings.names,
        strict=options.strict,
        chunk_rows=planned.chunk_rows,
        out=request.folder.path if request.folder else None,
        fingerprint=fingerprint.id,
        each_kernel=options.profile,
        shows_rows=options.report is not None,
    )


def _timeline(client: Client, started: float) -> Timeline:
    from ...cluster import client_clock

    clock = client_clock(client)
    return Timeline(started + clock.offset, clock)


def _close(folder: OutputFolder | None, job: str, report: JobReport, end: RangeEnd) -> None:
    """Count the end of a range that no worker closes, and commit it if there is an output folder."""
    if folder is not None:
        commit_end(folder.store, end, job)
    _close_range(report, end)


def _compute(
    client: Client, planned: Planned, job: Job, report: JobReport, ranges: Iterator[Source], counted: dict[str, bytes]
) -> None:
    """Run the ranges.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    planned : Planned
        The planned job.
    job : Job
        The values that every task receives.
    report : JobReport
        The report in which chunks are counted.
    ranges : iterator of Range or UnreadableRows
        The ranges that are left to label.
    counted : dict of str to bytes
        The digests of the entries that the report has counted, by chunk. Those of this run are added.

    """
    # Show the progress and the remarks about the input, and find out whether it is slow to read.
    began = time.perf_counter()
    request, timeline = planned.prepared.request, report.run.timeline
    progress = DashboardProgress(request.progress, client, report)
    progress.start(planned.input.rows, client.dashboard_link)
    for remark in planned.prepared.found.remarks if isinstance(planned.prepared.found, Files) else ():
        report.run.remarks.append(remark)
        progress.warn(remark)
    Thread(target=_tell_what_is_slow, args=(planned.input, report.run, progress), daemon=True).start()
    # Run the ranges, and count each event. A chunk that was committed before is not counted again.
    try:
        checked = began
        with Watchdog(client, "no chunk has finished", progress.warn, progress.patience) as watchdog:
            sources = _until(request.stop, timeline.watch(ranges), report.run)
            for event in classify_chunks(client, sources, job, watchdog, request.stop):
                if event is None:
                    progress.wait(report)
                else:
                    for one in _whole(event, request.folder, job):
                        if isinstance(one, CommittedChunk):
                            if one.name in counted:
                                continue  # a range is read again, and this chunk of it was committed before
                            counted[one.name] = one.entry.digest
                        _count(report, one)
                    progress.advance(report)
                if request.folder and time.perf_counter() - checked > _SECONDS_BETWEEN_CLAIMS:
                    request.folder.check_claim(job.fingerprint)
                    checked = time.perf_counter()
    finally:
        progress.stop()
    report.run.timings["classify"] = time.perf_counter() - began
    timeline.ended = time.time() + timeline.clock.offset


def _count_earlier(report: JobReport, before: Entries) -> None:
    """Count the chunks that an earlier run committed, and the ranges that are not read again."""
    for entry in before.chunks.values():
        report.tally.count_chunk(entry)
        report.run.reach.add(entry.chunk, entry.rows_read)
    for number, closing in before.closed.items():
        if range_name(number) in before.committed:
            _close_range(report, RangeEnd(number, closing.files, closing.chunks, closing.problems, closing.unread))
    report.run.chunks_before = len(before.chunks)


def _close_range(report: JobReport, end: RangeEnd) -> None:
    """Count the problems of the files of a range."""
    # Keep the rows of a file by its name only if it is read alone or has a problem, as there may be very many files.
    amiss = {path for path, _ in end.problems}
    named_paths = amiss if len(end.files) > 1 else {path for path, _ in end.files}
    report.run.rows_of.update({path: rows for path, rows in end.files if rows and path in named_paths})
    report.tally.close(end.problems, end.unread)
    report.run.reach.close(end)


def _count(report: JobReport, event: Event) -> None:
    """Count an event of this run."""
    run = report.run
    if isinstance(event, CommitReport):
        # Only the progress, because the result of the task brings the chunk itself.
        run.reach.note(event.name, event.rows, event.stored)
        run.timeline.add(event.name, event.rows, event.spans, event.place)
    elif isinstance(event, RowsComputed):
        run.reach.compute(event.name, event.rows)
    elif isinstance(event, RangeEnd):
        # Note how the range was read, and what its files are.
        run.read_again += event.read_again
        run.read_by.update(event.read_by or {OTHER_RANGES: sum(rows or 0 for _, rows in event.files)})
        run.remarks += [remark for remark in event.remarks if remark not in run.remarks]
        for path, note in event.notes:
            run.notes.setdefault(note, {})[path] = None
        _close_range(report, event)
    elif isinstance(event, Stopped):
        run.stopped = True
    elif isinstance(event, SetAside):
        report.results.set_aside(event.name, event.sources, event.reason)
        run.set_aside.append((event.name, event.reason))
    else:
        # Count a committed chunk in the totals, and keep its rows if there is no output folder.
        if event.rows is not None:
            report.results.add(event.name, event.rows)
        report.tally.count_chunk(event.entry)
        run.rows += event.entry.rows_read
        run.reach.add(event.name, event.entry.rows_read)
        run.shown = run.shown.and_(event.shown)
        if event.place is not None:
            run.timeline.add(event.name, event.entry.rows_read, event.spans, event.place)


def _tell_what_is_slow(job_input: JobInput, run: RunFacts, progress: Progress) -> None:
    """Warn at the beginning of a job if its files are slow to read. A thread finds out, so the job does not wait."""
    if job_input.plan is not None and (remark := slow_to_read(job_input.plan.files)):
        run.remarks.append(remark)
        progress.warn(remark)


def _whole(event: Event, folder: OutputFolder | None, job: Job) -> Iterator[Event]:
    """Yield the event. If a range is set aside, yield its committed chunks first, and then what is left of it."""
    if folder is None or not isinstance(event, SetAside):
        yield event
        return
    entries = folder.entries_of(event.name if event.number is None else event.number, job.fingerprint, job.names)
    yield from (CommittedChunk(name, entry, [], None, Shown()) for name, entry in entries.items())
    if event.number is not None:
        names = (part_name(event.number, chunk) for chunk in itertools.count())
        yield replace(event, name=next(name for name in names if name not in entries))
    elif not entries:
        yield event


def _until(stop: Callable[[], bool], ranges: Iterator[Source], run: RunFacts) -> Iterator[Source]:
    for source in ranges:
        if stop():
            run.stopped = True
            return
        yield source


def _profile(client: Client, key: str) -> Any:
    """Return the profile of the kernels of one worker. The others compute in the same way."""
    first = min(client.scheduler_info(n_workers=-1)["workers"])
    return client.run(profile_engine, key, workers=[first])[first]
