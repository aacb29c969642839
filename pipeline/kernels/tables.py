"""The tables that kernels read: for block 1, n-grams, fastText models, vocabularies and encoders. Needs only NumPy.

The tables of block 1 replace its weights, and are computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.encoder import LAYER_NORM, NORMALISE, Encoder, Rotary, turns
from ..model.fasttext import END, FIRST_HASH, FastText, Paths, hashed
from ..model.layers import NORM_EPSILON, Layer
from ..model.ngrams import NGrams, Script, script
from ..model.reference import Floats, Weights
from ..model.wordpiece import LENGTH_BITS, WordPiece
from .tiles import SLAB_BYTES


class StatisticsTables(NamedTuple):
    """The tables that common/statistics.cu reads. Its comment has the formulas.

    Attributes
    ----------
    first : float32 [kernel, ids, 2]
        The prefix sums over the taps, for each id.
    pairs : float32 [kernel, kernel - 1, ids, ids]
        The prefix sums over the taps, for each pair of ids and each distance between them.
    sum_of_biases, sum_of_square_biases : float
        The sums over the channels of block 1.

    """

    first: Floats
    pairs: Floats
    sum_of_biases: float
    sum_of_square_biases: float


class VocabularyTables(NamedTuple):
    """The tables that common/wordpiece.cu reads, in the order of its `Vocabulary`.

    Attributes
    ----------
    edges : structured [places]
        The hash table of the tree of entries: "key", "next", "token".
    pages : uint16 [4352]
        See `WordPiece`.
    characters, sequences : int32
        See `WordPiece`. Marks that have an order also have their combining class.
    special : uint8 [bytes]
        The entries that are one token wherever they occur, longest first.
    special_ends, special_tokens : int32 [entries]
        Where each special entry ends, and its token.
    starts : uint32 [8]
        A bit for each byte that begins a special entry.

    """

    edges: NDArray[np.void]
    pages: NDArray[np.uint16]
    characters: NDArray[np.int32]
    sequences: NDArray[np.int32]
    special: NDArray[np.uint8]
    special_ends: NDArray[np.int32]
    special_tokens: NDArray[np.int32]
    starts: NDArray[np.uint32]


_EDGE = np.dtype([("key", np.uint64), ("next", np.int32), ("token", np.int32)])
_CLASS_SHIFT = 22
_HASH = np.uint64(0x9E3779B97F4A7C15)
"""The factor of hashes, 2^64 divided by the golden ratio (Knuth, "The Art of Computer Programming", section 6.4)."""


def vocabulary_tables(tokens: WordPiece) -> VocabularyTables:
    marks, classes = tokens.marks
    of_mark = np.zeros(0x110000, np.int32)
    of_mark[marks] = classes << _CLASS_SHIFT

    def with_classes(points: NDArray[np.int32]) -> NDArray[np.int32]:
        is_mark = (points >= 0) & (points < len(of_mark))
        return points + np.where(is_mark, of_mark[np.where(is_mark, points, 0)], 0).astype(np.int32)

    special = sorted(filter(itemgetter(0), tokens.rules.special.items()), key=lambda one: len(one[0]), reverse=True)
    encoded = [name.encode() for name, _ in special]
    starts = np.zeros(256, np.uint8)
    starts[[name[0] for name in encoded]] = 1
    return VocabularyTables(
        _edges(tokens),
        tokens.pages,
        with_classes(tokens.characters),
        with_classes(tokens.sequences),
        np.frombuffer(b"".join(encoded), np.uint8),
        np.cumsum([len(name) for name in encoded], dtype=np.int32),
        np.array([token for _, token in special], np.int32),
        np.packbits(starts, bitorder="little").view(np.uint32),
    )


def most_tokens(tables: VocabularyTables) -> int:
    """Return the most tokens that a byte can become: as many as the code points that a character may become."""
    counts = -1 - tables.characters[tables.characters < 0] & (1 << LENGTH_BITS) - 1
    return int(counts.max(initial=1))


TOKEN_SEGMENT = 128
"""The bytes of a part of a text, as SEGMENT in common/wordpiece.cu."""

_SPLIT_BYTES = 4 * TOKEN_SEGMENT
"""The bytes from which a text is split into parts."""

_BYTES_OF_A_TOKEN = 8
"""More bytes than a token has on average in most texts."""


class TextParts(NamedTuple):
    """The parts of texts whose tokens are made at once, as `Parts` in common/wordpiece.cu.

    Attributes
    ----------
    texts : int32 [parts]
        The text of each part.
    firsts : int32 [texts + 1]
        The first part of each text, and the number of all parts.

    """

    texts: NDArray[np.int32]
    firsts: NDArray[np.int32]


def text_parts(sizes: NDArray[np.int64], limit: int, splits: bool) -> TextParts:
    """Return the parts of texts. A short text is one part.

    A long text is split as far as the model most likely reads it. The rest of the text belongs to the last part.

    Parameters
    ----------
    sizes : int64 [texts]
        The bytes of each text.
    limit : int
        The most tokens that the model reads.
    splits : bool
        Whether texts may be split: the result of `may_split`.

    """
    parts = np.minimum(-(-sizes // TOKEN_SEGMENT), -(-_BYTES_OF_A_TOKEN * limit // TOKEN_SEGMENT))
    parts = np.where(splits & (sizes >= _SPLIT_BYTES), parts, 1)
    firsts = np.concatenate([[0], np.cumsum(parts)]).astype(np.int32)
    return TextParts(np.repeat(np.arange(len(sizes), dtype=np.int32), parts), firsts)


def parts_record(addresses: Sequence[int], parts: int) -> NDArray[np.void]:
    """Return the argument `Parts` of common/wordpiece.cu, by value.

    addresses: the addresses of the arrays of `TextParts`. parts: their number.
    """
    return np.array([(*addresses, parts, 0)], "u8,u8,i4,i4").view("V24")


def may_split(tokens: WordPiece) -> bool:
    """Return whether texts may be split at white space, and before characters that are words by themselves.

    This is so if no special token could be split there: if all of them are printable ASCII without spaces.
    """
    return all(name.isascii() and name.isprintable() and " " not in name for name in tokens.rules.special)


def vocabulary_record(tokens: WordPiece, tables: VocabularyTables, addresses: Sequence[int]) -> NDArray[np.void]:
    """Return the argument `Vocabulary` of common/wordpiece.cu, by value. addresses: the address of each table."""
    rules = tokens.rules
    numbers = (len(tables.edges).bit_length() - 1, len(rules.special), rules.first, rules.last, rules.unknown, 0)
    return np.array([(*addresses, *numbers)], ",".join(["u8"] * len(addresses) + ["i4"] * len(numbers))).view("V88")


def _edges(tokens: WordPiece) -> NDArray[np.void]:
    """Return the tree of all entries as a hash table. Node 0 begins a word, and node 1 continues one."""
    # Number the nodes of the tree.
    nodes: dict[tuple[int, int], int] = {}
    token_of: dict[int, int] = {}
    prefix = tokens.rules.prefix
    for number, entry in enumerate(tokens.entries):
        continued = [(1, entry[len(prefix) :])] if entry.startswith(prefix) else []
        for node, points in [(0, entry), *continued]:
            for point in map(ord, points):
                node = nodes.setdefault((node, point), len(nodes) + 2)
            if points:
                token_of[node] = number
    # Write the edges to a hash table with linear search.
    edges = np.zeros(len(nodes), _EDGE)
    edges["key"] = [node << 21 | point for node, point in nodes]
    edges["next"] = [*nodes.values()]
    edges["token"] = [token_of.get(node, -1) for node in nodes.values()]
    places = 1 << max(4, (2 * len(edges) - 1).bit_length())
    table = np.zeros(places, _EDGE)
    table["key"] = np.iinfo(np.uint64).max
    at = (edges["key"] * _HASH >> np.uint64(65 - places.bit_length())).astype(np.int64)
    left = np.arange(len(edges))
    while len(left):  # edges whose place is taken try the next place
        free = table["key"][at[left]] == np.iinfo(np.uint64).max
        _, first = np.unique(at[left[free]], return_index=True)
        placed = left[free][first]
        table[at[placed]] = edges[placed]
        left = np.setdiff1d(left, placed)
        at[left] = (at[left] + 1) % places
    return table


def fixed_point(table: Floats, bias: Floats) -> tuple[NDArray[np.uint16], Floats]:
    """Return the table of block 1 as integers, such that an output is `zero + unit * (sum of its entries)`.

    No sum reaches 65,536. table: [kernel, ids, channels]. bias: [channels]. Returns the entries, uint16 with the shape
    of the table, and fp32 [3, channels]: unit, zero and bias. An entry is off by at most half a unit. A unit is the
    range of the channel divided by 65,535.
    """
    exact = table.astype(np.float64)
    lowest = exact.min(axis=1, keepdims=True)
    span = (exact.max(axis=1, keepdims=True) - lowest).sum(axis=0, keepdims=True)
    largest = np.iinfo(np.uint16).max - len(table)  # each tap may round up by half a unit
    unit = np.where(span > 0, span, 1) / largest
    entries = np.rint((exact - lowest) / unit).astype(np.uint16)
    zero = bias + lowest.sum(axis=(0, 1))
    affine = np.stack([unit[0, 0], zero, bias])
    # The kernel multiplies these by 1 / deviation in fp32. Values that might overflow become NaN, like all scores.
    affine[:, np.abs(affine[:2]).max(axis=0) > np.finfo(np.float32).max * np.sqrt(NORM_EPSILON)] = np.nan
    return entries, affine.astype(np.float32)


def eight_bit_order(outputs: int) -> NDArray[np.intp]:
    """Return the order in which `sm90` reads the weights of outputs in 8 bits.

    A thread has the columns 2t, 2t + 1, 8 + 2t and 9 + 2t of each 16 columns of a product. These columns get the
    outputs 4t to 4t + 3, so that the thread has four neighbouring bytes.
    """
    thread, half, column = np.meshgrid(np.arange(4), np.arange(2), np.arange(2), indexing="ij")
    of_sixteen = np.empty(16, np.intp)
    of_sixteen[8 * half + 2 * thread + column] = 4 * thread + 2 * half + column
    return (np.arange(0, outputs, 16)[:, None] + of_sixteen).ravel()


def rescale_table(bias: NDArray[np.int32], scale: Floats) -> NDArray[np.int32]:
    """Return the table for rescaling a product in 8 bits, int32 [outputs, 2]: its bias, and the bits of its scale."""
    return np.stack([bias, scale.view(np.int32)], axis=1)


def statistics_tables(weights: Weights) -> StatisticsTables:
    """Return the prefix sums over the taps, computed in float64 by the formulas in common/statistics.cu."""
    table = weights.table.astype(np.float64)
    bias = weights.bias[weights.layers[0].name].astype(np.float64)
    kernel, ids, _ = table.shape
    first = np.stack([table.sum(axis=2), (table * table).sum(axis=2) + 2 * table @ bias], axis=2).cumsum(axis=0)
    pairs = np.zeros((kernel, kernel - 1, ids, ids))
    for lag in range(1, kernel):
        products = np.stack([2 * table[tap] @ table[tap + lag].T for tap in range(kernel - lag)])
        pairs[: kernel - lag, lag - 1] = products.cumsum(axis=0)
    with np.errstate(over="ignore"):  # the variance in the kernel is then not finite
        first, pairs = first.astype(np.float32), pairs.astype(np.float32)
    return StatisticsTables(first, pairs, float(bias.sum()), float(bias @ bias))


COLUMNS = 8
"""The columns of a row that one lane reads, in 16 bytes."""

MOST_LANES = 32


class NGramTables(NamedTuple):
    """The table of a model's n-grams as the kernel reads it.

    Attributes
    ----------
    table : int16 [slabs, buckets, columns]
        The squares, and then the weights of some of the classes.
    scale : float32 [2, slabs, columns]
        The value of one step of a weight: for words, then for characters.
    script : Script
        The tables that classify characters.

    """

    table: NDArray[np.int16]
    scale: Floats
    script: Script


def lanes(classes: int) -> int:
    """Return how many lanes read a row together: a power of two, so that a warp reads whole rows."""
    count = 1
    while count < MOST_LANES and count * COLUMNS <= classes:
        count *= 2
    return count


def slabs(classes: int) -> int:
    """Return into how many slabs the classes are divided. A warp computes one slab, and each has the squares."""
    return -(-classes // (lanes(classes) * COLUMNS - 1))


def ngram_tables(ngrams: NGrams) -> NGramTables:
    """Rearrange the table of a model's n-grams."""
    buckets, classes = len(ngrams.table), ngrams.table.shape[1] - 1
    width, count = lanes(classes) * COLUMNS, slabs(classes)
    table = np.zeros((count, buckets, width), np.int16)
    scale = np.zeros((2, count, width), np.float32)
    table[:, :, 0] = ngrams.table[:, -1]
    for slab in range(count):
        taken = slice(slab * (width - 1), min((slab + 1) * (width - 1), classes))
        held = slice(1, 1 + taken.stop - taken.start)
        table[slab, :, held] = ngrams.table[:, taken]
        scale[:, slab, held] = ngrams.scale[:, taken]
    return NGramTables(table, scale, script())


