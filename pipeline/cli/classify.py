"""broadsheet classify and submit: articles in, labels out, here or by a job of Slurm."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..report.console import PlainConsole, print_file, print_json, say
from ..storage.names import as_url
from . import dry_run as estimating
from . import pipe
from .flags import Protocol, Quiet, SchedulerFile, Tls, Where, in_panel, keywords, with_options

if TYPE_CHECKING:
    from ..report.job import Progress

_INPUT = (
    "Files, folders, globs or URLs: CSV, TSV, JSONL, text (one article a line), Parquet, Arrow, Excel, .bin; also .gz, "
    ".zst, .bz2, .xz, .lz4 and .zip. - reads stdin."
)
_OUTPUT = "Folder for the labels, also as a URL (s3://bucket/labels); - writes them to stdout."
_MODEL = "A shipped model's name, a file, or hf://USER/NAME; several label in one pass.  [default: ag-news]"
_DRY_RUN = "Label a sample only; say what the job would take. Writes nothing."
_STDIN = "What stdin holds.  [default: text]"
_NSYS = "Run a local cluster's workers under Nsight Systems."
_ONE_CHUNK_BYTES = 1 << 17
"""Of files that are computed within this process: as long as AG News's, about 500 articles."""

_STDOUT = Path("-")


@with_options
def command(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT", help=_INPUT, show_default=False)],
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT/", help=_OUTPUT)] = None,
    model: Annotated[list[str] | None, typer.Option(metavar="MODEL", help=_MODEL)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=_DRY_RUN)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Quiet = False,
    stdin_format: Annotated[str | None, in_panel("Input", metavar="text|csv|tsv|jsonl", help=_STDIN)] = None,
    cluster: Where = None,
    scheduler_file: SchedulerFile = None,
    protocol: Protocol = "auto",
    tls: Tls = None,
    nsys: Annotated[Path | None, in_panel("Report", metavar="FOLDER", help=_NSYS)] = None,
    **flags: Any,
) -> None:
    """Label every article of the inputs.

    Exit code 0: done (quarantined rows are reported, not an error). 2: wrong usage. 3: a file or chunk was set aside or
    could not be read, or --update found files that have changed. 4: stopped early by SIGUSR1, continue with --resume.
    1: any other error.
    """
    from ..output.object_store import place_of

    options = keywords(flags)
    workers = options.pop("workers", None)
    if output is not None and output != _STDOUT:
        place_of(output, options.get("endpoint"))
    if scheduler_file and (cluster or workers or protocol != "auto" or tls is not None or nsys):
        raise UsageError("a scheduler that runs has its workers, its protocol and its TLS: give --scheduler-file alone")
    source = pipe.source_of(inputs, stdin_format)
    models = model or ["ag-news"]
    connection: dict[str, Any] = {
        "where": cluster or "auto",
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
        pipe.run(source, models, options, quiet)
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
    device = options.get("device", "auto")
    if connection["where"] == "auto":
        connection["where"] = nearest(device)
    if connection["where"] == "local" and not chosen and "chunk_size" not in options and _is_one_chunk(source):
        connection["processes"] = False  # which starts in a fraction of the time
    elif connection["where"] == "local" and connection["workers"] is None and expected_device(device) == "cuda":
        connection["workers"] = 1  # without dask-cuda, which gives each GPU a worker, the first GPU has one
    stopping = Event()
    signal.signal(signal.SIGUSR1, lambda *_: stopping.set())
    run = partial(classify, source, output, model=model, progress=progress, stop=stopping.is_set, **options)
    if connection["where"] in ("local", "cuda") and not connection["scheduler_file"]:
        return run(client=lambda: connect(**connection))  # beside the planning
    with connect(**connection) as client:  # at once: what its workers have decides the chunk size
        return run(client=client)


def submit(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Number of nodes.")] = 1,
    gpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="GPUs of each node; 0: its CPU.  [default: site.yaml's]")
    ] = None,
    time: Annotated[str | None, typer.Option(metavar="HH:MM:SS", help="Time limit of each run.")] = None,
    protocol: Annotated[str | None, typer.Option(metavar="auto|tcp|ucx", help="Between workers and scheduler.")] = None,
    tls: Tls = None,
    site: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Site settings.  [default: ~/.config/broadsheet/site.yaml]")
    ] = None,
    interactive: Annotated[bool, typer.Option("--interactive", help="Start workers for a notebook.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script; submit nothing.")] = False,
) -> None:
    """Submit a classify job to Slurm; it takes INPUT … -o OUT/ and every other option of classify.

    The job stops before its time limit, requeues itself and resumes. Its exit codes are those of classify.
    """
    from ...cluster.slurm import submit as slurm
    from ...cluster.slurm.site import load_site

    if interactive == bool(context.args):
        raise UsageError("give INPUT … -o OUT/ as for classify, or --interactive for workers alone")
    if "--overwrite" in context.args:
        raise UsageError("a submitted job continues where an earlier run stopped: remove the old folder yourself")
    settings = load_site(site).changed(gpus_per_node=gpus_per_node, time=time, protocol=protocol, tls=tls)
    script = slurm.job_script(settings, nodes, None if interactive else context.args)
    if dry_run:
        print_file(script)
        return
    number = slurm.submit(script)
    say(f"job {number} is submitted; it writes to broadsheet-{number}.log")
