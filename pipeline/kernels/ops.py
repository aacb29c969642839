"""The operations of models on a GPU. Each launches the kernels for one operation of a specification in `../model/`.

Those of the network have the signatures of `reference.py`, with an `out` for the result, so that nothing is allocated.
Arrays are CuPy's.
Rows up to block 6 are packed as common/packing.cuh describes. Kernels run on CuPy's current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from ..errors import BroadsheetError
from ..model.alphabet import head_bytes
from ..model.layers import NORM_EPSILON, WHOLE, Frame, Layer
from ..model.scores import SOFTMAX
from . import catalog
from .batch_arrays import DeviceEncoded, DeviceTexts, NetworkRows, Packing, Scored
from .catalog import Activation, Kernel
from .compile import compile_all, kernel_here
from .memory_plan import most_units
from .storage import STORAGE, Storage
from .tables import StatisticsTables, rotary_record
from .tensor_maps import tensor_map
from .tiles import (
    SLAB_BYTES,
    ProductTile,
    SimtLookupTile,
    Sm80SplitTile,
    Sm80Tile,
    Sm90DenseTile,
    Sm90Tile,
    lookup_tile,
    product_tile,
    shared_limit,
)
from .weights import DeviceAlphabet, DeviceFastText, DeviceNGrams, DeviceNorm, DeviceTable

Launched = Callable[[Kernel, tuple[int, ...], tuple[Any, ...]], None]
"""A function that is called with a kernel, its grid and its arguments."""

_NO_ROTARY = rotary_record(0, 0, 0)


@dataclass(frozen=True)
class Operations:
    """The operations in one kernel generation and precision, for one architecture.

    Attributes
    ----------
    generation : str
        The kernel generation, such as "sm90".
    precision : str
        The precision, such as "fp16".
    stored : Storage
        The types of the values in memory.
    architecture : str
        The GPU's architecture, such as "sm_90".
    sms : int
        The number of SMs of the GPU.
    tiles : dict of str to ProductTile
        The tiles of products by layer name that replace those of the table.
    launched : callable
        A function that is called before each launch, with the kernel, its grid and its arguments.

    """

    generation: str
    precision: str
    stored: Storage
    architecture: str
    sms: int
    tiles: dict[str, ProductTile]
    launched: Launched

    def encode(self, texts: DeviceTexts, alphabet: DeviceAlphabet, length: int, out: DeviceEncoded) -> None:
        """Encode UTF-8 to ids. `count_characters` completes the counts of long articles.

        Parameters
        ----------
        texts : DeviceTexts
            The articles.
        alphabet : DeviceAlphabet
            The characters that the model reads.
        length : int
            The number of characters that it reads of an article.
        out : DeviceEncoded
            The arrays for ids and counts.

        """
        points = len(alphabet.points)
        self.launch(
            catalog.encode_kernel(),
            (-(-texts.limit // catalog.WARPS),),
            (*texts, _int(length), _int(head_bytes(length)), _int(out.ids.shape[1]),
             alphabet.byte_ids, alphabet.points, alphabet.point_ids, _int(points), np.uint8(alphabet.unknown), *out),
        )  # fmt: skip

    def count_characters(self, texts: DeviceTexts, length: int, n_chars: cp.ndarray) -> None:
        """Complete `n_chars` of `encode` for articles longer than `head_bytes`. For whole texts, count all characters.

        Parameters
        ----------
        texts : DeviceTexts
            The articles.
        length : int
            The number of characters that the model reads of an article, or `WHOLE` for all.
        n_chars : int64 [N]
            The counts, to which the kernel adds. For whole texts they must be zero.

        """
        short_bytes = -1 if length == WHOLE else head_bytes(length)  # shorter articles are counted already
        self.launch(
            catalog.count_kernel(),
            (-(-len(texts.data) // (catalog.WARPS * catalog.COUNTED_BYTES)),),
            (*texts, _int(short_bytes), n_chars),
        )

    def fasttext(self, texts: DeviceTexts, branch: DeviceFastText, out: cp.ndarray) -> None:
        """Compute the mean rows of texts, fp32 [N, columns]."""
        kinds, pruned = branch.kinds, or_null(branch.pruned)
        self.launch(
            catalog.fasttext_kernel(branch.shape),
            (-(-texts.limit // catalog.WARPS), branch.shape.slabs),
            (*texts, branch.slots, np.uint32(len(branch.slots) - 1), branch.words, branch.ends,
             _int(branch.known), _int(branch.end), _int(kinds.words), *map(_int, kinds.characters),
             np.uint32(kinds.buckets), pruned, branch.table, np.int64(branch.table.shape[1]), branch.scale,
             _int(branch.columns), out),
        )  # fmt: skip

    def fasttext_logits(self, means: cp.ndarray, count: cp.ndarray, branch: DeviceFastText, out: Scored) -> None:
        """Compute the logits of texts from their mean rows, fp32 [N, columns], and write them to `out.logits`.

        With a tree these are scores, and `out.scores` has the values of its nodes in the meantime. count: int32 [1],
        the number of texts, at most N.
        """
        most_texts, classes = out.logits.shape
        sums = means
        if branch.output is not None:
            outputs = branch.output.shape[1]
            sums = out.logits if branch.tree is None else out.scores
            kernel = catalog.output_kernel()
            grid = (-(-most_texts // catalog.PRODUCT_TEXTS), -(-outputs // kernel.threads))
            sizes = (_int(branch.columns), _int(outputs))
            self.launch(kernel, grid, (means, branch.output, count, *sizes, sums))
        if branch.tree is not None:
            warps = -(-most_texts // catalog.WARPS)
            self.launch(catalog.tree_kernel(), (warps,), (sums, *branch.tree, count, _int(classes), out.logits))

    def ngrams(self, texts: DeviceTexts, branch: DeviceNGrams, out: cp.ndarray) -> None:
        """Compute what the n-grams add to the logits of texts, fp32 [N, classes]."""
        kernel = catalog.ngrams_kernel(branch.kinds, 32 - branch.shift, branch.classes)
        self.launch(
            kernel,
            (-(-texts.limit // (kernel.threads // catalog.WARP)), len(branch.table)),
            (*texts, _int(branch.kinds.reads), branch.symbols, branch.letters, branch.table,
             _int(branch.shift), branch.scale, _int(branch.classes), out),
        )  # fmt: skip

    def norm_statistics(
        self,
        ids: cp.ndarray,
        count: cp.ndarray,
        length: int,
        layer: Layer,
        tables: StatisticsTables,
        out: cp.ndarray,
        text_end: cp.ndarray,
    ) -> None:
        """Compute the mean and 1 / standard deviation of block 1, and where each text ends.

        Parameters
        ----------
        ids : uint8 [N, pitch]
            The ids.
        count : int32 [1]
            The number of articles, at most N.
        length : int
            The number of positions that the network reads of each row.
        layer : Layer
            Block 1.
        tables : StatisticsTables
            The sums that replace the outputs of block 1.
        out : float32 [N, 2]
            The array for mean and 1 / standard deviation.
        text_end : int32 [N]
            The array for the end of each text.

        """
        self.launch(
            catalog.statistics_kernel(layer),
            (-(-len(ids) // catalog.WARPS),),
            (ids, count, _int(length), _int(ids.shape[1]), _int(tables.first.shape[1]),
             tables.first, tables.pairs, np.float64(tables.sum_of_biases), np.float64(tables.sum_of_square_biases),
             np.float64(NORM_EPSILON), out, text_end),
        )  # fmt: skip

    def pack(self, text_end: cp.ndarray, count: cp.ndarray, layers: Sequence[Layer], whole: bool, out: Packing) -> None:
        """Compute where the rows of articles are in memory.

        Parameters
        ----------
        text_end : int32 [N]
            The end of each text.
        count : int32 [1]
            The number of articles, at most N.
        layers : sequence of Layer
            The layers of the network.
        whole : bool
            Whether each article takes the whole frame.
        out : Packing
            The arrays for the result.

        """
        first, second, *_ = layers
        rows_of_layers = (_int(first.rows_pooled), _int(second.rows_pooled), np.uint8(whole))
        kernel = catalog.first_units_kernel(first, second)
        self.launch(kernel, (1,), (text_end, count, *rows_of_layers, out.first, out.counts))
        grid = (-(-len(text_end) // catalog.WARPS),)
        self.launch(catalog.closing_units_kernel(), grid, (out.first, count, out.closing))

    def lookup_norm_pool(
        self, ids: cp.ndarray, layers: Sequence[Layer], frame: Frame, table: DeviceTable, norm: DeviceNorm,
        statistics: cp.ndarray, text_end: cp.ndarray, packing: Packing, out: cp.ndarray,
        steps_in_one: float = 1.0, saturated: cp.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Compute block 1.

        Parameters
        ----------
        ids : uint8 [N, pitch]
            The ids.
        layers : sequence of Layer
            The layers of the network.
        frame : Frame
            Whether the network also computes positions after the end of a text.
        table : DeviceTable
            The weights of the layer by tap and id.
        norm : DeviceNorm
            Gamma and beta.
        statistics : float32 [N, 2]
            The result of `norm_statistics`.
        text_end : int32 [N]
            The end of each text.
        packing : Packing
            The places of the rows.
        out : cupy.ndarray
            The array for the packed rows that block 2 reads.
        steps_in_one : float
            For an output in 8 bits, how many steps make 1.
        saturated : uint64 [1], optional
            For an output in 8 bits, the counter of saturated values.

        """
        first, second, *_ = layers
        articles, pitch = ids.shape
        rows = most_units(layers) * second.product_pool
        at = lookup_tile(self.generation, self.precision, self.architecture, first)
        kernel = catalog.lookup_kernel(self.stored, first, second, frame, at)
        grid: tuple[int, ...]
        size: tuple[np.int32, ...]
        if isinstance(at, SimtLookupTile):
            grid, size = (-(-rows // at.positions), -(-articles // at.articles)), (_int(first.ids),)
        else:
            grid, size = (self.sms * max(1, _blocks_an_sm(self.architecture, kernel)),), ()
        of_bytes = (np.float32(steps_in_one), or_null(saturated)) if at.writes_bytes else ()
        self.launch(
            kernel,
            grid,
            (ids, _int(pitch), packing.counts[1:], *size, text_end, statistics, packing.first, table.entries,
             table.affine, norm.gamma, norm.beta, out, _int(rows), *of_bytes),
        )  # fmt: skip

    def conv1d(
        self, rows: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, packing: Packing,
        constant: cp.ndarray | None, out: cp.ndarray, saturated: cp.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Compute a convolution of packed rows, then ReLU and pool if no norm comes before them.

        Parameters
        ----------
        rows : cupy.ndarray
            The input, [units, inputs], or before a pool [units, pool, inputs], with room for more.
        layer : Layer
            The layer.
        weight : cupy.ndarray
            The weights of the layer, as in `DeviceWeights.products`.
        bias : cupy.ndarray
            The bias of the layer, as in `DeviceWeights.bias`.
        packing : Packing
            The places of the rows.
        constant : cupy.ndarray or None
            The output of closing units, [outputs].
        out : cupy.ndarray
            The output, [units, outputs], with room for more.
        saturated : uint64 [1], optional
            For an output in 8 bits, the counter of saturated values.

        """
        count, closing = packing.counts[:1], packing.closing
        self._product(rows, layer, weight, bias, count, closing, constant, out, packing.unit_limit, saturated)

    def norm_relu_pool(
        self, rows: cp.ndarray, layer: Layer, norm: DeviceNorm, packing: Packing, constant: cp.ndarray, out: cp.ndarray
    ) -> None:
        """Compute layer norm, ReLU and pool over an article's packed rows, and `constant` for the frame's other rows.

        Parameters
        ----------
        rows : cupy.ndarray
            The product before its norm, [units, channels].
        layer : Layer
            The layer.
        norm : DeviceNorm
            Gamma and beta.
        packing : Packing
            The places of the rows.
        constant : cupy.ndarray
            The row that replaces those beyond an article's own, [channels].
        out : cupy.ndarray
            The output, [N, rows, channels].

        """
        count = len(packing.first) - 1
        self.launch(
            catalog.norm_kernel(self.stored, self.architecture, layer),
            (min(count, 2 * self.sms),),
            (rows, packing.first, constant, norm.gamma, norm.beta, out, packing.counts[1:], np.float32(NORM_EPSILON),
             np.float32(norm.least_variance)),
        )  # fmt: skip

    def linear(
        self, x: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, packing: Packing, out: cp.ndarray
    ) -> None:
        """Compute x weight + bias with ReLU, as a convolution with one tap whose units are articles.

        Parameters
        ----------
        x : cupy.ndarray
            The input, [N, inputs], with room for more.
        layer : Layer
            The layer.
        weight : cupy.ndarray
            The weights of the layer, as in `DeviceWeights.products`.
        bias : cupy.ndarray
            The bias of the layer, as in `DeviceWeights.bias`.
        packing : Packing
            The packing, which has the number of articles.
        out : cupy.ndarray
            The output, [N, outputs], with room for more.

        """
        self._product(x, layer, weight, bias, packing.counts[1:], None, None, out, len(packing.first) - 1, None)

    def head(
        self, x: cp.ndarray, count: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, out: Scored,
        statistics: cp.ndarray | None = None, beside: cp.ndarray | None = None, temperature: float = 1.0,
        link: int = SOFTMAX, rows: cp.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Compute the last layer, softmax at a temperature or another link (see `scores`), and the k best classes.

        Parameters
        ----------
        x : cupy.ndarray
            The input, [M, inputs].
        count : int32 [1]
            The number of articles, at most M.
        layer : Layer
            The last layer.
        weight : float32 [classes, inputs]
            The weights of the last layer.
        bias : float32 [classes]
            The bias of the last layer.
        out : Scored
            The arrays for the results.
        statistics : float32 [M, 2], optional
            The statistics of block 1. If they have overflowed, the scores become NaN, which 8-bit rows would not show.
        beside : float32 [N, classes], optional
            The scores that are added to the logits. It may be `out.logits`.
        temperature : float
            The number by which logits are divided.
        link : int
            How scores follow from logits.
        rows : int32 [M], optional
            The numbers of the articles of x among those of `beside` and `out`. The other articles stay as they are. By
            default x has all articles.

        """
        kernel = catalog.head_kernel(self.stored, layer)
        articles = catalog.HEAD_WARPS * catalog.HEAD_ARTICLES
        self.launch(
            kernel,
            (-(-len(x) // articles),),
            (x, weight, bias, or_null(beside), or_null(statistics), or_null(rows), count,
             np.float32(1 / temperature), _int(link), _int(layer.outputs), _int(out.labels.shape[1]), *out),
        )  # fmt: skip

    def ngrams_alone(
        self, bias: cp.ndarray, count: cp.ndarray, out: Scored, temperature: float, link: int,
        margin: float | None = None, cuts: cp.ndarray | None = None, network_rows: NetworkRows | None = None,
    ) -> None:  # fmt: skip
        """Compute scores and best classes of n-grams alone. Their part of the logits is in `out.logits`, which stays.

        Parameters
        ----------
        bias : float32 [classes]
            The bias that is added to the logits.
        count : int32 [1]
            The number of articles, at most the N of `out`.
        out : Scored
            The arrays for the results.
        temperature : float
            The number by which logits are divided.
        link : int
            How scores follow from logits.
        margin : float, optional
            The margin of `cascade`. The network must score articles below it.
        cuts : float32 [classes], optional
            The cuts of `cascade`, for a model that gives several labels.
        network_rows : NetworkRows, optional
            The arrays for the articles that the network must score. Their number is added to `network_rows.count`.

        """
        articles, classes = out.logits.shape
        kernel = catalog.alone_kernel(classes)
        rows, asked_count = (None, None) if network_rows is None else network_rows
        self.launch(
            kernel,
            (-(-articles // (kernel.threads // catalog.WARP)),),
            (bias, out.logits, np.float32(1 / temperature), _int(link), count, _int(classes),
             _int(out.labels.shape[1]), out.scores, out.labels, out.best, np.float32(margin or 0), or_null(cuts),
             or_null(rows), or_null(asked_count)),
        )  # fmt: skip

    def gather(self, ids: cp.ndarray, network_rows: NetworkRows, out: cp.ndarray) -> None:
        """Copy the ids of the articles that the network must score to `out`, uint8 [N, pitch], without gaps."""
        grid = (-(-len(ids) // catalog.WARPS),)
        self.launch(catalog.gather_kernel(), grid, (ids, _int(ids.shape[1]), *network_rows, out))

    def dense(
        self,
        rows: cp.ndarray,
        layer: Layer,
        weight: cp.ndarray,
        bias: cp.ndarray,
        count: cp.ndarray,
        most_rows: int,
        activation: Activation,
        out: cp.ndarray,
        rotary: NDArray[np.void] | None = None,
    ) -> None:
        """Compute a product of an encoder.

        Parameters
        ----------
        rows : cupy.ndarray
            The input, [rows, inputs], with room for more.
        layer : Layer
            The shape of the product.
        weight : cupy.ndarray
            The weights, [outputs, inputs].
        bias : float32 [outputs]
            The bias.
        count : int32 [1]
            The number of rows.
        most_rows : int
            The number of rows, on the host.
        activation : str
            The activation of the outputs.
        out : cupy.ndarray
            The output, [rows, outputs], or half as many outputs if they are gated.
        rotary : void24 [1], optional
            The result of `rotary_record`, for the activation "ROTARY".

        """
        at = self.tiles.get(layer.name) or product_tile(self.generation, self.precision, self.architecture, layer)
        rotary = _NO_ROTARY if rotary is None else rotary
        if not isinstance(at, Sm90DenseTile):
            return self._product(rows, layer, weight, bias, count, None, None, out, most_rows, None, activation, rotary)
        n_tiles = layer.outputs // at.outputs
        clusters = min(self.sms // at.cluster, -(-most_rows // (at.rows * at.cluster)) * n_tiles)
        sizes = _int(layer.inputs * self.stored.read_by(layer).bytes // SLAB_BYTES), _int(n_tiles)
        kernel = catalog.product_kernel(self.stored, layer, at, activation)
        maps = self._tensor_maps(rows, layer, weight, at)
        box = SLAB_BYTES // 2 if activation.startswith("GATED") else SLAB_BYTES
        stored = tensor_map(out.data.ptr, (len(out), out.strides[0]), (at.stored_rows, box))
        return self.launch(kernel, (clusters * at.cluster,), (*maps, stored, bias, *sizes, count, rotary))

    def _product(
        self, rows: cp.ndarray, layer: Layer, weight: cp.ndarray, bias: cp.ndarray, count: cp.ndarray,
        closing: cp.ndarray | None, constant: cp.ndarray | None, out: cp.ndarray, unit_limit: int,
        saturated: cp.ndarray | None, activation: Activation | None = None, rotary: NDArray[np.void] | None = None,
    ) -> None:  # fmt: skip
        """Launch the product of a convolution or a linear layer.

        Parameters
        ----------
        rows : cupy.ndarray
            The input.
        layer : Layer
            The layer.
        weight : cupy.ndarray
            The weights of the layer, as in `DeviceWeights.products`.
        bias : cupy.ndarray
            The bias of the layer, as in `DeviceWeights.bias`.
        count : int32 [1]
            The number of units.
        closing : uint8 [units], or None
            The closing units. See `Packing`.
        constant : cupy.ndarray or None
            The output of closing units, [outputs].
        out : cupy.ndarray
            The output.
        unit_limit : int
            The largest number of units, which is all that the host knows.
        saturated : uint64 [1], or None
            For an output in 8 bits, the counter of saturated values.
        activation : str, optional
            The activation, for an encoder. By default the layer decides.
        rotary : void24 [1], optional
            See `dense`.

        """
        # Choose the tile and the kernel.
        at = self.tiles.get(layer.name) or product_tile(self.generation, self.precision, self.architecture, layer)
        kernel = catalog.product_kernel(self.stored, layer, at, activation)
        m_tiles, n_tiles = -(-unit_limit * layer.product_pool // at.rows), layer.outputs // at.outputs
        packing: tuple[Any, ...] = (count, or_null(closing), or_null(constant))
        if at.writes_bytes:
            packing = (*packing, or_null(saturated))
        if isinstance(at, Sm80Tile) and not isinstance(at, Sm80SplitTile):
            packing = (*packing, _NO_ROTARY if rotary is None else rotary)
        # Launch persistent clusters on Hopper, and elsewhere a block for each tile.
        if isinstance(at, Sm90Tile):
            clusters = min(self.sms // at.cluster, -(-m_tiles // at.cluster) * n_tiles)
            slabs = (_int(layer.inputs * self.stored.read_by(layer).bytes // SLAB_BYTES), _int(n_tiles))
            self.launch(
                kernel,
                (clusters * at.cluster,),
                (*self._tensor_maps(rows, layer, weight, at), bias, out, *slabs, *packing),
            )
            return
        channels = (_int(layer.inputs), _int(layer.outputs))
        self.launch(kernel, (n_tiles, m_tiles), (rows, weight, bias, out, *channels, *packing))

    def _tensor_maps(self, rows: cp.ndarray, layer: Layer, weight: cp.ndarray, at: Sm90Tile) -> tuple[Any, Any]:
        """Return tensor maps of the buffer of rows and of the weights.

        Rows are loaded by phases before a pool, and weights in the share of one block of a cluster.
        """
        pool, row_bytes = layer.product_pool, layer.inputs * self.stored.read_by(layer).bytes
        phases = () if pool == 1 else (pool,)
        shape = (rows.nbytes // (pool * row_bytes), *phases, row_bytes)
        box = (at.box_rows(layer), *(1 for _ in phases), SLAB_BYTES)
        weight_shape, weight_box = (layer.kernel * layer.outputs, row_bytes), (at.outputs // at.cluster, SLAB_BYTES)
        return tensor_map(rows.data.ptr, shape, box), tensor_map(weight.data.ptr, weight_shape, weight_box)

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        """Compile kernels on all cores and load them, so that no batch has to wait for this."""
        compiled_for = catalog.target(self.generation, self.architecture)
        compile_all([(kernel.file, kernel.expression) for kernel in kernels], compiled_for)
        for kernel in kernels:
            load(kernel.file, kernel.expression, compiled_for)

    def launch(self, kernel: Kernel, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        """Launch a kernel on CuPy's current stream. Raises BroadsheetError if CUDA refuses the launch."""
        function = load(kernel.file, kernel.expression, catalog.target(self.generation, self.architecture))
        self.launched(kernel, grid, arguments)
        try:
            function(grid, (kernel.threads,), arguments, shared_mem=kernel.shared_bytes)
        except cp.cuda.driver.CUDADriverError as error:
            if "INVALID_VALUE" not in str(error) and "OUT_OF_RESOURCES" not in str(error):
                raise  # the error of an earlier kernel, reported where its batch is known
            raise BroadsheetError(f"kernel {kernel.name} ({kernel.expression}) was not launched: {error}") from error


def operations(
    generation: str, precision: str, device: cp.cuda.Device, launched: Launched = lambda *launch: None
) -> Operations:
    """Return the operations for a GPU, with the tiles of the table."""
    sms = device.attributes["MultiProcessorCount"]
    stored = STORAGE[generation][precision]
    return Operations(generation, precision, stored, f"sm_{device.compute_capability}", sms, {}, launched)


def tile_shape(ops: Operations, layer: Layer) -> tuple[int, int] | None:
    """Return the input rows and outputs of one tile of a product, or None for a layer that is not a tiled product."""
    if layer.is_lookup or not layer.relu:
        return None
    at = product_tile(ops.generation, ops.precision, ops.architecture, layer)
    return at.rows, at.outputs


def load(file: str, expression: str, target: str) -> Any:
    """Return the kernel as a CuPy function of the current device. Compile it if the cache does not have it."""
    return _load(file, expression, target, cp.cuda.runtime.getDevice())


@cache
def _load(file: str, expression: str, target: str, device: int) -> Any:
    """Load a kernel once per process and device. A function belongs to the CUDA context that is current at this time.

    All models of a process share it, and need different amounts of shared memory, so it may use the maximum.
    """
    cubin = kernel_here(file, expression, target)
    module = cp.cuda.Module()
    module.load(cubin.code)
    function = module.get_function(cubin.symbol)
    driver = cp.cuda.driver
    largest = cp.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"]
    static = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
    driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, largest - static)
    return function


@cache
def _blocks_an_sm(architecture: str, kernel: Kernel) -> int:
    """Return how many thread blocks of block 1's kernel fit in the shared memory of an SM. The grid is one wave."""
    return shared_limit(architecture) // (kernel.shared_bytes + 1024)


def _int(value: int) -> np.int32:
    return np.int32(value)


def or_null(array: cp.ndarray | None) -> Any:
    """Return an argument of a kernel: the array, or a null pointer for None."""
    return np.uint64(0) if array is None else array
