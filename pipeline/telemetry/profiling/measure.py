"""A model's kernels measured on one device, and how throughput and latency change with batch and precision."""

from __future__ import annotations

import statistics
import subprocess
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...engine.base import PRECISIONS, Engine, Texts
from ...engine.cpu import CpuEngine
from ...engine.open import open_engine
from ...errors import BroadsheetError, UsageError
from ...model.charcnn import Model, load_model
from . import cpu, ncu
from .kernel_work import Ceilings, KernelProfile
from .sample import sample

BATCH = {"cpu": 128, "cuda": 4096}
"""Articles in the measured batch by default: a few groups for each thread of a CPU, or enough to fill a GPU."""

BATCHES = {"cpu": (1, 2, 4, 8, 16, 32, 64, 128, 256), "cuda": tuple(4**n for n in range(8))}
"""The batch sizes of a sweep."""

_REPEATS = 5


@dataclass(frozen=True)
class Profile:
    """The measurements of a model. kernels: in the order they run. seconds: median to classify the batch, from text to
    labels.
    """

    backend: str
    device: str
    batch: int
    seconds: float
    kernels: tuple[KernelProfile, ...]
    ceilings: Ceilings

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kernels": [asdict(kernel) for kernel in self.kernels]}


@dataclass(frozen=True)
class Point:
    """One point of a sweep. seconds: median latency of classifying `batch` articles."""

    precision: str
    batch: int
    seconds: float

    @property
    def articles_per_second(self) -> float:
        return self.batch / self.seconds

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "articles_per_second": round(self.articles_per_second, 1)}


def measure(engine: Engine, batch: int | None = None) -> Profile:
    """Profile an open engine."""
    usual = BATCH[engine.backend.device]
    batch = batch or min(usual, engine.batch or usual)  # a small GPU takes smaller batches
    texts = sample(engine.model, batch)
    kernels, ceilings = _kernels(engine, texts)
    return Profile(str(engine.backend), engine.device_name, batch, _latency(engine, texts), kernels, ceilings)


def _kernels(engine: Engine, texts: Texts) -> tuple[tuple[KernelProfile, ...], Ceilings]:
    """Every kernel over `texts` in one batch, in the order they run, and the ceilings of the device."""
    if isinstance(engine, CpuEngine):
        return tuple(cpu.profile(engine, texts)), cpu.ceilings(engine)
    from ...engine.cuda import CudaEngine  # needs CuPy, and so does the next
    from . import cuda

    assert isinstance(engine, CudaEngine)
    return tuple(cuda.profile(engine, texts)), cuda.ceilings(engine)


def profile(
    model: str | Model = "ag-news",
    batch: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
) -> Profile:
    """Measure every kernel of a model on this machine; on a GPU with `ncu` also the bytes that the hardware counts.

    Raises as `load_model` and `open_engine` do; warns where ncu is installed and cannot read the counters.
    """
    loaded = load_model(model)
    engine = open_engine(loaded, device, precision, kernels=kernels)
    try:
        found = measure(engine, batch)
    finally:
        engine.close()
    if engine.backend.device != "cuda":
        return found
    try:
        counted = ncu.counted_bytes(loaded, engine.backend.precision, engine.backend.kernels, found.batch)
    except (BroadsheetError, subprocess.TimeoutExpired) as error:
        warnings.warn(f"without hardware counters: {error}", RuntimeWarning, stacklevel=2)
        return found
    if counted is None or len(counted) < len(found.kernels):
        return found
    pairs = zip(found.kernels, counted[-len(found.kernels) :], strict=True)  # some run when the model is loaded
    return replace(found, kernels=tuple(replace(kernel, counted_bytes=number) for kernel, number in pairs))


def sweep_batch(model: str | Model, device: str = "auto", precision: str = "auto") -> list[Point]:
    """Latency over batch size, in one precision."""
    loaded = load_model(model)
    engine = open_engine(loaded, device, precision)
    try:
        return _points(engine, BATCHES[engine.backend.device])
    finally:
        engine.close()


def sweep_precision(model: str | Model, batch: int | None = None, device: str = "auto") -> list[Point]:
    """Latency in each precision that the device computes in."""
    loaded = load_model(model)
    points = []
    for precision in PRECISIONS:
        if precision == "auto":
            continue
        try:
            engine = open_engine(loaded, device, precision)
        except UsageError:
            continue  # not available on this device
        try:
            points += _points(engine, [batch or BATCH[engine.backend.device]])
        finally:
            engine.close()
    return points


def _points(engine: Engine, batches: Iterable[int]) -> list[Point]:
    return [Point(engine.backend.precision, batch, _latency(engine, sample(engine.model, batch))) for batch in batches]


def _latency(engine: Engine, texts: Texts) -> float:
    engine.classify(texts)
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        engine.classify(texts)
        times.append(time.perf_counter() - began)
    return statistics.median(times)
