"""The rows that a model is measured on, or fitted to: read and scored in this process, or held out of its training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..engine.base import Backend
from ..engine.open import opened
from ..errors import SourceError, UsageError, counted
from ..labelling.learned import looked_up
from ..labelling.scored import ScoredChunk, Scoring, scored
from ..measures.overlap import Overlap
from ..model.alphabet import Alphabet
from ..model.charcnn import Model
from ..model.model_file import COLUMNS_CARD
from ..options import Options, ReadKeywords
from ..source.inputs import Given, chunks_here, identify, open_input
from ..source.plan.files import Files
from ..source.rows.chunk import Chunk, Selection
from ..source.sample import sample_input

_CHUNK_ROWS = 512
"""So few that on a CPU each takes a second or so of a network's time."""

_MOST_LEARNED = 0.5
"""The share of rows up to which those that a model has learned from are left out. Where there are more of them, the
others are most likely the same rows after small changes."""


def chosen_input(
    source: Any,
    text_column: str | Iterable[str],
    options: ReadKeywords,
    alphabet: Alphabet,
    length: int,
    whole_hash: bool = False,
    **more: Any,
) -> tuple[Given, Selection]:
    """An input, and which of its columns are read, as `classify` names them. Raises UsageError as that does.

    Parameters
    ----------
    source, text_column, options
        As of `classify`.
    alphabet, length
        Of the model, for files that are encoded already.
    whole_hash : bool
        Identify the input by a hash of its content.
    **more
        Further attributes of the selection.

    """
    checked = Options(text_column=text_column, **options)
    names = {"endpoint": checked.endpoint, "input_format": checked.input_format}
    given = identify(source, len(alphabet), length, whole_hash=whole_hash, by_content=whole_hash, **names)
    dialect = {name: getattr(checked, name) for name in ("encoding", "delimiter", "quote", "escape")}
    more = {**dialect, "join": checked.join or "", **more}
    selection = Selection(checked.text_column, header=checked.columns, rules=checked.label_rules, **more)
    return given, selection


@contextmanager
def scored_rows(
    models: Sequence[Model],
    source: Given,
    selection: Selection,
    device: str,
    precision: str,
    kernels: str,
    chosen: Callable[[Iterable[Chunk]], Iterable[Chunk]] = lambda chunks: chunks,
    progress: RowProgress | None = None,
) -> Iterator[tuple[Backend, Iterator[ScoredChunk]]]:
    """The backend, and the chunks of a source with the score of every class of each model.

    Raises UsageError for a column, device or precision that is not available, and a model that overflows on every row;
    SourceError for a file that cannot be read.

    Parameters
    ----------
    models : sequence of Model
        The models.
    source : Given
        What is read.
    selection : Selection
        Which of its columns are read.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        "auto", or a generation of CUDA kernels.
    chosen : callable
        A function that takes some of the chunks' rows; by default all.
    progress : callable, optional
        Called with how many rows are done, and how many there are.

    """
    opened_input = open_input(source, selection, _CHUNK_ROWS)
    most = None if progress is None else _rows_in(source, selection)
    with opened(models, device, precision, kernels) as engines:
        chunks = chosen(chunks_here(opened_input))
        yield (
            engines[0].backend,
            _reported(scored(chunks, engines, [Scoring(all_scores=True)] * len(engines)), progress, most),
        )


RowProgress = Callable[[str, int, int | None], object]
"""Called with what is done, how many rows are done, and how many there are, None where that is not known."""


def _rows_in(source: Given, selection: Selection) -> int | None:
    """How many rows an input has, about; None where that is not known before they are read."""
    try:
        return sample_input(source, selection, 1, None).rows
    except (UsageError, SourceError):  # whoever reads all rows reports it
        return None


def _reported(chunks: Iterator[ScoredChunk], progress: RowProgress | None, most: int | None) -> Iterator[ScoredChunk]:
    """The chunks, as they are scored, and a report after each; the last one says that all rows are done."""
    if progress is None:
        yield from chunks
        return
    done = 0
    try:
        for one in chunks:
            yield one
            done += len(one.chunk)
            progress("labelling", done, None if most is None else max(most, done + 1))
    finally:
        progress("labelling", done, done)


