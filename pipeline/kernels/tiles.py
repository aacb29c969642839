"""Tiles, which say how thread blocks divide the work of a layer.

There is a tile type for each kernel, and a table of tiles by generation, architecture and layer. `benchmarks/tune.py`
finds better tiles. A type has what the host must know about its kernel:

- `folder` and `operation`: where its source is
- `elements`: which types of stored numbers are template arguments
- `writes_bytes`: whether it may write bytes, of which it then counts the saturated ones
- `rows` and `outputs`: the size of a tile
- `launch`: the threads and the shared memory of a block

The values reach the kernel as template arguments, and static assertions in the kernel check that both sides agree. A
tile changes speed and shared memory, but never the order of a sum over inputs, and so never a bit of a score.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple

from ..model.layers import Layer
from .storage import Element

SLAB_BYTES = 128
"""The bytes of a row in a stage of tensor-core products. This is the widest swizzle of shared memory."""

SHARED_LIMIT = {
    "sm_75": 64 << 10,
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_87": 163 << 10,
    "sm_89": 99 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "sm_103": 227 << 10,
    "sm_120": 99 << 10,
    "sm_121": 99 << 10,
}
"""The bytes of shared memory that a block can use (CUDA C++ Programming Guide, table of compute capabilities)."""


def shared_limit(architecture: str) -> int:
    """Return the entry of SHARED_LIMIT, or for an unknown architecture the smallest entry since sm_80."""
    return SHARED_LIMIT.get(architecture.removesuffix("a"), 99 << 10)


class Launch(NamedTuple):
    """The threads and the dynamic shared memory of a block.

    `str` returns the template argument with which kernels assert both.
    """

    threads: int
    shared_bytes: int = 0

    def __str__(self) -> str:
        return f"Launch<{self.threads}, {self.shared_bytes}>"


@dataclass(frozen=True)
class SimtLookupTile:
    """The tile of block 1 in `simt/`.

    Attributes
    ----------
    positions : int
        The number of pooled rows of a thread block.
    articles : int
        The number of articles that a thread block loops over.
    folder, operation : str
        The folder and the name of the source file.
    writes_bytes : bool
        Whether the kernel may write bytes.

    """

    positions: int
    articles: int
    folder: ClassVar[str] = "simt"
    operation: ClassVar[str] = "lookup_norm_pool"
    writes_bytes: ClassVar[bool] = True

    def elements(self, computed: Element, written: Element) -> tuple[Element, ...]:
        return (written,)

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return self.positions, self.articles

    def launch(self, layer: Layer) -> Launch:
        return Launch(layer.outputs // 4 * self.positions)


@dataclass(frozen=True)
class SlicedLookupTile:
    """The tile of block 1 in `sm80/`.

    Attributes
    ----------
    channels : int
        The number of channels in a slice of the table.
    positions : int
        The number of pooled rows in a slab.
    articles : int
        The number of articles in a task.
    folder, operation : str
        The folder and the name of the source file.
    writes_bytes : bool
        Whether the kernel may write bytes.

    """

    channels: int
    positions: int
    articles: int
    folder: ClassVar[str] = "sm80"
    operation: ClassVar[str] = "lookup_norm_pool"
    writes_bytes: ClassVar[bool] = True

    def elements(self, computed: Element, written: Element) -> tuple[Element, ...]:
        return computed, written

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return layer.ids, self.channels, self.positions, self.articles

    def launch(self, layer: Layer) -> Launch:
        """Return the launch: a thread for eight channels of a position.

        Shared memory holds the slice of the table and of the bias, and for 32 articles the normalised bias in 16 bits
        and two buffers of the input.
        """
        table = layer.kernel * layer.ids * self.channels * 2 + 4 * self.channels
        return Launch(self.channels // 8 * self.positions, table + 32 * 2 * self.channels + self._group_bytes(layer))

    def _group_bytes(self, layer: Layer) -> int:
        """Return the bytes of two groups of 32 articles: statistics, ends of texts, words of ids and 33 first units."""
        words = (self.positions * layer.pool + layer.kernel + layer.pool + 2) // 4
        return 2 * (32 * (8 + 4 + 4 * words) + 33 * 4)


@dataclass(frozen=True)
class SplitLookupTile(SlicedLookupTile):
    """The tile of block 1 in `sm80/` in fp32, with its output in two fp16 parts."""

    operation: ClassVar[str] = "split_lookup_norm_pool"
    writes_bytes: ClassVar[bool] = False

    def elements(self, computed: Element, written: Element) -> tuple[Element, ...]:
        return ()

    def launch(self, layer: Layer) -> Launch:
        """Return the launch: a thread for four channels of a position."""
        table = layer.kernel * layer.ids * self.channels * 4
        return Launch(self.channels // 4 * self.positions, table + self._group_bytes(layer))


@dataclass(frozen=True)
class SimtTile:
    """The tile of a product in `simt/`.

    Attributes
    ----------
    rows, outputs : int
        The numbers of rows and of outputs in a tile.
    folder, operation : str
        The folder and the name of the source file.
    writes_bytes : bool
        Whether the kernel may write bytes.

    """

    rows: ClassVar[int] = 144
    outputs: ClassVar[int] = 128
    folder: ClassVar[str] = "simt"
    operation: ClassVar[str] = "conv1d"
    writes_bytes: ClassVar[bool] = False

    def elements(self, read: Element, written: Element) -> tuple[Element, ...]:
        return ()

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return self.rows, self.outputs

    def launch(self, layer: Layer) -> Launch:
        """Return the launch. Shared memory has two buffers of 16 input channels, for the rows and for the weights.

        A channel of the rows has four more banks than it needs.
        """
        return Launch(256, 2 * 16 * (self.rows + 4 + self.outputs) * 4)


@dataclass(frozen=True)
class Sm80Tile:
    """The tile of a product in `sm80/`.

    Attributes
    ----------
    a_stages : int
        The number of buffers for input slabs.
    b_stages : int
        The number of buffers for weight tiles.
    rows : int
        The number of rows in a tile.
    outputs : int
        The number of outputs in a tile.
    folder, operation : str
        The folder and the name of the source file.
    writes_bytes : bool
        Whether the kernel may write bytes.

    """

    a_stages: int
    b_stages: int
    rows: int = 192
    outputs: ClassVar[int] = 128
    folder: ClassVar[str] = "sm80"
    operation: ClassVar[str] = "conv1d"
    writes_bytes: ClassVar[bool] = True

    def elements(self, read: Element, written: Element) -> tuple[Element, ...]:
        return read, written

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return self.rows, self.outputs, self.a_stages, self.b_stages

    def launch(self, layer: Layer) -> Launch:
        """Return the launch: a warp for 48 rows of 64 outputs."""
        rows = self.a_stages * (self.rows + _rows_below(layer)) + self.b_stages * self.outputs
        return Launch(self.rows // 48 * (self.outputs // 64) * 32, rows * SLAB_BYTES)


@dataclass(frozen=True)
class Sm80SplitTile(Sm80Tile):
    """The tile of a product in `sm80/` over numbers in two fp16 parts."""

    operation: ClassVar[str] = "split_conv1d"
    writes_bytes: ClassVar[bool] = False

    def elements(self, read: Element, written: Element) -> tuple[Element, ...]:
        return (written,)


@dataclass(frozen=True)
class Sm90Tile:
    """The tile of a product in `sm90/`.

    Attributes
    ----------
    rows : int
        The number of rows in a tile.
    a_stages : int
        The number of buffers for input slabs.
    b_stages : int
        The number of buffers for weight tiles.
    cluster : int
        The number of thread blocks that share each weight tile.
    outputs : int
        The number of outputs in a tile.
    folder, operation : str
        The folder and the name of the source file.
    writes_bytes : bool
        Whether the kernel may write bytes.

    """

    rows: int
    a_stages: int
    b_stages: int
    cluster: int
    outputs: ClassVar[int] = 256
    folder: ClassVar[str] = "sm90"
    operation: ClassVar[str] = "conv1d"
    writes_bytes: ClassVar[bool] = True

    def elements(self, read: Element, written: Element) -> tuple[Element, ...]:
        return read, written

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return self.rows, self.outputs, self.a_stages, self.b_stages, self.cluster

    def box_rows(self, layer: Layer) -> int:
        """Return the number of input rows that the copy engine fetches at once, for each phase of a pool."""
        return self.rows // layer.product_pool + _rows_below(layer)

    def launch(self, layer: Layer) -> Launch:
        """Return the launch: three warpgroups.

        Shared memory holds the stages with two barriers each, and 16 rows of 128 16-bit outputs for each of 8 warps.
        """
        rows = self.a_stages * layer.product_pool * self.box_rows(layer) + self.b_stages * self.outputs
        return Launch(384, rows * SLAB_BYTES + 8 * 16 * 128 * 2 + 16 * (self.a_stages + self.b_stages))


@dataclass(frozen=True)
class Sm90SplitTile(Sm90Tile):
    """The tile of a product in `sm90/` over numbers in two fp16 parts. A stage of weights has two taps or slabs.

    Attributes
    ----------
    outputs : int
        The number of outputs in a tile.
    operation : str
        The name of the source file.
    writes_bytes : bool
        Whether the kernel may write bytes.

    """

    outputs: ClassVar[int] = 128
    operation: ClassVar[str] = "split_conv1d"
    writes_bytes: ClassVar[bool] = False

    def elements(self, read: Element, written: Element) -> tuple[Element, ...]:
        return (written,)

    def launch(self, layer: Layer) -> Launch:
        """Return the launch: four warpgroups.

        Shared memory holds the stages with two barriers each, and before a pool 16 sums of each of 256 threads.
        """
        rows = self.a_stages * layer.product_pool * self.box_rows(layer) + self.b_stages * 2 * self.outputs
        exchanged = 16 * 256 * 4 if layer.product_pool > 1 else 0
        return Launch(512, rows * SLAB_BYTES + exchanged + 16 * (self.a_stages + self.b_stages))


@dataclass(frozen=True)
class Sm90DenseTile(Sm90Tile):
    """The tile of a product in `sm90/` for rows of encoders. `b_stages` equals `a_stages`.

    Attributes
    ----------
    outputs : int
        The number of outputs in a tile.
    stored_rows : int
        The number of rows that a warp stores at once.
    operation : str
        The name of the source file.
    writes_bytes : bool
        Whether the kernel may write bytes.

    """

    outputs: ClassVar[int] = 192
    stored_rows: ClassVar[int] = 16
    operation: ClassVar[str] = "dense"
    writes_bytes: ClassVar[bool] = False

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return self.rows, self.outputs, self.a_stages, self.cluster

    def launch(self, layer: Layer) -> Launch:
        """Return the launch: three warpgroups.

        Shared memory holds the stages with four barriers each, and the 16-bit outputs that each of 8 warps stores.
        """
        stages = self.a_stages * ((self.rows + self.outputs) * SLAB_BYTES + 32)
        return Launch(384, stages + 8 * self.stored_rows * self.outputs * 2)


@dataclass(frozen=True)
class Sm90NarrowTile(Sm90DenseTile):
    """The tile of a product in `sm90/` for rows of encoders whose width 192 does not divide.

    Attributes
    ----------
    outputs : int
        The number of outputs in a tile.

    """

    outputs: ClassVar[int] = 128


def _rows_below(layer: Layer) -> int:
    """Return how many rows below a tile are fetched for the taps: whole groups of eight, the unit of the swizzle."""
    return 8 if layer.kernel > 1 else 0


LookupTile = SimtLookupTile | SlicedLookupTile
ProductTile = SimtTile | Sm80Tile | Sm90Tile
Tile = LookupTile | ProductTile

# Tiles by layer name or kind. Tiles for one precision have its name before that. "" is any architecture: its tiles fit
# in 99 KB, the smallest limit since sm_80, or for sm75 in 64 KB. The other tiles were measured on an H200, by
# benchmarks/tune.py or by hand. The tiles for fp32 were calculated and not measured.
_TILES: dict[tuple[str, str], dict[str, Tile]] = {
    ("simt", ""): {
        "lookup": SimtLookupTile(4, 16),
        "conv1d": SimtTile(),
        "linear": SimtTile(),
    },
    ("sm75", ""): {
        "lookup": SimtLookupTile(4, 16),
        "conv1d": Sm80Tile(2, 2, rows=96),
        "linear": SimtTile(),
    },
    ("sm80", ""): {
        "lookup": SlicedLookupTile(64, 28, 64),
        "conv1d": Sm80Tile(2, 3),
        "linear": Sm80Tile(2, 2),
        "dense": Sm80Tile(2, 2),
        "fp32 lookup": SplitLookupTile(32, 28, 64),
        "fp32 conv1d": Sm80SplitTile(2, 3),
        "fp32 linear": Sm80SplitTile(2, 2),
    },
    ("sm80", "sm_90"): {
        "lookup": SlicedLookupTile(64, 28, 64),
        "conv2": Sm80Tile(2, 4),
        "conv1d": Sm80Tile(3, 3),
        "linear": Sm80Tile(2, 2),
        "dense": Sm80Tile(3, 3),
        "fp32 lookup": SplitLookupTile(64, 32, 64),
        "fp32 conv1d": Sm80SplitTile(2, 3),
        "fp32 linear": Sm80SplitTile(2, 2),
    },
    ("sm90", "sm_90"): {
        "lookup": SlicedLookupTile(128, 32, 64),
        "conv2": Sm90Tile(192, 2, 4, 2),
        "conv1d": Sm90Tile(128, 2, 3, 2),
        "linear": Sm90Tile(128, 4, 4, 2),
        "dense": Sm90DenseTile(128, 4, 4, 2),
        "narrow": Sm90NarrowTile(192, 4, 4, 2),
        "int8 conv2": Sm90Tile(192, 2, 4, 2),
        "int8 conv1d": Sm90Tile(128, 2, 5, 2),
        "fp32 lookup": SplitLookupTile(64, 32, 64),
        "fp32 conv2": Sm90SplitTile(192, 3, 3, 2),
        "fp32 conv1d": Sm90SplitTile(192, 4, 3, 2),
        "fp32 linear": Sm90SplitTile(192, 4, 3, 2),
    },
}


@cache
def lookup_tile(generation: str, precision: str, architecture: str, layer: Layer) -> LookupTile:
    """Return the tile of block 1.

    Alphabets differ in size, so its slices are halved until one fits in the shared memory of a block.
    """
    at = _tile(generation, precision, architecture, layer.name, "lookup")
    while isinstance(at, SlicedLookupTile) and at.launch(layer).shared_bytes > shared_limit(architecture):
        # The number of threads stays the same: fewer channels, more positions.
        at = replace(at, channels=at.channels // 2, positions=at.positions * 2)
    assert isinstance(at, LookupTile)
    return at


@cache
def product_tile(generation: str, precision: str, architecture: str, layer: Layer) -> ProductTile:
    """Return the tile of a layer that is not a look-up."""
    at = _tile(generation, precision, architecture, layer.name, layer.kind)
    if isinstance(at, Sm90DenseTile) and layer.outputs % at.outputs:
        at = _tile(generation, precision, architecture, "narrow")
    assert isinstance(at, ProductTile)
    return at


def dense_outputs(generation: str, precision: str, architecture: str) -> tuple[int, ...]:
    """Return the widths, in outputs, of the tiles that an encoder's products can have.

    Only products with the first width can be gated or rotary.
    """
    at = _tile(generation, precision, architecture, "dense")
    assert isinstance(at, ProductTile)
    return (at.outputs, Sm90NarrowTile.outputs) if isinstance(at, Sm90DenseTile) else (at.outputs,)


def _tile(generation: str, precision: str, architecture: str, *names: str) -> Tile:
    """Return the most specific tile of the table.

    Tiles for the architecture come before those for any architecture. Then tiles for the precision come before those
    for any precision, and tiles for the layer's name before those for its kind. Raises KeyError if the generation has
    no tile.
    """
    for target in (architecture, ""):
        tiles = _TILES.get((generation, target), {})
        for name in (*(f"{precision} {name}" for name in names), *names):
            if name in tiles:
                return tiles[name]
    raise KeyError(f"no tile of {names[0]} for {generation} kernels on {architecture}")
