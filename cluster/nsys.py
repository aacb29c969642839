"""Runs workers under NVIDIA Nsight Systems: one `nsys profile` for each node, over all workers of that node.

Their spans are NVTX ranges in the domain "broadsheet", so the node's report shows what each worker was doing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import dask

from ..pipeline.errors import BroadsheetError, UsageError
from ..pipeline.processes.child import import_path, python
from .settings import WORKER_OPTIONS, variables

_CLOSE_SECONDS = 120
"""nsys must write its report within this many seconds after the workers have ended."""


def nsys_command(folder: str | Path) -> list[str]:
    """Return the command to put before one that starts a node's workers. The report is FOLDER/HOST-PID.nsys-rep.

    nsys records CUDA calls, kernels, copies and NVTX ranges. It takes no CPU samples, which need privileges that
    clusters rarely grant.
    """
    output = os.path.join(os.path.abspath(folder), "%h-%p")
    return ["nsys", "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", f"--output={output}"]


@contextmanager
def nsys_workers(
    scheduler: str, workers: int, folder: str | Path, cuda: bool, more: Mapping[str, object]
) -> Iterator[None]:
    """Start workers on this host under nsys; their scheduler must be closed by the end of the block.

    Parameters
    ----------
    scheduler : str
        The scheduler's address.
    workers : int
        The number of workers to start.
    folder : str or Path
        The folder for nsys's report and the workers' log.
    cuda : bool
        Let dask-cuda start them, one on each of the first `workers` visible GPUs.
    more : mapping of str to object
        Dask settings for these workers only.

    Raises
    ------
    UsageError
        If nsys is not installed.
    BroadsheetError
        If nsys or the workers fail.

    """
    # Put together the command and the environment of the workers.
    if shutil.which("nsys") is None:
        raise UsageError("--nsys needs NVIDIA Nsight Systems: there is no nsys on the PATH")
    Path(folder).mkdir(parents=True, exist_ok=True)
    ours = dask.config.serialize(dask.config.global_config)
    env = {**os.environ, "DASK_INTERNAL_INHERIT_CONFIG": ours, **variables(more), **import_path()}
    command = [*nsys_command(folder), *python("-m", "dask")]
    if cuda:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(workers)))
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible.split(",")[:workers])
        command += ["cuda", "worker", scheduler]
    else:
        command += ["worker", scheduler, "--nworkers", str(workers)]
    command += ["--host", "127.0.0.1", *WORKER_OPTIONS]
    # Start the workers. After the block they end, and nsys writes its report.
    log = Path(folder) / "workers.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
        code = process.wait(_CLOSE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise BroadsheetError(f"nsys has not ended within {_CLOSE_SECONDS} s of its workers: see {log}") from error
    finally:
        process.terminate()  # still running after an error
    if code:
        raise BroadsheetError(f"nsys ended with exit code {code}: see {log}")
