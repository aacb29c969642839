"""Choosing an engine for this machine: a GPU where one works, else the CPU."""

from __future__ import annotations

import importlib.util
from contextlib import suppress

from pipeline.engine.base import DEVICES, KERNELS, PRECISIONS, Engine
from pipeline.engine.cpu import CpuEngine
from pipeline.errors import BroadsheetError, UsageError
from pipeline.model.charcnn import Model
from pipeline.threads import available_cores

_GPU_PACKAGES = {"CuPy": "cupy", "cuda-bindings": "cuda.bindings", "cuda-core": "cuda.core"}
_OUT_OF_MEMORY = 2  # CUDA's cudaErrorMemoryAllocation


def open_engine(
    model: Model, device: str = "auto", precision: str = "auto", threads: int | None = None, kernels: str = "auto"
) -> Engine:
    """Load `model` on a device. `threads`: compute threads of the CPU backend, by default this process's cores.

    device "auto" takes a GPU where one works, else the CPU; `why_no_gpu` tells why. kernels: a generation of CUDA
    kernels ("simt", "sm80", "sm90"), by default the best for the GPU. Raises UsageError where the device, the precision
    or the kernels are not to be had.
    """
    for name, value, known in (
        ("device", device, DEVICES),
        ("precision", precision, PRECISIONS),
        ("kernels", kernels, KERNELS),
    ):
        if value not in known:
            raise UsageError(f"{name} {value!r}: choose one of {', '.join(known)}")
    missing = None if device == "cpu" else why_no_gpu()
    if device != "cpu" and missing is None:
        from pipeline.engine.cuda import CudaEngine

        return CudaEngine(model, precision, kernels)
    if device == "cuda":
        raise UsageError(f"no CUDA here: {missing}. Use --device cpu, or mend that")
    for name, value in (("precision", precision), ("kernels", kernels)):
        if value not in ("auto", "fp32"):
            raise UsageError(
                f"the CPU backend computes in fp32 with NumPy: leave out --{name} {value}"
                + (f", or mend this: {missing}" if missing else "")
            )
    return CpuEngine(model, threads or available_cores())


def _missing_package() -> str | None:
    """The first of the extra's packages that is not installed."""
    for name, module in _GPU_PACKAGES.items():
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # not even the package it is in
            found = None
        if found is None:
            return name
    return None


def expected_device(device: str) -> str:
    """What a worker on this machine would take, "cpu" or "cuda"; asks without touching a GPU's memory."""
    if device == "auto" and _missing_package() is None:
        with suppress(Exception):  # CuPy's own and the loader's: without a driver there is no GPU
            import cupy

            return "cuda" if cupy.cuda.runtime.getDeviceCount() else "cpu"
    return "cuda" if device == "cuda" else "cpu"


def why_no_gpu() -> str | None:
    """None where CUDA works in this process; else why it does not, in one line.

    Raises BroadsheetError for a GPU that works and is full: in its place the CPU would be an unpleasant surprise.
    """
    missing = _missing_package()
    if missing:
        return f"{missing} is not installed (pip install 'broadsheet[cuda13]')"
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount() == 0:
            return "there is no NVIDIA GPU (or CUDA_VISIBLE_DEVICES hides it)"
        cupy.cuda.Device().mem_info  # noqa: B018 - makes the context, which a broken driver refuses
    except Exception as error:  # CuPy raises ImportError, RuntimeError and its own, by what is amiss
        if getattr(error, "status", None) == _OUT_OF_MEMORY:
            raise BroadsheetError(
                f"the GPU has no room, not even for a CUDA context ({error}). End what else runs there, choose another "
                "(CUDA_VISIBLE_DEVICES), or use --device cpu"
            ) from error
        return " ".join(f"there is no NVIDIA GPU with a driver that works ({error})".split())
    return None
