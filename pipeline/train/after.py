"""The last stage of `train`: makes a model of the trained weights, with a card, scales, and temperature or thresholds.

This stage also finds the factors of the network and of the branch of n-grams in the sum of their logits, and compares
the accuracy of the model with that of simple models on the same rows.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, softmax

from ..evaluation.fitting import compare, figures_on_card, fitted_cascade
from ..evaluation.numbers import NumberFigures
from ..measures.accuracy import LabelCounts
from ..measures.intervals import wilson
from ..measures.reliability import improvement
from ..model import cascade as cascades
from ..model.cascade import AGREEMENT, Cascade
from ..model.charcnn import Model
from ..model.fasttext import ALPHABET
from ..model.layers import BIAS, WHOLE
from ..model.learned import LearnedRows
from ..model.ngrams import MOST_READ
from ..model.quantised import SCALE_ROWS, with_scales
from ..model.scores import CARD, DEFAULT_THRESHOLD, LEAST_ROWS, Levels, assigned, best_thresholds, fitted, probabilities
from ..source.rows.labels import NO_TRUTH
from .answers import Answers
from .branch import Branch, plain_on_words
from .data import LabelledArticles, TrainingData
from .job import Outcome, TrainingJob, without_network
from .suspects import suspects

if TYPE_CHECKING:
    from .packed import PackedCNN


SURE_CARD = "score of 0.9 or more"
"""A key of the card. Its value is the number of rows with such a score, and how many of them are labelled right."""

AGREEMENT_CARD = "held_out_agreement"
"""A key of the card. Its value is the share of held-out rows to which the model gives the label of the teacher. Only
the card of a model whose held-out rows have their labels from a teacher has it."""

_LEAST_SPREAD = 0.05
"""The least spread of a model of numbers, in steps."""


def model_of(
    parts: Parts, about: Mapping[str, Any], find_suspects: bool
) -> tuple[Model, dict[str, Compared], pa.Table | None]:
    """Make the finished model: weights rounded to the dtype of `parts`, card, int8 scales, temperature or thresholds.

    The accuracy and the temperature come from rows that nothing was fitted to: the held-out rows; or, if the network
    was not trained, the rows of the branch, which cross-validation held out in turn if no rows are held out.

    Parameters
    ----------
    parts : Parts
        The network and the branch.
    about : mapping
        Further entries of the card.
    find_suspects : bool
        Whether to find the rows whose label is probably wrong.

    Returns
    -------
    Model
        The model.
    dict of str to Compared
        The comparison with simple models, by the name of the head, or ""; empty for several labels per text and for
        numbers.
    Table or None
        The rows whose label is probably wrong, if there is one column with one label for each text.

    """
    prepared, card = parts.prepared, parts.card(about)
    if prepared.data.levels is not None:
        return _number_model(parts, card, prepared.data.levels), {}, None
    if prepared.data.is_multi_label:
        return _multi_label_model(parts, card), {}, None
    if prepared.data.heads is not None:
        return *_model_of_heads(parts, card), None
    model, against = _one_label_model(parts, card)
    if not find_suspects or not len(parts.rows):
        return model, against, None
    scores = probabilities(parts.logits, model.temperature)
    vectors = None if parts.branch is None else parts.branch.vectors
    return model, against, suspects(prepared.data, prepared.fit, parts.rows, scores, prepared.decided, vectors)


def _model_of_heads(parts: Parts, card: dict[str, Any]) -> tuple[Model, dict[str, Compared]]:
    """Make a model with several heads. The logits of each head are divided by a temperature of its own."""
    prepared, rows, data = parts.prepared, parts.rows, parts.prepared.data
    tested = None if prepared.tested is None else (prepared.tested, parts.logits_of(prepared.tested))
    if len(rows):
        linear = plain(data, prepared.fit, rows) if parts.branch is None else parts.branch.plain
    sharper, against = np.ones(len(data.classes)), {}
    figures: dict[str, dict[str, Any]] = {name: {} for name, _ in data.heads or ()}
    for number, (name, part, labels) in enumerate(data.columns):
        if (known := labels[rows] != NO_TRUTH).any():
            logits, truth, of_fit = parts.logits[known, part], labels[rows][known], labels[prepared.fit]
            right = logits.argmax(axis=1) == truth
            against[name] = compared(right, linear[known, part], truth, of_fit[of_fit != NO_TRUTH])
            figures[name] = _measured("held_out_accuracy", right)
            figures[name]["compared with"] = against[name].about()
            if len(truth) >= LEAST_ROWS and (temperature := fitted(logits, truth)) is not None:
                sharper[part] = 1 / temperature
                figures[name][CARD] = {"rows": len(truth), **improvement(logits, logits / temperature, truth)}
        if tested is not None and (known := tested[0].labels[:, number] != NO_TRUTH).any():
            right = (tested[1][:, part].argmax(axis=1) == tested[0].labels[:, number])[known]
            figures[name]["test"] = {"rows": len(right), **_measured("accuracy", right)}
    parts.sharpen(sharper)
    about = {} if tested is None else {"test": tested[0].about()}
    return parts.model({**card, **about, "heads": figures}), against


def _one_label_model(parts: Parts, card: dict[str, Any]) -> tuple[Model, dict[str, Compared]]:
    """Make a model that returns one label, with a temperature."""
    # Measure the accuracy on rows that nothing was fitted to, and compare it with that of simple models.
    prepared, branch, rows, logits = parts.prepared, parts.branch, parts.rows, parts.logits
    data = prepared.data
    truth = data.labels[rows]
    temperature, against, cascade = None, {}, None
    taught = data.are_taught(rows)
    if len(rows):
        right = logits.argmax(axis=1) == truth
        card |= _measured(AGREEMENT_CARD if taught else "held_out_accuracy", right)
        linear = plain(data, prepared.fit, rows) if branch is None else branch.plain
        against = {"": compared(right, linear, truth, data.labels[prepared.fit])}
        card["compared with"] = against[""].about()
    # Fit the temperature, and say how good the scores are.
    if len(rows) >= LEAST_ROWS:
        temperature = fitted(logits, truth)
        if temperature is not None:
            card[CARD] = {"rows": len(rows), **improvement(logits, logits / temperature, truth)}
    if len(rows):
        sure = probabilities(logits, temperature or 1.0).max(axis=1) >= 0.9
        card[SURE_CARD] = {"rows": int(sure.sum()), "agree" if taught else "right": int(right[sure].sum())}
    # Fit the margin of the cascade, if the model has both parts.
    if parts.beside is not None:
        cascade = fitted_cascade(logits, parts.beside, truth, AGREEMENT)
        figures = compare(logits, parts.beside, truth, cascade, temperature or 1.0)
        card[cascades.CARD] = figures_on_card(figures, len(rows), taught)
    # Measure the accuracy on the test rows.
    if prepared.tested is not None:
        right = parts.logits_of(prepared.tested).argmax(axis=1) == prepared.tested.labels
        card["test"] = prepared.tested.about() | _measured("accuracy", right)
    return parts.model(card, temperature=temperature or 1.0, cascade=cascade), against


def _measured(name: str, right: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the share of rows that are right, and its 95 % confidence interval, for a card. right: bool [N]."""
    low, high = wilson(int(right.sum()), len(right))
    return {name: round(float(right.mean()), 6), f"{name} interval": [round(low, 6), round(high, 6)]}


