"""Workers in Slurm jobs that start and end with the load, for notebooks.

dask-jobqueue runs them on a site's settings.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from tempfile import NamedTemporaryFile
from typing import Any

from distributed import Client

from ...pipeline.errors import UsageError, install
from ..late_dashboard import WITHOUT_DASHBOARD, add_when_opened
from ..private import make_private
from ..protocol import choose
from ..settings import (
    DASHBOARD_ADDRESS,
    NO_DASHBOARD,
    THREADS_PER_WORKER,
    await_workers,
    configured,
    default_scheduler,
    export,
    no_workers_seconds,
)
from ..tls import make_certificates
from .site import Site, load_site

_BEFORE = (
    "export PYTHONSAFEPATH=1",  # workers must not import modules from the folder of submission
    'SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/broadsheet-XXXXXXXX") || exit 1',  # on the node's own disk
    """trap 'rm -rf "$SCRATCH"' EXIT""",
)

_CPUS_PER_WORKER = 4
"""The CPUs to request from Slurm for each worker, if the site's settings have no number."""


@contextmanager
def slurm_cluster(nodes: int | None, protocol: str, tls: bool | None, say: Callable[[str], None]) -> Iterator[Client]:
    """Start a scheduler in this process, and one to `nodes` Slurm jobs of one node each, depending on the load.

    Raises UsageError without dask-jobqueue or sbatch, and BroadsheetError if no job starts within the wait.
    """
    if find_spec("dask_jobqueue") is None:
        raise UsageError(f"workers in Slurm jobs need dask-jobqueue: {install('slurm')}")
    from dask_jobqueue import SLURMCluster
    from dask_jobqueue.slurm import SLURMJob

    class Job(SLURMJob):
        """A job that hands its script to sbatch in a file that only this user can write."""

        @contextmanager
        def job_file(self) -> Iterator[str]:
            with NamedTemporaryFile("w", suffix=".sh") as file:
                file.write(self.job_script())
                file.flush()
                yield file.name

    # Choose the protocol, and make a private folder for certificates.
    site = load_site().changed(protocol=None if protocol == "auto" else protocol, tls=tls)
    chosen, line = choose(site.protocol, nodes or 1, site.tls)
    say(line)
    wait = no_workers_seconds()
    with ExitStack() as stack:
        stack.enter_context(configured())
        folder = site.shared_folder / f"connect-{uuid.uuid4().hex[:8]}"
        make_private(folder)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        options = _options(site, chosen)
        if chosen == "tls":
            options["security"] = make_certificates(folder / "tls")
        make_private(site.shared_folder / "logs")
        # Start the scheduler, which starts and ends Slurm jobs.
        try:
            running = stack.enter_context(SLURMCluster(**options, job_cls=Job))
        except FileNotFoundError as error:
            raise UsageError("sbatch is not on this machine's path: connect from a login node") from error
        add_when_opened(running.scheduler)
        # A job ends after a minute without work, not between two cells of a notebook.
        running.adapt(minimum_jobs=1, maximum_jobs=nodes or 1, interval="2s", wait_count=30)
        stack.enter_context(default_scheduler())
        # Wait for the first worker.
        client = stack.enter_context(Client(running))
        longer = "see squeue, or wait longer by setting DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT"
        await_workers(client, 1, f"no Slurm job has started a worker within {wait:.0f} s: {longer}")
        yield client


def _options(site: Site, protocol: str) -> dict[str, Any]:
    gpus = site.gpus_per_node
    processes = gpus or 1
    directives = [f"--gpus-per-node={gpus}"] if gpus else []
    return {
        "queue": site.partition,
        "account": site.account,
        "walltime": site.time,
        "job_cpu": site.cpus_per_node or _CPUS_PER_WORKER * processes,
        "cores": THREADS_PER_WORKER * processes,
        "processes": processes,
        # Without memory in the settings, Slurm gives its default, and these 16GB are only the limit of the workers.
        "memory": site.memory or "16GB",
        "job_directives_skip": [] if site.memory else ["--mem"],
        "job_extra_directives": [*directives, *site.directives],
        "job_script_prologue": [*_BEFORE, *export(), *(site.setup or ())],  # the site's lines override
        "interface": site.interface,
        "protocol": f"{protocol}://",
        "scheduler_options": {
            "dashboard_address": DASHBOARD_ADDRESS,
            **WITHOUT_DASHBOARD,
            "interface": site.scheduler_interface or site.interface,
        },
        "worker_extra_args": [*NO_DASHBOARD],
        "log_directory": str(site.shared_folder / "logs"),
        "local_directory": '"$SCRATCH"',
        **({"worker_command": "dask_cuda.cli"} if gpus else {}),
    }
