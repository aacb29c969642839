"""Chooses the rows whose labels would help a model most: rows on which it is unsure, and that represent the others.

The method is filtered active submodular selection (Wei, Iyer and Bilmes, "Submodularity in Data Subset Selection and
Active Learning", 2015). The candidates are the rows with the smallest margin between their two best labels, twenty
times as many as are wanted, but at most 5,000. From these, rows are selected one after another: each time the row that
most increases the sum, over all candidates, of the similarity to the nearest selected row (facility location). The
similarity of two texts is the cosine of their words' TF-IDF.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..engine.base import Texts
from ..errors import UsageError
from ..evaluation.decisions import DECISION, KEY, TEXT, key_of, read_decisions
from ..evaluation.rows import chosen_input, joined_as, scored_rows, text_columns
from ..model.charcnn import Model
from ..model.ngrams import MOST_READ, Kinds, find
from ..model.several import load_one
from ..options import SCORE, ScoreKeywords
from ..source.rows.chunk import Chunk

_CANDIDATES = 20  # for each row that is wanted
_MOST_CANDIDATES = 5_000  # unless more rows are wanted
_WORDS, _BITS = Kinds(words=1, characters=(0, 0), reads=1014), 22

Floats = NDArray[np.float32]


class _Candidate(NamedTuple):
    """A row on which the model is unsure.

    Attributes
    ----------
    margin : float
        The difference of the row's two best scores.
    number : int
        The row's number among all rows.
    row : dict
        The row's file, row number and id.
    label : int
        The model's label.
    score : float
        The score of the label.
    text : str
        The text.

    """

    margin: float
    number: int
    row: dict[str, Any]
    label: int
    score: float
    text: str


@SCORE.takes(ScoreKeywords)
def next_rows(
    model: str | Path | Model,
    source: Any,
    *,
    text_column: str | Iterable[str] = (),
    label_column: str | None = None,
    id_column: str | None = None,
    count: int = 100,
    decided: str | Path | None = None,
    **options: Unpack[ScoreKeywords],
) -> pa.Table:
    """Choose the rows whose labels would help a model most: rows on which it is unsure, and that represent others.

    Parameters
    ----------
    model : str, Path or Model
        The name of a shipped model, a model file, or a loaded `Model`, which gives a text one label.
    source : str, path, Paths, or other object
        The rows, as in `classify`.
    text_column : str or iterable of str
        The column with the text, "text" by default. Several columns are joined by a space.
    label_column : str, optional
        The column with labels. Rows that have one are left out.
    id_column : str, optional
        The column that identifies a row, which is copied.
    count : int
        The number of rows. If a text occurs several times, one row is selected.
    decided : str or Path, optional
        A file of decisions. Rows with a decision in it are left out.
    **options
        How to read files, and the options of the engine.

    Returns
    -------
    pyarrow.Table
        The rows, with the most helpful first: ``file``, ``row``, the id column, the model's ``label`` and ``score``, an
        empty ``decision``, ``text`` and ``text_key``. `train` learns from the decisions with `corrections`.

    Raises
    ------
    UsageError
        For a column that does not exist, a count below 1, a model that gives several labels or a number, and an input
        in which every row has a label.
    ModelError
        For a model that cannot be loaded.
    SourceError
        If none of the files can be read.

    Examples
    --------
    >>> rows = broadsheet.next_rows("ag-news", "news.csv", text_column=["title", "body"], count=1)
    >>> rows.num_rows
    1

    """
    # Check the options, and find the columns to read.
    if count < 1:
        raise UsageError(f"{count} rows cannot be chosen: give 1 or more")
    loaded = load_one(model)
    if loaded.is_multi_label or loaded.levels is not None:
        kind = "several labels" if loaded.is_multi_label else "a number"
        raise UsageError(f"{loaded.name} gives a text {kind}: the next rows are chosen for models that give one label")
    if id_column in (taken := ("file", "row", "label", "score", DECISION, TEXT, KEY)):
        raise UsageError(f"--id-column {id_column!r} is one of the names {', '.join(taken)}: rename the column")
    options = joined_as(loaded, text_column, options)  # type: ignore[assignment]
    text_column = text_columns(loaded, text_column, options)
    engine = {name: options.pop(name, SCORE[name].default) for name in ("device", "precision", "kernels", "network")}  # type: ignore[misc]
    loaded = loaded.asking(str(engine.pop("network")))
    # Open the input, and leave out rows that have a label.
    kept_columns = tuple(name for name in (id_column, label_column) if name is not None)
    labels = () if label_column is None else (label_column,)
    reading: dict[str, Any] = {"kept_columns": kept_columns, "labels": labels, "reads": MOST_READ}
    given, selection = chosen_input(source, text_column, options, loaded.alphabet, loaded.length, **reading)
    seen = set() if decided is None else {decision.key for decision in read_decisions(Path(decided))}

    def unlabelled(chunks: Iterable[Chunk]) -> Iterable[Chunk]:
        for chunk in chunks:
            which = ~chunk.is_blank
            if label_column is not None:
                which &= chunk.rows.column(label_column).is_null().to_numpy()
            if which.any():
                yield chunk.take(which)

    # Score the rows, and keep the candidates about which the model is least sure.
    candidates_to_keep = max(count, min(_CANDIDATES * count, _MOST_CANDIDATES))
    candidates: dict[str, _Candidate] = {}
    first = 0
    with scored_rows([loaded], given, selection, **engine, chosen=unlabelled) as (_, chunks):
        for scored in chunks:
            found = _of_chunk(scored.chunk, scored.predictions[0].all_scores, first, id_column)
            first += len(scored.chunk)
            for key, candidate in found.items():
                if key not in seen:
                    candidates.setdefault(key, candidate)
            least = heapq.nsmallest(candidates_to_keep, candidates.items(), key=lambda item: item[1][:2])
            candidates = dict(least)
    if not candidates:
        raise UsageError("there is no row to label: each has a label, or a decision, or no text")
    # Choose the candidates that represent the others best.
    ordered = [*candidates.items()]
    chosen = [ordered[i] for i in representatives(_likeness([one.text for _, one in ordered]), count)]
    return _table(chosen, loaded.classes, id_column)


def _of_chunk(chunk: Chunk, scores: Floats | None, first: int, id_column: str | None) -> dict[str, _Candidate]:
    """Return the rows of a chunk by the keys of their texts."""
    assert scores is not None
    assert isinstance(chunk.text, pa.Array)
    if chunk.ids is not None:
        raise UsageError("a one-hot file holds no text that a person could label")
    best = np.sort(scores, axis=1)[:, -2:]
    margins, labels = (best[:, 1] - best[:, 0]).tolist(), scores.argmax(axis=1).tolist()
    columns = ["file", "row", *([id_column] if id_column else [])]
    rows, texts = chunk.rows.select(columns).to_pylist(), chunk.text.cast(pa.large_string()).to_pylist()
    found: dict[str, _Candidate] = {}
    for number, text in enumerate(texts):
        one = _Candidate(margins[number], first + number, rows[number], labels[number], float(best[number, 1]), text)
        found.setdefault(key_of(text), one)
    return found


def _likeness(texts: list[str]) -> Floats:
    """Return the cosines of N texts' TF-IDF of words, float32 [N, N]."""
    import scipy.sparse as sp

    given = Texts.of([text.encode() for text in texts])
    (grams,) = find(np.asarray(given.data), np.asarray(given.offsets), _WORDS, _BITS).words
    rows = np.repeat(np.arange(len(texts)), np.diff(grams.offsets))
    found = sp.coo_array(
        (np.ones(len(rows), np.float32), (rows, grams.buckets.astype(np.int64))), (len(texts), 1 << _BITS)
    )
    words = (found.tocsr() > 0).astype(np.float32)
    often = np.bincount(words.indices, minlength=1 << _BITS)
    words.data *= np.log(len(texts) / often[words.indices]).astype(np.float32) + 1
    lengths = np.sqrt(np.asarray(words.power(2).sum(axis=1)))
    words = sp.diags_array(1 / np.maximum(lengths, np.float32(1e-12))) @ words
    return np.asarray((words @ words.T).toarray(), np.float32)


