"""One engine a worker: from text to labels, behind one face for every backend.

The backend of this file is the CPU's (`reference.forward` on NumPy's BLAS); the GPU's is `cuda_engine.py`.
"""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from pipeline import reference
from pipeline.alphabet import encode, of_ids
from pipeline.errors import UsageError
from pipeline.model import Model

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "fp16", "bf16")
KERNELS = ("auto", "simt", "sm80", "sm90")
_GROUP = reference.LINEAR_BATCH  # articles a compute thread takes at a time


class Texts(Protocol):
    """N articles as an engine takes them: the buffers of an Arrow string column, or characters encoded already.

    data: uint8 [bytes]. offsets: int64 [N + 1]. ids: uint8 [N, length] in place of text, or None.
    """

    @property
    def data(self) -> NDArray[np.uint8]: ...
    @property
    def offsets(self) -> NDArray[np.int64]: ...
    @property
    def ids(self) -> NDArray[np.uint8] | None: ...


@dataclass(frozen=True)
class Predictions:
    """labels: int32 [N, k], class indices, best first. scores: fp32 [N, k], their probabilities.

    all_scores: fp32 [N, classes], or None if not asked for. n_chars, unknown_chars: int64 [N]. truncated: bool [N].
    """

    labels: NDArray[np.int32]
    scores: NDArray[np.float32]
    all_scores: NDArray[np.float32] | None
    n_chars: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    unknown_chars: NDArray[np.int64]


@dataclass(frozen=True)
class Backend:
    """What decides the bits of a score beside model and text: part of a job's fingerprint."""

    device: str
    kernels: str
    architecture: str
    precision: str

    def __str__(self) -> str:
        return f"{self.device} {self.precision}, {self.kernels} kernels ({self.architecture})"


class Engine(Protocol):
    """A loaded model, ready to classify; one thread calls it at a time."""

    backend: Backend
    model: Model

    def classify(self, texts: Texts, top_k: int = 1, all_scores: bool = False) -> Predictions:
        """Label N articles; `top_k` is cut to the number of classes."""
        ...

    def close(self) -> None:
        """Give back threads and device memory."""
        ...


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
        from pipeline.cuda_engine import CudaEngine

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


def expected_device(device: str) -> str:
    """What a worker on this machine would take, "cpu" or "cuda"; asks without touching a GPU's memory."""
    if device == "auto" and importlib.util.find_spec("cupy"):
        with suppress(Exception):  # CuPy's own and the loader's: without a driver there is no GPU
            import cupy

            return "cuda" if cupy.cuda.runtime.getDeviceCount() else "cpu"
    return "cuda" if device == "cuda" else "cpu"


def why_no_gpu() -> str | None:
    """None where CUDA works in this process; else why it does not, in one line."""
    if not importlib.util.find_spec("cupy"):
        return "CuPy is not installed (pip install 'broadsheet[cuda13]')"
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount() == 0:
            return "there is no NVIDIA GPU (or CUDA_VISIBLE_DEVICES hides it)"
        cupy.cuda.Device().mem_info  # noqa: B018 - makes the context, which a broken driver refuses
    except Exception as error:  # CuPy raises ImportError, RuntimeError and its own, by what is amiss
        return " ".join(f"there is no NVIDIA GPU with a driver that works ({error})".split())
    return None


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CpuEngine:
    """The NumPy backend: groups of articles on `threads` threads, each with a single-threaded BLAS.

    Threads of ours rather than BLAS's: a product's bits must not depend on how many cores a worker has.
    """

    def __init__(self, model: Model, threads: int) -> None:
        self.model = model
        self._blas = ThreadpoolController()
        self.backend = Backend("cpu", "numpy", _architecture(self._blas), "fp32")
        self._weights = reference.prepare(model)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "broadsheet-compute")

    def classify(self, texts: Texts, top_k: int = 1, all_scores: bool = False) -> Predictions:
        alphabet = self.model.alphabet
        if texts.ids is None:
            ids, n_chars, truncated, unknown = encode(texts.data, texts.offsets, alphabet, self.model.length)
        else:
            ids, n_chars, truncated, unknown = of_ids(texts.ids, alphabet)
        scores = reference.softmax(self._logits(ids))
        labels, best = reference.top_k(scores, top_k)
        return Predictions(labels, best, scores if all_scores else None, n_chars, truncated, unknown)

    def _logits(self, ids: NDArray[np.uint8]) -> NDArray[np.float32]:
        groups = [ids[first : first + _GROUP] for first in range(0, len(ids), _GROUP)]
        with self._blas.limit(limits=1, user_api="blas"):
            logits = list(self._pool.map(lambda group: reference.forward(group, self._weights), groups))
        return np.concatenate([np.empty((0, len(self.model.classes)), np.float32), *logits])

    def close(self) -> None:
        self._pool.shutdown()


def _architecture(controller: ThreadpoolController) -> str:
    """NumPy, its BLAS, and the code paths both take on this processor: together they decide the bits of a score."""
    loaded = [library for library in controller.info() if library["user_api"] == "blas"]
    blas = [b for b in loaded if "numpy" in b["filepath"]] or loaded  # others may be SciPy's or PyTorch's
    names = sorted({f"{b['internal_api']} {b.get('version')} {b.get('architecture', '')}".strip() for b in blas})
    simd = np.show_config(mode="dicts").get("SIMD Extensions", {})
    found = simd.get("found") or simd.get("baseline") or ["no SIMD"]
    return ", ".join([f"numpy {np.__version__} {found[-1]}", *names])
