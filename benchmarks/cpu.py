"""The CPU backend beside PyTorch eager fp32, in one run on one machine with the same number of threads.

    python benchmarks/cpu.py --output benchmarks/results/cpu.json

Both start from the same encoded articles, as long as AG News's are (median 232 characters). PyTorch gets them as a
one-hot tensor, built outside its timing; its batch is the best of those tried. Medians of warm, alternating runs.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch.nn import functional as f

from pipeline.engine.open import open_engine
from pipeline.model.charcnn import Model, load_model
from pipeline.threads import available_cores


def random_articles(model: Model, count: int) -> NDArray[np.uint8]:
    """Ids, uint8 [count, length], of articles with lengths spread like AG News's."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, len(model.alphabet) + 1, (count, model.length)).astype(np.uint8)
    lengths = np.clip(rng.normal(236, 67, count), 20, model.length).astype(int)
    ids[np.arange(model.length) >= lengths[:, None]] = model.alphabet.padding
    return ids


class Encoded:
    """Encoded articles as the engine takes them."""

    def __init__(self, ids: NDArray[np.uint8]) -> None:
        self.ids = ids
        self.data = np.empty(0, np.uint8)
        self.offsets = np.zeros(len(ids) + 1, np.int64)


def pytorch_forward(model: Model) -> Callable[[torch.Tensor], torch.Tensor]:
    """The network in PyTorch's own operators."""
    t = {name: torch.from_numpy(np.asarray(tensor, np.float32).copy()) for name, tensor in model.tensors.items()}

    def forward(x: torch.Tensor) -> torch.Tensor:
        for layer in model.layers:
            weight, bias = t[f"{layer.name}.weight"], t[f"{layer.name}.bias"]
            if layer.kind == "linear":  # noqa: SIM108
                x = f.linear(x.flatten(1), weight, bias)
            else:
                x = f.conv1d(x, weight, bias)
            if layer.norm:
                x = f.layer_norm(x, x.shape[1:], t[f"{layer.norm}.weight"], t[f"{layer.norm}.bias"])
            x = f.relu(x) if layer.relu else x
            x = f.max_pool1d(x, layer.pool) if layer.pool > 1 else x
        return x

    return forward


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(model: Model, articles: int, threads: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    ids = random_articles(model, articles)
    engine = open_engine(model, "cpu", threads=threads)
    forward = pytorch_forward(model)
    symbols = torch.arange(len(model.alphabet), dtype=torch.uint8)
    one_hot = (torch.from_numpy(ids)[:, None, :] == symbols[None, :, None]).float()
    with torch.inference_mode():

        def pytorch(batch: int) -> torch.Tensor:
            return torch.cat([forward(part) for part in one_hot.split(batch)])

        truth = torch.softmax(pytorch(32), dim=1).numpy()
        ours = engine.classify(Encoded(ids), all_scores=True).all_scores
        error = float(np.linalg.norm(ours - truth) / np.linalg.norm(truth))
        batch = min((8, 32, 128), key=lambda b: seconds(lambda: pytorch(b)))
        times: dict[str, list[float]] = {"broadsheet": [], "pytorch": []}
        for _ in range(repeats):
            times["broadsheet"].append(seconds(lambda: engine.classify(Encoded(ids))))
            times["pytorch"].append(seconds(lambda: pytorch(batch)))
    rates = {name: articles / statistics.median(values) for name, values in times.items()}
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


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def main(
    model: Annotated[str, typer.Option(help="Any model file.")] = "ag-news",
    articles: Annotated[int, typer.Option(help="Articles in a run.")] = 512,
    repeats: Annotated[int, typer.Option(help="Runs of each.")] = 9,
    output: Annotated[Path | None, typer.Option(help="Write the result as JSON.")] = None,
) -> None:
    """Measure with one thread and with all cores; print the result as JSON."""
    loaded = load_model(model)
    runs = [measure(loaded, articles, threads, repeats) for threads in sorted({1, available_cores()})]
    about = {
        "processor": _processor(),
        "cores": available_cores(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    text = json.dumps({"about": about, "runs": runs}, indent=1)
    print(text)
    if output:
        output.write_text(text + "\n")


if __name__ == "__main__":
    typer.run(main)
