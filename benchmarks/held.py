"""Measure what a loaded classifier costs beyond its engine, for single texts, and `classify` for small lists.

    python -m benchmarks.held --output benchmarks/results/held.json

It runs on the GPU if there is one, else on the CPU (`--device`). Calls of the classifier and of the engine alone take
turns on the same text; the figures are medians of warm calls. `classify` is measured in a process that has called it
before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.record import about, parser, seconds_of, write
from broadsheet import pipeline
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.model.loading import load_model

TEXT = "Stocks fell on Monday as oil rose to its highest price in a year, and airlines warned of losses."


def measure(model: str, device: str, repeats: int) -> dict[str, Any]:
    """Measure loading, calls of the classifier and of its engine, and calls of `classify`."""
    # Load the classifier, and measure its calls.
    began = time.perf_counter()
    held = pipeline.load(model, device=device)
    load = time.perf_counter() - began
    engine, texts = open_engine(load_model(model), device), Texts.of([TEXT.encode()])
    ways: dict[str, Callable[[], object]] = {"call": lambda: held(TEXT), "engine": lambda: engine.classify(texts)}
    turns = [{name: seconds_of(work, 1)[0] for name, work in ways.items()} for _ in range(repeats + 1)][1:]
    call, alone = (statistics.median(turn[name] for turn in turns) for name in ways)
    backend = str(held.backend)
    held.close()
    engine.close()
    # Measure `classify`.
    calls = seconds_of(lambda: pipeline.classify([TEXT], model=model, device=device), 12)
    pipeline.close()
    return {
        "backend": backend,
        "repeats": repeats,
        "load_seconds": load,
        "call_seconds": call,
        "engine_seconds": alone,
        "beyond_engine_seconds": call - alone,
        "classify_first_seconds": calls[0],
        "classify_again_seconds": statistics.median(calls[2:]),
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--device", default="auto")
    arguments.add_argument("--repeats", type=int, default=200)
    options = arguments.parse_args()
    write({"about": about(options), **measure(options.model, options.device, options.repeats)}, options.output)


if __name__ == "__main__":
    main()
