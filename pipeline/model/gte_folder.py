"""Folders of `gte`, as transformers saves it, and as its authors publish it: settings and weights by our names.

The authors' repositories, of the kind "new", hold code of their own (Alibaba-NLP/new-impl), which is not run here; the
names of their weights are those that transformers writes for its own `gte`. Zhang et al., "mGTE" (2024).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .encoder import Rotary
from .encoder_keys import ROPE, Json, NotInKernels, check_keys, refused

Tensor = NDArray[Any]

_BASE, _PLACES = 160_000.0, 8192
_BASE_OF_AUTHORS, _PLACES_OF_AUTHORS = 10_000.0, 2048
"""Of rotary embeddings, and tokens of a text, where config.json does not say."""

_KIND_OF_TOKEN = "embeddings.token_type_embeddings.weight"


def is_of_authors(config: Json) -> bool:
    """Whether a folder is one that the authors' program saved, of which the kind alone says little.

    Parameters
    ----------
    config : dict
        The content of config.json.

    """
    architectures = [str(one) for one in config.get("architectures") or ()]
    return config.get("model_type") == "new" and all(one.startswith("New") for one in architectures)


def rotary_of(config: Json, name: str) -> Rotary:
    """The rotary embedding of every layer. Raises ModelError where config.json says what is not known.

    Parameters
    ----------
    config : dict
        The content of config.json.
    name : str
        What the folder is called in messages.

    """
    if config["model_type"] == "gte":
        about = config.get("rope_parameters") or {}
        if about.get("rope_type", "default") != "default":
            raise NotInKernels(name, f"its rope_type is {about['rope_type']!r:.40}", "'default' is")
        check_keys(about, ROPE, "rope_parameters", name)
        base, stretch = float(about.get("rope_theta") or config.get("rope_theta") or _BASE), 1.0
    else:
        base, stretch = _scaled(config, name)
    if not base > 1:
        raise refused(name, f"its rope_theta is {base:g}", "those above 1 are")
    return Rotary(base, stretch=stretch)


def _scaled(config: Json, name: str) -> tuple[float, float]:
    """The base, and what the angles are divided by, as the authors' NTKScalingRotaryEmbedding has them."""
    base = float(config.get("rope_theta", _BASE_OF_AUTHORS))
    about = config.get("rope_scaling")
    if about is None:
        return base, 1.0
    kind, factor = about.get("type"), float(about.get("factor", 0))
    if kind != "ntk" or about.get("mixed_b") is not None or not factor > 1 or {*about} - {"type", "factor", "mixed_b"}:
        raise refused(name, f"its rope_scaling is {about!r:.80}", "none, and 'ntk' with a factor above 1, are")
    size = config.get("hidden_size", 768) // config.get("num_attention_heads", 12)
    return base * factor, float(factor ** (2 / size))


def places_of(config: Json) -> int:
    """Tokens of a text that it was made for. config: the content of config.json."""
    return int(config.get("max_position_embeddings", _PLACES if config["model_type"] == "gte" else _PLACES_OF_AUTHORS))


def weights_of(stored: Any, config: Json, layers: int) -> dict[str, Tensor]:
    """The weights by our names, and in the shapes that vectors are multiplied with.

    Parameters
    ----------
    stored : mapping of str to ndarray
        The tensors of the folder, by their names without a prefix.
    config : dict
        The content of config.json.
    layers : int
        How many layers.

    """
    weights: dict[str, Tensor] = {"embedding": stored["embeddings.word_embeddings.weight"]}
    if config.get("type_vocab_size", 1):  # one text is of the first kind, wherever the token is
        weights["embedding"] = weights["embedding"].astype(np.float32) + stored[_KIND_OF_TOKEN][0]

    def take(name: str, theirs: str) -> None:
        weight, bias = stored[f"{theirs}.weight"], stored[f"{theirs}.bias"]
        if weight.ndim == 1:  # of a norm
            weights.update({f"{name}.weight": weight, f"{name}.bias": bias})
        else:
            weights.update({name: np.ascontiguousarray(weight.T), f"{name}.bias": bias})

    take("norm", "embeddings.LayerNorm")
    for layer in range(layers):
        theirs = f"encoder.layer.{layer}"
        take(f"{layer}.queries", f"{theirs}.attention.qkv_proj")
        take(f"{layer}.mix", f"{theirs}.attention.o_proj")
        take(f"{layer}.norm1", f"{theirs}.attn_ln")
        up, gate = np.split(stored[f"{theirs}.mlp.up_gate_proj.weight"], 2)
        weights[f"{layer}.inner"] = np.ascontiguousarray(np.concatenate([gate, up]).T)
        weights[f"{layer}.inner.bias"] = np.zeros(2 * len(gate), np.float32)
        take(f"{layer}.outer", f"{theirs}.mlp.down_proj")
        take(f"{layer}.norm2", f"{theirs}.mlp_ln")
    return weights
