"""Compare the CPU backend, in both frames, with PyTorch eager in fp32: on one machine, with the same number of threads.

    python -m benchmarks.cpu --output benchmarks/results/cpu.json

All start from the same encoded articles: first as long as AG News's (median 232 characters), then of the model's full
length. PyTorch gets them as a one-hot tensor, which is built before its timing. Its batch is the fastest of three, and
it computes the dense frame, which costs it no more than the text frame would. The figures are medians of warm runs that
alternate, first with one thread, then with all cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.articles import encoded, random_ids
from benchmarks.peers import torch_peer
from benchmarks.record import about, parser, seconds_of, write
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import FRAMES
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.processes.threads import available_cores


def measure(model: Model, ids: NDArray[np.uint8], threads: int, repeats: int) -> dict[str, Any]:
    """Measure the rates of both frames and of PyTorch on encoded articles, uint8 [N, length]."""
    # Open the engines and the network of PyTorch.
    torch.set_num_threads(threads)
    engines = {frame: open_engine(replace(model, frame=frame), "cpu", threads=threads) for frame in FRAMES}
    network = torch_peer.eager(model, torch.float32).eval()
    one_hot, forward = network[0], network[1:]
    with torch.inference_mode():
        columns = one_hot(torch.from_numpy(ids))

        def pytorch(batch: int) -> torch.Tensor:
            return torch.cat([forward(part) for part in columns.split(batch)])

        # Choose PyTorch's batch, warm up, and measure in turns.
        batch = min((8, 32, 128), key=lambda b: seconds_of(lambda: pytorch(b), 1))
        ways: dict[str, Callable[[], object]] = {
            **{frame: lambda engine=engine: engine.classify(encoded(ids)) for frame, engine in engines.items()},
            "pytorch": lambda: pytorch(batch),
        }
        for work in ways.values():
            work()
        turns = [{name: seconds_of(work, 1)[0] for name, work in ways.items()} for _ in range(repeats)]
    # Describe the rates.
    rates = {name: len(ids) / statistics.median(turn[name] for turn in turns) for name in ways}
    run = {
        "articles": len(ids),
        "threads": threads,
        "repeats": repeats,
        "pytorch_batch": batch,
        "articles_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "text_to_dense": round(rates["text"] / rates["dense"], 3),
        "text_to_pytorch": round(rates["text"] / rates["pytorch"], 3),
        "backend": str(engines["text"].backend),
    }
    for engine in engines.values():
        engine.close()
    return run


def main() -> None:
    """Measure short and long articles, with one thread and with all cores."""
    command = parser(__doc__)
    command.add_argument("--articles", type=int, default=512, help="articles of a run")
    command.add_argument("--repeats", type=int, default=9, help="runs of each contender")
    options = command.parse_args()
    model = load_model(options.model).asking("all")
    short = random_ids(model, options.articles)
    rng = np.random.default_rng(0)
    long = rng.integers(0, len(model.alphabet) + 1, (options.articles // 4, model.length)).astype(np.uint8)
    runs = [
        {"text": text} | measure(model, ids, threads, options.repeats)
        for text, ids in (("AG News", short), (f"{model.length:,} characters", long))
        for threads in sorted({1, available_cores()})
    ]
    write({"about": about(options), "runs": runs}, options.output)


if __name__ == "__main__":
    main()
