"""Encoders with a head (BERT, RoBERTa, ModernBERT and similar ones), in NumPy: the specification, and the CPU backend.

A text passes through these stages (Vaswani et al., "Attention Is All You Need", 2017; Devlin et al., "BERT", 2019):

1. The embedding: each token's vector is the sum of the vectors of its entry in the vocabulary and of its place.
2. The layers. Each layer has two parts: attention, which computes a change of each vector from the vectors of all
   tokens of the text; and two products with an activation between them, which compute a change from the vector itself.
   Each part adds its change to the vectors, which are then normalised.
3. The pooling: the text's vector is the vector of its first token, or the mean of all.
4. The head, whose products turn the text's vector into logits.

ModernBERT differs in four settings (Warner et al., "Smarter, Better, Faster, Longer", 2024): vectors are normalised
before each part of a layer; rotary embeddings of queries and keys encode the places (Su et al., "RoFormer", 2021); in
some layers a token attends only to the tokens in a window around it; and a gate is multiplied with the activation
(Shazeer, "GLU Variants Improve Transformer", 2020).

Each text has matrix products of its own, without padding, so that its bits do not depend on other texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct, to_builtins
from numpy.typing import NDArray

from ..errors import ModelError
from .layers import check_tensors, refuse_missing
from .stored_tokenizer import StoredTokenizer
from .wordpiece import Rules, Tokens, WordPiece

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Activation = Literal["gelu", "gelu_tanh", "relu"]
Pooling = Literal["cls", "mean"]

PREFIX = "encoder."
"""The prefix of the names of an encoder's tensors in a model file."""

VOCABULARY = ("words", "ends", "pages", "characters", "sequences")
"""The names of the tensors of a WordPiece vocabulary, without the prefix."""

TOKENIZER = "tokenizer"
"""The name of the tensor of a stored tokenizer, without the prefix."""

MOST_LAYERS, MOST_TOKENS = 128, 8192
NORMALISE, LAYER_NORM = "normalise", "layer_norm"
NO_PRODUCT = (NORMALISE, LAYER_NORM)
"""The steps of a head that have no product."""


