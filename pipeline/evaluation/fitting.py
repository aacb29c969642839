"""Fits parameters to a model after training.

These are the temperature of its scores, the margin that decides which texts its network is asked about, and its
activation scales for int8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import UsageError
from ..labelling.scored import texts_of
from ..measures.reliability import improvement, reliability
from ..model import cascade as cascades
from ..model.cascade import AGREEMENT, ASKS, Cascade, cuts, margins, needs_network
from ..model.charcnn import Model
from ..model.loading import load_model
from ..model.ngrams import MOST_READ, NGrams
from ..model.ngrams import scores as ngram_scores
from ..model.ngrams import scores_of_ids as ngram_scores_of_ids
from ..model.quantised import SCALE_ROWS, with_scales
from ..model.scores import (
    BY_CLASS,
    CARD,
    LEAST_ROWS,
    SOFTMAX,
    fitted,
    fitted_by_class,
    log_scores,
    probabilities,
    with_best,
)
from ..model.several import load_one
from ..options import READ, ReadKeywords
from ..source.rows.chunk import Chunk
from ..source.rows.label_map import unmatched
from ..source.rows.labels import NO_TRUTH
from ..source.sample import sample_input, with_class_numbers
from .chain import Top, with_promise
from .rows import (
    NewRows,
    RowProgress,
    chosen_input,
    files_of,
    hold_out,
    joined_as,
    label_column_of,
    numbered,
    scored_rows,
    text_columns,
)

Doubles = NDArray[np.float64]
_FOLDS = 5
LEFT_OUT_CARD = "rows left out, which it has learned from"
"""The key of a card for the number of rows that `calibrate` did not use."""
UNMATCHED_CARD = "labels of the map that no row has"
"""The key of a card for the labels of the label map that no row has."""


@READ.takes(ReadKeywords)
def calibrate(
    model: str | Path | Model,
    source: Any,
    *,
    text_column: str | Iterable[str] = (),
    label_column: str | None = None,
    held_out: float | None = None,
    agreement: float = AGREEMENT,
    by_class: bool = False,
    top: str | None = None,
    top_of: str | None = None,
    recall: float = 0.95,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
    progress: RowProgress | None = None,
    **options: Unpack[ReadKeywords],
) -> Model:
    """Find the temperature that calibrates a model's scores, and the margin that decides when its network is asked.

    Logits are divided by the temperature. It is the one with the least negative log likelihood of the true classes (Guo
    and others, 2017). It changes no label. If it does not improve the scores of rows that it was not fitted to, the
    scores stay as they were. A model with n-grams beside its network also gets a temperature for n-grams alone, and a
    margin: the network is asked about texts whose label by the n-grams has a smaller margin. `train` does all this
    itself, on the rows that it holds out.

    For a chain of n-grams and an encoder, only the promise is fitted anew, to the answers of its encoder.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    source : str, path, Paths, or other object
        Anything that `classify` takes: labelled articles that the model was not trained on, or any texts for a chain.
        Rows that the model has learned from are left out.
    text_column : str or iterable of str
        The column with the text. Several columns are joined by a space. Default: the columns that the model learned
        from, or "text".
    label_column : str, optional
        The column with the true class, by name or by number. A chain takes none. Default: the column that the model
        learned from.
    held_out : float, optional
        The share of `source` that was held out when the model was trained on it. Only these rows are used.
    agreement : float
        The share of labels that must be those of the whole model if the network is asked about only some texts.
    by_class : bool
        Also fit how likely a label of each class with 100 rows or more is right, from its score (Platt scaling). Unlike
        a temperature, it can raise low scores and lower high ones. It changes no label.
    top, top_of, recall
        For a chain, see `train` with `keep_teacher`.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        "auto", "simt", "sm75", "sm80" or "sm90".
    progress : callable, optional
        Called with the name of the step ("labelling"), the number of finished rows, and the number of all rows or None.
    **options
        Options for reading files.

    Returns
    -------
    Model
        The same model with a temperature, and a note in its card. The note has the rows that the temperature was found
        on, and the negative log likelihood and expected calibration error before and after, of each fifth of the rows
        with a temperature fitted to the others. If the temperature does not help, the model does not get it, and the
        note has it as "left out". With `by_class`, another note has the same figures for the scores by class. A model
        with n-grams and a network also gets a margin, and a note of the accuracy, agreement, share and calibration
        error if the network is asked about all rows, some, and none.

    Raises
    ------
    UsageError
        If a column, device or precision is not available, fewer than 100 rows have a true class, the model has learned
        from most of the rows, or no temperature follows from the rows because all have the right label.
    ModelError
        If the model cannot be loaded.
    SourceError
        If a file cannot be read.

    Examples
    --------
    >>> model = broadsheet.calibrate("news.safetensors", "held_back.csv", text_column="body", label_column="topic")
    >>> model.temperature > 0
    True
    >>> model.save("news_calibrated.safetensors")

    """
    # Check the options. A chain gets only a new promise.
    if held_out is not None and not 0 < held_out <= 0.5:
        raise UsageError(f"{held_out:g} of the rows cannot have been held out: above 0, up to 0.5")
    if not 0.5 <= agreement < 1:
        raise UsageError(f"an agreement of {agreement:g}: give a share of labels from 0.5 on, below 1")
    given_model = load_one(model)
    if given_model.encoder is not None and given_model.cascade is not None:
        if label_column is not None or held_out is not None or by_class:
            raise UsageError(
                f"{given_model.name} is a chain, whose promise is about what its encoder says, not about true labels: "
                "leave out the label column, the share that was held out, and scores by class"
            )
        promise = agreement, Top.of(top, recall, top_of, given_model), (device, precision, kernels)
        return with_promise(given_model, source, text_column, *promise, options, progress)
    if top is not None or top_of is not None:
        raise UsageError(f"--top is what a chain is to find, and {given_model.name} is none: train --keep-teacher")

    # Check that the model has scores to calibrate, and find the columns to read.
    options = joined_as(given_model, text_column, options)
    text_column = text_columns(given_model, text_column, options)
    label_column = label_column_of(given_model, label_column)
    loaded = given_model.asking("all")
    if loaded.is_multi_label:
        raise UsageError(f"{loaded.name} gives a text several labels: it has thresholds, and no temperature")
    if loaded.levels is not None:
        raise UsageError(f"{loaded.name} gives a text a number, which has no temperature")
    if loaded.link != SOFTMAX:
        raise UsageError(f"{loaded.name} was trained with another loss than softmax: its scores have no temperature")
    plain = replace(loaded, temperature=1.0, by_class=None)
    if by_class and loaded.heads is not None:
        raise UsageError(f"{loaded.name} has heads, whose scores cannot be calibrated by class")
    reads = plain.reads if held_out is None else MOST_READ  # the limit in `train`, which holds out by text
    wanted: dict[str, Any] = {"truth": label_column, "classes": plain.classes, "reads": reads}
    given, selection = chosen_input(source, text_column, options, plain.alphabet, plain.length, **wanted)
    selection = with_class_numbers(given, selection)

    # Score the rows with a true class that the model has not learned from.
    nothing = np.empty((0, len(plain.classes)), np.float32)
    scores, beside, true, new = [nothing], [nothing], [np.empty(0, np.int64)], NewRows(plain)

    mapped: set[str] = set()

    def chosen(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        return new.of(_with_truth(_noting(chunks, mapped), held_out))

    with scored_rows([plain], given, selection, device, precision, kernels, chosen, progress) as (_, chunks):
        for scored in chunks:
            assert scored.predictions[0].all_scores is not None
            scores.append(scored.predictions[0].all_scores)
            true.append(_truth(scored.chunk))
            new.note(scored.chunk)
            beside.append(_beside(plain, scored.chunk))
    known = new.known(LEAST_ROWS)
    truth, logits = np.concatenate(true)[known], log_scores(np.concatenate(scores)[known])
    if len(truth) < LEAST_ROWS:
        raise UsageError(
            f"{len(truth):,} rows have a class of the model in column {label_column!r}: a temperature needs "
            f"{LEAST_ROWS} or more"
        )

    # Fit the temperature, and keep the old one if the new one does not help.
    temperature = fitted(logits, truth)
    if temperature is None:
        raise UsageError(
            f"no temperature follows from these {len(truth):,} rows: (nearly) all are labelled right, or wrong. Give "
            "more rows, which the model was not trained on"
        )
    figures = improvement(logits / loaded.temperature, _in_turn(logits, truth), truth)
    about: dict[str, Any] = {"rows": len(truth), **figures, **files_of(given)}
    if new.left_out:
        about[LEFT_OUT_CARD] = new.left_out
    if left := unmatched(selection.rules.classes_of, mapped):
        about[UNMATCHED_CARD] = [*left]
    if any(figures[f"{name} after"] > figures[f"{name} before"] for name in ("log loss", "calibration error")):
        about["left out"], temperature = round(temperature, 6), loaded.temperature

    # Fit the margin below which the network is asked, and the scores by class.
    calibrated = replace(plain, temperature=temperature, card={**plain.card, CARD: about})
    final = probabilities(logits, temperature)
    if plain.ngrams is not None and plain.has_network:
        branch = np.concatenate(beside)[known]
        cascade = fitted_cascade(logits, branch, truth, agreement)
        compared = figures_on_card(compare(logits, branch, truth, cascade, temperature), len(truth))
        card = {**calibrated.card, cascades.CARD: {**compared, **files_of(given)}}
        calibrated = replace(calibrated, cascade=cascade, card=card)
        final, _ = _ways(logits, branch, cascade, temperature)["uncertain"]
    return _by_class(calibrated, final, truth, files_of(given)) if by_class else calibrated


def _noting(chunks: Iterable[Chunk], mapped: set[str]) -> Iterator[Chunk]:
    """Yield the chunks, and add to `mapped` the labels of the label map that their rows have."""
    for chunk in chunks:
        mapped |= chunk.mapped_labels.keys()
        yield chunk


def _in_turn(logits: Doubles, truth: NDArray[np.int64]) -> Doubles:
    """Return the logits of each fifth of the rows, divided by the temperature that fits the others best."""
    turn, scaled = np.arange(len(truth)) % _FOLDS, logits.copy()
    for fold in range(_FOLDS):
        scaled[turn == fold] /= fitted(logits[turn != fold], truth[turn != fold]) or 1.0
    return scaled


def _by_class(model: Model, scores: Doubles, truth: NDArray[np.int64], files: dict[str, Any]) -> Model:
    """Return the model with scores by class, if these lower the log loss.

    The loss is measured on each fifth of the rows with the fit of the others. The calibration error is noted but does
    not decide, because for 2,500 rows with calibrated scores it is 0.014 with a standard deviation of 0.003.
    """
    turn, labels, corrected = np.arange(len(truth)) % _FOLDS, scores.argmax(axis=1), scores.copy()
    for fold in range(_FOLDS):
        in_fold = turn == fold
        best = fitted_by_class(scores[~in_fold], truth[~in_fold]).scores(labels[in_fold], scores[in_fold].max(axis=1))
        corrected[in_fold] = with_best(scores[in_fold], labels[in_fold], best)
    before, after = (np.log(np.maximum(one, np.finfo(np.float64).tiny)) for one in (scores, corrected))
    figures = improvement(before, after, truth)
    found = fitted_by_class(scores, truth) if figures["log loss after"] < figures["log loss before"] else None
    return replace(model, by_class=found, card={**model.card, BY_CLASS: {"rows": len(truth), **figures, **files}})


def _beside(model: Model, chunk: Chunk) -> NDArray[np.float32]:
    """Return what a model's n-grams add to its logits, [N, classes]; [0, classes] without n-grams."""
    if not isinstance(model.ngrams, NGrams):
        return np.empty((0, len(model.classes)), np.float32)
    if chunk.ids is not None:
        return ngram_scores_of_ids(chunk.ids, model.alphabet, model.ngrams)
    texts = texts_of(chunk).as_read_by(model)
    return ngram_scores(texts.data, texts.offsets, model.ngrams)


