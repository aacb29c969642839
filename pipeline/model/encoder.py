"""Encoders with a head (BERT, RoBERTa and their kin), in NumPy: the specification, and the CPU backend.

Each token has a vector: that of its entry in the vocabulary, and of its place. Each layer adds to every vector what
attention makes of all of the text's, and then what two products with an activation between make of the vector itself;
after each of the two, vectors are normalised. The text's vector is that of its first token, or the mean of all; a head
of products gives the logits. See Vaswani et al., "Attention Is All You Need" (2017), and Devlin et al., "BERT" (2019).

A text has products of its own, without padding, so that nothing but the text decides its bits.
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
Activation = Literal["gelu", "gelu_tanh", "relu"]
Pooling = Literal["cls", "mean"]

PREFIX = "encoder."
"""Of its tensors in a model file."""

VOCABULARY = ("words", "ends", "pages", "characters", "sequences")
TOKENIZER = "tokenizer"
MOST_LAYERS, MOST_TOKENS = 128, 8192
NORMALISE = "normalise"


class Settings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What decides the vector of a text beside the weights.

    Attributes
    ----------
    layers, heads : int
        How many.
    epsilon : float
        What is added to the variance that vectors are normalised by.
    activation : str
        Between the two products of a layer: "gelu" with the error function, "gelu_tanh", or "relu".
    pooling : str
        What the vector of a text is: that of its first token ("cls"), or the mean of all ("mean").
    head : tuple of str
        What is done to that vector before the last product, in order: "normalise" to a length of one, or a product
        that is followed by "tanh", "relu", "gelu", or "identity".
    most : int
        Tokens of a text that are read, with the ones that begin and end it.
    rules : Rules or None
        What decides the tokens of a text; None where a stored tokenizer does.
    padding : int, optional
        A token that has a place of its own, the last one, and that is not counted in the places of others: RoBERTa's
        padding, which a text may spell out.

    """

    layers: Annotated[int, Meta(ge=1, le=MOST_LAYERS)]
    heads: Annotated[int, Meta(ge=1)]
    epsilon: Annotated[float, Meta(gt=0, lt=1)]
    activation: Activation
    pooling: Pooling
    head: tuple[Literal["normalise", "tanh", "relu", "gelu", "identity"], ...]
    most: Annotated[int, Meta(ge=3, le=MOST_TOKENS)]
    rules: Rules | None
    padding: Annotated[int, Meta(ge=0)] | None = None