def _multi_label_model(parts: Parts, card: dict[str, Any]) -> Model:
    """Make a model that returns several labels.

    Its thresholds have the best F1 on the rows that nothing was fitted to.
    """
    data = parts.prepared.data
    truth = data.labels[parts.rows]
    thresholds = (DEFAULT_THRESHOLD,) * len(data.classes)
    if len(parts.rows):
        scores_of_rows = _sigmoids(parts.logits)
        thresholds = best_thresholds(scores_of_rows, truth)
        figures = _f1(data.classes, scores_of_rows, truth, thresholds)
        card |= {f"held_out_{name}": value for name, value in figures.items()}
    if (tested := parts.prepared.tested) is not None:
        figures = _f1(data.classes, _sigmoids(parts.logits_of(tested)), tested.labels, thresholds)
        card["test"] = tested.about() | figures
    cascade = None
    if parts.beside is not None:
        cascade = fitted_cascade(parts.logits, parts.beside, None, AGREEMENT, thresholds)
        of_rows = {"share": round(cascade.share, 6), "agreement": round(cascade.agreement, 6)}
        card[cascades.CARD] = {"rows": len(parts.rows), **of_rows}
    return parts.model(card, thresholds=thresholds, cascade=cascade)


def _number_model(parts: Parts, card: dict[str, Any], levels: Levels) -> Model:
    """Make a model of numbers.

    Its spread is that of the true numbers around its numbers, on the rows that nothing was fitted to.
    """
    data, branch, rows = parts.prepared.data, parts.branch, parts.rows
    assert branch is not None
    assert data.numbers is not None
    count, true = len(data.classes), data.numbers[rows]
    given, plain_ = (levels.numbers(steps_of[:, 0], count) for steps_of in (branch.logits, branch.plain))
    figures = NumberFigures.of(given, true)
    always = NumberFigures.of(np.full(len(rows), np.median(data.numbers[parts.prepared.fit])), true)
    card["held_out"] = figures.about() | ({"against": "the teacher"} if data.are_taught(rows) else {})
    card["compared with"] = {"linear model on words": NumberFigures.of(plain_, true).about(), "median": always.about()}
    if (tested := parts.prepared.tested) is not None:
        assert tested.numbers is not None
        steps = parts.logits_of(tested)[:, 0] + 0.5  # the logit of the lowest level is the number minus 0.5, in steps
        card["test"] = tested.about() | NumberFigures.of(levels.numbers(steps, count), tested.numbers).about()
    spread = max(figures.root_mean_square_error / levels.step, _LEAST_SPREAD)
    return parts.model(card, levels=msgspec.structs.replace(levels, spread=spread))


