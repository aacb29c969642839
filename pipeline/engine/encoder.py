"""The engine of encoders, on a GPU or on threads of the CPU. In a chain it labels the texts that n-grams leave open.

`model/encoder.py` is the specification. The n-grams of a chain have an engine of their own, of any kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import BroadsheetError, NoRoom, UsageError
from ..model import reference
from ..model.alphabet import count_characters
from ..model.cascade import needs_network
from ..model.charcnn import Model
from ..model.encoder import Encoder
from ..model.layers import BIAS
from ..model.scores import log_scores
from ..model.torch_encoder import TorchEncoder
from ..model.trunk import trunk_of, vocabulary_of
from ..model.wordpiece import Tokens, WordPiece
from ..processes.threads import SINGLE_THREADED_BLAS, available_cores
from ..telemetry.spans import Span, span
from .base import ALONE, Backend, Engine, Predictions, Texts
from .cpu import architecture
from .torch_encoder import OnTorch

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

_GROUP = 1024
"""About how many tokens are computed together, so that the weights of a layer stay in a cache."""


class Compute(Protocol):
    """The interface of the classes that compute an encoder on a device."""

    device_name: str
    backend: Backend
    reads_gpu_texts: bool

    @property
    def vocabulary(self) -> str:
        """A digest that is equal for encoders that make the same tokens, or "" if tokens are not shared."""

    def of_texts(self, texts: Texts, is_logits: bool, spans: list[Span] | None) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the logits without the model's bias, or the vectors, [N, outputs], and which texts have more tokens.

        A text has more tokens if the encoder does not read all of them. spans: a list for a span of each step, or None.
        """

    def of_heads(
        self, texts: Texts, others: Sequence[Compute], spans: list[Span] | None
    ) -> tuple[list[Floats], NDArray[np.bool_]]:
        """Return the logits of several encoders with the same trunk, which is computed once.

        `others` may include this encoder. Each result equals that of `of_texts` of the encoder.
        """

    def close(self) -> None: ...


class OnCpu:
    """Computes an encoder on a CPU: groups of texts on `threads` threads, each with a single-threaded BLAS."""

    device_name = "cpu"
    reads_gpu_texts = False

    @cached_property
    def vocabulary(self) -> str:
        """See `Compute`."""
        return vocabulary_of(self.encoder)

    def __init__(self, encoder: Encoder, threads: int) -> None:
        self.encoder = encoder
        self.backend = Backend("cpu", "numpy", architecture(), "fp32")
        self._pool = ThreadPoolExecutor(threads, "broadsheet-compute")

    def of_texts(self, texts: Texts, is_logits: bool, spans: list[Span] | None) -> tuple[Floats, NDArray[np.bool_]]:
        tokens = self._tokens_of(texts, spans)
        with span("encoder", spans, "compute", self.device_name):
            compute = self.encoder.logits if is_logits else self.encoder.vectors
            return _of_groups(compute, tokens, self._pool), tokens.is_cut

    def of_heads(
        self, texts: Texts, others: Sequence[Compute], spans: list[Span] | None
    ) -> tuple[list[Floats], NDArray[np.bool_]]:
        """See `Compute`."""
        encoders = [other.encoder for other in others if isinstance(other, OnCpu)]

        def logits(ids: Integers, ends: Integers) -> Floats:
            pooled = self.encoder.pooled(ids, ends)
            return np.concatenate([encoder.logits_of_pooled(pooled) for encoder in encoders], axis=1)

        tokens = self._tokens_of(texts, spans)
        with span("encoder", spans, "compute", self.device_name):
            found = _of_groups(logits, tokens, self._pool)
        return _by_head(found, [encoder.weights["last"].shape[1] for encoder in encoders], len(texts)), tokens.is_cut

    def _tokens_of(self, texts: Texts, spans: list[Span] | None) -> Tokens:
        data = texts.data if isinstance(texts.data, np.ndarray) else texts.data.get()  # CuPy's

        def make() -> Tokens:
            with span("tokens", spans, "compute", self.device_name):
                return self.encoder.tokens_of(data, texts.offsets)

        if texts.sharing is None:
            return make()
        return texts.sharing.tokens(self.vocabulary, data, texts.offsets, make)

    def close(self) -> None:
        self._pool.shutdown()


