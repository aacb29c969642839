"""The CPU engine: the network on NumPy's BLAS, groups of articles on its own threads.

The dense frame is `reference` itself; of the text frame, `text_rows` computes what the texts reach. In int8,
`quantised` computes all rows of either frame. `ngrams` is the branch beside the network, of models that have one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from ..model import quantised, reference
from ..model.charcnn import Model
from ..model.ngrams import scores, scores_of_ids
from ..telemetry.spans import Span, span
from . import text_rows
from .base import Backend, Predictions, Texts


class CpuEngine:
    """The NumPy backend: groups of articles on `threads` threads, each with a single-threaded BLAS.

    BLAS is not threaded, since the bits of a product must not depend on how many cores a worker has. For profiling,
    `blocks`, `groups`, `each_group` and `branch` are public.
    """

    batch = None

    def __init__(self, model: Model, threads: int, precision: str = "fp32") -> None:
        self.model = model
        self.device_name = "cpu"
        self._blas = ThreadpoolController()
        self.backend = Backend("cpu", "numpy", _architecture(self._blas), precision)
        self._saturated: list[int] = []
        weights = reference.prepare(model)
        with self._blas.limit(limits=1, user_api="blas"):
            weights = replace(weights, linear_batches=reference.even_batches(weights))
            if precision == "int8":
                integers = quantised.prepare(weights, quantised.scales_of(model))
                self.blocks = quantised.blocks(weights, integers, self._saturated.append)
            else:
                self.blocks = text_rows.blocks(weights) if model.frame == "text" else reference.blocks(weights)
        self._most = weights.linear_batches[-1].room
        self.memory_ready = time.time()
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "broadsheet-compute")

    def classify(
        self,
        texts: Texts,
        top_k: int = 1,
        all_scores: bool = False,
        spans: list[Span] | None = None,
        each_kernel: bool = False,
        handed_over: Callable[[], object] | None = None,
    ) -> Predictions:
        kernels = spans if each_kernel else None
        self._saturated.clear()
        with span("kernels", spans, "compute", self.device_name):
            with span("encode", kernels, "compute", self.device_name):
                ids, n_chars, truncated, unknown = texts.encoded(self.model.alphabet, self.model.length)
            logits = self._logits(ids, kernels)
            if self.model.ngrams is not None:
                with span("ngrams", kernels, "compute", self.device_name):
                    logits += self.branch(texts)
            with span("head", kernels, "compute", self.device_name):
                probabilities = reference.class_scores(logits, self.model)
                labels, best = reference.top_k(probabilities, top_k)
        every, saturated = probabilities if all_scores else None, sum(self._saturated)
        found = Predictions(labels, best, every, n_chars, truncated, unknown, saturated)
        return found.of_whole_texts(texts, self.model.length)

    def _logits(self, ids: NDArray[np.uint8], kernels: list[Span] | None) -> NDArray[np.float32]:
        if not self.model.has_network:
            return np.tile(self.model.tensors["fc3.bias"].astype(np.float32), (len(ids), 1))
        logits = self.each_group(lambda group: self._forward(group, kernels), self.groups(ids))
        return np.concatenate([np.empty((0, len(self.model.classes)), np.float32), *logits])

    def branch(self, texts: Texts) -> NDArray[np.float32]:
        """What a model's n-grams add to the logits, [N, classes]."""
        ngrams = self.model.ngrams
        assert ngrams is not None
        if texts.ids is not None:
            return scores_of_ids(texts.ids, self.model.alphabet, ngrams)
        share = max(1, -(-len(texts) // self.threads))
        parts = [texts.offsets[first : first + share + 1] for first in range(0, len(texts), share)]
        found = self._pool.map(lambda offsets: scores(texts.data, offsets, ngrams), parts)
        return np.concatenate([np.empty((0, len(self.model.classes)), np.float32), *found])

    def _forward(self, ids: NDArray[np.uint8], kernels: list[Span] | None) -> NDArray[np.float32]:
        x: Any = ids
        lane = f"thread {threading.current_thread().name.rpartition('_')[2]}"
        for name, block in self.blocks:
            with span(name, kernels, lane, self.device_name):
                x = block(x)
        return np.asarray(x)

    def groups(self, ids: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Articles in groups of one size, as many for each thread, and none larger than the linear layers' batches."""
        rounds = -(-len(ids) // (self._most * self.threads))
        size = max(1, -(-len(ids) // max(1, rounds * self.threads)))
        return [ids[first : first + size] for first in range(0, len(ids), size)]

    def each_group(self, work: Callable[[Any], Any], groups: Sequence[Any]) -> list[Any]:
        """`work` of every group, on the compute threads, each with a single-threaded BLAS."""
        with self._blas.limit(limits=1, user_api="blas"):
            return list(self._pool.map(work, groups))

    def close(self) -> None:
        self._pool.shutdown()


def _architecture(controller: ThreadpoolController) -> str:
    """NumPy, its BLAS, and their code paths on this processor: together they determine the bits of a score."""
    loaded = [library for library in controller.info() if library["user_api"] == "blas"]
    blas = [b for b in loaded if "numpy" in b["filepath"]] or loaded  # others may be SciPy's or PyTorch's
    names = sorted({f"{b['internal_api']} {b.get('version')} {b.get('architecture', '')}".strip() for b in blas})
    simd = np.show_config(mode="dicts").get("SIMD Extensions", {})
    found = simd.get("found") or simd.get("baseline") or ["no SIMD"]
    return ", ".join([f"numpy {np.__version__} {found[-1]}", *names])
