"""Compare three ways to train an encoder on a few hundred rows: `train --fine-tune`, a frozen encoder, and SetFit.

    python -m benchmarks.fine_tuning SETS --encoder all-MiniLM-L6-v2 --output benchmarks/results/fine_tuning.json
    python -m benchmarks.fine_tuning SETS --encoder all-MiniLM-L6-v2 --rows 48800 --sets ag_news --ways tuned

SETS has a folder for each data set, as `benchmarks.accuracy` describes them. Each seed draws rows, on which all
contenders train. They are evaluated on up to 6,000 test rows. SetFit draws 40 pairs for each row, its default, in
batches of 16.

Each run is a process of its own, and `--at-once` processes share the machine. You can compare the seconds of contenders
with one another; with `--at-once 1` they are those of an idle machine. They count from the rows to the model, without
starting Python, loading libraries, and labelling the test rows. Runs that the output file has are not repeated.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.accuracy import MOST_TESTED, Labels, drawn, read
from benchmarks.record import RESULTS, about, parser, write
from broadsheet.pipeline.classifier import load
from broadsheet.pipeline.train import train

Predict = Callable[[list[str]], Labels]
Way = Callable[[list[str], Labels, str, str, int], Predict]


def by_broadsheet(texts: list[str], labels: Labels, encoder: str, device: str, seed: int, is_tuned: bool) -> Predict:
    """Train a head on an encoder, which is fine-tuned or frozen.

    Parameters
    ----------
    texts, labels
        The rows to train on.
    encoder : str
        The folder of the encoder.
    device : str
        "cpu" or "cuda".
    seed : int
        The seed of all random choices.
    is_tuned : bool
        Whether the encoder is trained too, or only its head.

    """
    table = pa.table({"text": texts, "label": labels})
    columns = {"text_column": "text", "label_column": "label"}
    more = {"fine_tune": True, "device": device} if is_tuned else {}  # a head alone is fitted on the CPU
    trained = train(table, **columns, encoder=encoder, seed=seed, **more)
    return lambda tested: np.array(load(trained.model, device=device).predict(tested))


def by_setfit(texts: list[str], labels: Labels, encoder: str, device: str, seed: int) -> Predict:
    """Train SetFit with its defaults, without reports to other services.

    Parameters
    ----------
    texts, labels, encoder, device, seed
        As in `by_broadsheet`.

    """
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    names, numbers = np.unique(labels, return_inverse=True)
    model = SetFitModel.from_pretrained(encoder, device=device)
    rows = Dataset.from_dict({"text": texts, "label": numbers.tolist()})
    arguments = TrainingArguments(batch_size=16, num_epochs=1, num_iterations=20, seed=seed, report_to="none")
    Trainer(model, arguments, train_dataset=rows).train()
    return lambda tested: names[np.asarray(model.predict(tested).cpu(), np.int64)]


WAYS: dict[str, Way] = {
    "tuned": partial(by_broadsheet, is_tuned=True),
    "frozen": partial(by_broadsheet, is_tuned=False),
    "SetFit": by_setfit,
}


def measure(folder: Path, rows: int, seed: int, way: str, encoder: str, device: str) -> dict[str, Any]:
    """Train and evaluate one contender on one draw of rows. Returns its accuracy in percent, and the seconds.

    Parameters
    ----------
    folder : Path
        The folder of the set.
    rows : int
        How many rows are drawn.
    seed : int
        The seed of the draw, and of the contender.
    way : str
        A key of `WAYS`.
    encoder, device
        As in `by_broadsheet`.

    """
    # Draw the training rows, and choose test rows whose class is among theirs.
    if way == "SetFit":
        import setfit  # noqa: F401 - its import is not part of the time
    texts, labels = read(folder / "train.csv")
    tested, truth = read(folder / "test.csv")
    chosen, given = drawn(labels, rows, seed, "")
    known = np.flatnonzero(np.isin(truth, given))[:MOST_TESTED]
    # Train, and evaluate.
    began = time.perf_counter()
    predict = WAYS[way]([texts[row] for row in chosen], given, encoder, device, seed)
    seconds = time.perf_counter() - began
    right = predict([tested[row] for row in known]) == truth[known]
    run = {"set": folder.name, "rows": rows, "seed": seed, "way": way, "tested": len(known)}
    return run | {"accuracy": round(100 * float(right.mean()), 2), "seconds": round(seconds, 2)}


def summary(runs: list[dict[str, Any]]) -> str:
    """Return a line for each contender: its median accuracy over seeds, as the mean over sets, and median seconds."""
    lines = []
    for way in WAYS:
        own = [run for run in runs if run["way"] == way]
        of_sets = [
            statistics.median(run["accuracy"] for run in own if run["set"] == name)
            for name in sorted({run["set"] for run in own})
        ]
        if own:
            seconds = statistics.median(run["seconds"] for run in own)
            lines.append(f"{way}: {statistics.fmean(of_sets):.2f} % on {len(of_sets)} sets, {seconds:.1f} s")
    return "\n".join(lines)


def main() -> None:
    """Run all contenders, write the file after each run, and print a summary."""
    command = parser(__doc__, RESULTS / "fine_tuning.json")
    command.add_argument("folder", type=Path, help="folder with a folder for each set")
    command.add_argument("--encoder", required=True, help="folder of a sentence-transformers model")
    command.add_argument("--sets", nargs="+", help="default: all in the folder")
    command.add_argument("--rows", type=int, default=500, help="to train on")
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="that draw them")
    command.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    command.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    command.add_argument("--at-once", type=int, default=1, help="runs that share the machine")
    options = command.parse_args()
    # Run what the output file lacks.
    result: dict[str, Any] = {"about": about(options), "runs": []}
    if options.output.exists():
        result["runs"] = json.loads(options.output.read_text())["runs"]
    for run in _runs(options, result["runs"]):
        result["runs"].append(run)
        write(result, options.output)
        print(run, flush=True)
    print(summary(result["runs"]))


def _runs(options: argparse.Namespace, recorded: list[dict[str, Any]]) -> Any:
    """Run what the output file lacks, and yield the record of each run when it ends."""
    there = {(run["set"], run["rows"], run["seed"], run["way"], run["at_once"], run["device"]) for run in recorded}
    names = options.sets or sorted(path.parent.name for path in options.folder.glob("*/train.csv"))
    spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(options.at_once, spawn, max_tasks_per_child=1) as pool:
        futures = [
            pool.submit(measure, options.folder / name, options.rows, seed, way, options.encoder, options.device)
            for seed in options.seeds
            for name in names
            for way in options.ways
            if (name, options.rows, seed, way, options.at_once, options.device) not in there
        ]
        for future in as_completed(futures):
            try:
                yield future.result() | {"at_once": options.at_once, "device": options.device}
            except Exception as error:  # the other runs go on
                print(f"a run failed: {error!r:.500}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
