"""Reads the settings and weights of ModernBERT, mmBERT and Ettin from their folders.

transformers gives the weights the same names in all of them. Before version 5, config.json had a key for each base of
rotary embeddings, and one number for the kinds of layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .encoder import Pooling, Rotary
from .encoder_keys import ROPE, Json, NotInKernels, check_keys, refused
from .folder_weights import add_layer

Tensor = NDArray[Any]

_KINDS = ("full_attention", "sliding_attention")
_BASES = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}
_HEAD_ACTIVATIONS = ("gelu", "relu", "tanh")
_EVERY, _LOCAL = 3, 128
"""By default, attention is global in every third layer and 128 tokens wide in the others."""


def rotary_of(config: Json, layers: int, name: str) -> tuple[Rotary, ...]:
    """Return the rotary embedding and the window of each layer. Raises ModelError for a setting that is unknown here.

    Parameters
    ----------
    config : dict
        The content of config.json.
    layers : int
        The number of layers.
    name : str
        The name of the folder in messages.

    """
    kinds = config.get("layer_types")
    if kinds is None:
        every = config.get("global_attn_every_n_layers", _EVERY)
        kinds = [_KINDS[bool(layer % every)] for layer in range(layers)]
    if len(kinds) != layers or not {*kinds} <= {*_KINDS}:
        raise refused(name, f"its layer_types are {kinds!r:.80}", f"{' and '.join(_KINDS)}, one for each layer, are")
    window = config.get("local_attention", _LOCAL) // 2
    by_kind = {
        "full_attention": Rotary(_base(config, "full_attention", name)),
        "sliding_attention": Rotary(_base(config, "sliding_attention", name), window),
    }
    return tuple(by_kind[kind] for kind in kinds)


def _base(config: Json, kind: str, name: str) -> float:
    """Return the base of the rotary embeddings of one kind of layer."""
    parameters = config.get("rope_parameters") or {}
    if unknown := {*parameters} - {*_KINDS}:
        raise refused(name, f"its rope_parameters have {sorted(unknown)[0]!r:.40}", f"{' and '.join(_KINDS)} are")
    about = parameters.get(kind) or {}
    if about.get("rope_type", "default") != "default":
        raise NotInKernels(name, f"its rope_type is {about['rope_type']!r:.40}", "'default' is")
    check_keys(about, ROPE, f"rope_parameters of {kind}", name)
    key, usual = _BASES[kind]
    base = float(about.get("rope_theta") or config.get(key) or usual)
    if not base > 1:
        raise refused(name, f"the rope_theta of {kind} is {base:g}", "those above 1 are")
    return base


def weights_of(stored: Any, config: Json, layers: int) -> dict[str, Tensor]:
    """Return the weights by our names, in the shapes of our products. A bias that the folder lacks is zero.

    Parameters
    ----------
    stored : mapping of str to ndarray
        The tensors of the folder, by their names without the prefix.
    config : dict
        The content of config.json.
    layers : int
        The number of layers.

    """
    weights: dict[str, Tensor] = {"embedding": stored["embeddings.tok_embeddings.weight"]}

    def add(name: str, theirs: str, has_bias: bool) -> None:
        weight = stored[f"{theirs}.weight"]
        bias = stored[f"{theirs}.bias"] if has_bias else np.zeros(len(weight), np.float32)
        add_layer(weights, name, weight, bias)

    of_norms, of_attention, of_products = (
        bool(config.get(f"{part}_bias", False)) for part in ("norm", "attention", "mlp")
    )
    add("norm", "embeddings.norm", of_norms)
    add("final", "final_norm", of_norms)
    for layer in range(layers):
        theirs = f"layers.{layer}"
        if layer > 0:  # the first layer reads the output of "norm"
            add(f"{layer}.norm1", f"{theirs}.attn_norm", of_norms)
        add(f"{layer}.norm2", f"{theirs}.mlp_norm", of_norms)
        add(f"{layer}.queries", f"{theirs}.attn.Wqkv", of_attention)
        add(f"{layer}.mix", f"{theirs}.attn.Wo", of_attention)
        add(f"{layer}.inner", f"{theirs}.mlp.Wi", of_products)
        add(f"{layer}.outer", f"{theirs}.mlp.Wo", of_products)
    return weights


class HeadSettings(NamedTuple):
    """The settings of a classifier's head, before its last product, from config.json.

    Attributes
    ----------
    pooling : str
        How the vector of a text is made from those of its tokens.
    activation : str
        The activation after the product.
    has_bias, has_norm_bias : bool
        Whether the product and the norm after it have a bias.

    """

    pooling: Pooling
    activation: str
    has_bias: bool
    has_norm_bias: bool


def head_of(config: Json, name: str) -> HeadSettings:
    """Return the settings of a head. Raises ModelError for a setting that is unknown here.

    config: the content of config.json. name: the name of the folder in messages.
    """
    pooling, activation = config.get("classifier_pooling", "cls"), config.get("classifier_activation", "gelu")
    if pooling not in ("cls", "mean"):
        raise refused(name, f"its classifier_pooling is {pooling!r:.40}", "'cls' and 'mean' are")
    if activation not in _HEAD_ACTIVATIONS:
        known = f"{', '.join(_HEAD_ACTIVATIONS)} are"
        raise NotInKernels(name, f"its classifier_activation is {activation!r:.40}", known)
    return HeadSettings(
        pooling, activation, bool(config.get("classifier_bias", False)), bool(config.get("norm_bias", False))
    )
