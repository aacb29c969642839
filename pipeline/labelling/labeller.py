"""Texts through all models of a job: what jobs, the pipe and the estimate do with a chunk between reading and writing.

Whatever of a text several models share is done once: it is read once, and encoded once where they have the same
alphabet and length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..engine.base import Engine, Predictions, Texts
from ..errors import UsageError
from ..measures.accuracy import count_doubtful
from ..output.labelling import Labelling
from ..source.chunk import Chunk
from ..telemetry.spans import Span
from .overflow import set_aside_overflow


@dataclass(frozen=True)
class Labelled:
    """A chunk without the rows on which a model overflows, which are in its quarantine, and what each model says of it.

    doubtful: rows that the model could hardly judge by reason, for each model.
    """

    chunk: Chunk
    predictions: tuple[Predictions, ...]
    doubtful: tuple[dict[str, int], ...]


def texts_of(chunk: Chunk) -> Texts:
    """The articles of a chunk as an engine takes them."""
    return Texts(chunk.data, chunk.offsets, chunk.ids, chunk.n_chars)


def classify(
    texts: Texts,
    engines: Sequence[Engine],
    labellings: Sequence[Labelling],
    least_k: int = 1,
    spans: list[Span] | None = None,
    each_kernel: bool = False,
    handed_over: Callable[[], object] | None = None,
) -> tuple[Predictions, ...]:
    """What each model says of N texts. least_k: of the first model at least so many labels. handed_over: called where
    another thread may use the engines before this one has the labels.

    Raises UsageError for texts that are encoded already, in a way that is not a model's.
    """
    if len(engines) > 1:
        texts = replace(texts, shared={})
    found = []
    for number, (engine, labelling) in enumerate(zip(engines, labellings, strict=True)):
        if texts.ids is not None:
            _refuse_other_ids(texts, engine, engines[0])
        top_k = labelling.top_k if number else max(least_k, labelling.top_k)
        over = handed_over if number == len(engines) - 1 else None
        given = top_k, labelling.every_score, spans, each_kernel, over
        if labelling.windows is None:
            found.append(engine.classify(texts, *given))
        else:
            found.append(labelling.windows.classify(texts, engine, *given))
    return tuple(found)


def checked(
    chunk: Chunk,
    predictions: tuple[Predictions, ...],
    engines: Sequence[Engine],
    labellings: Sequence[Labelling],
    first: bool,
) -> Labelled:
    """Without the rows that a model could not score. first: whether this is the first chunk of a job.

    Raises UsageError where the model overflows on all of them.
    """
    chunk, predictions = set_aside_overflow(chunk, predictions, engines, first)
    doubtful = tuple(
        count_doubtful(chunk, found.n_chars, found.unknown_chars, labelling.reads(engine.model.length))
        for engine, labelling, found in zip(engines, labellings, predictions, strict=True)
    )
    return Labelled(chunk, predictions, doubtful)


def _refuse_other_ids(texts: Texts, engine: Engine, first: Engine) -> None:
    same = engine.model.alphabet.symbols == first.model.alphabet.symbols and engine.model.length == first.model.length
    if not same:
        raise UsageError(
            f"the input is encoded already, for {first.model.name}, and {engine.model.name} has another alphabet or "
            "length: label it in a job of its own"
        )
