"""Measures the kernels of the CUDA engine one by one, and the ceilings of its GPU."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cupy as cp
import numpy as np

from ..errors import UsageError
from ..kernels import catalog
from ..kernels.catalog import Kernel
from ..kernels.compile import compile_kernel, resources
from ..kernels.memory_plan import units_by_length
from ..kernels.ops import Operations, load, tile_shape
from ..kernels.storage import FLOAT, Storage
from ..kernels.work import ELEMENT_WISE, PRODUCT, PROFILED, REDUCTION, KernelWork, computed_rows, kernels_of
from ..model.cascade import needs_network
from ..model.charcnn import Model
from ..model.layers import BIAS, Layer
from ..model.ngrams import of_network, scores
from ..telemetry.profile import Ceilings, KernelProfile
from ..telemetry.spans import Span
from .base import Texts
from .cuda import CudaEngine

_REPEATS = 9
_COPIED_BYTES = 1 << 30
_PRODUCT_SIDE = 8192


@dataclass(frozen=True)
class RecordedLaunch:
    """A recorded launch of a batch, which can be repeated.

    Attributes
    ----------
    kernel : Kernel
        The kernel.
    grid : tuple of int
        The number of thread blocks along each dimension.
    arguments : tuple
        The arguments of the kernel.

    """

    kernel: Kernel
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]


def kernels(engine: CudaEngine, texts: Texts) -> list[KernelProfile]:
    """Measure every kernel of one batch, alone and within the network. Raises UsageError if texts need two batches.

    Alone, each kernel is repeated on the output of the one before. Within the network, events between the kernels
    measure them.
    """
    count, batch = len(texts), engine.batch
    if count > batch:
        raise UsageError(f"a batch here holds {batch} articles at most: profile no more than that")
    # Measure every kernel, alone and within the network.
    model, ops = engine.model, engine.network.ops
    launches = _record(engine, texts)
    with engine.device:
        alone = {launch.kernel.name: _seconds(lambda at=launch: _launch(ops, at)) for launch in launches}  # type: ignore[misc]
    stream = _in_the_network(engine, texts)
    inner = _texts_for_network(model, texts)
    # Find how much each kernel has to compute and to move.
    works = _works(model, texts, inner, ops.stored)
    rows, count = computed_rows(model, inner), len(inner)
    units = int(units_by_length(model.layers, model.frame)[np.minimum(np.diff(inner.offsets), model.length)].sum())
    layers = {layer.name: layer for layer in model.layers}
    # For each kernel, find how full the GPU is, which computed rows are discarded, and what is read more than once.
    profiles = []
    for launch in launches:
        name, kernel = launch.kernel.name, launch.kernel
        work = works[name]
        target = catalog.target(ops.generation, ops.architecture)
        report = resources(compile_kernel(kernel.file, kernel.expression, target).log)
        resident, occupancy = _residency(kernel, target)
        layer = layers.get(name)
        tiles, waste, moved = _blocks(launch), None, work.least_bytes
        shape = tile_shape(ops, layer) if layer is not None else None
        if layer is not None and shape is not None:
            computed = units * layer.product_pool if layer.kind == "conv1d" else count
            rows_kept = rows.get(name, count)
            tiles, waste, shared = _tiles(layer, shape, computed, rows_kept)
            moved += shared * ops.stored.read_by(layer).bytes
        waves = tiles / (resident * ops.sms)
        profiles.append(
            KernelProfile(
                name=name,
                category=work.category,
                seconds=alone[name],
                stream_seconds=stream[name],
                flop=work.flop,
                least_bytes=work.least_bytes,
                modelled_bytes=moved,
                occupancy=occupancy,
                registers=report.registers,
                shared_bytes=kernel.shared_bytes + report.shared_bytes,
                waves=waves,
                tail_waste=1 - waves / math.ceil(waves),
                tile_waste=waste,
            )
        )
    return profiles


def ceilings(engine: CudaEngine) -> Ceilings:
    """Measure a large copy in the GPU's memory and a square product by cuBLAS.

    The data are random, since zeros would be faster.
    """
    with engine.device:
        stored = engine.network.ops.stored
        reached = _ceilings("fp32" if stored.rows is FLOAT else "fp16")
    if stored.is_int8:
        # By design tensor cores multiply 8-bit operands at twice the rate. The int8 product of cuBLAS is far from that.
        return replace(reached, flop_per_second=2 * reached.flop_per_second, how=f"twice {reached.how}")
    if stored.is_split:
        three = f"{reached.how}, three products for each one of fp32"
        return replace(reached, flop_per_second=reached.flop_per_second / 3, how=three)
    return reached


def _ceilings(number: str) -> Ceilings:
    generator = cp.random.default_rng(0)
    kind = cp.float32 if number == "fp32" else cp.float16
    factors = generator.standard_normal((2, _PRODUCT_SIDE, _PRODUCT_SIDE), dtype=cp.float32).astype(kind)
    product = _seconds(lambda: cp.matmul(factors[0], factors[1]))
    source = generator.standard_normal(_COPIED_BYTES // 4, dtype=cp.float32)
    target = cp.empty_like(source)
    copy = _seconds(lambda: target.data.copy_from_device_async(source.data, _COPIED_BYTES, cp.cuda.Stream.null))
    method = f"{number} product {_PRODUCT_SIDE}³ by cuBLAS and copy of {_COPIED_BYTES >> 30} GiB on this GPU"
    return Ceilings(2 * _PRODUCT_SIDE**3 / product, 2 * _COPIED_BYTES / copy, method)


def _record(engine: CudaEngine, texts: Texts) -> list[RecordedLaunch]:
    """Label the texts once, and return the launches with their arguments."""
    launches: list[RecordedLaunch] = []
    engine.network.watcher = lambda kernel, grid, arguments: launches.append(RecordedLaunch(kernel, grid, arguments))
    try:
        engine.classify(texts)
    finally:
        engine.network.watcher = None
    return launches


def _launch(ops: Operations, launch: RecordedLaunch) -> None:
    kernel = launch.kernel
    function = load(kernel.file, kernel.expression, catalog.target(ops.generation, ops.architecture))
    function(launch.grid, (kernel.threads,), launch.arguments, shared_mem=kernel.shared_bytes)


def _seconds(work: Callable[[], Any]) -> float:
    """Return the median time of several runs between events, after a warm-up run."""
    work()
    times = []
    for _ in range(_REPEATS):
        before, after = cp.cuda.Event(), cp.cuda.Event()
        before.record()
        work()
        after.record()
        after.synchronize()
        times.append(cp.cuda.get_elapsed_time(before, after) * 1e-3)
    return float(statistics.median(times))


def _in_the_network(engine: CudaEngine, texts: Texts) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for _ in range(_REPEATS + 1):
        spans: list[Span] = []
        engine.classify(texts, spans=spans, each_kernel=True)
        for span in spans:
            times.setdefault(span.name, []).append(span.seconds)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def _texts_for_network(model: Model, texts: Texts) -> Texts:
    """Return the texts that the network scores."""
    if model.cascade is None:
        return texts
    alone, ngrams = model.asking("none"), of_network(model.ngrams, model.name, PROFILED)
    assert ngrams is not None
    logits = alone.tensors[BIAS].astype(np.float32) + scores(texts.data, texts.offsets, ngrams)
    return texts.take(needs_network(logits, model.cascade.margin, model.thresholds))


def _works(model: Model, given: Texts, texts: Texts, stored: Storage) -> dict[str, KernelWork]:
    """Return the work of each kernel. texts: those of the given texts that the network scores.

    Kernels differ from blocks in four places: block 1's statistics and block 6's norm are separate kernels, two kernels
    find the places of rows, and one kernel computes the last layer and the head.
    """
    count, text_bytes = len(texts), len(texts.data)
    rows, second = computed_rows(model, texts), model.layers[1]
    works = {work.name: work for work in kernels_of(model, texts, stored)}
    of_all = {work.name: work for work in kernels_of(model, given, stored)}
    works |= {name: of_all[name] for name in ("encode", "ngrams") if name in of_all}
    works["n-grams alone"] = of_all["head"]
    works["gather"] = KernelWork("gather", ELEMENT_WISE, 0, 2 * count * model.length)
    works["first units"] = KernelWork("first units", ELEMENT_WISE, 0, 8 * count)
    works["closing units"] = KernelWork(
        "closing units", ELEMENT_WISE, 0, 4 * count + rows[second.name] // second.product_pool
    )
    for layer in model.layers:
        elements = layer.rows_out * layer.outputs
        if layer.norm and layer.is_lookup:
            # There are seven look-ups for each position, for two sums.
            name, tables = f"{layer.name} statistics", 4 * (layer.kernel * layer.ids) ** 2
            works[name] = KernelWork(name, REDUCTION, 14 * text_bytes, count * model.length + tables)
        elif layer.norm:
            whole, out = works[layer.name], count * layer.rows_pooled * layer.outputs * stored.features.bytes
            product = rows[layer.name] * layer.flop // layer.rows_out
            raw = rows[layer.name] * layer.outputs * stored.norms.bytes
            affine = 2 * elements * stored.norms.bytes
            name = f"{layer.name} norm"
            works[name] = KernelWork(name, REDUCTION, whole.flop - product, raw + out + affine)
            works[layer.name] = KernelWork(layer.name, PRODUCT, product, whole.least_bytes - out - affine + raw)
    last, head = model.layers[-1].name, works.pop("head")
    works[last] = KernelWork(last, PRODUCT, works[last].flop + head.flop, works[last].least_bytes + head.least_bytes)
    return works


def _residency(kernel: Kernel, target: str) -> tuple[int, float]:
    """Return how many blocks an SM holds at once, and the share of its warps that they use."""
    function = load(kernel.file, kernel.expression, target)
    blocks = cp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, kernel.threads, kernel.shared_bytes)
    threads_an_sm = cp.cuda.Device().attributes["MaxThreadsPerMultiProcessor"]
    return max(1, blocks), blocks * kernel.threads / threads_an_sm


def _blocks(launch: RecordedLaunch) -> int:
    return int(np.prod(launch.grid))


def _tiles(layer: Layer, shape: tuple[int, int], computed: int, rows_kept: int) -> tuple[int, float, int]:
    """Return the number of tiles over `computed` rows, the share of rows that is discarded, and the repeated reads.

    Repeated reads are elements that are read more than once by design: rows that neighbouring tiles share, and all rows
    for every tile of outputs.
    """
    rows, outputs = shape
    m_tiles, n_tiles = -(-computed // rows), layer.outputs // outputs
    shared = (m_tiles * (rows + layer.kernel - 1) * n_tiles - computed) * layer.inputs
    return m_tiles * n_tiles, 1 - rows_kept / (m_tiles * rows), max(0, shared)
