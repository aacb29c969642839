"""The families of encoders that our kernels compute, and how the weights and the head of each are read from a folder.

`BODIES` lists the kinds of encoders. `trunk_of` reads the encoder of a folder, and `Family.add_head` its classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import ModelError
from . import deberta_folder, gte_folder, modernbert_folder
from .encoder import LAYER_NORM, MOST_LAYERS, MOST_TOKENS, Activation, Pooling
from .encoder_keys import CONFIG_FILE, Json, NotInKernels, refused
from .folder_weights import Tensor, Tensors, transposed

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_KINDS_OF_TOKENS = "embeddings.token_type_embeddings.weight"


class Trunk(NamedTuple):
    """An encoder without its tokens and its head.

    Attributes
    ----------
    weights : dict of str to ndarray
        The weights, by our names.
    most_tokens : int
        The largest number of tokens of a text for which the encoder has places.
    settings : dict
        The fields of `Settings` that config.json decides. A family returns only those that other families lack.

    """

    weights: dict[str, Tensor]
    most_tokens: int
    settings: dict[str, Any]


class Family(NamedTuple):
    """The functions that read what differs between families of encoders.

    Attributes
    ----------
    read_trunk : callable
        Reads the weights and the settings of an encoder with a given number of layers.
    add_head : callable
        Adds the steps of a classifier before its last product, and returns the pooling.

    """

    read_trunk: Callable[[Stored, int], Trunk]
    add_head: Callable[[Head, Stored], Pooling]


class Body(NamedTuple):
    """One kind of encoder: its family, and the names that transformers gives its settings and weights.

    Attributes
    ----------
    family : Family
        The functions that read it.
    prefix : str
        The prefix of the names of the encoder's weights, in a file that also has a head.
    layers, heads, activation, width, inner : str
        The keys of config.json for the numbers of layers and heads, the activation, and the numbers of values of a
        vector and between the two products of a layer.
    usual : tuple of int
        The numbers of layers and heads if config.json does not have them.
    epsilon : float or str
        The number that is added to the variance by which vectors are normalised, or its key in config.json.
    layer, queries, products, norms : str or tuple of str
        The names of a layer; in it, of the weights of queries, keys and values; of "mix", "inner" and "outer"; and of
        both norms.
    before, step, last : str
        For a classifier: the name of the product before the last one, the step that follows it, and the name of the
        last product.
    counts_padding : bool
        Whether places are numbered from one above the number of the padding token, which has a place of its own.
    usual_epsilon : float
        The value of `epsilon` if config.json does not have it.

    """

    family: Family
    prefix: str
    layers: str
    heads: str
    activation: str
    width: str
    inner: str
    usual: tuple[int, int]
    epsilon: float | str
    layer: str
    queries: tuple[str, ...]
    products: tuple[str, str, str]
    norms: tuple[str, str]
    before: str
    step: str
    last: str = "classifier"
    counts_padding: bool = False
    usual_epsilon: float = 1e-12


class Stored(NamedTuple):
    """The stored encoder of a folder.

    Attributes
    ----------
    config : dict
        The content of config.json.
    tensors : Tensors
        The weights.
    body : Body
        The kind of the encoder.
    name : str
        The name of the folder in messages.

    """

    config: Json
    tensors: Tensors
    body: Body
    name: str


class Head:
    """Collects the steps of a head, which compute on the vector of a text, and adds their weights to the encoder's."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.steps: list[Any] = []
        self._weights, self._products = weights, 0
        self._width = weights["embedding"].shape[1]

    def add(self, step: str, weight: Tensor, bias: Tensor) -> None:
        """Add a product, with a matrix [outputs, inputs] as PyTorch stores it, and the step that follows it."""
        name = f"head.{self._products}"
        self._weights[name], self._weights[f"{name}.bias"] = transposed(weight), bias
        self.steps.append(step)
        self._products += 1
        self._width = len(weight)

    def norm(self, weight: Tensor, bias: Tensor) -> None:
        """Add a layer norm."""
        self._weights["head.norm.weight"], self._weights["head.norm.bias"] = weight, bias
        self.steps.append(LAYER_NORM)

    def cut(self, values: int | None, name: str) -> None:
        """Keep only the first values of the vector, by a product with ones and zeros."""
        if values is not None and values < 1:
            raise refused(name, f"its truncate_dim is {values}", "1 or more is")
        if values is not None and values < self._width:
            self.add("identity", np.eye(values, self._width, dtype=np.float32), np.zeros(values, np.float32))


