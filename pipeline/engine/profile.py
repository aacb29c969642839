"""Measures the kernels of a model on one device, and its latency and throughput for a batch and a precision.

This file measures the kernels of the CPU engine, and `profile_cuda` those of a GPU.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BroadsheetError, UsageError
from ..kernels.storage import STORAGE
from ..kernels.work import PROFILED, kernels_of
from ..model import reference
from ..model.alphabet import encode, text_ends
from ..model.charcnn import Model
from ..model.layers import Layer
from ..model.loading import load_model
from ..model.ngrams import of_network
from ..processes.child import import_path, python
from ..telemetry.profile import Ceilings, KernelProfile, Profile, counted_bytes
from ..telemetry.spans import Span
from .base import Engine, Texts, Wrapped
from .cpu import CpuEngine
from .open import open_engine

BATCH = {"cpu": 128, "cuda": 4096}
"""The default number of articles in the measured batch: a few groups per thread of a CPU, or enough to fill a GPU."""

_KERNEL_NAMES = (
    "regex:^(encode|norm_statistics|first_units|closing_units|(split_)?lookup_norm_pool|(split_)?conv1d|"
    "norm_relu_pool|head)"
)
_REPEATS = 5
_CEILING_REPEATS = 15
_PRODUCT_SIDE = 1536
_COPIED_BYTES = 64 << 20  # larger than any cache
_FP32 = 4


def measure(engine: Engine, batch: int | None = None) -> Profile:
    """Profile an open engine."""
    usual = BATCH[engine.backend.device]
    batch = batch or min(usual, engine.batch or usual)  # a small GPU has smaller batches
    texts = sample(engine.model, batch)
    kernels, ceilings = _kernels(engine, texts)
    return Profile(str(engine.backend), engine.device_name, batch, _latency(engine, texts), kernels, ceilings)


def _kernels(engine: Engine, texts: Texts) -> tuple[tuple[KernelProfile, ...], Ceilings]:
    """Measure every kernel on `texts` in one batch, in the order in which they run, and the ceilings of the device."""
    while isinstance(engine, Wrapped):
        engine = engine.engine
    if isinstance(engine, CpuEngine):
        return tuple(_cpu_kernels(engine, texts)), _cpu_ceilings(engine)
    from . import profile_cuda  # this and the next import need CuPy
    from .cuda import CudaEngine

    assert isinstance(engine, CudaEngine)
    return tuple(profile_cuda.kernels(engine, texts)), profile_cuda.ceilings(engine)


def profile(
    model: str | Model = "ag-news",
    batch: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
) -> Profile:
    """Measure every kernel of a model on this machine. On a GPU with `ncu`, also get the bytes that hardware counts.

    Raises like `load_model` and `open_engine`. Warns if ncu is installed and cannot read the counters.

    Parameters
    ----------
    model : str or Model
        The model. See `load_model`.
    batch : int, optional
        The number of articles in the batch. By default `BATCH` of the device, or the engine's batch if it is smaller.
    device : str
        The device: "auto", "cpu" or "cuda".
    precision : str
        The precision: "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        The generation of CUDA kernels, or "auto".

    """
    loaded = _profiled(model)
    with closing(open_engine(loaded, device, precision, kernels=kernels)) as engine:
        measured = measure(engine, batch)
    if engine.backend.device != "cuda":
        return measured
    try:
        counted = _counted_bytes(loaded, engine.backend.precision, engine.backend.kernels, measured.batch)
    except (BroadsheetError, subprocess.TimeoutExpired) as error:
        warnings.warn(f"without hardware counters: {error}", RuntimeWarning, stacklevel=2)
        return measured
    if counted is None or len(counted) < len(measured.kernels):
        return measured
    pairs = zip(measured.kernels, counted[-len(measured.kernels) :], strict=True)  # the first ran as the model loaded
    return replace(measured, kernels=tuple(replace(kernel, counted_bytes=number) for kernel, number in pairs))


def _profiled(model: str | Model) -> Model:
    """Load a model that can be profiled. Raises UsageError for a fastText model and for an encoder."""
    loaded = load_model(model).asking("all")
    if loaded.encoder is not None:
        raise UsageError(f"{loaded.name} is an encoder, and {PROFILED}: classify --report shows where its time goes")
    of_network(loaded.ngrams, loaded.name, PROFILED)
    return loaded


def _counted_bytes(model: Model, precision: str, kernels: str, batch: int) -> list[int] | None:
    """Return the bytes that ncu counts for the kernels of a process that labels a batch.

    Raises like `counted_bytes`.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        model.save(file)
        child = python("-m", "broadsheet.pipeline.engine.profile", file, precision, kernels, batch)
        return counted_bytes(child, {**os.environ, **import_path()}, _KERNEL_NAMES)


def _latency(engine: Engine, texts: Texts) -> float:
    return _median(lambda: engine.classify(texts))


