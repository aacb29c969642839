"""One engine a worker: from text to labels, behind one face for every backend.

The backend of this file is the CPU's (`reference.forward` on NumPy's BLAS); the GPU's is `cuda_engine.py`.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from pipeline import reference
from pipeline.alphabet import encode, of_ids
from pipeline.cores import available_cores
from pipeline.errors import BroadsheetError, UsageError
from pipeline.model import Model
from pipeline.trace import Span, span
from pipeline.work import Ceilings, KernelProfile

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "fp16", "bf16")
KERNELS = ("auto", "simt", "sm80", "sm90")
_GPU_PACKAGES = {"CuPy": "cupy", "cuda-bindings": "cuda.bindings", "cuda-core": "cuda.core"}
_OUT_OF_MEMORY = 2  # CUDA's cudaErrorMemoryAllocation
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

    def cut(self, k: int) -> Predictions:
        """The same with the `k` best labels only."""
        return replace(self, labels=self.labels[:, :k], scores=self.scores[:, :k])


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
    """A loaded model, ready to classify; one thread calls it at a time.

    device_name: "cpu", or "cuda:" and the GPU's number on its host. memory_ready: when its weights and buffers were in
    place, in epoch seconds.
    """

    backend: Backend
    model: Model
    device_name: str
    memory_ready: float

    def classify(
        self,
        texts: Texts,
        top_k: int = 1,
        all_scores: bool = False,
        spans: list[Span] | None = None,
        each_kernel: bool = False,
    ) -> Predictions:
        """Label N articles; `top_k` is cut to the number of classes. Spans of the steps on the device are appended to
        `spans`: the copies and the kernels of each batch, with `each_kernel` every kernel too.
        """
        ...

    def profile(self, texts: Texts) -> list[KernelProfile]:
        """Measure every kernel over N articles in one batch, alone and within the network, in the order they run."""
        ...

    def ceilings(self) -> Ceilings:
        """Measure what the device reaches, in the precision of this engine's products."""
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


class CpuEngine:
    """The NumPy backend: groups of articles on `threads` threads, each with a single-threaded BLAS.

    Threads of ours rather than BLAS's: a product's bits must not depend on how many cores a worker has.
    """

    def __init__(self, model: Model, threads: int) -> None:
        self.model = model
        self.device_name = "cpu"
        self._blas = ThreadpoolController()
        self.backend = Backend("cpu", "numpy", _architecture(self._blas), "fp32")
        self._weights = reference.prepare(model)
        self.memory_ready = time.time()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "broadsheet-compute")

    def classify(
        self,
        texts: Texts,
        top_k: int = 1,
        all_scores: bool = False,
        spans: list[Span] | None = None,
        each_kernel: bool = False,
    ) -> Predictions:
        kernels = spans if each_kernel else None
        with span("kernels", spans, "compute", self.device_name):
            with span("encode", kernels, "compute", self.device_name):
                if texts.ids is None:
                    alphabet, length = self.model.alphabet, self.model.length
                    ids, n_chars, truncated, unknown = encode(texts.data, texts.offsets, alphabet, length)
                else:
                    ids, n_chars, truncated, unknown = of_ids(texts.ids, self.model.alphabet)
            logits = self._logits(ids, kernels)
            with span("head", kernels, "compute", self.device_name):
                scores = reference.softmax(logits)
                labels, best = reference.top_k(scores, top_k)
        return Predictions(labels, best, scores if all_scores else None, n_chars, truncated, unknown)

    def _logits(self, ids: NDArray[np.uint8], kernels: list[Span] | None) -> NDArray[np.float32]:
        groups = [ids[first : first + _GROUP] for first in range(0, len(ids), _GROUP)]
        logits = self._each_group(lambda group: self._forward(group, kernels), groups)
        return np.concatenate([np.empty((0, len(self.model.classes)), np.float32), *logits])

    def _forward(self, ids: NDArray[np.uint8], kernels: list[Span] | None) -> NDArray[np.float32]:
        if kernels is None:
            return reference.forward(ids, self._weights)
        x: Any = ids
        lane = f"thread {threading.current_thread().name.rpartition('_')[2]}"
        for name, block in reference.blocks(self._weights):
            with span(name, kernels, lane, self.device_name):
                x = block(x)
        return np.asarray(x)

    def profile(self, texts: Texts) -> list[KernelProfile]:
        from pipeline import cpu_profile

        return cpu_profile.profile(self, texts, self._weights, self._each_group)

    def ceilings(self) -> Ceilings:
        from pipeline import cpu_profile

        return cpu_profile.ceilings(self._threads, self._each_group)

    def _each_group(self, work: Callable[[Any], Any], groups: Sequence[Any]) -> list[Any]:
        """`work` of every group, on the compute threads, each with a single-threaded BLAS."""
        with self._blas.limit(limits=1, user_api="blas"):
            return list(self._pool.map(work, groups))

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
