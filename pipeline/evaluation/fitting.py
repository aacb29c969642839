"""What is fitted to a model after training: the temperature of its scores, about which texts its network is asked, and
its activation scales for int8.
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
from ..model.cascade import AGREEMENT, ASKS, Cascade, asked, cuts, margins
from ..model.charcnn import Model, load_model
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
"""The key under which a card says of how many rows `calibrate` made no use."""
UNMATCHED_CARD = "labels of the map that no row has"
"""The key under which a card lists these."""


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
    """Find the temperature at which a model's scores are as high as they should be, and when its network is asked.

    Logits are divided by the temperature. It is the one at which the negative log likelihood of the true classes is
    least (Guo and others, 2017). It changes no label. Where it makes the scores of rows that it was not fitted to no
    better, they stay as they were. A model that has n-grams beside its network also gets the margin
    of the n-grams' label below which the network is asked, and a temperature for n-grams alone. `train` does all this
    itself, on the rows that it holds out.

    Of a chain, n-grams before an encoder, only what it promises is fitted anew, to the answers of its encoder.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    source : str, path, Paths, or other object
        Anything that `classify` takes: labelled articles that the model was not trained on; for a chain any texts.
        Rows that the model has learned from are left out.
    text_column : str or iterable of str
        Column with the text. Several are joined by a space. Default: those that the model learned from, or "text".
    label_column : str, optional
        Column with the true class, by name or by number; of a chain none. Default: the one that the model learned from.
    held_out : float, optional
        `source` is what the model was trained on, with this share held out: only those rows are used.
    agreement : float
        The share of labels that are to be those of the whole model where the network is asked about some texts only.
    by_class : bool
        Also fit how likely a label of each class with 100 rows or more is right, from its score (Platt scaling). It can
        raise low scores and lower high ones, which a temperature cannot. It changes no label.
    top, top_of, recall
        Of a chain, as `train` takes them with `keep_teacher`.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8".
    kernels : str
        "auto", "simt", "sm75", "sm80" or "sm90".
    progress : callable, optional
        Called with what is done ("labelling"), how many rows are done, and how many there are, or None.
    **options
        How files are read.

    Returns
    -------
    Model
        The same model with a temperature, and a note in its card of what it was found on, with negative log likelihood
        and expected calibration error before and after, of each fifth of the rows with a temperature fitted to the
        others; and, where that does not help, "left out": the temperature that the model was not given. With
        `by_class`, another note has the same figures of that. With n-grams
        and a network, also with a margin, and a note of accuracy, agreement, share and calibration error with the
        network asked about all rows, some, and none.

    Raises
    ------
    UsageError
        For a column, device or precision that is not available, fewer than 100 rows with a true class, rows most of
        which the model has learned from, or rows of which no temperature follows, since all are labelled right.
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
    if not 0.5 <= agreement < 1:
        raise UsageError(f"an agreement of {agreement:g}: give a share of labels from 0.5 on, below 1")
    given_model = load_one(model)
    if given_model.encoder is not None and given_model.cascade is not None:
        if label_column is not None or held_out is not None or by_class:
            raise UsageError(
                f"{given_model.name} is a chain, whose promise is about what its encoder says: leave out the label "
                "column, and what needs one"
            )
        how = agreement, Top.of(top, recall, top_of, given_model), (device, precision, kernels)
        return with_promise(given_model, source, text_column, *how, options, progress)
    if top is not None or top_of is not None:
        raise UsageError(f"--top is what a chain is to find, and {given_model.name} is none: train --keep-teacher")
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
    reads = plain.reads if held_out is None else MOST_READ  # as `train` reads, which holds out by text
    wanted: dict[str, Any] = {"truth": label_column, "classes": plain.classes, "reads": reads}
    given, selection = chosen_input(source, text_column, options, plain.alphabet, plain.length, **wanted)
    selection = with_class_numbers(given, selection)
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
    """The chunks; the labels of the label map that their rows have are added to `mapped`."""
    for chunk in chunks:
        mapped |= chunk.mapped_labels.keys()
        yield chunk


