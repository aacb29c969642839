"""The protocol between Dask's processes: TCP, TLS over TCP, or UCX."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from itertools import takewhile

from ..pipeline.errors import BroadsheetError, UsageError, install
from ..pipeline.processes.child import import_path, python
from .settings import environment

PROTOCOLS = ("auto", "tcp", "ucx")
_ASK_UCX = "import ucxx; print(','.join(sorted(ucxx.get_active_transports())))"


def check_protocol(requested: str, tls: bool | None) -> None:
    """Raise UsageError for an unknown protocol, or for UCX together with TLS."""
    if requested not in PROTOCOLS:
        raise UsageError(f"protocol {requested!r}: choose one of {', '.join(PROTOCOLS)}")
    if tls and requested == "ucx":
        raise UsageError(
            "UCX together with TLS is refused: UCX traffic is neither encrypted nor bound to one interface. Use "
            "--protocol tcp with --tls, or UCX on hosts and a network that only you can reach"
        )


def choose(requested: str, hosts: int, tls: bool | None = None) -> tuple[str, str]:
    """Choose the protocol. Return its name in Dask ("tcp", "tls", "ucx") and a line for the user.

    The line has the reason and, for UCX, the transports.

    `hosts` is the number of machines with workers. If `tls` is None, TLS is chosen unless UCX is requested, which has
    no TLS.

    Raises UsageError for an unknown protocol, and for UCX if it is not installed or TLS is requested too.
    """
    check_protocol(requested, tls)
    if requested == "ucx":
        if not has_ucx():
            raise UsageError(f"protocol ucx needs distributed-ucxx: {install('ucx13')} (or environment.yml)")
        return "ucx", _ucx_line("as requested")
    if tls is not False:
        return "tls", "protocol: TLS over TCP: encrypted, and both ends show a certificate of this job"
    if requested == "tcp":
        return "tcp", "protocol: TCP, as requested"
    if hosts == 1:
        return "tcp", "protocol: TCP, since all workers are on one host"
    if not count_gpus():
        return "tcp", f"protocol: TCP, since the {hosts} hosts have no GPUs to connect"
    if not has_ucx():
        lacking = f"distributed-ucxx is not installed ({install('ucx13')})"
        return "tcp", f"protocol: TCP, since {lacking}; {hosts} hosts"
    return "ucx", _ucx_line(f"since GPUs of {hosts} hosts are to be connected")


def ucx_transports() -> list[str]:
    """Return the transports that UCX may use here, for example cuda_ipc, rc_mlx5, tcp.

    A child process finds them, since UCX cannot be unloaded.
    Raises BroadsheetError if UCX does not start.
    """
    env = {**os.environ, **environment(), **import_path()}
    run = subprocess.run(python("-c", _ASK_UCX), env=env, capture_output=True, text=True, timeout=60, check=False)
    if run.returncode:
        raise BroadsheetError(f"UCX does not start: {run.stderr.strip().splitlines()[-1]}")
    return [name for name in run.stdout.strip().split(",") if name != "self"]


def _ucx_line(why: str) -> str:
    return f"protocol: UCX, {why}; transports: {', '.join(ucx_transports())}; not encrypted, listens on all interfaces"


def has_ucx() -> bool:
    """Return whether Dask can use UCX here."""
    return find_spec("distributed_ucxx") is not None


def count_gpus() -> int:
    """Return the number of GPUs that this process may use; 0 without dask-cuda or a driver. Creates no CUDA context."""
    if find_spec("dask_cuda") is None:
        return 0
    import pynvml

    try:
        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return int(pynvml.nvmlDeviceGetCount())
        # CUDA uses the devices before the first invalid one. dask-cuda counts in the same way, but importing it is
        # slow (0.1 s).
        return len(list(takewhile(lambda name: name.strip() not in ("", "-1"), visible.split(","))))
    except pynvml.NVMLError:
        return 0
