"""The last stage of `train`: from weights to a model with its card, accuracies, scales, temperature or thresholds."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from ..measures.f1 import LabelCounts
from ..measures.reliability import improvement
from ..model.charcnn import Model
from ..model.ngrams import scores
from ..model.quantised import SCALE_ROWS, with_scales
from ..model.scores import CARD, DEFAULT_THRESHOLD, LEAST_ROWS, assigned, best_thresholds, fitted
from .baseline import Compared, compared, plain
from .branch import Branch
from .data import Labelled
from .fusion import factors
from .job import Job, Outcome, without_network
from .network import predict
from .packed import PackedCNN
from .prepare import Prepared


def model_of(
    outcome: Outcome, job: Job, prepared: Prepared, dtype: str, about: Mapping[str, Any], branch: Branch | None
) -> tuple[Model, Compared | None]:
    """The finished model: the weights rounded to `dtype`, a card, the scales for int8, and a temperature.

    Its accuracy and temperature come from rows that nothing was fitted to: the held-out ones, or if there are none and
    the network was not trained, those that the branch held out in turn. With it comes what that accuracy compares with.
    """
    data, parts = prepared.data, _Parts(outcome, job, prepared, dtype, branch)
    rows, logits = parts.rows, parts.logits
    card, truth = parts.card(job, about), data.labels[rows]
    temperature, against = None, None
    if len(rows):
        right = _right(job, logits, truth)
        card["held_out_accuracy"] = round(float(right.mean()), 6)
        linear = plain(data, prepared.fit, rows) if branch is None else branch.plain
        against = compared(right, linear, truth, data.labels[prepared.fit])
        card["compared with"] = against.about()
    if len(rows) >= LEAST_ROWS:
        temperature = fitted(logits, truth)
        if temperature is not None:
            card[CARD] = {"rows": len(rows), **improvement(logits, truth, temperature)}
    if prepared.tested is not None:
        right = _right(job, parts.logits_of(prepared.tested), prepared.tested.labels)
        card["test"] = prepared.tested.about() | {"accuracy": round(float(right.mean()), 6)}
    return parts.model(job, card, temperature=temperature or 1.0), against


def multi_label_model_of(
    outcome: Outcome, job: Job, prepared: Prepared, dtype: str, about: Mapping[str, Any], branch: Branch | None
) -> Model:
    """The same of a model that gives several labels, with thresholds that have the best F1 on those rows."""
    data, parts = prepared.data, _Parts(outcome, job, prepared, dtype, branch)
    card, truth = parts.card(job, about), data.labels[parts.rows]
    thresholds = (DEFAULT_THRESHOLD,) * len(data.classes)
    if len(parts.rows):
        scores_of_rows = _sigmoids(parts.logits)
        thresholds = best_thresholds(scores_of_rows, truth)
        figures = _f1(data.classes, scores_of_rows, truth, thresholds)
        card |= {f"held_out_{name}": value for name, value in figures.items()}
    if (tested := prepared.tested) is not None:
        figures = _f1(data.classes, _sigmoids(parts.logits_of(tested)), tested.labels, thresholds)
        card["test"] = tested.about() | figures
    return parts.model(job, card, thresholds=thresholds)


class _Parts:
    """The network and the branch of a run, each with its factor; one may be missing.

    rows: which nothing was fitted to. logits: of these rows, [N, classes], the sum.
    """

    def __init__(self, outcome: Outcome, job: Job, prepared: Prepared, dtype: str, branch: Branch | None) -> None:
        self._outcome, self._prepared, self._branch, self._dtype = outcome, prepared, branch, dtype
        device = torch.device("cuda" if torch.cuda.is_available() and job.device != "cpu" else "cpu")
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and then replaced
            self._network = PackedCNN(job.layers, job.frame).to(device)
        self.rows = prepared.held if outcome.is_trained or branch is None else branch.rows
        data, weights = prepared.data, dict(outcome.weights)
        self.logits = np.zeros((len(self.rows), len(data.classes)))
        if outcome.is_trained and len(self.rows):
            self._network.load_tensors({name: tensor.astype(dtype) for name, tensor in weights.items()})
            self.logits = _logits(self._network, data, self.rows)
        self._factors = 1.0, 0.0
        if branch is not None:
            ours = branch.logits if len(self.rows) else self.logits
            factor, its = factors(self.logits, ours, data.labels[self.rows]) if outcome.is_trained else (0.0, 1.0)
            if not factor:
                weights = without_network(job).weights
            weights["fc3.weight"] = factor * weights["fc3.weight"]
            weights["fc3.bias"] = (factor * weights["fc3.bias"] + its * branch.bias).astype(np.float32)
            self._branch = branch._replace(ngrams=replace(branch.ngrams, scale=branch.ngrams.scale * np.float32(its)))
            self.logits = factor * self.logits + its * ours
            self._factors = factor, its
        self._tensors = {name: tensor.astype(dtype) for name, tensor in weights.items()}
        # A network of zeros has the same activations for every text.
        count = SCALE_ROWS if weights["fc3.weight"].any() else 1
        self._sample = np.random.default_rng(0).permutation(prepared.fit)[:count]

    def card(self, job: Job, about: Mapping[str, Any]) -> dict[str, Any]:
        """What a model's card says of how it was trained."""
        card = {
            **about,
            "data": self._prepared.data.about() | {"held_out_rows": len(self.rows)},
            "frame": job.frame,
            "recipe": job.recipe.to_dict() if self._outcome.is_trained else None,
            "seed": job.seed,
            "calibrated on": {"rows": len(self._sample)},
            "trained_on": self._outcome.on,
            "versions": {
                "broadsheet": version("broadsheet"),
                "torch": str(torch.__version__),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }
        if self._branch is not None:
            network, its = self._factors
            card["ngrams"] = self._branch.about() | {"factor": round(its, 4), "network's factor": round(network, 4)}
        return card

    def logits_of(self, data: Labelled) -> NDArray[np.float64]:
        """The logits of other articles, [N, classes]."""
        self._network.load_tensors(self._tensors)
        found = _logits(self._network, data, np.arange(len(data)))
        return found if self._branch is None else found + scores(*data.text, self._branch.ngrams)

    def model(
        self, job: Job, card: dict[str, Any], temperature: float = 1.0, thresholds: tuple[float, ...] | None = None
    ) -> Model:
        """The model, with its scales for int8."""
        data = self._prepared.data
        model = Model(
            self._prepared.symbols, data.classes, job.length, self._tensors, card, frame=job.frame,
            temperature=temperature, ngrams=None if self._branch is None else self._branch.ngrams,
            thresholds=thresholds,
        )  # fmt: skip
        return with_scales(model, data.ids[self._sample])


def _sigmoids(logits: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray(expit(logits), np.float32)


def _f1(
    classes: tuple[str, ...], found: NDArray[np.float32], truth: NDArray[np.bool_], thresholds: tuple[float, ...]
) -> dict[str, float | None]:
    counts = LabelCounts.of(classes, assigned(found, thresholds), truth)
    figures = {"micro_f1": counts.micro_f1, "macro_f1": counts.macro_f1}
    return {name: round(value, 6) if value == value else None for name, value in figures.items()}


def _right(job: Job, logits: NDArray[np.float64], truth: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.asarray(job.objective.right(torch.from_numpy(logits), torch.from_numpy(truth)).numpy())


def _logits(network: PackedCNN, data: Labelled, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    device = next(network.parameters()).device
    return np.asarray(predict(network, torch.from_numpy(data.ids[rows]).to(device)).double().cpu().numpy())
