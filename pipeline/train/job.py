"""The second stage of `train`: a run, described by values that can be sent to another process, and how one runs it."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import UsageError
from ..model.alphabet import Alphabet
from ..model.layers import BIAS, FRAMES, Frame, Layer, layer_table
from .checkpoint import Checkpoint
from .group import ProcessGroup
from .loop import DeviceExamples, Saving, TrainingRun
from .objective import Objective
from .packed import PackedCNN
from .progress import Epoch, Tell
from .recipe import Recipe

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class Examples:
    """Articles to train on. ids: uint8 [N, length]. targets: [N] or [N, …], as the objective takes them. fit, held: row
    numbers of those that are trained on and those that are held out, int64.
    """

    ids: NDArray[np.uint8]
    targets: NDArray[Any]
    fit: NDArray[np.int64]
    held: NDArray[np.int64]

    def on(self, device: torch.device) -> tuple[DeviceExamples, DeviceExamples]:
        """Those to train on and those held out, on a device."""
        fit, held = (
            DeviceExamples(torch.from_numpy(self.ids[rows]).to(device), torch.from_numpy(self.targets[rows]).to(device))
            for rows in (self.fit, self.held)
        )
        return fit, held


@dataclass(frozen=True)
class TrainingJob:
    """How a run goes: `recipe` from `seed`. It is small, and can be sent to another process.

    classes: their names. start: tensors of another model to begin with, by name; none for random ones. checkpoint: its
    file, or None; every: epochs between two writes, 0 for none. resume: continue from it.

    Raises UsageError for a device, precision or frame that there is not.
    """

    classes: tuple[str, ...]
    symbols: Alphabet
    length: int
    frame: Frame
    recipe: Recipe
    objective: Objective
    seed: int
    device: str = "auto"
    precision: str = "auto"
    start: dict[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    checkpoint: Path | None = None
    every: int = 0
    resume: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("frame", self.frame, FRAMES),
            ("device", self.device, DEVICES),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in known:
                raise UsageError(f"{name} {value!r}: choose one of {', '.join(known)}")
        if self.resume and self.checkpoint is None:
            raise UsageError("resume needs the checkpoint to continue from")

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layer table."""
        return layer_table(len(self.symbols), self.length, len(self.classes))

    def identity(self, examples: Examples, compute: torch.dtype) -> dict[str, Any]:
        """Everything that must be the same for a checkpoint to be resumed."""
        return {
            "data": hashlib.sha256(examples.ids.tobytes() + examples.targets.tobytes()).hexdigest(),
            "held-out rows": hashlib.sha256(examples.held.tobytes()).hexdigest(),
            "classes": list(self.classes),
            "alphabet": self.symbols.symbols,
            "frame": self.frame,
            "recipe": self.recipe.to_dict(),
            "start": [hashlib.sha256(tensor.tobytes()).hexdigest() for _, tensor in sorted(self.start.items())],
            "balanced": bool(getattr(self.objective, "weights", ())),
            "seed": self.seed,
            "precision": str(compute),
        }


def device_of(job: TrainingJob) -> torch.device:
    """The device on which a job runs in this process. Raises UsageError where there is no GPU and it wants one."""
    cuda = torch.cuda.is_available()
    if job.device == "cuda" and not cuda:
        raise UsageError("PyTorch finds no CUDA device here: use --device cpu")
    return torch.device("cuda" if cuda and job.device != "cpu" else "cpu")


@dataclass(frozen=True)
class Outcome:
    """What a run leaves. weights: the averaged ones, float32, by the model file's names. on: what it ran on."""

    weights: dict[str, NDArray[np.float32]]
    history: tuple[Epoch, ...]
    on: str

    @property
    def is_trained(self) -> bool:
        """Whether there was a run."""
        return bool(self.history)


def without_network(job: TrainingJob) -> Outcome:
    """An outcome without a network, which gives every class 0."""
    return Outcome({BIAS: np.zeros(job.layers[-1].outputs, np.float32)}, (), "CPU")


def run(
    job: TrainingJob,
    examples: Examples,
    tell: Tell,
    stop: Callable[[], bool] = lambda: False,
    group: ProcessGroup | None = None,
) -> Outcome:
    """Run a job in this process, which may be one of a group.

    stop: becomes true when the run is to stop.

    Raises UsageError for a device that is not there, a checkpoint that is missing, of another job, or would be
    overwritten, and a folder that this host does not see; Stopped; BroadsheetError where the loss diverges.
    """
    device, group, recipe = device_of(job), group or ProcessGroup(), job.recipe
    cuda = device.type == "cuda"
    mixed = job.precision == "bf16" or (job.precision == "auto" and cuda)
    compute = torch.bfloat16 if mixed else torch.float32
    if group.size > len(examples.fit) or group.size > recipe.batch_size:
        raise UsageError(f"{group.size} processes cannot share batches of {recipe.batch_size} articles")
    saving = None
    if job.checkpoint and group.rank == 0:
        saving = Saving(job.checkpoint, job.every, job.identity(examples, compute))
        _check_place(job.checkpoint, job.resume)
    with (
        torch.random.fork_rng(devices=[device] if cuda else []),
        torch.backends.cudnn.flags(enabled=True, benchmark=cuda),
    ):
        torch.manual_seed(job.seed)
        network = PackedCNN(job.layers, job.frame, compute, recipe.dropout, recipe.input_dropout).to(device)
        for name, parameter in network.named_parameters():
            if name in job.start:
                parameter.data.copy_(torch.from_numpy(job.start[name].astype(np.float32)))
        begun = bool(job.start)
        loop = TrainingRun(network, *examples.on(device), job.symbols, recipe, job.objective, job.seed, group, begun)
        if job.resume:
            loop.go_on_from(Checkpoint.load(saving.path, saving.job) if saving else None)
        on = f"{f'{group.size} × ' if group.size > 1 else ''}{_name(device)}, {'bf16' if mixed else 'fp32'}"
        loop.finish(tell, saving, stop, on)
        weights = {name: p.cpu().numpy() for name, p in loop.average.named_parameters()}
    return Outcome(weights, loop.history, on)


def _check_place(path: Path, resume: bool) -> None:
    if not path.parent.is_dir():
        raise UsageError(
            f"{socket.gethostname()} sees no folder {path.parent} for the checkpoint: choose one that all hosts share, "
            "or write none"
        )
    if path.exists() and not resume:
        raise UsageError(f"{path} is of a run that did not end: go on with --resume, or remove it")


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
