"""How thread blocks divide the work of a layer: a tile type for each kernel, and a table of tiles by generation,
architecture and layer; `benchmarks/tune.py` finds better ones.

A type holds what the host must know about its kernel. The values reach the kernel as template arguments, where static
assertions check that both agree. A tile changes speed and shared memory, but never the order of a sum over inputs, and
so never a bit of a score.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from pipeline.model.charcnn import Layer

SLAB_BYTES = 128
"""Of a row in a stage of tensor-core products: the widest that shared memory is swizzled by."""

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
    """The same as a function; for an architecture that is not in the table, the least of all since sm_80."""
    return SHARED_LIMIT.get(architecture.removesuffix("a"), 99 << 10)


class Launch(NamedTuple):
    """Threads and dynamic shared memory of a block. `str` gives the template argument by which kernels assert both."""

    threads: int
    shared_bytes: int = 0

    def __str__(self) -> str:
        return f"Launch<{self.threads}, {self.shared_bytes}>"


@dataclass(frozen=True)
class SimtLookupTile:
    """Block 1 of `simt/`. positions: pooled rows of a thread block. articles: that it loops over."""

    positions: int
    articles: int
    folder: ClassVar[str] = "simt"

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return self.positions, self.articles

    def launch(self, layer: Layer) -> Launch:
        return Launch(layer.outputs // 4 * self.positions)


@dataclass(frozen=True)
class LookupTile:
    """Block 1 of `sm80/`. channels: of a slice of the table. positions: pooled rows of a slab. articles: of a task."""

    channels: int
    positions: int
    articles: int
    folder: ClassVar[str] = "sm80"

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return layer.ids, self.channels, self.positions, self.articles

    def launch(self, layer: Layer) -> Launch:
        """A thread for eight channels of a position; memory for the table's slice and a group of 32 articles."""
        words = (self.positions * layer.pool + layer.kernel + layer.pool + 2) // 4
        table = layer.kernel * layer.ids * self.channels * 2 + 4 * self.channels
        group = 2 * 32 * (self.channels + 12 + 4 * words) + 2 * 33 * 4
        return Launch(self.channels // 8 * self.positions, table + group)


@dataclass(frozen=True)
class SimtTile:
    """A product of `simt/`."""

    rows: ClassVar[int] = 144
    outputs: ClassVar[int] = 128
    folder: ClassVar[str] = "simt"

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return self.rows, self.outputs

    def launch(self, layer: Layer) -> Launch:
        """Two buffers of 16 input channels: of the rows, with four banks to spare a channel, and of the weights."""
        return Launch(256, 2 * 16 * (self.rows + 4 + self.outputs) * 4)


@dataclass(frozen=True)
class Sm80Tile:
    """A product of `sm80/`. Stages: buffers of input slabs and of weight tiles."""

    a_stages: int
    b_stages: int
    rows: int = 192
    outputs: ClassVar[int] = 128
    folder: ClassVar[str] = "sm80"

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return self.rows, self.outputs, self.a_stages, self.b_stages

    def launch(self, layer: Layer) -> Launch:
        """A warp for 48 rows of 64 outputs."""
        rows = self.a_stages * (self.rows + _rows_below(layer)) + self.b_stages * self.outputs
        return Launch(self.rows // 48 * (self.outputs // 64) * 32, rows * SLAB_BYTES)


@dataclass(frozen=True)
class Sm90Tile:
    """A product of `sm90/`. Stages: buffers of input slabs and of weight tiles. cluster: blocks that share each weight
    tile.
    """

    rows: int
    a_stages: int
    b_stages: int
    cluster: int
    outputs: ClassVar[int] = 256
    folder: ClassVar[str] = "sm90"

    def arguments(self, layer: Layer) -> tuple[int, ...]:
        return self.rows, self.outputs, self.a_stages, self.b_stages, self.cluster

    def box_rows(self, layer: Layer) -> int:
        """Rows of the input that the copy engine fetches at a time, for each phase of a pool."""
        return self.rows // layer.product_pool + _rows_below(layer)

    def launch(self, layer: Layer) -> Launch:
        """Three warpgroups; the stages with two barriers each, and 16 rows of 128 16-bit outputs a warp, of 8."""
        rows = self.a_stages * layer.product_pool * self.box_rows(layer) + self.b_stages * self.outputs
        return Launch(384, rows * SLAB_BYTES + 8 * 16 * 128 * 2 + 16 * (self.a_stages + self.b_stages))


def _rows_below(layer: Layer) -> int:
    """Rows that are fetched below those of a tile, for the taps: whole groups of eight, the unit of the swizzle."""
    return 8 if layer.kernel > 1 else 0


ProductTile = SimtTile | Sm80Tile | Sm90Tile
Tile = SimtLookupTile | LookupTile | ProductTile

# By layer name or kind, for one precision with its name before that. "" is any architecture: within 99 KB, the least of
# all since sm_80, or for sm75 within 64 KB. The others were found on an H200, by benchmarks/tune.py or by hand.
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
        "lookup": LookupTile(64, 28, 64),
        "conv1d": Sm80Tile(2, 3),
        "linear": Sm80Tile(2, 2),
    },
    ("sm80", "sm_90"): {
        "lookup": LookupTile(64, 28, 64),
        "conv2": Sm80Tile(2, 4),
        "conv1d": Sm80Tile(3, 3),
        "linear": Sm80Tile(2, 2),
    },
    ("sm90", "sm_90"): {
        "lookup": LookupTile(128, 32, 64),
        "conv2": Sm90Tile(192, 2, 4, 2),
        "conv1d": Sm90Tile(128, 2, 3, 2),
        "linear": Sm90Tile(128, 4, 4, 2),
        "int8 conv2": Sm90Tile(192, 2, 4, 2),
        "int8 conv1d": Sm90Tile(128, 2, 5, 2),
    },
}


def tile(generation: str, precision: str, architecture: str, layer: Layer) -> Tile:
    """The configuration of a layer: the architecture's, or the generation's; the precision's, or any precision's; its
    own, or its kind's.

    A look-up's slices are halved until one fits into a block's shared memory: alphabets differ in size.
    Raises KeyError where the generation has none.
    """
    for target in (architecture, ""):
        found = _TILES.get((generation, target), {})
        names = (layer.name, "lookup" if layer.is_lookup else layer.kind)
        for name in (*(f"{precision} {name}" for name in names), *names):
            if name in found:
                return _fitting(found[name], layer, shared_limit(architecture))
    raise KeyError(f"no tile of {layer.name} for {generation} kernels on {architecture}")


def _fitting(at: Tile, layer: Layer, limit: int) -> Tile:
    while isinstance(at, LookupTile) and at.launch(layer).shared_bytes > limit:
        # The number of threads stays the same: fewer channels, more positions.
        at = replace(at, channels=at.channels // 2, positions=at.positions * 2)
    return at


def product_tile(generation: str, precision: str, architecture: str, layer: Layer) -> ProductTile:
    """`tile` of a layer that is no look-up."""
    found = tile(generation, precision, architecture, layer)
    assert not isinstance(found, SimtLookupTile | LookupTile)
    return found
