"""The kernels of training, which computes block 1 by them. Needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..model.charcnn import Layer
from .catalog import Kernel

FIRST_CAPABILITY = (8, 0)
"""Of GPUs that compute in bf16."""

NUMBERS = ("float", "BFloat")
"""What the other blocks compute in."""

_FILE = "training/first_block.cu"


@dataclass(frozen=True)
class FirstBlock:
    """In the order of a step: two for the forward pass, two for the backward pass."""

    sum_rows: Kernel
    normalise_and_pool: Kernel
    parameter_gradients: Kernel
    sum_gradients: Kernel


@cache
def first_block(layer: Layer, rows: int, number: str) -> FirstBlock:
    """For groups of so many rows. number: one of NUMBERS."""

    def kernel(name: str, *arguments: object) -> Kernel:
        return Kernel(f"{layer.name} {name}", _FILE, f"{name}<{', '.join(map(str, arguments))}>", layer.outputs)

    pooled = number, rows, layer.pool, layer.outputs
    return FirstBlock(
        kernel("sum_rows", layer.kernel, rows, layer.outputs),
        kernel("normalise_and_pool", *pooled),
        kernel("parameter_gradients", *pooled),
        kernel("sum_gradients", *pooled),
    )
