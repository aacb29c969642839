"""An encoder on a GPU, which turns the bytes of texts into logits or vectors. `model/encoder.py` is the specification.

    tokens -> embedding -> layers (queries -> attention -> mix -> norm -> inner -> outer -> norm) -> head

Tokens are made for many texts at once. Then as many texts as the buffers have rows for are computed together, one after
another without padding. Each value depends only on its own text. While the GPU computes, the host plans the next texts,
and makes their tokens if a stored tokenizer makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any, NamedTuple, cast

import cupy as cp
import numpy as np
from cupyx import empty_pinned
from numpy.typing import NDArray

from ..model.encoder import Encoder
from ..model.stored_tokenizer import StoredTokenizer
from ..model.wordpiece import Tokens, WordPiece
from ..processes.threads import one_ahead
from . import catalog
from .catalog import ATTENTION_ROWS, Activation
from .ops import Operations, or_null
from .storage import FLOAT
from .tables import (
    distance_table,
    encoder_shape,
    head_tables,
    may_split,
    most_tokens,
    parts_record,
    rotary_record,
    text_parts,
    turn_table,
    vocabulary_record,
    vocabulary_tables,
    weight_table,
)
from .tiles import dense_outputs
from .weights import to_device

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Timed = Callable[[str], AbstractContextManager[object]]
MakeTokens = Callable[[NDArray[np.uint8], Integers], Tokens]
"""A function that makes tokens of texts on the host. See `WordPiece.of_texts`."""

_ROWS_OF_AN_SM = 512
"""The number of tokens that are computed together, for each SM. With 512, the last wave of tiles hardly matters."""

_HEADS, _BLOCKS_OF_AN_SM = 4, 16
"""For attention: the heads that a block goes through, and the blocks per SM below which it goes through fewer."""

_HEAD_VALUES = 2048
"""The most values in the longest vector of a head for which a block has room for several texts."""

_TEXTS, _BYTES = 1 << 14, 1 << 25
"""The most texts, and the most bytes, that become tokens together on the GPU."""

_HOST_BYTES = 1 << 19
"""The most bytes of text that become tokens together on the host.

