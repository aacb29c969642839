"""The second stage of `train`: a run, described by values that can be sent to another process, and how one runs it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.model.alphabet import Alphabet
from pipeline.model.charcnn import Layer
from pipeline.model.frame import FRAMES, Frame
from pipeline.train.checkpoint import Checkpoint, Epoch
from pipeline.train.loop import Rows, Run, Saving
from pipeline.train.network import CharCNN
from pipeline.train.objective import Objective
from pipeline.train.recipe import Recipe

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class Job:
    """A run: `recipe` from `seed`, on articles of which those in `fit` are trained on and those in `held` held out.

    ids: uint8 [N, length]. targets: [N] or [N, …], as `objective` takes them. classes: their names. checkpoint: its
    file, or None; every: epochs between two writes, 0 for none. resume: continue from it.

    Raises UsageError for a device, precision or frame that there is not.
    """

    ids: NDArray[np.uint8]
    targets: NDArray[Any]
    fit: NDArray[np.int64]
    held: NDArray[np.int64]
    classes: tuple[str, ...]
    symbols: Alphabet
    layers: tuple[Layer, ...]
    frame: Frame
    recipe: Recipe
    objective: Objective
    seed: int
    device: str = "auto"
    precision: str = "auto"
    checkpoint: Path | None = None
    every: int = 0
    resume: bool = False

    def __post_init__(self) -> None:
        if self.frame not in FRAMES:
            raise UsageError(f"frame {self.frame!r}: choose one of {', '.join(FRAMES)}")
        if self.resume and self.checkpoint is None:
            raise UsageError("resume needs the checkpoint to continue from")
        self.device_and_dtype()

    @property
    def is_multi_label(self) -> bool:
        """Whether an article may have several labels."""
        return self.targets.ndim > 1

    def device_and_dtype(self) -> tuple[torch.device, torch.dtype]:
        """The device, and the dtype of products."""
        if self.device not in DEVICES:
            raise UsageError(f"device {self.device!r}: choose one of {', '.join(DEVICES)}")
        if self.precision not in PRECISIONS:
            raise UsageError(f"precision {self.precision!r}: choose one of {', '.join(PRECISIONS)}")
        cuda = torch.cuda.is_available()
        if self.device == "cuda" and not cuda:
            raise UsageError("PyTorch finds no CUDA device here: use --device cpu")
        on = torch.device("cuda" if cuda and self.device != "cpu" else "cpu")
        mixed = self.precision == "bf16" or (self.precision == "auto" and on.type == "cuda")
        return on, torch.bfloat16 if mixed else torch.float32

    def identity(self) -> dict[str, Any]:
        """Everything that must be the same for a checkpoint to be resumed."""
        on, compute = self.device_and_dtype()
        return {
            "data": hashlib.sha256(self.ids.tobytes() + self.targets.tobytes()).hexdigest(),
            "held-out rows": hashlib.sha256(self.held.tobytes()).hexdigest(),
            "classes": list(self.classes),
            "alphabet": self.symbols.symbols,
            "frame": self.frame,
            "recipe": self.recipe.to_dict(),
            "seed": self.seed,
            "device": on.type,
            "precision": str(compute),
        }


@dataclass(frozen=True)
class Outcome:
    """What a run leaves. weights: the averaged ones, float32, by the model file's names."""

    weights: dict[str, NDArray[np.float32]]
    history: tuple[Epoch, ...]


def run(job: Job, on_epoch: Callable[[Epoch], None]) -> Outcome:
    """Run a job in this process. Raises UsageError for a checkpoint to resume that is missing or of another job."""
    on, compute = job.device_and_dtype()
    recipe, identity = job.recipe, job.identity() if job.checkpoint else {}
    cuda = on.type == "cuda"
    with torch.random.fork_rng(devices=[on] if cuda else []), torch.backends.cudnn.flags(enabled=True, benchmark=cuda):
        torch.manual_seed(job.seed)
        network = CharCNN(job.layers, job.frame, compute, recipe.dropout, recipe.input_dropout).to(on)
        fit, held = (_rows(job, rows, on) for rows in (job.fit, job.held))
        loop = Run(network, fit, held, job.symbols, recipe, job.objective, job.seed)
        if job.resume and job.checkpoint:
            loop.go_on_from(Checkpoint.load(job.checkpoint, identity))
        loop.finish(on_epoch, Saving(job.checkpoint or Path(), job.every if job.checkpoint else 0, identity))
        weights = {name: p.cpu().numpy() for name, p in loop.average.named_parameters()}
    return Outcome(weights, loop.history)


def _rows(job: Job, rows: NDArray[np.int64], device: torch.device) -> Rows:
    return Rows(torch.from_numpy(job.ids[rows]).to(device), torch.from_numpy(job.targets[rows]).to(device))
