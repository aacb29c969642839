"""The commands `classify` and `submit`, which label texts on this machine, on a cluster or in a Slurm job."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any
from warnings import catch_warnings, simplefilter

import typer
from rich.filesize import decimal

from ..errors import BroadsheetError, UsageError, install
from ..options import TABLE
from ..report.console import PlainConsole, facts_table, print_fact, print_file, print_json, say
from ..storage.names import as_url
from . import pipe
from .flags import PROTOCOL, Protocol, Quiet, SchedulerFile, Tls, Where, in_panel, keywords, with_options
from .shared_gpus import is_long, workers_for_gpus

if TYPE_CHECKING:
    from ..job.estimate import Estimate
    from ..job.memory import JobMemory
    from ..output.store import Location
    from ..report.job import Progress

_INPUT = (
    "Files, folders, globs or URLs: CSV, TSV, JSONL, text (one article a line), Parquet, Arrow, Excel, .bin; also "
    "compressed as .gz, .zst, .bz2, .xz, .lz4 or .zip. - is stdin."
)
_OUTPUT = "Where to write the labels: a folder, one .csv, .jsonl or .parquet file, or a URL (s3://…); - is stdout."
_MODEL = "A shipped model's name, a file, or hf://USER/NAME; repeat it to use several.  [default: ag-news]"
_DRY_RUN = "Label a sample only, and estimate time, memory and output of the job. Write nothing."
_OF_GPUS = "With --dry-run, estimate the time on N GPUs like the one here."
_PRICE = "With --dry-run, also estimate the cost. X is the price per hour of a GPU, or of this machine without one."
_STDIN = "Format of stdin.  [default: text]"
_NSYS = "Run a local cluster's workers under Nsight Systems."
_GPUS_PER_NODE = "GPUs of each node; 0: use the CPU.  [default: that of site.yaml]"
_SITE = "File with the settings of your Slurm cluster.  [default: ~/.config/broadsheet/site.yaml]"
_ONE_CHUNK_BYTES = 1 << 17
"""Bytes of input up to which this process computes alone: about 500 articles as long as those of AG News."""

_STDOUT = Path("-")


_EXTRAS = {"slurm": ("dask_jobqueue", "slurm"), "cuda": ("dask_cuda", "cluster")}
"""By kind of cluster, the module that it needs and the extra that installs the module."""

_OF_UCX = ("distributed_ucxx", "rmm")
"""Modules that Dask imports for UCX if they are installed. The import takes a tenth of a second."""

_GPUS = "/proc/driver/nvidia/gpus/*"

_SHOWN = 10  # labels of which the estimate shows the number of rows


@with_options(TABLE)
def command(
    inputs: Annotated[list[str] | None, typer.Argument(metavar="INPUT", help=_INPUT, show_default=False)] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT", help=_OUTPUT)] = None,
    model: Annotated[list[str] | None, typer.Option("--model", metavar="MODEL", help=_MODEL)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=_DRY_RUN)] = False,
    gpus: Annotated[int | None, in_panel("Job", "N", _OF_GPUS, min=1)] = None,
    price: Annotated[float | None, in_panel("Job", "X", _PRICE, min=0)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Quiet = False,
    stdin_format: Annotated[str | None, in_panel("Input", "text|csv|tsv|jsonl|wet", _STDIN)] = None,
    cluster: Where = None,
    scheduler_file: SchedulerFile = None,
    protocol: Protocol = "auto",
    tls: Tls = None,
    nsys: Annotated[Path | None, in_panel("Report", "FOLDER", _NSYS, hidden=True)] = None,
    **flags: Any,
) -> None:
    """Label every text of the input files. To continue a job, give --resume -o OUT/ without INPUT.

    Exit codes: 0 done; 1 an error; 2 wrong usage; 3 part of the input has no labels; 4 stopped early by SIGUSR1, and
    --resume continues the job.

    After exit code 3, look whether OUT/_SUCCESS exists. If it does, all the rest is labelled: more files than
    --max-unread or more rows than --max-quarantined could not be read, or --update found files that have changed. If it
    does not, some chunks have no labels yet, and --resume labels them.
    """
    from ..processes.child import FORKS, spare_pandas

    # Start what takes time in the background: a process from which workers fork, or the context of the only GPU.
    has_lone_gpu = False
    if not dry_run and output not in (None, _STDOUT) and _starts_workers(inputs, cluster, scheduler_file, flags):
        FORKS.begin("broadsheet.pipeline.job.preload")
    elif cluster is None and scheduler_file is None and flags.get("workers") is None and flags.get("device") != "cpu":
        has_lone_gpu = not is_long(inputs or ()) and _wake_a_lone_gpu()
    spare_pandas()
    from ..job.again import how_to_go_on, taken_up
    from ..output.object_store import place_of
    from ..output.select import OneFile
    from ..report.summary import unfinished
    from ..report.terminal import print_report

    # Find out where the labels go, and on which cluster.
    options = keywords(flags)
    place = one_file = None
    if output is not None and output != _STDOUT:
        one_file = OneFile.of(output, options.get("endpoint"))
        place = one_file.folder if one_file else place_of(output, options.get("endpoint"))
    workers = options.pop("workers", None)
    if scheduler_file and (cluster or workers or protocol != "auto" or tls is not None or nsys):
        raise UsageError("a scheduler that runs has its workers, its protocol and its TLS: give --scheduler-file alone")
    connection: dict[str, Any] = {"where": cluster or "auto", "workers": workers, "scheduler_file": scheduler_file}
    connection |= {"protocol": protocol, "tls": tls, "nsys": nsys}
    continued = _command_to_go_on(output, options, connection, as_json, quiet)

    # Take input, models and options from the command line, or those that it lacks from the job's folder.
    if inputs:
        source, models = pipe.source_of(inputs, stdin_format), model or ["ag-news"]
    elif place is None or not (options.get("resume") or options.get("update")):
        raise UsageError("give INPUT …, which may be left out only with --resume or --update and -o OUT/")
    else:
        source, models, taken = taken_up(place)
        models, options = model or models, taken | options

    # Estimate, write to stdout, or run a job.
    if not dry_run and (gpus is not None or price is not None):
        raise UsageError("--gpus and --price are for an estimate: add --dry-run")
    if dry_run:
        _estimate(source, place, models, options, connection, gpus, price, as_json)
    elif output == _STDOUT:
        pipe.refuse_options(options, connection, as_json)
        pipe.run(source, models, options, quiet)
    elif place is None:
        raise UsageError("give a folder or a file for the labels: -o OUT/ or -o labels.csv (or -o - for stdout)")
    else:
        ahead = _engines_ahead(models, options) if has_lone_gpu and not _names_a_cluster(connection) else nullcontext()
        with _telling_how_to_go_on(place, source, continued), ahead:
            report = _run(source, one_file.place if one_file else place, models, options, connection, quiet)
        if as_json:
            print_json(report.to_dict())
        elif not quiet:
            print_report(report, PlainConsole())
        if (left := unfinished(report.job, report.run)) and "--overwrite" not in left:
            say(how_to_go_on(place, source, continued), error=True)
        raise typer.Exit(report.exit_code)


@contextmanager
def _telling_how_to_go_on(place: Location, source: Any, command: str) -> Iterator[None]:
    """If the job in the block is interrupted or fails, print the error, then the command that continues the job."""
    try:
        yield
    except (KeyboardInterrupt, BroadsheetError) as error:
        from ..job.again import how_to_go_on

        message, code = f"interrupted; what is committed in {place} stays", 1
        if isinstance(error, BroadsheetError):
            message, code = error.message, error.exit_code
        say(f"broadsheet: {message}", error=True)
        if not isinstance(error, UsageError):
            say(how_to_go_on(place, source, command), error=True)
        raise typer.Exit(code) from None


def _command_to_go_on(
    output: Path | None, options: dict[str, Any], connection: dict[str, Any], as_json: bool, quiet: bool
) -> str:
    """Return the command that continues a job, with the given options that the job's folder does not record.

    Parameters
    ----------
    output : Path or None
        The job's folder.
    options : dict of str to object
        The options of the job, by their names in Python.
    connection : dict of str to object
        The keywords of `connect`.
    as_json, quiet : bool
        Whether `--json` and `--quiet` are given.

    """
    from ..job.again import HELD, flags

    more = {"cluster" if name == "where" else name: value for name, value in connection.items()}
    more |= {"no_tls": connection["tls"] is False, "json": as_json, "quiet": quiet}
    more |= {name: value for name, value in options.items() if name not in HELD}
    given = [flags(name, value) for name, value in more.items() if value not in (None, False, "auto")]
    name = shlex.quote(as_url(str(output)) or str(output))
    return " ".join(["broadsheet classify", "--update" if options.get("update") else "--resume", "-o", name, *given])


def _starts_workers(
    inputs: list[str] | None, cluster: str | None, scheduler_file: Path | None, flags: dict[str, Any]
) -> bool:
    """Return whether the job will probably start workers on this machine, before the imports that take time."""
    if cluster is not None or scheduler_file is not None:
        return cluster in ("local", "cuda")
    if flags.get("workers") is not None:
        return True
    if flags.get("device") != "cpu" and os.path.exists("/proc/driver/nvidia"):
        return False  # with one GPU this process is the worker
    return flags.get("chunk_size") is not None or not _is_one_chunk(inputs or ())


def _wake_a_lone_gpu() -> bool:
    """Return whether this process will compute on the only GPU, and if so create its CUDA context in the background.

    The driver takes a quarter of a second for the context. This process imports its modules meanwhile.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible is not None else glob(_GPUS)
    if len(gpus) != 1 or gpus[0] in ("", "-1") or find_spec("dask_cuda") is None:
        return False

    def wake() -> None:
        with suppress(OSError, AttributeError):  # there is no driver, or it lacks these functions
            driver = ctypes.CDLL("libcuda.so.1")
            if driver.cuInit(0) == 0:
                driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)

    Thread(target=wake, name="broadsheet-gpu", daemon=True).start()
    return True


