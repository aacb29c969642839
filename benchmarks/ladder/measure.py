"""Runs a step of the ladder: several warm passes, whose labels are compared with the product's."""

from __future__ import annotations

import gc
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cuda.core  # noqa: F401  imported here, since first imports in several threads disturb each other
import cupy as cp

from benchmarks.articles import ag_news
from benchmarks.ladder.engine import Columns, LadderEngine, labels_of, one_hot
from benchmarks.ladder.network import needed
from benchmarks.ladder.switches import Setting, Step
from benchmarks.record import seconds_of
from broadsheet.pipeline.engine.cuda import CudaEngine
from broadsheet.pipeline.kernels.compile import compile_kernel
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model

LARGE_CHUNK, SMALL_CHUNK = 131_072, 512
_LARGEST_BATCH = 8_448  # with larger ones, a dense block 1 has more tiles of simt than a grid's 65,535
_ONE_HOT_BATCH = 2_048
_ARTICLES_ALONE, _ARTICLES_ONE_HOT, _ARTICLES_FP32 = 512, 8_192, 32_768


class Bench:
    """Measures the steps. It holds the articles and the product's labels.

    Parameters
    ----------
    model : str
        The model.
    csv : Path
        A CSV file of AG News.
    count : int
        How many articles a fast variant labels.
    repeats : int
        The number of measured passes.
    best : str
        The GPU's best kernel generation.

    """

    def __init__(self, model: str, csv: Path, count: int, repeats: int, best: str) -> None:
        self._repeats = repeats
        self._whole = load_model(model)
        self.model = network_alone(model)
        self.articles = ag_news(csv, count)
        self._columns: dict[bool, Columns] = {}
        engine = CudaEngine(self.model, kernels=best)
        self._full_batch = engine.batch
        self.expected = labels_of(engine, self.articles, LARGE_CHUNK)
        engine.close()
        with closing(CudaEngine(self._whole.asking("all"), kernels=best)) as engine:
            self._expected_of_whole = labels_of(engine, self.articles, LARGE_CHUNK)
        release()

    def measure(self, step: Step) -> dict[str, Any]:
        """Measure a step, and return its record, with the error if it fails."""
        record: dict[str, Any] = {"kind": step.kind, "name": step.name, "setting": asdict(step.setting)}
        if step.predicted:
            unit = "factor" if step.kind == "alone" else "articles_per_second"
            record |= {f"predicted_{unit}": step.predicted.value, "reason": step.predicted.reason}
        record["parent"] = step.parent
        try:
            record |= self._from_memory(step)
        except Exception as error:  # the other steps go on
            record["error"] = f"{type(error).__name__}: {error}"[:600]
        release()
        return record

    def _from_memory(self, step: Step) -> dict[str, Any]:
        """Measure a step from articles in host memory, and compare its labels with the product's."""
        # Choose the articles and the engine.
        setting, count = step.setting, self._count(step.setting)
        articles = (self.articles if setting.text else self._one_hot(setting.page_locked)).part(0, count)
        chunk = LARGE_CHUNK if setting.large_chunks else SMALL_CHUNK
        expected = self.expected
        if step.network is not None:
            expected = self._expected_of_whole
            engine = CudaEngine(self._whole.asking(step.network), kernels=setting.generation)
        elif step.kind == "product":
            engine = CudaEngine(self.model, kernels=setting.generation)
        else:
            engine = LadderEngine(self.model, setting, self._batch(setting))
        # Warm up, which gives the labels, and measure.
        with closing(engine):
            labels = labels_of(engine, articles, chunk)
            seconds = seconds_of(lambda: labels_of(engine, articles, chunk), self._repeats)
        return {
            "batch": engine.batch,
            "chunk": chunk,
            "articles": len(labels),
            "seconds": seconds,
            "articles_per_second": len(labels) / statistics.median(seconds),
            "labels_unlike_product": int((labels != expected[: len(articles)]).sum()),
        }

    def _batch(self, setting: Setting) -> int:
        """Return the number of articles in a batch."""
        if not setting.batches:
            return 1
        batch = self._full_batch if setting.reached else min(self._full_batch, _LARGEST_BATCH)
        if not setting.text:
            batch = min(batch, _ONE_HOT_BATCH)
        return batch if setting.large_chunks else min(batch, SMALL_CHUNK)

    def _count(self, setting: Setting) -> int:
        """Return how many articles a step labels. A slow step has fewer."""
        count = len(self.articles)
        if not setting.batches:
            return min(count, _ARTICLES_ALONE)
        if not setting.text:
            return min(count, _ARTICLES_ONE_HOT)
        return min(count, _ARTICLES_FP32) if setting.generation == "simt" else count

    def _one_hot(self, page_locked: bool) -> Columns:
        """Return the one-hot columns in one kind of memory. Building them is not timed.

        The parent program read them from a file.
        """
        if page_locked not in self._columns:
            count = min(len(self.articles), _ARTICLES_ONE_HOT)
            self._columns = {page_locked: one_hot(self.articles.part(0, count), self.model, page_locked)}
        return self._columns[page_locked]


def network_alone(name: str) -> Model:
    """Load a model without its n-grams, since one-hot columns hold no text for them."""
    return replace(load_model(name), ngrams=None, cascade=None)


def compile_all(steps: list[Step], name: str, architecture: str) -> float:
    """Compile the kernels of all steps on all cores, so that no pass waits for them. Returns the seconds."""
    model = network_alone(name)
    wanted = set()
    for setting in {step.setting for step in steps}:
        wanted |= needed(setting, model.layers, model.frame, architecture)
    began = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for compiled in [pool.submit(compile_kernel, *kernel) for kernel in sorted(wanted)]:
            compiled.exception()  # the step that needs the kernel reports its error
    return time.perf_counter() - began


def release() -> None:
    """Free the memory of closed engines."""
    gc.collect()
    cp.get_default_memory_pool().free_all_blocks()
    cp.get_default_pinned_memory_pool().free_all_blocks()
