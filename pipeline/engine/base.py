"""The interface of all engines: the texts that they take, the predictions that they return, and what they can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..model.alphabet import Alphabet, Encoded, count_characters, encode, of_ids, unread
from ..model.charcnn import Model
from ..model.layers import WHOLE
from ..model.scores import parts_of, with_best
from ..telemetry.spans import Span

T = TypeVar("T")

ALONE: AbstractContextManager[object] = nullcontext()
"""The turn of a thread that is the only one to call an engine."""

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "fp16", "bf16", "int8")
KERNELS = ("auto", "simt", "sm75", "sm80", "sm90")
TORCH = "torch"
"""In place of kernels, where PyTorch computes."""


class Sharing(Protocol):
    """What several encoders that read the same texts compute once, as `sharing.py` does it."""

    def logits(
        self, engine: Any, texts: Texts, spans: list[Span] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The logits of one of the engines, [N, outputs], and which texts have more tokens than are read, [N]."""

    def tokens(self, vocabulary: str, data: Any, offsets: NDArray[np.int64], make: Callable[[], T]) -> T:
        """The tokens of texts: those that an encoder with the same vocabulary has made, else what `make` returns."""


@dataclass(frozen=True)
class Texts:
    """N articles as an engine takes them: the buffers of an Arrow string column, or characters encoded already.

    Attributes
    ----------
    data : uint8 [bytes]
        The articles, one after another, in UTF-8. A CuPy array for an engine on that GPU, which copies it no further.
    offsets : int64 [N + 1]
        Article i is ``data[offsets[i]:offsets[i + 1]]``.
    ids : uint8 [N, length], optional
        Encoded characters in place of text; `data` and `offsets` are then empty.
    n_chars : int64 [N], optional
        Characters of each whole text, where `data` has been cut to its beginning (never below what the model reads).
    shared : dict, optional
        Where several models read these texts: what one of them encoded, for others with the same alphabet and length.
    prepared : mapping of str to pyarrow.LargeStringArray or OffHost
        The texts as they were prepared while they were read, [N] each, by the `id` of the preparation.
    sharing : Sharing, optional
        Where several encoders read these texts: what they share.
    is_written : bool
        Of texts on a GPU: whether it has written them. Else an engine waits for all that the GPU does.

    Examples
    --------
    >>> texts = Texts.of([b"Stocks fell on Monday", b"The home team won"])
    >>> len(texts)
    2

    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    ids: NDArray[np.uint8] | None = None
    n_chars: NDArray[np.int64] | None = None
    shared: dict[tuple[str, int], Encoded] | None = None
    prepared: Mapping[str, Any] = field(default_factory=dict)
    is_written: bool = False
    sharing: Sharing | None = None

    @classmethod
    def of(cls, articles: Sequence[bytes]) -> Texts:
        """Join articles that are given one by one, in UTF-8."""
        offsets = np.cumsum([0, *map(len, articles)]).astype(np.int64)
        return cls(np.frombuffer(b"".join(articles), np.uint8), offsets)

    def take(self, rows: NDArray[np.bool_]) -> Texts:
        """The articles where `rows`, [N], is true."""
        if self.ids is not None:
            return Texts(self.data, self.offsets, self.ids[rows])
        return Texts.of([self.data[self.offsets[i] : self.offsets[i + 1]].tobytes() for i in np.flatnonzero(rows)])

    def encoded(self, alphabet: Alphabet, length: int) -> Encoded:
        """The ids that a model with this alphabet and length reads, and the counts of characters. One that reads whole
        texts has no ids.
        """
        if self.ids is not None:
            return of_ids(self.ids, alphabet)
        if length == WHOLE:
            return unread(self.data, self.offsets)
        how, shared = (alphabet.symbols, length), {} if self.shared is None else self.shared
        if how not in shared:
            shared[how] = encode(self.data, self.offsets, alphabet, length)
        return shared[how]

    def as_read_by(self, model: Model) -> Texts:
        """The texts after a model's preparation, whole. Raises UsageError where they are encoded already."""
        if model.preparation is None:
            return self
        import pyarrow as pa  # it takes time to load

        from ..model.preparation import buffers_of, column_of

        if self.ids is not None:
            raise UsageError(f"the input is encoded already, and {model.name} prepares its texts: give it the texts")
        texts = self.prepared.get(model.preparation.id)
        if texts is None:
            texts = model.preparation.of(column_of(self.data, self.offsets))
        if isinstance(texts, pa.Array):
            return Texts(*buffers_of(texts), sharing=self.sharing)
        return Texts(texts.data, texts.offsets, is_written=True, sharing=self.sharing)  # they are on a GPU

    def __len__(self) -> int:
        return len(self.offsets) - 1 if self.ids is None else len(self.ids)


