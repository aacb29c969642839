"""The temperature of a model's scores, from labelled articles: a score becomes the share of labels that are right."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.base import Engine
from ..engine.open import open_engine
from ..errors import UsageError
from ..labelling.scored import texts_of
from ..model.charcnn import Model, load_model
from ..model.scores import CARD, LEAST_ROWS, fitted, log_scores
from ..source.chunk import NO_TRUTH, Chunk, Selection
from ..source.find.files import Files
from ..source.inputs import identify, open_input
from ..source.read.read import chunks_here
from .held_out import hold_out
from .reliability import improvement

_CHUNK_ROWS = 2048


def calibrate(
    model: str | Path | Model,
    source: Any,
    *,
    text_column: str | Iterable[str] = (),
    label_column: str,
    columns: Iterable[str] | None = None,
    held_out: float | None = None,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
) -> Model:
    """Find the temperature at which a model's scores are as high as they should be.

    Logits are divided by it. It is the one at which the negative log likelihood of the true classes is least (Guo and
    others, 2017). No label changes. `train` does this itself, on the rows that it holds out.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    source : str, path, Paths, or other object
        Anything that `classify` takes: labelled articles that the model was not trained on.
    text_column : str or iterable of str
        Column with the text, "text" by default. Several are joined by a space.
    label_column : str
        Column with the true class, by name or by number from 1.
    columns : iterable of str, optional
        Column names of a CSV or TSV without a header line.
    held_out : float, optional
        `source` is what the model was trained on, with this share held out: only those rows are used.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        "auto", "simt", "sm75", "sm80" or "sm90".

    Returns
    -------
    Model
        The same model with a temperature, and a note in its card of what it was found on, with negative log likelihood
        and expected calibration error before and after.

    Raises
    ------
    UsageError
        For a column, device or precision that is not available, fewer than 100 rows with a true class, or rows of which
        no temperature follows, since all are labelled right.
    ModelError
        For a model that cannot be loaded.
    SourceError
        For a file that cannot be read.

    Examples
    --------
    >>> model = broadsheet.calibrate("news.safetensors", "held_back.csv", text_column="body", label_column="topic")
    >>> model.temperature > 0
    True
    >>> model.save("news_calibrated.safetensors")

    """
    if held_out is not None and not 0 < held_out <= 0.5:
        raise UsageError(f"{held_out:g} of the rows cannot have been held out: above 0, up to 0.5")
    loaded = load_model(model)
    if loaded.is_multi_label:
        raise UsageError(f"{loaded.name} gives a text several labels: it has thresholds, and no temperature")
    plain = replace(loaded, temperature=1.0)
    texts = (text_column,) if isinstance(text_column, str) else tuple(text_column)
    header = None if columns is None else tuple(columns)
    selection = Selection(texts, truth=label_column, header=header, classes=plain.classes, reads=plain.reads)
    found = identify(source, len(plain.alphabet), plain.length)
    chunks: Iterable[Chunk] = chunks_here(open_input(found, selection, _CHUNK_ROWS))
    if held_out is not None:
        chunks = list(chunks)
    engine = open_engine(plain, device, precision, kernels=kernels)
    try:
        parts = list(_scored(chunks, None if held_out is None else _held(chunks, held_out), engine))
    finally:
        engine.close()
    scores = np.concatenate([np.empty((0, len(plain.classes)), np.float32), *(part for part, _ in parts)])
    truth = np.concatenate([np.empty(0, np.int64), *(part for _, part in parts)])
    if len(truth) < LEAST_ROWS:
        raise UsageError(
            f"{len(truth):,} rows have a class of the model in column {label_column!r}: a temperature needs "
            f"{LEAST_ROWS} or more"
        )
    logits = log_scores(scores)
    temperature = fitted(logits, truth)
    if temperature is None:
        raise UsageError(
            f"no temperature follows from these {len(truth):,} rows: (nearly) all are labelled right, or wrong. Give "
            "more rows, which the model was not trained on"
        )
    about = {"rows": len(truth), **improvement(logits, truth, temperature)}
    if isinstance(found, Files):
        about["files"] = [os.path.basename(file.path) for file in found.found]
    return replace(plain, temperature=temperature, card={**plain.card, CARD: about})


def _held(chunks: Iterable[Chunk], share: float) -> NDArray[np.bool_]:
    """Which of all rows `train` held out, [N]: it takes them class by class, by their place among the rows."""
    truth = np.concatenate([_truth(chunk) for chunk in chunks])
    unknown = int((truth == NO_TRUTH).sum())
    if unknown:
        raise UsageError(
            f"{unknown:,} rows have no class of the model, so these are not the rows that it was trained on: leave out "
            "--held-out, and give rows that it was not trained on"
        )
    held = np.zeros(len(truth), np.bool_)
    held[hold_out(truth, share)[1]] = True
    return held


def _truth(chunk: Chunk) -> NDArray[np.int64]:
    assert chunk.truth is not None
    return chunk.truth.astype(np.int64)


def _scored(
    chunks: Iterable[Chunk], held: NDArray[np.bool_] | None, engine: Engine
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """The scores [n, classes] and the true classes [n] of the rows of each chunk that have both. held: of all rows,
    which to take.
    """
    first = 0
    for chunk in chunks:
        truth = _truth(chunk)
        taken = truth != NO_TRUTH
        if held is not None:
            taken &= held[first : first + len(chunk)]
        first += len(chunk)
        if not taken.any():
            continue
        found = engine.classify(texts_of(chunk).take(taken), all_scores=True)
        scored = ~found.overflowed
        assert found.all_scores is not None
        yield found.all_scores[scored], truth[taken][scored]
