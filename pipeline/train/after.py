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
from pipeline.model.temperature import CARD, LEAST_ROWS, fitted
from pipeline.reliability import improvement
from pipeline.train.data import Labelled
from pipeline.train.job import Job, Outcome
from pipeline.train.network import predict
from pipeline.train.packed import PackedCNN
from pipeline.train.prepare import Prepared


def model_of(outcome: Outcome, job: Job, prepared: Prepared, dtype: str, about: Mapping[str, Any]) -> Model:
    """The finished model: weights rounded to `dtype`, card, the scales that int8 needs, a temperature or thresholds."""
    tensors = {name: tensor.astype(dtype) for name, tensor in outcome.weights.items()}
    device = torch.device("cuda" if torch.cuda.is_available() and job.device != "cpu" else "cpu")
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and then replaced
        final = PackedCNN(job.layers, job.frame).to(device)
    final.load_tensors(tensors)
    data, held = prepared.data, prepared.held
    card = {
        **about,
        "data": data.about() | {"held_out_rows": len(held)},
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
    temperature, thresholds = 1.0, None
    if data.is_multi_label:
        thresholds = _thresholds(final, data, held)
        if len(held):
            card |= {f"held_out_{name}": value for name, value in _f1(final, data, held, thresholds).items()}
    elif len(held):
        card["held_out_accuracy"] = _accuracy(final, job, data, held)
        temperature = _calibrate(final, data, held, card)
    if prepared.tested is not None:
        rows = np.arange(len(prepared.tested))
        if thresholds is None:
            figures: dict[str, float | None] = {"accuracy": _accuracy(final, job, prepared.tested, rows)}
        else:
            figures = _f1(final, prepared.tested, rows, thresholds)
        card["test"] = prepared.tested.about() | figures
    sample = np.random.default_rng(0).permutation(prepared.fit)[:CALIBRATION_ROWS]
    model = Model(prepared.symbols, data.classes, job.length, tensors, card, frame=job.frame)
    model = replace(model, temperature=temperature, thresholds=thresholds)
    return calibrated(model, data.ids[sample])


def _calibrate(network: PackedCNN, data: Labelled, held: NDArray[np.int64], card: dict[str, Any]) -> float:
    """The temperature that fits the held-out rows best, of which the card tells; 1 where they are too few to say."""
    if len(held) < LEAST_ROWS:
        return 1.0
    logits, truth = _logits(network, data, held).double().cpu().numpy(), data.labels[held]
    temperature = fitted(logits, truth)
    if temperature is None:
        return 1.0
    card[CARD] = {"rows": len(held), **improvement(logits, truth, temperature)}
    return temperature


def _thresholds(network: PackedCNN, data: Labelled, held: NDArray[np.int64]) -> tuple[float, ...]:
    """Of each class, that with the best F1 on the held-out rows."""
    if not len(held):
        return (DEFAULT_THRESHOLD,) * len(data.classes)
    return best_thresholds(torch.sigmoid(_logits(network, data, held)).cpu().numpy(), data.labels[held])


def _f1(
    network: PackedCNN, data: Labelled, rows: NDArray[np.int64], thresholds: tuple[float, ...]
) -> dict[str, float | None]:
    scores = torch.sigmoid(_logits(network, data, rows)).cpu().numpy()
    counts = LabelCounts.of(data.classes, assigned(scores, thresholds), data.labels[rows])
    found = {"micro_f1": counts.micro_f1, "macro_f1": counts.macro_f1}
    return {name: round(value, 6) if value == value else None for name, value in found.items()}


def _accuracy(network: PackedCNN, job: Job, data: Labelled, rows: NDArray[np.int64]) -> float:
    logits = _logits(network, data, rows)
    right = job.objective.right(logits, torch.from_numpy(data.labels[rows]).to(logits.device))
    return round(float(right.double().mean()), 6)


def _logits(network: PackedCNN, data: Labelled, rows: NDArray[np.int64]) -> torch.Tensor:
    device = next(network.parameters()).device
    return predict(network, torch.from_numpy(data.ids[rows]).to(device))
