"""Makes a PyTorch module of an encoder, whose weights can be trained, and an encoder of the trained weights.

For encoders that our kernels compute, the module computes the same as `model/encoder.py`, with the same names. For
others, it is the model of transformers with the modules that follow it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ..engine.torch_encoder import Forward
from ..model.encoder import LAYER_NORM, NORMALISE, Encoder, turns
from ..model.model_file import HUB_FILE
from ..model.torch_encoder import TorchEncoder

Integers = NDArray[np.int64]

_DROPOUT = 0.1
"""The dropout with which BERT was trained."""


class OwnEncoder(nn.Module):
    """The module of an encoder that our kernels compute.

    Parameters
    ----------
    encoder : Encoder
        The encoder, whose weights it begins with.

    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        for name, weight in encoder.weights.items():
            value = torch.from_numpy(np.array(weight, np.float32))
            self.register_parameter(name.replace(".", "/"), nn.Parameter(value))

    def forward(self, texts: Sequence[Integers]) -> Tensor:
        """Compute the vectors of texts, fp32 [texts, outputs]. texts: the numbers of the tokens of each text."""
        # Pad the texts to the length of the longest.
        settings, device = self.encoder.settings, self._of("embedding").device
        longest = max(map(len, texts))
        ids, places = np.zeros((2, len(texts), longest), np.int64)
        mask = np.zeros((len(texts), longest), np.bool_)
        for row, tokens in enumerate(texts):
            ids[row, : len(tokens)] = tokens
            places[row, : len(tokens)] = self.encoder.places_of(tokens, np.array([0, len(tokens)]))
            mask[row, : len(tokens)] = True
        # Embed the tokens and their places.
        seen = torch.from_numpy(mask).to(device)
        x = self._of("embedding")[torch.from_numpy(ids).to(device)]
        if settings.has_places:
            x = x + self._of("places")[torch.from_numpy(places).to(device)]
        x = self._dropped(self._normed(x, "norm"))
        # Compute the layers. Their norms come before attention and product (pre-norm) or after them.
        for layer in range(settings.layers):
            if settings.is_pre_norm:
                read = self._normed(x, f"{layer}.norm1") if layer else x
                x = x + self._dropped(self._attention(read, seen, layer))
                inner = self._inner(self._normed(x, f"{layer}.norm2"), layer)
                x = x + self._dropped(self._product(inner, f"{layer}.outer"))
            else:
                x = self._normed(x + self._dropped(self._attention(x, seen, layer)), f"{layer}.norm1")
                inner = self._inner(x, layer)
                x = self._normed(x + self._dropped(self._product(inner, f"{layer}.outer")), f"{layer}.norm2")
        if settings.is_pre_norm:
            x = self._normed(x, "final")
        # Pool the tokens: the first one, or the mean.
        vector = x[:, 0]
        if settings.pooling == "mean":
            counted = seen[:, :, None].to(x.dtype)
            vector = (x * counted).sum(dim=1) / counted.sum(dim=1)
        # Compute the steps of the head.
        products = 0
        for step in settings.head:
            if step == NORMALISE:
                vector = functional.normalize(vector.float(), dim=1)
            elif step == LAYER_NORM:
                vector = self._normed(vector, "head.norm")
            else:
                vector = _ACTIVATIONS[step](self._product(vector, f"head.{products}"))
                products += 1
        return vector.float()

    def learned(self) -> Encoder:
        """Return the encoder with the present weights."""
        weights = {name: self._of(name).detach().float().cpu().numpy().copy() for name in self.encoder.weights}
        return replace(self.encoder, weights=weights)

    def _of(self, name: str) -> Tensor:
        return self.get_parameter(name.replace(".", "/"))

    def _product(self, x: Tensor, name: str) -> Tensor:
        return x @ self._of(name) + self._of(f"{name}.bias")

    def _normed(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._of(f"{name}.weight"), self._of(f"{name}.bias")
        return functional.layer_norm(x, weight.shape, weight, bias, self.encoder.settings.epsilon)

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, _DROPOUT, self.training)

    def _inner(self, x: Tensor, layer: int) -> Tensor:
        values, activation = self._product(x, f"{layer}.inner"), _ACTIVATIONS[self.encoder.settings.activation]
        if not self.encoder.settings.is_gated:
            activated: Tensor = activation(values)
            return activated
        value, gate = values.chunk(2, dim=-1)
        gated: Tensor = activation(value) * gate
        return gated

    def _attention(self, x: Tensor, seen: Tensor, layer: int) -> Tensor:
        heads, size = self.encoder.settings.heads, x.shape[2] // self.encoder.settings.heads
        parts = self._product(x, f"{layer}.queries").reshape(*x.shape[:2], 3, heads, size)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mask, terms = seen[:, None, None, :], 1
        if self.encoder.settings.rotary:
            rotary, places = self.encoder.settings.rotary[layer], torch.arange(x.shape[1], device=x.device)
            by = torch.from_numpy(turns(rotary, size, x.shape[1])).to(x.device)
            query, key = _turned(query, by), _turned(key, by)
            if rotary.window is not None:  # every token sees itself, since padding might see nothing otherwise
                far = (places - places[:, None]).abs()
                mask = mask & (far <= rotary.window) | (far == 0)
        if self.encoder.settings.distances is not None:
            terms = 3  # a score is a sum of three products: see `Distances`
            of_distances = self._of_distances(query, key, layer) / math.sqrt(terms * size)
            mask = of_distances.masked_fill(~mask, torch.finfo(of_distances.dtype).min)
        dropout = _DROPOUT if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=1 / math.sqrt(terms * size)
        )
        return self._product(mixed.transpose(1, 2).reshape(x.shape), f"{layer}.mix")

    def _of_distances(self, query: Tensor, key: Tensor, layer: int) -> Tensor:
        """Return the two terms of scores that depend on distances, unscaled, [texts, heads, tokens, tokens].

        query, key: [texts, heads, tokens, size].
        """
        distances, places = self.encoder.settings.distances, np.arange(query.shape[2])
        assert distances is not None
        rows = torch.from_numpy(distances.rows(places[:, None] - places)).to(query.device).expand(*query.shape[:3], -1)
        keys_at, queries_at = (
            self._of(f"{layer}.{name}").to(query.dtype).reshape(-1, *query.shape[1::2]).permute(1, 2, 0)
            for name in ("keys_at", "queries_at")
        )
        of_keys: Tensor = (query @ keys_at).gather(3, rows)
        of_queries: Tensor = (key @ queries_at).gather(3, rows.transpose(2, 3)).transpose(2, 3)
        of_both: Tensor = of_keys + of_queries
        return of_both