@dataclass(frozen=True)
class Predictions:
    """The labels of N articles, and three counts of their characters.

    Attributes
    ----------
    labels : int32 [N, k]
        Class indices, the most probable first; the lower index first on a tie. -1 where the model overflows.
    scores : float32 [N, k]
        Their probabilities; NaN where the model overflows.
    all_scores : float32 [N, classes], optional
        The probability of every class, if requested; NaN where the model overflows.
    n_chars : int64 [N]
        Characters of the whole text.
    truncated : bool [N]
        Whether the text is longer than the model reads.
    unknown_chars : int64 [N]
        Characters outside the alphabet, in the part that the network reads; 0 of a model without one.
    saturated : int
        In int8, how many 8-bit activations of all articles have the greatest value, since what was above is there too.
    n_windows : int64 [N], optional
        Windows of each text, where long ones are labelled in windows.
    asked : int
        Of a model whose network is asked about some articles only, about how many; of long ones that are labelled in
        windows, about how many windows.

    """

    labels: NDArray[np.int32]
    scores: NDArray[np.float32]
    all_scores: NDArray[np.float32] | None
    n_chars: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    unknown_chars: NDArray[np.int64]
    saturated: int = 0
    n_windows: NDArray[np.int64] | None = None
    asked: int = 0

    @property
    def overflowed(self) -> NDArray[np.bool_]:
        """Articles on which the model overflows, so that they have no label, [N]."""
        return ~np.isfinite(self.scores[:, 0])

    def take(self, rows: NDArray[np.bool_]) -> Predictions:
        """The predictions of the articles where `rows`, [N], is true."""
        every = None if self.all_scores is None else self.all_scores[rows]
        counts = (self.n_chars[rows], self.truncated[rows], self.unknown_chars[rows])
        windows = None if self.n_windows is None else self.n_windows[rows]
        return Predictions(self.labels[rows], self.scores[rows], every, *counts, self.saturated, windows, self.asked)

    def of_whole_texts(self, texts: Texts, model: Model) -> Predictions:
        """The predictions with the counts of the whole texts, which may be cut in `texts`, as `model` reads them: its
        n-grams may read more characters than its network, and know all of them.
        """
        n_chars = self.n_chars if texts.n_chars is None else texts.n_chars
        unknown = self.unknown_chars if model.has_network else np.zeros_like(self.unknown_chars)
        return replace(self, n_chars=n_chars, truncated=n_chars > model.reads, unknown_chars=unknown)

    def with_numbers(self, model: Model) -> Predictions:
        """For a model of numbers: the predictions with numbers in place of logits, and probabilities of levels."""
        if model.levels is None:
            return self
        numbers = model.levels.numbers_of(self.labels, self.scores, len(model.classes))
        every = None if self.all_scores is None else model.levels.probabilities(self.all_scores)
        return replace(self, scores=numbers, all_scores=every)

    def by_class(self, model: Model) -> Predictions:
        """For a model that is calibrated by class: the predictions with such scores; their labels stay."""
        if model.by_class is None:
            return self
        labels = self.labels[:, 0]
        best = model.by_class.scores(labels, self.scores[:, 0])
        scores = with_best(self.scores, np.zeros_like(labels), best)
        every = None if self.all_scores is None else with_best(self.all_scores, np.maximum(labels, 0), best)
        return replace(self, scores=scores, all_scores=every)

    def by_head(self, model: Model) -> Predictions:
        """For a model with heads: these predictions with probabilities that add up to one within each head. They are
        NaN in a head whose classes are all so unlikely beside those of others that their probabilities are 0.
        """
        if model.heads is None or self.all_scores is None:
            return self
        every = self.all_scores.copy()
        for part in parts_of(model.heads):
            own = every[:, part]
            with np.errstate(invalid="ignore"):
                own /= own.sum(axis=1, keepdims=True)
        return replace(self, all_scores=every)

    def cut(self, k: int) -> Predictions:
        """These predictions with the `k` best labels only."""
        return replace(self, labels=self.labels[:, :k], scores=self.scores[:, :k])


