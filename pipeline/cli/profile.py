"""broadsheet profile: a model's kernels against what the machine can do."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..report.console import PlainConsole, print_json

if TYPE_CHECKING:
    from ..telemetry.profile import Point

SWEEPS = ("batch", "precision")


def command(
    model: Annotated[str, typer.Option(help="A shipped model's name, a file, or hf://USER/NAME.")] = "ag-news",
    batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Articles in the batch.  [default: CPU 128, GPU 4096]")
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="auto: the GPU, if there is one.")] = "auto",
    precision: Annotated[str, typer.Option(metavar="auto|fp32|fp16|bf16|int8")] = "auto",
    kernels: Annotated[
        str, typer.Option(metavar="auto|simt|sm75|sm80|sm90", help="CUDA kernels, by generation.")
    ] = "auto",
    sweep: Annotated[
        str | None, typer.Option(metavar="batch|precision", help="Measure rate and latency over this instead.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the roofline, or the sweep.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure each kernel, alone and in the stream, and say what bounds it.

    What the device can reach is measured in the same run. The text is random, its lengths are those of AG News.
    """
    if sweep not in (None, *SWEEPS):
        raise UsageError(f"--sweep {sweep!r}: choose one of {', '.join(SWEEPS)}")
    if sweep == "batch" and batch:
        raise UsageError("--sweep batch goes through batch sizes of its own: leave --batch out")
    if sweep == "precision" and precision != "auto":
        raise UsageError("--sweep precision goes through every precision: leave --precision out")
    if sweep and kernels != "auto":
        raise UsageError("a sweep takes the best kernels for each precision: leave --kernels out")
    if plot and find_spec("matplotlib") is None:
        raise UsageError("--plot needs Matplotlib: pip install 'broadsheet[report]'")
    if plot and not plot.absolute().parent.is_dir():
        raise UsageError(f"--plot {plot}: there is no such folder")
    from ..engine.profile import profile, sweep_batch, sweep_precision
    from ..report.roofline_table import print_profile

    if sweep:
        points = sweep_batch(model, device, precision) if sweep == "batch" else sweep_precision(model, batch, device)
        _show_sweep(points, sweep, plot, as_json)
        return
    found = profile(model, batch, device, precision, kernels)
    if as_json:
        print_json(found.to_dict())
    else:
        print_profile(found, PlainConsole())
    if plot:
        from ..report.plots import roofline, save_png

        save_png(roofline(found), plot)


def _show_sweep(points: list[Point], over: str, plot: Path | None, as_json: bool) -> None:
    from ..report.roofline_table import print_sweep

    if as_json:
        print_json([p.to_dict() for p in points])
    else:
        print_sweep(points, PlainConsole())
    if plot:
        from ..report.plots import save_png, sweep

        save_png(sweep(points, over), plot)
