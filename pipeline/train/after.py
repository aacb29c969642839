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

from pipeline.f1 import LabelCounts
from pipeline.model.calibration import CALIBRATION_ROWS, calibrated
from pipeline.model.charcnn import Model
from pipeline.model.label_sets import DEFAULT_THRESHOLD, assigned, best_thresholds
from pipeline.model.ngrams import scores
from pipeline.model.temperature import CARD, LEAST_ROWS, fitted
from pipeline.reliability import improvement
from pipeline.train.baseline import Compared, compared, plain
from pipeline.train.branch import Branch
from pipeline.train.data import Labelled
from pipeline.train.fusion import factors
from pipeline.train.job import Job, Outcome
from pipeline.train.network import predict
from pipeline.train.packed import PackedCNN
from pipeline.train.prepare import Prepared


def model_of(
    outcome: Outcome, job: Job, prepared: Prepared, dtype: str, about: Mapping[str, Any], branch: Branch | None
) -> tuple[Model, Compared | None]:
    """The finished model: the weights rounded to `dtype`, a card, the scales for int8, and a temperature.

    Its accuracy and temperature come from rows that nothing was fitted to: the held-out ones, or if there are none and
    the network was not trained, those that the branch held out in turn. With it comes what that accuracy compares with.
    """
    device = torch.device("cuda" if torch.cuda.is_available() and job.device != "cpu" else "cpu")
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and then replaced
        network = PackedCNN(job.layers, job.frame).to(device)
    data, weights, has_network = prepared.data, dict(outcome.weights), outcome.is_trained
    rows = prepared.held if has_network or branch is None else branch.rows
    truth = data.labels[rows]
    logits = np.zeros((len(rows), len(data.classes)))
    if has_network:
        network.load_tensors({name: tensor.astype(dtype) for name, tensor in weights.items()})
        logits = _logits(network, data, rows) if len(rows) else logits
    if branch is not None:
        ours = branch.logits if len(rows) else logits
        factor, its = factors(logits, ours, truth) if has_network else (0.0, 1.0)
        weights["fc3.weight"] = factor * weights["fc3.weight"]
        weights["fc3.bias"] = (factor * weights["fc3.bias"] + its * branch.bias).astype(np.float32)
        branch = branch._replace(ngrams=replace(branch.ngrams, scale=branch.ngrams.scale * np.float32(its)))
        logits = factor * logits + its * ours
    tensors = {name: tensor.astype(dtype) for name, tensor in weights.items()}
    # A network of zeros has the same activations for every text.
    sample = np.random.default_rng(0).permutation(prepared.fit)[: CALIBRATION_ROWS if has_network else 1]
    card = _card(outcome, job, prepared, about) | {
        "data": data.about() | {"held_out_rows": len(rows)},
        "calibrated on": {"rows": len(sample)},
        "recipe": job.recipe.to_dict() if has_network else None,
    }
    if branch is not None:
        card["ngrams"] = branch.about() | {"factor": round(its, 4), "network's factor": round(factor, 4)}
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
        tested = prepared.tested
        network.load_tensors(tensors)
        found = _logits(network, tested, np.arange(len(tested)))
        if branch is not None:
            found = found + scores(*tested.text, branch.ngrams)
        right = _right(job, found, tested.labels)
        card["test"] = tested.about() | {"accuracy": round(float(right.mean()), 6)}
    ngrams = None if branch is None else branch.ngrams
    model = Model(prepared.symbols, data.classes, job.length, tensors, card, frame=job.frame, ngrams=ngrams)
    model = replace(model, temperature=temperature or 1.0)
    return calibrated(model, data.ids[sample]), against


def multi_label_model_of(outcome: Outcome, job: Job, prepared: Prepared, dtype: str, about: Mapping[str, Any]) -> Model:
    """The same of a model that gives several labels, with thresholds that have the best F1 on the held-out rows."""
    tensors = {name: tensor.astype(dtype) for name, tensor in outcome.weights.items()}
    device = torch.device("cuda" if torch.cuda.is_available() and job.device != "cpu" else "cpu")
    with torch.random.fork_rng(devices=[]):
        network = PackedCNN(job.layers, job.frame).to(device)
    network.load_tensors(tensors)
    data, held = prepared.data, prepared.held
    card = _card(outcome, job, prepared, about)
    thresholds = (DEFAULT_THRESHOLD,) * len(data.classes)
    if len(held):
        thresholds = best_thresholds(_sigmoids(network, data, held), data.labels[held])
        figures = _f1(network, data, held, thresholds)
        card |= {f"held_out_{name}": value for name, value in figures.items()}
    if prepared.tested is not None:
        rows = np.arange(len(prepared.tested))
        card["test"] = prepared.tested.about() | _f1(network, prepared.tested, rows, thresholds)
    model = Model(prepared.symbols, data.classes, job.length, tensors, card, frame=job.frame, thresholds=thresholds)
    sample = np.random.default_rng(0).permutation(prepared.fit)[:CALIBRATION_ROWS]
    return calibrated(model, data.ids[sample])


def _card(outcome: Outcome, job: Job, prepared: Prepared, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **about,
        "data": prepared.data.about() | {"held_out_rows": len(prepared.held)},
        "frame": job.frame,
        "recipe": job.recipe.to_dict(),
        "seed": job.seed,
        "calibrated on": {"rows": min(len(prepared.fit), CALIBRATION_ROWS)},
        "trained_on": outcome.on,
        "versions": {
            "broadsheet": version("broadsheet"),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _sigmoids(network: PackedCNN, data: Labelled, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.asarray(1 / (1 + np.exp(-_logits(network, data, rows))), np.float32)


def _f1(
    network: PackedCNN, data: Labelled, rows: NDArray[np.int64], thresholds: tuple[float, ...]
) -> dict[str, float | None]:
    counts = LabelCounts.of(data.classes, assigned(_sigmoids(network, data, rows), thresholds), data.labels[rows])
    found = {"micro_f1": counts.micro_f1, "macro_f1": counts.macro_f1}
    return {name: round(value, 6) if value == value else None for name, value in found.items()}


def _right(job: Job, logits: NDArray[np.float64], truth: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.asarray(job.objective.right(torch.from_numpy(logits), torch.from_numpy(truth)).numpy())


def _logits(network: PackedCNN, data: Labelled, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    device = next(network.parameters()).device
    return np.asarray(predict(network, torch.from_numpy(data.ids[rows]).to(device)).double().cpu().numpy())
