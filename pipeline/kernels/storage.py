"""The types in which the GPU stores weights and activations, for each kernel generation and precision."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..model.layers import Layer


class Element(NamedTuple):
    """A type of stored numbers.

    Attributes
    ----------
    name : str
        The name of the type in C++.
    dtype : type
        A NumPy type with as many bytes, in which arrays of the type are allocated.

    """

    name: str
    dtype: type[np.generic]

    @property
    def bytes(self) -> int:
        return np.dtype(self.dtype).itemsize


FLOAT = Element("float", np.float32)
HALF = Element("Half", np.float16)
BFLOAT = Element("BFloat", np.uint16)
INT8 = Element("Int8", np.uint8)
"""8-bit integers: activations are unsigned, weights are signed."""

TURING_INT8 = Element("TuringInt8", np.uint8)
"""8-bit integers like INT8, which the instructions of compute capability 7.5 multiply."""

SPLIT = Element("Split", np.uint32)
"""Numbers in fp32, stored as two fp16 parts (kernels/split.py)."""


class Storage(NamedTuple):
    """The types of the values that one precision stores.

    Attributes
    ----------
    rows : Element
        The type of the outputs of blocks 1 to 5, and of the weights of the convolutions.
    norms : Element
        The type of the output of block 6's product, and of γ and β of every norm.
    features : Element
        The type of the inputs of the linear layers, and of their weights except the last layer's.

    """

    rows: Element
    norms: Element
    features: Element

    def read_by(self, layer: Layer) -> Element:
        """Return the type of the input and the weights of a product."""
        return self.rows if layer.kind == "conv1d" else self.features

    def written_by(self, layer: Layer) -> Element:
        """Return the type of the output of a product or of block 1."""
        if layer.kind == "linear":
            return self.features
        return self.norms if layer.norm and not layer.is_lookup else self.rows

    @property
    def is_int8(self) -> bool:
        return self.rows in (INT8, TURING_INT8)

    @property
    def is_exact(self) -> bool:
        """Whether this is the storage of fp32."""
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
"""The types by kernel generation and precision. The first precision of a generation is its default."""
