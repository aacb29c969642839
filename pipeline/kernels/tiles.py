"""How thread blocks divide the work of a layer: a tile type for each kernel, and a table of tiles by generation,
architecture and layer; `benchmarks/tune.py` finds better ones.

A type holds what the host must know about its kernel: where its source is (folder, operation), which elements are
template arguments (elements), whether it may write bytes (writes_bytes), whose saturated ones it then counts; and the
rows and outputs of a tile, and threads and shared memory of a block (launch). The values reach the kernel as template
arguments, where static assertions check that both agree. A tile changes speed and shared memory, but never the order of
a sum over inputs, and so never a bit of a score.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple

from ..model.layers import Layer
from .storage import Element

SLAB_BYTES = 128
"""Bytes of a row in a stage of tensor-core products: the widest that shared memory is swizzled by."""

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
"""Bytes of shared memory that a block can use (CUDA C++ Programming Guide, table of compute capabilities)."""


def shared_limit(architecture: str) -> int:
    """The entry of SHARED_LIMIT; for an architecture that is not there, the least of all since sm_80."""
    return SHARED_LIMIT.get(architecture.removesuffix("a"), 99 << 10)


class Launch(NamedTuple):
    """Threads and dynamic shared memory of a block. `str` gives the template argument by which kernels assert both."""

    threads: int
    shared_bytes: int = 0

    def __str__(self) -> str:
        return f"Launch<{self.threads}, {self.shared_bytes}>"


@dataclass(frozen=True)
class SimtLookupTile:
    """Block 1 of `simt/`.

    Attributes
    ----------
    positions : int
        Pooled rows of a thread block.
    articles : int
        Articles that a thread block loops over.
    folder, operation : str
        Where the source is.
    writes_bytes : bool
        Whether it may write bytes.

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
    """Block 1 of `sm80/`.

    Attributes
    ----------
    channels : int
        Channels of a slice of the table.
    positions : int
        Pooled rows of a slab.
    articles : int
        Articles of a task.
    folder, operation : str
        Where the source is.
    writes_bytes : bool
        Whether it may write bytes.

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
        """A thread for eight channels of a position; the table's slice, and of 32 articles the bias in 16 bits."""
        table = layer.kernel * layer.ids * self.channels * 2 + 4 * self.channels
        return Launch(self.channels // 8 * self.positions, table + 32 * 2 * self.channels + self._group_bytes(layer))

    def _group_bytes(self, layer: Layer) -> int:
        """Twice, of 32 articles: statistics, end of text, words of ids; and first units, one more."""
        words = (self.positions * layer.pool + layer.kernel + layer.pool + 2) // 4
        return 2 * (32 * (8 + 4 + 4 * words) + 33 * 4)


@dataclass(frozen=True)
class SplitLookupTile(SlicedLookupTile):
    """Block 1 of `sm80/` in fp32, its output in two fp16 parts."""

    operation: ClassVar[str] = "split_lookup_norm_pool"
    writes_bytes: ClassVar[bool] = False

    def elements(self, computed: Element, written: Element) -> tuple[Element, ...]:
        return ()

    def launch(self, layer: Layer) -> Launch:
        """A thread for four channels of a position."""
        table = layer.kernel * layer.ids * self.channels * 4
        return Launch(self.channels // 4 * self.positions, table + self._group_bytes(layer))


@dataclass(frozen=True)
class SimtTile:
    """A product of `simt/`.

    Attributes
    ----------
    rows, outputs : int
        Rows and outputs of a tile.
    folder, operation : str
        Where the source is.
    writes_bytes : bool
        Whether it may write bytes.

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
        """Two buffers of 16 input channels: of the rows, with four banks to spare a channel, and of the weights."""
        return Launch(256, 2 * 16 * (self.rows + 4 + self.outputs) * 4)


@dataclass(frozen=True)
class Sm80Tile:
    """A product of `sm80/`.

    Attributes
    ----------
    a_stages : int
        Buffers of input slabs.
    b_stages : int
        Buffers of weight tiles.
    rows : int
        Rows of a tile.
    outputs : int
        Outputs of a tile.
    folder, operation : str
        Where the source is.
    writes_bytes : bool
        Whether it may write bytes.

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
        """A warp for 48 rows of 64 outputs."""
        rows = self.a_stages * (self.rows + _rows_below(layer)) + self.b_stages * self.outputs
        return Launch(self.rows // 48 * (self.outputs // 64) * 32, rows * SLAB_BYTES)


@dataclass(frozen=True)
class Sm80SplitTile(Sm80Tile):
    """A product of `sm80/` over numbers of two fp16 parts."""

    operation: ClassVar[str] = "split_conv1d"
    writes_bytes: ClassVar[bool] = False

    def elements(self, read: Element, written: Element) -> tuple[Element, ...]:
        return (written,)


@dataclass(frozen=True)
class Sm90Tile:
    """A product of `sm90/`.

    Attributes
    ----------
    rows : int
        Rows of a tile.
    a_stages : int
        Buffers of input slabs.
    b_stages : int
        Buffers of weight tiles.
    cluster : int
        Thread blocks that share each weight tile.
    outputs : int
        Outputs of a tile.
    folder, operation : str
        Where the source is.
    writes_bytes : bool
        Whether it may write bytes.

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
        """Rows of the input that the copy engine fetches at a time, for each phase of a pool."""
        return self.rows // layer.product_pool + _rows_below(layer)

    def launch(self, layer: Layer) -> Launch:
        """Three warpgroups; the stages with two barriers each, and 16 rows of 128 16-bit outputs a warp, of 8."""
        rows = self.a_stages * layer.product_pool * self.box_rows(layer) + self.b_stages * self.outputs
        return Launch(384, rows * SLAB_BYTES + 8 * 16 * 128 * 2 + 16 * (self.a_stages + self.b_stages))


@dataclass(frozen=True)
class Sm90SplitTile(Sm90Tile):
    """A product of `sm90/` over numbers of two fp16 parts. A weight stage has two taps or slabs.

    Attributes
    ----------
    outputs : int
        Outputs of a tile.
    operation : str
        Where the source is.
    writes_bytes : bool
        Whether it may write bytes.

    """

    outputs: ClassVar[int] = 128
    operation: ClassVar[str] = "split_conv1d"
    writes_bytes: ClassVar[bool] = False

    def elements(self, read: Element, written: Element) -> tuple[Element, ...]:
        return (written,)

    def launch(self, layer: Layer) -> Launch:
        """Four warpgroups; the stages with two barriers each, and before a pool 16 sums of each of 256 threads."""
        rows = self.a_stages * layer.product_pool * self.box_rows(layer) + self.b_stages * 2 * self.outputs
        exchanged = 16 * 256 * 4 if layer.product_pool > 1 else 0
        return Launch(512, rows * SLAB_BYTES + exchanged + 16 * (self.a_stages + self.b_stages))


@dataclass(frozen=True)
class Sm90DenseTile(Sm90Tile):
    """A product of `sm90/` for rows of encoders; `b_stages` are as many as `a_stages`.

    Attributes
    ----------
    outputs : int
        Outputs of a tile.
    stored_rows : int
        Rows that a warp stores at once.
    operation : str
        Where the source is.
    writes_bytes : bool
        Whether it may write bytes.

    """

    outputs: ClassVar[int] = 192
    stored_rows: ClassVar[int] = 16
    operation: ClassVar[str] = "dense"
    writes_bytes: ClassVar[bool] = False

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return self.rows, self.outputs, self.a_stages, self.cluster

    def launch(self, layer: Layer) -> Launch:
        """Three warpgroups; the stages with four barriers each, and what each of 8 warps stores, of 16-bit outputs."""
        stages = self.a_stages * ((self.rows + self.outputs) * SLAB_BYTES + 32)
        return Launch(384, stages + 8 * self.stored_rows * self.outputs * 2)


@dataclass(frozen=True)
class Sm90NarrowTile(Sm90DenseTile):
    """The same for widths that 192 does not divide.

    Attributes
    ----------
    outputs : int
        Outputs of a tile.

    """

    outputs: ClassVar[int] = 128


def _rows_below(layer: Layer) -> int:
    """Rows that are fetched below those of a tile, for the taps: whole groups of eight, the unit of the swizzle."""
    return 8 if layer.kernel > 1 else 0


LookupTile = SimtLookupTile | SlicedLookupTile
ProductTile = SimtTile | Sm80Tile | Sm90Tile
Tile = LookupTile | ProductTile

# By layer name or kind, those of one precision with its name before that. "" is any architecture: within 99 KB, the
# least of all since sm_80, or for sm75 within 64 KB. The others were measured on an H200, by benchmarks/tune.py or by
# hand; those of fp32 were calculated, and not measured.
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
    """The configuration of block 1. Its slices are halved until one fits into a block's shared memory: alphabets differ
    in size.
    """
    at = _tile(generation, precision, architecture, layer.name, "lookup")
    while isinstance(at, SlicedLookupTile) and at.launch(layer).shared_bytes > shared_limit(architecture):
        # The number of threads stays the same: fewer channels, more positions.
        at = replace(at, channels=at.channels // 2, positions=at.positions * 2)
    assert isinstance(at, LookupTile)
    return at


@cache
def product_tile(generation: str, precision: str, architecture: str, layer: Layer) -> ProductTile:
    """The configuration of a layer that is no look-up."""
    at = _tile(generation, precision, architecture, layer.name, layer.kind)
    if isinstance(at, Sm90DenseTile) and layer.outputs % at.outputs:
        at = _tile(generation, precision, architecture, "narrow")
    assert isinstance(at, ProductTile)
    return at


def dense_outputs(generation: str, precision: str, architecture: str) -> tuple[int, ...]:
    """The widths of the tiles that an encoder's products can have, in outputs; the first can be gated or turned."""
    at = _tile(generation, precision, architecture, "dense")
    assert isinstance(at, ProductTile)
    return (at.outputs, Sm90NarrowTile.outputs) if isinstance(at, Sm90DenseTile) else (at.outputs,)


def _tile(generation: str, precision: str, architecture: str, *names: str) -> Tile:
    """The architecture's, or the generation's; the precision's, or any precision's; the layer's own, or its kind's.

    Raises KeyError where the generation has none.
    """
    for target in (architecture, ""):
        tiles = _TILES.get((generation, target), {})
        for name in (*(f"{precision} {name}" for name in names), *names):
            if name in tiles:
                return tiles[name]
    raise KeyError(f"no tile of {names[0]} for {generation} kernels on {architecture}")
