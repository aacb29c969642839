"""Tile configurations: one table by kernel generation, architecture and layer; `benchmarks/tune.py` finds better ones.

A configuration changes speed and shared memory, never the order of a sum over inputs, so never a bit of a score.
"""

from __future__ import annotations

from dataclasses import dataclass

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
"""Bytes of shared memory that a block can have (CUDA C++ Programming Guide, table of compute capabilities)."""


def shared_limit(architecture: str) -> int:
    """The same; of an architecture that the table does not know, the least that any since sm_80 has."""
    return SHARED_LIMIT.get(architecture, 99 << 10)


@dataclass(frozen=True)
class LookupTile:
    """Block 1 of `sm80/`. channels: of a slice of the table. positions: pooled rows of a slab. articles: of a task."""

    channels: int
    positions: int
    articles: int


@dataclass(frozen=True)
class Sm80Tile:
    """A product of `sm80/`, 192 rows by 128 outputs. Stages: buffers of input slabs and of weight tiles."""

    a_stages: int
    b_stages: int


@dataclass(frozen=True)
class Sm90Tile:
    """A product of `sm90/`, m_blocks * 64 rows by 256 outputs. Stages: buffers of input slabs and of weight tiles.
    cluster: blocks that share each weight tile.
    """

    m_blocks: int
    a_stages: int
    b_stages: int
    cluster: int


Tile = LookupTile | Sm80Tile | Sm90Tile

# "" is any architecture, within the 99 KB of the smallest; the others are what benchmarks/tune.py found on an H200.
_TILES: dict[tuple[str, str], dict[str, Tile]] = {
    ("sm80", ""): {
        "conv1": LookupTile(64, 28, 64),
        "conv": Sm80Tile(2, 3),
        "linear": Sm80Tile(2, 2),
    },
    ("sm80", "sm_90"): {
        "conv1": LookupTile(64, 28, 64),
        "conv2": Sm80Tile(2, 4),
        "conv": Sm80Tile(3, 3),
        "linear": Sm80Tile(2, 2),
    },
    ("sm90", "sm_90"): {
        "conv1": LookupTile(128, 28, 64),
        "conv2": Sm90Tile(3, 2, 4, 2),
        "conv": Sm90Tile(2, 2, 3, 2),
        "linear": Sm90Tile(2, 4, 4, 2),
    },
}


def tile(generation: str, architecture: str, layer: str) -> Tile:
    """The configuration of a layer ("conv2", "fc1"): its own, or its kind's; the architecture's, or the generation's.

    Raises KeyError where the generation has none.
    """
    kind = "conv" if layer.startswith("conv") else "linear"
    for target in (architecture, ""):
        found = _TILES.get((generation, target), {})
        for name in (layer, kind):
            if name in found:
                return found[name]
    raise KeyError(f"no tile of {layer} for {generation} kernels on {architecture}")
