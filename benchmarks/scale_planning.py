"""Planning a large CSV: scanned by the client's threads, and by the workers of a cluster."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.record import seconds_of
from cluster import connect
from cluster.scanner import workers_scanner
from pipeline.processes.threads import available_cores
from pipeline.source.chunk import Selection
from pipeline.source.inputs import Paths, identify, open_input
from pipeline.source.plan.scan import MOST_THREADS, threads_scanner

_COLUMNS = ("class", "title", "description")
_SELECTION = Selection(text=_COLUMNS[1:], header=_COLUMNS)
_CHUNK_ROWS = 131_072
_REPEATS = 5


def planning_part(
    articles_csv: Path, folder: Path, size: int, workers: list[int], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Plan one CSV of about `size` bytes, whole repeats of `articles_csv`, a few times in each way.

    Workers are processes of four threads on this host; they only scan the file, so no GPU is used. Raises
    RuntimeError where two ways make different plans.
    """
    path = folder / "articles.csv"
    folder.mkdir(parents=True, exist_ok=True)
    content = articles_csv.read_bytes()
    with open(path, "wb") as file:
        for _ in range(-(-size // len(content))):
            file.write(content)
    result: dict[str, Any] = {"bytes": path.stat().st_size, "chunk_rows": _CHUNK_ROWS, "runs": []}
    found_units: dict[str, list[Any]] = {}

    def measure(by: str, count: int, client: Any) -> None:
        def plan() -> None:
            found = identify(Paths([str(path)]), 70, 1014, whole_hash=False, by_content=True)
            with workers_scanner(client) if client else nullcontext() as scanner:
                if client and scanner is None:
                    raise RuntimeError(f"{count} workers are too few to plan with")
            scanner = partial(workers_scanner, client) if client else threads_scanner
            job_input = open_input(found, _SELECTION, _CHUNK_ROWS, scanner=scanner)
            found_units[f"{by} {count}"] = list(job_input.chunks(()))

        seconds = seconds_of(plan, _REPEATS + 1)[1:]
        median = statistics.median(seconds)
        first, last = next(iter(found_units.values())), found_units[f"{by} {count}"]
        result["rows"] = sum(unit.rows for unit in last)
        result["runs"].append({"by": by, "count": count, "seconds": seconds, "median_seconds": median})
        print(f"{by} {count}: {result['bytes'] / median / 1e9:.2f} GB/s", flush=True)
        keep(result)
        if last != first:
            raise RuntimeError(f"{count} {by} planned otherwise than {result['runs'][0]['count']} threads")

    measure("threads", min(MOST_THREADS, available_cores()), None)
    for count in workers:
        with connect("local", workers=count) as client:
            measure("workers", count, client)
    path.unlink()
    return result