These are about 100,000 tokens, so that the GPU can start soon.
"""


class DeviceEncoder:
    """The weights and the working memory of an encoder on the current device.

    Parameters
    ----------
    encoder : Encoder
        The encoder.
    ops : Operations
        The operations of a generation and precision.
    rows : int, optional
        The most tokens that are computed together, at least those of one text. By default enough to keep all SMs busy.

    """

    def __init__(self, encoder: Encoder, ops: Operations, rows: int | None = None) -> None:
        self.encoder, self._ops, self._lock = encoder, ops, Lock()
        settings, weights = encoder.settings, encoder.weights
        self._element = ops.stored.features
        target = ops.generation, ops.precision, ops.architecture
        # Compile and load every kernel.
        shape = encoder_shape(encoder, dense_outputs(*target))
        assert shape is not None
        self._shape = shape
        gate = "GATED_" if settings.is_gated else ""
        self._follows = cast("Activation", gate + settings.activation.upper())
        self._of_queries: Activation = "ROTARY" if settings.rotary else "NONE"
        longest = None if settings.rules is None else settings.rules.longest
        activations = sorted({"NONE", self._follows, self._of_queries})
        counts_distances = settings.distances is not None
        ops.prepare(catalog.encoder_kernels(*target, shape.pitch, shape.head, longest, activations, counts_distances))
        self._queries = ATTENTION_ROWS, 2 * ATTENTION_ROWS  # in a block of attention, for short and for long texts
        if counts_distances:
            self._queries = catalog.distance_queries(ops.architecture)
        # Choose the number of rows that are computed together.
        self._layers = {layer.name: layer for layer in shape.layers}
        pitches = {"x": shape.pitch, "mixed": self._layers["mix"].inputs, "inner": self._layers["outer"].inputs}
        pitches |= {name: self._layers[name].outputs for name in ("queries", "outer")}
        if settings.is_pre_norm:
            pitches["normed"] = shape.pitch
        # Kernels index the buffers with 32-bit integers.
        self._rows = max(
            min(rows or _ROWS_OF_AN_SM * ops.sms, ((1 << 32) - 1) // max(pitches.values())), settings.most_tokens
        )
        # Copy the weights to the GPU, and allocate the buffers.
        self._stream = cp.cuda.Stream(non_blocking=True)
        self._tokenizing = ThreadPoolExecutor(1, "broadsheet-tokens")
        with self._stream:
            if isinstance(encoder.tokens, WordPiece):
                self._upload_vocabulary(encoder.tokens)
            self._weights = {
                name: self._uploaded(name)
                for name in weights
                if not name.startswith(("head.", "last")) and not name.endswith("_at")
            }
            self._apart = [
                to_device(distance_table(encoder, shape, layer), self._element)
                for layer in range(settings.layers if counts_distances else 0)
            ]
            self._heads = {is_logits: head_tables(encoder, is_logits) for is_logits in (False, True)}
            self._head_arrays = {
                is_logits: (cp.asarray(head.steps), cp.asarray(head.weights)) for is_logits, head in self._heads.items()
            }
            self._buffers = {
                name: cp.zeros((self._rows, pitch), self._element.dtype) for name, pitch in pitches.items()
            }
            self._upload_turns()
        self._stream.synchronize()

    def _upload_vocabulary(self, tokens: WordPiece) -> None:
        tables = vocabulary_tables(tokens)
        self._tables = [cp.asarray(np.append(table.view(np.uint8), np.uint8(0))) for table in tables]  # none is empty
        self._tokens_of_a_byte, self._splits = most_tokens(tables), may_split(tokens)
        self._vocabulary = vocabulary_record(tokens, tables, [table.data.ptr for table in self._tables])

    def _upload_turns(self) -> None:
        """Copy the angles of each kind of rotary embeddings to the GPU, and allocate the places of rows."""
        rotary, queries = self.encoder.settings.rotary, self._layers["queries"].outputs
        self._row_places = cp.zeros(1 if self.encoder.settings.has_places else self._rows, np.int32)
        self._turns = {one: cp.asarray(turn_table(self.encoder, one)) for one in {*rotary}}
        turned = 2 * self.encoder.settings.heads * self._shape.head
        assert turned <= queries
        self._rotary = [rotary_record(self._row_places.data.ptr, self._turns[one].data.ptr, turned) for one in rotary]

    def _uploaded(self, name: str) -> cp.ndarray:
        weight = weight_table(self.encoder, self._shape, name)
        return to_device(weight, FLOAT if weight.ndim == 1 else self._element)

    def compute(
        self,
        data: Any,
        offsets: Integers,
        is_logits: bool,
        timed: Timed = lambda name: nullcontext(),
        heads: Sequence[DeviceEncoder] = (),
        make_tokens: MakeTokens | None = None,
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Compute N texts in valid UTF-8.

        Parameters
        ----------
        data, offsets : uint8 [bytes], int64 [N + 1]
            The texts, as in `WordPiece.of_texts`. `data` may be a CuPy array.
        is_logits : bool
            Whether to return logits, or vectors.
        timed : callable
            A function that returns a context manager for the step with a given name.
        heads : sequence of DeviceEncoder
            Encoders with the same trunk on the same device, whose heads are computed. By default only this one.
        make_tokens : callable, optional
            The function that makes tokens if the host makes them. It is called in a thread of its own. By default the
            encoder's `tokens_of`.

        Returns
        -------
        float32 [N, outputs], bool [N]
            The logits without the model's bias, or the vectors, of all heads side by side. And whether each text has
            more tokens than the encoder reads.

        """
        heads = heads or (self,)
        outputs = sum(one._heads[is_logits].outputs for one in heads)
        parts = [(np.empty((0, outputs), np.float32), np.empty(0, np.bool_))]

        # Make the tokens of a group of texts while the group before it is computed.
        with self._lock, self._stream:
            try:
                if isinstance(self.encoder.tokens, StoredTokenizer):
                    groups = self._tokens_by_host(data, offsets, make_tokens or self.encoder.tokens_of)
                else:
                    groups = self._tokens_by_gpu(data, offsets, timed)
                computed = [(tokens, self._vectors(tokens, is_logits, timed, heads)) for tokens in groups]
                for tokens, vectors in computed:
                    parts.append((vectors.get(), tokens.is_cut.get().astype(np.bool_)))
            finally:  # a copy to the host may be in flight
                self._stream.synchronize()
        found, is_cut = zip(*parts, strict=True)
        return np.concatenate(found), np.concatenate(is_cut)

    def _tokens_by_gpu(self, data: Any, offsets: Integers, timed: Timed) -> Iterator[DeviceTokens]:
        """Yield the tokens of groups of texts. The next group's tokens are started before a group is computed."""
        waiting: DeviceTokens | None = None
        for first, last in _groups(offsets, _BYTES, _TEXTS):
            with timed("tokens"):
                following = self.tokens(data[int(offsets[first]) : int(offsets[last])], offsets[first : last + 1])
            if waiting is not None:
                yield waiting
            waiting = following
        if waiting is not None:
            yield waiting

    def _tokens_by_host(self, data: Any, offsets: Integers, make_tokens: MakeTokens) -> Iterator[DeviceTokens]:
        """Yield the tokens of groups of texts. A host thread makes those of the next group while the GPU computes."""
        on_host = cp.asnumpy(data)

        def made(group: tuple[int, int]) -> Tokens:
            first, last = group
            some = offsets[first : last + 1]
            return make_tokens(on_host[int(some[0]) : int(some[-1])], some - some[0])

        for found in one_ahead(self._tokenizing, made, _groups(offsets, _HOST_BYTES, _TEXTS)):
            yield self._uploaded_tokens(found)

    def tokens(self, data: Any, offsets: Integers) -> DeviceTokens:
        """Start to make tokens of texts on the GPU, on CuPy's current stream."""
        most_tokens, rules, texts = self.encoder.settings.most_tokens, self.encoder.settings.rules, len(offsets) - 1
        assert rules is not None
        # Allocate the tokens, with room for as many as each text can have.
        sizes = np.diff(offsets)
        rooms = np.concatenate([[0], np.cumsum(np.minimum(most_tokens, 2 + self._tokens_of_a_byte * sizes))[:-1]])
        ids, rooms_there = cp.empty(int(rooms[-1]) + most_tokens, np.int32), cp.asarray(rooms)
        counts, is_cut = cp.empty(texts, np.int32), cp.zeros(texts, np.uint8)
        # Copy the texts to the GPU, and divide long ones into parts.
        text = cp.asarray(data) if len(data) else cp.zeros(1, np.uint8)
        parts = text_parts(sizes, most_tokens, self._splits)
        part_count, part_arrays = len(parts.texts), [cp.asarray(array) for array in parts]
        inputs = text, cp.asarray(offsets), parts_record([array.data.ptr for array in part_arrays], part_count)
        # Count the tokens before each part.
        before = cp.zeros(part_count, np.int64)
        if part_count > texts:
            kernel, counted = catalog.count_tokens_kernel(rules.longest), cp.empty(part_count, np.int32)
            blocks = -(-part_count // kernel.threads)
            self._ops.launch(kernel, (blocks,), (*inputs, self._vocabulary, np.int32(most_tokens), counted))
            before[1:] = cp.cumsum(counted[:-1], dtype=np.int64)
        # Make the tokens.
        kernel = catalog.wordpiece_kernel(rules.longest)
        limits = np.int32(most_tokens), np.int32(self._tokens_of_a_byte)
        blocks = -(-part_count // kernel.threads)
        outputs = rooms_there, ids, counts, is_cut
        self._ops.launch(kernel, (blocks,), (*inputs, before, self._vocabulary, *limits, *outputs))
        # Copy the numbers of tokens back, which the host needs to plan batches.
        on_host = empty_pinned(texts, np.int32)
        counts.get(out=on_host, blocking=False)
        counts_ready = cp.cuda.Event(disable_timing=True)
        counts_ready.record()
        return DeviceTokens(ids, None, rooms_there, on_host, is_cut, counts_ready)

    def _uploaded_tokens(self, found: Tokens) -> DeviceTokens:
        """Start to copy tokens to the GPU, with their places if padding tokens in the text change these."""
        places = None
        if self.encoder.settings.padding is not None:
            places = cp.asarray(self.encoder.places_of(found.ids, found.ends).astype(np.int32))
        counts = np.diff(found.ends).astype(np.int32)
        on_device = cp.asarray(found.ids.astype(np.int32)), places, cp.asarray(found.ends[:-1])
        is_cut = cp.asarray(found.is_cut.astype(np.uint8))
        return DeviceTokens(*on_device, counts, is_cut, None)

    def _vectors(
        self, tokens: DeviceTokens, is_logits: bool, timed: Timed, heads: Sequence[DeviceEncoder]
    ) -> cp.ndarray:
        """Start to compute texts from their tokens. Return float32 [texts, outputs of all heads].

        Parameters
        ----------
        tokens, is_logits, timed, heads
            See `compute`.

        """
        if tokens.counts_ready is not None:
            tokens.counts_ready.synchronize()
        settings = self.encoder.settings
        vectors = self._buffers["normed" if settings.is_pre_norm else "x"]
        outs = [cp.empty((len(tokens.counts), one._heads[is_logits].outputs), np.float32) for one in heads]
        one, several = catalog.HEAD_TEXTS
        sizes = [np.int32(n) for n in (self.encoder.width, self._shape.pitch, settings.pooling == "mean")]
        all_ends = np.concatenate([[0], np.cumsum(tokens.counts, dtype=np.int64)])
        for first, last in _groups(all_ends, self._rows, _TEXTS):
            count, ends = last - first, (all_ends[first : last + 1] - all_ends[first]).astype(np.int32)
            rows = self._encoded(tokens, first, ends, timed)
            for encoder, out in zip(heads, outs, strict=True):
                head, (steps, weights) = encoder._heads[is_logits], encoder._head_arrays[is_logits]
                of_block = several if count > several * self._ops.sms and head.longest <= _HEAD_VALUES else one
                kernel = catalog.encoder_head_kernel(self._element, head.longest, of_block)
                of_steps = (steps, np.int32(len(head.steps)), weights)
                of_head = (*of_steps, np.int32(head.longest), np.float32(settings.epsilon))
                with timed("head"):
                    arguments = (vectors, rows, np.int32(count), *sizes, *of_head, out[first:last])
                    self._ops.launch(kernel, (-(-count // of_block),), arguments)
        return outs[0] if len(outs) == 1 else cp.concatenate(outs, axis=1)

    def _encoded(self, tokens: DeviceTokens, first: int, ends: NDArray[np.int32], timed: Timed) -> cp.ndarray:
        """Compute the vectors of texts from `first` on, which end at `ends`. Return `ends` on the GPU.

        The vectors are then in the buffer "normed" if norms come first, and else in "x".
        """
        short, long = self._queries
        arrays = [ends, *_shares(np.diff(ends), False, short), *_shares(np.diff(ends), True, long)]
        plan = cp.asarray(np.concatenate(arrays))
        of_ends, *shares = cp.split(plan, np.cumsum([len(array) for array in arrays])[:-1].tolist())
        batch = _Batch(int(ends[-1]), of_ends, shares, timed)
        with timed("embedding"):
            self._embed(tokens, first, of_ends, int(np.diff(ends).max()))
        if self.encoder.settings.is_pre_norm:
            self._layers_norm_first(batch)
        else:
            self._layers_norm_last(batch)
        return of_ends

    def _embed(self, tokens: DeviceTokens, first: int, ends: cp.ndarray, longest: int) -> None:
        """Compute the first vectors to the buffer "x". longest: the number of tokens of the longest text."""
        weights, element, pitch = self._weights, self._element, self._shape.pitch
        norm, x = (*self._norm("norm"), *self._sizes()), self._buffers["x"]
        ids, rooms, embedding = tokens.ids, tokens.rooms[first:], weights["embedding"]
        if not self.encoder.settings.has_places:
            kernel, of_text = catalog.embed_tokens_kernel(element, pitch), -(-longest // catalog.EMBEDDED_ROWS)
            arguments: tuple[Any, ...] = (ids, rooms, ends, embedding, *norm, x, self._row_places)
        else:
            kernel, of_text = catalog.embed_kernel(element, pitch), 1
            arguments = (ids, or_null(tokens.places), rooms, ends, embedding, weights["places"], *norm, x)
        self._ops.launch(kernel, (len(ends) - 1, of_text), arguments)

    def _layers_norm_last(self, batch: _Batch) -> None:
        """Compute all layers as in BERT, where vectors are normalised after attention and after the two products."""
        x, mixed, inner = (self._buffers[name] for name in ("x", "mixed", "inner"))
        for layer in range(self.encoder.settings.layers):
            self._product(batch, layer, "queries", x)
            self._attention(batch, layer)
            self._product(batch, layer, "mix", mixed)
            self._add_norm(batch, f"{layer}.norm1")
            self._product(batch, layer, "inner", x)
            self._product(batch, layer, "outer", inner)
            self._add_norm(batch, f"{layer}.norm2")

    def _layers_norm_first(self, batch: _Batch) -> None:
        """Compute all layers as in ModernBERT.

        Products read normalised vectors, and their outputs are added to the vectors before normalisation.
        """
        normed, mixed, inner = (self._buffers[name] for name in ("normed", "mixed", "inner"))
        layers = self.encoder.settings.layers
        read = self._buffers["x"]  # the first vectors are already normalised
        for layer in range(layers):
            self._product(batch, layer, "queries", read)
            self._attention(batch, layer)
            self._product(batch, layer, "mix", mixed)
            self._add_norm(batch, f"{layer}.norm2")
            self._product(batch, layer, "inner", normed)
            self._product(batch, layer, "outer", inner)
            self._add_norm(batch, f"{layer + 1}.norm1" if layer + 1 < layers else "final")
            read = normed

    def _product(self, batch: _Batch, layer: int, step: str, rows: cp.ndarray) -> None:
        name, out = f"{layer}.{step}", self._buffers["outer" if step == "mix" else step]
        follows: dict[str, Activation] = {"queries": self._of_queries, "inner": self._follows}
        rotary = self._rotary[layer] if self._rotary and step == "queries" else None
        with batch.timed(step):
            self._ops.dense(
                rows, self._layers[step], self._weights[name], self._weights[f"{name}.bias"], batch.ends[-1:],
                batch.rows, follows.get(step, "NONE"), out, rotary,
            )  # fmt: skip

    def _attention(self, batch: _Batch, layer: int) -> None:
        settings, ops = self.encoder.settings, self._ops
        if settings.distances is not None:
            self._attention_by_distance(batch, layer)
            return
        window = settings.rotary[layer].window if settings.rotary else None
        # The kernel computes e^x as 2^(x log2(e)).
        scale = np.float32(math.log2(math.e) / math.sqrt(self.encoder.width // settings.heads))
        pitches = np.int32(self._layers["queries"].outputs), scale, np.int32(self._layers["mix"].inputs)
        with batch.timed("attention" if window is None else "local attention"):
            for is_long, *both in ((False, *batch.shares[:2]), (True, *batch.shares[2:])):
                if len(both[0]):
                    at_once = max(-(-settings.heads // _HEADS), -(-_BLOCKS_OF_AN_SM * ops.sms // len(both[0])))
                    ops.launch(
                        catalog.attention_kernel(
                            ops.generation, self._element, self._shape.head, is_long, window is not None
                        ),
                        (len(both[0]), min(settings.heads, at_once)),
                        (self._buffers["queries"], batch.ends, *both, np.int32(settings.heads), *pitches,
                         self._buffers["mixed"], np.int32(window or 0)),
                    )  # fmt: skip

    def _attention_by_distance(self, batch: _Batch, layer: int) -> None:
        heads, apart = self.encoder.settings.heads, self._apart[layer]
        # A score is a sum of three products, so its variance is three times as large (He et al., "DeBERTa", 2021).
        scale = np.float32(math.log2(math.e) / math.sqrt(3 * self.encoder.width // heads))
        pitches = np.int32(self._layers["queries"].outputs), scale, np.int32(self._layers["mix"].inputs)
        with batch.timed("attention"):
            for queries, *both in zip(self._queries, batch.shares[::2], batch.shares[1::2], strict=True):
                if len(both[0]):
                    self._ops.launch(
                        catalog.distance_attention_kernel(self._element, queries),
                        (len(both[0]), heads),
                        (self._buffers["queries"], batch.ends, *both, np.int32(heads), *pitches,
                         self._buffers["mixed"], apart, np.int32(len(apart) // 2)),
                    )  # fmt: skip

    def _add_norm(self, batch: _Batch, name: str) -> None:
        """Add the product in "outer" to "x". Then normalise "x" in place, or into "normed" if norms come first."""
        element, pitch, buffers = self._element, self._shape.pitch, self._buffers
        arguments: tuple[Any, ...] = (
            buffers["x"], buffers["outer"], np.int32(batch.rows), *self._norm(name), *self._sizes(),
            np.int32(self._layers["outer"].outputs),
        )  # fmt: skip
        kernel = catalog.add_norm_kernel(element, pitch)
        if self.encoder.settings.is_pre_norm:
            kernel, arguments = catalog.add_then_norm_kernel(element, pitch), (*arguments, buffers["normed"])
        with batch.timed("norm"):
            self._ops.launch(kernel, (-(-batch.rows // catalog.WARPS),), arguments)

    def close(self) -> None:
        """Stop the thread that makes tokens."""
        self._tokenizing.shutdown()

    def _norm(self, name: str) -> tuple[cp.ndarray, cp.ndarray]:
        return self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]

    def _sizes(self) -> tuple[np.float32, np.int32, np.int32]:
        return np.float32(self.encoder.settings.epsilon), np.int32(self.encoder.width), np.int32(self._shape.pitch)


class _Batch(NamedTuple):
    """Texts that are computed together.

    Attributes
    ----------
    rows : int
        The number of their tokens.
    ends : int32 [texts + 1]
        The first row of each text, and the end of the last.
    shares : list of int32
        The shares of the blocks of attention: the result of `_shares` for short texts, and then for long ones.
    timed : callable
        See `DeviceEncoder.compute`.

    """

    rows: int
    ends: cp.ndarray
    shares: list[cp.ndarray]
    timed: Timed


class DeviceTokens(NamedTuple):
    """The tokens of some texts on the GPU.

    Attributes
    ----------
    ids : int32
        The tokens. Those of text i begin at ``rooms[i]``.
    places : int32, or None
        The place of each token, a row of the weights "places". None if it is the token's number in its text.
    rooms : int64 [texts]
        Where the tokens of each text begin.
    counts : int32 [texts]
        The number of tokens of each text, on the host. It is valid after `counts_ready`.
    is_cut : uint8 [texts]
        1 if a text has more tokens than the encoder reads.
    counts_ready : Event, or None
        The event after which `counts` is valid, or None if it already is.

    """

    ids: cp.ndarray
    places: cp.ndarray | None
    rooms: cp.ndarray
    counts: NDArray[np.int32]
    is_cut: cp.ndarray
    counts_ready: cp.cuda.Event | None


def _shares(sizes: NDArray[np.int32], is_long: bool, rows: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return which text each block of attention computes, and its first query, for long texts or for the others.

    Parameters
    ----------
    sizes : int32 [texts]
        The number of tokens of each text.
    is_long : bool
        Whether to divide the texts of more than ATTENTION_ROWS tokens, or the others.
    rows : int
        The number of queries in a block.

    """
    blocks = np.where((sizes > ATTENTION_ROWS) == is_long, -(-sizes // rows), 0)
    texts = np.repeat(np.arange(len(sizes), dtype=np.int32), blocks)
    firsts = (np.arange(len(texts)) - np.repeat(np.cumsum(blocks) - blocks, blocks)) * rows
    return texts, firsts.astype(np.int32)


def _groups(ends: Integers, room: int, most_texts: int) -> Iterator[tuple[int, int]]:
    """Yield the first text of each group, and the one after its last.

    A group has as many texts as there is room for, at most `most_texts` and at least one. ends: int64 [texts + 1],
    where each text begins in bytes or rows, and where the last ends.
    """
    first, count = 0, len(ends) - 1
    while first < count:
        last = int(np.searchsorted(ends, ends[first] + room, side="right")) - 1
        last = min(max(first + 1, last), first + most_texts, count)
        yield first, last
        first = last
