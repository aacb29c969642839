"""Functions that the doctor runs on workers and the scheduler.

They are pickled by value, and import only packages that every Dask process has. So they also run in a process that
imports another package named `broadsheet`, and report that it does.
"""

from __future__ import annotations

from typing import Any

PACKAGES = (
    "broadsheet", "dask", "distributed", "numpy", "pyarrow", "safetensors", "cupy", "cupy-cuda13x", "cupy-cuda12x",
    "cuda-core", "dask-cuda", "distributed-ucxx", "distributed-ucxx-cu13", "distributed-ucxx-cu12",
)  # fmt: skip


def about_process() -> dict[str, Any]:
    """Return the versions, the location and digest of the source of `broadsheet`, the cores, and the host name."""
    import importlib.util
    import os
    import platform
    import socket
    from hashlib import sha256
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    spec = importlib.util.find_spec("broadsheet")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path("nowhere")
    digest = sha256()
    for place in (folder, folder / "pipeline", folder / "cluster"):  # in a checkout, the last two are links
        for file in sorted(place.rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    source = (str(folder), digest.hexdigest()[:12])
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return {"versions": versions, "source": source, "cores": cores, "host": socket.gethostname()}


def about_gpu() -> dict[str, Any] | None:
    """Describe the GPU that this worker would use, the first visible one. Return None without a GPU."""
    import os

    try:
        import pynvml

        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        if not visible or not pynvml.nvmlDeviceGetCount():
            return None
        if visible.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(visible))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(visible.encode())
        words = pynvml.nvmlDeviceGetCpuAffinity(handle, -(-(os.cpu_count() or 1) // 64))
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return {
            "name": pynvml.nvmlDeviceGetName(handle),
            "uuid": pynvml.nvmlDeviceGetUUID(handle),
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "capability": f"{major}.{minor}",
            "cores_near": [64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1],
        }
    except Exception:  # NVML, the driver or the GPU is missing
        return None


def interface_of(address: str) -> str:
    """Return the network interface that has this process's address, for example "eth0 (10,000 Mbit/s)"."""
    from urllib.parse import urlsplit

    import psutil

    host = urlsplit(address).hostname or address
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address.partition("%")[0] == host for a in addresses):
            speed = psutil.net_if_stats()[name].speed
            return f"{name} ({speed:,} Mbit/s)" if speed else name
    return "none of its own"


def listeners() -> dict[int, str]:
    """Return the ports on which this process listens, with the address of each."""
    import psutil

    connections = psutil.Process().net_connections("tcp")
    return {c.laddr.port: c.laddr.ip for c in connections if c.status == "LISTEN"}


def ucx_transports() -> list[str]:
    """Return the transports that UCX may use in this process, which has loaded UCX."""
    import ucxx

    return sorted(ucxx.get_active_transports())


def read_and_answer(folder: str, name: str) -> str:
    """Read a file, write the same text to a second file next to it, and return the text."""
    import os
    from pathlib import Path

    text = (Path(folder) / name).read_text()
    (Path(folder) / f"{name}.{os.uname().nodename}.{os.getpid()}").write_text(text)
    return text


def make_bytes(size: int, device: bool) -> Any:
    """Return an array of `size` bytes, on the GPU or in memory."""
    if device:
        from importlib import import_module

        return import_module("cupy").zeros(size, "uint8")
    import numpy as np

    return np.zeros(size, np.uint8)


def size_of(array: Any) -> int:
    """Return the number of bytes of an array, which Dask must first transfer to this worker."""
    return int(array.nbytes)
