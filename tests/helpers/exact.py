"""The network in float64 or another type, from PyTorch's own operators: an independent check of every backend."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import NORM_EPSILON

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def blocks(
    model: Model, ids: NDArray[np.uint8], device: str = "cpu", dtype: torch.dtype = torch.float64
) -> dict[str, NDArray[np.floating]]:
    """Return the output of each block by layer name, for ids [N, length].

    Convolutions give channels-last arrays [N, rows, channels], and the other layers [N, outputs].
    """
    tensors = {n: torch.tensor(np.asarray(t, np.float64), device=device, dtype=dtype) for n, t in model.tensors.items()}
    found = torch.tensor(ids.astype(np.int64), device=device)
    x = torch.zeros((*ids.shape, 256), dtype=dtype, device=device)
    x.scatter_(2, found[:, :, None], 1)
    x = x[:, :, : len(model.alphabet)].transpose(1, 2)
    out = {}
    for layer in model.layers:
        weight, bias = tensors[f"{layer.name}.weight"], tensors[f"{layer.name}.bias"]
        x = (
            functional.conv1d(x, weight, bias)
            if layer.kind == "conv1d"
            else functional.linear(x.flatten(1), weight, bias)
        )
        if layer.norm:
            gamma, beta = tensors[f"{layer.norm}.weight"], tensors[f"{layer.norm}.bias"]
            x = functional.layer_norm(x, x.shape[1:], gamma, beta, NORM_EPSILON)
        x = x.relu() if layer.relu else x
        if layer.is_lookup and model.frame == "text":
            position = torch.arange(1, ids.shape[1] + 1, device=device)
            end = torch.where(found == model.alphabet.padding, 0, position).amax(dim=1)
            x = x * (position[: x.shape[2]] <= end[:, None])[:, None]
        x = functional.max_pool1d(x, layer.pool) if layer.pool > 1 else x
        out[layer.name] = (x.transpose(1, 2) if x.ndim == 3 else x).cpu().numpy()
    return out


def logits(
    model: Model, ids: NDArray[np.uint8], device: str = "cpu", dtype: torch.dtype = torch.float64, batch: int = 64
) -> NDArray[np.floating]:
    """Return the logits, [N, classes]."""
    return np.concatenate([blocks(model, ids[i : i + batch], device, dtype)["fc3"] for i in range(0, len(ids), batch)])
