"""Gradients that cannot move all articles alike: with few rows, a network that answers every article the same.

The inputs of these layers are outputs of a ReLU, so none is negative, and at first they differ little between articles.
Whatever a small batch says by chance, such as that it has more rows of one class, is then a gradient of one sign for
all weights of an output, and AdamW moves each by the whole rate: the mean of the activations grows from block to block,
block 6's norm divides by it, and what differs between articles is lost. Without its mean over the inputs, the gradient
has no such part (gradient centralisation: Yong and others, 2020, https://arxiv.org/abs/2004.01461).
"""

from __future__ import annotations

from torch import nn

FEW_ROWS = 20_000
"""With more, the rate rises so slowly that the articles' differences are learnt before."""

_LAYERS = ("conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2")


def centre_gradients(network: nn.Module) -> None:
    """Take from the gradient of each output's weights its mean over the inputs."""
    for name in _LAYERS:
        gradient = network.get_parameter(f"{name}.weight").grad
        assert gradient is not None
        gradient.sub_(gradient.mean(tuple(range(1, gradient.ndim)), keepdim=True))
