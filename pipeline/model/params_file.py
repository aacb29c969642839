"""Reads a params.bin, the parameter file of the parent program: tensors without names, shapes or classes.

The parent program is the course project with MPI and CUDA from which Broadsheet descends (README.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from . import model_file
from .alphabet import PUBLISHED
from .charcnn import Model
from .layers import CLASSES, HIDDEN, PUBLISHED_LENGTH, Frame, layer_table, parameter_count


def from_params(
    data: bytes,
    classes: Sequence[str] | None = None,
    alphabet: str = PUBLISHED,
    name: str = "params.bin",
    card: Mapping[str, Any] | None = None,
    frame: Frame = "dense",
) -> Model:
    """Make a model from the parent program's parameter file: tensors as flat little-endian fp32, in layer table order.

    The number of classes follows from the size of the file. Raises ModelError if no number of classes has this size.

    Parameters
    ----------
    data : bytes
        The content of the file.
    classes : sequence of str, optional
        The names of the classes; by default "0", "1" and so on.
    alphabet : str
        The symbols that the model reads.
    name : str
        The name of the model, also in messages.
    card : mapping, optional
        The content of the model's card, to which the origin is added.
    frame : Frame
        How the model treats positions after the end of a text, as in `Model.frame`.

    """
    # Find the number of classes from the size.
    symbols = model_file.alphabet_of(alphabet, name)
    least = parameter_count(len(alphabet), CLASSES[0])
    of_class = HIDDEN + 1
    values, rest = divmod(len(data), 4)
    count, left = divmod(values - least, of_class)
    count += CLASSES[0]
    if rest or left or not CLASSES[0] <= count <= CLASSES[1]:
        four = 4 * parameter_count(len(alphabet), 4)
        raise ModelError(f"{name}: {len(data):,} bytes is not a parameter file (with 4 classes it has {four:,})")
    names = tuple(classes) if classes else tuple(str(i) for i in range(count))
    if len(names) != count:
        raise ModelError(f"{name} has {count} classes, {len(names)} names were given")
    # Cut the file into tensors.
    flat = np.frombuffer(data, "<f4")
    tensors: dict[str, NDArray[Any]] = {}
    at = 0
    for layer in layer_table(len(alphabet), PUBLISHED_LENGTH, count):
        for tensor, shape in layer.shapes.items():
            size = int(np.prod(shape))
            tensors[tensor] = flat[at : at + size].reshape(shape)
            at += size
    about = {**(card or {}), "origin": "converted from params.bin"}
    return Model(symbols, names, PUBLISHED_LENGTH, tensors, about, name, frame)