def trunk_of(stored: Stored) -> Trunk:
    """Read the weights of an encoder and all of its settings."""
    config, tensors, body, name = stored
    # Read the settings that all families have.
    activation = config.get(body.activation, "gelu")
    if activation not in _ACTIVATIONS:
        raise NotInKernels(name, f"its {body.activation} is {activation!r:.40}", f"{', '.join(_ACTIVATIONS)} are")
    layers = config.get(body.layers, body.usual[0])
    have = sum(f"{body.layer}.{i}.{body.queries[0]}.weight" in tensors for i in range(MOST_LAYERS))
    if not 1 <= layers <= have:
        raise ModelError(f"{name}: its {body.layers} in {CONFIG_FILE} is {layers}, and its weights have {have} layers")
    settings: dict[str, Any] = {
        "layers": layers,
        "heads": config.get(body.heads, body.usual[1]),
        "epsilon": body.epsilon if isinstance(body.epsilon, float) else config.get(body.epsilon, body.usual_epsilon),
        "activation": _ACTIVATIONS[activation],
    }
    # Read the rest, and check the sizes: for weights of another size, transformers would draw random ones.
    trunk = body.family.read_trunk(stored, layers)
    for key, size in _sizes(trunk.weights, tensors, body).items():
        if config.get(key, size) != size:
            raise ModelError(
                f"{name}: its {key} in {CONFIG_FILE} is {config[key]!r:.40}, and its weights have {size:,}"
            )
    return trunk._replace(settings=settings | trunk.settings)


def _sizes(weights: Mapping[str, Tensor], tensors: Tensors, body: Body) -> dict[str, int]:
    """Return the sizes of the weights, by the keys that they have in config.json."""
    sizes = {
        "vocab_size": weights["embedding"].shape[0],
        body.width: weights["embedding"].shape[1],
        body.inner: weights["0.outer"].shape[0],
    }
    if "places" in weights:
        sizes["max_position_embeddings"] = weights["places"].shape[0]
    if _KINDS_OF_TOKENS in tensors:
        sizes["type_vocab_size"] = tensors[_KINDS_OF_TOKENS].shape[0]
    return sizes


def _embeddings(tensors: Tensors, body: Body) -> dict[str, Tensor]:
    """Return the vectors of tokens and of places, by our names."""
    weights: dict[str, Tensor] = {"embedding": tensors["embeddings.word_embeddings.weight"]}
    weights["places"] = tensors["embeddings.position_embeddings.weight"]
    if isinstance(body.epsilon, str):  # every kind except DistilBERT, which has no kinds of tokens
        # All tokens of a single text are of the first kind.
        weights["places"] = weights["places"].astype(np.float32) + tensors[_KINDS_OF_TOKENS][0]
    return weights