class Rotary(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rotary embedding of a layer, by which attention knows the places of tokens.

    Attributes
    ----------
    base : float
        The base of the angles. At place p, values i and i + d / 2 of the d values of a head's queries and keys are
        rotated, as a pair, by the angle p / base ** (2 i / d).
    window : int, optional
        The largest distance at which a token attends to another one; None for no limit.
    stretch : float
        The divisor of all angles.

    """

    base: Annotated[float, Meta(gt=1)]
    window: Annotated[int, Meta(ge=0)] | None = None
    stretch: Annotated[float, Meta(ge=1)] = 1.0


class Distances(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The distances between tokens that attention counts, in DeBERTa's disentangled attention.

    A score is the sum of three products: the query with the key, the query with the key of their distance, and the key
    with the query of their distance. Each small distance has a vector of its own. Larger distances share vectors, in
    groups that grow with the logarithm of the distance (He et al., "DeBERTa", 2021; DeBERTa-v2).

    Attributes
    ----------
    span : int
        The number of groups of distances in each direction. Distances up to ``span // 2`` are groups of one.
    farthest : int
        The distance from which on all distances are in the last group.

    """

    span: Annotated[int, Meta(ge=2)]
    farthest: Annotated[int, Meta(ge=3)]

    def rows(self, distances: Integers) -> Integers:
        """Return the group of each distance, from 0 to below ``2 * span``.

        It computes in float32, as transformers does, since a group begins where a logarithm reaches a whole number.

        Parameters
        ----------
        distances : int64
            The places of queries minus the places of keys.

        """
        near = self.span // 2
        far = np.maximum(np.abs(distances), near).astype(np.float32) / np.float32(near)
        of_all = np.log(np.float32((self.farthest - 1) / near))
        by_log = np.ceil(np.log(far) / of_all * np.float32(near - 1)) + np.float32(near)
        kinds = np.where(np.abs(distances) <= near, distances, np.sign(distances) * by_log).astype(np.int64)
        return np.clip(kinds + self.span, 0, 2 * self.span - 1)


class Settings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings of an encoder, which decide the vector of a text beside the weights.

    The settings by stage: `rules`, `most_tokens` for tokens; `padding`, `rotary`, `distances` for places; `layers`,
    `heads`, `activation`, `epsilon`, `is_pre_norm`, `is_gated` for layers; `pooling`, `head` for the vector of a text.

    Attributes
    ----------
    layers, heads : int
        The number of layers, and of heads of attention in each.
    epsilon : float
        The number that is added to the variance by which vectors are normalised.
    activation : str
        The activation between the two products of a layer: "gelu" with the error function, "gelu_tanh", or "relu".
    pooling : str
        The vector of a text: the vector of its first token ("cls"), or the mean of all ("mean").
    head : tuple of str
        The steps that change that vector before the last product, in order: "normalise" to a length of one,
        "layer_norm", or a product followed by "tanh", "relu", "gelu", or "identity".
    most_tokens : int
        The largest number of tokens of a text, including the tokens that begin and end it. Further tokens are not read.
    rules : Rules or None
        The rules of a WordPiece vocabulary; None for a stored tokenizer.
    padding : int, optional
        A token that has a place of its own, the last one, and that does not count in the places of other tokens:
        RoBERTa's padding, which a text may spell out.
    rotary : tuple of Rotary
        The rotary embedding of each layer, which replaces vectors of places; empty for an encoder without rotary
        embeddings.
    is_pre_norm : bool
        Whether vectors are normalised before attention, before the two products of a layer, and after the last layer,
        rather than after attention and after the two products.
    is_gated : bool
        Whether the first of the two products has twice as many outputs, and the second half of them is multiplied with
        the activation of the first half.
    distances : Distances, optional
        The distances that attention counts, which replace vectors of places.

    """

    layers: Annotated[int, Meta(ge=1, le=MOST_LAYERS)]
    heads: Annotated[int, Meta(ge=1)]
    epsilon: Annotated[float, Meta(gt=0, lt=1)]
    activation: Activation
    pooling: Pooling
    head: tuple[Literal["normalise", "layer_norm", "tanh", "relu", "gelu", "identity"], ...]
    most_tokens: Annotated[int, Meta(ge=3, le=MOST_TOKENS)] = msgspec.field(name="most")
    rules: Rules | None
    padding: Annotated[int, Meta(ge=0)] | None = None
    rotary: tuple[Rotary, ...] = ()
    is_pre_norm: bool = False
    is_gated: bool = False
    distances: Distances | None = None

    @property
    def has_places(self) -> bool:
        """Whether each place has a vector, which is added to the vector of the token there."""
        return not self.rotary and self.distances is None


@dataclass(frozen=True)
class Encoder:
    """An encoder, which replaces the network of a model; immutable.

    Attributes
    ----------
    settings : Settings
        The settings that decide vectors beside the weights.
    tokens : WordPiece or StoredTokenizer
        The vocabulary, which splits texts into tokens.
    weights : mapping of str to ndarray
        The weights, float32 or float16. A product has a ".bias", [outputs], unless the list says otherwise. A norm has
        a ".weight" and a ".bias", [width] each.

        - the embedding: "embedding" [entries, width]; "places" [most_tokens, width], or one row more if padding has a
          place of its own (both without a bias); and the norm "norm"
        - each layer, with the prefix "0.", "1." and so on: "queries" [width, 3 width] of queries, keys and values,
          "mix" [width, width], "inner" [width, inner], "outer" [inner, width], and the norms "norm1" and "norm2"
        - the head: "head.0" and so on [inputs, outputs], the norm "head.norm", and "last" [inputs, classes], whose bias
          is the model's. Without "last", the encoder gives vectors and no scores.

        Some settings change this list:

        - rotary embeddings: no "places"
        - distances: no "places"; each layer has "keys_at" and "queries_at" [2 span, width], without a bias
        - norms that come first: a norm "final", and no "0.norm1", since the first layer reads the output of "norm"
        - gates: "inner" is [width, 2 inner]

    """

    settings: Settings
    tokens: WordPiece | StoredTokenizer
    weights: Mapping[str, NDArray[Any]] = field(repr=False)

    feature: ClassVar[str] = "encoder"
    runs_in: ClassVar[str] = "own kernels"

    @property
    def about(self) -> Any:
        """All that decides scores beside the tensors, as JSON values."""
        return to_builtins(self.settings)

    @property
    def framing(self) -> int:
        """The number of tokens that are added before a text and after it."""
        return self.tokens.framing

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(tensor.size for tensor in self.weights.values())

    @property
    def computed_weights(self) -> int:
        """The number of weights that each token is multiplied with."""
        tables = ("embedding", "places", "keys_at", "queries_at")
        return sum(t.size for name, t in self.weights.items() if name.rpartition(".")[2] not in tables)

    @property
    def width(self) -> int:
        """The number of values of a token's vector."""
        return int(self.weights["embedding"].shape[1])

    @property
    def outputs(self) -> int:
        """The number of values of a text's vector."""
        products = [i for i, step in enumerate(s for s in self.settings.head if s not in NO_PRODUCT)]
        return int(self.weights[f"head.{products[-1]}"].shape[1]) if products else self.width

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return all tensors by their names in a model file."""
        vocabulary = (
            {TOKENIZER: self.tokens.json}
            if isinstance(self.tokens, StoredTokenizer)
            else {name: getattr(self.tokens, name) for name in VOCABULARY}
        )
        return {f"{PREFIX}{name}": array for name, array in {**vocabulary, **self.weights}.items()}

    @classmethod
    def of_file(cls, settings: Settings, tensors: dict[str, NDArray[Any]], model: str) -> Encoder:
        """Return the encoder of a model file, and remove its tensors from `tensors`.

        Raises ModelError if one is missing.
        """
        names = (TOKENIZER,) if settings.rules is None else VOCABULARY
        refuse_missing((f"{PREFIX}{name}" for name in names), tensors, model)
        weights = {name.removeprefix(PREFIX): tensors.pop(name) for name in [*tensors] if name.startswith(PREFIX)}
        parts = [weights.pop(name) for name in names]
        tokens = StoredTokenizer(parts[0]) if settings.rules is None else WordPiece(settings.rules, *parts)
        return cls(settings, tokens, weights)

    def check(self, classes: int | None, model: str) -> None:
        """Raise ModelError unless the tensors fit the settings and each other.

        classes: the number of classes, or None for an encoder of vectors.
        """
        # Find the sizes, and check them against the settings.
        entries, width = self.weights["embedding"].shape if "embedding" in self.weights else (0, 0)
        if isinstance(self.tokens, WordPiece):
            self.tokens.check(model)
            entries = self.tokens.size
        settings = self.settings
        inner = self.weights["0.outer"].shape[0] if "0.outer" in self.weights else 0
        if width == 0 or width % settings.heads:
            raise ModelError(f"{model}: vectors of {width} values for {settings.heads} heads of attention")
        if settings.rotary and (len(settings.rotary) != settings.layers or width // settings.heads % 2):
            what = f"{len(settings.rotary)} rotary embeddings of {width // settings.heads} values"
            raise ModelError(f"{model}: {what} for {settings.layers} layers")
        # Collect the expected shapes of the embedding, the layers and the head.
        expected: dict[str, tuple[int, ...]] = {"embedding": (entries, width), **_norm("norm", width)}
        if settings.has_places:
            expected["places"] = (settings.most_tokens + (settings.padding is not None), width)
        for layer in range(settings.layers):
            for name, shape in {
                "queries": (width, 3 * width), "mix": (width, width),
                "inner": (width, inner * (1 + settings.is_gated)), "outer": (inner, width),
            }.items():  # fmt: skip
                expected |= {f"{layer}.{name}": shape, f"{layer}.{name}.bias": shape[1:]}
            if layer > 0 or not settings.is_pre_norm:
                expected |= _norm(f"{layer}.norm1", width)
            expected |= _norm(f"{layer}.norm2", width)
            if settings.distances is not None:
                expected |= dict.fromkeys(
                    (f"{layer}.keys_at", f"{layer}.queries_at"), (2 * settings.distances.span, width)
                )
        if settings.is_pre_norm:
            expected |= _norm("final", width)
        products = 0
        for step in settings.head:
            if step == LAYER_NORM:
                expected |= _norm("head.norm", width)
            elif step != NORMALISE:
                name = f"head.{products}"
                outputs = self.weights[name].shape[-1] if name in self.weights else 0
                expected |= {name: (width, outputs), f"{name}.bias": (outputs,)}
                width, products = outputs, products + 1
        if classes is not None:
            expected["last"] = (width, classes)
        check_tensors(self.weights, expected, model)

    def as_vectors(self) -> Encoder:
        """Return the same encoder for vectors of length one, without the last product."""
        head = self.settings.head if self.settings.head[-1:] == (NORMALISE,) else (*self.settings.head, NORMALISE)
        weights = {name: tensor for name, tensor in self.weights.items() if name != "last"}
        return replace(self, settings=msgspec.structs.replace(self.settings, head=head), weights=weights)

    @cached_property
    def _floats(self) -> dict[str, Floats]:
        """The weights in float32."""
        return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in self.weights.items()}

    def tokens_of(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Tokens:
        """Return the tokens of N texts in valid UTF-8. data, offsets: as for `WordPiece.of_texts`."""
        tokens = self.tokens.of_texts(data, offsets, self.settings.most_tokens)
        if tokens.ids.max(initial=0) >= len(self.weights["embedding"]):
            raise ModelError(
                "the tokenizer of this encoder has more tokens than its embedding has rows: convert it again"
            )
        return tokens

    def places_of(self, ids: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of each token of N texts, which is a row of "places". ids, ends: as in `Tokens`."""
        begins = np.repeat(ends[:-1], np.diff(ends))
        if self.settings.padding is None:
            return np.arange(len(ids)) - begins
        is_padding = ids == self.settings.padding
        counted = np.append(0, np.cumsum(~is_padding))
        return np.where(is_padding, self.settings.most_tokens, counted[:-1] - counted[begins])

    def logits(self, ids: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats:
        """Return the logits of N texts without the model's bias, float32 [N, classes]. ids, ends: as in `Tokens`."""
        return self.logits_of_pooled(self.pooled(ids, ends))

    def logits_of_pooled(self, pooled: Floats) -> Floats:
        """Return `logits` from the result of `pooled`, of this encoder or another one with the same trunk."""
        last = self._floats["last"]
        return np.stack([self._head(vector) @ last for vector in pooled])

    def vectors(self, ids: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats:
        """Return the vectors of N texts, at least one, float32 [N, outputs]. ids, ends: as in `Tokens`."""
        return np.stack([self._head(vector) for vector in self.pooled(ids, ends)])

    def pooled(self, ids: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats:
        """Return the vectors of N texts, at least one, before the head, float32 [N, width]. ids, ends: as in `Tokens`.

        Operations on single values run over all texts at once, and each weight is used for all texts while it is in a
        cache. Matrix products run over one text at a time.
        """
        # Embed the tokens.
        texts = [slice(first, last) for first, last in pairwise(ends.tolist())]
        x: Floats = self._floats["embedding"][ids]
        places = self.places_of(ids, ends)
        if self.settings.has_places:
            x += self._floats["places"][places]
        x = self._normed(x, "norm")
        # Compute the layers.
        for layer in range(self.settings.layers):
            if self.settings.is_pre_norm:
                read = self._normed(x.copy(), f"{layer}.norm1") if layer else x  # the first layer's x is normalised
                x = x + self._attention(read, texts, places, layer)
                inner = self._inner(self._normed(x.copy(), f"{layer}.norm2"), texts, layer)
                x += self._products(inner, texts, f"{layer}.outer")
            else:
                x = self._normed(x + self._attention(x, texts, places, layer), f"{layer}.norm1")
                inner = self._inner(x, texts, layer)
                x = self._normed(x + self._products(inner, texts, f"{layer}.outer"), f"{layer}.norm2")
        if self.settings.is_pre_norm:
            x = self._normed(x, "final")
        # Pool the tokens of each text.
        is_cls = self.settings.pooling == "cls"
        return np.stack([x[text.start] if is_cls else x[text].mean(axis=0) for text in texts])

    def _inner(self, x: Floats, texts: list[slice], layer: int) -> Floats:
        """Return the input of the second product of a layer: the first product, its activation and its gate."""
        values, activation = self._products(x, texts, f"{layer}.inner"), _ACTIVATIONS[self.settings.activation]
        if not self.settings.is_gated:
            return activation(values)
        half = values.shape[1] // 2
        gated: Floats = activation(values[:, :half]) * values[:, half:]
        return gated

    def _head(self, vector: Floats) -> Floats:
        """Apply the head, without the last product, to the vector of one text, [width]."""
        products = 0
        for step in self.settings.head:
            if step == NORMALISE:
                vector = vector / max(np.float32(1e-12), np.sqrt(vector @ vector))
            elif step == LAYER_NORM:
                vector = self._normed(vector[None].copy(), "head.norm")[0]
            else:
                name = f"head.{products}"
                vector = _ACTIVATIONS[step](vector @ self._floats[name] + self._floats[f"{name}.bias"])
                products += 1
        return vector

    def _products(self, x: Floats, texts: list[slice], name: str) -> Floats:
        """Multiply the vectors of each text, by itself, with a weight, and add the bias."""
        weight = self._floats[name]
        out = np.empty((len(x), weight.shape[1]), np.float32)
        for text in texts:
            np.matmul(x[text], weight, out=out[text])
        out += self._floats[f"{name}.bias"]
        return out

    def _normed(self, x: Floats, name: str) -> Floats:
        """Apply a layer norm in place, and return the array."""
        x -= x.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", x, x) / np.float32(x.shape[1])
        x *= (1 / np.sqrt(variance + np.float32(self.settings.epsilon)))[:, None]
        x *= self._floats[f"{name}.weight"]
        x += self._floats[f"{name}.bias"]
        return x

    def _attention(self, x: Floats, texts: list[slice], places: Integers, layer: int) -> Floats:
        """Return the result of a layer's attention for all tokens, [T, width]. places: as `places_of` returns them."""
        # Compute queries, keys and values, rotate them, and scale the queries.
        heads, size = self.settings.heads, x.shape[1] // self.settings.heads
        queries = self._products(x, texts, f"{layer}.queries").reshape(len(x), 3, heads, size)
        window = None
        if self.settings.rotary:
            rotary = self.settings.rotary[layer]
            window = rotary.window
            _turn(queries[:, :2], turns(rotary, size, int(places.max(initial=0)) + 1)[places])
        queries[:, 0] *= np.float32(1 / math.sqrt(size))
        if self.settings.distances is not None:
            queries[:, 0] *= np.float32(math.sqrt(1 / 3))  # a score is a sum of three products
        # Attend within each text, and with a window by pieces, so that nothing outside the window is computed.
        mixed = np.empty((len(x), heads, size), np.float32)
        for text in texts:
            of_heads, out = queries[text].transpose(1, 2, 0, 3), mixed[text].transpose(1, 0, 2)
            if window is None:
                _attend(of_heads[0], of_heads[1], of_heads[2], out, apart=self._apart(text.stop - text.start, layer))
                continue
            step = window + 1
            for first in range(0, text.stop - text.start, step):
                rows, near = slice(first, first + step), slice(max(0, first - window), first + step + window)
                query, key, value = of_heads[0, :, rows], of_heads[1, :, near], of_heads[2, :, near]
                _attend(query, key, value, out[:, rows], rows, near, window)
        return self._products(mixed.reshape(x.shape), texts, f"{layer}.mix")

    def _apart(self, tokens: int, layer: int) -> tuple[Floats, Floats] | None:
        """Return the keys and the queries of distances, [heads, 2 tokens - 1, size] each, or None without distances.

        The keys are those of the distances from 1 - tokens to tokens - 1. The queries are in reverse order, and scaled
        as the queries of tokens are.
        """
        if self.settings.distances is None:
            return None
        rows = self.settings.distances.rows(np.arange(1 - tokens, tokens))
        heads = self.settings.heads
        keys, queries = (
            self._floats[f"{layer}.{name}"][rows].reshape(len(rows), heads, -1).transpose(1, 0, 2)
            for name in ("keys_at", "queries_at")
        )
        return keys, queries[:, ::-1] * np.float32(1 / math.sqrt(3 * keys.shape[2]))


def turns(rotary: Rotary, size: int, places: int) -> Floats:
    """Return the rotations of a rotary embedding, [places, size / 2, 2].

    They are the cosine and the sine of the angle by which each pair of values of queries and keys is rotated, at each
    place.

    Parameters
    ----------
    rotary : Rotary
        The rotary embedding of a layer.
    size : int
        The number of values of a head.
    places : int
        The number of places.

    """
    speeds = (1 / rotary.base ** (np.arange(0, size, 2) / size) / rotary.stretch).astype(np.float32)
    angles = np.arange(places, dtype=np.float32)[:, None] * speeds
    return np.stack([np.cos(angles), np.sin(angles)], axis=2)


def _turn(queries: Floats, by: Floats) -> None:
    """Rotate queries and keys in place.

    queries: [tokens, 2, heads, size]. by: the rotations of each token, as `turns` returns them for each place.
    """
    half = queries.shape[-1] // 2
    cosine, sine = by[:, None, None, :, 0], by[:, None, None, :, 1]
    low, high = queries[..., :half].copy(), queries[..., half:]
    queries[..., :half] = low * cosine - high * sine
    queries[..., half:] = high * cosine + low * sine


def _attend(
    query: Floats, key: Floats, value: Floats, out: Floats, rows: slice | None = None, near: slice | None = None,
    window: int = 0, apart: tuple[Floats, Floats] | None = None,
) -> None:  # fmt: skip
    """Compute the attention of some tokens of a text to some tokens of the same text.

    Parameters
    ----------
    query, key, value : float32 [heads, tokens, size]
        The queries, keys and values of each head.
    out : float32 [heads, queries, size]
        The array for the result.
    rows, near : slice, optional
        With a window: the tokens of the text that have the queries, and those that have the keys.
    window : int
        The largest distance of a key from a query.
    apart : tuple of float32 [heads, 2 tokens - 1, size], optional
        The keys and the queries of distances, as `_apart` returns them.

    """
    heads, count = len(query), key.shape[1]
    step = max(1, _IN_CACHE // (query.shape[1] * count))
    for some in (slice(first, first + step) for first in range(0, heads, step)):
        scores = query[some] @ key[some].transpose(0, 2, 1)
        if apart is not None:
            keys_at, queries_at = (one[some].transpose(0, 2, 1) for one in apart)
            scores += _of_distances(query[some] @ keys_at)
            scores += _of_distances(key[some] @ queries_at).transpose(0, 2, 1)
        if rows is not None and near is not None:
            far = (
                np.arange(near.start, near.start + count) - np.arange(rows.start, rows.start + query.shape[1])[:, None]
            )
            scores[:, np.abs(far) > window] = -np.inf
        scores -= scores.max(axis=2, keepdims=True)
        np.exp(scores, out=scores)
        np.divide(scores @ value[some], scores.sum(axis=2, keepdims=True), out=out[some])


def _of_distances(products: Floats) -> Floats:
    """Select from products with all distances, for each pair of tokens i and j, the product with the distance i - j.

    products: [heads, tokens, 2 tokens - 1]. Returns a view, [heads, i, j], in which each row starts one distance later.
    """
    count = products.shape[1]
    of_head, of_row, of_distance = products.strides
    return np.lib.stride_tricks.as_strided(
        products[:, :, count - 1 :], (len(products), count, count), (of_head, of_row + of_distance, -of_distance)
    )


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer norm's tensors by their names."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_IN_CACHE = 1 << 16
"""How many values are computed at once, so that they stay in a core's cache."""


def _gelu(x: Floats) -> Floats:
    """Apply Gaussian error linear units (Hendrycks and Gimpel, 2016).

    They are x times the share of a normal distribution below x. The error function is formula 7.1.26 of Abramowitz and
    Stegun, with an error below 1.5e-7. x is overwritten if it is contiguous.
    """
    x = np.ascontiguousarray(x)
    flat = x.reshape(-1)
    for first in range(0, len(flat), _IN_CACHE):
        part = flat[first : first + _IN_CACHE]
        scaled = np.abs(part)
        scaled *= np.float32(math.sqrt(0.5))
        t = scaled * np.float32(0.3275911)
        t += 1
        np.divide(np.float32(1), t, out=t)
        tail = t * np.float32(_ERF[-1] / 2)
        for factor in reversed(_ERF[:-1]):
            tail += np.float32(factor / 2)
            tail *= t
        scaled *= scaled
        np.negative(scaled, out=scaled)
        tail *= np.exp(scaled, out=scaled)  # the share beyond |x|
        tail *= part
        np.maximum(part, 0, out=part)
        part -= np.abs(tail, out=tail)
    return x


def _gelu_tanh(x: Floats) -> Floats:
    """Apply the approximation of the same paper: "gelu_new" and "gelu_pytorch_tanh" of transformers."""
    out: Floats = x / 2 * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)))
    return out


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "identity": lambda x: x,
}
