"""The small job: a list of strings in the client to labels there, on a warm cluster."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.articles import ag_news
from cluster import connect
from pipeline import classify
from pipeline.model.charcnn import load_model
from pipeline.report.job import JobReport

_WARM_UP = 5


def phases(report: JobReport) -> dict[str, float]:
    """Where the time went, in seconds: the job's own phases, and of the computing by the spans that came home."""
    timeline = report.run.timeline
    began = timeline.ended - report.run.timings["classify"]
    infer = [s for s in timeline.spans if s.lane == "infer"]
    written = max(s.end for s in timeline.spans if s.lane == "write")
    return {f"phase: {name}": seconds for name, seconds in report.run.timings.items()} | {
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
    seconds, steps = [], []
    with connect(where, workers=workers) as client:
        for number in range(_WARM_UP + repeats):
            began = time.perf_counter()
            report = classify(texts, client=client, model=loaded, chunk_size=chunk_rows)
            called = time.perf_counter()
            labels = report.to_arrow()["label"].to_pylist()
            ended = time.perf_counter()
            if len(labels) != articles:
                raise RuntimeError(f"{len(labels)} labels came back, of {articles} articles")
            if number >= _WARM_UP:
                seconds.append(ended - began)
                steps.append(phases(report) | {"labels as a list": ended - called})
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
        "median_phase_seconds": {name: statistics.median(step[name] for step in steps) for name in steps[0]},
    }


def _texts(articles_csv: Path, count: int) -> Iterator[str]:
    articles = ag_news(articles_csv, count)
    for first, last in zip(articles.offsets, articles.offsets[1:], strict=False):
        yield articles.data[first:last].tobytes().decode()
