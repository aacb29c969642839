"""The last stage of `train`: from trained weights to a model with its card, accuracies, scales and temperature."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.model.calibration import CALIBRATION_ROWS, calibrated
from pipeline.model.charcnn import Model
from pipeline.model.temperature import CARD, LEAST_ROWS, fitted
from pipeline.reliability import improvement
from pipeline.train.data import Labelled
from pipeline.train.job import Job, Outcome
from pipeline.train.network import predict
from pipeline.train.packed import PackedCNN
from pipeline.train.prepare import Prepared


def model_of(outcome: Outcome, job: Job, prepared: Prepared, dtype: str, about: Mapping[str, Any]) -> Model:
    """The finished model: the weights rounded to `dtype`, a card, the scales for int8, and a temperature."""
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
    temperature = None
    if len(held):
        card["held_out_accuracy"] = _accuracy(final, job, data, held)
    if len(held) >= LEAST_ROWS:
        logits, truth = _logits(final, data, held).double().cpu().numpy(), data.labels[held]
        temperature = fitted(logits, truth)
        if temperature is not None:
            card[CARD] = {"rows": len(held), **improvement(logits, truth, temperature)}
    if prepared.tested is not None:
        rows = np.arange(len(prepared.tested))
        card["test"] = prepared.tested.about() | {"accuracy": _accuracy(final, job, prepared.tested, rows)}
    sample = np.random.default_rng(0).permutation(prepared.fit)[:CALIBRATION_ROWS]
    model = Model(prepared.symbols, data.classes, job.length, tensors, card, frame=job.frame)
    model = replace(model, temperature=temperature or 1.0)
    return calibrated(model, data.ids[sample])


def _accuracy(network: PackedCNN, job: Job, data: Labelled, rows: NDArray[np.int64]) -> float:
    logits = _logits(network, data, rows)
    right = job.objective.right(logits, torch.from_numpy(data.labels[rows]).to(logits.device))
    return round(float(right.double().mean()), 6)


def _logits(network: PackedCNN, data: Labelled, rows: NDArray[np.int64]) -> torch.Tensor:
    device = next(network.parameters()).device
    return predict(network, torch.from_numpy(data.ids[rows]).to(device))
