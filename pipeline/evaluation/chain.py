"""Fits chains, which ask an encoder about some texts after n-grams, and measures how well they keep their promise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil, log
from typing import Any, NamedTuple

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from ..engine.base import Predictions
from ..errors import UsageError
from ..measures.intervals import CONFIDENCE, binomial, most_lost
from ..model import cascade as cascades
from ..model.cascade import ASKS, Cascade, ScoreSelection, margins
from ..model.charcnn import Model
from ..model.layers import BIAS
from ..model.scores import log_scores
from ..options import ReadKeywords
from ..options.training import share_of
from .rows import NewRows, RowProgress, chosen_input, files_of, joined_as, scored_rows

Doubles = NDArray[np.float64]


def answers_of(model: Model, predictions: Predictions) -> Doubles:
    """Return what a model gives N texts, float64: the score of each class, [N, classes], or their numbers, [N, 1]."""
    scores = predictions.all_scores if model.levels is None else predictions.scores[:, :1]
    assert scores is not None
    return scores.astype(np.float64)


class Top(NamedTuple):
    """The texts that a chain has to find: those with the highest scores by its encoder alone.

    Attributes
    ----------
    share : Fraction
        The share of all texts that the chain has to find.
    recall : float
        The share of these texts that the encoder has to be asked about.
    label : int
        The number of the class whose score counts; 0 for a model of numbers.

    """

    share: Fraction
    recall: float
    label: int

    @classmethod
    def of(cls, top: str | None, recall: float, name: str | None, model: Model) -> Top | None:
        """Read it from the user's options; return None without `top`. Raises UsageError.

        name: the name of the class. model: the model of the encoder.
        """
        share, classes = share_of(top), ", ".join(model.classes)
        if model.levels is not None:
            if share is None:
                raise UsageError(f"{model.name} gives a text a number: say which texts are wanted, such as --top 10%")
            if name is not None:
                raise UsageError(f"{model.name} gives a text a number, and no class: leave out --top-of")
        elif share is not None and name not in model.classes:
            raise UsageError(f"--top needs a class of {model.name}, whose scores count: --top-of, one of {classes}")
        if share is None:
            if name is not None:
                raise UsageError("--top-of names a class for --top: give that too, such as --top 10%")
            return None
        if not (0 < share < 1 and 0 < recall < 1):
            raise UsageError(f"--top {top} and --recall {recall:g}: both are shares above 0 and below 1")
        return cls(share, recall, 0 if name is None else model.classes.index(name))


_RISK = 1 - CONFIDENCE
"""The one-sided risk that a chain breaks its promise."""

_RISK_OF_CUT = 0.01
"""The part of the risk that the true cut is not among the cuts that are considered."""


def _rows_of_share(rows: int, share: float) -> tuple[int, int]:
    """Return how many rows of a sample belong to a share of all rows: the least and the largest probable number.

    With a risk of half of `_RISK_OF_CUT` there are fewer, and with the same risk there are more. rows: the size of the
    sample.
    """
    chances = np.cumsum(binomial(rows, share))
    return tuple(np.searchsorted(chances, [_RISK_OF_CUT / 2, 1 - _RISK_OF_CUT / 2], "right").tolist())


def least_score(first: Doubles, encoder: Doubles, share: float, recall: float) -> float:
    """Return the score of the first model from which the encoder has to be asked, to find the top of all texts.

    The top is the share of *all* texts with the highest scores by the encoder, including texts of equal scores. Only a
    sample of the texts is known. So neither the score from which texts are in the top (the cut) nor the number of them
    that the first model loses is known. With 99 % confidence, the true cut divides the sample at one of several
    places, because the number of rows above it is binomial. For the right place, the bound of Clopper and Pearson says
    how many rows may be lost, with a risk of 4 %. The lowest score of all places holds for the right one too.

    Parameters
    ----------
    first, encoder : float64 [N]
        The scores of a sample by either model.
    share : float
        The share of all texts that is the top.
    recall : float
        The share of the top that the encoder has to be asked about, with 95 % confidence.

    Returns
    -------
    float
        The score.

    Raises
    ------
    UsageError
        If there are too few rows for the promise.

    """
    # Sort the rows by the encoder's scores, and find the places at which the true cut may divide them.
    order = np.argsort(-encoder, kind="stable")
    scores, by_first = encoder[order], first[order]
    fewest_rows, most_rows = _rows_of_share(len(scores), share)
    ends = np.flatnonzero(np.append(scores[1:] < scores[:-1], True)) + 1  # rows that a cut at each score takes
    begins = np.concatenate([[0], ends[:-1]])
    places = ends[(ends >= fewest_rows) & (begins <= most_rows)]
    # Each place may lose some of the rows above it: those with the lowest scores by the first model. The lowest score
    # of the others is the one that the place demands.
    lost = {int(rows): most_lost(int(rows), recall, _RISK - _RISK_OF_CUT) for rows in places}
    if min(lost.values()) < 0:
        raise UsageError(f"{len(first):,} held-out rows are too few to promise that: give more text")
    return float(min(np.partition(by_first[:rows], losses)[losses] for rows, losses in lost.items()))


def _rows_for(share: float, recall: float) -> int:
    """Return the fewest rows with which `least_score` can promise something."""
    # If each of `top` rows is kept with a chance of `recall`, the risk is the chance that all are kept.
    top = ceil(log(_RISK - _RISK_OF_CUT) / log(recall))
    few, enough = 0, ceil(top / share)
    while _rows_of_share(enough, share)[0] < top:
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        if _rows_of_share(middle, share)[0] < top:
            few = middle
        else:
            enough = middle
    return enough


_ROUNDED = 1_000  # a message gives the number of texts that are enough as a multiple of this


def refuse_few(rows: int, agreement: float, top: Top | None, texts: int | None = None) -> None:
    """Raise UsageError if there are fewer held-out rows than the promise of a chain needs. The message says how many.

    texts: the number of all texts, if the rows are a share of them.
    """
    needed = ceil(log(_RISK) / log(agreement)) if top is None else _rows_for(float(top.share), top.recall)
    if rows < needed:
        what = f"{agreement:.5g} of the labels stay"
        if top is not None:
            what = f"{top.recall:.0%} of the top {float(top.share):.3g} are found"
        few = f"{rows:,} held-out rows are too few to promise that {what}, with {CONFIDENCE:.0%} confidence"
        if texts is None or not rows:
            raise UsageError(f"{few}: that takes {needed:,}. Give more text, or hold more of it out")
        enough = ceil(needed * texts / rows / _ROUNDED) * _ROUNDED
        raise UsageError(
            f"{few}: that takes about {enough:,} texts, of which {needed:,} are held out, and here are {texts:,}. Give "
            "more text, which needs no labels, or hold more of it out"
        )


def fitted_chain(
    first: Model, encoder: Model, alone: Doubles, whole: Doubles, agreement: float, top: Top | None
) -> Model:
    """Return a chain of `first`, a model of n-grams, and an encoder that is asked if held-out rows say that it matters.

    The encoder is asked about as few of N rows as the promise allows. The promise holds for new rows like these with
    95 % confidence, whatever their distribution is, as `most_lost` and `least_score` explain.

    Parameters
    ----------
    first, encoder : Model
        Two models with the same classes.
    alone, whole : float64 [N, classes], or [N, 1]
        The scores or numbers of the first model and of the encoder; NaN if the model overflows.
    agreement : float
        The chance with which a label must be that of the encoder.
    top : Top, optional
        The texts to find. They replace the promise about labels.

    Raises
    ------
    UsageError
        If there are too few rows.

    """
    # Use the rows that both models can score, and find where their labels differ.
    known = np.isfinite(alone).all(axis=1) & np.isfinite(whole).all(axis=1)
    alone, whole = alone[known], whole[known]
    refuse_few(len(whole), agreement, top)
    bias, margin = tuple(first.tensors[BIAS].astype(np.float64).tolist()), 0.0
    selection: ScoreSelection | UnsetType = UNSET
    promise: dict[str, Any] = {"labels": agreement}
    levels, count = encoder.levels, len(encoder.classes)
    of_both = [
        scores.argmax(axis=1) if levels is None else levels.nearest(scores[:, 0], count) for scores in (alone, whole)
    ]
    differ = of_both[0] != of_both[1]

    # Find the texts that the encoder has to be asked about: unsure labels, or texts that may be in the top.
    if top is None:
        sure = margins(log_scores(alone, first.temperature).astype(np.float32), None)
        worst, lost = np.sort(sure[differ])[::-1], most_lost(len(whole), agreement)
        margin = float(np.nextafter(worst[lost], np.float32(np.inf))) if lost < len(worst) else 0.0
        rows = sure < np.float32(margin)
    else:
        of_first, of_encoder = alone[:, top.label], whole[:, top.label]
        cut = np.sort(of_encoder)[-ceil(top.share * len(whole))]
        wanted = of_encoder >= cut
        if wanted.all():
            raise UsageError(f"{encoder.name} gives no held-out row a score below {cut:g}: there is no top to find")
        least = min(least_score(of_first, of_encoder, float(top.share), top.recall), cut)
        rows = of_first >= least
        selection = ScoreSelection(float(least), float(cut), top.label, float(wanted.mean()), top.recall)
        of_class = {} if levels else {"of": encoder.classes[top.label]}
        promise = {"top": float(top.share), "recall": top.recall, **of_class}

    # Join both models, and note the promise on the card.
    share, agrees = float(rows.mean()), float((rows | ~differ).mean())
    cascade = Cascade(margin, share, agrees, bias, first.temperature, selection)
    about = {"rows": len(whole), "share": round(share, 6), "agreement": round(agrees, 6), "promise": promise}
    return replace(
        first, tensors=encoder.tensors, levels=encoder.levels, temperature=encoder.temperature, encoder=encoder.encoder,
        cascade=cascade, card={**first.card, cascades.CARD: about}, name=encoder.name,
    )  # fmt: skip


def promised(about: Mapping[str, Any]) -> str:
    """Return a line for the user about what a chain promises. about: the note of the promise on its card."""
    promise, sure = about["promise"], f"with {CONFIDENCE:.0%} confidence, "
    line = f"the encoder is asked about {about['share']:.1%} of {about['rows']:,} held-out rows: {sure}"
    if "labels" in promise:
        return f"{line}{100 * promise['labels']:.5g}% of all labels are the encoder's own"
    whose = f" for {promise['of']}" if "of" in promise else ""
    return (
        f"{line}{100 * promise['recall']:.3g}% of the top {100 * promise['top']:.3g}% by its score{whose} are in them"
    )


class Found(NamedTuple):
    """How good a chain is at finding the wanted rows, to which its encoder alone gives a score of the cut or more.

    Attributes
    ----------
    share : float
        The share of rows that the encoder was asked about.
    recall : float
        The share of the wanted rows that the chain gives such a score; nan if no row is wanted.
    precision : float
        The share of the rows with such a score that are wanted; nan if no row has such a score.

    """

    share: float
    recall: float
    precision: float


class Finding:
    """Counts what a chain finds if its encoder is asked about some rows, all and none.

    For a model that is not a chain that has to find the top, it counts nothing.
    """

    def __init__(self, chain: Model) -> None:
        self._chain, self._rows = chain, 0
        self._selection = chain.cascade.selection if chain.cascade else UNSET
        self._counts = {name: np.zeros(3, np.int64) for name in ASKS}
        self._first: list[NDArray[np.float32]] = []
        self._wanted: list[NDArray[np.bool_]] = []

    def add(self, by_way: Mapping[str, Predictions]) -> None:
        """Add the predictions for some rows. by_way: the predictions by the names in ASKS."""
        selection = self._selection
        if selection:
            label, cut = selection.label, np.float32(selection.cut)
            above = {name: answers_of(self._chain, by_way[name])[:, label] >= cut for name in ASKS}
            self._rows += len(above["all"])
            for name, chosen in above.items():
                asked = len(chosen) if name == "all" else by_way[name].asked
                self._counts[name] += (asked, chosen.sum(), (chosen & above["all"]).sum())
            self._first.append(answers_of(self._chain, by_way["none"])[:, label].astype(np.float32))
            self._wanted.append(above["all"])

    def figures(self) -> dict[str, Found]:
        """Return how good each of ASKS is; an empty dict if no rows were counted."""
        if not self._rows:
            return {}
        wanted, figures = self._counts["all"][1] or np.nan, {}
        for name, (rows, chosen, hits) in self._counts.items():
            figures[name] = Found(float(rows / self._rows), float(hits / wanted), float(hits / (chosen or np.nan)))
        return figures

    def recalls(self) -> tuple[tuple[float, float], ...]:
        """Return pairs of a share and a recall, for shares from 0 to 1 in steps of half a percent.

        The recall is that of asking the encoder about this share of the rows, those with the highest scores by the
        first model. The result is empty if there is nothing to find.
        """
        if not self._rows or not self._counts["all"][1]:
            return ()
        best_first = np.argsort(-np.concatenate(self._first), kind="stable")
        hits = np.concatenate([[0], np.cumsum(np.concatenate(self._wanted)[best_first])])
        shares = np.linspace(0, 1, 201)
        recalls = hits[np.rint(shares * self._rows).astype(np.int64)] / hits[-1]
        return tuple(zip(shares.tolist(), recalls.tolist(), strict=True))


def with_promise(
    chain: Model,
    source: Any,
    text_column: str | Iterable[str],
    agreement: float,
    top: Top | None,
    computing: tuple[str, str, str],
    options: ReadKeywords,
    progress: RowProgress | None = None,
) -> Model:
    """Return the chain with a new promise, fitted to other rows.

    Parameters
    ----------
    chain : Model
        The chain.
    source, text_column, agreement, options, progress
        See `calibrate`.
    top : Top, optional
        See `fitted_chain`.
    computing : tuple of str
        The device, the precision and the kernels.

    """
    both = chain.asking("none"), chain.asking("all")
    options = joined_as(chain, text_column, options)
    given, selection = chosen_input(source, text_column, options, chain.alphabet, chain.length, reads=chain.reads)
    answers: tuple[list[Doubles], ...] = ([], [])
    new = NewRows(chain)
    with scored_rows(both, given, selection, *computing, new.of, progress) as (_, chunks):
        for scored in chunks:
            new.note(scored.chunk)
            for parts, one in zip(answers, scored.predictions, strict=True):
                parts.append(answers_of(chain, one))
    known = new.known(1)
    alone, whole = (np.concatenate(parts)[known] for parts in answers)
    made = fitted_chain(*both, alone, whole, agreement, top)
    return replace(made, card={**made.card, cascades.CARD: {**made.card[cascades.CARD], **files_of(given)}})
