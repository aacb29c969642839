"""Raises the limit on open files as far as possible. A process that reaches the limit waits for connections forever."""

from __future__ import annotations

import resource

from ..pipeline.errors import UsageError, counted

_OF_A_JOB, _OF_A_WORKER = 32, 16  # for the client with the scheduler, and for each worker; measured: 20 and 15
_OF_A_GPU_WORKER = 96  # its own files, CUDA's, and those of readers; measured: 64 are too few
_ENOUGH = 65_536


def need_open_files(worker_processes: int, on_gpus: bool = False) -> None:
    """Make room for a cluster on this machine. Its workers inherit the limit, which each process has for itself.

    Raises UsageError if the cluster needs more files than may be open.
    """
    needed = max(_OF_A_JOB + _OF_A_WORKER * worker_processes, _OF_A_GPU_WORKER * on_gpus)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _ENOUGH:
        return
    limit = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if limit < needed:
        workers = counted(worker_processes or 1, "worker")
        fewer = ", or give a smaller --workers" if worker_processes > 1 else ""
        raise UsageError(
            f"a cluster of {workers} on this machine needs {needed} open files, and the limit is {limit}: raise it "
            f"with `ulimit -n {needed}` (as root, or in /etc/security/limits.conf){fewer}"
        )
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
