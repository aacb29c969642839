"""Finds what two encoders share: the trunk, which makes a vector of each text, and the vocabulary.

Encoders with the same trunk differ only in their heads. Many published classifiers are like this: their authors trained
heads on the vectors of one encoder and did not change it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import to_builtins
from numpy.typing import NDArray

from .encoder import PREFIX, Encoder
from .torch_encoder import TorchEncoder

_OF_HEAD = (f"{PREFIX}head.", f"{PREFIX}last")

_OF_LABELS = {
    "_name_or_path", "architectures", "classifier_activation", "classifier_bias", "classifier_dropout",
    "classifier_pooling", "dtype", "id2label", "label2id", "num_labels", "problem_type", "torch_dtype",
    "transformers_version",
}  # fmt: skip
"""The keys of config.json for a classifier's outputs and origin. They do not change what its trunk computes."""


def trunk_of(encoder: Encoder | TorchEncoder) -> str:
    """Return a digest of all that decides what an encoder computes before its head."""
    if isinstance(encoder, Encoder):
        about = {name: value for name, value in encoder.about.items() if name != "head"}
        return _digest(about, {n: tensor for n, tensor in encoder.tensors().items() if not n.startswith(_OF_HEAD)})
    if encoder.settings.task == "vectors":  # the head is only a last product
        return _digest(encoder.about, {n: t for n, t in encoder.tensors().items() if not n.startswith(_OF_HEAD)})
    about = {**encoder.about, "outputs": None}
    config = {name: value for name, value in encoder.config.items() if name not in _OF_LABELS}
    base = f"{base_of(encoder)}."
    tensors = {name: one for name, one in encoder.stored().items() if name.startswith(base)}
    shapes = {name: (one.dtype, one.shape) for name, one in sorted(tensors.items())}
    return _digest([about, config, shapes], {name: one.data for name, one in tensors.items()} | _tokenizer_of(encoder))


def base_of(encoder: TorchEncoder) -> str:
    """Return the prefix of the names of a classifier's tensors outside its head, such as "roberta"."""
    sizes = Counter[str]()
    for name, one in encoder.stored().items():
        sizes[name.partition(".")[0]] += one.data.nbytes
    return sizes.most_common(1)[0][0]


def vocabulary_of(encoder: Encoder | TorchEncoder) -> str:
    """Return a digest of all that decides the tokens of a text."""
    if isinstance(encoder, TorchEncoder):
        settings = encoder.settings
        return _digest([settings.most_tokens, settings.cut, settings.prompt], _tokenizer_of(encoder))
    tensors = {name: t for name, t in encoder.tensors().items() if name.removeprefix(PREFIX) not in encoder.weights}
    return _digest([to_builtins(encoder.settings.rules), encoder.settings.most_tokens], tensors)


def _tokenizer_of(encoder: TorchEncoder) -> dict[str, NDArray[Any]]:
    """Return the bytes of the tokenizer, as a tensor with its name."""
    return {"tokenizer": encoder.tokens.json}


def _digest(about: Any, tensors: Mapping[str, NDArray[Any]]) -> str:
    """Return the sha256 of JSON values and of tensors with their names, dtypes and shapes."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}".encode())
        digest.update(tensor.data if tensor.size else b"")
    return digest.hexdigest()
