"""About which texts a model's network is to be asked, fitted to rows that the model was not trained on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.cascade import ASKS, Cascade, asked, cuts, margins
from ..model.scores import fitted, probabilities
from .reliability import reliability

Doubles = NDArray[np.float64]


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

    whole: logits of the whole model, [N, classes]. branch: what the n-grams add to them. truth: class indices, [N].

    Of N rows, let k lose their label at a margin. A new row then does so with a chance of (k + 1) / (N + 1) at most,
    whatever the rows are like, since it is as likely as each of them to have the highest margin. Where the rows are too
    few to vouch for so little, the chance is taken to fall with the margin as it does among them, exponentially.
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
    found: NDArray[Any] = logits.argmax(axis=1) if thresholds is None else logits >= cuts(thresholds)
    return found


def compare(
    whole: Doubles,
    branch: NDArray[np.float32],
    truth: NDArray[np.int64],
    cascade: Cascade,
    temperature: float,
) -> dict[str, Figures]:
    """The figures of N rows with the network asked about all of them, about some, and about none."""
    alone = branch + np.array(cascade.bias, np.float32)
    rows = asked(alone, cascade.margin, None)
    of_whole, of_alone = probabilities(whole, temperature), probabilities(alone.astype(np.float64), cascade.temperature)
    each = {"all": np.ones(len(rows), np.bool_), "uncertain": rows, "none": np.zeros(len(rows), np.bool_)}
    found = {}
    for name in ASKS:
        scores = np.where(each[name][:, None], of_whole, of_alone)
        labels, best = scores.argmax(axis=1), scores.max(axis=1).astype(np.float32)
        found[name] = figures_of(labels, best, truth, whole.argmax(axis=1), float(each[name].mean()))
    return found


def figures_of(
    labels: NDArray[Any], scores: NDArray[np.float32], truth: NDArray[Any], whole: NDArray[Any], share: float
) -> Figures:
    """labels, scores, truth: of N rows. whole: their labels with the network asked about all. share: that was asked."""
    right = labels == truth
    agreement = float((labels == whole).mean())
    return Figures(float(right.mean()), agreement, share, reliability(scores, right).expected_error)


def about(figures: dict[str, Figures], rows: int) -> dict[str, Any]:
    """For a model's card."""
    return {"rows": rows, **{name: {k: round(v, 6) for k, v in f._asdict().items()} for name, f in figures.items()}}