def _in_turn(logits: Doubles, truth: NDArray[np.int64]) -> Doubles:
    """The logits of each fifth of the rows, over the temperature that fits the others best."""
    turn, scaled = np.arange(len(truth)) % _FOLDS, logits.copy()
    for fold in range(_FOLDS):
        scaled[turn == fold] /= fitted(logits[turn != fold], truth[turn != fold]) or 1.0
    return scaled


def _by_class(model: Model, scores: Doubles, truth: NDArray[np.int64], files: dict[str, Any]) -> Model:
    """The model with scores by class, where these have a lower log loss on each fifth of the rows than before, with
    what fits the others. The calibration error is noted, but does not decide: of 2,500 rows whose scores are right it
    is 0.014, with a standard deviation of 0.003.
    """
    turn, labels, corrected = np.arange(len(truth)) % _FOLDS, scores.argmax(axis=1), scores.copy()
    for fold in range(_FOLDS):
        own = turn == fold
        best = fitted_by_class(scores[~own], truth[~own]).scores(labels[own], scores[own].max(axis=1))
        corrected[own] = with_best(scores[own], labels[own], best)
    before, after = (np.log(np.maximum(one, np.finfo(np.float64).tiny)) for one in (scores, corrected))
    figures = improvement(before, after, truth)
    found = fitted_by_class(scores, truth) if figures["log loss after"] < figures["log loss before"] else None
    return replace(model, by_class=found, card={**model.card, BY_CLASS: {"rows": len(truth), **figures, **files}})


def _beside(model: Model, chunk: Chunk) -> NDArray[np.float32]:
    """What a model's n-grams add to its logits, [N, classes]; nothing without n-grams."""
    if not isinstance(model.ngrams, NGrams):
        return np.empty((0, len(model.classes)), np.float32)
    if chunk.ids is not None:
        return ngram_scores_of_ids(chunk.ids, model.alphabet, model.ngrams)
    texts = texts_of(chunk).as_read_by(model)
    return ngram_scores(texts.data, texts.offsets, model.ngrams)


def _with_truth(chunks: Iterable[Chunk], share: float | None) -> Iterator[Chunk]:
    """The rows with a true class. share: take only those that `train` held out, which takes them class by class, by
    their place among all texts.
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
    """Which rows `train` learns from or holds out, [N]: those with a text and a label, which may be no class here."""
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
    """Find the activation scales by which a model computes in int8.

    About 2,048 rows are read, the first of up to 8 files, or from 8 places of a table, at even distances, and the model
    is run on them in fp32 on the CPU. The greatest value that the input of each convolution takes becomes the greatest
    8-bit number. The weights stay as they are.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    source : str, path, Paths, or other object
        Text like that which the model will read: files or tables, as `classify` takes them. Labels are not used.
    text_column : str or iterable of str
        Column with the text, "text" by default. Several are joined by a space.
    **options
        How files are read.

    Returns
    -------
    Model
        The same model with scales, and a note in its card of what they were found on.

    Raises
    ------
    UsageError
        For a column that does not exist, an input without text or that can be read only once, or a model that overflows
        on a text.
    ModelError
        For a model that cannot be loaded.
    SourceError
        For files of which none can be read.

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
    card = {name: value for name, value in loaded.card.items() if name != "calibrated on"}  # of older files, the same
    return replace(with_scales(loaded, ids), card={**card, "scales found on": about})


