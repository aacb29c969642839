"""Makes the script of a job: directives and settings first, then the shell files of this folder, unchanged."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ...pipeline.errors import BroadsheetError, UsageError
from ..protocol import check_protocol
from .site import Site

_HERE = Path(__file__).parent


def job_script(site: Site, nodes: int, arguments: Sequence[str] | None) -> str:
    """Return the script for `sbatch`. `arguments` are those of `broadsheet classify`; None for a cluster to connect to.

    Raises UsageError for an unknown protocol, or UCX with TLS.
    """
    check_protocol(site.protocol, site.tls)
    body = ["start.sh", "interactive.sh" if arguments is None else "batch.sh"]
    parts = ["#!/bin/bash", *_directives(site, nodes), "", *_settings(site, arguments), ""]
    return "\n".join([*parts, *((_HERE / name).read_text() for name in body)])


def submit(script: str) -> str:
    """Submit the script to Slurm, and return the job's number. Raises BroadsheetError if Slurm rejects it.

    Slurm makes the job's log with the umask of this call. The log has the dashboard's link, so only its user may read
    it.
    """
    command = ["sbatch", "--parsable"]
    try:
        run = subprocess.run(command, input=script, capture_output=True, text=True, check=False, umask=0o077)
    except FileNotFoundError as error:
        raise UsageError("sbatch is not on this machine's path: submit from a login node of the cluster") from error
    if run.returncode:
        raise BroadsheetError(f"Slurm rejects the job: {run.stderr.strip()}")
    return run.stdout.strip().partition(";")[0]


def _directives(site: Site, nodes: int) -> list[str]:
    lines = [
        "--job-name=broadsheet",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--time={site.time}",
        f"--signal=B:USR1@{site.stop_before}",
        "--requeue",
        "--no-kill",  # a failed node does not end the job
        "--open-mode=append",
        "--output=broadsheet-%j.log",
    ]
    for option, value in (
        ("partition", site.partition),
        ("account", site.account),
        ("gpus-per-node", site.gpus_per_node or None),
        ("cpus-per-task", site.cpus_per_node),
        ("mem", site.memory),
    ):
        if value is not None:
            lines.append(f"--{option}={value}")
    return [f"#SBATCH {line}" for line in (*lines, *site.directives)]


def _settings(site: Site, arguments: Sequence[str] | None) -> list[str]:
    lines = [
        f"umask {_umask():04o}",  # the job inherits that of sbatch, which `submit` sets for the log
        f"FOLDER={shlex.quote(str(site.shared_folder))}/$SLURM_JOB_ID",
        f"INTERFACE={shlex.quote(site.interface or '')}",
        f"PROTOCOL={site.protocol}",
        f"TLS={'' if site.tls is None else int(site.tls)}",
        f"GPUS_PER_NODE={site.gpus_per_node}",
        f"WORKERS_PER_GPU={site.workers_per_gpu}",
        f"STOP_BEFORE={site.stop_before}",
    ]
    if arguments is not None:
        continued = [] if "--update" in arguments else ["--resume"]  # for the run after a requeue
        lines.append(f"ARGUMENTS=({shlex.join([*arguments, *continued])})")
    if site.setup is None:
        return [*lines, f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"]
    return [*lines, *site.setup]


def _umask() -> int:
    """Return this process's umask. The system has no call that only reads it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
