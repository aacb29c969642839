"""The network's layer table, and its two frames, which decide how it treats the positions after an article's text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError

Frame = Literal["text", "dense"]
"""How the network treats the positions after the end of a text.

"dense" is the published network. In "text", block 1's output is zero from position n on, after its ReLU and before its
pool, where n is the index after the article's last character, known or unknown (0 for an empty text). Nothing else
differs: both norms take their statistics over all rows. So from block 2 on, the rows that no character reaches are the
same in every article: each layer has one vector for them, which the model computes only once.
"""

FRAMES: tuple[Frame, ...] = get_args(Frame)

CHANNELS = 256
HIDDEN = 1024
NORM_EPSILON = 1e-5
LENGTHS = (64, 4096)
CLASSES = (2, 1000)
PUBLISHED_LENGTH = 1014

WHOLE = (1 << 31) - 1
"""The length of a model that reads whole texts and has no network."""

_USUAL_TEXT = 2048
"""The number of characters for which a batch has room for each text, in a model that reads whole texts."""

BIAS = "fc3.bias"
"""The name of the tensor of the classes' biases, the only one that a model without a network has."""

# name, kernel width, layer normalisation, pool width
_CONVOLUTIONS = (
    ("conv1", 7, "norm1", 3),
    ("conv2", 7, None, 3),
    ("conv3", 3, None, 1),
    ("conv4", 3, None, 1),
    ("conv5", 3, None, 1),
    ("conv6", 3, "norm6", 3),
)


