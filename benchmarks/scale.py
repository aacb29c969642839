"""Measure speed and scale: a small job on the GPUs of one host, and the memory of a long job.

    python -m benchmarks.scale small --articles-csv ag_news/test.csv
    python -m benchmarks.scale memory --articles-csv ag_news/test.csv --folder /tmp/scale-memory

Each part writes its own key of `--output`, with the machine on which it ran, and leaves the others as they are. You can
name several parts at once. "small" needs GPUs, or a CPU with `--where local`. "memory" has engines that only sleep.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import scale_stubs
from benchmarks.articles import ag_news
from benchmarks.corpora_files import Corpus, write_corpus
from benchmarks.record import RESULTS, about, parser, write
from broadsheet.cluster import connect
from broadsheet.pipeline import classify
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.report.job import JobReport

Part = dict[str, Any]
Save = Callable[[Part], None]
"""A function that is called with what has been measured so far."""

_SMALL_WARM_UP, _SMALL_CHUNK_ROWS = 5, 2_048
_MEMORY_CHUNK_ROWS, _MEMORY_GPUS = 512, 16
_WORKER_PROCESSES = 16


def small(options: argparse.Namespace, save: Save) -> Part:
    """Measure from articles as a list of strings in the client to their labels there, on a warm cluster."""
    # Label the articles several times.
    articles = ag_news(options.articles_csv, options.articles)
    texts = [
        articles.data[a:b].tobytes().decode() for a, b in zip(articles.offsets, articles.offsets[1:], strict=False)
    ]
    model, seconds, steps = load_model(options.model).asking("all"), [], []
    with connect(options.where, workers=options.workers, protocol=options.protocol) as client:
        for _ in range(_SMALL_WARM_UP + options.repeats):
            began = time.perf_counter()
            report = classify(texts, client=client, model=model, chunk_size=_SMALL_CHUNK_ROWS)
            called = time.perf_counter()
            labels = report.to_arrow()["label"].to_pylist()
            ended = time.perf_counter()
            if len(labels) != len(texts):
                raise RuntimeError(f"{len(labels)} labels came back, of {len(texts)} articles")
            seconds.append(ended - began)
            steps.append(_seconds_by_step(report) | {"labels as a list": ended - called})
        devices = sorted({place.device for place in report.run.timeline.places.values()})
    # Describe the runs after the first ones, which warm up.
    seconds, steps = seconds[_SMALL_WARM_UP:], steps[_SMALL_WARM_UP:]
    return {
        "articles": len(texts),
        "text_bytes": len(articles.data),
        "chunk_rows": _SMALL_CHUNK_ROWS,
        "workers": options.workers,
        "where": options.where,
        "protocol": options.protocol,
        "devices_used_last": devices,
        "backend": report.backend,
        "median_seconds": statistics.median(seconds),
        "seconds": seconds,
        "median_phase_seconds": {name: statistics.median(step[name] for step in steps) for name in steps[0]},
    }


def _seconds_by_step(report: JobReport) -> dict[str, float]:
    """Return the seconds of the job's steps, and of computing, by the spans that workers sent."""
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


def memory(options: argparse.Namespace, save: Save) -> Part:
    """Measure the memory of all processes in a long job."""
    corpus = Corpus("memory", ".parquet", 1, options.memory_chunks * _MEMORY_CHUNK_ROWS)
    source = write_corpus(options.articles_csv, options.folder, corpus)
    return scale_stubs.memory_part(source, _MEMORY_CHUNK_ROWS, options.memory_chunks, _MEMORY_GPUS, _WORKER_PROCESSES)


PARTS = {part.__name__: part for part in (small, memory)}


def replace_part(path: Path, part: str, value: Part) -> None:
    """Write one part of the results, and leave the others as they are."""
    whole = (json.loads(path.read_text()) if path.exists() else {}) | {part: value}
    order = ["small", "large", "memory"]
    write({name: whole[name] for name in order if name in whole}, path)


def main() -> None:
    """Measure the named parts."""
    command = parser(__doc__, RESULTS / "scale.json")
    command.add_argument("parts", nargs="+", metavar="PART", choices=PARTS, help=", ".join(PARTS))
    command.add_argument("--articles-csv", type=Path, required=True, help="an AG News CSV: class, title, description")
    command.add_argument("--folder", type=Path, help="memory: for input and output")
    command.add_argument("--where", default="cuda", choices=("cuda", "local"), help="small")
    command.add_argument("--protocol", default="auto", choices=("auto", "tcp", "ucx"), help="small")
    command.add_argument("--workers", type=int, default=4, help="small")
    command.add_argument("--repeats", type=int, default=20, help="small")
    command.add_argument("--articles", type=int, default=8_192, help="small")
    command.add_argument("--memory-chunks", type=int, default=20_000, help="memory")
    options = command.parse_args()
    if "memory" in options.parts and not options.folder:
        command.error("--folder is needed")
    # Measure each part, and write it.
    for part in options.parts:
        began, machine = time.perf_counter(), about(options)

        def save(value: Part, part: str = part, began: float = began, machine: Part = machine) -> None:
            value = {"about": machine, "wall_seconds": time.perf_counter() - began, **value}
            replace_part(options.output, part, value)

        save(PARTS[part](options, save))


if __name__ == "__main__":
    main()
