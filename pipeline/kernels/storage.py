"""The types in which the GPU stores weights and activations, of each kernel generation in each precision."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..model.layers import Layer


class Element(NamedTuple):
    """A type of stored numbers. name: in C++. dtype: NumPy's of as many bytes, which arrays of it are allocated in."""

    name: str
    dtype: type[np.generic]

    @property
    def bytes(self) -> int:
        return np.dtype(self.dtype).itemsize


FLOAT = Element("float", np.float32)
HALF = Element("Half", np.float16)
BFLOAT = Element("BFloat", np.uint16)
INT8 = Element("Int8", np.uint8)
"""Activations are unsigned, weights signed."""

TURING_INT8 = Element("TuringInt8", np.uint8)
"""As INT8, but multiplied by the instructions of compute capability 7.5."""

SPLIT = Element("Split", np.uint32)
"""Numbers of fp32 as two fp16 parts (kernels/split.py)."""


class Storage(NamedTuple):
    """Where each type is used.

    Attributes
    ----------
    rows : Element
        What blocks 1 to 5 write, and the convolutions' weights.
    norms : Element
        What block 6's product writes, and γ and β of every norm.
    features : Element
        What the linear layers read, and their weights but the last's.

    """

    rows: Element
    norms: Element
    features: Element

    def read_by(self, layer: Layer) -> Element:
        """The type of a product's input and weights."""
        return self.rows if layer.kind == "conv1d" else self.features

    def written_by(self, layer: Layer) -> Element:
        """The type of a product's output, or of block 1's."""
        if layer.kind == "linear":
            return self.features
        return self.norms if layer.norm and not layer.is_lookup else self.rows

    @property
    def is_int8(self) -> bool:
        return self.rows in (INT8, TURING_INT8)

    @property
    def is_exact(self) -> bool:
        """Whether it is fp32."""
        return self.rows in (FLOAT, SPLIT)

    @property
    def is_split(self) -> bool:
        return self.rows is SPLIT


_TENSOR_CORES = {
    "fp16": Storage(HALF, HALF, HALF),
    "bf16": Storage(BFLOAT, BFLOAT, BFLOAT),
    "fp32": Storage(SPLIT, FLOAT, SPLIT),
    "int8": Storage(INT8, HALF, HALF),
}

STORAGE = {
    "simt": {"fp32": Storage(FLOAT, FLOAT, FLOAT)},
    "sm75": {"int8": Storage(TURING_INT8, FLOAT, FLOAT)},
    "sm80": _TENSOR_CORES,
    "sm90": _TENSOR_CORES,
}
"""The types by kernel generation, and then by precision, of which the first is the default."""