def representatives(likeness: Floats, count: int) -> list[int]:
    """Return the rows, of N, that represent all of them best, with the best first and at most `count`.

    The selection is greedy, which reaches at least 1 - 1/e = 63 % of the largest possible sum (Nemhauser, Wolsey and
    Fisher, "An analysis of approximations for maximizing submodular set functions", 1978). Gains only shrink, so only
    those that could be the largest are computed again (Minoux, "Accelerated greedy algorithms", 1978).

    Parameters
    ----------
    likeness : float32 [N, N]
        The similarity of two rows, 0 or more.
    count : int
        The number of rows that are wanted.

    """
    nearest = np.zeros(len(likeness), np.float32)
    gains = [(-gain, row) for row, gain in enumerate(likeness.sum(axis=0).tolist())]
    heapq.heapify(gains)
    chosen: list[int] = []
    while gains and len(chosen) < count:
        _, row = heapq.heappop(gains)
        gain = float(np.maximum(likeness[row] - nearest, 0).sum())
        if gains and gain < -gains[0][0]:
            heapq.heappush(gains, (-gain, row))
            continue
        chosen.append(row)
        nearest = np.maximum(nearest, likeness[row])
    return chosen


def _table(chosen: list[tuple[str, _Candidate]], classes: tuple[str, ...], id_column: str | None) -> pa.Table:
    columns = ["file", "row", *([id_column] if id_column else [])]
    table = pa.Table.from_pylist([{name: one.row[name] for name in columns} for _, one in chosen])
    added = {
        "label": pa.array([classes[one.label] for _, one in chosen], pa.string()),
        "score": pa.array([one.score for _, one in chosen], pa.float32()),
        DECISION: pa.array([""] * len(chosen), pa.string()),
        TEXT: pa.array([one.text for _, one in chosen], pa.large_string()),
        KEY: pa.array([key for key, _ in chosen], pa.string()),
    }
    for name, column in added.items():
        table = table.append_column(name, column)
    return table
