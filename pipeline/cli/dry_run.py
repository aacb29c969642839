"""broadsheet classify … --dry-run: what the job would take, on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ..errors import UsageError
from ..report.console import PlainConsole, lines, print_json, say, styled

if TYPE_CHECKING:
    from ..job.estimate import Estimate
    from ..source.inputs import Paths
    from ..source.memory.stdin import Stdin

_EXTRAS = {"slurm": ("dask_jobqueue", "slurm"), "cuda": ("dask_cuda", "cluster")}
"""What kinds of cluster need: a module, and the extra that installs it."""

_SHOWN = 10


def run(
    source: Paths | Stdin,
    output: Path | None,
    model: list[str],
    options: dict[str, Any],
    connection: dict[str, Any],
    as_json: bool,
) -> None:
    """Print the estimate."""
    from ...cluster.protocol import count_gpus
    from ..job.estimate import dry_run

    where, count = connection["where"], connection["workers"]
    module, extra = _EXTRAS.get(where, (None, None))
    if module is not None and find_spec(module) is None:
        raise UsageError(f"--cluster {where} needs an extra: pip install 'broadsheet[{extra}]'")
    gpus = 1 if where == "local" else count_gpus()
    machines, workers = (count or 1, gpus) if where == "slurm" else (1, count or gpus)
    estimate = dry_run(source, output, model=model, machines=machines, workers=workers or None, **options)
    if as_json:
        print_json(estimate.to_dict())
    else:
        _print(estimate, output, PlainConsole())
        if where not in ("auto", "local", *_EXTRAS) or connection["scheduler_file"] is not None:
            say("The rate was measured here, not on that cluster.")


def _print(estimate: Estimate, output: Path | None, console: PlainConsole) -> None:
    from ..output.object_store import place_of

    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", style="bold", min_width=8)
    grid.add_column(overflow="fold")
    for name, value in _facts(estimate):
        grid.add_row(name, value)
    console.print(grid)
    if output is not None:
        free = "" if estimate.free_bytes is None else f" ({_size(estimate.free_bytes)} free)"
        console.print(styled(("  folder  ", "bold"), f"{place_of(output)}{free}"), soft_wrap=True)
    for name, messages in (
        ("warning", estimate.warnings),
        ("left out", estimate.left_out),
        ("files", estimate.problems),
    ):
        for message in messages[:_SHOWN]:
            console.print(lines(f"{name}  {message}", "yellow"), soft_wrap=True)
        if len(messages) > _SHOWN:
            console.print(f"{name}  … and {len(messages) - _SHOWN:,} more", style="yellow")
    console.print(
        "Nothing was written. The time is for labelling; starting a cluster and reading come to it.", style="dim"
    )


def _facts(estimate: Estimate) -> Iterator[tuple[str, str]]:
    if estimate.files:
        yield "files", f"{estimate.files:,}, {_size(estimate.bytes)}"
    if estimate.rows is None:
        yield "rows", "not known"
    else:
        yield "rows", f"{estimate.rows:,}" if estimate.counted else f"about {float(f'{estimate.rows:.3g}'):,.0f}"
    yield "sample", _sample(estimate)
    yield "model", estimate.model
    yield "on", estimate.backend
    if estimate.no_gpu:
        yield "no GPU", estimate.no_gpu
    unit = "GPU" if estimate.device == "cuda" else "core"
    yield "rate", f"{estimate.rate:,.0f} rows a second, {'on one GPU' if unit == 'GPU' else 'on this machine'}"
    if estimate.seconds is not None and estimate.seconds_of_one is not None:
        one = "one GPU" if unit == "GPU" else "this machine"
        times = f"{_duration(estimate.seconds_of_one)} on {one}"
        if estimate.workers > 1:
            others = "GPUs" if unit == "GPU" else "such machines"
            times += f", {_duration(estimate.seconds)} on {estimate.workers:,} {others}"
        yield "time", f"about {times}; {estimate.device_hours or 0:,.2f} {unit}-hours"
    if estimate.output_bytes is not None:
        yield "output", f"about {_size(estimate.output_bytes)}"


def _sample(estimate: Estimate) -> str:
    counts = [f"{rows:,} {label}" for label, rows in [*estimate.labels.items()][:_SHOWN]]
    bad = sum(estimate.reasons.values())
    counts += [f"{bad:,} without a label"] if bad else []
    return f"{estimate.sample_rows:,} rows from all over the input: {', '.join(counts)}"


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else str(timedelta(seconds=round(seconds)))
