"""Chooses an engine for this machine: on a GPU if one works, else on the CPU. Checks if there is room for another."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from ..errors import NoRoom, UsageError, install
from ..model.charcnn import Model
from ..model.encoder import Encoder, Floats
from ..model.torch_encoder import TorchEncoder
from ..processes.threads import available_cores
from .base import DEVICES, KERNELS, PRECISIONS, Engine, Texts, Wrapped
from .cpu import CpuEngine

_GPU_PACKAGES = {"CuPy": "cupy", "cuda-bindings": "cuda.bindings", "cuda-core": "cuda.core"}
_TEXTS_AT_ONCE = {"cpu": 128, "cuda": 16_384}
"""The number of texts whose vectors are computed before progress is reported: a few seconds' worth."""

_OUT_OF_MEMORY = 2  # CUDA's cudaErrorMemoryAllocation


def open_engine(
    model: Model, device: str = "auto", precision: str = "auto", threads: int | None = None, kernels: str = "auto"
) -> Engine:
    """Load a model on a device.

    Parameters
    ----------
    model : Model
        The model.
    device : str
        "cpu", "cuda", or "auto": a GPU if one works, else the CPU. `why_no_gpu` returns the reason.
    precision : str
        "auto", "fp32", "fp16", "bf16", or "int8", which "auto" never chooses, and which needs activation scales.
    threads : int, optional
        The number of compute threads of the CPU engine. Default: the cores that this process may use.
    kernels : str
        A generation of CUDA kernels: "simt", "sm75", "sm80", "sm90", or "auto", the best for the GPU.

    Returns
    -------
    Engine
        The engine. Its `close` releases threads and memory.

    Raises
    ------
    UsageError
        If the device, the precision or the kernels are not available.
    NoRoom
        If the GPU has no room for the model.

    Examples
    --------
    >>> engine = open_engine(load_model("ag-news"), device="cpu", threads=4)
    >>> engine.close()

    """
    # Check the options.
    for name, value, known in (
        ("device", device, DEVICES),
        ("precision", precision, PRECISIONS),
        ("kernels", kernels, KERNELS),
    ):
        if value not in known:
            raise UsageError(f"{name} {value!r}: choose one of {', '.join(known)}")
    # Open a plain engine, and wrap it: the wrapper prepares the texts, and calibrates the scores by class.
    if model.preparation is not None or model.by_class is not None:
        plain = replace(model, preparation=None, by_class=None)
        return Wrapped(model, open_engine(plain, device, precision, threads, kernels))
    if model.encoder is not None:
        return _open_encoder(model, device, precision, threads, kernels)
    # Open the engine of the device.
    where, missing = _working(device)
    if where == "cuda":
        from .cuda import CudaEngine

        return CudaEngine(model, precision, kernels)
    for name, value, offered in (("precision", precision, ("auto", "fp32", "int8")), ("kernels", kernels, ("auto",))):
        if value not in offered:
            raise UsageError(
                f"the CPU backend computes in fp32 or int8 with NumPy: leave out --{name} {value}"
                + (f", or fix this: {missing}" if missing else "")
            )
    return CpuEngine(model, threads or available_cores(), "int8" if precision == "int8" else "fp32")


def _working(device: str) -> tuple[str, str | None]:
    """Return the device that works, "cuda" or "cpu", and the reason if a GPU was wanted and does not work.

    Raises UsageError if `device` is "cuda" and no GPU works.
    """
    missing = None if device == "cpu" else why_no_gpu()
    if device == "cuda" and missing:
        raise UsageError(f"no CUDA here: {missing}. Use --device cpu, or fix that")
    return "cpu" if device == "cpu" or missing else "cuda", missing


def _open_encoder(model: Model, device: str, precision: str, threads: int | None, kernels: str) -> Engine:
    """Open the engine of an encoder, and for a chain also the engine of its n-grams. Raises like `open_engine`.

    Parameters
    ----------
    model, device, precision, threads, kernels
        See `open_engine`.

    """
    from .encoder import EncoderEngine, compute_on

    where, missing = _working(device)
    if where == "cpu" and (precision not in ("auto", "fp32") or kernels != "auto"):
        raise UsageError(
            f"{model.name} is an encoder, which a CPU computes in fp32: leave out --precision and --kernels"
            + (f", or fix this: {missing}" if missing else "")
        )
    assert model.encoder is not None
    compute = compute_on(model.encoder, where, precision, kernels, threads)
    first = None if model.cascade is None else open_engine(model.asking("none"), device, "auto", threads)
    return EncoderEngine(model, compute, first)