@dataclass(frozen=True)
class Layer:
    """One block: a valid stride-1 convolution or a linear layer, followed by an optional norm, ReLU and max pool.

    Attributes
    ----------
    name : str
        The name, such as "conv1" or "fc1".
    kind : str
        "conv1d" or "linear"; "texts" for the only entry of a model without a network; "dense" for a product of an
        encoder, which `encoder_layer` of `kernels/tables.py` describes as a layer.
    inputs, outputs : int
        The number of channels that the block reads, and that it writes.
    kernel : int
        The number of taps of the convolution; 1 for a linear layer.
    norm : str or None
        The name of the layer norm; None for no norm.
    pool : int
        The number of rows of a window of the max pool; 1 for no pool.
    relu : bool
        Whether the block has a ReLU, which every block except the last has.
    rows_in, rows_out, rows_pooled : int
        The number of rows before the convolution, after it, and after the pool; 1 for a linear layer.
    is_lookup : bool
        Whether the input is ids, each the number of one of `inputs` symbols or of a zero column, so that the product is
        a sum of table rows.

    """

    name: str
    kind: str
    inputs: int
    outputs: int
    kernel: int
    norm: str | None
    pool: int
    relu: bool
    rows_in: int
    rows_out: int
    rows_pooled: int
    is_lookup: bool = False

    @property
    def product_pool(self) -> int:
        """The width of the pool that is part of the product kernel; 1 if a norm comes between them."""
        return 1 if self.norm else self.pool

    @property
    def product_relu(self) -> bool:
        """Whether the ReLU is part of the product kernel, which it is unless a norm comes between them."""
        return self.relu and not self.norm

    @property
    def ids(self) -> int:
        """The number of ids: the symbols, the unknown character and padding."""
        return self.inputs + 2

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of this layer's tensors by PyTorch's names, in the order of params.bin."""
        weight = (self.outputs, self.inputs, self.kernel) if self.kind == "conv1d" else (self.outputs, self.inputs)
        shapes: dict[str, tuple[int, ...]] = {f"{self.name}.weight": weight, f"{self.name}.bias": (self.outputs,)}
        if self.norm:
            shapes[f"{self.norm}.weight"] = shapes[f"{self.norm}.bias"] = (self.outputs, self.rows_out)
        return shapes

    @property
    def description(self) -> dict[str, Any]:
        """The description of the layer in a model file, for people and other programs."""
        names = ("name", "kind", "inputs", "outputs", "kernel", "norm", "pool", "relu")
        return {name: getattr(self, name) for name in names} | {"rows": self.rows_pooled}

    @property
    def flop(self) -> int:
        """Floating-point operations for one article as a dense product (a multiply and an add count as two)."""
        return 2 * self.rows_out * self.inputs * self.outputs * self.kernel


def layer_table(symbols: int, length: int, classes: int) -> tuple[Layer, ...]:
    """Return the nine blocks for an alphabet of `symbols` symbols, `length` characters and `classes` labels.

    A model that reads whole texts has no network. Its table has one entry, whose `rows_in` is the number of characters
    for which a batch has room for each text.

    Raises ModelError if a number is out of range, or if the length leaves no row after the last pool.
    """
    # Check the numbers.
    if length == WHOLE:
        return (Layer(BIAS.partition(".")[0], "texts", 0, classes, 1, None, 1, False, _USUAL_TEXT, 1, 1),)
    if not LENGTHS[0] <= length <= LENGTHS[1]:
        raise ModelError(f"length {length} is outside {LENGTHS[0]} to {LENGTHS[1]} characters")
    if not CLASSES[0] <= classes <= CLASSES[1]:
        raise ModelError(f"{classes} classes: a model has {CLASSES[0]} to {CLASSES[1]}")
    # Add the convolutions, then the linear layers.
    layers: list[Layer] = []
    rows, inputs = length, symbols
    for name, kernel, norm, pool in _CONVOLUTIONS:
        out = rows - kernel + 1
        pooled = max(out, 0) // pool
        shape = rows, out, pooled
        layers.append(Layer(name, "conv1d", inputs, CHANNELS, kernel, norm, pool, True, *shape, is_lookup=not layers))
        rows, inputs = pooled, CHANNELS
    if not rows:
        least = next(n for n in range(*LENGTHS) if _pooled_rows(n))
        raise ModelError(f"length {length} leaves no row after block 6: the network needs at least {least} characters")
    for name, inputs, outputs, relu in (
        ("fc1", CHANNELS * rows, HIDDEN, True),
        ("fc2", HIDDEN, HIDDEN, True),
        ("fc3", HIDDEN, classes, False),
    ):
        layers.append(Layer(name, "linear", inputs, outputs, 1, None, 1, relu, 1, 1, 1))
    return tuple(layers)


def _pooled_rows(rows: int) -> int:
    """Return how many rows the convolutions and pools leave of this number of characters."""
    for _, kernel, _, pool in _CONVOLUTIONS:
        rows = max(rows - kernel + 1, 0) // pool
    return rows


def parameter_count(symbols: int, classes: int, length: int = PUBLISHED_LENGTH) -> int:
    """Return the number of weights of a network."""
    layers = layer_table(symbols, length, classes)
    return sum(int(np.prod(shape)) for layer in layers for shape in layer.shapes.values())


def refuse_missing(names: Iterable[str], tensors: Mapping[str, NDArray[Any]], model: str) -> None:
    """Raise ModelError if one of the named tensors is missing."""
    for name in names:
        if name not in tensors:
            raise ModelError(f"{model}: tensor {name} is missing")


def check_tensor(what: str, tensor: NDArray[Any], dtype: str, shape: tuple[int | None, ...]) -> None:
    """Raise ModelError unless a tensor has this dtype and shape. what: the tensor's name in the message.

    None in the shape is any length.
    """
    same = tensor.ndim == len(shape) and all(b in (None, a) for a, b in zip(tensor.shape, shape, strict=True))
    if tensor.dtype != dtype or not same:
        actual = f"{tensor.dtype} {list(tensor.shape)}"
        raise ModelError(f"{what} is {actual}, expected {dtype} {list(shape)}")


def check_tensors(tensors: Mapping[str, NDArray[Any]], expected: Mapping[str, tuple[int, ...]], model: str) -> None:
    """Raise ModelError unless the tensors have the expected names and shapes, are fp32 or fp16, and are finite."""
    refuse_missing(expected, tensors, model)
    for tensor, shape in expected.items():
        array = tensors[tensor]
        if array.shape != shape:
            raise ModelError(f"{model}: tensor {tensor} is {list(array.shape)}, expected {list(shape)}")
        if array.dtype not in (np.float32, np.float16):
            raise ModelError(f"{model}: tensor {tensor} is {array.dtype}, expected float32 or float16")
        if not np.isfinite(array).all():
            raise ModelError(f"{model}: tensor {tensor} holds a value that is not finite")
    extra = sorted(set(tensors) - set(expected))
    if extra:
        raise ModelError(f"{model}: tensor {extra[0]:.100} does not belong to this network")
