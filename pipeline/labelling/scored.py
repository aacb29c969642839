"""Scored chunks: texts through all models of a job, between reading and writing.

Whatever of a text several models share is done once: it is read once, and encoded once where they have the same
alphabet and length. A row on which a model overflows, so that its scores are not finite, goes to the chunk's
quarantine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..engine.base import ALONE, Engine, Predictions, Texts, Wrapped
from ..engine.encoder import EncoderEngine
from ..engine.sharing import EncoderSharing
from ..errors import UsageError
from ..model.charcnn import Model
from ..model.layers import WHOLE
from ..model.reference import top_k
from ..model.scores import Heads, parts_of
from ..source.rows.chunk import HEAD_BYTES, QUARANTINE_SCHEMA, Chunk
from ..telemetry.spans import Span
from .windows import Windows

EMPTY, OUTSIDE = "empty", "mostly outside the model's alphabet"
"""Why a row can hardly be judged: its text is empty or blank, or so much of it is outside the alphabet."""

OUTSIDE_SHARE = 0.3
"""The share of characters, of those that the model reads, from which the label means little. English news has at most
0.28 outside an alphabet that lacks the space, and next to nothing outside the shipped model's; text in another script
has 0.37 to 1, the least where it is full of Latin names. A language in Latin script is not noticed."""

_NO_COINCIDENCE = 16
"""Where so many articles overflow, and no other is in their chunk, the cause is the model and not the articles."""

_REMEDIES = {
    "fp16": "use --precision bf16 or --precision fp32",
    "bf16": "use --precision fp32",
    "int8": "use --precision fp32",
    "fp32": "its weights are damaged or too large",
}


@dataclass(frozen=True)
class Scoring:
    """What is asked of a model.

    Attributes
    ----------
    top_k : int
        How many of the best labels.
    all_scores : bool
        Whether the score of every class is wanted.
    windows : Windows, optional
        How long texts are scored; None where only their beginning is.

    """

    top_k: int = 1
    all_scores: bool = False
    windows: Windows | None = None

    def reads(self, model: Model) -> int:
        """Characters of a text on which its label depends."""
        return model.reads if self.windows is None else self.windows.reads(self.windows.length(model))

    def encodes(self, model: Model) -> int:
        """Characters of a text among which those outside the alphabet are counted."""
        return model.length if self.windows is None else self.windows.reads(self.windows.length(model))


@dataclass(frozen=True)
class ScoredChunk:
    """A chunk, and what each model says of it.

    Attributes
    ----------
    chunk : Chunk
        The chunk without the rows on which a model overflows, which are in its quarantine.
    predictions : tuple of Predictions
        Of each model.
    doubtful : tuple of dict of str to int
        Of each model, the rows that it could hardly judge, by reason.
    overflowed : int
        Rows taken out.

    """

    chunk: Chunk
    predictions: tuple[Predictions, ...]
    doubtful: tuple[dict[str, int], ...]
    overflowed: int


def scored(chunks: Iterable[Chunk], engines: Sequence[Engine], scoring: Sequence[Scoring]) -> Iterator[ScoredChunk]:
    """Every chunk of an input, in order, once each model has scored it. scoring: what is asked of each, or of each of
    its heads.

    Raises UsageError as `score` does, and where a model overflows on all rows of the first chunk, or of a larger one.
    """
    for number, chunk in enumerate(chunks):
        yield score_chunk(chunk, engines, scoring, is_first=number == 0)


def score_chunk(
    chunk: Chunk,
    engines: Sequence[Engine],
    scoring: Sequence[Scoring],
    *,
    is_first: bool = False,
    compute: Callable[[Texts], tuple[Predictions, ...]] | None = None,
) -> ScoredChunk:
    """One of the chunks of `scored`. Raises UsageError as that does.

    Parameters
    ----------
    chunk : Chunk
        The chunk.
    engines : sequence of Engine
        An engine for each model.
    scoring : sequence of Scoring
        What is asked of each model, or of each of its heads.
    is_first : bool
        Whether the chunk is the first of its job.
    compute : callable, optional
        A function that calls `score`, where more is to be done.

    """
    texts = texts_of(chunk)
    rows = len(chunk)
    predictions = compute(texts) if compute else score(texts, engines, scoring)
    of_each = [engine for engine in engines for _ in engine.model.heads or (None,)]
    for i, engine in enumerate(of_each):
        lost = predictions[i].overflowed
        if lost.any():
            chunk = _without_overflowed(chunk, lost, engine, is_first)
            predictions = tuple(of_model.take(~lost) for of_model in predictions)
    doubtful = tuple(
        _count_doubtful(chunk, of_model, wanted.encodes(engine.model))
        for engine, wanted, of_model in zip(of_each, scoring, predictions, strict=True)
    )
    return ScoredChunk(chunk, predictions, doubtful, rows - len(chunk))


def score(
    texts: Texts,
    engines: Sequence[Engine],
    scoring: Sequence[Scoring],
    spans: list[Span] | None = None,
    each_kernel: bool = False,
    turn: AbstractContextManager[object] = ALONE,
) -> tuple[Predictions, ...]:
    """What each model says of N texts; of a model with heads, what each head says.

    Raises UsageError for texts that are encoded already, in a way that is not a model's.

    Parameters
    ----------
    texts : Texts
        The texts.
    engines : sequence of Engine
        An engine for each model.
    scoring : sequence of Scoring
        What is asked of each model, or of each of its heads.
    spans : list of Span, optional
        As of `Engine.classify`.
    each_kernel : bool
        As of `Engine.classify`.
    turn : context manager, optional
        As of `Engine.classify`.

    """
    if len(engines) > 1:
        texts = replace(texts, shared={}, sharing=_sharing(engines, scoring))
    predictions: list[Predictions] = []
    for engine in engines:
        if texts.ids is not None:
            _refuse_other_ids(engine, engines[0])
        wanted, heads = scoring[len(predictions)], engine.model.heads
        label = engine.classify if wanted.windows is None else partial(wanted.windows.classify, engine)
        best, every = (wanted.top_k, wanted.all_scores) if heads is None else (1, True)
        whole = label(texts, best, every, spans, each_kernel, turn)
        predictions += [whole] if heads is None else _of_heads(whole, heads, scoring[len(predictions) :])
    return tuple(predictions)


def _sharing(engines: Sequence[Engine], scoring: Sequence[Scoring]) -> EncoderSharing | None:
    """What encoders that read the same texts share: those with one preparation, and one kind of windows."""
    groups: dict[tuple[str, Windows | None], list[EncoderEngine]] = {}
    at = 0
    for engine in engines:
        preparation = engine.model.preparation
        inner = engine
        while isinstance(inner, Wrapped):
            inner = inner.engine
        if isinstance(inner, EncoderEngine) and inner.first is None:
            key = "" if preparation is None else preparation.id, scoring[at].windows
            groups.setdefault(key, []).append(inner)
        at += len(engine.model.heads or (None,))
    several = sum(map(len, groups.values())) > 1
    return EncoderSharing([*groups.values()]) if several else None


def _of_heads(whole: Predictions, heads: Heads, scoring: Sequence[Scoring]) -> Iterator[Predictions]:
    """What each head says of N texts, of the scores of all their classes."""
    assert whole.all_scores is not None
    for part, wanted in zip(parts_of(heads), scoring, strict=False):
        own = np.ascontiguousarray(whole.all_scores[:, part])
        labels, best = top_k(own, wanted.top_k)
        yield replace(whole, labels=labels, scores=best, all_scores=own if wanted.all_scores else None)


def texts_of(chunk: Chunk) -> Texts:
    """The articles of a chunk as an engine takes them."""
    return Texts(chunk.data, chunk.offsets, chunk.ids, chunk.n_chars, prepared=chunk.prepared, is_written=True)


def _refuse_other_ids(engine: Engine, first: Engine) -> None:
    if engine.model.length == WHOLE:
        raise UsageError(f"the input is encoded already, and {engine.model.name} reads text: give it the texts")
    if engine.model.alphabet.symbols != first.model.alphabet.symbols or engine.model.length != first.model.length:
        raise UsageError(
            f"the input is encoded already, for {first.model.name}, and {engine.model.name} has another alphabet or "
            "length: label it in a job of its own"
        )


def _without_overflowed(chunk: Chunk, lost: NDArray[np.bool_], engine: Engine, is_first: bool) -> Chunk:
    """Raises UsageError where all rows of the first chunk overflow, or all of a larger one: the other chunks would fare
    no better.
    """
    precision = engine.backend.precision
    if lost.all() and (is_first or len(chunk) >= _NO_COINCIDENCE):
        raise UsageError(
            f"{engine.model.name}: overflows in {precision} on each of the {len(chunk):,} articles of a chunk: "
            f"{_REMEDIES[precision]}"
        )
    return set_aside(chunk, lost, f"the model overflows in {precision} on this text")


def set_aside(chunk: Chunk, lost: NDArray[np.bool_], reason: str) -> Chunk:
    """The chunk with those of its readable rows in quarantine where `lost`, [N], is true."""
    mask = pa.array(lost)
    rows = chunk.rows.filter(mask)
    heads = pa.array(chunk.beginnings(np.flatnonzero(lost).tolist(), HEAD_BYTES), pa.binary())
    columns = [rows["file"], rows["row"], pa.nulls(len(rows), pa.int64()), pa.repeat(reason, len(rows)), heads]
    return replace(
        chunk.take(~lost),
        quarantine=pa.concat_tables([chunk.quarantine, pa.table(columns, QUARANTINE_SCHEMA)]),
        bad=None if chunk.bad is None else pa.concat_tables([chunk.bad, rows.select(chunk.bad.column_names)]),
    )


def _count_doubtful(chunk: Chunk, predictions: Predictions, reads: int) -> dict[str, int]:
    """Rows that a model can hardly judge, by reason; a row has one at most. reads: what its network reads of a text."""
    empty = predictions.n_chars == 0
    if chunk.ids is None:
        empty |= chunk.is_blank
    outside = ~empty & (predictions.unknown_chars >= OUTSIDE_SHARE * np.minimum(predictions.n_chars, reads))
    counts = {EMPTY: int(empty.sum()), OUTSIDE: int(outside.sum())}
    return {reason: rows for reason, rows in counts.items() if rows}