def vectors(
    encoder: Encoder | TorchEncoder,
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    device: str = "auto",
    tell: Callable[[int], None] = lambda rows: None,
) -> Floats:
    """Return the vectors of N texts. A CPU computes them if "auto" finds no GPU, and texts that overflow in 16 bits.

    Parameters
    ----------
    encoder : Encoder or TorchEncoder
        The encoder.
    data, offsets
        The texts, as in `WordPiece.of_texts`.
    device : str
        See `open_engine`.
    tell : callable
        A function that is called from time to time with the number of finished texts.

    Returns
    -------
    float32 [N, outputs]
        The vectors.

    """
    from .encoder import compute_on

    # Open the encoder on the device, or on the CPU if "auto" finds a GPU that cannot compute it.
    texts = Texts(data, offsets)
    where, _ = _working(device)
    try:
        compute = compute_on(encoder, where)
    except UsageError:
        if device == "cuda":
            raise
        where, compute = "cpu", compute_on(encoder, "cpu")
    # Compute the vectors of some texts at a time.
    size, parts = _TEXTS_AT_ONCE[where], []
    with closing(compute):
        for first in range(0, max(len(texts), 1), size):
            offsets_here = offsets[first : first + size + 1]
            part = Texts(data[offsets_here[0] : offsets_here[-1]], offsets_here - offsets_here[0])
            parts.append(compute.of_texts(part, False, None)[0].reshape(len(part), encoder.outputs))
            tell(first + len(part))
    out = np.concatenate(parts)
    # Compute texts that overflowed in 16 bits again, on the CPU.
    overflowed = ~np.asarray(np.isfinite(out).all(axis=1))
    if where == "cuda" and overflowed.any():
        again = texts.take(overflowed)
        out[overflowed] = vectors(encoder, again.data, again.offsets, "cpu")
    return out


@contextmanager
def opened(
    models: Sequence[Model], device: str = "auto", precision: str = "auto", kernels: str = "auto"
) -> Iterator[list[Engine]]:
    """Open an engine for each of several models, until the end of the block. Raises like `open_engine`."""
    with ExitStack() as stack:
        engines = []
        for model in models:
            engines.append(open_engine(model, device, precision, kernels=kernels))
            stack.callback(engines[-1].close)
        yield engines


def _missing_package() -> str | None:
    """Return the first package of the extra that is not installed, or None."""
    for name, module in _GPU_PACKAGES.items():
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # the package that contains it is not installed either
            spec = None
        if spec is None:
            return name
    return None


def expected_device(device: str, gpus: int = 0) -> str:
    """Return the device that a worker on this machine would choose, "cpu" or "cuda", without using a GPU's memory.

    gpus: the number of GPUs that are known to exist. If there is one, the function does not import CuPy, which takes a
    second.
    """
    if device == "auto" and _missing_package() is None:
        if gpus:
            return "cuda"
        with suppress(Exception):  # errors of CuPy and of the loader: without a driver there is no GPU
            import cupy

            return "cuda" if cupy.cuda.runtime.getDeviceCount() else "cpu"
    return "cuda" if device == "cuda" else "cpu"


def why_gpu_unused() -> str | None:
    """Return `why_no_gpu` if a driver or CuPy, which only a GPU needs, is installed. Else return None."""
    driver = shutil.which("nvidia-smi") or Path("/proc/driver/nvidia").exists()
    return why_no_gpu() if driver or importlib.util.find_spec("cupy") else None


def why_no_gpu() -> str | None:
    """Return None if CUDA works in this process, else the reason why it does not, in one line.

    Raises NoRoom if a GPU works but is full, since falling back to the much slower CPU would be a surprise.
    """
    missing = _missing_package()
    if missing:
        return f"{missing} is not installed ({install('cuda13')})"
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount() == 0:
            return "there is no NVIDIA GPU (or CUDA_VISIBLE_DEVICES hides it)"
        cupy.cuda.Device().mem_info  # noqa: B018 - creates the context, which fails with a broken driver
    except Exception as error:  # CuPy raises ImportError, RuntimeError or its own, depending on the fault
        if getattr(error, "status", None) == _OUT_OF_MEMORY:
            raise NoRoom(
                f"the GPU has no room, not even for a CUDA context ({error}). Stop other programs, choose another "
                "(CUDA_VISIBLE_DEVICES), or use --device cpu"
            ) from error
        return " ".join(f"there is no NVIDIA GPU with a driver that works ({error})".split())
    return None


_LEAST_FREE = 0.25
"""The least free share of a GPU's memory. An engine plans for four fifths of it, so with less its batches are small."""

_LEAST_AVAILABLE = 0.1
_MOST_USED = 0.6
"""The largest used share of a worker's memory limit. Dask spills results from 0.6 on, and pauses from 0.8 on."""


def is_short_of_memory(device: str, limit: int | None) -> bool:
    """Return whether another engine would lack memory.

    device: "cpu" or "cuda". limit: the bytes of host memory that this process may use, or None without a limit.
    """
    host = psutil.virtual_memory()
    if host.available < _LEAST_AVAILABLE * host.total:
        return True
    if limit and psutil.Process().memory_info().rss > _MOST_USED * limit:
        return True
    if device == "cuda":
        try:
            import cupy
        except ImportError:
            return False  # opening the engine then reports what is missing

        free, total = cupy.cuda.Device().mem_info
        return bool(free < _LEAST_FREE * total)
    return False
