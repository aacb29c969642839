"""The small job: a list of strings in the client to labels there, on a warm cluster."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cluster.progress
import pipeline.api
import pipeline.graph
from benchmarks.articles import ag_news
from cluster import connect
from pipeline import classify
from pipeline.model.charcnn import load_model
from pipeline.report.job import JobReport

_WARM_UP = 5

_WATCHED = (
    (pipeline.api, "identify", "rows of the list to Arrow"),
    (pipeline.api, "_start_engines", "asking the scheduler for the engines"),
    (pipeline.api, "open_input", "planning"),
    (pipeline.api, "_timeline", "comparing clocks"),
    (pipeline.api, "_compute", "computing, all of it"),
    (pipeline.graph._Run, "_scatter", "of it: scattering the text"),
    (pipeline.graph._Run, "_map", "of it: submitting the tasks"),
    (pipeline.graph._Run, "next_done", "of it: waiting for results and fetching them"),
    (cluster.progress.DashboardProgress, "start", "of it: telling the dashboard, at the start"),
    (cluster.progress.DashboardProgress, "stop", "of it: telling the dashboard, at the end"),
)


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Seconds spent in the client's own steps during the block, by name."""
    seconds: dict[str, float] = {}

    def timed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began

        return call

    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in _WATCHED]
    try:
        for (owner, attribute, name), (_, _, function) in zip(_WATCHED, before, strict=True):
            setattr(owner, attribute, timed(function, name))
        yield seconds
    finally:
        for owner, attribute, function in before:
            setattr(owner, attribute, function)


def on_the_workers(report: JobReport) -> dict[str, float]:
    """Where the computing's time went by the spans that came home, in seconds."""
    timeline = report.run.timeline
    began = timeline.ended - report.run.timings["classify"]
    infer = [s for s in timeline.spans if s.lane == "infer"]
    written = max(s.end for s in timeline.spans if s.lane == "write")
    return {
        "until the first chunk begins": min(s.start for s in infer) - began,
        "from the first chunk's begin to the last one's end": written - min(s.start for s in infer),
        "one chunk on its device, the longest": max(s.seconds for s in infer),
        "from the last chunk's end to its result in the client": timeline.ended - written,
    }


def small_part(
    articles_csv: Path, articles: int, chunk_rows: int, workers: int, where: str, repeats: int, model: str
) -> dict[str, Any]:
    """Articles as a list of strings to labels in the client, on a warm cluster."""
    texts = list(_texts(articles_csv, articles))
    loaded = load_model(model)
    seconds, phases = [], []
    with connect(where, workers=workers) as client:
        for number in range(_WARM_UP + repeats):
            with watched() as steps:
                began = time.perf_counter()
                report = classify(texts, client=client, model=loaded, chunk_size=chunk_rows)
                called = time.perf_counter()
                labels = report.to_arrow()["label"].to_pylist()
                ended = time.perf_counter()
            if len(labels) != articles:
                raise RuntimeError(f"{len(labels)} labels came back, of {articles} articles")
            if number >= _WARM_UP:
                seconds.append(ended - began)
                phases.append(steps | on_the_workers(report) | {"labels as a list": ended - called})
        devices = sorted({place.device for place in report.run.timeline.places.values()})
    return {
        "articles": articles,
        "text_bytes": sum(len(text.encode()) for text in texts),
        "chunk_rows": chunk_rows,
        "workers": workers,
        "where": where,
        "devices_used_last": devices,
        "backend": report.backend,
        "median_seconds": statistics.median(seconds),
        "seconds": seconds,
        "median_phase_seconds": {name: statistics.median(p.get(name, 0.0) for p in phases) for name in phases[0]},
    }


def _texts(articles_csv: Path, count: int) -> Iterator[str]:
    articles = ag_news(articles_csv, count)
    for first, last in zip(articles.offsets, articles.offsets[1:], strict=False):
        yield articles.data[first:last].tobytes().decode()