@contextmanager
def _engines_ahead(models: Any, options: dict[str, Any]) -> Iterator[None]:
    """Load the engines on the only GPU in another thread, while this one imports Dask. Loading takes about 0.4 s.

    Errors are ignored here, because the job meets them again and reports them. The modules that both threads need are
    imported first, since two threads that import the same modules may wait for each other.
    """
    from ..options import Options

    with ExitStack() as stack:
        with suppress(ImportError, BroadsheetError):
            from ..engine import cuda  # noqa: F401
            from ..labelling.engines import ENGINES, engine_key
            from ..model.several import load_models
            from ..processes.threads import SWITCH_SECONDS

            sys.setswitchinterval(SWITCH_SECONDS)
            settings = Options(**options)
            engine_settings = (settings.device, settings.precision, settings.kernels)
            with catch_warnings():
                simplefilter("ignore")  # the job shows these warnings
                loaded = load_models(models, settings.network, settings.preparation).loaded
            loads = {
                engine_key(model, *engine_settings): partial(ENGINES.load, model, *engine_settings) for model in loaded
            }
            stack.enter_context(ENGINES.offered(loads))
        yield


def _names_a_cluster(connection: dict[str, Any]) -> bool:
    """Return whether the user gave an option of a cluster. connection: the keywords of `connect`, as given."""
    return any(value not in (None, "auto") for value in connection.values())