def _layers(tensors: Tensors, count: int, body: Body) -> dict[str, Tensor]:
    """Return the weights of the first norm and of all layers by our names, in the shapes of our products."""
    weights: dict[str, Tensor] = {
        f"norm.{part}": tensors[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")
    }
    for layer in range(count):
        prefix = f"{body.layer}.{layer}"
        turned = [transposed(tensors[f"{prefix}.{one}.weight"]) for one in body.queries]
        weights[f"{layer}.queries"] = np.concatenate(turned, axis=1)
        weights[f"{layer}.queries.bias"] = np.concatenate([tensors[f"{prefix}.{one}.bias"] for one in body.queries])
        for ours, theirs in zip(("mix", "inner", "outer"), body.products, strict=True):
            weights[f"{layer}.{ours}"] = transposed(tensors[f"{prefix}.{theirs}.weight"])
            weights[f"{layer}.{ours}.bias"] = tensors[f"{prefix}.{theirs}.bias"]
        for ours, theirs in zip(("norm1", "norm2"), body.norms, strict=True):
            weights |= {f"{layer}.{ours}.{part}": tensors[f"{prefix}.{theirs}.{part}"] for part in ("weight", "bias")}
    return weights


def _trunk_of_bert(stored: Stored, layers: int) -> Trunk:
    """Read the weights, with vectors of places, for BERT, DistilBERT and RoBERTa."""
    config, tensors, body, _ = stored
    padding = int(config.get("pad_token_id", 1)) if body.counts_padding else None
    weights = {**_embeddings(tensors, body), **_layers(tensors, layers, body)}
    places = len(weights["places"]) - (0 if padding is None else padding + 1)
    return Trunk(weights, places, {"padding": padding})


def _trunk_of_modernbert(stored: Stored, layers: int) -> Trunk:
    """Read the weights, rotary embeddings and windows of ModernBERT."""
    config, tensors, _, name = stored
    rotary = modernbert_folder.rotary_of(config, layers, name)
    weights = modernbert_folder.weights_of(tensors, config, layers)
    places = config.get("max_position_embeddings", MOST_TOKENS)
    return Trunk(weights, places, {"rotary": rotary, "is_pre_norm": True, "is_gated": True})


def _trunk_of_gte(stored: Stored, layers: int) -> Trunk:
    """Read the weights and rotary embeddings of gte."""
    config, tensors, _, name = stored
    rotary = (gte_folder.rotary_of(config, name),) * layers
    weights = gte_folder.weights_of(tensors, config, layers)
    return Trunk(weights, gte_folder.places_of(config), {"rotary": rotary, "is_gated": True})


def _trunk_of_deberta(stored: Stored, layers: int) -> Trunk:
    """Read the weights of DeBERTa-v2, with keys and queries of distances."""
    config, tensors, body, name = stored
    distances = deberta_folder.distances_of(config, name)
    weights = {"embedding": deberta_folder.embedding_of(tensors, config), **_layers(tensors, layers, body)}
    weights |= deberta_folder.projected(tensors, config, distances, layers, name)
    return Trunk(weights, config.get("max_position_embeddings", 512), {"distances": distances})


def _add_head_of_bert(head: Head, stored: Stored) -> Pooling:
    """Add the product of BERT's pooler, or of the head of a kind without a pooler, which reads the first token."""
    _add_product(head, stored, stored.body.step)
    return "cls"


def _add_head_of_deberta(head: Head, stored: Stored) -> Pooling:
    """Add the product of the pooler, whose activation config.json names."""
    _add_product(head, stored, deberta_folder.head_of(stored.config, stored.name))
    return "cls"


def _add_product(head: Head, stored: Stored, step: str) -> None:
    """Add the product before the last one, and the step that follows it."""
    tensors, before = stored.tensors, stored.body.before
    head.add(step, tensors[f"{before}.weight"], tensors[f"{before}.bias"])


def _add_head_of_modernbert(head: Head, stored: Stored) -> Pooling:
    """Add the product and the norm of a ModernBERT classifier, which reads the first token or the mean."""
    config, tensors, _, name = stored
    pooling, step, has_bias, has_norm_bias = modernbert_folder.head_of(config, name)
    weight, gamma = tensors["head.dense.weight"], tensors["head.norm.weight"]
    zeros = np.zeros(len(weight), np.float32)
    head.add(step, weight, tensors["head.dense.bias"] if has_bias else zeros)
    head.norm(gamma, tensors["head.norm.bias"] if has_norm_bias else zeros)
    return pooling


_BERT = Body(
    Family(_trunk_of_bert, _add_head_of_bert),
    "bert.", "num_hidden_layers", "num_attention_heads", "hidden_act", "hidden_size", "intermediate_size", (12, 12),
    "layer_norm_eps", "encoder.layer", ("attention.self.query", "attention.self.key", "attention.self.value"),
    ("attention.output.dense", "intermediate.dense", "output.dense"),
    ("attention.output.LayerNorm", "output.LayerNorm"), "pooler.dense", "tanh",
)  # fmt: skip
_DISTILBERT = Body(
    _BERT.family,
    "distilbert.", "n_layers", "n_heads", "activation", "dim", "hidden_dim", (6, 12), 1e-12, "transformer.layer",
    ("attention.q_lin", "attention.k_lin", "attention.v_lin"), ("attention.out_lin", "ffn.lin1", "ffn.lin2"),
    ("sa_layer_norm", "output_layer_norm"), "pre_classifier", "relu",
)  # fmt: skip
_ROBERTA = _BERT._replace(prefix="roberta.", before="classifier.dense", last="classifier.out_proj", counts_padding=True)
_MODERNBERT = Body(
    Family(_trunk_of_modernbert, _add_head_of_modernbert),
    "model.", "num_hidden_layers", "num_attention_heads", "hidden_activation", "hidden_size", "intermediate_size",
    (22, 12), "norm_eps", "layers", ("attn.Wqkv",), ("attn.Wo", "mlp.Wi", "mlp.Wo"), ("attn_norm", "mlp_norm"),
    "head.dense", "gelu", usual_epsilon=1e-5,
)  # fmt: skip
_GTE = Body(
    Family(_trunk_of_gte, _add_head_of_bert),
    "gte.", "num_hidden_layers", "num_attention_heads", "hidden_act", "hidden_size", "intermediate_size", (12, 12),
    "layer_norm_eps", "encoder.layer", ("attention.qkv_proj",),
    ("attention.o_proj", "mlp.up_gate_proj", "mlp.down_proj"), ("attn_ln", "mlp_ln"), "pooler.dense", "tanh",
)  # fmt: skip
_DEBERTA = _BERT._replace(
    family=Family(_trunk_of_deberta, _add_head_of_deberta),
    prefix="deberta.", usual=(24, 24), usual_epsilon=1e-7,
    queries=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
)  # fmt: skip
BODIES = {
    "bert": _BERT,
    "distilbert": _DISTILBERT,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), _ROBERTA),
    "modernbert": _MODERNBERT,
    "gte": _GTE,
    "new": _GTE._replace(prefix="new."),
    "deberta-v2": _DEBERTA,
}
"""The kinds of encoders, by `model_type` of config.json. A new kind also needs its keys in `encoder_keys.CONFIG`."""

KNOWN = "BERT, DistilBERT, RoBERTa, XLM-R, CamemBERT, ModernBERT, gte and DeBERTa-v2"
"""The kinds by the names that people know, for messages."""
