"""What recording costs: the CPU backend with no spans, with those of a chunk, and with every kernel's.

    python -m benchmarks.recording --output benchmarks/results/recording.json

The three take turns in random order, in processor seconds, which other programs on the machine disturb least; and one
span alone, recorded on a worker, and packed, sent home and put on the scheduler's clock.
"""

from __future__ import annotations

import pickle
import random
import time
import timeit
from collections.abc import Callable
from typing import Any

from benchmarks.record import about, parser, write
from pipeline.engine.open import open_engine
from pipeline.engine.profile import sample
from pipeline.model.charcnn import load_model
from pipeline.telemetry.spans import Span, brought_home, span

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


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--articles", type=int, default=512, help="in a chunk")
    command.add_argument("--repeats", type=int, default=31, help="runs of each")
    options = command.parse_args()
    model = load_model(options.model)
    engine = open_engine(model, "cpu")
    texts = sample(model, options.articles)
    by_kernel: list[Span] = []
    engine.classify(texts, 1, False, by_kernel, True)
    seconds = seconds_of_runs(
        {
            "no spans": lambda: engine.classify(texts),
            "spans of the chunk": lambda: engine.classify(texts, 1, False, [], False),
            "spans of every kernel": lambda: engine.classify(texts, 1, False, [], True),
        },
        options.repeats,
    )
    spans = record(_SPANS)
    recorded = min(timeit.repeat(lambda: record(_SPANS), number=10, repeat=5)) / 10 / _SPANS
    home = min(timeit.repeat(lambda: brought_home(pickle.loads(pickle.dumps(spans)), 0.1, "part"), number=10, repeat=5))
    result = {
        "about": about(options, backend=str(engine.backend)),
        "articles": options.articles,
        "repeats": options.repeats,
        "processor_seconds": seconds,
        "spans_of_every_kernel": len(by_kernel),
        "microseconds_a_span": {"recorded": round(recorded * 1e6, 2), "sent_home": round(home / 10 / _SPANS * 1e6, 2)},
    }
    write(result, options.output)


if __name__ == "__main__":
    main()