class NewRows:
    """Passes on those rows of chunks that a model has not learned from, and counts the others.

    A temperature, or a promise, that is fitted to rows which a model has learned is too sure of itself.

    Parameters
    ----------
    model : Model
        The model. Of one whose file does not say what it has learned, all rows are passed on.

    """

    def __init__(self, model: Model) -> None:
        self._model, self._overlap = model, Overlap(0, 0, 0)
        self._checked: list[NDArray[np.bool_]] = []

    def of(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Pass on the rows of some chunks that the model has not learned from."""
        for chunk in chunks:
            found = looked_up(self._model, chunk)
            if found is None:
                yield chunk
                continue
            self._overlap = self._overlap.plus(Overlap.of(found))
            if not found.learned.all():
                yield chunk.take(~found.learned)

    def note(self, chunk: Chunk) -> None:
        """Note which rows of a chunk, once it is scored, are known to be new."""
        found = looked_up(self._model, chunk) if self._overlap.checked < self._overlap.rows else None
        self._checked.append(np.ones(len(chunk), np.bool_) if found is None else found.is_other)

    @property
    def left_out(self) -> int:
        """Rows that were not passed on."""
        return self._overlap.learned

    def known(self, least: int) -> NDArray[np.bool_]:
        """Say which of the noted rows to use.

        These are all rows. They are the checked rows only if the model has learned some of those, and has learned too
        many rows for each to be checked.

        Raises UsageError where the model has learned from most of the rows, or where fewer than `least` are new.
        """
        checked, overlap = np.concatenate([np.empty(0, np.bool_), *self._checked]), self._overlap
        if not overlap.learned:
            return np.ones(len(checked), np.bool_)
        if overlap.share > _MOST_LEARNED or overlap.others < least:
            of_all = f"{overlap.learned:,} of {counted(overlap.checked, 'row')}"
            if overlap.checked < overlap.rows:
                of_all = f"{overlap.learned:,} of the {counted(overlap.checked, 'row')} that could be checked"
            raise UsageError(
                f"{self._model.name} has learned from {of_all}: what is fitted to these would make it too sure of new "
                "text. Give rows that it has not seen. (Or train it anew with a fifth of the rows held out, and then "
                "give the same rows, with --held-out 0.2)"
            )
        return checked


def files_of(source: Given) -> dict[str, Any]:
    """What a model's card says of where rows came from."""
    return {"files": [os.path.basename(file.path) for file in source.found]} if isinstance(source, Files) else {}


def learned_columns(model: Model) -> tuple[tuple[str, ...], str | None]:
    """The columns that a model learned its text and its label from, where its card has them, and one of labels."""
    columns = model.card.get(COLUMNS_CARD)
    if not isinstance(columns, dict):
        return (), None
    text, labels = (tuple(str(name) for name in columns.get(kind, ())) for kind in ("text", "label"))
    return text, labels[0] if len(labels) == 1 else None


def joined_as(model: Model, text_column: str | Iterable[str], options: ReadKeywords) -> ReadKeywords:
    """The options, with the model's template where the user names neither columns of text nor a template."""
    if text_column or options.get("join") is not None or not model.join:
        return options
    return {**options, "join": model.join}


def text_columns(model: Model, text_column: str | Iterable[str], options: ReadKeywords) -> str | Iterable[str]:
    """The columns of text that are named, or that a template names; else those that a model learned from."""
    return text_column or (() if options.get("join") is not None else learned_columns(model)[0])


def label_column_of(model: Model, label_column: str | None) -> str:
    """The label column that is named, else that which a model learned from. Raises UsageError where there is none."""
    found = label_column or learned_columns(model)[1]
    if found is None:
        raise UsageError(f"--label-column names the column with the true class: the card of {model.name} has none")
    return found


def numbered(texts: pa.Array) -> NDArray[np.int64]:
    """A number for each text, the same for equal texts."""
    return np.asarray(texts.dictionary_encode().indices.to_numpy(), np.int64)


def hold_out(
    labels: NDArray[np.int64], share: float, texts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers to train on and to hold out: `share` of the texts of each class, the same rows for every seed.

    texts: of each row the number of its text, as `numbered` gives them. Rows of one text go together, with the class of
    the first of them: what is trained on does not know what is held out.
    """
    rng = np.random.default_rng(0)
    _, first, of_row = np.unique(texts, return_index=True, return_inverse=True)
    held = np.zeros(len(first), np.bool_)
    for label in np.unique(labels[first]):
        of_label = np.flatnonzero(labels[first] == label)
        held[rng.permutation(of_label)[: round(share * len(of_label))]] = True
    return np.flatnonzero(~held[of_row]), np.flatnonzero(held[of_row])


def strata(labels: NDArray[Any]) -> NDArray[np.int64]:
    """The classes of which `hold_out` takes shares: of labels int64 [N], these; of int [N, columns], those of the first
    column; of several labels a row, bool [N, classes], the rarest of each row.
    """
    return labels if labels.ndim == 1 else rarest(labels) if labels.dtype == np.bool_ else labels[:, 0]


def rarest(labels: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The label of each row, bool [N, classes], that fewest rows have; the number of classes for a row without labels.
    By it `hold_out` takes a share of every class.
    """
    counts = np.where(labels, labels.sum(axis=0), len(labels) + 1)
    return np.asarray(np.where(labels.any(axis=1), counts.argmin(axis=1), labels.shape[1]))
