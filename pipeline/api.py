"""The public call: from a source to labels, in one job."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine.base import Backend
from pipeline.engine.open import expected_device, why_no_gpu
from pipeline.errors import SourceError, UsageError
from pipeline.graph import SetAside, classify_chunks
from pipeline.model.charcnn import Model, load_model
from pipeline.options import Options
from pipeline.output.folder import OutputFolder, fingerprint, fingerprint_id
from pipeline.output.parts import output_schema
from pipeline.profiling.measure import Profile
from pipeline.report.explain import explain
from pipeline.report.job import EXAMPLES, JobReport, Progress
from pipeline.report.timeline import Timeline
from pipeline.source.inputs import Files, JobInput, Source, identify, open_input
from pipeline.source.scan import Scanner
from pipeline.tasks import Job, profile_engine

if TYPE_CHECKING:
    from distributed import Client

CHUNK_ROWS = {"cpu": 512, "cuda": 131_072}
"""Rows in a chunk by default: a second or two of work on a CPU, 0.1 s on a GPU; a millisecond to schedule."""

_SCANNED_BY_WORKERS = 1 << 30
"""Bytes to look through for the beginnings of records; threads here take half a second for fewer."""


def classify(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    model: str | Path | Model = "ag-news",
    client: Client | Callable[[], AbstractContextManager[Client]] | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> JobReport:
    """Label every article of `source`.

    source: a path, folder, glob or fsspec URL as a string, or several as `Paths`; or articles in memory:
    a list of strings, a pandas Series or DataFrame, an Arrow array, table or dataset, a Dask DataFrame.
    output: a folder for Parquet parts; without one results and quarantined rows come back in memory.
    model: a shipped name, a file, or a loaded `Model`. client: a Dask client, or a function that gives a context with
    one; by default a worker within this process. progress: is told of chunks as they finish. stop: asked before a
    chunk is taken; once it says True the job finishes what is in flight and ends. options: see `Options`.

    Raises UsageError for what cannot be as asked, SourceError for bad input with `strict`, OutputError for a folder
    that cannot be written; all of them BroadsheetError. What is committed by then stays, for `resume=True`.
    """
    unknown = sorted(set(options) - {field.name for field in fields(Options)})
    if unknown:
        raise TypeError(f"classify() got an unexpected keyword argument {unknown[0]!r}")
    settings = Options(**options)
    if output is None:
        if settings.resume or settings.overwrite:
            raise UsageError("without an output folder there is nothing to resume or to overwrite")
        folder = None
    else:
        folder = OutputFolder(Path(output).absolute())
        folder.refuse_unless(settings.resume, settings.overwrite)
    return _run(source, folder, load_model(model), client, progress or Progress(), stop, settings)


def _run(
    source: Any,
    folder: OutputFolder | None,
    model: Model,
    client: Any,
    progress: Progress,
    stop: Callable[[], bool],
    options: Options,
) -> JobReport:
    began, started = time.perf_counter(), time.time()
    selection = options.selection(model)
    whole = options.hash == "full"
    found = identify(source, len(model.alphabet), model.length, whole_hash=whole, by_content=folder is not None)
    identity = found.identity
    before = folder if folder and options.resume and folder.is_begun else None
    if before:
        # Before its plan is taken up; the whole comparison comes once the backend is known.
        begun = before.fingerprint()
        before.refuse_difference({**begun, "settings": {**begun["settings"], "hash": options.hash}})
        before.refuse_difference({**begun, "inputs": identity})
    with ExitStack() as stack:
        engines, starting = None, 0.0
        if hasattr(client, "scheduler_info"):  # what its workers have decides the chunk size
            starts = time.perf_counter()
            engines = _start_engines(client, model, options)
            starting = time.perf_counter() - starts
        chunk_rows = options.chunk_size or (
            before.fingerprint()["settings"]["chunk_size"]
            if before
            else CHUNK_ROWS[engines[1].device if engines else expected_device(options.device)]
        )
        saved = before.plan() if before and isinstance(found, Files) else None
        with _workers(client if engines and not saved else None, found) as workers:
            job_input = open_input(found, selection, chunk_rows, saved, workers)
        if options.strict and job_input.problems:
            raise SourceError(f"{job_input.problems[0][1]} (--strict stops here)")
        schema = output_schema(job_input.selection, model.classes, options.top_k, options.scores)
        planned = time.perf_counter()
        if engines is None:
            client = stack.enter_context(_cluster(client, options))
            engines = _start_engines(client, model, options)
        key, backend = engines
        value = fingerprint(identity, model.digest, backend, options.in_fingerprint(chunk_rows))
        job = Job(
            selection=job_input.selection,
            classes=model.classes,
            engine=key,
            backend=None if options.allow_mixed else backend,
            schema=schema,
            top_k=options.top_k,
            all_scores=options.scores,
            strict=options.strict,
            out=str(folder.path) if folder else None,
            fingerprint=fingerprint_id(value),
            each_kernel=options.profile,
            examples=EXAMPLES if options.report else 0,
        )
        answers = None if options.truth is None else os.fspath(options.truth)
        report = JobReport(
            model.name, model.classes, job.out, schema, answers, str(backend), backend.precision, chunk_rows
        )
        report.problems += job_input.problems
        if options.device == "auto" and backend.device == "cpu":
            report.no_gpu = next(iter(client.run(why_no_gpu).values()), None)
        report.timeline = _timeline(client, started)
        start = starting + time.perf_counter() - planned
        report.timings = {"plan": planned - began - starting, "start": start}
        done = _open_folder(folder, before, value, job_input, job.fingerprint)
        for entry in done.values():
            report.add_entry(entry)
        report.chunks_before = report.chunks
        chunks = _until(stop, report.timeline.watch(job_input.chunks(done)), report)
        _compute(client, job_input, chunks, job, report, progress)
        report.timeline.ended = time.time() + report.timeline.clock.offset
        if options.profile:
            report.profile = _profile(client, key)
    report.seconds = time.perf_counter() - began
    report.check_rows()
    if folder is not None:
        _finish(folder, report, began, job.fingerprint)
    explain(report, options.trace, options.report)
    return report


def _cluster(client: Any, options: Options) -> AbstractContextManager[Client]:
    if callable(client):
        return client()  # type: ignore[no-any-return]
    from cluster import connect

    return connect("local", workers=options.workers, processes=options.workers is not None)


def _workers(client: Client | None, found: Any) -> AbstractContextManager[Scanner | None]:
    """Those of a cluster that runs already, where there is much to look through."""
    if client is None or not isinstance(found, Files) or found.bytes_to_scan < _SCANNED_BY_WORKERS:
        return nullcontext()
    from cluster.scanner import workers_scanner

    return workers_scanner(client)


def _start_engines(client: Client, model: Model, options: Options) -> tuple[str, Backend]:
    from cluster import start_engines

    return start_engines(client, model, options.device, options.precision, options.kernels, options.allow_mixed)


def _open_folder(
    folder: OutputFolder | None,
    before: OutputFolder | None,
    value: dict[str, Any],
    job_input: JobInput,
    job: str,
) -> dict[str, dict[str, Any]]:
    """Make the output folder, or take up the one begun `before`; return the entries of what is committed there."""
    if before is not None:
        before.refuse_difference(value)
        before.clean()
        return before.committed(job)
    if folder is not None:
        folder.create(value, job_input.saved)
    return {}


def _timeline(client: Client, started: float) -> Timeline:
    from cluster import client_clock

    clock = client_clock(client)
    return Timeline(started + clock.offset, clock)


def _profile(client: Client, key: str) -> Profile:
    """Of one worker: the others compute alike."""
    first = min(client.scheduler_info(n_workers=-1)["workers"])
    found: Profile = client.run(profile_engine, key, workers=[first])[first]
    return found


def _until(stop: Callable[[], bool], chunks: Iterator[Source], report: JobReport) -> Iterator[Source]:
    for chunk in chunks:
        if stop():
            report.stopped = True
            return
        yield chunk


def _compute(
    client: Client, job_input: JobInput, chunks: Iterator[Source], job: Job, report: JobReport, progress: Progress
) -> None:
    began = time.perf_counter()
    from cluster.progress import DashboardProgress

    progress = DashboardProgress(progress, client, report, job_input.chunk_count)
    progress.start(job_input.rows, client.dashboard_link)
    try:
        for result in classify_chunks(client, chunks, job):
            if isinstance(result, SetAside):
                report.set_aside.append((result.name, result.reason))
            else:
                report.add_done(result)
            progress.advance(report)
    finally:
        progress.stop()
    report.timings["classify"] = time.perf_counter() - began


def _finish(folder: OutputFolder, report: JobReport, began: float, job: str) -> None:
    committing = time.perf_counter()
    if not report.set_aside and not report.stopped:
        folder.finish(report.totals(), job)
    report.timings["commit"] = time.perf_counter() - committing
    report.seconds = time.perf_counter() - began
    run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:6]}"
    folder.record_run(run, report.to_dict(), report.timeline.spans.to_table())
