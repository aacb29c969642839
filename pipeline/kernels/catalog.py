"""The kernel of each operation: its file, template instance, threads and dynamic shared memory. Needs no GPU.

Each function is cached: every batch asks for all of its kernels, and formatting their names takes longer than launching
them. The kernels at the end of the file compute block 1 in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from ..errors import UsageError
from ..model.fasttext import MOST_CLASSES
from ..model.layers import Frame, Layer
from ..model.ngrams import Kinds
from .memory_plan import CLOSING_UNITS, articles_for_a_full_one, most_units
from .storage import STORAGE, Element, Storage
from .tables import FastTextShape, encoder_layer, lanes
from .tiles import Launch, LookupTile, ProductTile, Tile, dense_outputs, lookup_tile, product_tile, shared_limit

WARP = 32
WARPS = 8
"""The number of warps in a block, for kernels that need no other number."""

MOST_WARPS = 32
"""The number of warps in the largest block."""

COUNTED_BYTES = 4096
"""The number of bytes that each warp reads when it counts the characters of long articles."""

HEAD_WARPS = 4
HEAD_ARTICLES = 4

_WORDS_QUEUED, _COUNTED = 48, 1024
"""How many words and how many counts each warp of the n-grams' kernel has room for."""

_NGRAMS_SHARED = 52 << 10
"""The most bytes of shared memory that a block of the n-grams' kernel uses."""

_ALONE_SHARED = 4 * MOST_CLASSES
"""The most bytes of shared memory that a block of the kernel for n-grams alone uses.

On every architecture this is enough for one warp with the largest number of classes.
"""

PRODUCT_TEXTS = 16
"""The number of texts in a block that multiplies with fastText's output matrix. Each thread computes one class."""

_PRODUCT_DEEP = 256

HEAD_TEXTS = 1, 4
"""The number of texts in a block of an encoder's head: for few texts or long vectors, and for all others."""

ATTENTION_ROWS = 64
"""The number of queries in a block for short texts, and of keys in a piece."""

DISTANCE_HEAD = 64
"""The number of values in a head of attention that counts distances."""

EMBEDDED_ROWS = 64
"""The number of rows of the longest text that each block embeds, for models whose positions are not vectors."""

_MOST_TEXTS = 1 << 20
"""The most texts in a batch, for a model that reads whole texts."""

_MOST_BLOCKS = 65_535
"""The most thread blocks along the second dimension of a grid (CUDA C++ Programming Guide)."""

_INT32_MAX = (1 << 31) - 1


Activation = Literal["NONE", "RELU", "GELU", "GELU_TANH", "GATED_RELU", "GATED_GELU", "GATED_GELU_TANH", "ROTARY"]
"""The activation that follows a product of an encoder, as common/outputs.cuh names it."""

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)


@dataclass(frozen=True)
class Kernel:
    """An instance of a kernel template, with its launch.

    Attributes
    ----------
    name : str
        The operation or layer, as profiles and error messages name it.
    file : str
        The source, relative to the folder of the kernels.
    expression : str
        The template instance, in C++.
    threads : int
        The number of threads in a block.
    shared_bytes : int
        The dynamic shared memory of a block, in bytes.

    """

    name: str
    file: str
    expression: str
    threads: int = WARPS * WARP
    shared_bytes: int = 0


def target(generation: str, architecture: str) -> str:
    """Return the architecture to compile for: features that only Hopper has (wgmma, setmaxnreg) need "sm_90a"."""
    return f"{architecture}a" if generation == "sm90" else architecture


@cache
def encode_kernel() -> Kernel:
    return Kernel("encode", "common/encode.cu", f"encode<{WARPS}>")


@cache
def count_kernel() -> Kernel:
    return Kernel("count", "common/encode.cu", f"count_characters<{WARPS}, {COUNTED_BYTES}>")


@cache
def statistics_kernel(layer: Layer) -> Kernel:
    instance = f"norm_statistics<{layer.kernel}, {layer.outputs}, {WARPS}>"
    return Kernel(f"{layer.name} statistics", "common/statistics.cu", instance)


@cache
def first_units_kernel(first: Layer, second: Layer) -> Kernel:
    instance = f"first_units<{first.pool}, {second.pool}, {CLOSING_UNITS}, {MOST_WARPS}>"
    return Kernel("first units", "common/packing.cu", instance, MOST_WARPS * WARP)


