"""The second stage of `train`: a run, described by values that can be sent to another process, and its outcome."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..model.alphabet import Alphabet
from ..model.layers import BIAS, Frame, Layer, layer_table
from .objective import Objective
from .progress import Epoch
from .recipe import Recipe

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Examples:
    """The articles to train on.

    Attributes
    ----------
    ids : uint8 [N, length]
        The encoded articles.
    targets : [N] or [N, …]
        The targets, in the format of the objective.
    fit : int64 [M]
        The numbers of the rows to train on.
    held : int64 [K]
        The numbers of the held-out rows.

    """

    ids: NDArray[np.uint8]
    targets: NDArray[Any]
    fit: NDArray[np.int64]
    held: NDArray[np.int64]


@dataclass(frozen=True)
class TrainingJob:
    """The settings of a run. A job is small, and can be sent to another process.

    The fields are of four groups: the network (`classes` to `frame`, and `start`); how it is trained (`recipe`,
    `objective`, `seed`); where (`device`, `precision`); and its checkpoints (`checkpoint`, `every`, `resume`).

    Attributes
    ----------
    classes : tuple of str
        The names of the classes.
    symbols, length, frame : Alphabet, int, str
        The part of a text that the network reads.
    recipe, objective : Recipe, Objective
        The settings, and the loss to minimise.
    seed : int
        The seed of every random choice.
    device, precision : str
        The device and the precision of the products.
    start : dict of str to ndarray
        Tensors of another model to start from, by name; empty to start from random ones.
    checkpoint : Path, optional
        The file of the checkpoint.
    every : int
        The number of epochs between two checkpoints; 0 to write one only when the run is stopped.
    resume : bool
        Whether to continue from the checkpoint.

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

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layer table."""
        return layer_table(len(self.symbols), self.length, len(self.classes))

    def identity(self, examples: Examples, compute: torch.dtype) -> dict[str, Any]:
        """Return everything that must be the same for a checkpoint to be resumed."""
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


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes
    ----------
    weights : dict of str to ndarray
        The averaged weights, float32, by the model file's names.
    history : tuple of Epoch
        The figures of each epoch; empty if there was no run.
    on : str
        The hardware on which it ran.

    """

    weights: dict[str, NDArray[np.float32]]
    history: tuple[Epoch, ...]
    on: str

    @property
    def is_trained(self) -> bool:
        """Whether there was a run."""
        return bool(self.history)


def without_network(job: TrainingJob) -> Outcome:
    """Return an outcome without a network, which gives every class 0."""
    return Outcome({BIAS: np.zeros(job.layers[-1].outputs, np.float32)}, (), "CPU")