def _is_one_chunk(inputs: Sequence[str]) -> bool:
    """Return whether all inputs are files, so small together that a second process would have nothing to do."""
    return bool(inputs) and all(map(os.path.isfile, inputs)) and sum(map(os.path.getsize, inputs)) <= _ONE_CHUNK_BYTES


def _run(
    source: Any, place: Location, model: list[str], options: dict[str, Any], connection: dict[str, Any], quiet: bool
) -> Any:
    """Run the job on the cluster that `connection` describes, and return its report.

    Parameters
    ----------
    source : Paths or Stdin
        The input.
    place : Location
        The job's folder, or the one file for its labels.
    model : list of str
        The models.
    options : dict of str to object
        The options of the job, by their names in Python.
    connection : dict of str to object
        The keywords of `connect`; `where` may be "auto".
    quiet : bool
        Show no progress.

    """
    from ..processes.child import hidden

    is_here = connection["where"] in ("auto", "local", "cuda") and not connection["scheduler_file"]
    with hidden(*(_OF_UCX if is_here and connection["protocol"] != "ucx" else ())):
        from ...cluster import connect, nearest
    from ...cluster.protocol import count_gpus
    from ..api import classify
    from ..engine.open import expected_device
    from ..job.beginning import refuse_files
    from ..options import Options
    from ..processes.child import seconds_since_start
    from ..report.terminal import NoProgress, TerminalProgress
    from ..source.inputs import Paths

    # Refuse a job that cannot work before a cluster starts.
    named = _names_a_cluster(connection)
    connection |= {"say": lambda line: None} if quiet else {}
    progress: Progress = NoProgress() if quiet else TerminalProgress(PlainConsole(stderr=True))
    refuse_files(source, place, model, Options(**options))

    # Choose the kind of cluster, and its workers.
    device = options.get("device", "auto")
    if connection["where"] == "auto":
        connection["where"] = nearest(device)
    files = source if isinstance(source, Paths) else ()
    gpus = count_gpus() if connection["where"] == "cuda" and not connection["nsys"] else 0
    if gpus and connection["workers"] is None and is_long(files):
        connection["workers"] = workers_for_gpus(model, options, gpus)
    one_chunk = connection["where"] == "local" and "chunk_size" not in options and _is_one_chunk(files)
    if not named and (one_chunk or (gpus == 1 and connection["workers"] is None)):
        connection |= {"where": "local", "processes": False}  # a worker inside this process starts much faster
    elif connection["where"] == "local" and connection["workers"] is None and expected_device(device) == "cuda":
        connection["workers"] = 1  # without dask-cuda only the first GPU gets a worker

    # Run the job. SIGUSR1 stops it early.
    stopping = Event()
    signal.signal(signal.SIGUSR1, lambda *_: stopping.set())
    progress.began = time.perf_counter() - seconds_since_start()
    run = partial(classify, source, str(place), model=model, progress=progress, stop=stopping.is_set, **options)
    with _stopped_at_the_end(progress):
        if is_here:
            return run(client=lambda: connect(**connection))  # in the background, during the planning
        progress.phase("connecting to the cluster")
        with connect(**connection) as client:  # first: the hardware of its workers decides the chunk size
            return run(client=client)


