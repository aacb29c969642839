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
"""The `turn` of a thread that calls an engine alone."""

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "fp16", "bf16", "int8")
KERNELS = ("auto", "simt", "sm75", "sm80", "sm90")
TORCH = "torch"
"""Replaces the name of kernels if PyTorch computes."""


class Sharing(Protocol):
    """The results that several encoders share if they read the same texts. `sharing.py` implements it."""

    def logits(
        self, engine: Any, texts: Texts, spans: list[Span] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the logits of one engine, [N, outputs], and whether each text has more tokens than it reads, [N]."""

    def tokens(self, vocabulary: str, data: Any, offsets: NDArray[np.int64], make: Callable[[], T]) -> T:
        """Return the tokens of texts: those of an encoder with the same vocabulary, else the result of `make`."""


@dataclass(frozen=True)
class Texts:
    """N articles for an engine: the buffers of an Arrow string column, or encoded characters.

    Attributes
    ----------
    data : uint8 [bytes]
        The articles, one after another, in UTF-8. It may be a CuPy array for an engine on the same GPU, which then does
        not copy it to the host.
    offsets : int64 [N + 1]
        Where each article begins: article i is ``data[offsets[i]:offsets[i + 1]]``.
    ids : uint8 [N, length], optional
        The encoded characters in place of text. `data` and `offsets` are then empty.
    n_chars : int64 [N], optional
        The number of characters in each whole text, if `data` has only its beginning (at least what the model reads).
    shared : dict, optional
        The ids that one of several models has encoded, for others with the same alphabet and length.
    prepared : mapping of str to pyarrow.LargeStringArray or OffHost
        The texts that were prepared when they were read, [N] each, by the `id` of the preparation.
    sharing : Sharing, optional
        The results that several encoders share, if several read these texts.
    is_written : bool
        For texts on a GPU, whether the GPU has written them. If not, an engine waits for all work of the GPU.

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
        """Return the articles for which `rows`, [N], is True."""
        if self.ids is not None:
            return Texts(self.data, self.offsets, self.ids[rows])
        return Texts.of([self.data[self.offsets[i] : self.offsets[i + 1]].tobytes() for i in np.flatnonzero(rows)])

    def encoded(self, alphabet: Alphabet, length: int) -> Encoded:
        """Return the ids that a model with this alphabet and length reads, and the counts of characters.

        A model that reads whole texts has no ids.
        """
        if self.ids is not None:
            return of_ids(self.ids, alphabet)
        if length == WHOLE:
            return unread(self.data, self.offsets)
        key, shared = (alphabet.symbols, length), {} if self.shared is None else self.shared
        if key not in shared:
            shared[key] = encode(self.data, self.offsets, alphabet, length)
        return shared[key]

    def as_read_by(self, model: Model) -> Texts:
        """Return the whole texts after a model's preparation. Raises UsageError if they are already encoded."""
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
        The class indices, the most probable first, and on a tie the lower index first. -1 if the model overflows.
    scores : float32 [N, k]
        The probabilities of these classes. NaN if the model overflows.
    all_scores : float32 [N, classes], optional
        The probability of every class, if requested. NaN if the model overflows.
    n_chars : int64 [N]
        The number of characters in the whole text.
    truncated : bool [N]
        Whether the text is longer than what the model reads.
    unknown_chars : int64 [N]
        The number of characters outside the alphabet, in the part that the network reads. 0 for a model without one.
    saturated : int
        In int8, how many 8-bit activations of all articles have the greatest value, to which larger ones are cut.
    n_windows : int64 [N], optional
        The number of windows of each text, if long texts are labelled in windows.
    asked : int
        The number of articles that the network scored, if it scores only some. For texts that are labelled in windows,
        the number of windows.

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
        """Whether the model overflows on each article, which then has no label, [N]."""
        return ~np.isfinite(self.scores[:, 0])

    def take(self, rows: NDArray[np.bool_]) -> Predictions:
        """Return the predictions of the articles for which `rows`, [N], is True."""
        every = None if self.all_scores is None else self.all_scores[rows]
        counts = (self.n_chars[rows], self.truncated[rows], self.unknown_chars[rows])
        windows = None if self.n_windows is None else self.n_windows[rows]
        return Predictions(self.labels[rows], self.scores[rows], every, *counts, self.saturated, windows, self.asked)

    def of_whole_texts(self, texts: Texts, model: Model) -> Predictions:
        """Return the predictions with the counts of the whole texts, which may be cut in `texts`.

        The counts are those of `model`: its n-grams may read more characters than its network, and know all of them.
        """
        n_chars = self.n_chars if texts.n_chars is None else texts.n_chars
        unknown = self.unknown_chars if model.has_network else np.zeros_like(self.unknown_chars)
        return replace(self, n_chars=n_chars, truncated=n_chars > model.reads, unknown_chars=unknown)

    def with_numbers(self, model: Model) -> Predictions:
        """Return, for a model of numbers, the predictions with numbers for logits and with probabilities of levels."""
        if model.levels is None:
            return self
        numbers = model.levels.numbers_of(self.labels, self.scores, len(model.classes))
        every = None if self.all_scores is None else model.levels.probabilities(self.all_scores)
        return replace(self, scores=numbers, all_scores=every)

    def by_class(self, model: Model) -> Predictions:
        """Return, for a model that is calibrated by class, the predictions with such scores and the same labels."""
        if model.by_class is None:
            return self
        labels = self.labels[:, 0]
        best = model.by_class.scores(labels, self.scores[:, 0])
        scores = with_best(self.scores, np.zeros_like(labels), best)
        every = None if self.all_scores is None else with_best(self.all_scores, np.maximum(labels, 0), best)
        return replace(self, scores=scores, all_scores=every)

    def by_head(self, model: Model) -> Predictions:
        """Return, for a model with heads, the predictions with probabilities that sum to one within each head.

        They are NaN in a head whose classes all have probability 0, because those of other heads are far more likely.
        """
        if model.heads is None or self.all_scores is None:
            return self
        every = self.all_scores.copy()
        for part in parts_of(model.heads):
            head_scores = every[:, part]
            with np.errstate(invalid="ignore"):
                head_scores /= head_scores.sum(axis=1, keepdims=True)
        return replace(self, all_scores=every)

    def cut(self, k: int) -> Predictions:
        """Return the predictions with only the `k` best labels."""
        return replace(self, labels=self.labels[:, :k], scores=self.scores[:, :k])


@dataclass(frozen=True)
class Backend:
    """The software and hardware that determine the bits of a score, apart from model and text.

    It is a part of a job's fingerprint.

    Attributes
    ----------
    device : str
        The device, "cpu" or "cuda".
    kernels : str
        On a CPU "numpy", and on a GPU the generation of CUDA kernels: "simt", "sm75", "sm80" or "sm90". On both it is
        "torch" if PyTorch computes.
    architecture : str
        The code that runs: the versions of NumPy, BLAS and SIMD, or the compute capability and the compiler.
    precision : str
        The precision: "fp32", "fp16", "bf16" or "int8".

    """

    device: str
    kernels: str
    architecture: str
    precision: str

    def __str__(self) -> str:
        by = "PyTorch" if self.kernels == TORCH else f"{self.kernels} kernels"
        return f"{self.device} {self.precision}, {by} ({self.architecture})"


class Engine(Protocol):
    """A loaded model, ready to classify. Threads that call it at the same time pass the same lock as their `turn`.

    Attributes
    ----------
    backend : Backend
        The backend, which determines the bits of its scores.
    model : Model
        The model.
    device_name : str
        The device: "cpu", or "cuda:" and the number of the GPU on its host.
    memory_ready : float
        When its weights and buffers were allocated, in seconds since the epoch.
    reads_gpu_texts : bool
        Whether it labels texts on a GPU without a copy on the host.
    batch : int or None
        The most articles in one batch on the device, or None if batches make no difference.

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
            The number of labels for each article. It is reduced to the number of classes.
        all_scores : bool
            Whether to return the probability of every class as well.
        spans : list of Span, optional
            A list to which a span is appended for each step on the device: the copies and the kernels of each batch.
        each_kernel : bool
            Whether to append a span for every kernel as well.
        turn : context manager, optional
            A context that the engine enters while it gives texts to the device: a lock, if several threads call the
            engine. An engine of a GPU plans before it, and waits for the labels after it, so that the device is not
            idle between two calls. It may be entered several times.

        Returns
        -------
        Predictions
            The labels of the N articles, in order. An article on which the model overflows has no label, and never
            changes the labels of others.

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
    """An engine for a model that prepares its texts or has scores by class, around an engine for the model without.

    `n_chars` of its predictions counts the original texts. `truncated` and `unknown_chars` are those of the prepared
    texts.
    """

    def __init__(self, model: Model, engine: Engine) -> None:
        self.model, self.engine, self.batch, self.close = model, engine, engine.batch, engine.close
        self.backend, self.device_name, self.memory_ready = engine.backend, engine.device_name, engine.memory_ready
        is_prepared_on_gpu = model.preparation is None or model.preparation.byte_steps is not None
        self.reads_gpu_texts = engine.reads_gpu_texts and is_prepared_on_gpu

    def classify(self, texts: Texts, *options: Any, **keywords: Any) -> Predictions:
        """Label articles. See `Engine.classify`."""
        return self.through(texts, lambda engine, own: engine.classify(own, *options, **keywords))

    def through(self, texts: Texts, label: Callable[[Engine, Texts], Predictions]) -> Predictions:
        """Return the predictions of `label` for the prepared texts with the other engine."""
        if self.model.preparation is None:
            return label(self.engine, texts).by_class(self.model)
        if not isinstance(texts.data, np.ndarray) and self.model.preparation.id not in texts.prepared:  # CuPy's
            texts = replace(texts, data=texts.data.get())
        predictions = label(self.engine, texts.as_read_by(self.model)).by_class(self.model)
        n_chars = count_characters(texts.data, texts.offsets) if texts.n_chars is None else texts.n_chars
        return replace(predictions, n_chars=n_chars)