class Parts:
    """The network and the branch of a run, each with its factor. One of them may be missing.

    The stages: the constructor computes the logits of both parts, and fits their factors; `card` describes the run;
    `sharpen` divides the logits by temperatures; `logits_of` predicts test rows; `model` makes the model.

    Parameters
    ----------
    outcome : Outcome
        The outcome of the run.
    job : TrainingJob
        The settings of the run.
    prepared : TrainingData
        The rows.
    dtype : str
        The type of the tensors in the model, such as "float16".
    branch : Branch or None
        The n-grams, or the encoder with a head, if they were fitted.
    keep_network : bool
        Whether to keep the network even if the rows are not clearly likelier with it.

    Attributes
    ----------
    branch : Branch or None
        The branch, scaled by its factor.
    rows : int64 [N]
        The numbers of the rows that nothing was fitted to.
    logits : float64 [N, classes]
        The sum of both parts' logits for these rows.
    beside : float32 [N, classes], or None
        The n-grams' logits for these rows, without the bias. None if a part is missing, if there are too few rows to
        fit the margin of a cascade, or if there are heads.

    """

    def __init__(
        self,
        outcome: Outcome,
        job: TrainingJob,
        prepared: TrainingData,
        dtype: str,
        branch: Branch | None,
        keep_network: bool,
    ) -> None:
        # Compute the network's logits of the rows that nothing was fitted to, with the rounded weights.
        self.job, self.prepared, self.branch, self._on = job, prepared, branch, outcome.on
        self._recipe = job.recipe.to_dict() if outcome.is_trained else None
        self._network = _network(job) if outcome.is_trained else None
        self.rows = prepared.held if outcome.is_trained or branch is None else branch.rows
        data, weights = prepared.data, dict(outcome.weights)
        self.logits = np.zeros((len(self.rows), len(data.classes)))
        if self._network is not None and len(self.rows):
            self._network.load_tensors({name: tensor.astype(dtype) for name, tensor in weights.items()})
            self.logits = _logits(self._network, data, self.rows)
        # Fit the factors of both parts, and scale the parts by them. A network with the factor 0 is left out.
        self._factors: tuple[Any, Any] = (1.0, 0.0)  # with heads, two arrays [classes]
        self.beside = None
        if branch is not None:
            ours = branch.logits if len(self.rows) else self.logits
            of_network: Any = 0.0
            of_branch: Any = 1.0
            if outcome.is_trained:
                of_network, of_branch = _factors_of(data, self.rows, self.logits, ours, keep_network)
            if not np.any(of_network):
                weights = dict(without_network(job).weights)
            else:
                weights["fc3.weight"] = (of_network * weights["fc3.weight"].T).T
            weights[BIAS] = (of_network * weights[BIAS] + of_branch * branch.bias).astype(np.float32)
            self.branch = _scaled(branch, of_branch) if outcome.is_trained else branch
            self.logits = of_network * self.logits + of_branch * ours
            self._factors = of_network, of_branch
            if np.any(of_network) and len(self.rows) >= LEAST_ROWS and data.heads is None:
                self.beside = (of_branch * (ours - branch.bias)).astype(np.float32)
        # Choose the rows on which the scales for int8 are found.
        self._tensors = {name: tensor.astype(dtype) for name, tensor in weights.items()}
        self._has_network = len(weights) > 1
        count = SCALE_ROWS if self._has_network else 0
        self._sample = np.random.default_rng(0).permutation(prepared.fit)[:count]

    def card(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the card, which says how the model was trained. about: its first entries."""
        held = len(self.prepared.held)
        crossed = {} if held or not len(self.rows) else {"cross_validated_rows": len(self.rows)}
        card = {
            **about,
            "data": self.prepared.data.about() | {"held_out_rows": held} | crossed,
            "frame": self.job.frame,
            "recipe": self._recipe,
            "seed": self.job.seed,
            **({"scales found on": {"rows": len(self._sample)}} if self._has_network else {}),
            "trained_on": self._on,
            "versions": {
                "broadsheet": version("broadsheet"),
                **({"torch": version("torch")} if self._network is not None else {}),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }
        if self.branch is not None:
            of_network, of_branch = (np.round(factor, 4).tolist() for factor in self._factors)
            if self.branch.encoder is None:
                card["ngrams"] = self.branch.about() | {"factor": of_branch, "network's factor": of_network}
            else:
                card["head"] = self.branch.about()
        return card

    def sharpen(self, factor: Doubles) -> None:
        """Multiply the logits by the factor of each class, [classes]."""
        last = {name: tensor for name, tensor in self._tensors.items() if name.startswith("fc3.")}
        self._tensors |= {name: (factor * tensor.T).T.astype(tensor.dtype) for name, tensor in last.items()}
        self.branch = self.branch and _scaled(self.branch, factor)

    def logits_of(self, data: LabelledArticles) -> NDArray[np.float64]:
        """Compute the logits of other articles, [N, classes]."""
        logits = np.tile(self._tensors[BIAS].astype(np.float64), (len(data), 1))
        if self._has_network and self._network is not None:
            self._network.load_tensors(self._tensors)
            logits = _logits(self._network, data, np.arange(len(data)))
        return logits if self.branch is None else logits + self.branch.logits_of(data.text)

    def model(
        self,
        card: dict[str, Any],
        temperature: float = 1.0,
        thresholds: tuple[float, ...] | None = None,
        cascade: Cascade | None = None,
        levels: Levels | None = None,
    ) -> Model:
        """Make the model, with its scales for int8, and with the hashes of the texts that it has learned.

        Parameters
        ----------
        card : dict
            The model's card.
        temperature : float
            The temperature of the scores.
        thresholds : tuple of float, optional
            The threshold of each class, if a text may have several labels.
        cascade : Cascade, optional
            The rule that chooses the texts that the network reads.
        levels : Levels, optional
            The levels of a model of numbers.

        """
        data, branch = self.prepared.data, self.branch
        encoder = None if branch is None else branch.encoder
        symbols, length = (self.prepared.symbols, self.job.length) if encoder is None else (ALPHABET, WHOLE)
        model = Model(
            symbols, data.classes, length, self._tensors, card, frame=self.job.frame, temperature=temperature,
            ngrams=None if branch is None else branch.ngrams, thresholds=thresholds, cascade=cascade, levels=levels,
            heads=data.heads, encoder=encoder,
        )  # fmt: skip
        rows = self.prepared.fit
        if branch is not None and branch.has_learned_held:
            rows = np.concatenate([rows, self.prepared.held])
        learned = LearnedRows.of(data.text.rows(rows).column, min(model.reads, MOST_READ))
        model = replace(model, learned=learned)
        return with_scales(model, data.ids[self._sample]) if self._has_network else model


def _scaled(branch: Branch, factor: Any) -> Branch:
    """Scale the n-grams of a branch. factor: a number for all classes, or one for each class, [classes]."""
    assert branch.ngrams is not None
    scale = branch.ngrams.scale * np.asarray(factor, np.float32)
    return branch._replace(ngrams=replace(branch.ngrams, scale=scale))


def _factors_of(
    data: LabelledArticles, rows: Labels, network: Doubles, branch: Doubles, always: bool
) -> tuple[Any, Any]:
    """Return the factors of the network and of the branch.

    With heads, each head has its own factors, repeated for each of its classes: two arrays [classes].

    Parameters
    ----------
    data : LabelledArticles
        The articles.
    rows : int64 [N]
        The numbers of the rows that nothing was fitted to.
    network, branch : float64 [N, classes]
        The logits of both parts.
    always : bool
        See `factors`.

    """
    if data.heads is None:
        return factors(network, branch, data.labels[rows], always)
    both = np.empty((2, len(data.classes)))
    for _, part, labels in data.columns:
        known = labels[rows] != NO_TRUTH
        pair = factors(network[known, part], branch[known, part], labels[rows][known], always)
        both[:, part] = np.reshape(pair, (2, 1))
    return both[0], both[1]


def _sigmoids(logits: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray(expit(logits), np.float32)


def _f1(
    classes: tuple[str, ...], given: NDArray[np.float32], truth: NDArray[np.bool_], thresholds: tuple[float, ...]
) -> dict[str, float | None]:
    counts = LabelCounts.of(classes, assigned(given, thresholds), truth)
    figures = {"micro_f1": counts.micro_f1, "macro_f1": counts.macro_f1}
    return {name: round(value, 6) if value == value else None for name, value in figures.items()}


def _network(job: TrainingJob) -> PackedCNN:
    """Return a network on the device that predicts. Its weights are loaded later."""
    import torch

    from .packed import PackedCNN

    device = torch.device("cuda" if torch.cuda.is_available() and job.device != "cpu" else "cpu")
    with torch.random.fork_rng(devices=[]):  # the initial weights are drawn without changing PyTorch's generator
        return PackedCNN(job.layers, job.frame).to(device)


def _logits(network: PackedCNN, data: LabelledArticles, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    import torch

    from .network import predict

    device = next(network.parameters()).device
    return np.asarray(predict(network, torch.from_numpy(data.ids[rows]).to(device)).double().cpu().numpy())


Doubles = NDArray[np.float64]

_BEFORE = 0.5  # the factors to which the fit is pulled: those of the average of two models
_HOLD = 4.0  # the pull weighs as much as this many rows
_MOST = 20.0  # the largest factor
_CLEAR_GAIN = 2.0  # the least gain in log likelihood for which the network is kept
_HALVES = 2  # parts of the rows, in each of which the gain is measured with factors fitted to the other part


def factors(network: Doubles, branch: Doubles, truth: NDArray[Any], always: bool = False) -> tuple[float, float]:
    """Return the factors of the network's and the branch's logits with which their sum fits the true classes best.

    The factors minimise the mean cross-entropy of N rows that neither part was fitted to. No factor is below 0. With
    few rows, the factors stay closer to one half.

    The network's factor is 0 if the rows are not clearly likelier with the network than with the branch alone. (The
    number of right rows would be a worse criterion: among 976 rows, a difference of five right rows was noise, while
    the difference in likelihood was not.)

    Parameters
    ----------
    network, branch : float64 [N, classes]
        The logits of both parts.
    truth : int64 [N], or bool [N, classes]
        Class indices, for a softmax; or which classes each row has, for sigmoids.
    always : bool
        Whether to keep the network even if the rows are not clearly likelier with it.

    """
    if len(truth) < _HALVES:
        return _BEFORE, _BEFORE
    rows = _BothLogits(network, branch, truth)
    both, alone = rows.fitted(_MOST), rows.fitted(0.0)
    has_network = always or _gain(network, branch, truth) > _CLEAR_GAIN
    return (float(both[0]), float(both[1])) if has_network else (0.0, float(alone[1]))


def _gain(network: Doubles, branch: Doubles, truth: NDArray[Any]) -> float:
    """Return how much larger the log likelihood of all rows is with the network than without it.

    The log likelihood of each half of the rows is that with factors fitted to the other half.
    """
    gain = 0.0
    for half in range(_HALVES):
        others = np.arange(len(truth)) % _HALVES == half
        fit, rest = (_BothLogits(network[rows], branch[rows], truth[rows]) for rows in (others, ~others))
        gain += (~others).sum() * (rest.loss(fit.fitted(0.0)) - rest.loss(fit.fitted(_MOST)))
    return float(gain)


class _BothLogits:
    """The logits of both parts for N rows, and what the rows are: the objective of the two factors.

    Parameters
    ----------
    network, branch, truth
        See `factors`.

    """

    def __init__(self, network: Doubles, branch: Doubles, truth: NDArray[Any]) -> None:
        self._parts = network, branch
        self._several = truth.ndim > 1
        self._target = (truth if self._several else np.eye(network.shape[1])[truth]).astype(np.float64)

    def _logits(self, both: Doubles) -> Doubles:
        return np.asarray(both[0] * self._parts[0] + both[1] * self._parts[1])

    def loss(self, both: Doubles) -> float:
        """Return the mean cross-entropy; for sigmoids, the sum over the classes."""
        logits = self._logits(both)
        normaliser = np.logaddexp(0, logits).sum(axis=1) if self._several else logsumexp(logits, axis=1)
        return float((normaliser - (self._target * logits).sum(axis=1)).mean())

    def fitted(self, largest: float) -> Doubles:
        """Return the two factors that fit best. largest: the largest factor of the network."""
        from scipy.optimize import minimize  # this import takes half a second; a network alone does not need it

        def pulled_loss(both: Any) -> tuple[float, Doubles]:
            """Return the loss plus the pull to the average of two models, and the derivative by the two factors."""
            logits, away = self._logits(both), np.asarray(both) - _BEFORE
            off = (expit(logits) if self._several else softmax(logits, axis=1)) - self._target
            slopes = np.array([(off * part).sum(axis=1).mean() for part in self._parts])
            weight = _HOLD / len(off)
            return self.loss(both) + weight * float(away @ away), slopes + 2 * weight * away

        start, bounds = [min(_BEFORE, largest), _BEFORE], [(0, largest), (0, _MOST)]
        return np.asarray(minimize(pulled_loss, start, jac=True, bounds=bounds).x)


Labels = NDArray[np.int64]
_CLEARLY = 1.0  # the least clear difference, in standard errors


@dataclass(frozen=True)
class Compared:
    """The accuracies of the model and of two simple models on the same held-out rows.

    Attributes
    ----------
    rows : int
        The number of rows.
    model : float
        The share of rows that the model labels right.
    most_frequent : float
        The share of rows that are right if every row gets the most frequent class.
    linear : float
        The share of rows that a plain linear model on words labels right.
    unclear : tuple of str
        The simple models than which the model is not clearly better.

    """

    rows: int
    model: float
    most_frequent: float
    linear: float
    unclear: tuple[str, ...]

    def about(self) -> dict[str, Any]:
        """Return the figures for a model's card."""
        others = {"most frequent class": self.most_frequent, "linear model on words": self.linear}
        return {"rows": self.rows, **{name: round(share, 6) for name, share in others.items()}}

    def lines(self) -> list[str]:
        """Return messages for the user: the figures, and a warning if the model is not clearly better."""
        frequent = f"on the same {self.rows:,} rows: always the most frequent class {self.most_frequent:.2%}"
        lines = [f"{frequent}, a plain linear model on words {self.linear:.2%}"]
        if self.unclear:
            others = " or ".join(self.unclear)
            lines.append(f"warning: the model ({self.model:.2%}) is not clearly better than {others}")
        return lines


