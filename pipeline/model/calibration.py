"""Calibration for int8: which values the activations of a model take on texts, so that 8 bits hold them."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from ..errors import UsageError
from ..processes.threads import available_cores
from . import reference
from .charcnn import Model
from .quantised import LARGEST
from .scales import ActivationScales

CALIBRATION_ROWS = 2048
"""Articles on which a model is calibrated, unless there are fewer."""

_METHOD = b"largest"
_GROUP = 32


def calibrated(model: Model, ids: NDArray[np.uint8]) -> Model:
    """The model with activation scales: the greatest value of each tensor on these articles becomes the greatest byte.

    ids: uint8 [N, length]. Raises UsageError where there is no article, or the model overflows on one.
    """
    if not len(ids):
        raise UsageError("there is no text to calibrate on")
    blocks = reference.blocks(reference.prepare(model))
    inputs = [(name, after) for (name, _), (after, _) in pairwise(blocks) if after.startswith("conv")]

    def largest(group: NDArray[np.uint8]) -> list[float]:
        x: Any = group
        found = []
        for _, block in blocks[: len(inputs)]:
            x = block(x)
            found.append(float(x.values.max()))  # NaN where one of them is
        return found

    groups = [ids[first : first + _GROUP] for first in range(0, len(ids), _GROUP)]
    with ThreadpoolController().limit(limits=1, user_api="blas"), ThreadPoolExecutor(available_cores()) as pool:
        found = np.array(list(pool.map(largest, groups))).max(axis=0)
    if not np.isfinite(found).all():
        raise UsageError(f"{model.name}: the model overflows on a text of the sample: it cannot compute in int8")
    # A tensor that is always zero may have any step.
    steps = {after: float(most) / LARGEST or 1.0 for (_, after), most in zip(inputs, found, strict=True)}
    digest = hashlib.sha256(_METHOD + np.ascontiguousarray(ids).tobytes()).hexdigest()
    return replace(model, scales=ActivationScales(steps, digest))
