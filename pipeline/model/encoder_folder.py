"""Which way the encoder of a folder runs: in our own kernels, or in PyTorch, where these do not know its family."""

from __future__ import annotations

from pathlib import Path

from . import encoder_file, torch_folder
from .encoder_keys import NotInKernels

CARD = "computed by"
"""The key of a model's card that says why PyTorch computes it."""


def read(folder: Path, name: str) -> tuple[encoder_file.Read, dict[str, str]]:
    """Read a folder, and what the card of its model says of the way in which it runs.

    Raises ModelError for a folder that neither computes, UsageError where a package is missing.

    Parameters
    ----------
    folder : Path
        The folder.
    name : str
        What it is called in messages.

    """
    torch_folder.refuse(folder, name)
    try:
        return encoder_file.read(folder, name), {}
    except NotInKernels as error:
        reason = error.reason
    return torch_folder.read(folder, name, reason), {CARD: f"PyTorch, since {reason}"}
