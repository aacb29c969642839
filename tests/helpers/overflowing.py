"""Models with weights that make them overflow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from broadsheet.pipeline.model.charcnn import Model


def grown(model: Model, tensor: str, largest: float, signs: str) -> Model:
    """Return the model with one tensor scaled so that its largest weight is `largest`.

    With the signs "positive" or "negative", all weights of the tensor are `largest` with that sign.
    """
    values = model.tensors[tensor]
    values = values / np.abs(values).max() * np.float32(largest)
    if signs in ("positive", "negative"):
        values = np.full_like(values, {"positive": largest, "negative": -largest}[signs])
    return replace(model, tensors={**model.tensors, tensor: values})


def enlarged(model: Model, exponent: int) -> Model:
    """Return a model that computes the same function except where it overflows.

    The output of block 2 is larger by a power of two, which changes no bit of the mantissas.
    """
    tensors = dict(model.tensors)
    before = 0
    exponents = (exponent // 2, exponent, exponent - exponent // 3, exponent // 3, 0)
    for block, after in enumerate(exponents, 1):
        kind = "norm1" if block == 1 else f"conv{block}"  # the norm removes any factor that conv1 is multiplied by
        tensors[f"{kind}.weight"] = tensors[f"{kind}.weight"] * np.float32(2.0 ** (after - before))
        tensors[f"{kind}.bias"] = tensors[f"{kind}.bias"] * np.float32(2.0**after)
        before = after
    return replace(model, tensors=tensors)
