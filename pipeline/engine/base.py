"""What every engine takes, gives and can do: from text to labels, behind one face."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.model.charcnn import Model
from pipeline.profiling.kernel_work import Ceilings, KernelProfile
from pipeline.telemetry.spans import Span

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "fp16", "bf16")
KERNELS = ("auto", "simt", "sm80", "sm90")


class Texts(Protocol):
    """N articles as an engine takes them: the buffers of an Arrow string column, or characters encoded already.

    data: uint8 [bytes]. offsets: int64 [N + 1]. ids: uint8 [N, length] in place of text, or None.
    """

    @property
    def data(self) -> NDArray[np.uint8]: ...
    @property
    def offsets(self) -> NDArray[np.int64]: ...
    @property
    def ids(self) -> NDArray[np.uint8] | None: ...


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
    place, in epoch seconds.
    """

    backend: Backend
    model: Model
    device_name: str
    memory_ready: float

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

    def profile(self, texts: Texts) -> list[KernelProfile]:
        """Measure every kernel over N articles in one batch, alone and within the network, in the order they run."""
        ...

    def ceilings(self) -> Ceilings:
        """Measure what the device reaches, in the precision of this engine's products."""
        ...

    def close(self) -> None:
        """Give back threads and device memory."""
        ...