def sample(model: Model, articles: int) -> Texts:
    """Return random texts with lengths like those of AG News (normal, 236 ± 67 characters), equal in every run."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.normal(236, 67, articles), 20, model.length).astype(np.int64)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz .,-", np.uint8)
    return Texts(rng.choice(letters, int(lengths.sum())), np.concatenate([[0], np.cumsum(lengths)]))


def _cpu_kernels(engine: CpuEngine, texts: Texts) -> list[KernelProfile]:
    """Measure every kernel alone, and within the network.

    Alone, the time is the wall clock of all threads on the batch. Within the network, it is the sum over groups divided
    by the number of threads. This needs memory for the activations of two blocks, 0.5 MB per article.
    """
    # Measure each kernel on the output of the one before.
    model, each_group = engine.model, engine.each_group
    ids = encode(texts.data, texts.offsets, model.alphabet, model.length)[0]
    alone = {"encode": _median(lambda: encode(texts.data, texts.offsets, model.alphabet, model.length))}
    groups: list[Any] = engine.groups(ids) if engine.blocks else []
    for name, block in engine.blocks:
        alone[name] = _median(lambda block=block, groups=groups: each_group(block, groups))  # type: ignore[misc]
        groups = each_group(block, groups)
    logits = np.concatenate(groups) if groups else np.zeros((len(ids), len(model.classes)), np.float32)
    if engine.model.ngrams is not None:
        alone["ngrams"] = _median(lambda: engine.branch(texts))
    alone["head"] = _median(lambda: reference.top_k(reference.class_scores(logits, model), 1))
    # Measure all kernels within the network.
    stream = _in_the_network(engine, texts)
    moved = _modelled_bytes(model, ids, len(texts.data), len(engine.groups(ids))) if engine.blocks else {}
    return [
        KernelProfile(
            w.name, w.category, alone[w.name], stream[w.name], w.flop, w.least_bytes, moved.get(w.name, w.least_bytes)
        )
        for w in kernels_of(model, texts, STORAGE["simt"]["fp32"])
        if w.name in alone
    ]


def _cpu_ceilings(engine: CpuEngine) -> Ceilings:
    """Measure a square fp32 product and a large copy on all threads at once."""
    threads, each_group = engine.threads, engine.each_group
    rng = np.random.default_rng(0)
    factors = [rng.random((2, _PRODUCT_SIDE, _PRODUCT_SIDE), np.float32) for _ in range(threads)]
    blocks = [np.ones((2, _COPIED_BYTES), np.uint8) for _ in range(threads)]
    product = min(_times(lambda: each_group(lambda pair: pair[0] @ pair[1], factors), _CEILING_REPEATS))
    copy = min(_times(lambda: each_group(lambda pair: np.copyto(pair[1], pair[0]), blocks), _CEILING_REPEATS))
    where = f"each of {threads} threads at once" if threads > 1 else "1 thread"
    method = f"fp32 product {_PRODUCT_SIDE}³ and copy of {_COPIED_BYTES >> 20} MiB on {where}"
    return Ceilings(threads * 2 * _PRODUCT_SIDE**3 / product, threads * 2 * _COPIED_BYTES / copy, method)


def _times(work: Callable[[], Any], repeats: int) -> list[float]:
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return times


def _median(work: Callable[[], Any]) -> float:
    return statistics.median(_times(work, _REPEATS))


def _in_the_network(engine: CpuEngine, texts: Texts) -> dict[str, float]:
    """Return the median seconds of each kernel over whole runs. A block's time is divided by the number of threads."""
    runs: list[dict[str, float]] = []
    for _ in range(_REPEATS):
        spans: list[Span] = []
        engine.classify(texts, spans=spans, each_kernel=True)
        threads = len({s.lane for s in spans if s.lane.startswith("thread")})
        seconds: dict[str, float] = {}
        for s in spans:
            share = threads if s.lane.startswith("thread") else 1
            seconds[s.name] = seconds.get(s.name, 0.0) + s.seconds / share
        runs.append(seconds)
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _modelled_bytes(model: Model, ids: NDArray[np.uint8], text_bytes: int, groups: int) -> dict[str, int]:
    """Return the bytes that NumPy's passes read and write, as if no cache kept data between passes."""
    last = text_ends(ids, model.alphabet.padding)
    moved = {"encode": text_bytes * 2 + 3 * ids.size, "head": _FP32 * len(ids) * len(model.classes) * 8}
    for layer in model.layers:
        if layer.is_lookup:  # each tap reads a table row, writes it, reads it again and adds it
            touched = int(np.minimum(last, layer.rows_out).sum())
            passes = layer.outputs * (5 * layer.kernel * touched + len(ids) * layer.rows_out)
            moved[layer.name] = _FP32 * (passes + len(ids) * _after_product(layer))
        elif layer.kind == "conv1d":
            moved[layer.name] = _FP32 * len(ids) * (_taps(layer) + _after_product(layer))
        else:
            weights = layer.inputs * layer.outputs * groups
            moved[layer.name] = _FP32 * (weights + len(ids) * (layer.inputs + 5 * layer.outputs))
    return moved


def _taps(layer: Layer) -> int:
    """Return the values that the shifted products of one article move: rows, weights, products and their sums."""
    rows, weights = layer.rows_out * (layer.inputs + layer.outputs), layer.inputs * layer.outputs
    return layer.kernel * (rows + weights) + (layer.kernel - 1) * 3 * layer.rows_out * layer.outputs


def _after_product(layer: Layer) -> int:
    """Return the values that bias, norm, ReLU and pool of one article move."""
    elements = layer.rows_out * layer.outputs
    norm = 14 * elements if layer.norm else 0
    return 2 * elements + norm + elements + (2 * layer.pool - 1) * layer.rows_pooled * layer.outputs


def _classify_once(file: str, precision: str, kernels: str, batch: int) -> None:
    loaded = load_model(file)
    with closing(open_engine(loaded, "cuda", precision, kernels=kernels)) as engine:
        engine.classify(sample(loaded, batch))


if __name__ == "__main__":
    _classify_once(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
