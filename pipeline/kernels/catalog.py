"""Which kernel an operation is: file, template instance, threads and dynamic shared memory. Needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.errors import UsageError
from pipeline.kernels.tiles import LookupTile, Sm80Tile, Sm90Tile, Tile, shared_limit, tile
from pipeline.model.charcnn import Layer

GENERATIONS = ("simt", "sm80", "sm90")
PRECISIONS = {"simt": ("fp32",), "sm80": ("fp16", "bf16"), "sm90": ("fp16", "bf16")}
_ELEMENT = {"fp32": "float", "fp16": "Half", "bf16": "BFloat"}

HEAD_WARPS = 4
HEAD_ARTICLES = 4
SIMT_ARTICLES = 16
SIMT_POSITIONS = 4
WARPS = 8
_THREADS = WARPS * 32


@dataclass(frozen=True)
class Kernel:
    """An instance of a template. threads: of a block. shared_bytes: dynamic shared memory of a block."""

    name: str
    file: str
    expression: str
    threads: int = _THREADS
    shared_bytes: int = 0


def target(generation: str, architecture: str) -> str:
    """What to compile for: the features of Hopper's own (wgmma, setmaxnreg) are in "sm_90a" only."""
    return f"{architecture}a" if generation == "sm90" else architecture


def encode_kernel() -> Kernel:
    return Kernel("encode", "common/encode.cu", "encode")


def statistics_kernel(layer: Layer) -> Kernel:
    instance = f"norm_statistics<{layer.kernel}, {layer.outputs}>"
    return Kernel(f"{layer.name} statistics", "common/statistics.cu", instance)


