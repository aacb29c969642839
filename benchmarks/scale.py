"""Speed and scale: a small and a large job on the GPUs of one host, planning, one scheduler's limit, and memory over a
long job.

    python -m benchmarks.scale small --articles-csv ag_news/test.csv
    python -m benchmarks.scale large --articles-csv ag_news/test.csv --folder /tmp/scale --gpus 1 2 4
    python -m benchmarks.scale planning --articles-csv ag_news/test.csv --folder /tmp/scale
    python -m benchmarks.scale scheduler
    python -m benchmarks.scale memory --articles-csv ag_news/test.csv --folder /tmp/scale-memory

Each part writes its own key of --output, with the machine it ran on, and leaves the others as they are; several may be
named at once. small and large need GPUs (--where local tries them on a CPU); scheduler and memory put engines in their
place that only sleep.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, about, parser, write

PARTS = ("small", "large", "planning", "scheduler", "memory")


def replace_part(path: Path, part: str, value: dict[str, Any]) -> None:
    """Write one part, and leave the others as they are."""
    whole = (json.loads(path.read_text()) if path.exists() else {}) | {part: value}
    write({name: whole[name] for name in PARTS if name in whole}, path)


def measure(part: str, options: argparse.Namespace) -> None:
    began, machine = time.perf_counter(), about(options)

    def keep(value: dict[str, Any]) -> None:
        replace_part(options.output, part, {"about": machine, "wall_seconds": time.perf_counter() - began, **value})

    if part == "small":
        from benchmarks.scale_small import small_part

        result = small_part(
            options.articles_csv, options.small_articles, options.small_chunk_rows, options.workers, options.where,
            options.repeats, options.model,
        )  # fmt: skip
        print(f"small: {result['median_seconds'] * 1e3:.1f} ms, median of {options.repeats}", flush=True)
    elif part == "large":
        from benchmarks.scale_large import large_part

        result = large_part(options, keep)
    elif part == "planning":
        from benchmarks.scale_planning import planning_part

        result = planning_part(options.articles_csv, options.folder, options.csv_bytes, options.planning_workers, keep)
    elif part == "scheduler":
        from benchmarks.scale_stubs import scheduler_part

        result = scheduler_part(
            options.stub_gpus, options.stub_rows, options.seconds, options.least_chunks, options.worker_processes, keep
        )  # fmt: skip
    else:
        from benchmarks.scale_large import write_articles
        from benchmarks.scale_stubs import memory_part

        rows = options.memory_chunk_rows
        source = write_articles(options.articles_csv, options.folder / "memory", options.memory_chunks * rows, rows)
        result = memory_part(source, rows, options.memory_chunks, options.memory_gpus, options.worker_processes)
        for role in ("scheduler", "client", "worker"):
            found = result["memory"][role]
            print(f"{role}: peak {found['peak_bytes'] / 1e6:.0f} MB, {found['growth_bytes'] / 1e6:+.1f} MB from 30 % "
                  f"of the job to 95 %, {'flat' if found['flat'] else 'not flat'}", flush=True)  # fmt: skip
    keep(result)


def main() -> None:
    command = parser(__doc__, RESULTS / "scale.json")
    command.add_argument("parts", nargs="+", metavar="PART", choices=PARTS, help=", ".join(PARTS))
    command.add_argument("--articles-csv", type=Path, help="an AG News CSV: class, title, description")
    command.add_argument(
        "--folder", type=Path, help="large, planning, memory: for input and output; 60 GB for 64 million articles"
    )
    command.add_argument("--where", default="cuda", choices=("cuda", "local"), help="small, large")
    small = command.add_argument_group("small")
    small.add_argument("--workers", type=int, default=4)
    small.add_argument("--repeats", type=int, default=20)
    small.add_argument("--small-articles", type=int, default=8_192)
    small.add_argument("--small-chunk-rows", type=int, default=2_048)
    large = command.add_argument_group("large")
    large.add_argument("--count", type=int, default=64_000_000, help="articles")
    large.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4])
    large.add_argument("--chunk-rows", type=int, default=131_072)
    large.add_argument("--own-articles", type=int, default=262_144, help="that the engine alone labels")
    planning = command.add_argument_group("planning")
    planning.add_argument("--csv-bytes", type=int, default=7_400_000_000)
    planning.add_argument("--planning-workers", type=int, nargs="+", default=[4, 16], help="three or more each")
    scheduler = command.add_argument_group("scheduler")
    scheduler.add_argument("--stub-gpus", type=int, nargs="+", default=[16, 64, 256, 1_024])
    scheduler.add_argument("--stub-rows", type=int, nargs="+", default=[2**n for n in (13, 15, 17, 19, 21)])
    scheduler.add_argument("--seconds", type=float, default=20.0, help="of each run, about")
    scheduler.add_argument("--least-chunks", type=int, default=6, help="of a run, for each GPU")
    scheduler.add_argument("--worker-processes", type=int, default=16, help="scheduler, memory: at most")
    memory = command.add_argument_group("memory")
    memory.add_argument("--memory-chunks", type=int, default=20_000)
    memory.add_argument("--memory-chunk-rows", type=int, default=512)
    memory.add_argument("--memory-gpus", type=int, default=16)
    options = command.parse_args()
    if set(options.parts) - {"scheduler"} and not options.articles_csv:
        command.error("--articles-csv is needed")
    if {"large", "planning", "memory"} & set(options.parts) and not options.folder:
        command.error("--folder is needed")
    for part in options.parts:
        measure(part, options)


if __name__ == "__main__":
    main()