def plain(data: LabelledArticles, fit: Labels, held: Labels) -> NDArray[np.float64]:
    """Return the logits of the rows `held` by a plain linear model on words, which is fitted to the rows `fit`."""
    rows = np.concatenate([fit, held])
    ours = np.arange(len(fit), len(rows))
    answers = Answers.of(data.labels[rows], len(data.classes), heads=data.heads)
    return plain_on_words(data.text.rows(rows), answers, [ours])[ours]


def compared(right: NDArray[np.bool_], linear: NDArray[np.float64], truth: Labels, labels: Labels) -> Compared:
    """Compare a model with two simple models on N held-out rows.

    Parameters
    ----------
    right : bool [N]
        Which rows the model labels right.
    linear : float64 [N, classes]
        The logits of a plain linear model.
    truth : int64 [N]
        The labels of the rows.
    labels : int64 [M]
        The labels of the training rows.

    """
    most_frequent = np.bincount(labels).argmax() == truth
    words = linear.argmax(axis=1) == truth
    unclear = [
        f"{name} ({other.mean():.2%})"
        for name, other in (
            ("always giving the most frequent class", most_frequent),
            ("a linear model on words", words),
        )
        if not _is_clear(right, other)
    ]
    return Compared(len(truth), float(right.mean()), float(most_frequent.mean()), float(words.mean()), tuple(unclear))


def _is_clear(right: NDArray[np.bool_], other: NDArray[np.bool_]) -> bool:
    """Return whether a model is clearly better than another.

    McNemar's test decides (1947). It only counts the rows that one of the two models labels right and the other wrong.
    If the models are equally good, the difference of the two counts has a standard error of the root of their sum.
    """
    ours, its = int((right & ~other).sum()), int((other & ~right).sum())
    return bool(ours - its > _CLEARLY * np.sqrt(ours + its))