def _with_truth(chunks: Iterable[Chunk], share: float | None) -> Iterator[Chunk]:
    """Yield the rows with a true class.

    share: the share that `train` held out, to yield only these rows; None for all rows. `train` holds them out class by
    class, by their place among all texts.
    """
    held = None
    if share is not None:
        chunks = [chunk.take(_is_trained_on(chunk)) for chunk in chunks]
        truth = np.concatenate([_truth(chunk) for chunk in chunks])
        unknown = int((truth == NO_TRUTH).sum())
        if unknown:
            raise UsageError(
                f"{unknown:,} rows have no class of the model, so these are not the rows that it was trained on: leave "
                "out --held-out, and give rows that it was not trained on"
            )
        held = np.zeros(len(truth), np.bool_)
        texts = numbered(pa.chunked_array([chunk.text for chunk in chunks]).combine_chunks())
        held[hold_out(truth, share, texts)[1]] = True
    first = 0
    for chunk in chunks:
        rows = _truth(chunk) != NO_TRUTH if held is None else held[first : first + len(chunk)]
        first += len(chunk)
        if rows.any():
            yield chunk.take(rows)


def _is_trained_on(chunk: Chunk) -> NDArray[np.bool_]:
    """Return which rows `train` learns from or holds out, [N].

    These are the rows with a text and a label, even if the label is no class of this model.
    """
    unknown = np.zeros(len(chunk), np.bool_)
    for rows in chunk.unknown_labels.values():
        unknown[np.isin(chunk.rows.column("row").to_numpy(), rows)] = True
    return np.asarray(~chunk.is_blank & ((_truth(chunk) != NO_TRUTH) | unknown))


