"""docs/training_speed.md: how long an epoch takes, and why."""

from __future__ import annotations

from typing import Any

from benchmarks.pages.markdown import machine, table

HEAD = """# Speed of training

The figures come from `benchmarks/results/training.json` and `training_cpu.json`, recorded by `python -m
benchmarks.training`; `python -m benchmarks.pages` makes this page from them. The network has the text frame, the
articles are AG News, and a step is a whole one of the recipe: augmentation, forward and backward pass, AdamW, and the
average of the weights.

- **all rows** is the network as it is defined: block 1 as a product with one-hot codes, and every row of every block.
- **rows of the text** is how `train` computes it: only rows that the texts reach, of a batch one after another; what
  follows them is a constant row a layer, computed once a batch; block 1 as sums of table rows. Logits and gradients are
  those of all rows, to the rounding of float64 (`tests/test_train.py`). A CPU computes 32 articles at a time, whose
  rows its caches hold.
  On a GPU, block 1 is computed by four kernels of our own (`pipeline/kernels/training/`), where CuPy is installed:
  PyTorch goes through memory some forty times for what they read and write four times, which was half of a step.
- **CUDA graphs** is the same with the whole step captured, AdamW and the sum over the GPUs included, since the GPU
  computes faster than a host can launch kernels. There is a graph for each number of rows, rounded up to one of 16 in
  an octave; a step of each kind runs once as it is before it is captured.
"""

SEVERAL = """
## Several GPUs

A process a GPU, by DistributedDataParallel over NCCL; the batch is shared, so that the recipe is the same. The sum of
the gradients of all GPUs, 48 MB, is part of the step's graph: that of the linear layers, five sixths of it, goes on
beside the backward pass of blocks 6 to 1. What a smaller share of the batch does not shorten is the number of kernels,
some 500 a step, most of which take a few microseconds however little they compute: half of a batch of 256 takes five
sixths of the time. More GPUs are for larger batches, and for seeds and settings side by side (`--sweep`).

"""

KINDS = {"plain": "all rows", "packed": "rows of the text", "graphs": "rows of the text, CUDA graphs"}


def page(cpu: dict[str, Any], gpu: dict[str, Any] | None = None) -> str:
    """The page; the GPUs' part of it where they were measured."""
    parts = [HEAD]
    for result in (gpu, cpu):
        if result is not None:
            title = "GPU" if result["about"]["gpus"] else "core of a CPU, by its processor time"
            parts += ["\n## One ", title, "\n\n", _steps(result)]
    if gpu is not None:
        parts += [SEVERAL, _epochs(gpu)]
    return "".join(parts)


def _steps(result: dict[str, Any]) -> str:
    found, batch = result["milliseconds_a_step"], result["batch"]
    rows = (
        f"{KINDS[kind]} | {ms:,.1f} | {1000 * batch / ms:,.0f} | {found['plain'] / ms:.1f}"
        for kind, ms in found.items()
    )
    head = f"computed | ms a step of {batch} | articles/s | times"
    return f"{machine(result['about'], 'python', 'torch')}.\n\n{table(head, rows)}\n"


def _epochs(result: dict[str, Any]) -> str:
    one = {run["batch"]: run["seconds_an_epoch"] for run in result["epochs"] if run["gpus"] == 1}
    rows = (
        f"{run['batch']:,} | {run['gpus']} | {run['seconds_an_epoch']:.2f} "
        f"| {result['articles'] / run['seconds_an_epoch']:,.0f} "
        f"| {one[run['batch']] / run['seconds_an_epoch']:.1f} | {run['held_out_accuracy']:.1%}"
        for run in result["epochs"]
    )
    told = table(
        f"batch | GPUs | s an epoch of {result['articles']:,} | articles/s | times one | held out after three", rows
    )
    if "overlap" not in result:
        return told + "\n"
    found = result["overlap"]
    return (
        f"{told}\n\nIn a trace of {found['gpus']} GPUs, with the recipe's batch, {found['share']:.0%} of the time of "
        "NCCL's kernels passed beside other kernels. A process that waits for the other one is in such a kernel, too.\n"
    )
