"""Reads and scores the rows that a model is measured on or fitted to, and holds out rows from training."""

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
"""The number of rows in a chunk. It is small, so that a network on a CPU takes about a second for each chunk."""

_MOST_LEARNED = 0.5
"""Up to this share of rows, those that a model has learned from are left out.

If there are more of them, the other rows are most likely the same rows after small changes.
"""


def chosen_input(
    source: Any,
    text_column: str | Iterable[str],
    options: ReadKeywords,
    alphabet: Alphabet,
    length: int,
    whole_hash: bool = False,
    **attributes: Any,
) -> tuple[Given, Selection]:
    """Return an input, and the selection of its columns, as `classify` names them. Raises UsageError like `classify`.

    Parameters
    ----------
    source, text_column, options
        See `classify`.
    alphabet, length
        The alphabet and the length of the model, for files that are encoded already.
    whole_hash : bool
        Whether to identify the input by a hash of its content.
    **attributes
        Further attributes of the selection.

    """
    checked = Options(text_column=text_column, **options)
    names = {"endpoint": checked.endpoint, "input_format": checked.input_format}
    given = identify(source, len(alphabet), length, whole_hash=whole_hash, by_content=whole_hash, **names)
    dialect = {name: getattr(checked, name) for name in ("encoding", "delimiter", "quote", "escape")}
    attributes = {**dialect, "join": checked.join or "", **attributes}
    selection = Selection(checked.text_column, header=checked.columns, rules=checked.label_rules, **attributes)
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
    """Give the backend, and the chunks of a source with the score of every class of each model.

    Raises UsageError if a column, device or precision is not available, or a model overflows on every row, and
    SourceError if a file cannot be read.

    Parameters
    ----------
    models : sequence of Model
        The models.
    source : Given
        The input.
    selection : Selection
        The selection of its columns.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        "auto", or a generation of CUDA kernels.
    chosen : callable
        A function that chooses some of the chunks' rows. Default: all rows.
    progress : callable, optional
        See `RowProgress`.

    """
    opened_input = open_input(source, selection, _CHUNK_ROWS)
    total = None if progress is None else _rows_in(source, selection)
    with opened(models, device, precision, kernels) as engines:
        chunks = chosen(chunks_here(opened_input))
        yield (
            engines[0].backend,
            _reported(scored(chunks, engines, [Scoring(all_scores=True)] * len(engines)), progress, total),
        )


RowProgress = Callable[[str, int, int | None], object]
"""A function that is called with the name of the step, the number of finished rows, and the number of all rows.

The number of all rows is None if it is unknown.
"""


def _rows_in(source: Given, selection: Selection) -> int | None:
    """Return about how many rows an input has; None if it is unknown before they are read."""
    try:
        return sample_input(source, selection, 1, None).rows
    except (UsageError, SourceError):  # reading all rows reports it
        return None


def _reported(chunks: Iterator[ScoredChunk], progress: RowProgress | None, total: int | None) -> Iterator[ScoredChunk]:
    """Yield the chunks as they are scored, and report after each. The last report says that all rows are finished."""
    if progress is None:
        yield from chunks
        return
    finished_rows = 0
    try:
        for one in chunks:
            yield one
            finished_rows += len(one.chunk)
            progress("labelling", finished_rows, None if total is None else max(total, finished_rows + 1))
    finally:
        progress("labelling", finished_rows, finished_rows)