def _truth(chunk: Chunk) -> NDArray[np.int64]:
    assert chunk.truth is not None
    return chunk.truth.astype(np.int64)


@READ.takes(ReadKeywords)
def quantise(
    model: str | Path | Model, source: Any, *, text_column: str | Iterable[str] = (), **options: Unpack[ReadKeywords]
) -> Model:
    """Find the activation scales with which a model computes in int8.

    About 2,048 rows are read: the first of up to 8 files, or from 8 places of a table at even distances. The model runs
    on them in fp32 on the CPU. The greatest value of the input of each convolution becomes the greatest 8-bit number.
    The weights stay as they are.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    source : str, path, Paths, or other object
        Text like the text that the model will read: files or tables, see `classify`. Labels are not used.
    text_column : str or iterable of str
        The column with the text. Several columns are joined by a space. Default: "text".
    **options
        Options for reading files.

    Returns
    -------
    Model
        The same model with scales, and a note in its card of the rows that they were found on.

    Raises
    ------
    UsageError
        If a column does not exist, the input has no text or can be read only once, or the model overflows on a text.
    ModelError
        If the model cannot be loaded.
    SourceError
        If no file can be read.

    Examples
    --------
    >>> model = broadsheet.quantise("ag-news", "news.csv", text_column=["title", "body"])
    >>> model.scales is None
    False
    >>> model.save("news_int8.safetensors")

    """
    loaded = load_model(model)
    if not loaded.has_network:
        why = "n-grams alone, which compute the same in every precision" if loaded.encoder is None else "no int8 so far"
        raise UsageError(f"{loaded.name} has {why}")
    options = joined_as(loaded, text_column, options)
    given, selection = chosen_input(source, text_column, options, loaded.alphabet, loaded.length)
    sample = sample_input(given, selection, SCALE_ROWS, None)
    ids = texts_of(sample.chunk).as_read_by(loaded).encoded(loaded.alphabet, loaded.length).ids
    if not len(ids):
        why = "".join(f": {problem}" for problem in sample.problems[:1])
        raise UsageError(f"there is no row with text to find activation scales on{why}")
    about = {"rows": len(ids), **files_of(given)}
    card = {name: value for name, value in loaded.card.items() if name != "calibrated on"}  # older files call it so
    return replace(with_scales(loaded, ids), card={**card, "scales found on": about})


