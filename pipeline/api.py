"""The public call: from a source to labels, in one job."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine import Backend, expected_device
from pipeline.errors import SourceError, UsageError
from pipeline.graph import SetAside, classify_chunks
from pipeline.manifest import OutputFolder, fingerprint, fingerprint_id
from pipeline.model import Model, load_model
from pipeline.profile import Profile
from pipeline.report.explain import explain, refuse_unwritable
from pipeline.report.job import EXAMPLES, JobReport, Progress
from pipeline.report.timeline import Timeline
from pipeline.sink import output_schema
from pipeline.source.chunk import Selection
from pipeline.source.inputs import JobInput, identify, open_input
from pipeline.tasks import Job, profile_engine

if TYPE_CHECKING:
    from distributed import Client

CHUNK_ROWS = {"cpu": 512, "cuda": 131_072}
"""Rows in a chunk by default: a second or two of work, against milliseconds of scheduling."""


@dataclass(frozen=True)
class Options:
    """How a job reads, computes and writes; the fields are `classify`'s keyword arguments.

    text_column: one name or several, joined by one space and the result stripped; "text" by default.
    id_column: one name or several, copied to the output. columns: names of a headerless CSV's fields.
    truth_column: holds the true class, by name or by number from 1. truth: the answer file of a one-hot input.
    scores: a probability for every class. top_k: the k best labels. chunk_size: rows in a chunk.
    device: "auto", "cpu" or "cuda". precision: "auto", "fp32", "fp16" or "bf16". kernels: "auto", or a generation of
    CUDA kernels, "simt", "sm80" or "sm90". workers: processes of an embedded cluster (a script that asks for them needs
    the main guard of multiprocessing).
    resume: go on with an interrupted job. overwrite: replace an old one. strict: stop at the first bad row.
    hash: "edges" or "full", how much of each input file identifies it. allow_mixed: workers may differ in kind.
    profile: record every kernel, and at the end measure each alone. trace: a file for the timeline, to be opened in
    ui.perfetto.dev. report: a file for the job as one HTML page.
    """

    text_column: str | Iterable[str] = ()
    id_column: str | Iterable[str] = ()
    columns: Iterable[str] | None = None
    truth_column: str | None = None
    truth: str | os.PathLike[str] | None = None
    scores: bool = False
    top_k: int = 1
    chunk_size: int | None = None
    device: str = "auto"
    precision: str = "auto"
    kernels: str = "auto"
    workers: int | None = None
    resume: bool = False
    overwrite: bool = False
    strict: bool = False
    hash: str = "edges"
    allow_mixed: bool = False
    profile: bool = False
    trace: str | os.PathLike[str] | None = None
    report: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "chunk_size", "workers"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1) and (value is not None or name == "top_k"):
                raise UsageError(f"{name} is {value!r}, it must be a whole number of at least 1")
        for name in ("text_column", "id_column", "columns"):
            if getattr(self, name) is not None:
                given = _names(getattr(self, name))
                object.__setattr__(self, name, given)
                if len(set(given)) < len(given):
                    raise UsageError(f"{name} names {next(n for n in given if given.count(n) > 1)!r} twice")
        refuse_unwritable(self.trace, self.report)
        if self.hash not in ("edges", "full"):
            raise UsageError(f"hash {self.hash!r}: choose edges or full")

    def selection(self, model: Model) -> Selection:
        return Selection(
            text=_names(self.text_column),
            ids=_names(self.id_column),
            truth=self.truth_column,
            header=None if self.columns is None else tuple(self.columns),
            classes=model.classes,
            answers=None if self.truth is None else os.path.abspath(self.truth),
        )


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def classify(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    model: str | Path | Model = "ag-news",
    client: Client | Callable[[], AbstractContextManager[Client]] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> JobReport:
    """Label every article of `source`.

    source: a path, folder, glob or fsspec URL as a string, or several as `Paths`; or articles in memory:
    a list of strings, a pandas Series or DataFrame, an Arrow array, table or dataset, a Dask DataFrame.
    output: a folder for Parquet parts; without one results and quarantined rows come back in memory.
    model: a shipped name, a file, or a loaded `Model`. client: a Dask client, or a function that gives a context with
    one; by default a worker within this process. progress: is told of chunks as they finish. options: see `Options`.

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
    return _run(source, folder, load_model(model), client, progress or Progress(), settings)


