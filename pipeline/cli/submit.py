"""broadsheet submit: a classify job for Slurm, or workers for a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..report.console import print_file, say
from .classify import TLS_HELP

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def command(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Number of nodes.")] = 1,
    gpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="GPUs of each node; 0: its CPU.  [default: site.yaml's]")
    ] = None,
    time: Annotated[str | None, typer.Option(metavar="HH:MM:SS", help="Time limit of each run.")] = None,
    protocol: Annotated[str | None, typer.Option(metavar="auto|tcp|ucx", help="Between workers and scheduler.")] = None,
    tls: Annotated[bool | None, typer.Option("--tls/--no-tls", show_default=False, help=TLS_HELP)] = None,
    site: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Site settings.  [default: ~/.config/broadsheet/site.yaml]")
    ] = None,
    interactive: Annotated[bool, typer.Option("--interactive", help="Start workers for a notebook.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script; submit nothing.")] = False,
) -> None:
    """Submit a classify job to Slurm; it takes INPUT … -o OUT/ and every other option of classify.

    The job stops before its time limit, requeues itself and resumes. Its exit codes are those of classify.
    """
    from ...cluster.slurm.site import load_site
    from ...cluster.slurm.submit import job_script, submit

    if interactive == bool(context.args):
        raise UsageError("give INPUT … -o OUT/ as for classify, or --interactive for workers alone")
    if "--overwrite" in context.args:
        raise UsageError("a submitted job continues where an earlier run stopped: remove the old folder yourself")
    settings = load_site(site).changed(gpus_per_node=gpus_per_node, time=time, protocol=protocol, tls=tls)
    script = job_script(settings, nodes, None if interactive else context.args)
    if dry_run:
        print_file(script)
        return
    number = submit(script)
    say(f"job {number} is submitted; it writes to broadsheet-{number}.log")