class Figures(NamedTuple):
    """How good a model is if its network is asked about some texts.

    Attributes
    ----------
    accuracy : float
        The share of rows with the right label; nan if no row has a true class.
    agreement : float
        The share of rows with the label that the whole model gives.
    share : float
        The share of rows that the network was asked about.
    calibration_error : float
        The expected calibration error of the scores; nan if no row has a true class.

    """

    accuracy: float
    agreement: float
    share: float
    calibration_error: float


def fitted_cascade(
    whole: Doubles,
    branch: NDArray[np.float32],
    truth: NDArray[Any] | None,
    agreement: float,
    thresholds: tuple[float, ...] | None = None,
) -> Cascade:
    """Return the cascade with the least margin at which new rows like these keep their label with chance `agreement`.

    Let k of N rows lose their label at a margin. Then a new row loses its label with a chance of at most
    (k + 1) / (N + 1), whatever the distribution of the rows is, because it is as likely as each of them to have the
    highest margin. If there are too few rows for such a small chance, it is assumed to fall exponentially with the
    margin, as it does among the rows.

    Parameters
    ----------
    whole : float64 [N, classes]
        The logits of the whole model.
    branch : float32 [N, classes]
        What the n-grams add to the logits.
    truth : int64 [N], or None
        The class indices that a temperature is fitted to; None to fit none.
    agreement : float
        The chance with which a row keeps its label.
    thresholds : tuple of float, optional
        The threshold of each class, if a text may have several labels.

    """
    # Sort the rows that lose their label without the network by how sure the n-grams are.
    bias = (whole - branch).mean(axis=0).astype(np.float32)
    alone = branch + bias
    lost = labels_of(alone, thresholds) != labels_of(whole, thresholds)
    sure = margins(alone, thresholds)
    worst = np.sort(sure[lost if lost.ndim == 1 else lost.any(axis=1)])[::-1].astype(np.float64)

    # Choose the margin: that of the first row, from the surest on, that must keep its label. If no row may lose it, add
    # what an exponential distribution demands, whose mean is that of the margins.
    count, allowed = len(whole) + 1, 1 - agreement
    margin = 0.0
    allowed_losses = int(np.floor(allowed * count + 1e-9)) - 1
    if allowed_losses < 0 and len(worst):
        margin = worst[0] - worst.mean() * np.log(allowed * count)
    elif 0 <= allowed_losses < len(worst):
        margin = worst[allowed_losses]
    # The network is asked below the margin, so the next larger number includes the row itself.
    margin = float(np.nextafter(np.float32(margin), np.float32(np.inf))) if margin else 0.0
    # Fit a temperature for n-grams alone, and measure the cascade on the rows.
    temperature = None if truth is None or thresholds is not None else fitted(alone.astype(np.float64), truth)
    share = float(needs_network(alone, margin, thresholds).mean())
    stays = 1 - int((worst >= margin).sum()) / len(whole)
    return Cascade(margin, share, stays, tuple(bias.tolist()), temperature or 1.0)