def _run(
    source: Any, folder: OutputFolder | None, model: Model, client: Any, progress: Progress, options: Options
) -> JobReport:
    began, started = time.perf_counter(), time.time()
    selection = options.selection(model)
    found, identity = identify(source, options.hash == "full", by_content=folder is not None)
    before = folder if folder and options.resume and folder.is_begun else None
    if before:
        # Before its plan is taken up; the whole comparison comes once the backend is known.
        begun = before.fingerprint()
        before.refuse_difference({**begun, "settings": {**begun["settings"], "hash": options.hash}})
        before.refuse_difference({**begun, "inputs": identity})
    with ExitStack() as stack:
        engines = None
        if hasattr(client, "scheduler_info"):  # what its workers have decides the chunk size
            engines = _start_engines(client, model, options)
        chunk_rows = options.chunk_size or (
            before.fingerprint()["settings"]["chunk_size"]
            if before
            else CHUNK_ROWS[engines[1].device if engines else expected_device(options.device)]
        )
        saved = before.plan() if before and hasattr(found, "found") else None
        job_input = open_input(found, selection, chunk_rows, len(model.alphabet), model.length, saved)
        if options.strict and job_input.problems:
            raise SourceError(f"{job_input.problems[0][1]} (--strict stops here)")
        schema = output_schema(job_input.selection, model.classes, options.top_k, options.scores)
        planned = time.perf_counter()
        if engines is None:
            client = stack.enter_context(_cluster(client, options))
            engines = _start_engines(client, model, options)
        key, backend = engines
        value = fingerprint(identity, model.digest, backend, _settings(options, chunk_rows))
        job = Job(
            selection=job_input.selection,
            classes=model.classes,
            symbols=len(model.alphabet),
            length=model.length,
            engine=key,
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
        report.timeline = _timeline(client, started)
        report.timings = {"plan": planned - began, "start": time.perf_counter() - planned}
        done = _open_folder(folder, before, value, job_input, job.fingerprint)
        for entry in done.values():
            report.add_entry(entry)
        report.chunks_before = report.chunks
        _compute(client, job_input, job, done, report, progress)
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

    return connect(workers=options.workers, processes=options.workers is not None)


def _start_engines(client: Client, model: Model, options: Options) -> tuple[str, Backend]:
    from cluster import start_engines

    return start_engines(client, model, options.device, options.precision, options.kernels, options.allow_mixed)


def _settings(options: Options, chunk_rows: int) -> dict[str, Any]:
    """Every setting that changes a byte of the output."""
    return {
        "text_columns": list(_names(options.text_column)),
        "id_columns": list(_names(options.id_column)),
        "columns": None if options.columns is None else list(options.columns),
        "truth_column": options.truth_column,
        "truth": None if options.truth is None else _digest(options.truth),
        "scores": options.scores,
        "top_k": options.top_k,
        "chunk_size": chunk_rows,
        "hash": options.hash,
    }


def _digest(path: str | os.PathLike[str]) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


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


def _compute(
    client: Client, job_input: JobInput, job: Job, done: dict[str, Any], report: JobReport, progress: Progress
) -> None:
    began = time.perf_counter()
    progress.start(job_input.rows, client.dashboard_link)
    try:
        for result in classify_chunks(client, report.timeline.watch(job_input.chunks(done)), job):
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
    if not report.set_aside:
        folder.finish(report.totals(), job)
    report.timings["commit"] = time.perf_counter() - committing
    report.seconds = time.perf_counter() - began
    run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:6]}"
    folder.record_run(run, report.to_dict(), report.timeline.to_table())