@contextmanager
def _stopped_at_the_end(progress: Progress) -> Iterator[None]:
    """Stop the progress display at the end of the block, even if planning fails."""
    try:
        yield
    finally:
        progress.stop()


def _estimate(
    source: Any,
    place: Any,
    model: list[str],
    options: dict[str, Any],
    connection: dict[str, Any],
    of_gpus: int | None,
    price: float | None,
    as_json: bool,
) -> None:
    """Label a sample, and print an estimate of what the whole job would take.

    Parameters
    ----------
    source : Paths or Stdin
        The input.
    place : Location or None
        The job's folder, if one is named.
    model : list of str
        The models.
    options : dict of str to object
        The options of the job, by their names in Python.
    connection : dict of str to object
        The keywords of `connect`. `where` and `workers` say for how many machines and workers to estimate the time.
    of_gpus : int, optional
        The number of GPUs for which to estimate the time.
    price : float, optional
        The price of an hour of a GPU, or of this machine if it has none.
    as_json : bool
        Print JSON.

    """
    from ...cluster.protocol import count_gpus
    from ..job.estimate import dry_run
    from ..source.inputs import Paths

    # Refuse a cluster whose packages are missing.
    where, count = connection["where"], connection["workers"]
    module, extra = _EXTRAS.get(where, (None, None))
    if module is not None and extra is not None and find_spec(module) is None:
        raise UsageError(f"--cluster {where} needs an extra: {install(extra)}")

    # Find out how many machines and workers the job would have.
    gpus = 0 if where == "local" or options.get("device") == "cpu" else count_gpus()
    files = source if isinstance(source, Paths) else ()
    if gpus and count is None and where in ("auto", "cuda") and is_long(files):
        count = workers_for_gpus(model, options, gpus)
    workers: int | None = 1
    if of_gpus is not None:
        machines = of_gpus
    elif where == "slurm":
        machines, workers = count or 1, gpus or None
    elif count is not None or _names_a_cluster(connection) or gpus > 1:
        machines, workers = 1, count or gpus or 1
    else:
        machines, workers = 1, _workers_here(source, options)

    # Label the sample and print the estimate.
    estimated_for: dict[str, Any] = {"machines": machines, "workers": workers, "price": price}
    estimate = dry_run(source, place and str(place), model=model, **estimated_for, **options)
    if of_gpus is not None and estimate.device != "cuda":
        raise UsageError("--gpus: the sample was labelled on a CPU. Make the estimate on a machine with such a GPU")
    if as_json:
        print_json(estimate.to_dict())
    else:
        _print_estimate(estimate, place, PlainConsole())
        if where not in ("auto", "local", *_EXTRAS) or connection["scheduler_file"] is not None:
            say("The rate was measured here, not on that cluster.")