def ngram_bytes(ngrams: NGrams) -> int:
    """Return the bytes of all arrays that `ngram_tables` returns."""
    classes = ngrams.table.shape[1] - 1
    columns = slabs(classes) * lanes(classes) * COLUMNS
    return columns * (2 * len(ngrams.table) + 8) + sum(part.nbytes for part in script())


class FastTextShape(NamedTuple):
    """How the kernel reads a row: each lane reads some columns of each slab.

    Attributes
    ----------
    lanes : int
        The number of lanes that read a row together.
    columns : int
        The number of columns that a lane reads.
    bits : int
        The width of a number, 16 or 32.
    slabs : int
        The number of parts of a row, which different warps read.

    """

    lanes: int
    columns: int
    bits: int
    slabs: int


_ALWAYS_EXACT = 16
"""Tables with at most this number of columns always have 32 bits.

Such a row is two sectors of L2. Numbers of 16 bits would save little, and scores would be off by up to 1e-4.
"""


def fasttext_shape(columns: int, exact: bool) -> FastTextShape:
    """Return the shape for a table with `columns` columns.

    exact: whether probabilities must be those of fp32. Else they are off by up to 1e-4.
    """
    bits = 32 if exact or columns <= _ALWAYS_EXACT else 16
    width = 2 if columns <= 2 else 4 if columns <= 4 else COLUMNS
    count = 1
    while count < MOST_LANES and count * width < columns:
        count *= 2
    return FastTextShape(count, width, bits, -(-columns // (count * width)))


class FastTextTables(NamedTuple):
    """A fastText model as the kernels read it.

    Attributes
    ----------
    slots : uint32 [slots, 2]
        The hash of each entry of the dictionary and its number plus 1, at the place of the hash or the next free place.
    words : uint8 [bytes]
        See `FastText`.
    ends : int64 [entries]
        See `FastText`.
    end : int
        The number of "</s>", or -1 for none.
    pruned : int32 [buckets], or None
        The row of each bucket, from `FastText.rows_of_buckets`, if the model is pruned.
    table : int32 or int16 [slabs, rows, columns]
        The rows as integers.
    scale : float32 [slabs, columns]
        The value of one step.
    output : float32 [columns, classes], or None
        The matrix of the product, or None if it is folded into the table.
    paths : Paths or None
        The tree of hierarchical softmax, or None for other models.

    """

    slots: NDArray[np.uint32]
    words: NDArray[np.uint8]
    ends: NDArray[np.int64]
    end: int
    pruned: NDArray[np.int32] | None
    table: NDArray[np.signedinteger]
    scale: Floats
    output: Floats | None
    paths: Paths | None


def fasttext_tables(model: FastText, exact: bool) -> FastTextTables:
    """Rearrange a fastText model."""
    lanes, columns, bits, slabs = fasttext_shape(model.table.shape[1], exact)
    values, scales = model.fixed(bits)
    width, numbers = lanes * columns, model.numbers()
    table = np.zeros((slabs, len(values), width), values.dtype)
    scale = np.zeros((slabs, width), np.float32)
    for slab in range(slabs):
        part = slice(slab * width, (slab + 1) * width)
        held = values[:, part].shape[1]
        table[slab, :, :held], scale[slab, :held] = values[:, part], scales[part]
    output = None if model.output is None else np.ascontiguousarray(model.output.T)
    slots = _slots(model, np.fromiter(numbers.values(), np.int64, len(numbers)))
    dictionary = slots, model.words, model.ends, numbers.get(END, -1)
    return FastTextTables(*dictionary, model.rows_of_buckets(), table, scale, output, model.paths)


def _slots(model: FastText, numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return an open-addressing hash table that is at most half full. An entry whose place is taken tries the next."""
    sizes = np.diff(model.ends, prepend=0)
    hashes = hashed(np.full(len(sizes), FIRST_HASH), model.words, model.ends - sizes, sizes)[numbers]
    slots = np.zeros((1 << (2 * len(numbers)).bit_length(), 2), np.uint32)
    places = hashes.astype(np.int64) & (len(slots) - 1)
    while len(numbers):
        free = slots[places, 1] == 0
        slots[places[free]] = np.stack([hashes[free], numbers[free] + 1], axis=1)
        left = slots[places, 1] != numbers + 1
        numbers, hashes, places = numbers[left], hashes[left], (places[left] + 1) & (len(slots) - 1)
    return slots


def fasttext_bytes(model: FastText, exact: bool) -> int:
    """Return the bytes of all arrays that `fasttext_tables` returns."""
    lanes, columns, bits, slabs = fasttext_shape(model.table.shape[1], exact)
    slots = 8 << (2 * len(model.ends)).bit_length()
    pruned = 0 if model.pruned is None else 4 * model.kinds.buckets
    others = (model.words, model.ends, model.output, *(model.paths or ()))
    held = sum(0 if part is None else part.nbytes for part in others)
    return slots + pruned + held + slabs * lanes * columns * (len(model.table) * bits // 8 + 4)


class EncoderShape(NamedTuple):
    """The layout of an encoder's rows.

    Attributes
    ----------
    pitch : int
        The number of values in a row of vectors: the width, padded with zeros to what the copy engine fetches.
    head : int
        The number of values in a head's vector, padded to 32 or 64.
    layers : tuple of Layer
        The products "queries", "mix", "inner" and "outer".

    """

    pitch: int
    head: int
    layers: tuple[Layer, ...]


def encoder_shape(encoder: Encoder, tile_outputs: Sequence[int] = (128,)) -> EncoderShape | None:
    """Return the shape of an encoder, or None if the kernels cannot compute it.

    They can compute up to 64 values per head, 2,048 per vector, 8,192 per vector of the head, and words of 256 code
    points. tile_outputs: see `dense_outputs`. A layer without gates and rotation gets the width with the least padding.
    """
    width, heads, inner = encoder.width, encoder.settings.heads, encoder.weights["0.outer"].shape[0]
    slab = SLAB_BYTES // 2
    pitch, head = _up(width, slab), 32 if width // heads <= 32 and encoder.settings.has_places else ROTARY_HEAD
    longest = max(head_tables(encoder, is_logits).longest for is_logits in (False, True))
    rules = encoder.settings.rules
    if width // heads > head or pitch > 2048 or longest > 8192 or (rules is not None and rules.longest > 256):
        return None
    between, filled = _up(inner, tile_outputs[0]), min(_up(width, outputs) for outputs in tile_outputs)
    layers = (
        encoder_layer("queries", pitch, _up(3 * heads * head, tile_outputs[0])),
        encoder_layer("mix", _up(heads * head, slab), filled),
        encoder_layer("inner", pitch, between * (1 + encoder.settings.is_gated)),
        encoder_layer("outer", between, filled),
    )
    return EncoderShape(pitch, head, layers)


def encoder_layer(name: str, inputs: int, outputs: int) -> Layer:
    """Return the layer of an encoder's product."""
    return Layer(name, "dense", inputs, outputs, 1, None, 1, False, 1, 1, 1)


def weight_table(encoder: Encoder, shape: EncoderShape, name: str) -> Floats:
    """Return a weight as the kernels read it: padded with zeros like rows and heads. Products are [outputs, inputs].

    With rotary embeddings, the two values of each pair of a head's queries and keys are neighbours. With gates, 16
    outputs make eight values, in the order in which a thread of a product has them: see `_gated_order`.

    Parameters
    ----------
    encoder : Encoder
        The encoder.
    shape : EncoderShape
        The layout of its rows.
    name : str
        The name of the weight.

    """
    weight = np.asarray(encoder.weights[name], np.float32)
    settings, layers = encoder.settings, {layer.name: layer for layer in shape.layers}
    is_bias = name.endswith(".bias")
    step = name.removesuffix(".bias").rpartition(".")[2]
    if step not in layers:  # a norm, or the vectors of tokens and places
        return np.pad(weight, [*[(0, 0)] * (weight.ndim - 1), (0, shape.pitch - weight.shape[-1])])
    layer = layers[step]
    weight = weight.T  # [outputs, inputs], or [outputs]
    if step == "queries":
        of_heads = weight.reshape(3, settings.heads, -1, *weight.shape[1:])
        if settings.rotary:
            of_heads = of_heads.copy()
            of_heads[:2] = of_heads[:2][:, :, _pairs_together(of_heads.shape[2])]
        weight = _filled(of_heads, 2, shape.head).reshape(-1, *weight.shape[1:])
    elif step == "mix" and not is_bias:
        of_heads = weight.reshape(len(weight), settings.heads, -1)
        weight = _filled(of_heads, 2, shape.head).reshape(len(weight), -1)
    elif step == "inner" and settings.is_gated:
        halves = weight.reshape(2, -1, *weight.shape[1:])
        halves = _filled(halves, 1, layer.outputs // 2)
        weight = halves.reshape(-1, *weight.shape[1:])[_gated_order(layer.outputs)]
    weight = _filled(weight, 0, layer.outputs)
    return weight if is_bias else _filled(weight, 1, layer.inputs)


def _filled(array: Floats, axis: int, size: int) -> Floats:
    """Return the array padded with zeros to a size along one axis."""
    fill = [(0, 0)] * array.ndim
    fill[axis] = (0, size - array.shape[axis])
    return np.pad(array, fill)


def _pairs_together(size: int) -> NDArray[np.intp]:
    """Return the order of a head's values in which the values of a pair, i and i + size / 2, are neighbours."""
    return np.arange(size).reshape(2, -1).T.ravel()


def _gated_order(outputs: int) -> NDArray[np.intp]:
    """Return the order of gated outputs. In the model, the first half are the values and the second half their gates.

    Thread t has the columns 2t, 2t + 1, 8 + 2t and 9 + 2t of each 16 columns of a product. These are value and gate of
    output 2t, and then of output 2t + 1. So they make neighbours among the eight outputs of the 16 columns.
    """
    group, second, thread, is_gate = np.indices((outputs // 16, 2, 4, 2))
    order: NDArray[np.intp] = group * 8 + thread * 2 + second + is_gate * (outputs // 2)
    return order.ravel()


ROTARY_HEAD = 64
"""The number of values in a head if positions have no vectors, and the most in any head, as in common/rotary.cuh."""


def turn_table(encoder: Encoder, rotary: Rotary) -> Floats:
    """Return the table that common/rotary.cuh reads: cosines and sines, float32 [most, ROTARY_HEAD / 2, 2].

    rotary: the rotary embeddings of a layer.
    """
    size = encoder.width // encoder.settings.heads
    return np.ascontiguousarray(_filled(turns(rotary, size, encoder.settings.most_tokens), 1, ROTARY_HEAD // 2))


def distance_table(encoder: Encoder, shape: EncoderShape, layer: int) -> Floats:
    """Return the table that sm80/distances.cu reads for a layer, float32 [rows, 2 heads ROTARY_HEAD].

    Row i has the keys of all heads for a distance of ``len / 2 - i``, and then the queries.

    Parameters
    ----------
    encoder : Encoder
        An encoder whose attention counts distances.
    shape : EncoderShape
        The layout of its rows.
    layer : int
        The number of the layer.

    """
    settings = encoder.settings
    assert settings.distances is not None
    both = np.stack([encoder.weights[f"{layer}.{name}"] for name in ("keys_at", "queries_at")], axis=1)
    of_heads = both.astype(np.float32).reshape(len(both), 2, settings.heads, -1)
    half = _up(settings.most_tokens, _MOST_QUERIES)
    rows = settings.distances.rows(half - np.arange(2 * half))
    return _filled(of_heads, 3, shape.head).reshape(len(both), -1)[rows]


_MOST_QUERIES = 128
"""The most queries in a block of attention that counts distances."""


def rotary_record(places: int, table: int, outputs: int) -> NDArray[np.void]:
    """Return the argument `Rotary` of common/rotary.cuh, by value.

    Parameters
    ----------
    places, table : int
        The addresses of the places of rows and of a `turn_table`, or 0 for none.
    outputs : int
        The number of outputs of a product that are turned.

    """
    return np.array([(places, table, outputs, 0)], "u8,u8,i4,i4").view("V24")


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class HeadTables(NamedTuple):
    """The tables that common/encoder.cu reads for a head.

    Attributes
    ----------
    steps : int32 [steps, 5]
        The kind, inputs and outputs of each step, and where in `weights` its weight and its bias begin.
    weights : float32
        All weights and biases, one after another, and a zero.
    longest, outputs : int
        The number of values in the longest vector, and in the last.

    """

    steps: NDArray[np.int32]
    weights: Floats
    longest: int
    outputs: int


_HEAD_STEPS = ("identity", "tanh", "relu", "gelu", NORMALISE, LAYER_NORM)
"""The kinds of steps, in the order of common/encoder.cu."""


def head_tables(encoder: Encoder, is_logits: bool) -> HeadTables:
    """Return the tables of an encoder's head. is_logits: whether to include the last product, if there is one."""
    # Plan the steps, and the weight of each.
    numbers = count()
    without = {NORMALISE: "", LAYER_NORM: "head.norm.weight"}
    planned = [(step, without[step] if step in without else f"head.{next(numbers)}") for step in encoder.settings.head]
    if is_logits and "last" in encoder.weights:
        planned.append(("identity", "last"))
    # Join the weights.
    steps, parts, size, longest = [], [np.zeros(0, np.float32)], encoder.width, encoder.width
    for step, name in planned:
        outputs, at = size, sum(map(len, parts))
        if name:
            weight = np.asarray(encoder.weights[name], np.float32)
            outputs = weight.shape[-1]
            bias = encoder.weights.get(f"{name.removesuffix('.weight')}.bias", np.zeros(outputs))
            parts += [weight.ravel(), np.asarray(bias, np.float32)]
        steps.append((_HEAD_STEPS.index(step), size, outputs, at, at + sum(map(len, parts[-2:-1]))))
        size, longest = outputs, max(longest, outputs)
    weights = np.concatenate([*parts, np.zeros(1, np.float32)])
    return HeadTables(np.array(steps, np.int32).reshape(-1, 5), weights, longest + longest % 2, size)
