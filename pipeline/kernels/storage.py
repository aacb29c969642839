"""In which types the GPU stores weights and activations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Storage(NamedTuple):
    """rows: the type of what blocks 1 to 5 write, and of the weights that read it. rest: of all else, that is of norms,
    of what block 6's product writes, and of the linear layers. Both by name: fp32, fp16, bf16 or int8.
    """

    rows: str
    rest: str


BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}

DTYPES: dict[str, type[np.generic]] = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16, "int8": np.uint8}
"""Of bf16, which NumPy does not have, the bits. Activations in int8 are unsigned."""


def storage(generation: str, precision: str) -> Storage:
    """The types of a kernel generation in a precision."""
    if precision == "int8":
        return Storage("int8", "fp32" if generation == "sm75" else "fp16")
    return Storage(precision, precision)