class Figures(NamedTuple):
    """How good a model is with its network asked about some texts.

    Attributes
    ----------
    accuracy : float
        The share of rows labelled right; nan where no row has a true class.
    agreement : float
        The share of rows with the label that the whole model gives.
    share : float
        The share of rows about which the network was asked.
    calibration_error : float
        The expected calibration error of the scores; nan as above.

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
    """The least margin with which new rows like these keep their label with a chance of `agreement` or more.

    Of N rows, let k lose their label at a margin. A new row then does so with a chance of (k + 1) / (N + 1) at most,
    whatever the rows are like, since it is as likely as each of them to have the highest margin. Where the rows are too
    few to vouch for so little, the chance is taken to fall with the margin as it does among them, exponentially.

    Parameters
    ----------
    whole : float64 [N, classes]
        Logits of the whole model.
    branch : float32 [N, classes]
        What the n-grams add to them.
    truth : int64 [N], or None
        Class indices, by which a temperature is fitted.
    agreement : float
        The chance.
    thresholds : tuple of float, optional
        Of each class, where a text may have several labels.

    """
    bias = (whole - branch).mean(axis=0).astype(np.float32)
    alone = branch + bias
    lost = labels_of(alone, thresholds) != labels_of(whole, thresholds)
    sure = margins(alone, thresholds)
    worst = np.sort(sure[lost if lost.ndim == 1 else lost.any(axis=1)])[::-1].astype(np.float64)
    count, allowed = len(whole) + 1, 1 - agreement
    margin = 0.0
    kept = int(np.floor(allowed * count + 1e-9)) - 1
    if kept < 0 and len(worst):
        margin = worst[0] - worst.mean() * np.log(allowed * count)
    elif 0 <= kept < len(worst):
        margin = worst[kept]
    margin = float(np.nextafter(np.float32(margin), np.float32(np.inf))) if margin else 0.0
    temperature = None if truth is None or thresholds is not None else fitted(alone.astype(np.float64), truth)
    share, stays = float(asked(alone, margin, thresholds).mean()), 1 - int((worst >= margin).sum()) / len(whole)
    return Cascade(margin, share, stays, tuple(bias.tolist()), temperature or 1.0)


def labels_of(logits: NDArray[Any], thresholds: tuple[float, ...] | None) -> NDArray[Any]:
    """The label of each row, [N], or which classes it is given, [N, classes]."""
    return np.asarray(logits.argmax(axis=1) if thresholds is None else logits >= cuts(thresholds))


def compare(
    whole: Doubles, branch: NDArray[np.float32], truth: NDArray[np.int64], cascade: Cascade, temperature: float
) -> dict[str, Figures]:
    """The figures of N rows with the network asked about all of them, about some, and about none.

    Parameters
    ----------
    whole : float64 [N, classes]
        Logits of the whole model.
    branch : float32 [N, classes]
        What the n-grams add to them.
    truth : int64 [N]
        Class indices.
    cascade : Cascade
        By which the network is asked about some.
    temperature : float
        Of the whole model's scores.

    """
    figures = {}
    for name, (scores, rows) in _ways(whole, branch, cascade, temperature).items():
        labels, best = scores.argmax(axis=1), scores.max(axis=1).astype(np.float32)
        figures[name] = figures_of(labels, best, truth, whole.argmax(axis=1), float(rows.mean()))
    return figures


def _ways(
    whole: Doubles, branch: NDArray[np.float32], cascade: Cascade, temperature: float
) -> dict[str, tuple[Doubles, NDArray[np.bool_]]]:
    """For each of ASKS the scores of N rows, [N, classes], and about which of them the network is asked, [N]."""
    alone = branch + np.array(cascade.bias, np.float32)
    some = asked(alone, cascade.margin, None)
    of_whole, of_alone = probabilities(whole, temperature), probabilities(alone.astype(np.float64), cascade.temperature)
    rows = {"all": np.ones(len(some), np.bool_), "uncertain": some, "none": np.zeros(len(some), np.bool_)}
    return {name: (np.where(rows[name][:, None], of_whole, of_alone), rows[name]) for name in ASKS}


def figures_of(
    labels: NDArray[Any], scores: NDArray[np.float32], truth: NDArray[Any], whole: NDArray[Any], share: float
) -> Figures:
    """How good the labels of N rows are.

    Parameters
    ----------
    labels : int [N]
        The labels.
    scores : float32 [N]
        Their scores.
    truth : int [N]
        The true classes.
    whole : int [N]
        The labels with the network asked about all rows.
    share : float
        The share of rows about which the network was asked.

    """
    right = labels == truth
    agreement = float((labels == whole).mean())
    return Figures(float(right.mean()), agreement, share, reliability(scores, right).expected_error)


def figures_on_card(figures: dict[str, Figures], rows: int, taught: bool = False) -> dict[str, Any]:
    """The figures as a model's card has them. taught: whether the labels of the rows are a teacher's."""
    names = {"accuracy": "agreement with the teacher"} if taught else {}
    of_each = {name: {names.get(k, k): round(v, 6) for k, v in f._asdict().items()} for name, f in figures.items()}
    return {"rows": rows, **of_each}
