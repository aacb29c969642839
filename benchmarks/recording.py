"""What recording costs: the CPU backend with no spans, with those of a chunk, and with every kernel's.

    python benchmarks/recording.py --output benchmarks/results/recording.json

The three take turns in random order, in processor seconds, which other programs on the machine disturb least; and one
span alone, recorded on a worker, and packed, sent home and put on the scheduler's clock.
"""

from __future__ import annotations

import json
import pickle
import random
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.engine.open import open_engine
from pipeline.model.charcnn import load_model
from pipeline.profiling.sample import sample
from pipeline.telemetry.spans import Span, brought_home, span
from pipeline.threads import available_cores

_SPANS = 1000


def record(count: int) -> list[Span]:
    spans: list[Span] = []
    for _ in range(count):
        with span("kernels", spans, "compute", "cpu"):
            pass
    return spans


def seconds_of_runs(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Least processor seconds of each way: what other programs add is never negative."""
    for work in ways.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name in random.sample(list(ways), len(ways)):
            began = time.process_time()
            ways[name]()
            times[name].append(time.process_time() - began)
    return {name: round(min(values), 4) for name, values in times.items()}


def main(
    articles: Annotated[int, typer.Option(help="Articles in a chunk.")] = 512,
    repeats: Annotated[int, typer.Option(help="Runs of each.")] = 31,
    output: Annotated[Path | None, typer.Option(help="Write the result as JSON.")] = None,
) -> None:
    """Measure, and print the result as JSON."""
    model = load_model()
    engine = open_engine(model, "cpu")
    texts = sample(model, articles)
    by_kernel: list[Span] = []
    engine.classify(texts, 1, False, by_kernel, True)
    seconds = seconds_of_runs(
        {
            "no spans": lambda: engine.classify(texts),
            "spans of the chunk": lambda: engine.classify(texts, 1, False, [], False),
            "spans of every kernel": lambda: engine.classify(texts, 1, False, [], True),
        },
        repeats,
    )
    spans = record(_SPANS)
    recorded = min(timeit.repeat(lambda: record(_SPANS), number=10, repeat=5)) / 10 / _SPANS
    home = min(timeit.repeat(lambda: brought_home(pickle.loads(pickle.dumps(spans)), 0.1, "part"), number=10, repeat=5))
    result = {
        "about": {"backend": str(engine.backend), "cores": available_cores(), "date": time.strftime("%Y-%m-%d")},
        "articles": articles,
        "repeats": repeats,
        "processor_seconds": seconds,
        "spans_of_every_kernel": len(by_kernel),
        "microseconds_a_span": {"recorded": round(recorded * 1e6, 2), "sent_home": round(home / 10 / _SPANS * 1e6, 2)},
    }
    text = json.dumps(result, indent=1)
    print(text)
    if output:
        output.write_text(text + "\n")


if __name__ == "__main__":
    typer.run(main)
