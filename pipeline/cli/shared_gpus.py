"""Decides whether the command starts two workers on each GPU, which helps a long job of a fast model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from glob import iglob
from typing import Any

from ..storage.names import is_url

_LONG_BYTES = 32 << 30
"""Bytes of input from which a second worker on each GPU saves more time than the few seconds that it takes to start."""


def is_long(inputs: Sequence[str]) -> bool:
    """Return whether the input may be so large that a second worker on each GPU saves time.

    Parameters
    ----------
    inputs : sequence of str
        Files, folders, globs or URLs. Input with a URL counts as large, since listing it would take as long as
        starting a worker.

    """
    if any(is_url(name) for name in inputs):
        return True
    held = 0
    for size in _sizes(inputs):
        held += size
        if held >= _LONG_BYTES:
            return True
    return False


def _sizes(inputs: Sequence[str]) -> Iterator[int]:
    """Yield the sizes of local files in bytes. Missing files are ignored, because the job itself reports them."""
    for name in inputs:
        for path in [name] if os.path.exists(name) else iglob(name, recursive=True):
            files = [path]
            if os.path.isdir(path):
                files = [os.path.join(folder, file) for folder, _, names in os.walk(path) for file in names]
            for file in files:
                if os.path.isfile(file):
                    yield os.path.getsize(file)


def workers_for_gpus(models: Sequence[str], options: dict[str, Any], gpus: int) -> int | None:
    """Return a number of workers that gives each GPU two, if the models are fast and the GPUs can be shared.

    None stands for the default, one worker for each GPU.

    Parameters
    ----------
    models : sequence of str
        The names of the models.
    options : dict of str to object
        The options of the job, by their names in Python.
    gpus : int
        The GPUs of this machine that the job uses.

    """
    from ...cluster.gpus import can_be_shared
    from ...cluster.settings import WORKERS_ON_A_GPU
    from ..model.several import load_models
    from ..options import Options
    from ..source.rows.limits import is_quick

    settings = Options(**options)
    loaded = load_models(models, settings.network, settings.preparation)
    is_fast = is_quick(settings.cost_of_row(loaded))
    return WORKERS_ON_A_GPU * gpus if is_fast and can_be_shared(gpus) else None
