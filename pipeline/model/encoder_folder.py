"""The choice of what computes the encoder of a folder: our own kernels, or PyTorch if the kernels cannot."""

from __future__ import annotations

from pathlib import Path

from . import encoder_file, torch_folder
from .encoder_keys import NotInKernels

CARD = "computed by"
"""The key of a model's card under which the card says why PyTorch computes the model."""


def read(folder: Path, name: str) -> tuple[encoder_file.Read, dict[str, str]]:
    """Read a folder. Returns its content, and values for the card of its model.

    Raises ModelError for a folder that neither our kernels nor PyTorch can compute, and UsageError if a package is
    missing.

    Parameters
    ----------
    folder : Path
        The folder.
    name : str
        The name of the folder in messages.

    """
    torch_folder.refuse(folder, name)
    try:
        return encoder_file.read(folder, name), {}
    except NotInKernels as error:
        reason = error.reason
    return torch_folder.read(folder, name, reason), {CARD: f"PyTorch, since {reason}"}