@cache
def closing_units_kernel() -> Kernel:
    return Kernel("closing units", "common/packing.cu", f"closing_units<{WARPS}>")


@cache
def lookup_kernel(stored: Storage, layer: Layer, following: Layer, frame: Frame, at: LookupTile) -> Kernel:
    """Return the kernel of the whole block 1: look-up, norm, ReLU and pool.

    Parameters
    ----------
    stored : Storage
        The types of the values in memory.
    layer : Layer
        Block 1.
    following : Layer
        Block 2. Its pool decides how rows are laid out.
    frame : Frame
        Whether the network also computes positions after the end of a text.
    at : LookupTile
        The tile, which says how thread blocks divide the work.

    """
    text = "true" if frame == "text" else "false"
    shape = (layer.kernel, layer.outputs, layer.pool, following.product_pool, text)
    return _tiled(layer, (stored.norms, stored.rows), shape, at)


@cache
def product_kernel(stored: Storage, layer: Layer, at: ProductTile, activation: Activation | None = None) -> Kernel:
    """Return the kernel of the product of a convolution or linear layer.

    It includes ReLU and pool if no norm comes before them, or the activation of an encoder.
    """
    follows = activation or ("true" if layer.product_relu else "false")
    elements = (stored.read_by(layer), stored.written_by(layer))
    return _tiled(layer, elements, (layer.kernel, layer.product_pool, follows), at)


def _tiled(layer: Layer, elements: tuple[Element, Element], shape: tuple[object, ...], at: Tile) -> Kernel:
    """Return the kernel of a layer with a tile. elements: the type that it computes in or reads, and that it writes."""
    launch = at.launch(layer)
    names = (element.name for element in at.elements(*elements))
    arguments = ", ".join(map(str, (*names, *shape, *at.arguments(layer), launch)))
    return Kernel(layer.name, f"{at.folder}/{at.operation}.cu", f"{at.operation}<{arguments}>", *launch)


@cache
def norm_kernel(stored: Storage, architecture: str, layer: Layer) -> Kernel:
    """Return the kernel of block 6's norm, ReLU and pool.

    γ and β are in shared memory if an SM has room for those of two thread blocks.
    """
    launch = Launch(WARPS * WARP, 2 * layer.rows_out * layer.outputs * stored.norms.bytes)
    if launch.shared_bytes > shared_limit(architecture) // 2 - 1024:
        launch = Launch(WARPS * WARP)
    shape = f"{layer.outputs}, {layer.pool}, {layer.rows_out}, {WARPS}"
    instance = f"norm_relu_pool<{stored.norms.name}, {stored.features.name}, {shape}, {launch}>"
    return Kernel(f"{layer.name} norm", "common/norm_relu_pool.cu", instance, *launch)


