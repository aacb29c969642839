"""The network's operations on a GPU: each launches the kernels that are the twin of one in `reference.py`.

Signatures are the reference's, with an `out` to write to, so that nothing is allocated. Arrays are CuPy's; activations
are `Rows`, of as many rows for every article. Everything is launched on CuPy's current stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import cupy as cp
import numpy as np

from pipeline.errors import BroadsheetError
from pipeline.kernels import catalog
from pipeline.kernels.catalog import Kernel
from pipeline.kernels.compile import compile_kernel
from pipeline.kernels.tables import StatisticsTables
from pipeline.kernels.tiles import LookupTile, Sm80Tile, Sm90Tile, Tile, shared_limit
from pipeline.kernels.weights import DeviceAlphabet, DeviceNorm, DeviceTable
from pipeline.model.charcnn import NORM_EPSILON, Layer

_SIMT_TILE = (144, 128)
_SM80_TILE = (192, 128)


class Rows(NamedTuple):
    """values: [N, pitch, channels]. valid: rows of each article that hold something; no result is made of the rest."""

    values: cp.ndarray
    valid: int


class Encoded(NamedTuple):
    """`alphabet.Encoded` on the GPU; ids: uint8 [N, pitch], a multiple of 16, filled up with padding."""

    ids: cp.ndarray
    n_chars: cp.ndarray
    truncated: cp.ndarray
    unknown_chars: cp.ndarray


class Scored(NamedTuple):
    """logits, scores: fp32 [N, classes]. labels: int32 [N, k], best: fp32 [N, k]."""

    logits: cp.ndarray
    scores: cp.ndarray
    labels: cp.ndarray
    best: cp.ndarray


Launched = Callable[[Kernel, tuple[int, ...], tuple[Any, ...]], None]
"""Told of a kernel, its grid and its arguments."""


@dataclass(frozen=True)
class Operations:
    """The operations in one kernel generation and precision, for one architecture ("sm_90").

    tiles: a configuration by layer name in place of the table's. launched: called ahead of every launch.
    """

    generation: str
    precision: str
    architecture: str
    processors: int
    tiles: dict[str, Tile]
    launched: Launched

    def encode(
        self, data: cp.ndarray, offsets: cp.ndarray, alphabet: DeviceAlphabet, length: int, out: Encoded
    ) -> None:
        """UTF-8 bytes, uint8, and int64 offsets [N + 1] of any base; data[0] is the first article's first byte."""
        count = len(offsets) - 1
        points = len(alphabet.points)
        self._launch(
            catalog.encode_kernel(),
            (-(-count // catalog.WARPS),),
            (data, offsets, _int(count), _int(length), _int(out.ids.shape[1]), alphabet.byte_ids, alphabet.points,
             alphabet.point_ids, _int(points), np.uint8(alphabet.unknown), *out),
        )  # fmt: skip

    def norm_statistics(
        self,
        ids: cp.ndarray,
        length: int,
        layer: Layer,
        tables: StatisticsTables,
        out: cp.ndarray,
        text_end: cp.ndarray,
    ) -> None:
        """Mean and 1 / deviation of block 1, fp32 [N, 2], and where each text ends, int32 [N]."""
        self._launch(
            catalog.statistics_kernel(layer),
            (-(-len(ids) // catalog.WARPS),),
            (ids, _int(len(ids)), _int(length), _int(ids.shape[1]), _int(tables.first.shape[1]), tables.first,
             tables.pairs, np.float64(tables.sum_of_biases), np.float64(tables.sum_of_square_biases),
             np.float64(NORM_EPSILON), out, text_end),
        )  # fmt: skip

    def lookup_norm_pool(
        self, ids: cp.ndarray, layer: Layer, table: DeviceTable, norm: DeviceNorm,
        statistics: cp.ndarray, text_end: cp.ndarray, out: Rows,
    ) -> None:  # fmt: skip
        """Block 1 from ids, uint8 [N, pitch], and their statistics."""
        count, pitch = ids.shape
        known = table.entries.shape[-2]
        at = self._tile(layer, known)
        kernel = catalog.lookup_kernel(self.generation, self.precision, layer, at, known)  # type: ignore[arg-type]
        if isinstance(at, LookupTile):
            grid: tuple[int, ...] = (self.processors * max(1, _blocks_a_processor(self.architecture, kernel)),)
            size = []
        else:
            grid = (-(-out.valid // catalog.SIMT_POSITIONS), -(-count // catalog.SIMT_ARTICLES))
            size = [_int(known)]
        self._launch(
            kernel,
            grid,
            (ids, _int(pitch), _int(count), *size, text_end, statistics, table.entries, table.affine, norm.gamma,
             norm.beta, out.values, _int(out.valid), _int(out.values.shape[1])),
        )  # fmt: skip

    def conv1d(
        self, rows: Rows, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, norm: DeviceNorm | None, out: Rows,
        raw: Rows | None = None,
    ) -> None:  # fmt: skip
        """A convolution with ReLU and pool behind it; with a norm before them, by way of `raw`."""
        self._product(rows, layer, weight, bias, out if norm is None else raw)
        if norm is not None:
            assert raw is not None
            self._launch(
                catalog.norm_kernel(self.precision, layer),
                (len(out.values),),
                (raw.values, norm.gamma, norm.beta, out.values, _int(raw.valid), np.float32(NORM_EPSILON)),
            )

    def linear(self, x: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, out: cp.ndarray) -> None:
        """x weight + bias with ReLU: a convolution with one tap over articles of one row."""
        self._product(Rows(x[:, None], 1), layer, weight, bias, Rows(out[:, None], 1))

    def head(self, x: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, out: Scored) -> None:
        """The last layer, softmax, and the k best classes."""
        kernel = catalog.head_kernel(self.precision, layer)
        articles = catalog.HEAD_WARPS * catalog.HEAD_ARTICLES
        self._launch(
            kernel,
            (-(-len(x) // articles),),
            (x, weight, bias, _int(len(x)), _int(layer.outputs), _int(out.labels.shape[1]), *out),
        )

    def _product(self, rows: Rows, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, out: Rows | None) -> None:
        assert out is not None
        at = self._tile(layer, 0)
        kernel = catalog.product_kernel(self.generation, self.precision, layer, at)
        pool = 1 if layer.norm else layer.pool
        articles, pitch, channels = rows.values.shape
        outputs = layer.outputs
        if isinstance(at, Sm90Tile):
            self._product_sm90(kernel, at, rows, layer, pool, weight, bias, out)
            return
        tile_m, tile_n = _SM80_TILE if isinstance(at, Sm80Tile) else _SIMT_TILE
        self._launch(
            kernel,
            (outputs // tile_n, -(-articles * pitch // tile_m)),
            (rows.values, weight, bias, out.values, _int(articles * pitch), _int(channels), _int(outputs),
             _int(pitch // pool), _int(out.values.shape[1]), _int(articles)),
        )  # fmt: skip

    def _product_sm90(
        self, kernel: Kernel, at: Sm90Tile, rows: Rows, layer: Layer, pool: int, weight: cp.ndarray, bias: cp.ndarray,
        out: Rows,
    ) -> None:  # fmt: skip
        from pipeline.kernels.tensor_map import tensor_map

        articles, pitch, channels = rows.values.shape
        linear = layer.kind == "linear"
        units = articles if linear else pitch // pool
        box = catalog.phase_rows(layer.kernel, pool, at)
        total = articles * pitch // pool
        tile_units = 64 * at.m_blocks // pool
        m_tiles, n_tiles = -(-total // tile_units), layer.outputs // 256
        pointer, precision = rows.values.data.ptr, self.precision
        if pool == 1:
            source = tensor_map(pointer, precision, (total, channels), (box, 64))
        else:
            source = tensor_map(pointer, precision, (total, pool, channels), (box, 1, 64))
        weights = tensor_map(
            weight.data.ptr, precision, (layer.kernel * layer.outputs, channels), (256 // at.cluster, 64)
        )
        rows_out, count = (articles, 1) if linear else (out.values.shape[1], articles)
        clusters = min(self.processors // at.cluster, -(-m_tiles // at.cluster) * n_tiles)
        self._launch(
            kernel,
            (clusters * at.cluster,),
            (source, weights, bias, out.values, _int(channels // 64), _int(units), _int(rows_out), _int(count),
             _int(m_tiles), _int(n_tiles)),
        )  # fmt: skip

    def _tile(self, layer: Layer, ids: int) -> Tile | None:
        found = self.tiles.get(layer.name)
        return found or catalog.layer_tile(self.generation, self.architecture, layer, ids)

    def _launch(self, kernel: Kernel, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        function = load(kernel.file, kernel.expression, catalog.target(self.generation, self.architecture))
        self.launched(kernel, grid, arguments)
        try:
            function(grid, (kernel.threads,), arguments, shared_mem=kernel.shared_bytes)
        except cp.cuda.driver.CUDADriverError as error:
            if "INVALID_VALUE" not in str(error) and "OUT_OF_RESOURCES" not in str(error):
                raise  # of an earlier kernel, told where the batch is known
            raise BroadsheetError(f"kernel {kernel.name} ({kernel.expression}) was not launched: {error}") from error


def operations(
    generation: str, precision: str, device: cp.cuda.Device, launched: Launched = lambda *launch: None
) -> Operations:
    """The operations for a GPU, in the table's tile configurations."""
    processors = device.attributes["MultiProcessorCount"]
    return Operations(generation, precision, f"sm_{device.compute_capability}", processors, {}, launched)


def tile_shape(ops: Operations, layer: Layer) -> tuple[int, int] | None:
    """Input rows and outputs that one tile of a product covers; None where the layer is no tiled product."""
    if layer.name == "conv1" or not layer.relu:
        return None
    at = catalog.layer_tile(ops.generation, ops.architecture, layer, 0)
    if isinstance(at, Sm90Tile):
        return 64 * at.m_blocks, 256
    return _SM80_TILE if isinstance(at, Sm80Tile) else _SIMT_TILE


@cache
def load(file: str, expression: str, target: str) -> Any:
    """The kernel as a CuPy function, compiled if the cache does not hold it; once a process.

    A function is one to all models of a process, which may need more or less shared memory: it may take all there is.
    """
    cubin = compile_kernel(file, expression, target)
    function = cp.RawModule(path=str(cubin.path)).get_function(cubin.symbol)
    most = cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    function.max_dynamic_shared_size_bytes = most - function.shared_size_bytes
    return function


@cache
def _blocks_a_processor(architecture: str, kernel: Kernel) -> int:
    """How many blocks of block 1 a multiprocessor holds, by shared memory: the grid is one wave of them."""
    return shared_limit(architecture) // (kernel.shared_bytes + 1024)


def _int(value: int) -> np.int32:
    return np.int32(value)