def labels_of(logits: NDArray[Any], thresholds: tuple[float, ...] | None) -> NDArray[Any]:
    """Return the label of each row, [N]; with thresholds, which classes each row is given, [N, classes]."""
    return np.asarray(logits.argmax(axis=1) if thresholds is None else logits >= cuts(thresholds))


def compare(
    whole: Doubles, branch: NDArray[np.float32], truth: NDArray[np.int64], cascade: Cascade, temperature: float
) -> dict[str, Figures]:
    """Return the figures of N rows if the network is asked about all of them, about some, and about none.

    Parameters
    ----------
    whole : float64 [N, classes]
        The logits of the whole model.
    branch : float32 [N, classes]
        What the n-grams add to the logits.
    truth : int64 [N]
        The indices of the true classes.
    cascade : Cascade
        The cascade that decides which rows the network is asked about.
    temperature : float
        The temperature of the whole model's scores.

    """
    figures = {}
    for name, (scores, rows) in _ways(whole, branch, cascade, temperature).items():
        labels, best = scores.argmax(axis=1), scores.max(axis=1).astype(np.float32)
        figures[name] = figures_of(labels, best, truth, whole.argmax(axis=1), float(rows.mean()))
    return figures


def _ways(
    whole: Doubles, branch: NDArray[np.float32], cascade: Cascade, temperature: float
) -> dict[str, tuple[Doubles, NDArray[np.bool_]]]:
    """Return for each of ASKS the scores of N rows, [N, classes], and which rows the network is asked about, [N]."""
    alone = branch + np.array(cascade.bias, np.float32)
    some = needs_network(alone, cascade.margin, None)
    of_whole, of_alone = probabilities(whole, temperature), probabilities(alone.astype(np.float64), cascade.temperature)
    rows = {"all": np.ones(len(some), np.bool_), "uncertain": some, "none": np.zeros(len(some), np.bool_)}
    return {name: (np.where(rows[name][:, None], of_whole, of_alone), rows[name]) for name in ASKS}


def figures_of(
    labels: NDArray[Any], scores: NDArray[np.float32], truth: NDArray[Any], whole: NDArray[Any], share: float
) -> Figures:
    """Return how good the labels of N rows are.

    Parameters
    ----------
    labels : int [N]
        The labels.
    scores : float32 [N]
        The scores of the labels.
    truth : int [N]
        The true classes.
    whole : int [N]
        The labels if the network is asked about all rows.
    share : float
        The share of rows that the network was asked about.

    """
    right = labels == truth
    agreement = float((labels == whole).mean())
    return Figures(float(right.mean()), agreement, share, reliability(scores, right).expected_error)


def figures_on_card(figures: dict[str, Figures], rows: int, taught: bool = False) -> dict[str, Any]:
    """Return the figures as a model's card has them. taught: whether the labels of the rows come from a teacher."""
    names = {"accuracy": "agreement with the teacher"} if taught else {}
    of_each = {name: {names.get(k, k): round(v, 6) for k, v in f._asdict().items()} for name, f in figures.items()}
    return {"rows": rows, **of_each}
