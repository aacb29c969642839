"""What TLS between the processes of a local cluster costs: at its start, and in text sent from memory.

    python -m benchmarks.tls --output benchmarks/results/tls.json

Each round starts a cluster of two workers with TLS and one without, in processes of their own. Then articles in memory
go to the workers, where a stand-in for the network answers at once: nothing but the transport and Dask takes time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.processes import PRELOAD, STAND_IN, environment
from benchmarks.record import about, parser, write

WORKERS, ROUNDS, JOBS = 2, 5, 5
ARTICLES, BYTES = 50_000, 1_000


def round_of(tls: bool, model: str) -> dict[str, float]:
    """In this process: seconds until the cluster has its workers, and the median rate of a job."""
    from cluster import connect
    from pipeline import classify
    from pipeline.model.charcnn import load_model

    loaded, texts = load_model(model), [f"{i:09d}{'x' * (BYTES - 9)}" for i in range(ARTICLES)]
    began = time.perf_counter()
    with connect("local", workers=WORKERS, tls=tls, say=lambda line: None) as client:
        client.wait_for_workers(WORKERS)
        start, seconds = time.perf_counter() - began, []
        for _ in range(1 + JOBS):  # the first loads the engines
            began = time.perf_counter()
            report = classify(texts, model=loaded, client=client, chunk_size=2_000)
            seconds.append(time.perf_counter() - began)
            assert report.rows_written == ARTICLES
    return {"start_seconds": start, "megabytes_a_second": ARTICLES * BYTES / 1e6 / statistics.median(seconds[1:])}


def measure(model: str) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"tls": [], "tcp": []}
    for _ in range(ROUNDS):
        for name, rounds in found.items():
            run = subprocess.run(
                [sys.executable, "-m", "benchmarks.tls", "--round", name, "--model", model],
                stdout=subprocess.PIPE, check=True, env=environment(**{PRELOAD: STAND_IN}),
            )  # fmt: skip
            rounds.append(json.loads(run.stdout))
    return {
        name: {"rounds": rounds, **{key: statistics.median(r[key] for r in rounds) for key in rounds[0]}}
        for name, rounds in found.items()
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--round", choices=("tls", "tcp"), help="one round, in this process; else all of them")
    options = made.parse_args()
    if options.round:
        print(json.dumps(round_of(options.round == "tls", options.model)))
        return
    result = measure(options.model)
    write({"about": about(options, workers=WORKERS, articles=ARTICLES, article_bytes=BYTES), **result}, options.output)


if __name__ == "__main__":
    main()
