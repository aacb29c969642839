"""Reads what is special in folders of DeBERTa-v2 and DeBERTa-v3: the settings of attention, and vectors of distances.

In each forward pass of each layer, transformers multiplies the vectors of distances with the weights of queries and
keys. The results depend on weights alone, so we compute them once, when we read a folder.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from .encoder import Distances
from .encoder_keys import Json, NotInKernels

Tensor = NDArray[Any]

_TERMS = {"c2p", "p2c"}
_HEAD_ACTIVATIONS = ("gelu", "relu", "tanh")
_LAYER_NORM = "layer_norm"


def distances_of(config: Json, name: str) -> Distances:
    """Return how attention counts distances. Raises NotInKernels for a kind of attention that our kernels lack.

    Parameters
    ----------
    config : dict
        The content of config.json.
    name : str
        The name of the folder in messages.

    """
    width, heads = config.get("hidden_size", 1536), config.get("num_attention_heads", 24)
    terms = config.get("pos_att_type") or []
    terms = [one.strip() for one in terms.lower().split("|")] if isinstance(terms, str) else terms
    for key, value, known in (
        ("relative_attention", config.get("relative_attention", False), True),
        ("position_biased_input", config.get("position_biased_input", True), False),
        ("conv_kernel_size", config.get("conv_kernel_size", 0), 0),
        ("embedding_size", config.get("embedding_size", width), width),
        ("attention_head_size", config.get("attention_head_size", width // heads), width // heads),
        ("pooler_hidden_size", config.get("pooler_hidden_size", width), width),
    ):
        if value != known:
            raise NotInKernels(name, f"its {key} is {value!r:.40}", f"{known!r} is")
    if {*terms} != _TERMS:
        raise NotInKernels(name, f"its pos_att_type is {terms!r:.40}", "'c2p' and 'p2c' together are")
    span, farthest = config.get("position_buckets", -1), config.get("max_relative_positions", -1)
    farthest = config.get("max_position_embeddings", 512) if farthest < 1 else farthest
    if span < 2 or farthest - 1 <= span // 2:
        what = f"it has {span} position_buckets up to a distance of {farthest}"
        raise NotInKernels(name, what, "2 or more, of fewer distances than there are, are")
    return Distances(span, farthest)


def head_of(config: Json, name: str) -> str:
    """Return the activation after the product of the pooler. Raises NotInKernels for one that our kernels lack.

    Parameters
    ----------
    config : dict
        The content of config.json.
    name : str
        The name of the folder in messages.

    """
    activation = str(config.get("pooler_hidden_act", "gelu"))
    if activation not in _HEAD_ACTIVATIONS:
        raise NotInKernels(name, f"its pooler_hidden_act is {activation!r:.40}", f"{', '.join(_HEAD_ACTIVATIONS)} are")
    return activation


def embedding_of(stored: Any, config: Json) -> Tensor:
    """Return the vectors of tokens. If the model has kinds of tokens, the vector of the first kind is added to each.

    Parameters
    ----------
    stored : mapping of str to ndarray
        The tensors of the folder, by their names without the prefix.
    config : dict
        The content of config.json.

    """
    words: Tensor = stored["embeddings.word_embeddings.weight"]
    if not config.get("type_vocab_size", 0):
        return words
    of_first: Tensor = words.astype(np.float32) + stored["embeddings.token_type_embeddings.weight"][0]
    return of_first


def projected(stored: Any, config: Json, distances: Distances, layers: int, name: str) -> dict[str, Tensor]:
    """Return the keys and the queries of distances for each layer, float32 [2 span, width].

    Raises ModelError if the folder has vectors for other distances than config.json says.

    Parameters
    ----------
    stored : mapping of str to ndarray
        The tensors of the folder, by their names without the prefix.
    config : dict
        The content of config.json.
    distances : Distances
        How attention counts distances.
    layers : int
        The number of layers.
    name : str
        The name of the folder in messages.

    """
    vectors = stored["encoder.rel_embeddings.weight"].astype(np.float64)
    if len(vectors) != 2 * distances.span:
        what = f"its position_buckets are {distances.span}, but it has {len(vectors):,} vectors of distances"
        raise ModelError(f"{name}: {what} in place of {2 * distances.span}: save the folder again")
    if _LAYER_NORM in [one.strip() for one in str(config.get("norm_rel_ebd", "none")).lower().split("|")]:
        vectors = vectors - vectors.mean(axis=1, keepdims=True)
        vectors /= np.sqrt((vectors**2).mean(axis=1, keepdims=True) + config.get("layer_norm_eps", 1e-7))
        vectors = vectors * stored["encoder.LayerNorm.weight"] + stored["encoder.LayerNorm.bias"]
    prefix = "" if config.get("share_att_key", False) else "pos_"
    return {
        f"{layer}.{ours}_at": _product(stored, f"encoder.layer.{layer}.attention.self.{prefix}{theirs}_proj", vectors)
        for layer in range(layers)
        for ours, theirs in (("keys", "key"), ("queries", "query"))
    }


def _product(stored: Any, name: str, vectors: Tensor) -> Tensor:
    """Multiply vectors with a weight of the folder, and add its bias, in float64; return float32."""
    weight, bias = (stored[f"{name}.{part}"].astype(np.float64) for part in ("weight", "bias"))
    of_float: Tensor = (vectors @ weight.T + bias).astype(np.float32)
    return of_float
