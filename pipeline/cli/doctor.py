"""broadsheet doctor: is this machine, or that cluster, fit for a long job?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UsageError
from ..report.console import PlainConsole, lines, print_json, styled

_STYLES = {"ok": "green", "warning": "yellow", "FAILURE": "bold red"}


def command(
    cluster: Annotated[
        str, typer.Option(metavar="WHERE", help="local, cuda (this machine's GPUs), slurm, or a scheduler's address.")
    ] = "auto",
    scheduler_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File of a running scheduler.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT/", help="A folder that every worker should see.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="auto: the GPU, if there is one.")] = "auto",
    protocol: Annotated[
        str, typer.Option(metavar="auto|tcp|ucx", help="For a cluster that is started; ucx is checked only if named.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check versions, GPUs, kernels, network, security, folders and clocks: a verdict and a remedy for each.

    Exit code 1 if a check fails, else 0; warnings do not count.
    """
    if scheduler_file and (cluster != "auto" or protocol != "auto"):
        raise UsageError("--scheduler-file excludes --cluster and --protocol")
    findings = _examine(cluster, scheduler_file, output, device, protocol)
    if as_json:
        print_json([finding.to_dict() for finding in findings], indent=1)
    else:
        _print(findings, PlainConsole())
    raise typer.Exit(int(any(finding.verdict == "FAILURE" for finding in findings)))


def _examine(where: str, scheduler_file: Path | None, output: Path | None, device: str, protocol: str) -> list[Any]:
    from ...cluster import connect, nearest
    from ...cluster.doctor import examine

    if where == "auto":
        where = nearest(device)
    local = scheduler_file is None and where in ("local", "cuda")
    workers = 2 if local and where == "local" else None
    started = connect(where, workers=workers, scheduler_file=scheduler_file, protocol=protocol, say=lambda line: None)
    with started as client:
        return list(examine(client, output, device))


def _print(findings: list[Any], console: PlainConsole) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("check", "verdict", "found, and what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row(finding.check, styled((finding.verdict, _STYLES[finding.verdict])), lines(finding.found))
        if finding.remedy:
            table.add_row("", "", styled((f"→ {finding.remedy}", "bold")))
    console.print(table)
