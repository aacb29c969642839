"""Shares results between the engines of several encoders that read the same texts in one pass.

Engines whose encoders have the same trunk compute it once: the first engine that is called computes the heads of all.
Encoders with different trunks and the same vocabulary share the tokens. A chain gives its encoder only some of the
texts, and shares nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..telemetry.spans import Span
    from .base import Texts
    from .encoder import EncoderEngine

Floats = NDArray[np.float32]
T = TypeVar("T")

_MOST_BYTES = 8 << 20
"""The most bytes of text whose tokens stay for the next encoder. Tokens take many times as much memory."""


class EncoderSharing:
    """The engines of one call, and the results that they have computed so far. It lives as long as the call.

    Parameters
    ----------
    groups : sequence of sequence of EncoderEngine
        The engines, with a group for those that read the same texts. In a group, engines with the same trunk share it.

    """

    def __init__(self, groups: Sequence[Sequence[EncoderEngine]]) -> None:
        self._groups = groups
        self._logits: dict[tuple[int, str], tuple[Floats, NDArray[np.bool_], Any]] = {}
        self._tokens: dict[tuple[str, str], Any] = {}
        vocabularies = [engine.compute.vocabulary for group in groups for engine in group]
        self._several = {vocabulary for vocabulary in vocabularies if vocabulary and vocabularies.count(vocabulary) > 1}

    def logits(self, engine: EncoderEngine, texts: Texts, spans: list[Span] | None) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the result of `Compute.of_texts` for one of the engines.

        Parameters
        ----------
        engine : EncoderEngine
            The engine.
        texts : Texts
            N texts.
        spans : list of Span, optional
            See `Compute.of_texts`.

        """
        members = [other for group in self._groups if engine in group for other in group if other.trunk == engine.trunk]
        if len(members) < 2:
            return engine.compute.of_texts(texts, True, spans)
        key = _content(texts.data, texts.offsets)
        if (id(engine), key) not in self._logits:
            found, is_cut = engine.compute.of_heads(texts, [member.compute for member in members], spans)
            # The entry also keeps the texts alive, so that no other texts can have the same address on a GPU.
            for member, logits in zip(members, found, strict=True):
                self._logits[id(member), key] = logits, is_cut, texts.data
        logits, is_cut, _ = self._logits.pop((id(engine), key))
        return logits, is_cut

    def tokens(self, vocabulary: str, data: Any, offsets: NDArray[np.int64], make: Callable[[], T]) -> T:
        """Return the tokens of texts: those that an encoder with the same vocabulary has made, or new ones.

        Parameters
        ----------
        vocabulary : str
            The digest of everything that decides tokens.
        data, offsets
            The texts.
        make : callable
            The function that makes the tokens.

        """
        size = int(offsets[-1] - offsets[0])
        if vocabulary not in self._several or size > _MOST_BYTES:
            return make()
        key = vocabulary, _content(data[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])
        if key not in self._tokens:
            self._tokens[key] = make()
        tokens: T = self._tokens[key]
        return tokens


def _content(data: Any, offsets: NDArray[np.int64]) -> str:
    """Return a digest that identifies texts during a call: of their content, or of a CuPy array's address."""
    digest = hashlib.blake2b(np.ascontiguousarray(offsets).data, digest_size=16)
    if isinstance(data, np.ndarray):
        digest.update(np.ascontiguousarray(data).data)
    else:
        digest.update(f"{data.data.ptr} {data.size}".encode())
    return digest.hexdigest()