@dataclass(frozen=True)
class Backend:
    """What determines the bits of a score, apart from model and text; part of a job's fingerprint.

    Attributes
    ----------
    device : str
        "cpu" or "cuda".
    kernels : str
        "numpy" on a CPU; on a GPU the generation of CUDA kernels: "simt", "sm75", "sm80" or "sm90". On both "torch",
        where PyTorch computes.
    architecture : str
        The code that runs: NumPy, BLAS and SIMD versions, or compute capability and compiler.
    precision : str
        "fp32", "fp16", "bf16" or "int8".

    """

    device: str
    kernels: str
    architecture: str
    precision: str

    def __str__(self) -> str:
        by = "PyTorch" if self.kernels == TORCH else f"{self.kernels} kernels"
        return f"{self.device} {self.precision}, {by} ({self.architecture})"


class Engine(Protocol):
    """A loaded model, ready to classify. Threads that call it at the same time give it the same lock as their `turn`.

    Attributes
    ----------
    backend : Backend
        What determines the bits of its scores.
    model : Model
        The model.
    device_name : str
        "cpu", or "cuda:" and the number of the GPU on its host.
    memory_ready : float
        When its weights and buffers were allocated, in seconds since the epoch.
    reads_gpu_texts : bool
        Whether it labels texts on a GPU without a copy on the host.
    batch : int or None
        Articles in one batch on the device at most; None where batches make no difference.

    Examples
    --------
    >>> engine = open_engine(load_model(), device="cpu")
    >>> engine.classify(Texts.of([b"Stocks fell on Monday"])).labels
    array([[2]], dtype=int32)
    >>> engine.close()

    """

    backend: Backend
    model: Model
    device_name: str
    memory_ready: float
    reads_gpu_texts: bool

    @property
    def batch(self) -> int | None: ...

    def classify(
        self,
        texts: Texts,
        top_k: int = 1,
        all_scores: bool = False,
        spans: list[Span] | None = None,
        each_kernel: bool = False,
        turn: AbstractContextManager[object] = ALONE,
    ) -> Predictions:
        """Label articles.

        Parameters
        ----------
        texts : Texts
            N articles.
        top_k : int
            Labels for each article; reduced to the number of classes where it is above that.
        all_scores : bool
            Return the probability of every class too.
        spans : list of Span, optional
            A span is appended for each step on the device: the copies and the kernels of each batch.
        each_kernel : bool
            Also append a span for every kernel.
        turn : context manager, optional
            The engine enters it while it gives the device texts: a lock, where several threads call the engine. An
            engine of a GPU plans before it, and waits for the labels after it, so that the device does not stand still
            between two calls. It may be entered several times.

        Returns
        -------
        Predictions
            The labels of the N articles, in order. An article on which the model overflows has none, and never
            changes those of others.

        Raises
        ------
        BroadsheetError
            If the device fails.

        """
        ...

    def close(self) -> None:
        """Release threads and device memory."""
        ...


class Wrapped:
    """An engine of a model that prepares its texts, or has scores by class: another one labels, of the model without.

    The counts of its predictions are those of the texts as they came, but for what the model did not read or know of
    a prepared one.
    """

    def __init__(self, model: Model, engine: Engine) -> None:
        self.model, self.engine, self.batch, self.close = model, engine, engine.batch, engine.close
        self.backend, self.device_name, self.memory_ready = engine.backend, engine.device_name, engine.memory_ready
        is_prepared_on_gpu = model.preparation is None or model.preparation.byte_steps is not None
        self.reads_gpu_texts = engine.reads_gpu_texts and is_prepared_on_gpu

    def classify(self, texts: Texts, *how: Any, **more: Any) -> Predictions:
        """Label articles, as `Engine.classify` does."""
        return self.through(texts, lambda engine, own: engine.classify(own, *how, **more))

    def through(self, texts: Texts, label: Callable[[Engine, Texts], Predictions]) -> Predictions:
        """What `label` makes of the prepared texts with the other engine."""
        if self.model.preparation is None:
            return label(self.engine, texts).by_class(self.model)
        if not isinstance(texts.data, np.ndarray) and self.model.preparation.id not in texts.prepared:  # CuPy's
            texts = replace(texts, data=texts.data.get())
        predictions = label(self.engine, texts.as_read_by(self.model)).by_class(self.model)
        n_chars = count_characters(texts.data, texts.offsets) if texts.n_chars is None else texts.n_chars
        return replace(predictions, n_chars=n_chars)
