"""Speed and scale: a small and a large job on the GPUs of one host, planning, one scheduler's limit, and memory over a
long job.

    python -m benchmarks.scale small --articles-csv ag_news/test.csv --commit $(git rev-parse --short HEAD)
    python -m benchmarks.scale large --articles-csv ag_news/test.csv --folder /tmp/scale --gpus 1 2 4
    python -m benchmarks.scale planning --articles-csv ag_news/test.csv --folder /tmp/scale
    python -m benchmarks.scale scheduler
    python -m benchmarks.scale memory --articles-csv ag_news/test.csv --folder /tmp/scale-memory
    python -m benchmarks.scale --plot

Each part writes its own key of --output, with the machine it ran on, and leaves the others as they are; several may be
named at once. small and large need GPUs (--where local tries them on a CPU); scheduler and memory put engines in their
place that only sleep. --plot draws docs/scaling.png and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.ladder.__main__ import driver

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "scale.json"
PLOT = ROOT / "docs" / "scaling.png"
PARTS = ("small", "large", "planning", "scheduler", "memory")
PACKAGES = ("numpy", "pyarrow", "dask", "distributed", "dask-cuda", "cupy-cuda13x", "cupy-cuda12x")


def gpu_names() -> list[str]:
    """By nvidia-smi, which makes no context on any of them."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=False)
    except OSError:
        return []
    return found.stdout.strip().splitlines() if found.returncode == 0 else []


def processor() -> str:
    """The CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def about(commit: str, note: str) -> dict[str, Any]:
    gpus = gpu_names()
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpus,
        **({"driver": driver()} if gpus else {}),
        "versions": versions(),
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
        **({"note": note} if note else {}),
    }


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return value


def write(path: Path, part: str, value: dict[str, Any]) -> None:
    """Replace one part; the file is there whole or not at all."""
    whole = read(path) | {part: value}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps({name: whole[name] for name in PARTS if name in whole}, indent=1) + "\n")
    os.replace(beside, path)


def measure(part: str, options: argparse.Namespace) -> None:
    began, machine = time.perf_counter(), about(options.commit, options.note)

    def keep(value: dict[str, Any]) -> None:
        write(options.output, part, {"about": machine, "wall_seconds": time.perf_counter() - began, **value})

    if part == "small":
        from benchmarks.scale_small import small_part

        result = small_part(
            options.articles_csv, options.small_articles, options.small_chunk_rows, options.workers, options.where,
            options.repeats, options.model,
        )  # fmt: skip
        print(f"small: {result['median_seconds'] * 1e3:.1f} ms, median of {options.repeats}", flush=True)
    elif part == "large":
        from benchmarks.scale_large import large_part

        result = large_part(
            options.articles_csv, options.folder, options.count, options.gpus, options.chunk_rows, options.where,
            options.model, options.own_articles, keep,
        )  # fmt: skip
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--commit", default="")
    parser.add_argument("--note", default="", help="what else is to be said of the machine")
    parser.add_argument("--articles-csv", type=Path, help="an AG News CSV: class, title, description")
    parser.add_argument(
        "--folder", type=Path, help="large, planning, memory: for input and output; 60 GB for 64 million articles"
    )
    parser.add_argument("--model", default="ag-news")
    parser.add_argument("--where", default="cuda", choices=("cuda", "local"), help="small, large")
    small = parser.add_argument_group("small")
    small.add_argument("--workers", type=int, default=4)
    small.add_argument("--repeats", type=int, default=20)
    small.add_argument("--small-articles", type=int, default=8_192)
    small.add_argument("--small-chunk-rows", type=int, default=2_048)
    large = parser.add_argument_group("large")
    large.add_argument("--count", type=int, default=64_000_000, help="articles")
    large.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4])
    large.add_argument("--chunk-rows", type=int, default=131_072)
    large.add_argument("--own-articles", type=int, default=262_144, help="that the engine alone is given")
    planning = parser.add_argument_group("planning")
    planning.add_argument("--csv-bytes", type=int, default=7_400_000_000)
    planning.add_argument("--planning-workers", type=int, nargs="+", default=[4, 16], help="three or more each")
    scheduler = parser.add_argument_group("scheduler")
    scheduler.add_argument("--stub-gpus", type=int, nargs="+", default=[16, 64, 256, 1_024])
    scheduler.add_argument(
        "--stub-rows", type=int, nargs="+", default=[8_192, 32_768, 131_072, 524_288, 2_097_152]
    )  # fmt: skip
    scheduler.add_argument("--seconds", type=float, default=20.0, help="of each run, about")
    scheduler.add_argument("--least-chunks", type=int, default=6, help="of a run, for each GPU")
    scheduler.add_argument("--worker-processes", type=int, default=16, help="scheduler, memory: at most")
    memory = parser.add_argument_group("memory")
    memory.add_argument("--memory-chunks", type=int, default=20_000)
    memory.add_argument("--memory-chunk-rows", type=int, default=512)
    memory.add_argument("--memory-gpus", type=int, default=16)
    parser.add_argument("--plot", type=Path, nargs="?", const=PLOT, help="draw --output as PNG and measure nothing")
    options = parser.parse_args()
    if options.plot:
        from benchmarks.scale_page import draw

        draw(read(options.output), options.plot)
        return
    if not options.parts or set(options.parts) - set(PARTS):
        parser.error(f"name a part ({', '.join(PARTS)}), or --plot")
    if set(options.parts) - {"scheduler"} and not options.articles_csv:
        parser.error("--articles-csv is needed")
    if {"large", "planning", "memory"} & set(options.parts) and not options.folder:
        parser.error("--folder is needed")
    for part in options.parts:
        measure(part, options)


if __name__ == "__main__":
    main()