def _workers_here(source: Any, options: dict[str, Any]) -> int | None:
    """Return how many workers a job without cluster options starts on a machine with one GPU or none.

    None means that the command's own process labels the rows.
    """
    from ..engine.open import expected_device
    from ..source.inputs import Paths

    files = source if isinstance(source, Paths) else ()
    is_small = "chunk_size" not in options and _is_one_chunk(files)
    on_gpu = expected_device(options.get("device", "auto")) == "cuda"
    return None if is_small or on_gpu else 1


def _print_estimate(estimate: Estimate, place: Location | None, console: PlainConsole) -> None:
    from ..report.terminal import print_list

    console.print(facts_table(_facts(estimate)))
    if place is not None:
        free = "" if estimate.free_bytes is None else f" ({decimal(estimate.free_bytes)} free)"
        print_fact("folder", f"{place}{free}", console)
    print_list("warning", estimate.warnings, console)
    print_list("skipped", [f"{path}: {reason}" for path, reason in estimate.left_out], console)
    print_list("files", estimate.problems, console)
    console.print("Nothing was written. Starting up and reading the input come on top of that time.", style="dim")


def _facts(estimate: Estimate) -> Iterator[tuple[str, str]]:
    # The input and the sample.
    if estimate.files:
        yield "files", f"{estimate.files:,}, {decimal(estimate.bytes)}"
    if estimate.update is not None:
        yield "update", str(estimate.update)
    if estimate.rows is None:
        yield "rows", "not known"
    else:
        yield "rows", f"{estimate.rows:,}" if estimate.counted else f"about {float(f'{estimate.rows:.3g}'):,.0f}"
    yield "sample", _sample(estimate)

    # What labels the rows.
    yield "model", estimate.model
    yield "on", estimate.backend
    if estimate.no_gpu:
        yield "no GPU", estimate.no_gpu
    yield "memory", _memory(estimate.memory)

    # Time, cost and output of the whole job.
    on_gpu = "one GPU", "GPUs", "GPU"
    one, others, unit = on_gpu if estimate.device == "cuda" else ("this machine", "such machines", "core")
    yield "rate", f"{estimate.rate:,.0f} rows a second, on {one}"
    if estimate.seconds is not None and estimate.seconds_of_one is not None:
        shortest, longest = map(_duration, estimate.seconds_range or (estimate.seconds, estimate.seconds))
        where = one if estimate.workers == 1 else f"{estimate.workers:,} {others}"
        yield "time", f"{shortest} to {longest} on {where}; {estimate.device_hours or 0:,.2f} {unit}-hours"
        if estimate.price is not None and estimate.cost is not None:
            hours = estimate.seconds_of_one / 3600
            yield "cost", f"about {estimate.cost:,.2f} at {estimate.price:g} an hour of {one}: {hours:,.2f} hours"
        if estimate.seconds_of_encoder is not None:
            yield "encoder", f"alone about {_duration(estimate.seconds_of_encoder)} on {one}"
    if estimate.output_bytes is not None:
        yield "output", f"about {decimal(estimate.output_bytes)}"


