"""The CPU backend's kernels measured one by one, and the ceilings of its threads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.base import Texts
from ...engine.cpu import CpuEngine
from ...kernels.storage import STORAGE
from ...model import reference
from ...model.alphabet import encode
from ...model.charcnn import Layer, Model
from ..spans import Span
from .kernel_work import Ceilings, KernelProfile, kernels_of

_REPEATS = 5
_CEILING_REPEATS = 15
_PRODUCT_SIDE = 1536
_COPIED_BYTES = 64 << 20  # larger than any cache
_FP32 = 4


def profile(engine: CpuEngine, texts: Texts) -> list[KernelProfile]:
    """Every kernel alone (wall clock of all threads on the batch) and within the network (summed over groups, divided
    by the threads that ran them). Needs memory for the activations of two blocks, 0.5 MB an article.
    """
    model, each_group = engine.model, engine.each_group
    ids = encode(texts.data, texts.offsets, model.alphabet, model.length)[0]
    alone = {"encode": _median(lambda: encode(texts.data, texts.offsets, model.alphabet, model.length))}
    groups: list[Any] = engine.groups(ids)
    for name, block in engine.blocks:
        alone[name] = _median(lambda block=block, groups=groups: each_group(block, groups))  # type: ignore[misc]
        groups = each_group(block, groups)
    logits = np.concatenate(groups)
    if engine.model.ngrams is not None:
        alone["ngrams"] = _median(lambda: engine.branch(texts))
    alone["head"] = _median(lambda: reference.top_k(reference.class_scores(logits, model), 1))
    stream = _in_the_network(engine, texts)
    moved = _modelled_bytes(model, ids, len(texts.data), len(engine.groups(ids)))
    return [
        KernelProfile(
            w.name, w.category, alone[w.name], stream[w.name], w.flop, w.least_bytes, moved.get(w.name, w.least_bytes)
        )
        for w in kernels_of(model, texts, STORAGE["simt"]["fp32"])
    ]


def ceilings(engine: CpuEngine) -> Ceilings:
    """A square fp32 product and a large copy on each thread, all at once."""
    threads, each_group = engine.threads, engine.each_group
    rng = np.random.default_rng(0)
    factors = [rng.random((2, _PRODUCT_SIDE, _PRODUCT_SIDE), np.float32) for _ in range(threads)]
    blocks = [np.ones((2, _COPIED_BYTES), np.uint8) for _ in range(threads)]
    product = _best(lambda: each_group(lambda pair: pair[0] @ pair[1], factors))
    copy = _best(lambda: each_group(lambda pair: np.copyto(pair[1], pair[0]), blocks))
    where = f"each of {threads} threads at once" if threads > 1 else "1 thread"
    how = f"fp32 product {_PRODUCT_SIDE}³ and copy of {_COPIED_BYTES >> 20} MiB on {where}"
    return Ceilings(threads * 2 * _PRODUCT_SIDE**3 / product, threads * 2 * _COPIED_BYTES / copy, how)


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


def _best(work: Callable[[], Any]) -> float:
    return min(_times(work, _CEILING_REPEATS))


def _in_the_network(engine: CpuEngine, texts: Texts) -> dict[str, float]:
    """Median seconds of each kernel over whole runs; the time of a block is divided by the threads that ran it."""
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
    """Bytes that NumPy's passes read and write, as if no cache kept data from one to the next."""
    text = ids != model.alphabet.padding
    last = np.where(text.any(axis=1), model.length - np.argmax(text[:, ::-1], axis=1), 0)
    moved = {"encode": text_bytes * 2 + 3 * ids.size, "head": _FP32 * len(ids) * len(model.classes) * 8}
    for layer in model.layers:
        if layer.is_lookup:  # each tap: a table row read, written, read again and added
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
    """Values moved by the shifted products of one article: rows and weights in, a product out, which is then added."""
    rows, weights = layer.rows_out * (layer.inputs + layer.outputs), layer.inputs * layer.outputs
    return layer.kernel * (rows + weights) + (layer.kernel - 1) * 3 * layer.rows_out * layer.outputs


def _after_product(layer: Layer) -> int:
    """Values moved by bias, norm, ReLU and pool of one article."""
    elements = layer.rows_out * layer.outputs
    norm = 14 * elements if layer.norm else 0
    return 2 * elements + norm + elements + (2 * layer.pool - 1) * layer.rows_pooled * layer.outputs
