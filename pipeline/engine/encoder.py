"""The engine of encoders: groups of texts on threads of the CPU; of a chain, those that its n-grams leave open.

`model/encoder.py` is what is computed. The n-grams of a chain have an engine of their own, of any kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..model import reference
from ..model.alphabet import count_characters
from ..model.cascade import asked
from ..model.charcnn import Model
from ..model.encoder import Encoder
from ..model.layers import BIAS
from ..model.scores import log_scores
from ..model.wordpiece import Tokens
from ..processes.threads import SINGLE_THREADED_BLAS, available_cores, threads
from ..telemetry.spans import Span, span
from .base import Backend, Engine, Predictions, Texts
from .cpu import architecture

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

_GROUP = 1024
"""Tokens that are computed together: a layer's weights stay in a cache meanwhile."""


class EncoderEngine:
    """Groups of texts on `threads` threads, each with a single-threaded BLAS."""

    batch = None

    def __init__(self, model: Model, threads: int, first: Engine | None = None) -> None:
        assert model.encoder is not None
        self.model, self.encoder, self.first = model, model.encoder, first
        self.device_name = "cpu"
        self.backend = Backend("cpu", "numpy", architecture(), "fp32")
        self._pool = ThreadPoolExecutor(threads, "broadsheet-compute")
        self._bias = model.tensors[BIAS].astype(np.float32)
        self.memory_ready = time.time()

    def classify(
        self,
        texts: Texts,
        top_k: int = 1,
        all_scores: bool = False,
        spans: list[Span] | None = None,
        each_kernel: bool = False,
        handed_over: Callable[[], object] | None = None,
    ) -> Predictions:
        """Label N articles. Raises UsageError for texts that are encoded already.

        Parameters
        ----------
        texts, top_k, all_scores, spans, each_kernel, handed_over
            As of `Engine.classify`.

        """
        if texts.ids is not None:
            raise UsageError(f"the input is encoded already, and {self.model.name} reads texts: give it the texts")
        if not isinstance(texts.data, np.ndarray):  # CuPy's
            texts = replace(texts, data=texts.data.get())
        if self.first is None:
            return self._asked(texts, top_k, all_scores, spans, each_kernel)
        first = self.first.classify(texts, top_k, True, spans, each_kernel)
        rows = self._open(first)
        if rows.any():
            asked = self._asked(texts.take(rows), top_k, True, spans, each_kernel)
            for name in ("labels", "scores", "all_scores", "truncated"):
                getattr(first, name)[rows] = getattr(asked, name)
        return replace(first, all_scores=first.all_scores if all_scores else None, asked=int(rows.sum()))

    def _open(self, first: Predictions) -> NDArray[np.bool_]:
        """Of which texts the n-grams leave open what they are, [N]; among them all on which they overflow."""
        cascade = self.model.cascade
        assert cascade is not None
        assert first.all_scores is not None
        if cascade.selection:
            of = first.scores[:, 0] if self.model.levels else first.all_scores[:, cascade.selection.label]
            below: NDArray[np.bool_] = of < np.float32(cascade.selection.least)
            return ~below
        logits = log_scores(first.all_scores, cascade.temperature)
        return asked(logits.astype(np.float32), cascade.margin, None) | first.overflowed

    def _asked(
        self, texts: Texts, top_k: int, all_scores: bool, spans: list[Span] | None, each_kernel: bool
    ) -> Predictions:
        """What the encoder says of N texts.

        Parameters
        ----------
        texts, top_k, all_scores, spans, each_kernel
            As of `Engine.classify`.

        """
        kernels = spans if each_kernel else None
        with span("kernels", spans, "compute", self.device_name):
            with span("tokens", kernels, "compute", self.device_name):
                tokens = self.encoder.tokens_of(texts.data, texts.offsets)
            with span("encoder", kernels, "compute", self.device_name):
                logits = of_texts(self.encoder.logits, tokens, self._pool)
            logits = logits.reshape(len(texts), len(self.model.classes))
            scores = reference.class_scores(logits + self._bias, self.model)
            labels, best = reference.top_k(scores, top_k)
        n_chars = count_characters(texts.data, texts.offsets) if texts.n_chars is None else texts.n_chars
        counts = n_chars, tokens.is_cut, np.zeros(len(texts), np.int64)
        return Predictions(labels, best, scores if all_scores else None, *counts).with_numbers(self.model)

    def close(self) -> None:
        self._pool.shutdown()
        if self.first is not None:
            self.first.close()


def vectors(encoder: Encoder, data: NDArray[np.uint8], offsets: Integers) -> Floats:
    """Those of N texts, float32 [N, outputs], on all cores. data, offsets: as in `WordPiece.of_texts`."""
    with threads(available_cores()) as pool:
        of_all = of_texts(encoder.vectors, encoder.tokens_of(data, offsets), pool)
    return of_all.reshape(len(offsets) - 1, encoder.outputs)


def of_texts(compute: Callable[[Integers, Integers], Floats], tokens: Tokens, pool: ThreadPoolExecutor) -> Floats:
    """What an encoder's `logits` or `vectors` computes of N texts, [N, outputs], on threads of a single-threaded BLAS.

    The longest come first, so that none is waited for in the end.
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