class OnCuda:
    """Computes an encoder on the tensor cores of one GPU, in fp16 or bf16.

    Raises UsageError if the kernels do not fit the GPU or the encoder, and NoRoom if the GPU is full.
    """

    @cached_property
    def vocabulary(self) -> str:
        """See `Compute`. Tokens that the GPU makes are not shared, since they cost little."""
        return "" if self.reads_gpu_texts else vocabulary_of(self.encoder)

    def __init__(self, encoder: Encoder, precision: str, kernels: str) -> None:
        import cupy as cp

        from ..kernels.catalog import choose_generation
        from ..kernels.compile import compiler_name
        from ..kernels.encoder import DeviceEncoder
        from ..kernels.ops import operations
        from ..kernels.tables import encoder_shape
        from .cuda import number_on_host

        # Choose the precision and the kernels, and refuse an encoder that they cannot compute.
        device, digits = cp.cuda.Device(), cp.cuda.Device().compute_capability
        if kernels == "auto" and precision == "auto" and int(digits) >= _FIRST_CAPABILITY:
            precision = "fp16"
        generation, precision = choose_generation(kernels, precision, (int(digits[:-1]), int(digits[-1])))
        if precision not in ("fp16", "bf16") or encoder_shape(encoder) is None:
            raise UsageError(
                "on a GPU an encoder is computed in fp16 or bf16, from compute capability 8.0 on, with at most 64 "
                "values a head of attention, 2,048 of a vector, 8,192 of the head's, and words of 256 characters: "
                f"this is {precision} on {digits[:-1]}.{digits[-1]}, with {encoder.width // encoder.settings.heads} "
                f"and {encoder.width:,}. Add --device cpu"
            )
        # Load the encoder.
        self.encoder = encoder
        self._device, self.device_name = device, f"cuda:{number_on_host(device.id)}"
        self.reads_gpu_texts = isinstance(encoder.tokens, WordPiece)  # others make tokens on the host
        with self._failures("the encoder"):
            self._computed = DeviceEncoder(encoder, operations(generation, precision, device))
        self.backend = Backend("cuda", generation, f"sm_{digits}, {compiler_name()}", precision)

    def of_heads(
        self, texts: Texts, others: Sequence[Compute], spans: list[Span] | None
    ) -> tuple[list[Floats], NDArray[np.bool_]]:
        """See `Compute`. The kernel that computes a head is the same as for one encoder alone."""
        computed = [other._computed for other in others if isinstance(other, OnCuda)]
        with self._device, self._failures(f"a batch of {len(texts):,} texts"):
            if not isinstance(texts.data, np.ndarray) and not texts.is_written:
                self._device.synchronize()
            found, is_cut = self._computed.compute(
                texts.data, texts.offsets, True, self._timed(spans), computed, partial(self._tokens_of, texts, spans)
            )
        return _by_head(found, [one.encoder.weights["last"].shape[1] for one in computed], len(texts)), is_cut

    def of_texts(self, texts: Texts, is_logits: bool, spans: list[Span] | None) -> tuple[Floats, NDArray[np.bool_]]:
        with self._device, self._failures(f"a batch of {len(texts):,} texts"):
            if not isinstance(texts.data, np.ndarray) and not texts.is_written:
                self._device.synchronize()  # the text may have been written on any stream
            return self._computed.compute(
                texts.data, texts.offsets, is_logits, self._timed(spans), (), partial(self._tokens_of, texts, spans)
            )

    def _tokens_of(self, texts: Texts, spans: list[Span] | None, data: NDArray[np.uint8], offsets: Integers) -> Tokens:
        """Return the tokens of some of the texts. Another encoder with this vocabulary may have made them."""

        def make() -> Tokens:
            with span("tokens", spans, "compute", self.device_name):
                return self.encoder.tokens_of(data, offsets)

        return make() if texts.sharing is None else texts.sharing.tokens(self.vocabulary, data, offsets, make)

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Raise NoRoom if the GPU has no memory for the block, and BroadsheetError for its other errors."""
        import cupy as cp

        try:
            yield
        except cp.cuda.memory.OutOfMemoryError as error:
            raise NoRoom(f"{self.device_name} has no room for {what}: {error}. Stop other programs on it") from error
        except (cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError) as error:
            kind = NoRoom if error.status == _OUT_OF_MEMORY else BroadsheetError
            raise kind(f"{self.device_name} failed with {what}: {error}") from error

    def _timed(self, spans: list[Span] | None) -> Callable[[str], AbstractContextManager[None]]:
        """Return a function that makes a context for a step. Its span ends when the GPU has finished the step."""
        import cupy as cp

        @contextmanager
        def timed(name: str) -> Iterator[None]:
            with span(name, spans, "compute", self.device_name):
                yield
                if spans is not None:
                    cp.cuda.get_current_stream().synchronize()

        return timed

    def close(self) -> None:
        self._computed.close()
        del self._computed


_FIRST_CAPABILITY = 80  # the first digits of a GPU that computes in fp16 by default: compute capability 8.0
_OUT_OF_MEMORY = 2  # CUDA's cudaErrorMemoryAllocation


def compute_on(
    encoder: Encoder | TorchEncoder,
    device: str,
    precision: str = "auto",
    kernels: str = "auto",
    threads: int | None = None,
) -> Compute:
    """Return the object that computes an encoder on a device. Raises like `OnCuda` and `OnTorch`.

    Parameters
    ----------
    encoder : Encoder or TorchEncoder
        The encoder.
    device : str
        The device, "cpu" or "cuda".
    precision, kernels : str
        See `open_engine`.
    threads : int, optional
        The number of compute threads on a CPU. Default: the cores that this process may use.

    """
    if isinstance(encoder, TorchEncoder):
        if precision == "int8" or kernels != "auto":
            what = f"{encoder.settings.family} is computed by PyTorch, in fp32, fp16 or bf16"
            raise UsageError(f"{what}: leave out --kernels and --precision int8")
        return OnTorch(encoder, device, precision, threads or available_cores())
    return OnCuda(encoder, precision, kernels) if device == "cuda" else OnCpu(encoder, threads or available_cores())


class EncoderEngine:
    """The engine of an encoder with a head, or of a chain of n-grams and such an encoder."""

    batch = None

    def __init__(self, model: Model, compute: Compute, first: Engine | None = None) -> None:
        self.model, self.first, self.compute = model, first, compute
        self.device_name, self.backend = compute.device_name, compute.backend
        self.reads_gpu_texts = compute.reads_gpu_texts and first is None
        self._bias = model.tensors[BIAS].astype(np.float32)
        self.memory_ready = time.time()

    def classify(
        self,
        texts: Texts,
        top_k: int = 1,
        all_scores: bool = False,
        spans: list[Span] | None = None,
        each_kernel: bool = False,
        turn: AbstractContextManager[object] = ALONE,
    ) -> Predictions:
        """Label N articles. Raises UsageError if the texts are already encoded.

        Parameters
        ----------
        texts, top_k, all_scores, spans, each_kernel, turn
            See `Engine.classify`.

        """
        if texts.ids is not None:
            raise UsageError(f"the input is encoded already, and {self.model.name} reads texts: give it the texts")
        if self.first is None:
            return self._run_encoder(texts, top_k, all_scores, spans, each_kernel, turn)
        first = self.first.classify(texts, top_k, True, spans, each_kernel, turn)
        rows = self._open(first)
        if rows.any():
            encoded = self._run_encoder(texts.take(rows), top_k, True, spans, each_kernel, turn)
            for name in ("labels", "scores", "all_scores", "truncated"):
                getattr(first, name)[rows] = getattr(encoded, name)
        return replace(first, all_scores=first.all_scores if all_scores else None, asked=int(rows.sum()))

    def _open(self, first: Predictions) -> NDArray[np.bool_]:
        """Return for each of N texts whether the n-grams leave its label open. They do so if they overflow."""
        cascade = self.model.cascade
        assert cascade is not None
        assert first.all_scores is not None
        if cascade.selection:
            selecting = first.scores[:, 0] if self.model.levels else first.all_scores[:, cascade.selection.label]
            below: NDArray[np.bool_] = selecting < np.float32(cascade.selection.least)
            return ~below
        logits = log_scores(first.all_scores, cascade.temperature)
        return needs_network(logits.astype(np.float32), cascade.margin, None) | first.overflowed

    def _run_encoder(
        self,
        texts: Texts,
        top_k: int,
        all_scores: bool,
        spans: list[Span] | None,
        each_kernel: bool,
        turn: AbstractContextManager[object],
    ) -> Predictions:
        """Return the encoder's predictions for N texts.

        Parameters
        ----------
        texts, top_k, all_scores, spans, each_kernel, turn
            See `Engine.classify`.

        """
        with turn, span("kernels", spans, "compute", self.device_name):
            steps = spans if each_kernel else None
            if texts.sharing is None or self.first is not None:
                logits, is_cut = self.compute.of_texts(texts, True, steps)
            else:
                logits, is_cut = texts.sharing.logits(self, texts, steps)
            logits = logits.reshape(len(texts), len(self.model.classes))
            scores = reference.class_scores(logits + self._bias, self.model)
            labels, best = reference.top_k(scores, top_k)
        n_chars = texts.n_chars
        if n_chars is None:
            first, last = int(texts.offsets[0]), int(texts.offsets[-1])
            data = texts.data[first:last]
            n_chars = count_characters(data if isinstance(data, np.ndarray) else data.get(), texts.offsets - first)
        counts = n_chars, is_cut, np.zeros(len(texts), np.int64)
        return Predictions(labels, best, scores if all_scores else None, *counts).with_numbers(self.model)

    @cached_property
    def trunk(self) -> tuple[str, Backend]:
        """A digest of the trunk, and the backend. Engines with the same pair can share everything before the head."""
        assert self.model.encoder is not None
        return trunk_of(self.model.encoder), self.backend

    def close(self) -> None:
        self.compute.close()
        if self.first is not None:
            self.first.close()


def _by_head(logits: Floats, sizes: Sequence[int], texts: int) -> list[Floats]:
    """Split the logits of all heads, which are side by side, into those of each head."""
    parts = np.split(logits.reshape(texts, sum(sizes)), np.cumsum(sizes)[:-1].tolist(), axis=1)
    return [np.ascontiguousarray(part) for part in parts]


def _of_groups(compute: Callable[[Integers, Integers], Floats], tokens: Tokens, pool: ThreadPoolExecutor) -> Floats:
    """Return the logits or vectors of N texts, [N, outputs], computed on threads with a single-threaded BLAS.

    compute: `logits` or `vectors` of an encoder. The longest texts come first, so that no thread waits for a long text
    at the end.
    """
    sizes = np.diff(tokens.ends)
    order = np.argsort(-sizes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(np.cumsum(sizes[order]) // _GROUP)) + 1) if len(order) else []

    def of_group(group: Integers) -> Floats:
        parts = [tokens.ids[tokens.ends[text] : tokens.ends[text + 1]] for text in group]
        return compute(np.concatenate(parts), np.cumsum([0, *sizes[group]]))

    with SINGLE_THREADED_BLAS:
        computed = [*pool.map(of_group, groups)]
    return np.concatenate(computed)[np.argsort(order)] if computed else np.empty(0, np.float32)
