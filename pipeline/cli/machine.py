"""The commands `doctor` and `profile` and the facts of `--version`: what this machine or a cluster has and can do.

`facts` imports none of the libraries that it reports. So it answers at once, even if one of them cannot be imported.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError, install
from ..report.console import PlainConsole, lines, print_json, styled
from ..storage.disk import refuse_outputs
from .flags import Device, Kernels, Precision, SchedulerFile, Where, in_panel

if TYPE_CHECKING:
    from packaging.requirements import Requirement


_PROTOCOL = "Protocol of the cluster that the command starts; it checks ucx only if you name it."
_STYLES = {"ok": "green", "warning": "yellow", "FAILURE": "bold red"}
_PACKAGES = ("dask", "distributed", "numpy", "pyarrow")
_CUDA = (
    "cupy-cuda12x", "cupy-cuda13x", "cupy", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc",
)  # fmt: skip
_ABOUT_GPUS = ["nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader"]
_OURS = "broadsheet"
_MODEL = "A shipped model's name, a file, or hf://USER/NAME."
_BATCH = "Number of articles in the batch.  [default: CPU 128, GPU 4096]"
_SEEN = "Also check that every worker can read and write this folder."
_NOT_FOR_USERS = {"test", "test-all", "dev"}


def doctor(
    cluster: Where = None,
    scheduler_file: SchedulerFile = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT/", help=_SEEN)] = None,
    device: Device = "auto",
    protocol: Annotated[str, in_panel("Cluster", "auto|tcp|ucx", _PROTOCOL)] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check versions, GPUs, kernels, network, security, folders and clocks, and say how to mend what is wrong.

    The exit code is 1 if a check fails, else 0. Warnings do not count.
    """
    if scheduler_file and (cluster or protocol != "auto"):
        raise UsageError("a running scheduler has its workers and protocol: give --scheduler-file alone")
    from ...cluster import connect, nearest
    from ...cluster.doctor import examine

    where = nearest(device) if cluster in (None, "auto") else cluster
    workers = 2 if scheduler_file is None and where == "local" else None
    started = connect(where, workers=workers, scheduler_file=scheduler_file, protocol=protocol, say=lambda line: None)
    with started as client:
        findings = list(examine(client, output, device))
    if as_json:
        print_json([finding.to_dict() for finding in findings], indent=1)
    else:
        _print_findings(findings, PlainConsole())
    raise typer.Exit(int(any(finding.verdict == "FAILURE" for finding in findings)))


def _print_findings(findings: list[Any], console: PlainConsole) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("check", "verdict", "found, and what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row(finding.check, styled((finding.verdict, _STYLES[finding.verdict])), lines(finding.found))
        if finding.remedy:
            table.add_row("", "", styled((f"→ {finding.remedy}", "bold")))
    console.print(table)


def profile(
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help=_MODEL)] = "ag-news",
    batch: Annotated[int | None, typer.Option(metavar="N", min=1, help=_BATCH)] = None,
    device: Device = "auto",
    precision: Precision = "auto",
    kernels: Kernels = "auto",
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the roofline.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure each kernel, alone and within the whole computation, and say what bounds it.

    The same run measures the peak of the device. The texts are random; their lengths are those of AG News.
    """
    if plot and find_spec("matplotlib") is None:
        raise UsageError(f"--plot needs Matplotlib: {install('report')}")
    refuse_outputs({"--plot": plot}, overwrite, lambda: [model])
    from ..engine import profile as measured
    from ..report.tables import print_profile

    profiled = measured.profile(model, batch, device, precision, kernels)
    if as_json:
        print_json(profiled.to_dict())
    else:
        print_profile(profiled, PlainConsole())
    if plot:
        from ..report.plots import roofline, save_png

        save_png(roofline(profiled), plot)


def facts() -> Iterator[tuple[str, str]]:
    """Yield the facts for a bug report, each with its name and its value."""
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    yield "platform", f"{platform.platform()}, {platform.machine()}"
    yield "packages", ", ".join(_installed(_PACKAGES))
    yield "BLAS", _blas()
    yield "CUDA", ", ".join(_installed(_CUDA)) or "not installed (extra cuda12 or cuda13)"
    yield "GPU", _gpus()
    yield "extras", ", ".join(_extras()) or "none"


def _installed(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


def _blas() -> str:
    """Return name and version of the BLAS library in NumPy's wheel, and the code path it chose for this processor."""
    from threadpoolctl import threadpool_info

    numpy = find_spec("numpy")
    for place in (numpy and numpy.submodule_search_locations) or []:
        for file in Path(place).parent.glob("numpy.libs/*openblas*"):
            with suppress(OSError):
                ctypes.CDLL(str(file))
    named = [f"{b['internal_api']} {b.get('version')} {b.get('architecture', '')}".strip() for b in threadpool_info()]
    return ", ".join(named) or "the system's"


def _gpus() -> str:
    if shutil.which(_ABOUT_GPUS[0]) is None:
        return "no NVIDIA driver here"
    try:
        told = subprocess.run(_ABOUT_GPUS, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi fails: {error}"
    return "; ".join(told.stdout.strip().splitlines()) or f"nvidia-smi: {(told.stderr or 'no GPU').strip()}"


def _extras() -> Iterator[str]:
    """Yield the extras whose packages are all installed."""
    from packaging.requirements import Requirement

    required = [Requirement(line) for line in requires(_OURS) or ()]

    def is_there(extra: str) -> bool:
        needed = (one for one in required if one.marker and one.marker.evaluate({"extra": extra}))
        return all(map(installed, (one for one in needed if not (one.marker and one.marker.evaluate({"extra": ""})))))

    def installed(requirement: Requirement) -> bool:
        if requirement.name == _OURS:
            return all(map(is_there, requirement.extras))
        try:
            return requirement.specifier.contains(version(requirement.name), prereleases=True)
        except PackageNotFoundError:
            return False

    yield from filter(is_there, sorted({*(metadata(_OURS).get_all("Provides-Extra") or ())} - _NOT_FOR_USERS))
