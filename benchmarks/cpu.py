"""The CPU backend beside PyTorch eager fp32, in one run on one machine with the same number of threads.

    python -m benchmarks.cpu --output benchmarks/results/cpu.json

Both start from the same encoded articles, as long as AG News's are (median 232 characters). PyTorch gets them as a
one-hot tensor, built outside its timing; its batch is the best of those tried. Medians of warm, alternating runs; first
with one thread, then with all cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.articles import encoded, random_ids
from benchmarks.peers import torch_peer
from benchmarks.record import about, parser, seconds_of, write
from pipeline.engine.open import open_engine
from pipeline.model.charcnn import Model, load_model
from pipeline.threads import available_cores


def measure(model: Model, articles: int, threads: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    ids = random_ids(model, articles)
    engine = open_engine(model, "cpu", threads=threads)
    network = torch_peer.eager(model, torch.float32).eval()
    one_hot, forward = network[0], network[1:]
    with torch.inference_mode():
        columns = one_hot(torch.from_numpy(ids))

        def pytorch(batch: int) -> torch.Tensor:
            return torch.cat([forward(part) for part in columns.split(batch)])

        truth = torch.softmax(pytorch(32), dim=1).numpy()
        ours = engine.classify(encoded(ids), all_scores=True).all_scores
        error = float(np.linalg.norm(ours - truth) / np.linalg.norm(truth))
        batch = min((8, 32, 128), key=lambda b: seconds_of(lambda: pytorch(b), 1))
        ways: dict[str, Callable[[], object]] = {
            "broadsheet": lambda: engine.classify(encoded(ids)),
            "pytorch": lambda: pytorch(batch),
        }
        turns = [{name: seconds_of(work, 1)[0] for name, work in ways.items()} for _ in range(repeats)]
    rates = {name: articles / statistics.median(turn[name] for turn in turns) for name in ways}
    return {
        "articles": articles,
        "threads": threads,
        "repeats": repeats,
        "pytorch_batch": batch,
        "articles_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "ratio": round(rates["broadsheet"] / rates["pytorch"], 3),
        "relative_error_of_scores": error,
        "backend": str(engine.backend),
    }


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--articles", type=int, default=512, help="of a run")
    command.add_argument("--repeats", type=int, default=9, help="runs of each")
    options = command.parse_args()
    model = load_model(options.model)
    runs = [measure(model, options.articles, n, options.repeats) for n in sorted({1, available_cores()})]
    write({"about": about(options), "runs": runs}, options.output)


if __name__ == "__main__":
    main()
