"""The last stage of `train`: from trained weights to a model with its card, held-out and test accuracy, and scales."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.model.calibration import CALIBRATION_ROWS, calibrated
from pipeline.model.charcnn import Model
from pipeline.train.data import Labelled
from pipeline.train.job import Job
from pipeline.train.network import CharCNN, predict
from pipeline.train.prepare import Prepared


def model_of(
    weights: Mapping[str, NDArray[np.float32]], job: Job, prepared: Prepared, dtype: str, about: Mapping[str, Any]
) -> Model:
    """The finished model: its weights rounded to `dtype`, its card, and the scales that int8 needs."""
    device, compute = job.device_and_dtype()
    tensors = {name: tensor.astype(dtype) for name, tensor in weights.items()}
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and then replaced
        final = CharCNN(job.layers, job.frame).to(device)
    final.load_tensors(tensors)
    data, held = prepared.data, prepared.held
    card = {
        **about,
        "data": data.about() | {"held_out_rows": len(held)},
        "frame": job.frame,
        "recipe": job.recipe.to_dict(),
        "seed": job.seed,
        "calibrated on": {"rows": min(len(prepared.fit), CALIBRATION_ROWS)},
        "trained_on": f"{_name(device)}, {'bf16' if compute == torch.bfloat16 else 'fp32'}",
        "versions": {
            "broadsheet": version("broadsheet"),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    if len(held):
        card["held_out_accuracy"] = _accuracy(final, job, data, held)
    if prepared.tested is not None:
        rows = np.arange(len(prepared.tested))
        card["test"] = prepared.tested.about() | {"accuracy": _accuracy(final, job, prepared.tested, rows)}
    sample = np.random.default_rng(0).permutation(prepared.fit)[:CALIBRATION_ROWS]
    model = Model(prepared.symbols, data.classes, prepared.length, tensors, card, frame=job.frame)
    return calibrated(model, data.ids[sample])


def _accuracy(network: CharCNN, job: Job, data: Labelled, rows: NDArray[np.int64]) -> float:
    device = next(network.parameters()).device
    logits = predict(network, torch.from_numpy(data.ids[rows]).to(device))
    right = job.objective.right(logits, torch.from_numpy(data.labels[rows]).to(device))
    return round(float(right.double().mean()), 6)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
