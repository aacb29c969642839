"""The scales of a model's 8-bit activations: what a model file holds for computing in int8."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from ..errors import ModelError


class ActivationScales(Struct, frozen=True):
    """Found by calibration, on texts like those that the model will read.

    Attributes
    ----------
    steps : dict of str to float
        By the name of a convolution: what one step of its input stands for, which is a number from 0 to 255.
    calibration : str
        sha256 of the texts on which the steps were found, and of how.

    """

    steps: dict[str, float]
    calibration: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

    def check(self, layers: Iterable[str], model: str) -> None:
        """Raise ModelError unless there is a usable step for each of these layers, and for no other."""
        if set(self.steps) != set(layers):
            raise ModelError(f"{model}: its activation scales are not those of {', '.join(layers)}")
        for layer, step in self.steps.items():
            if not (math.isfinite(step) and _LEAST <= step <= _MOST):
                raise ModelError(
                    f"{model}: the activation scale of {layer} is {step:g}, outside {_LEAST:g} to {_MOST:g}"
                )


_LEAST, _MOST = 1e-20, 1e20
"""Beyond them, a product of scales might leave the range of fp32."""
