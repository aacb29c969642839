"""What every engine takes, gives and can do: from text to labels, behind one face."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.model.charcnn import Model
from pipeline.telemetry.spans import Span

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "fp16", "bf16")
KERNELS = ("auto", "simt", "sm80", "sm90")


@dataclass(frozen=True)
class Texts:
    """N articles as an engine takes them: the buffers of an Arrow string column, or characters encoded already.

    Attributes
    ----------
    data : uint8 [bytes]
    offsets : int64 [N + 1]
        Article i is ``data[offsets[i]:offsets[i + 1]]``.
    ids : uint8 [N, length], optional
        In place of text; `data` and `offsets` then hold nothing.
    n_chars : int64 [N], optional
        Characters of each whole text, where `data` holds only its beginning, at least as much as the model reads.

    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    ids: NDArray[np.uint8] | None = None
    n_chars: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, articles: Sequence[bytes]) -> Texts:
        """Articles given one by one, in UTF-8."""
        offsets = np.cumsum([0, *map(len, articles)]).astype(np.int64)
        return cls(np.frombuffer(b"".join(articles), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1 if self.ids is None else len(self.ids)


@dataclass(frozen=True)
class Predictions:
    """labels: int32 [N, k], class indices, best first. scores: fp32 [N, k], their probabilities.

    all_scores: fp32 [N, classes], or None if not asked for. n_chars, unknown_chars: int64 [N]. truncated: bool [N].
    """

    labels: NDArray[np.int32]
    scores: NDArray[np.float32]
    all_scores: NDArray[np.float32] | None
    n_chars: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    unknown_chars: NDArray[np.int64]

    def of_whole_texts(self, texts: Texts, length: int) -> Predictions:
        """The same, where `texts` come cut with the characters of the whole ones told; `length`: what a model reads."""
        if texts.n_chars is None:
            return self
        return replace(self, n_chars=texts.n_chars, truncated=texts.n_chars > length)

    def cut(self, k: int) -> Predictions:
        """The same with the `k` best labels only."""
        return replace(self, labels=self.labels[:, :k], scores=self.scores[:, :k])


@dataclass(frozen=True)
class Backend:
    """What decides the bits of a score beside model and text: part of a job's fingerprint."""

    device: str
    kernels: str
    architecture: str
    precision: str

    def __str__(self) -> str:
        return f"{self.device} {self.precision}, {self.kernels} kernels ({self.architecture})"


class Engine(Protocol):
    """A loaded model, ready to classify; one thread calls it at a time.

    device_name: "cpu", or "cuda:" and the GPU's number on its host. memory_ready: when its weights and buffers were in
    place, in epoch seconds. batch: articles that the device takes at a time at most; None where it makes no difference.
    """

    backend: Backend
    model: Model
    device_name: str
    memory_ready: float

    @property
    def batch(self) -> int | None: ...

    def classify(
        self,
        texts: Texts,
        top_k: int = 1,
        all_scores: bool = False,
        spans: list[Span] | None = None,
        each_kernel: bool = False,
    ) -> Predictions:
        """Label N articles; `top_k` is cut to the number of classes. Spans of the steps on the device are appended to
        `spans`: the copies and the kernels of each batch, with `each_kernel` every kernel too.
        """
        ...

    def close(self) -> None:
        """Give back threads and device memory."""
        ...
