"""The arrays of a batch on the GPU: those that kernels read, and those that they write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import cupy as cp


class DeviceTexts(NamedTuple):
    """Texts on the GPU. Kernels read their number there, so that one CUDA graph works for any number of texts.

    Attributes
    ----------
    data : uint8 [bytes]
        The texts in UTF-8, with room for more; ``data[0]`` is the byte at ``offsets[0]``.
    offsets : int64 [N + 1]
        Where each text begins, and where the last ends, with room for more.
    count : int32 [1]
        The number of texts.

    """

    data: cp.ndarray
    offsets: cp.ndarray
    count: cp.ndarray

    @property
    def limit(self) -> int:
        """The largest number of texts that the arrays can hold. Only the GPU knows the number itself."""
        return len(self.offsets) - 1


class Packing(NamedTuple):
    """The places of the rows of N articles in the arrays of a batch.

    Attributes
    ----------
    first : int32 [N + 1]
        The first unit of each article, and in the last element the number of units.
    counts : int32 [2]
        The number of units and N, which products read.
    closing : uint8 [units], or None
        1 for each closing unit; None if no unit is one.
    unit_limit : int
        The largest number of units, which is all that the host knows.

    """

    first: cp.ndarray
    counts: cp.ndarray
    closing: cp.ndarray | None
    unit_limit: int


class DeviceEncoded(NamedTuple):
    """The arrays of `alphabet.Encoded` on the GPU.

    Attributes
    ----------
    ids : uint8 [N, pitch]
        The ids, filled with padding up to the pitch, which is a multiple of 16.
    n_chars : int64 [N]
        The number of characters in the whole text.
    truncated : uint8 [N]
        1 if the text is longer than what the model reads.
    unknown_chars : int64 [N]
        The number of characters outside the alphabet, in the part that the model reads.

    """

    ids: cp.ndarray
    n_chars: cp.ndarray
    truncated: cp.ndarray
    unknown_chars: cp.ndarray


class NetworkRows(NamedTuple):
    """The articles of a batch that the network must score.

    Attributes
    ----------
    rows : int32 [N]
        The numbers of these articles, of which the first `count` are valid.
    count : int32 [1]
        The number of these articles.

    """

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
        The indices of the best classes.
    best : float32 [N, k]
        The scores of these classes.

    """

    logits: cp.ndarray
    scores: cp.ndarray
    labels: cp.ndarray
    best: cp.ndarray


class DeviceBatch(NamedTuple):
    """The arrays in which the kernels of a batch find its texts and leave its results.

    Attributes
    ----------
    texts : DeviceTexts
        The texts.
    encoded : DeviceEncoded
        The ids and counts of the texts.
    scored : Scored
        The scores and labels of the texts.
    saturated : uint64 [1]
        The number of saturated values, in int8.
    asked : int32 [1]
        The number of articles that the network must score, for a model whose n-grams may decide alone.

    """

    texts: DeviceTexts
    encoded: DeviceEncoded
    scored: Scored
    saturated: cp.ndarray
    asked: cp.ndarray

    @classmethod
    def of(cls, given: Mapping[str, cp.ndarray], results: Mapping[str, cp.ndarray], ids: cp.ndarray) -> DeviceBatch:
        """Return the batch with these inputs (see `input_shapes`), results (see `result_shapes`) and ids."""
        return cls(
            DeviceTexts(given["text"], given["offsets"], given["count"]),
            DeviceEncoded(ids, results["n_chars"], results["truncated"], results["unknown_chars"]),
            Scored(results["logits"], results["scores"], results["labels"], results["best"]),
            results["saturated"],
            results["asked"],
        )

    def first(self, articles: int, size: int) -> DeviceBatch:
        """Return the batch with arrays cut to its first `articles` articles, whose texts have `size` bytes."""
        texts = self.texts._replace(data=self.texts.data[:size], offsets=self.texts.offsets[: articles + 1])
        encoded = DeviceEncoded(*(array[:articles] for array in self.encoded))
        scored = Scored(*(array[:articles] for array in self.scored))
        return self._replace(texts=texts, encoded=encoded, scored=scored)
