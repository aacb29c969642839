"""broadsheet classify: articles in, labels out."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..report.console import PlainConsole, print_json, say
from ..source.limits import CHUNK_ROWS
from ..storage.names import as_url
from . import dry_run as estimating
from . import pipe

if TYPE_CHECKING:
    from ..report.job import Progress

_INPUT = (
    "Files, folders, globs or URLs: CSV, TSV, JSONL, text (one article a line), Parquet, Arrow, Excel, .bin; also .gz, "
    ".zst, .bz2, .xz, .lz4 and .zip. - reads stdin."
)
TLS_HELP = (
    "Encrypt traffic, and let in only this job's processes (default, except with ucx). Without it, any user of a host "
    "can run code as you."
)
_ONE_CHUNK_BYTES = 1 << 17
"""Of files that are computed within this process: as long as AG News's, about 500 articles."""

_STDOUT = Path("-")
_CHUNK_SIZE = f"Rows in a chunk.  [default: {CHUNK_ROWS['cpu']} on a CPU, {CHUNK_ROWS['cuda']} on a GPU]"


def command(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT", help=_INPUT, show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT/",
            help="Folder for the labels, also as a URL (s3://bucket/labels); - writes them to stdout.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A shipped model's name, a file, or hf://USER/NAME; several label in one pass.  [default: ag-news]"
        ),
    ] = None,
    text_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Column with the text; several are joined by a space.  [default: text]"),
    ] = None,
    id_column: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Column to copy to the output.")] = None,
    keep: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Another column to copy.")] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Copy every column to the output.")] = False,
    columns: Annotated[str | None, typer.Option(metavar="A,B,C", help="Column names of a headerless CSV.")] = None,
    truth_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column with the true class, by name or number from 1.")
    ] = None,
    encoding: Annotated[
        str, typer.Option(metavar="NAME", help="Of CSV, TSV, JSONL and text files: latin-1, cp1252, utf-16, …")
    ] = "utf-8",
    delimiter: Annotated[
        str | None, typer.Option(metavar="C", help="Between the fields of a CSV.  [default: ,]", show_default=False)
    ] = None,
    root: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write paths relative to it.  [default: absolute paths]")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Label the first N rows only.")] = None,
    stdin_format: Annotated[
        str | None,
        typer.Option(metavar="text|csv|tsv|jsonl", help="What stdin holds.  [default: text]", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Label a sample only; say what the job would take. Writes nothing.")
    ] = False,
    truth: Annotated[Path | None, typer.Option(metavar="FILE", help="True classes of a one-hot .bin input.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write the probability of every class.")] = False,
    top_k: Annotated[int, typer.Option(metavar="K", help="Write the K best labels and scores.", min=1)] = 1,
    abstain: Annotated[
        float | None, typer.Option(metavar="BELOW", help="Give rows with a lower score no label.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="parquet|jsonl|csv", help="Of the output.  [default: parquet; jsonl to stdout]"
        ),
    ] = None,
    partition_by: Annotated[str | None, typer.Option(metavar="label", help="A folder for each label.")] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Write only these rows: 'score >= 0.9'."),
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Label a long text in up to N windows, each as long as the model reads."),
    ] = None,
    overlap: Annotated[
        int, typer.Option(metavar="CHARS", min=0, help="Characters that a window shares with the next.")
    ] = 0,
    window_score: Annotated[
        str, typer.Option(metavar="mean|best", help="How windows' scores become a text's.")
    ] = "mean",
    chunk_size: Annotated[
        int | None,
        typer.Option(metavar="ROWS", min=1, help=_CHUNK_SIZE),
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="auto: the GPU, if there is one.")] = "auto",
    precision: Annotated[str, typer.Option(metavar="auto|fp32|fp16|bf16|int8")] = "auto",
    kernels: Annotated[
        str, typer.Option(metavar="auto|simt|sm75|sm80|sm90", help="CUDA kernels, by generation.")
    ] = "auto",
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes on this machine; with slurm, at most N nodes.")
    ] = None,
    cluster: Annotated[
        str, typer.Option(metavar="WHERE", help="local, cuda (this machine's GPUs), slurm, or a scheduler's address.")
    ] = "auto",
    scheduler_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File of a running scheduler.")] = None,
    protocol: Annotated[str, typer.Option(metavar="auto|tcp|ucx", help="Between workers and scheduler.")] = "auto",
    tls: Annotated[bool | None, typer.Option("--tls/--no-tls", show_default=False, help=TLS_HELP)] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Server of s3:// URLs and the like.  [default: the provider's]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted job, or repair a finished one.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier job's output.")] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Add the files that are new since the job in OUT/; label no other.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")] = False,
    hash_: Annotated[
        str,
        typer.Option("--hash", metavar="listing|full", help="Know input files by size and time, or also by a hash."),
    ] = "listing",
    allow_mixed: Annotated[bool, typer.Option("--allow-mixed", help="Workers may differ in processor.")] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the timeline, for ui.perfetto.dev.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Record every kernel, and measure each alone.")] = False,
    page: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write a report as one HTML page.")
    ] = None,
    nsys: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Run a local cluster's workers under Nsight Systems.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Label every article of the inputs.

    Exit code 0: done (quarantined rows are reported, not an error). 2: wrong usage. 3: a file or chunk was set aside or
    could not be read, or --update found files that have changed. 4: stopped early by SIGUSR1, continue with --resume.
    1: any other error.
    """
    from ..output.object_store import place_of

    if output is not None and output != _STDOUT:
        place_of(output, endpoint)
    if scheduler_file and (cluster != "auto" or workers or protocol != "auto" or tls is not None or nsys):
        raise UsageError("a scheduler that runs has its workers, its protocol and its TLS: give --scheduler-file alone")
    source = pipe.source_of(inputs, stdin_format)
    models = model or ["ag-news"]
    options: dict[str, Any] = {
        "text_column": text_column or (),
        "id_column": id_column or (),
        "keep": keep or (),
        "keep_all": keep_all,
        "columns": None if columns is None else columns.split(","),
        "truth_column": truth_column,
        "encoding": encoding,
        "delimiter": delimiter,
        "root": root,
        "limit": limit,
        "truth": truth,
        "scores": scores,
        "top_k": top_k,
        "abstain": abstain,
        "format": format_ or "parquet",
        "partition_by": partition_by,
        "where": where,
        "windows": windows,
        "overlap": overlap,
        "window_score": window_score,
        "chunk_size": chunk_size,
        "device": device,
        "precision": precision,
        "kernels": kernels,
        "endpoint": endpoint,
        "resume": resume,
        "overwrite": overwrite,
        "update": update,
        "strict": strict,
        "hash": hash_,
        "allow_mixed": allow_mixed,
        "profile": profile,
        "trace": trace,
        "report": page,
    }
    connection: dict[str, Any] = {
        "where": cluster,
        "workers": workers,
        "scheduler_file": scheduler_file,
        "protocol": protocol,
        "tls": tls,
        "nsys": nsys,
    }
    if dry_run:
        estimating.run(source, None if output == _STDOUT else output, models, options, connection, as_json)
    elif output is None:
        raise UsageError("give a folder for the labels: -o OUT/ (or -o - for stdout)")
    elif output == _STDOUT:
        pipe.refuse_options(options, connection, as_json)
        pipe.run(source, models, options, format_, quiet)
    else:
        _run_job(source, output, models, options, connection, as_json, quiet)


def _run_job(
    source: Any,
    output: Path,
    model: list[str],
    options: dict[str, Any],
    connection: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    """Run it as a job, and print its report."""
    from ..report.terminal import NoProgress, TerminalProgress, print_report

    progress = NoProgress() if quiet else TerminalProgress(PlainConsole(stderr=True))
    if quiet:
        connection["say"] = lambda line: None
    try:
        report = _run(source, output, model, options, progress, connection)
    except KeyboardInterrupt:
        from ..source.memory.stdin import Stdin

        is_gone = isinstance(source, Stdin)
        remedy = "start again with --overwrite: stdin is gone" if is_gone else "continue with --resume"
        say(
            f"broadsheet: interrupted; what is committed in {as_url(str(output)) or output} stays, {remedy}", error=True
        )
        raise typer.Exit(1) from None
    if as_json:
        print_json(report.to_dict())
    elif not quiet:
        print_report(report, PlainConsole())
    raise typer.Exit(report.exit_code)


def _is_one_chunk(source: Any) -> bool:
    """Whether the inputs are files so small that another process would have nothing to do beside this one."""
    from ..source.inputs import Paths

    inputs = source if isinstance(source, Paths) else ()
    return bool(inputs) and all(map(os.path.isfile, inputs)) and sum(map(os.path.getsize, inputs)) <= _ONE_CHUNK_BYTES


def _run(
    source: Any,
    output: Path,
    model: list[str],
    options: dict[str, Any],
    progress: Progress,
    connection: dict[str, Any],
) -> Any:
    from ...cluster import connect, nearest
    from ..api import classify
    from ..engine.open import expected_device

    chosen = [name for name, value in connection.items() if name != "say" and value not in (None, "auto")]
    if connection["where"] == "auto":
        connection["where"] = nearest(options["device"])
    if connection["where"] == "local" and not chosen and options["chunk_size"] is None and _is_one_chunk(source):
        connection["processes"] = False  # which starts in a fraction of the time
    elif (
        connection["where"] == "local"
        and connection["workers"] is None
        and expected_device(options["device"]) == "cuda"
    ):
        connection["workers"] = 1  # without dask-cuda, which gives each GPU a worker, the first GPU has one
    stopping = Event()
    signal.signal(signal.SIGUSR1, lambda *_: stopping.set())
    run = partial(classify, source, output, model=model, progress=progress, stop=stopping.is_set, **options)
    if connection["where"] in ("local", "cuda") and not connection["scheduler_file"]:
        return run(client=lambda: connect(**connection))  # beside the planning
    with connect(**connection) as client:  # at once: what its workers have decides the chunk size
        return run(client=client)