def _memory(memory: JobMemory) -> str:
    """Describe the memory that a job takes on a machine, and its parts."""
    parts = [f"{decimal(memory.command)} of the command"]
    if memory.workers:
        which = "the worker" if memory.workers == 1 else f"each of {memory.workers:,} workers"
        parts.append(f"{decimal(memory.worker)} of {which}")
    if memory.readers:
        count = memory.readers * max(1, memory.workers)
        parts.append(f"{decimal(memory.reader)} of each of {count:,} processes that read")
    if memory.shared:
        parts.append(f"{decimal(memory.shared)} of tables that all share")
    where = "in each worker" if memory.workers else "of this"
    work = f"{where} {decimal(memory.model)} for the model, {decimal(memory.in_flight)} for rows in flight"
    return f"about {decimal(memory.whole)}: {', '.join(parts)}; {work}"


def _sample(estimate: Estimate) -> str:
    counts = [f"{rows:,} {label}" for label, rows in [*estimate.labels.items()][:_SHOWN]]
    bad = sum(estimate.reasons.values())
    counts += [f"{bad:,} without a label"] if bad else []
    return f"{estimate.sample_rows:,} rows from several places: {', '.join(counts)}"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else str(timedelta(seconds=round(seconds)))


def submit(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Number of nodes.")] = 1,
    gpus_per_node: Annotated[int | None, typer.Option(metavar="N", min=0, help=_GPUS_PER_NODE)] = None,
    time: Annotated[str | None, typer.Option(metavar="HH:MM:SS", help="Time limit of each run of the job.")] = None,
    protocol: Annotated[str | None, typer.Option(metavar="auto|tcp|ucx", help=PROTOCOL)] = None,
    tls: Tls = None,
    site: Annotated[Path | None, typer.Option(metavar="FILE", help=_SITE)] = None,
    interactive: Annotated[bool, typer.Option("--interactive", help="Start workers for a notebook.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the job script only.")] = False,
) -> None:
    """Submit a job of classify to Slurm: add INPUT … -o OUT/ and any other option of classify.

    The command checks options, input files, columns and model on this machine before it submits the job. The job stops
    before its time limit, requeues itself and resumes. Its exit codes are those of classify.
    """
    from ...cluster.slurm import submit as slurm
    from ...cluster.slurm.site import load_site

    if interactive == bool(context.args):
        raise UsageError("give INPUT … -o OUT/ as for classify, or --interactive for workers alone")
    if "--overwrite" in context.args:
        raise UsageError("a submitted job continues where an earlier run stopped: remove the old folder yourself")
    settings = load_site(site).changed(gpus_per_node=gpus_per_node, time=time, protocol=protocol, tls=tls)
    if not interactive:
        _check_job(context)
    script = slurm.job_script(settings, nodes, None if interactive else context.args)
    if dry_run:
        print_file(script)
        return
    number = slurm.submit(script)
    say(f"job {number} is submitted; it writes to broadsheet-{number}.log")


def _check_job(context: typer.Context) -> None:
    """Raise the error that the job would raise hours later for a wrong option, file, column or model."""
    from ..job.estimate import sampled

    assert context.parent is not None
    group: Any = context.parent.command
    given = group.commands["classify"].make_context("classify", [*context.args], parent=context.parent).params
    output, inputs = given["output"], [*(given["inputs"] or ())]  # Click gives strings, and tuples of strings
    if output is None or Path(output) == _STDOUT or inputs in ([], ["-"]):
        raise UsageError("a submitted job reads files and writes to a folder: give INPUT … -o OUT/")
    source = pipe.source_of(inputs, given["stdin_format"])
    options = keywords({name: value for name, value in given.items() if name in TABLE})
    sampled(source, output, [*(given["model"] or ["ag-news"])], options, rows=1)  # type: ignore[arg-type]