def lookup_tile(generation: str, architecture: str, layer: Layer, ids: int) -> LookupTile:
    """The table's tile, its slices halved until one fits into a block's shared memory: alphabets differ in size."""
    found = tile(generation, architecture, layer.name)
    assert isinstance(found, LookupTile)
    while _lookup_shared(layer, found, ids) > shared_limit(architecture):
        # The threads of a block stay as many: fewer channels, more positions.
        found = replace(found, channels=found.channels // 2, positions=found.positions * 2)
    return found


def _lookup_shared(layer: Layer, at: LookupTile, ids: int) -> int:
    """The table's slice and `Shared` of sm80/lookup_norm_pool.cu."""
    group = 32
    words = (at.positions * layer.pool + layer.kernel + layer.pool + 2) // 4
    return layer.kernel * ids * at.channels * 2 + 12 * at.channels + 2 * group * (at.channels + 12 + 4 * words)


def lookup_kernel(generation: str, precision: str, layer: Layer, at: LookupTile | None, ids: int) -> Kernel:
    """Block 1. `at`: its tile, None for `simt`."""
    frame = f"{layer.kernel}, {layer.outputs}, {layer.pool}"
    if at is None:
        return Kernel(layer.name, "simt/lookup_norm_pool.cu", f"lookup_norm_pool<{frame}, {SIMT_ARTICLES}>")
    instance = f"lookup_norm_pool<{_ELEMENT[precision]}, {ids}, {frame}, {at.channels}, {at.positions}, {at.articles}>"
    threads = at.channels // 8 * at.positions
    return Kernel(layer.name, "sm80/lookup_norm_pool.cu", instance, threads, _lookup_shared(layer, at, ids))


def product_kernel(generation: str, precision: str, layer: Layer, at: Tile | None) -> Kernel:
    """A convolution or a linear layer without its norm; ReLU and pool only where no norm comes before them."""
    pool = 1 if layer.norm else layer.pool
    relu = "true" if layer.relu and not layer.norm else "false"
    file = f"{generation}/conv1d.cu"
    if isinstance(at, Sm90Tile):
        frame = f"{_ELEMENT[precision]}, {layer.kernel}, {pool}, {relu}"
        stages = f"{at.m_blocks}, {at.a_stages}, {at.b_stages}, {at.cluster}"
        shared = _sm90_shared(layer.kernel, pool, at)
        return Kernel(layer.name, file, f"conv1d<{frame}, {stages}>", 384, shared)
    if isinstance(at, Sm80Tile):
        frame = f"{_ELEMENT[precision]}, {layer.kernel}, {pool}, {relu}"
        rows = 192 + (8 if layer.kernel > 1 else 0)
        shared = (at.a_stages * rows + at.b_stages * 128) * 128
        return Kernel(layer.name, file, f"conv1d<{frame}, {at.a_stages}, {at.b_stages}>", 256, shared)
    return Kernel(layer.name, file, f"conv1d<{layer.kernel}, {pool}, {relu}>", 256)


def phase_rows(kernel: int, pool: int, at: Sm90Tile) -> int:
    """Rows of the input box of a tile, of each phase of a pool: `Layout::PHASE_ROWS` of sm90/conv1d.cu."""
    return 64 * at.m_blocks // pool + (8 if kernel > 1 else 0)


def _sm90_shared(kernel: int, pool: int, at: Sm90Tile) -> int:
    """`Layout::BYTES` of sm90/conv1d.cu."""
    a_bytes = pool * phase_rows(kernel, pool, at) * 128
    stages = at.a_stages * a_bytes + at.b_stages * 256 * 128 + 8 * 16 * 128 * 2
    return stages + 16 * (at.a_stages + at.b_stages)


def norm_kernel(precision: str, layer: Layer) -> Kernel:
    instance = f"norm_relu_pool<{_ELEMENT[precision]}, {layer.outputs}, {layer.pool}, {WARPS}>"
    return Kernel(f"{layer.name} norm", "common/norm_relu_pool.cu", instance)


def head_kernel(precision: str, layer: Layer) -> Kernel:
    instance = f"head<{_ELEMENT[precision]}, {layer.inputs}, {HEAD_WARPS}, {HEAD_ARTICLES}>"
    shared = HEAD_WARPS * HEAD_ARTICLES * layer.outputs * 4
    return Kernel(layer.name, "common/head.cu", instance, HEAD_WARPS * 32, shared)


def layer_tile(generation: str, architecture: str, layer: Layer, ids: int) -> Tile | None:
    if generation == "simt":
        return None
    if layer.name == "conv1":
        return lookup_tile(generation, architecture, layer, ids)
    return tile(generation, architecture, layer.name)


def network_kernels(
    generation: str, precision: str, architecture: str, layers: Sequence[Layer], ids: int
) -> list[Kernel]:
    """Every kernel that a model launches, in order. `ids`: of its alphabet, unknown and padding included."""
    first, *rest, last = layers
    kernels = [encode_kernel(), statistics_kernel(first)]
    at = layer_tile(generation, architecture, first, ids)
    kernels.append(lookup_kernel(generation, precision, first, at if isinstance(at, LookupTile) else None, ids))
    for layer in rest:
        kernels.append(product_kernel(generation, precision, layer, layer_tile(generation, architecture, layer, ids)))
        if layer.norm:
            kernels.append(norm_kernel(precision, layer))
    return [*kernels, head_kernel(precision, last)]


def choose_generation(kernels: str, precision: str, capability: tuple[int, int]) -> tuple[str, str]:
    """The kernel generation and precision for a GPU of a compute capability, from what is asked for ("auto" or a name).

    Raises UsageError where they do not go together.
    """
    best = "sm90" if capability[0] == 9 else "sm80" if capability >= (8, 0) else "simt"
    if kernels == "auto":
        kernels = "simt" if precision == "fp32" else best
        if precision in ("fp16", "bf16") and best == "simt":
            raise UsageError(f"{precision} needs compute capability 8.0, this GPU has {capability[0]}.{capability[1]}")
    needs = {"simt": (0, 0), "sm80": (8, 0), "sm90": (9, 0)}[kernels]
    if capability < needs or (kernels == "sm90" and capability[0] != 9):
        raise UsageError(f"{kernels} kernels do not run on compute capability {capability[0]}.{capability[1]}")
    if precision == "auto":
        precision = PRECISIONS[kernels][0]
    if precision not in PRECISIONS[kernels]:
        raise UsageError(f"{kernels} kernels compute in {' or '.join(PRECISIONS[kernels])}, not in {precision}")
    return kernels, precision
