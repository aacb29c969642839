"""The state of a training run on disk, to resume it: one safetensors file, no pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
from msgspec import Struct
from torch import Tensor

from ..errors import UsageError
from ..storage.disk import write_file
from .progress import Epoch

FORMAT = "broadsheet-checkpoint/2"


class _About(Struct):
    """The metadata of the file."""

    format: str
    job: dict[str, Any]
    steps: int
    history: tuple[Epoch, ...]
    losses: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two steps.

    Attributes
    ----------
    job : dict
        The data, recipe and settings. A run with another job cannot resume from this checkpoint.
    steps : int
        The number of steps of the optimiser.
    history : tuple of Epoch
        The epochs that have ended.
    losses : float
        The sum of the losses over the steps of an unfinished epoch.
    tensors : dict
        The tensors by part ("weights", "average", and "first" and "second", the moments of the gradient) and name.

    """

    job: dict[str, Any]
    steps: int
    history: tuple[Epoch, ...]
    losses: float
    tensors: dict[str, dict[str, Tensor]]

    def save(self, path: Path) -> None:
        """Write the file. An interrupted write leaves the old one. Raises OutputError."""
        flat = {f"{part}/{name}": t.contiguous() for part, named in self.tensors.items() for name, t in named.items()}
        about = {"format": FORMAT, "job": self.job, "steps": self.steps, "history": self.history}
        about["losses"] = self.losses
        write_file(path, safetensors.torch.save(flat, {"about": json.dumps(about)}))

    @classmethod
    def load(cls, path: Path, job: dict[str, Any]) -> Checkpoint:
        """Read a checkpoint of `job`. Raises UsageError if there is none, or if it belongs to another job."""
        try:
            with safetensors.safe_open(path, "pt") as file:
                about = msgspec.convert(json.loads((file.metadata() or {}).get("about", "{}")), _About)
                tensors: dict[str, dict[str, Tensor]] = {}
                for key in file.keys():  # noqa: SIM118
                    part, _, name = key.partition("/")
                    tensors.setdefault(part, {})[name] = file.get_tensor(key)
        except FileNotFoundError:
            raise UsageError(f"nothing to resume: there is no {path}: leave out --resume") from None
        except (OSError, ValueError, RecursionError, safetensors.SafetensorError) as error:
            raise UsageError(f"{path} is not a checkpoint ({error})") from error
        if about.format != FORMAT:
            raise UsageError(
                f"{path} is of another version of Broadsheet ({about.format}, this one writes {FORMAT}): finish the "
                "run with that version, or remove it and begin anew"
            )
        different = sorted(name for name in job if job[name] != about.job.get(name))
        if different:
            remedy = "go on with the same rows and options, or remove it"
            raise UsageError(f"{path} is of another run: it differs in {', '.join(different)}: {remedy}")
        return cls(about.job, about.steps, about.history, about.losses, tensors)
