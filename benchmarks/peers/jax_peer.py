"""The network as a JAX user writes it: one jitted function over channels-last (NWC) arrays."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes three quarters of the GPU from the rest

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.peers.peer import Peer, channels_last
from pipeline.model.charcnn import Model
from pipeline.model.layers import NORM_EPSILON

Parameters = dict[str, tuple[Array, ...]]
"""By layer: weight, bias, and gamma and beta where a norm follows."""


def peer(name: str, model: Model, ids: torch.Tensor, batch: int, block1: str) -> Peer:
    """A pass over ids, uint8 [N, length], in fp16 and batches. block1: "dense" or "table"."""
    articles = jax.dlpack.from_dlpack(ids)
    weights = jax.device_put(channels_last(model, np.float16), articles.sharding)
    forward = jax.jit(network(model, block1))
    parts = jax.block_until_ready([articles[first : first + batch] for first in range(0, len(ids), batch)])
    label = jax.jit(lambda logits: (logits.argmax(1), jax.nn.softmax(logits).max(1)))
    last: list[Array] = []

    def run() -> None:
        last[:] = [forward(weights, part) for part in parts]
        jax.block_until_ready([label(logits) for logits in last])

    def answer() -> NDArray[np.float32]:
        return np.concatenate([np.asarray(logits) for logits in last])

    return Peer(name, batch, run, answer)


def network(model: Model, block1: str) -> Callable[[Parameters, Array], Array]:
    """A function of `channels_last`'s tensors and ids, uint8 [N, length], to logits float32 [N, classes]."""
    first_block = {"dense": dense_block1, "table": table_block1}[block1]

    def forward(weights: Parameters, ids: Array) -> Array:
        x = ids
        for layer in model.layers:
            weight, bias, *norm = weights[layer.name]
            if layer.is_lookup:
                x = first_block(x, weight) + bias
            elif layer.kind == "conv1d":
                x = convolve(x, weight) + bias
            else:
                x = x.reshape(len(x), -1) @ weight + bias
            if norm:
                x = normalise(x, *norm)
            if layer.relu:
                x = jax.nn.relu(x)
            if layer.pool > 1:
                window = (1, layer.pool, 1)
                x = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
        return x.astype(jnp.float32)

    return forward


def dense_block1(ids: Array, weight: Array) -> Array:
    """Ids, uint8 [N, length], as one-hot rows through a convolution: [N, rows, outputs].

    An id beyond the columns is a zero row; the columns after the symbols meet weights that are zero.
    """
    return convolve(jax.nn.one_hot(ids, weight.shape[1], dtype=weight.dtype), weight)


def table_block1(ids: Array, table: Array) -> Array:
    """The same as one gathered row a tap, summed in fp32: [N, rows, outputs]. table: [kernel, ids, outputs]."""
    kernel = len(table)
    rows = ids.shape[1] - kernel + 1
    total = jnp.zeros((), jnp.float32)
    for tap in range(kernel):
        total += table[tap].at[ids[:, tap : tap + rows]].get(mode="promise_in_bounds")
    return total.astype(table.dtype)


def convolve(x: Array, weight: Array) -> Array:
    """[N, rows, inputs] and [kernel, inputs, outputs] to [N, rows - kernel + 1, outputs]."""
    return lax.conv_general_dilated(x, weight, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))


def normalise(x: Array, gamma: Array, beta: Array) -> Array:
    """Layer normalisation over [rows, channels] of each article, its statistics in fp32. x: [N, rows, channels]."""
    wide = x.astype(jnp.float32)
    mean = wide.mean((1, 2), keepdims=True)
    variance = jnp.square(wide - mean).mean((1, 2), keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + NORM_EPSILON) * gamma + beta).astype(x.dtype)