@cache
def ngrams_kernel(kinds: Kinds, bits: int, classes: int) -> Kernel:
    """Return the kernel that scores n-grams.

    A warp has one article in shared memory, as symbols of two bytes with a white space at either end, and counts of
    buckets. An entry has 32 bits if the number of a bucket and the count of all n-grams fit, else 64 bits. bits: the
    width of a bucket's number.
    """
    low, high = kinds.characters
    most_ngrams = max(kinds.words, high - low + 1) * (kinds.reads + 1)
    entry = 4 if bits + most_ngrams.bit_length() <= 32 else 8
    of_warp = -(-(_COUNTED * entry + 2 * (_WORDS_QUEUED + kinds.reads + 2)) // 16) * 16
    warps = next(warps for warps in (8, 4, 2, 1) if warps * of_warp <= _NGRAMS_SHARED)
    instance = f"{warps}, {lanes(classes)}, {kinds.words}, {low}, {high}, uint{8 * entry}, {warps * of_warp}"
    return Kernel("ngrams", "common/ngrams.cu", f"ngrams<{instance}>", warps * WARP, warps * of_warp)


@cache
def head_kernel(stored: Storage, layer: Layer) -> Kernel:
    bytes_a_class = HEAD_WARPS * HEAD_ARTICLES * 4
    instance = f"head<{stored.features.name}, {layer.inputs}, {HEAD_WARPS}, {HEAD_ARTICLES}, {bytes_a_class}>"
    return Kernel(layer.name, "common/head.cu", instance, HEAD_WARPS * WARP, bytes_a_class * layer.outputs)


@cache
def alone_kernel(classes: int) -> Kernel:
    """Return the kernel that scores and labels by n-grams alone, and lists the articles that the network must score."""
    warps = next(warps for warps in (8, 4, 2, 1) if 4 * warps * classes <= _ALONE_SHARED)
    expression = f"ngrams_alone<{warps}, {4 * warps}>"
    return Kernel("n-grams alone", "common/head.cu", expression, warps * WARP, 4 * warps * classes)


@cache
def gather_kernel() -> Kernel:
    return Kernel("gather", "common/packing.cu", f"gather<{WARPS}>")


def branch_kernels(kinds: Kinds, bits: int, classes: int) -> list[Kernel]:
    """Return every kernel that a model of n-grams alone launches, in order."""
    return [encode_kernel(), count_kernel(), ngrams_kernel(kinds, bits, classes), alone_kernel(classes)]


@cache
def fasttext_kernel(shape: FastTextShape) -> Kernel:
    """Return the kernel that computes the mean row of each text, a warp for each text."""
    instance = f"{WARPS}, {shape.lanes}, {shape.columns}, {'int' if shape.bits == 32 else 'short'}"
    return Kernel("fasttext", "common/fasttext.cu", f"fasttext<{instance}>")


@cache
def output_kernel() -> Kernel:
    instance = f"{WARPS * WARP}, {PRODUCT_TEXTS}, {_PRODUCT_DEEP}"
    return Kernel("fasttext output", "common/fasttext_output.cu", f"product<{instance}>")


@cache
def tree_kernel() -> Kernel:
    return Kernel("fasttext tree", "common/fasttext_output.cu", f"tree<{WARPS}>")


def fasttext_kernels(shape: FastTextShape, classes: int) -> list[Kernel]:
    """Return every kernel that a fastText model launches, in order.

    A model launches those between the second and the last only if it needs them.
    """
    return [count_kernel(), fasttext_kernel(shape), output_kernel(), tree_kernel(), alone_kernel(classes)]


@cache
def find_changes_kernel() -> Kernel:
    return Kernel("find changes", "records/lines.cu", "find_changes")


@cache
def find_insides_kernel() -> Kernel:
    return Kernel("find insides", "records/lines.cu", "find_insides")


@cache
def count_line_ends_kernel() -> Kernel:
    return Kernel("count line ends", "records/lines.cu", "count_line_ends")


@cache
def place_line_ends_kernel() -> Kernel:
    return Kernel("place line ends", "records/lines.cu", "place_line_ends")


@cache
def find_lines_kernel() -> Kernel:
    return Kernel("find lines", "records/lines.cu", "find_lines")


@cache
def read_objects_kernel() -> Kernel:
    return Kernel("read objects", "records/json.cu", "read_objects")


@cache
def refuse_repeated_keys_kernel() -> Kernel:
    return Kernel("refuse repeated keys", "records/json.cu", "refuse_repeated_keys")


@cache
def read_fields_kernel() -> Kernel:
    return Kernel("read fields", "records/csv.cu", "read_fields")


@cache
def measure_values_kernel() -> Kernel:
    return Kernel("measure values", "records/values.cu", "measure_values")


@cache
def write_values_kernel() -> Kernel:
    return Kernel("write values", "records/values.cu", "write_values")


@cache
def join_texts_kernel() -> Kernel:
    return Kernel("join texts", "records/join.cu", "join_texts")


@cache
def trim_texts_kernel() -> Kernel:
    return Kernel("trim texts", "records/join.cu", "trim_texts")


def record_kernels() -> list[Kernel]:
    """Return the kernels that find the records of a block and their values."""
    return [
        find_changes_kernel(),
        find_insides_kernel(),
        count_line_ends_kernel(),
        place_line_ends_kernel(),
        find_lines_kernel(),
        read_objects_kernel(),
        refuse_repeated_keys_kernel(),
        read_fields_kernel(),
        measure_values_kernel(),
        write_values_kernel(),
        join_texts_kernel(),
        trim_texts_kernel(),
        find_blank_kernel(),
        map_bytes_kernel(),
        strip_texts_kernel(),
    ]


@cache
def find_blank_kernel() -> Kernel:
    return Kernel("find blank texts", "records/texts.cu", "find_blank")


@cache
def map_bytes_kernel() -> Kernel:
    return Kernel("map bytes", "records/texts.cu", "map_bytes")


@cache
def strip_texts_kernel() -> Kernel:
    return Kernel("strip texts", "records/texts.cu", "strip_texts")


@cache
def wordpiece_kernel(longest: int) -> Kernel:
    """Return the kernel that makes tokens of texts, a thread for each part of a text.

    longest: the most code points in a word that is cut into tokens.
    """
    return _tokens_kernel("wordpiece", longest)


@cache
def count_tokens_kernel(longest: int) -> Kernel:
    """Return the kernel that counts the tokens of parts of texts. longest: as in `wordpiece_kernel`."""
    return _tokens_kernel("count_tokens", longest)


def _tokens_kernel(template: str, longest: int) -> Kernel:
    launch = Launch(2 * WARP, 2 * WARP * longest * 4)
    return Kernel("tokens", "common/wordpiece.cu", f"{template}<{longest}, {launch}>", *launch)


@cache
def embed_kernel(element: Element, pitch: int) -> Kernel:
    return Kernel("embedding", "common/encoder.cu", f"embed<{element.name}, {_pieces(pitch)}, {WARPS}>")


@cache
def add_norm_kernel(element: Element, pitch: int) -> Kernel:
    return Kernel("norm", "common/encoder.cu", f"add_norm<{element.name}, {_pieces(pitch)}, {WARPS}>")


@cache
def embed_tokens_kernel(element: Element, pitch: int) -> Kernel:
    return Kernel("embedding", "common/encoder.cu", f"embed_tokens<{element.name}, {_pieces(pitch)}, {WARPS}>")


@cache
def add_then_norm_kernel(element: Element, pitch: int) -> Kernel:
    return Kernel("norm", "common/encoder.cu", f"add_then_norm<{element.name}, {_pieces(pitch)}, {WARPS}>")


@cache
def attention_kernel(generation: str, element: Element, head: int, is_long: bool, is_windowed: bool = False) -> Kernel:
    """Return the kernel of the attention of texts over themselves.

    Parameters
    ----------
    generation : str
        The kernel generation, such as "sm90".
    element : Element
        The type in which rows are stored.
    head : int
        The number of values in a head's vector, 32 or 64.
    is_long : bool
        Whether texts have more than ATTENTION_ROWS tokens. A block then has twice as many queries: it has twice the
        warps, or in `sm80` each warp has twice as many.
    is_windowed : bool
        Whether tokens attend only to tokens near them. Masks use registers, so a warp then has no more queries.

    """
    is_sm90, blocks = generation == "sm90", 2 if is_long else 1
    by_each = 1 if is_sm90 or is_windowed else blocks
    launch = Launch(4 * blocks // by_each * WARP, 2 * (blocks + 2) * ATTENTION_ROWS * 2 * head)
    # The blocks for which an SM must have registers, by is_sm90 and is_long.
    of_an_sm = {(True, True): 2, (True, False): 4, (False, True): 2 if by_each == 2 else 1, (False, False): 3}
    template_arguments = f"{element.name}, {head}, {by_each}"
    windowed = "true" if is_windowed else "false"
    products = f"Products<{template_arguments}>"
    instance = f"attention<{products}, {template_arguments}, {of_an_sm[is_sm90, is_long]}, {windowed}, {launch}>"
    return Kernel("attention", f"{generation}/attention.cu", instance, *launch)


@cache
def distance_attention_kernel(element: Element, queries: int) -> Kernel:
    """Return the kernel of attention that counts distances, for every generation.

    queries: the number of queries in a block, from `distance_queries`.
    """
    warps, ring = queries // 16, queries // ATTENTION_ROWS + 2
    tiles = queries // ATTENTION_ROWS + 2 * 2 + 2 * ring  # queries, keys and values, keys and queries of distances
    launch = Launch(warps * WARP, tiles * ATTENTION_ROWS * 2 * DISTANCE_HEAD)
    instance = f"attention_by_distance<{element.name}, {warps}, {launch}>"
    return Kernel("attention", "sm80/distances.cu", instance, *launch)


def distance_queries(architecture: str) -> tuple[int, int]:
    """Return the number of queries in a block, for texts of up to ATTENTION_ROWS tokens and for longer texts.

    The second is twice the first if shared memory has room.
    """
    fits = shared_limit(architecture) >= 7 * 2 * ATTENTION_ROWS * 2 * DISTANCE_HEAD
    return ATTENTION_ROWS, ATTENTION_ROWS * (2 if fits else 1)


@cache
def encoder_head_kernel(element: Element, longest: int, texts: int) -> Kernel:
    """Return the kernel of an encoder's head.

    longest: the number of values in the longest vector. texts: the number of texts in a block, which reads the head's
    weights once for all of them.
    """
    instance = f"head<{element.name}, {2 * WARPS}, {texts}>"
    return Kernel("head", "common/encoder.cu", instance, 2 * WARPS * WARP, 8 * texts * longest)


def _pieces(pitch: int) -> int:
    """Return how many vectors of eight values of a row each lane holds."""
    return -(-pitch // (8 * WARP))


def encoder_kernels(
    generation: str, precision: str, architecture: str, pitch: int, head: int, longest: int | None,
    activations: Sequence[Activation] = ACTIVATIONS, counts_distances: bool = False,
) -> list[Kernel]:  # fmt: skip
    """Return every kernel that an encoder may launch. Its products differ only in the activation.

    Parameters
    ----------
    generation, precision, architecture : str
        See `network_kernels`.
    pitch : int
        The number of values in a row.
    head : int
        The number of values in a head's vector, 32 or 64.
    longest : int or None
        The most code points in a word that is cut into tokens; None if the host makes the tokens.
    activations : sequence of str
        The activations that may follow a product.
    counts_distances : bool
        Whether attention counts distances.

    """
    # The first vectors and the norms.
    target = generation, precision, architecture
    stored = STORAGE[generation][precision]
    element, layers = stored.features, [encoder_layer("", pitch, outputs) for outputs in dense_outputs(*target)]
    kernels = [embed_kernel(element, pitch), add_norm_kernel(element, pitch)]
    if "ROTARY" in activations:
        kernels += [embed_tokens_kernel(element, pitch), add_then_norm_kernel(element, pitch)]
        kernels += [attention_kernel(generation, element, head, is_long, True) for is_long in (False, True)]
    if counts_distances:
        kernels += [embed_tokens_kernel(element, pitch)]
        kernels += [distance_attention_kernel(element, queries) for queries in distance_queries(architecture)]
    # The tokens, and attention without windows or distances.
    kernels += [] if longest is None else [count_tokens_kernel(longest), wordpiece_kernel(longest)]
    kernels += [attention_kernel(generation, element, head, is_long) for is_long in (False, True)]
    # The products. Only the first width of outputs has an activation.
    for number, layer in enumerate(layers):
        follows = activations if number == 0 else ("NONE",)
        kernels += [product_kernel(stored, layer, product_tile(*target, layer), activation) for activation in follows]
    return [*kernels, *(encoder_head_kernel(element, pitch, texts) for texts in HEAD_TEXTS)]


def network_kernels(
    generation: str, precision: str, architecture: str, layers: Sequence[Layer], frame: Frame
) -> list[Kernel]:
    """Return every kernel that a model launches, in order. Only batches with a long article need the second.

    Parameters
    ----------
    generation : str
        The kernel generation, such as "sm90".
    precision : str
        The precision, such as "fp16".
    architecture : str
        The GPU's architecture, such as "sm_90".
    layers : sequence of Layer
        The layers of the network.
    frame : Frame
        Whether the network also computes positions after the end of a text.

    """
    first, second, *_ = layers
    stored = STORAGE[generation][precision]
    kernels = [encode_kernel(), count_kernel(), statistics_kernel(first)]
    kernels += [first_units_kernel(first, second), closing_units_kernel()]
    kernels.append(lookup_kernel(stored, first, second, frame, lookup_tile(generation, precision, architecture, first)))
    for layer in layers[1:-1]:
        at = product_tile(generation, precision, architecture, layer)
        kernels.append(product_kernel(stored, layer, at))
        if layer.norm:
            kernels.append(norm_kernel(stored, architecture, layer))
    return [*kernels, head_kernel(stored, layers[-1])]


def largest_batch(generation: str, precision: str, architecture: str, layers: Sequence[Layer], frame: Frame) -> int:
    """Return the most articles that a batch can hold, however much memory there is.

    There are two limits. Block 1 in 16 bits counts the vectors of eight channels of its output in 32-bit integers. The
    products of `simt` and `sm80` have a thread block for each tile of rows along the second dimension of their grid.
    Block 2 has the most tiles.

    Parameters
    ----------
    generation : str
        The kernel generation, such as "sm90".
    precision : str
        The precision, such as "fp16".
    architecture : str
        The GPU's architecture, such as "sm_90".
    layers : sequence of Layer
        The layers of the network. A model of whole texts has one.
    frame : Frame
        Whether the network also computes positions after the end of a text.

    """
    if len(layers) == 1:
        return _MOST_TEXTS
    first, second, *_ = layers
    rows = most_units(layers) * second.product_pool
    articles = _INT32_MAX // (rows * first.outputs // 8) - 1
    if generation != "sm90":
        articles = min(articles, _MOST_BLOCKS * product_tile(generation, precision, architecture, second).rows // rows)
    return articles * articles_for_a_full_one(frame)


def choose_generation(kernels: str, precision: str, capability: tuple[int, int]) -> tuple[str, str]:
    """Return the kernel generation and precision for a GPU of a compute capability.

    kernels, precision: "auto" or a name. Raises UsageError if they do not fit each other or the GPU.
    """
    best = "sm90" if capability[0] == 9 else "sm80" if capability >= (8, 0) else "simt"
    if kernels == "auto":
        kernels = best
        if best == "simt" and precision == "int8":
            kernels = "sm75"
        if best == "simt" and precision in ("fp16", "bf16"):
            raise UsageError(f"{precision} needs compute capability 8.0, this GPU has {capability[0]}.{capability[1]}")
    needs = {"simt": (0, 0), "sm75": (7, 5), "sm80": (8, 0), "sm90": (9, 0)}[kernels]
    # GPUs after Hopper emulate the products of sm75, whose registers then spill.
    newest = {"sm75": 9, "sm90": 9}.get(kernels, capability[0])
    if capability < needs or capability[0] > newest:
        raise UsageError(f"{kernels} kernels do not run on compute capability {capability[0]}.{capability[1]}")
    known = tuple(STORAGE[kernels])
    if precision == "auto":
        precision = known[0]
        if precision == "int8":
            raise UsageError(f"{kernels} kernels compute in int8 only, which is never chosen: give --precision int8")
    if precision not in known:
        raise UsageError(f"{kernels} kernels compute in {' or '.join(known)}, not in {precision}")
    return kernels, precision


FIRST_CAPABILITY = (8, 0)
"""The lowest compute capability with bf16. From here on training uses kernels of its own."""

NUMBERS = ("float", "BFloat")
"""The types in which the other blocks compute in training."""

_TRAINING_FILE = "training/first_block.cu"


@dataclass(frozen=True)
class FirstBlock:
    """The kernels of block 1 in a step of training.

    Attributes
    ----------
    sum_rows, normalise_and_pool : Kernel
        The forward pass, in this order.
    parameter_gradients, sum_gradients : Kernel
        The backward pass, in this order.

    """

    sum_rows: Kernel
    normalise_and_pool: Kernel
    parameter_gradients: Kernel
    sum_gradients: Kernel


@cache
def first_block(layer: Layer, rows: int, number: str) -> FirstBlock:
    """Return the kernels of block 1 for units of `rows` rows. number: one of NUMBERS."""

    def kernel(name: str, *arguments: object) -> Kernel:
        return Kernel(
            f"{layer.name} {name}", _TRAINING_FILE, f"{name}<{', '.join(map(str, arguments))}>", layer.outputs
        )

    pooled = number, rows, layer.pool, layer.outputs
    return FirstBlock(
        kernel("sum_rows", layer.kernel, rows, layer.outputs),
        kernel("normalise_and_pool", *pooled),
        kernel("parameter_gradients", *pooled),
        kernel("sum_gradients", *pooled),
    )
