"""The public call: from a source to labels, in one job."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine import Backend
from pipeline.errors import SourceError, UsageError
from pipeline.graph import SetAside, classify_chunks
from pipeline.manifest import OutputFolder, fingerprint, fingerprint_id
from pipeline.model import Model, load_model
from pipeline.report.job import JobReport, Progress
from pipeline.sink import output_schema
from pipeline.source.chunk import Selection
from pipeline.source.inputs import JobInput, Source, identify, open_input
from pipeline.tasks import Job
from pipeline.trace import Span

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
    device: "auto", "cpu" or "cuda". precision: "auto", "fp32" or "fp16". workers: processes of an embedded cluster
    (a script that asks for them needs the main guard of multiprocessing).
    resume: go on with an interrupted job. overwrite: replace an old one. strict: stop at the first bad row.
    hash: "edges" or "full", how much of each input file identifies it. allow_mixed: workers may differ in kind.
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
    workers: int | None = None
    resume: bool = False
    overwrite: bool = False
    strict: bool = False
    hash: str = "edges"
    allow_mixed: bool = False

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
    began = time.perf_counter()
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
            else CHUNK_ROWS[engines[1].device if engines else "cpu"]
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
            backend=None if options.allow_mixed else backend,
            schema=schema,
            top_k=options.top_k,
            all_scores=options.scores,
            strict=options.strict,
            out=str(folder.path) if folder else None,
            fingerprint=fingerprint_id(value),
        )
        answers = None if options.truth is None else os.fspath(options.truth)
        report = JobReport(model.name, model.classes, job.out, schema, answers, str(backend), chunk_rows)
        report.problems += job_input.problems
        report.timings = {"plan": planned - began, "start": time.perf_counter() - planned}
        done = _open_folder(folder, before, value, job_input, job.fingerprint)
        for entry in done.values():
            report.add_entry(entry)
        report.chunks_before = report.chunks
        chunks = _until(stop, job_input.chunks(done), report)
        spans = _compute(client, job_input, chunks, job, report, progress)
    report.seconds = time.perf_counter() - began
    report.check_rows()
    if folder is not None:
        _finish(folder, report, spans, began, job.fingerprint)
    return report


def _cluster(client: Any, options: Options) -> AbstractContextManager[Client]:
    if callable(client):
        return client()  # type: ignore[no-any-return]
    from cluster import connect

    return connect("local", workers=options.workers, processes=options.workers is not None)


def _start_engines(client: Client, model: Model, options: Options) -> tuple[str, Backend]:
    from cluster import start_engines

    return start_engines(client, model, options.device, options.precision, options.allow_mixed)


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


def _until(stop: Callable[[], bool], chunks: Iterator[Source], report: JobReport) -> Iterator[Source]:
    for chunk in chunks:
        if stop():
            report.stopped = True
            return
        yield chunk


def _compute(
    client: Client, job_input: JobInput, chunks: Iterator[Source], job: Job, report: JobReport, progress: Progress
) -> list[Span]:
    began = time.perf_counter()
    spans: list[Span] = []
    from cluster.progress import DashboardProgress

    progress = DashboardProgress(progress, client, report, job_input.chunk_count)
    progress.start(job_input.rows, client.dashboard_link)
    try:
        for result in classify_chunks(client, chunks, job):
            if isinstance(result, SetAside):
                report.set_aside.append((result.name, result.reason))
            else:
                report.add_done(result)
                spans += result.spans
            progress.advance(report)
    finally:
        progress.stop()
    report.timings["classify"] = time.perf_counter() - began
    return spans


def _finish(folder: OutputFolder, report: JobReport, spans: list[Span], began: float, job: str) -> None:
    committing = time.perf_counter()
    if not report.set_aside and not report.stopped:
        folder.finish(report.totals(), job)
    report.timings["commit"] = time.perf_counter() - committing
    report.seconds = time.perf_counter() - began
    run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:6]}"
    folder.record_run(run, {**report.to_dict(), "spans": [asdict(span) for span in spans]})
