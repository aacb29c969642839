"""Scores chunks with all models of a job, between reading and writing.

Steps that several models share are done once: a text is read once, and encoded once for all models with the same
alphabet and length. A row on which a model overflows, so that its scores are not finite, goes to the quarantine of the
chunk.
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
"""The reasons why a row can hardly be judged: its text is empty or blank, or too much of it is outside the alphabet."""

OUTSIDE_SHARE = 0.3
"""If this share of the characters that a model reads is outside its alphabet, the label means little.

English news has a share of at most 0.28 outside an alphabet that lacks the space, and almost none outside that of the
shipped model. Text in another script has 0.37 to 1, with the least in texts full of Latin names. A foreign language in
Latin script is not noticed.
"""

_NO_COINCIDENCE = 16
"""If all of at least this many articles of a chunk overflow, the cause is the model and not the articles."""

_REMEDIES = {
    "fp16": "use --precision bf16 or --precision fp32",
    "bf16": "use --precision fp32",
    "int8": "use --precision fp32",
    "fp32": "its weights are damaged or too large",
}


@dataclass(frozen=True)
class Scoring:
    """What a model has to compute.

    Attributes
    ----------
    top_k : int
        How many of the best labels are wanted.
    all_scores : bool
        Whether the score of every class is wanted.
    windows : Windows, optional
        How long texts are cut into windows; None to score only their beginning.

    """

    top_k: int = 1
    all_scores: bool = False
    windows: Windows | None = None

    def reads(self, model: Model) -> int:
        """Return how many characters of a text its label depends on."""
        return model.reads if self.windows is None else self.windows.reads(self.windows.length(model))

    def encodes(self, model: Model) -> int:
        """Return how many characters of a text are searched for characters outside the alphabet."""
        return model.length if self.windows is None else self.windows.reads(self.windows.length(model))


@dataclass(frozen=True)
class ScoredChunk:
    """A chunk and the predictions of each model for it.

    Attributes
    ----------
    chunk : Chunk
        The chunk. The rows on which a model overflows are in its quarantine.
    predictions : tuple of Predictions
        The predictions of each model.
    doubtful : tuple of dict of str to int
        For each model, the number of rows that it could hardly judge, by reason.
    overflowed : int
        The number of rows that were moved to the quarantine.

    """

    chunk: Chunk
    predictions: tuple[Predictions, ...]
    doubtful: tuple[dict[str, int], ...]
    overflowed: int


def scored(chunks: Iterable[Chunk], engines: Sequence[Engine], scoring: Sequence[Scoring]) -> Iterator[ScoredChunk]:
    """Yield every chunk of an input in order, after each model has scored it.

    scoring: what each model, or each of its heads, has to compute. Raises UsageError like `score`, and if a model
    overflows on all rows of the first chunk, or on all of 16 or more rows of another chunk.
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
    """Score one chunk, as `scored` does. Raises the same errors.

    Parameters
    ----------
    chunk : Chunk
        The chunk.
    engines : sequence of Engine
        An engine for each model.
    scoring : sequence of Scoring
        What each model, or each of its heads, has to compute.
    is_first : bool
        Whether the chunk is the first of its job.
    compute : callable, optional
        A function that calls `score` and does more. Default: `score`.

    """
    # Score the texts, set aside the rows that overflow, and count the doubtful rows.
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
    """Return the predictions of each model for N texts. A model with heads has predictions for each head.

    Raises UsageError if the texts are encoded already and not for one of the models.

    Parameters
    ----------
    texts : Texts
        The texts.
    engines : sequence of Engine
        An engine for each model.
    scoring : sequence of Scoring
        What each model, or each of its heads, has to compute.
    spans : list of Span, optional
        See `Engine.classify`.
    each_kernel : bool
        See `Engine.classify`.
    turn : context manager, optional
        See `Engine.classify`.

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
    """Return what encoders that read the same texts share; None if no two encoders do.

    Encoders read the same texts if they have the same preparation and the same windows.
    """
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
    """Yield the predictions of each head for N texts, from the scores of the classes of all heads."""
    assert whole.all_scores is not None
    for part, wanted in zip(parts_of(heads), scoring, strict=False):
        head_scores = np.ascontiguousarray(whole.all_scores[:, part])
        labels, best = top_k(head_scores, wanted.top_k)
        yield replace(whole, labels=labels, scores=best, all_scores=head_scores if wanted.all_scores else None)


def texts_of(chunk: Chunk) -> Texts:
    """Return the articles of a chunk in the form that an engine takes."""
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
    """Set aside the rows on which a model overflows.

    Raises UsageError if all rows of the first chunk overflow, or all of 16 or more rows of another chunk, because the
    rest of the input would overflow too.
    """
    precision = engine.backend.precision
    if lost.all() and (is_first or len(chunk) >= _NO_COINCIDENCE):
        raise UsageError(
            f"{engine.model.name}: overflows in {precision} on each of the {len(chunk):,} articles of a chunk: "
            f"{_REMEDIES[precision]}"
        )
    return set_aside(chunk, lost, f"the model overflows in {precision} on this text")


def set_aside(chunk: Chunk, lost: NDArray[np.bool_], reason: str) -> Chunk:
    """Return the chunk after moving to quarantine the readable rows for which `lost`, [N], is true."""
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
    """Count the rows that a model can hardly judge, by reason. A row has at most one reason.

    reads: how many characters of a text the network reads.
    """
    empty = predictions.n_chars == 0
    if chunk.ids is None:
        empty |= chunk.is_blank
    outside = ~empty & (predictions.unknown_chars >= OUTSIDE_SHARE * np.minimum(predictions.n_chars, reads))
    counts = {EMPTY: int(empty.sum()), OUTSIDE: int(outside.sum())}
    return {reason: rows for reason, rows in counts.items() if rows}
