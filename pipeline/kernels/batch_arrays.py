"""The arrays of a batch on the GPU: what kernels read, and what they write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import cupy as cp


class DeviceTexts(NamedTuple):
    """Texts on the GPU. A launch finds their number there, so that a graph of launches repeats for any number.

    Attributes
    ----------
    data : uint8 [bytes]
        The texts in UTF-8, with room for more; ``data[0]`` is the byte at ``offsets[0]``.
    offsets : int64 [N + 1]
        Where each text begins, and where the last ends; with room for more.
    count : int32 [1]
        How many texts there are.

    """

    data: cp.ndarray
    offsets: cp.ndarray
    count: cp.ndarray

    @property
    def most(self) -> int:
        """How many texts there are at most, as the host knows."""
        return len(self.offsets) - 1


class Packing(NamedTuple):
    """Where the rows of N articles lie.

    Attributes
    ----------
    first : int32 [N + 1]
        The first unit of each article, and last the number of units.
    counts : int32 [2]
        The number of units and N, which products read.
    closing : uint8 [units], or None
        1 for each closing unit; None where no unit is one.
    most : int
        How many units there are at most, as the host knows.

    """

    first: cp.ndarray
    counts: cp.ndarray
    closing: cp.ndarray | None
    most: int


class DeviceEncoded(NamedTuple):
    """`alphabet.Encoded` on the GPU.

    Attributes
    ----------
    ids : uint8 [N, pitch]
        The ids, filled up with padding to a pitch that is a multiple of 16.
    n_chars : int64 [N]
        Characters of the whole text.
    truncated : uint8 [N]
        1 where the text is longer than the model reads.
    unknown_chars : int64 [N]
        Characters outside the alphabet, in the part that the model reads.

    """

    ids: cp.ndarray
    n_chars: cp.ndarray
    truncated: cp.ndarray
    unknown_chars: cp.ndarray


class Asked(NamedTuple):
    """The articles of a batch that the network is asked about: int32 [N], the first `count`, int32 [1], of them."""

    rows: cp.ndarray
    count: cp.ndarray


class Scored(NamedTuple):
    """The results of N articles on the GPU.

    Attributes
    ----------
    logits : float32 [N, classes]
        The logits.
    scores : float32 [N, classes]
        The score of every class.
    labels : int32 [N, k]
        Indices of the best classes.
    best : float32 [N, k]
        Their scores.

    """

    logits: cp.ndarray
    scores: cp.ndarray
    labels: cp.ndarray
    best: cp.ndarray


class DeviceBatch(NamedTuple):
    """Where the kernels of a batch find its texts, and where they leave its results.

    Attributes
    ----------
    texts : DeviceTexts
        The texts.
    encoded : DeviceEncoded
        Their ids and counts.
    scored : Scored
        Their scores and labels.
    saturated : uint64 [1]
        Where saturated values are counted, in int8.
    asked : int32 [1]
        Where the articles are counted about which the network is asked, of a model whose n-grams can be alone.

    """

    texts: DeviceTexts
    encoded: DeviceEncoded
    scored: Scored
    saturated: cp.ndarray
    asked: cp.ndarray

    @classmethod
    def of(cls, given: Mapping[str, cp.ndarray], results: Mapping[str, cp.ndarray], ids: cp.ndarray) -> DeviceBatch:
        """The batch of which these arrays hold what it is given (`input_shapes`) and its results (`result_shapes`)."""
        return cls(
            DeviceTexts(given["text"], given["offsets"], given["count"]),
            DeviceEncoded(ids, results["n_chars"], results["truncated"], results["unknown_chars"]),
            Scored(results["logits"], results["scores"], results["labels"], results["best"]),
            results["saturated"],
            results["asked"],
        )

    def first(self, articles: int, size: int) -> DeviceBatch:
        """The same with arrays that end after so many articles, whose text has so many bytes."""
        texts = self.texts._replace(data=self.texts.data[:size], offsets=self.texts.offsets[: articles + 1])
        encoded = DeviceEncoded(*(array[:articles] for array in self.encoded))
        scored = Scored(*(array[:articles] for array in self.scored))
        return self._replace(texts=texts, encoded=encoded, scored=scored)
