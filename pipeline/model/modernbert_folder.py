"""Folders of ModernBERT and its kin (mmBERT, Ettin): what their config.json says, and their weights by our names.

transformers calls the weights the same in all of them. Before version 5 config.json had the bases of rotary embeddings
in keys of their own, and the kinds of layers by one number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .encoder import Pooling, Rotary
from .encoder_keys import ROPE, Json, NotInKernels, check_keys, refused

Tensor = NDArray[Any]

_KINDS = ("full_attention", "sliding_attention")
_BASES = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}
_HEAD_ACTIVATIONS = ("gelu", "relu", "tanh")
_EVERY, _LOCAL = 3, 128
"""Of every third layer attention is global, and of others 128 tokens wide, where config.json does not say."""


def rotary_of(config: Json, layers: int, name: str) -> tuple[Rotary, ...]:
    """The rotary embedding and the window of each layer. Raises ModelError where config.json says what is not known.

    Parameters
    ----------
    config : dict
        The content of config.json.
    layers : int
        How many layers.
    name : str
        What the folder is called in messages.

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
    """The weights by our names, and in the shapes that vectors are multiplied with. A bias that a folder lacks is zero.

    Parameters
    ----------
    stored : mapping of str to ndarray
        The tensors of the folder, by their names without a prefix.
    config : dict
        The content of config.json.
    layers : int
        How many layers.

    """
    weights: dict[str, Tensor] = {"embedding": stored["embeddings.tok_embeddings.weight"]}

    def take(name: str, theirs: str, has_bias: bool) -> None:
        weight = stored[f"{theirs}.weight"]
        bias = stored[f"{theirs}.bias"] if has_bias else np.zeros(len(weight), np.float32)
        if weight.ndim == 1:  # of a norm
            weights.update({f"{name}.weight": weight, f"{name}.bias": bias})
        else:
            weights.update({name: np.ascontiguousarray(weight.T), f"{name}.bias": bias})

    of_norms, of_attention, of_products = (
        bool(config.get(f"{part}_bias", False)) for part in ("norm", "attention", "mlp")
    )
    take("norm", "embeddings.norm", of_norms)
    take("final", "final_norm", of_norms)
    for layer in range(layers):
        theirs = f"layers.{layer}"
        if layer > 0:  # the first layer reads what "norm" leaves
            take(f"{layer}.norm1", f"{theirs}.attn_norm", of_norms)
        take(f"{layer}.norm2", f"{theirs}.mlp_norm", of_norms)
        take(f"{layer}.queries", f"{theirs}.attn.Wqkv", of_attention)
        take(f"{layer}.mix", f"{theirs}.attn.Wo", of_attention)
        take(f"{layer}.inner", f"{theirs}.mlp.Wi", of_products)
        take(f"{layer}.outer", f"{theirs}.mlp.Wo", of_products)
    return weights


class HeadSettings(NamedTuple):
    """What config.json says of a classifier's head before its last product.

    Attributes
    ----------
    pooling : str
        How a text's vector is made of those of its tokens.
    activation : str
        What follows the product.
    has_bias, has_norm_bias : bool
        Whether the product and the norm after it have a bias.

    """

    pooling: Pooling
    activation: str
    has_bias: bool
    has_norm_bias: bool


def head_of(config: Json, name: str) -> HeadSettings:
    """The settings of a head. Raises ModelError for those that are not known here. name: of the folder, in messages."""
    pooling, activation = config.get("classifier_pooling", "cls"), config.get("classifier_activation", "gelu")
    if pooling not in ("cls", "mean"):
        raise refused(name, f"its classifier_pooling is {pooling!r:.40}", "'cls' and 'mean' are")
    if activation not in _HEAD_ACTIVATIONS:
        known = f"{', '.join(_HEAD_ACTIVATIONS)} are"
        raise NotInKernels(name, f"its classifier_activation is {activation!r:.40}", known)
    return HeadSettings(
        pooling, activation, bool(config.get("classifier_bias", False)), bool(config.get("norm_bias", False))
    )
