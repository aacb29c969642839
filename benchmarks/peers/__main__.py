"""Measure every peer on one GPU, in one run; one that fails is recorded and does not stop the rest.

    python -m benchmarks.peers --output peers.json
    python -m benchmarks.peers --ids ids.npy --peer compiled-table --batch 4096

The ids are encoded articles (uint8 [N, length], `pipeline.model.alphabet.encode`), or random text as long as AG News's.
They lie on the GPU throughout. Each peer makes a first pass, which compiles and tunes, a warm one, then the timed ones.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.articles import random_ids
from benchmarks.peers.ceilings import ceilings
from benchmarks.peers.measure import KINDS, measure, release
from benchmarks.record import about, parser, write
from pipeline.model import reference
from pipeline.model.charcnn import Model, load_model


def read_ids(path: Path, model: Model, articles: int) -> NDArray[np.uint8]:
    """A file's encoded articles over and over, uint8 [articles, length]."""
    found = np.load(path, mmap_mode="r")
    if found.dtype != np.uint8 or found.shape[1:] != (model.length,):
        raise SystemExit(f"{path} holds {found.dtype} {list(found.shape)}, not uint8 [N, {model.length}]")
    return found[np.arange(articles) % len(found)]


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--ids", type=Path, help="encoded articles, uint8 [N, length], as .npy; else random")
    command.add_argument("--articles", type=int, default=262_144, help="how many; a file is repeated or cut to it")
    command.add_argument("--repeats", type=int, default=10, help="timed passes of each peer")
    command.add_argument("--peer", action="append", choices=KINDS, help="only this one; may be repeated")
    command.add_argument("--batch", type=int, help="instead of each peer's usual one")
    command.add_argument("--sample", type=int, default=256, help="articles whose logits the reference computes too")
    command.add_argument("--ceilings", action=argparse.BooleanOptionalAction, default=True, help="the GPU's own too")
    options = command.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("the peers are measured on a CUDA GPU, and PyTorch finds none here")
    model = replace(load_model(options.model), frame="dense")  # which is what the peers compute
    host = read_ids(options.ids, model, options.articles) if options.ids else random_ids(model, options.articles)
    truth = reference.forward(host[: options.sample], reference.prepare(model))
    ids = torch.from_numpy(host).cuda()
    machine = about(options, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
    result: dict[str, Any] = {"about": machine, "articles": len(ids), "repeats": options.repeats, "runs": []}
    if options.ceilings:
        result["ceilings"] = ceilings()
        release()
    for run, logits in measure(options.peer or KINDS, model, ids, options.repeats, options.batch):
        if logits is not None:
            found = logits[: len(truth)]
            run["relative_error_of_logits"] = float(np.linalg.norm(found - truth) / np.linalg.norm(truth))
            run["labels_that_differ"] = int((found.argmax(1) != truth.argmax(1)).sum())
        result["runs"].append(run)
        if options.output:
            write(result, options.output)
    write(result, options.output)


if __name__ == "__main__":
    main()