class NewRows:
    """Passes on the rows of chunks that a model has not learned from, and counts the others.

    A temperature or a promise that is fitted to rows that a model has learned is too optimistic.

    The order of calls: ``of`` passes on the rows of chunks, ``note`` follows for each scored chunk, and ``known`` comes
    last.

    Parameters
    ----------
    model : Model
        The model. If its file does not say what it has learned, all rows are passed on.

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
        """Note which rows of a scored chunk are known to be new."""
        found = looked_up(self._model, chunk) if self._overlap.checked < self._overlap.rows else None
        self._checked.append(np.ones(len(chunk), np.bool_) if found is None else found.is_other)

    @property
    def left_out(self) -> int:
        """The number of rows that were not passed on."""
        return self._overlap.learned

    def known(self, least: int) -> NDArray[np.bool_]:
        """Return which of the noted rows to use.

        Usually these are all rows. If the model has learned some of the checked rows, and has learned too many rows for
        each to be checked, they are only the checked rows.

        Raises UsageError if the model has learned from most of the rows, or if fewer than `least` rows are new.
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
    """Return the note of a model's card on where rows came from."""
    return {"files": [os.path.basename(file.path) for file in source.found]} if isinstance(source, Files) else {}


def learned_columns(model: Model) -> tuple[tuple[str, ...], str | None]:
    """Return the columns that a model learned its text from, and the column that it learned its label from.

    The columns are empty if the card does not have them. The column is None if the card has none or several.
    """
    columns = model.card.get(COLUMNS_CARD)
    if not isinstance(columns, dict):
        return (), None
    text, labels = (tuple(str(name) for name in columns.get(kind, ())) for kind in ("text", "label"))
    return text, labels[0] if len(labels) == 1 else None


def joined_as(model: Model, text_column: str | Iterable[str], options: ReadKeywords) -> ReadKeywords:
    """Return the options, with the model's template if the user names neither columns of text nor a template."""
    if text_column or options.get("join") is not None or not model.join:
        return options
    return {**options, "join": model.join}


def text_columns(model: Model, text_column: str | Iterable[str], options: ReadKeywords) -> str | Iterable[str]:
    """Return the columns of text that the user or a template names, or else those that the model learned from.

    The result is empty if a template names the columns.
    """
    return text_column or (() if options.get("join") is not None else learned_columns(model)[0])


def label_column_of(model: Model, label_column: str | None) -> str:
    """Return the label column that the user names, or else the one that the model learned from.

    Raises UsageError if there is none.
    """
    found = label_column or learned_columns(model)[1]
    if found is None:
        raise UsageError(f"--label-column names the column with the true class: the card of {model.name} has none")
    return found


def numbered(texts: pa.Array) -> NDArray[np.int64]:
    """Return a number for each text, which is the same for equal texts, int64 [N]."""
    return np.asarray(texts.dictionary_encode().indices.to_numpy(), np.int64)


def hold_out(
    labels: NDArray[np.int64], share: float, texts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row numbers to train on and those to hold out.

    A share of the texts of each class is held out. They are the same rows for every seed of a training run. Rows with
    the same text stay together and count for the class of the first of them, so that no held-out text is trained on.

    labels: the class of each row, [N]. share: the share to hold out. texts: the number of each row's text, [N], see
    `numbered`.
    """
    rng = np.random.default_rng(0)
    _, first, of_row = np.unique(texts, return_index=True, return_inverse=True)
    held = np.zeros(len(first), np.bool_)
    for label in np.unique(labels[first]):
        of_label = np.flatnonzero(labels[first] == label)
        held[rng.permutation(of_label)[: round(share * len(of_label))]] = True
    return np.flatnonzero(~held[of_row]), np.flatnonzero(held[of_row])


def strata(labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return the class of each row, of which `hold_out` takes a share.

    For labels of int64 [N] it is the label. For int [N, columns] it is the label of the first column. For rows with
    several labels, bool [N, classes], it is the rarest label of each row.
    """
    if labels.ndim == 1:
        return labels
    return rarest(labels) if labels.dtype == np.bool_ else labels[:, 0]


def rarest(labels: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the label of each row that the fewest rows have; the number of classes for a row without labels.

    With these labels, `hold_out` takes a share of every class. labels: which labels each row has, bool [N, classes].
    """
    counts = np.where(labels, labels.sum(axis=0), len(labels) + 1)
    return np.asarray(np.where(labels.any(axis=1), counts.argmin(axis=1), labels.shape[1]))
