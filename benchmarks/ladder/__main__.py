"""Measure the ladder.

    python -m benchmarks.ladder --articles-csv ag_news/test.csv
    python -m benchmarks.ladder --articles-csv ag_news/test.csv --articles 2048 --repeats 1 --output /tmp/ladder.json

Everything is measured from text in host memory to labels there. `benchmarks.corpora` measures what reading ahead is
worth. The result is written after each step. A step that fails is recorded with its error.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.record import RESULTS, about, parser, write

ARTICLES, REPEATS = 262_144, 5


def measure(options: argparse.Namespace) -> None:
    """Compile all kernels, and measure each step."""
    began = time.perf_counter()
    import cupy as cp
    from cuda.bindings import nvrtc

    from benchmarks.ladder.measure import Bench, compile_all
    from benchmarks.ladder.switches import steps
    from broadsheet.pipeline.kernels.catalog import choose_generation

    # List the steps for this GPU, and compile their kernels.
    digits = cp.cuda.Device().compute_capability
    best, _ = choose_generation("auto", "auto", (int(digits[:-1]), int(digits[-1])))
    planned = steps(best)
    versions = {"cuda": cp.cuda.runtime.runtimeGetVersion(), "nvrtc": ".".join(map(str, nvrtc.nvrtcVersion()[1:]))}
    result: dict[str, Any] = {
        "about": about(options, **versions),
        "articles": options.articles,
        "repeats": options.repeats,
        "steps": [],
    }
    result["compile_seconds"] = compile_all(planned, options.model, f"sm_{digits}")
    print(f"kernels compiled in {result['compile_seconds']:.1f} s", flush=True)
    # Measure them.
    bench = Bench(options.model, options.articles_csv, options.articles, options.repeats, best)
    for step in planned:
        record = bench.measure(step)
        result["steps"].append(record)
        write(result, options.output)
        said = record.get("error") or (
            f"{record['articles_per_second']:,.0f} articles/s ({record['articles']:,} articles, "
            f"{record['labels_unlike_product']} labels unlike the product's)"
        )  # fmt: skip
        print(f"{step.kind}: {step.name}: {said}", flush=True)
    result["wall_seconds"] = time.perf_counter() - began
    write(result, options.output)
    print(f"{result['wall_seconds']:.0f} s in all; {options.output}", flush=True)


def main() -> None:
    command = parser(__doc__, RESULTS / "ladder.json", articles=True)
    command.add_argument("--articles", type=int, default=ARTICLES, help="of a fast variant; slow ones take fewer")
    command.add_argument("--repeats", type=int, default=REPEATS)
    measure(command.parse_args())


if __name__ == "__main__":
    main()
