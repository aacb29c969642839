r"""Measure how fast training is: with all rows, without rows that no text reaches, with CUDA graphs, on several GPUs.

    python -m benchmarks.training --articles-csv ag_news/train.csv --gpus 1 2 4 \
        --output benchmarks/results/training.json
    python -m benchmarks.training --articles-csv ag_news/train.csv --device cpu --steps 2 --batch 64 \
        --output benchmarks/results/training_cpu.json

A step of each kind is a whole step of the recipe: augmentation, forward and backward pass, AdamW, and the average of
the weights. Several GPUs share a batch, of the recipe's 256 articles or of 2,048. An epoch includes evaluating the
held-out rows.
"""

from __future__ import annotations

import csv
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.record import about, parser, write
from broadsheet.pipeline.model.alphabet import Alphabet, encode
from broadsheet.pipeline.train.group import ProcessGroup
from broadsheet.pipeline.train.job import Examples, TrainingJob
from broadsheet.pipeline.train.loop import DeviceExamples, TrainingRun, run
from broadsheet.pipeline.train.network import CharCNN
from broadsheet.pipeline.train.objective import OneLabel
from broadsheet.pipeline.train.packed import PackedCNN
from broadsheet.pipeline.train.processes import run_here
from broadsheet.pipeline.train.progress import Epoch
from broadsheet.pipeline.train.recipe import WITH_SPACE, Recipe

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
BATCHES = (256, 2048)
EPOCHS = 10  # in one of the first epochs, each kind of step is captured as a graph
LENGTH = 1014
HELD_OUT = 0.02


class Plain(CharCNN):
    """The network with all rows and one-hot input, as training computed it in the beginning."""

    def units(self, ids: Tensor) -> Tensor:
        """Return 0 units for all texts, since this network has no layout by units."""
        return torch.zeros(len(ids), dtype=torch.int64, device=ids.device)

    def forward(self, ids: Tensor, units: int | None = None) -> Tensor:
        """Return the logits."""
        return super().forward(ids)


def examples_in(articles: Path) -> Examples:
    """Read the articles of a CSV file with class, title and description, and hold some of them out."""
    with articles.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    texts = [" ".join(row[1:]).encode() for row in rows]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    ids = encode(np.frombuffer(b"".join(texts), np.uint8), offsets, Alphabet(WITH_SPACE), LENGTH).ids
    labels = np.array([int(row[0]) - 1 for row in rows], np.int64)
    order = np.random.default_rng(0).permutation(len(rows))
    held = int(HELD_OUT * len(rows))
    return Examples(ids, labels, np.sort(order[held:]), np.sort(order[:held]))


def loop_of(job: TrainingJob, examples: Examples, kind: str, steps: int) -> TrainingRun:
    """Return a training run on this process's device, with `steps` steps in an epoch."""
    # Make the network.
    device = torch.device("cuda" if job.device == "cuda" else "cpu")
    compute = torch.bfloat16 if job.device == "cuda" else torch.float32
    recipe = job.recipe
    torch.manual_seed(0)
    made = Plain if kind == "plain" else PackedCNN
    network = made(job.layers, job.frame, compute, recipe.dropout, recipe.input_dropout).to(device)
    # Make the run, without held-out rows.
    fit = examples.fit[: steps * recipe.batch_size]
    rows = DeviceExamples(
        torch.from_numpy(examples.ids[fit]).to(device), torch.from_numpy(examples.targets[fit]).to(device)
    )
    loop = TrainingRun(
        network,
        rows,
        DeviceExamples(rows.ids[:0], rows.targets[:0]),
        job.symbols,
        recipe,
        job.objective,
        0,
        ProcessGroup(),
    )
    if kind != "graphs":
        loop._replayed = None
    return loop


def milliseconds_a_step(job: TrainingJob, examples: Examples, kind: str, steps: int) -> float:
    """Return the milliseconds of a step, in the faster of two epochs after a first one.

    On a CPU, it is the processor time of this process, which excludes that of other programs.
    """
    clock = time.perf_counter if job.device == "cuda" else time.process_time
    loop = loop_of(job, examples, kind, steps)
    loop.network.train()
    timings = []
    with torch.backends.cudnn.flags(enabled=True, benchmark=job.device == "cuda"):
        for epoch in (1, 2, 3):
            began = clock()
            loop._epoch(epoch, lambda what: None, lambda: False)
            float(loop._losses)
            timings.append(clock() - began)
    return 1000 * min(timings[1:]) / steps


def epochs_on(job: TrainingJob, examples: Examples, gpus: int) -> dict[str, Any]:
    """Train on some GPUs. Returns the seconds of the fastest epoch except the first, and the accuracy in the end."""
    ends: list[tuple[float, Epoch]] = []

    def tell(what: Any) -> None:
        if isinstance(what, Epoch):
            ends.append((time.perf_counter(), what))

    if gpus > 1:
        run_here(job, examples, gpus, tell, lambda: False)
    else:
        run(job, examples, tell)
    times = [time for time, _ in ends]
    return {
        "gpus": gpus,
        "batch": job.recipe.batch_size,
        "seconds_an_epoch": min(b - a for a, b in pairwise(times)),
        "held_out_accuracy": ends[-1][1].accuracy,
    }


def main() -> None:
    """Compare the kinds of steps, and train on each number of GPUs."""
    command = parser(__doc__, articles=True)
    command.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    command.add_argument("--gpus", type=int, nargs="*", default=[1], help="numbers of GPUs to train on")
    command.add_argument("--steps", type=int, default=48, help="in an epoch of the comparison")
    command.add_argument("--batch", type=int, default=256, help="articles in a step of the comparison")
    options = command.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    # Describe the training.
    examples = examples_in(options.articles_csv)
    recipe = Recipe(epochs=EPOCHS, batch_size=options.batch)
    objective = OneLabel(recipe.label_smoothing)
    job = TrainingJob(CLASSES, Alphabet(WITH_SPACE), LENGTH, "text", recipe, objective, seed=0, device=options.device)
    # Measure the kinds of steps, and whole runs.
    kinds = ("plain", "packed", "graphs") if options.device == "cuda" else ("plain", "packed")
    result: dict[str, Any] = {
        "about": about(options),
        "articles": len(examples.fit),
        "batch": options.batch,
        "milliseconds_a_step": {kind: milliseconds_a_step(job, examples, kind, options.steps) for kind in kinds},
    }
    if options.device == "cuda":
        result["epochs"] = [
            epochs_on(replace(job, recipe=replace(job.recipe, batch_size=batch)), examples, gpus)
            for batch in BATCHES
            for gpus in options.gpus
        ]
    write(result, options.output)


if __name__ == "__main__":
    main()
