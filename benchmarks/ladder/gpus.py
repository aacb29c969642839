"""Every GPU of this host at once: a process each, as a job has workers, all beginning each pass together."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_PATIENCE = 180.0


class Shared(NamedTuple):
    """What every process measures. articles: of each GPU."""

    model: str
    csv: Path
    articles: int
    chunk: int
    repeats: int


def _share(device: int, shared: Shared, barrier: Any, answers: Any) -> None:
    """One GPU's passes: when each began and ended on the clock that all processes share, and the last one's labels."""
    try:
        from benchmarks.articles import ag_news
        from benchmarks.ladder.engine import labels_of
        from pipeline.engine.cuda import CudaEngine
        from pipeline.model.charcnn import load_model

        articles = ag_news(shared.csv, shared.articles)
        engine = CudaEngine(load_model(shared.model), device=device)
        labels = labels_of(engine, articles, shared.chunk)
        times = []
        for _ in range(shared.repeats):
            barrier.wait(_PATIENCE)
            began = time.monotonic()
            labels = labels_of(engine, articles, shared.chunk)
            times.append((began, time.monotonic()))
        answers.put((times, labels))
    except BaseException as error:
        barrier.abort()
        answers.put((f"GPU {device}: {type(error).__name__}: {error}", None))


def seconds_on(gpus: int, shared: Shared) -> tuple[list[float], NDArray[np.int32]]:
    """Seconds of each pass, from the first GPU's beginning to the last one's end, and the labels of all.

    Raises RuntimeError where a process fails.
    """
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(gpus), context.Queue()
    processes = [context.Process(target=_share, args=(i, shared, barrier, answers), daemon=True) for i in range(gpus)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=_PATIENCE) for _ in processes]
    for process in processes:
        process.join(_PATIENCE)
    for times, labels in found:
        if labels is None:
            raise RuntimeError(times)
    passes = zip(*(times for times, _ in found), strict=True)
    seconds = [max(end for _, end in one) - min(begin for begin, _ in one) for one in map(list, passes)]
    return seconds, np.concatenate([labels for _, labels in found])