@dataclass(frozen=True)
class Encoder:
    """An encoder in place of a network; immutable.

    Attributes
    ----------
    settings : Settings
        What decides its vectors beside the weights.
    tokens : WordPiece or StoredTokenizer
        Its vocabulary.
    weights : mapping of str to ndarray
        float32 or float16: "embedding" [entries, width], "places" [most, width], or one more where padding has one, and
        "norm.weight" and "norm.bias" [width]; of each layer, "0.", "1." and so on: "queries" [width, 3 width] of
        queries, keys and values, "mix" [width, width], "inner" [width, inner], "outer" [inner, width], each with
        ".bias", and two norms, "norm1" and "norm2"; of the head "head.0" and so on, [inputs, outputs] with ".bias", and
        "last" [inputs, classes], whose bias is the model's. Without "last" it gives vectors and no scores.

    """

    settings: Settings
    tokens: WordPiece | StoredTokenizer
    weights: Mapping[str, NDArray[Any]] = field(repr=False)

    feature: ClassVar[str] = "encoder"
    runs_in: ClassVar[str] = "own kernels"

    @property
    def about(self) -> Any:
        """What decides scores beside the tensors, as JSON values."""
        return to_builtins(self.settings)

    @property
    def framing(self) -> int:
        """Tokens that are put before a text and after it."""
        return self.tokens.framing

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(tensor.size for tensor in self.weights.values())

    @property
    def computed_weights(self) -> int:
        """The number of weights that each token is multiplied with."""
        return sum(t.size for name, t in self.weights.items() if name not in ("embedding", "places"))

    @property
    def width(self) -> int:
        """Values of a token's vector."""
        return int(self.weights["embedding"].shape[1])

    @property
    def outputs(self) -> int:
        """Values of a text's vector."""
        products = [i for i, step in enumerate(s for s in self.settings.head if s != NORMALISE)]
        return int(self.weights[f"head.{products[-1]}"].shape[1]) if products else self.width

    def tensors(self) -> dict[str, NDArray[Any]]:
        """All, by their names in a model file."""
        vocabulary = (
            {TOKENIZER: self.tokens.json}
            if isinstance(self.tokens, StoredTokenizer)
            else {name: getattr(self.tokens, name) for name in VOCABULARY}
        )
        return {f"{PREFIX}{name}": array for name, array in {**vocabulary, **self.weights}.items()}

    @classmethod
    def of_file(cls, settings: Settings, tensors: dict[str, NDArray[Any]], model: str) -> Encoder:
        """Take its tensors out of those of a model file. Raises ModelError where one is missing."""
        names = (TOKENIZER,) if settings.rules is None else VOCABULARY
        refuse_missing((f"{PREFIX}{name}" for name in names), tensors, model)
        own = {name.removeprefix(PREFIX): tensors.pop(name) for name in [*tensors] if name.startswith(PREFIX)}
        parts = [own.pop(name) for name in names]
        tokens = StoredTokenizer(parts[0]) if settings.rules is None else WordPiece(settings.rules, *parts)
        return cls(settings, tokens, own)

    def check(self, classes: int | None, model: str) -> None:
        """Raise ModelError unless the tensors fit the settings, and each other. classes: None for vectors."""
        entries, width = self.weights["embedding"].shape if "embedding" in self.weights else (0, 0)
        if isinstance(self.tokens, WordPiece):
            self.tokens.check(model)
            entries = self.tokens.size
        inner = self.weights["0.inner"].shape[-1] if "0.inner" in self.weights else 0
        if width == 0 or width % self.settings.heads:
            raise ModelError(f"{model}: vectors of {width} values for {self.settings.heads} heads of attention")
        expected: dict[str, tuple[int, ...]] = {
            "embedding": (entries, width),
            "places": (self.settings.most + (self.settings.padding is not None), width),
            **_norm("norm", width),
        }
        for layer in range(self.settings.layers):
            for name, shape in {
                "queries": (width, 3 * width), "mix": (width, width), "inner": (width, inner), "outer": (inner, width),
            }.items():  # fmt: skip
                expected |= {f"{layer}.{name}": shape, f"{layer}.{name}.bias": shape[1:]}
            expected |= _norm(f"{layer}.norm1", width) | _norm(f"{layer}.norm2", width)
        for number, _ in enumerate(step for step in self.settings.head if step != NORMALISE):
            outputs = self.weights[f"head.{number}"].shape[-1] if f"head.{number}" in self.weights else 0
            expected |= {f"head.{number}": (width, outputs), f"head.{number}.bias": (outputs,)}
            width = outputs
        if classes is not None:
            expected["last"] = (width, classes)
        check_tensors(self.weights, expected, model)

    def as_vectors(self) -> Encoder:
        """The same encoder for vectors of length one, without the last product."""
        head = self.settings.head if self.settings.head[-1:] == (NORMALISE,) else (*self.settings.head, NORMALISE)
        weights = {name: tensor for name, tensor in self.weights.items() if name != "last"}
        return replace(self, settings=msgspec.structs.replace(self.settings, head=head), weights=weights)

    @cached_property
    def _floats(self) -> dict[str, Floats]:
        return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in self.weights.items()}

    def tokens_of(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Tokens:
        """The tokens of N texts in valid UTF-8; texts as in `WordPiece.of_texts`."""
        tokens = self.tokens.of_texts(data, offsets, self.settings.most)
        if tokens.ids.max(initial=0) >= len(self.weights["embedding"]):
            raise ModelError(
                "the tokenizer of this encoder has more tokens than its embedding has rows: convert it again"
            )
        return tokens

    def places_of(self, ids: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of each token of N texts: which row of "places" is added to its vector. ids, ends: as in `Tokens`."""
        begins = np.repeat(ends[:-1], np.diff(ends))
        if self.settings.padding is None:
            return np.arange(len(ids)) - begins
        is_padding = ids == self.settings.padding
        counted = np.append(0, np.cumsum(~is_padding))
        return np.where(is_padding, self.settings.most, counted[:-1] - counted[begins])

    def logits(self, ids: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats:
        """Of N texts: the logits without the model's bias, float32 [N, classes]. ids, ends: as in `Tokens`."""
        return self.logits_of_pooled(self.pooled(ids, ends))

    def logits_of_pooled(self, pooled: Floats) -> Floats:
        """The same of what `pooled` gives, of this encoder or of another that has the same trunk."""
        last = self._floats["last"]
        return np.stack([self._head(vector) @ last for vector in pooled])

    def vectors(self, ids: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats:
        """Of N texts, one at least: float32 [N, outputs]. ids, ends: as in `Tokens`."""
        return np.stack([self._head(vector) for vector in self.pooled(ids, ends)])

    def pooled(self, ids: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats:
        """What the layers give of N texts, one at least, before the head: float32 [N, width]. ids, ends: as `Tokens`.

        The texts share what is computed of each value by itself, and the weights while these are in a cache. Each has
        products of its own.
        """
        texts = [slice(first, last) for first, last in pairwise(ends.tolist())]
        x: Floats = self._floats["embedding"][ids]
        x += self._floats["places"][self.places_of(ids, ends)]
        x = self._normed(x, "norm")
        for layer in range(self.settings.layers):
            x = self._normed(x + self._attention(x, texts, layer), f"{layer}.norm1")
            inner = _ACTIVATIONS[self.settings.activation](self._products(x, texts, f"{layer}.inner"))
            x = self._normed(x + self._products(inner, texts, f"{layer}.outer"), f"{layer}.norm2")
        is_cls = self.settings.pooling == "cls"
        return np.stack([x[text.start] if is_cls else x[text].mean(axis=0) for text in texts])

    def _head(self, vector: Floats) -> Floats:
        products = 0
        for step in self.settings.head:
            if step == NORMALISE:
                vector = vector / max(np.float32(1e-12), np.sqrt(vector @ vector))
            else:
                name = f"head.{products}"
                vector = _ACTIVATIONS[step](vector @ self._floats[name] + self._floats[f"{name}.bias"])
                products += 1
        return vector

    def _products(self, x: Floats, texts: list[slice], name: str) -> Floats:
        weight = self._floats[name]
        out = np.empty((len(x), weight.shape[1]), np.float32)
        for text in texts:
            np.matmul(x[text], weight, out=out[text])
        out += self._floats[f"{name}.bias"]
        return out

    def _normed(self, x: Floats, name: str) -> Floats:
        """Layer norm, in place."""
        x -= x.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", x, x) / np.float32(x.shape[1])
        x *= (1 / np.sqrt(variance + np.float32(self.settings.epsilon)))[:, None]
        x *= self._floats[f"{name}.weight"]
        x += self._floats[f"{name}.bias"]
        return x

    def _attention(self, x: Floats, texts: list[slice], layer: int) -> Floats:
        heads, size = self.settings.heads, x.shape[1] // self.settings.heads
        queries = self._products(x, texts, f"{layer}.queries").reshape(len(x), 3, heads, size)
        queries[:, 0] *= np.float32(1 / math.sqrt(size))
        mixed = np.empty((len(x), heads, size), np.float32)
        for text in texts:
            of_heads = queries[text].transpose(1, 2, 0, 3)
            step = max(1, _IN_CACHE // (text.stop - text.start) ** 2)
            for some in (slice(first, first + step) for first in range(0, heads, step)):
                query, key, value = of_heads[:, some]
                scores = query @ key.transpose(0, 2, 1)
                scores -= scores.max(axis=2, keepdims=True)
                np.exp(scores, out=scores)
                of_some = (scores @ value) / scores.sum(axis=2, keepdims=True)
                mixed[text, some] = of_some.transpose(1, 0, 2)
        return self._products(mixed.reshape(x.shape), texts, f"{layer}.mix")


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_IN_CACHE = 1 << 16
"""Values that are computed together."""


def _gelu(x: Floats) -> Floats:
    """Gaussian error linear units (Hendrycks and Gimpel, 2016): x times the share of a normal distribution below x. The
    error function is formula 7.1.26 of Abramowitz and Stegun, right within 1.5e-7.
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
    """The approximation of the same work: "gelu_new" and "gelu_pytorch_tanh" of transformers."""
    out: Floats = x / 2 * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)))
    return out


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "identity": lambda x: x,
}
