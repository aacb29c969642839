"""Raises the limit on open files as far as it may be: where it is reached, connections wait without end."""

from __future__ import annotations

import resource

from ..pipeline.errors import UsageError

_OF_A_JOB, _OF_A_WORKER = 32, 16  # of the client, with the scheduler in it; measured: 20, and 15 for each process
_OF_A_GPU_WORKER = 96  # of its own process, CUDA's and those of readers; measured: 64 are too few
_ENOUGH = 65_536


def need_open_files(worker_processes: int, on_gpus: bool = False) -> None:
    """Make room for a cluster on this machine; its workers inherit the limit, which is each process's own.

    Raises UsageError if fewer files may be open than it needs.
    """
    needed = max(_OF_A_JOB + _OF_A_WORKER * worker_processes, _OF_A_GPU_WORKER * on_gpus)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _ENOUGH:
        return
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if most < needed:
        fewer = ", or give a smaller --workers" if worker_processes > 1 else ""
        raise UsageError(
            f"a cluster of {worker_processes or 1} workers on this machine needs {needed} open files, and the limit is "
            f"{most}: raise it with `ulimit -n {needed}` (as root, or in /etc/security/limits.conf){fewer}"
        )
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
