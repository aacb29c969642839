"""Reads the settings and weights of `gte`, from folders that transformers saves and from those of its authors.

The authors' repositories, of the kind "new", bring code of their own (Alibaba-NLP/new-impl), which we do not run. They
name their weights as transformers does for its own `gte`. Zhang et al., "mGTE" (2024).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .encoder import Rotary
from .encoder_keys import ROPE, Json, NotInKernels, check_keys, refused
from .folder_weights import add_layer

Tensor = NDArray[Any]

_BASE, _PLACES = 160_000.0, 8192
_BASE_OF_AUTHORS, _PLACES_OF_AUTHORS = 10_000.0, 2048
"""The base of rotary embeddings and the number of tokens in a text, if config.json does not say them."""

_KIND_OF_TOKEN = "embeddings.token_type_embeddings.weight"


def is_of_authors(config: Json) -> bool:
    """Return whether the authors' program saved a folder. The kind alone does not say so: "new" may be anybody's.

    Parameters
    ----------
    config : dict
        The content of config.json.

    """
    architectures = [str(one) for one in config.get("architectures") or ()]
    return config.get("model_type") == "new" and all(one.startswith("New") for one in architectures)


def rotary_of(config: Json, name: str) -> Rotary:
    """Return the rotary embedding of all layers. Raises ModelError for a setting that is unknown here.

    Parameters
    ----------
    config : dict
        The content of config.json.
    name : str
        The name of the folder in messages.

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
    """Return the base and the divisor of all angles, by the formula of the authors' NTKScalingRotaryEmbedding."""
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
    """Return the largest number of tokens of a text, for which the model was made.

    config: the content of config.json.
    """
    return int(config.get("max_position_embeddings", _PLACES if config["model_type"] == "gte" else _PLACES_OF_AUTHORS))


def weights_of(stored: Any, config: Json, layers: int) -> dict[str, Tensor]:
    """Return the weights by our names, in the shapes of our products.

    Parameters
    ----------
    stored : mapping of str to ndarray
        The tensors of the folder, by their names without the prefix.
    config : dict
        The content of config.json.
    layers : int
        The number of layers.

    """
    weights: dict[str, Tensor] = {"embedding": stored["embeddings.word_embeddings.weight"]}
    if config.get("type_vocab_size", 1):  # all tokens of a single text are of the first kind
        weights["embedding"] = weights["embedding"].astype(np.float32) + stored[_KIND_OF_TOKEN][0]

    def add(name: str, theirs: str) -> None:
        add_layer(weights, name, stored[f"{theirs}.weight"], stored[f"{theirs}.bias"])

    add("norm", "embeddings.LayerNorm")
    for layer in range(layers):
        theirs = f"encoder.layer.{layer}"
        add(f"{layer}.queries", f"{theirs}.attention.qkv_proj")
        add(f"{layer}.mix", f"{theirs}.attention.o_proj")
        add(f"{layer}.norm1", f"{theirs}.attn_ln")
        up, gate = np.split(stored[f"{theirs}.mlp.up_gate_proj.weight"], 2)
        add_layer(weights, f"{layer}.inner", np.concatenate([gate, up]), np.zeros(2 * len(gate), np.float32))
        add(f"{layer}.outer", f"{theirs}.mlp.down_proj")
        add(f"{layer}.norm2", f"{theirs}.mlp_ln")
    return weights