def _turned(x: Tensor, by: Tensor) -> Tensor:
    """Apply rotary embeddings to queries or keys. x: [texts, heads, tokens, size]. by: the result of `turns`."""
    low, high = x.chunk(2, dim=-1)
    cosine, sine = by.to(x.dtype).unbind(dim=2)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)


_ACTIVATIONS: dict[str, Any] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


class LibraryEncoder(nn.Module):
    """The module of an encoder that our kernels do not compute, and PyTorch does.

    Parameters
    ----------
    encoder : TorchEncoder
        The encoder, without a head for classes.

    """

    def __init__(self, encoder: TorchEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self._forward = Forward(encoder, torch.float32, torch.device("cpu"))
        self.body = self._forward.body
        self.after = nn.ModuleList(self._forward.modules)

    def forward(self, texts: Sequence[Any]) -> Tensor:
        """Compute the vectors of texts, fp32 [texts, outputs]. texts: the `tokenizers.Encoding` of each text."""
        self._forward.device = next(self.body.parameters()).device
        if self._forward.is_padded:
            return self._vectors(texts)
        return torch.cat([self._vectors([one]) for one in texts])

    def _vectors(self, texts: Sequence[Any]) -> Tensor:
        found: Tensor = self._forward([*texts])
        return found

    def learned(self) -> TorchEncoder:
        """Return the encoder with its present weights. The weights of the modules that follow it are unchanged."""
        from safetensors.torch import save

        state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.body.state_dict().items()}
        weights = [name for name in self.encoder.files if name.endswith(".safetensors") and "/" not in name]
        files = {name: data for name, data in self.encoder.files.items() if name not in weights}
        files[HUB_FILE] = np.frombuffer(save(state), np.uint8)
        return replace(self.encoder, files=files)


def tunable(encoder: Encoder | TorchEncoder) -> OwnEncoder | LibraryEncoder:
    """Return the module of an encoder. Modules that follow a model of transformers are not trained."""
    if isinstance(encoder, Encoder):
        return OwnEncoder(encoder)
    module = LibraryEncoder(encoder)
    module.after.requires_grad_(False)
    return module
