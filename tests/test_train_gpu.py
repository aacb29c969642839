"""Training on GPUs: CUDA graphs give the gradients of the plain network, and two GPUs the losses of one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_train import QUICK, articles, quick_train

from pipeline.model.charcnn import layer_table
from pipeline.train.graphs import Captured
from pipeline.train.network import CharCNN
from pipeline.train.packed import PackedCNN

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")]


def test_captured_steps_have_the_gradients_of_the_plain_network() -> None:
    """Also those of a batch that replays the graphs of another one."""
    layers = layer_table(70, 1014, 4)
    torch.manual_seed(0)
    plain = CharCNN(layers, "text").cuda()
    packed = PackedCNN(layers, "text").cuda()
    packed.load_state_dict(plain.state_dict())
    captured = Captured(packed)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for seed in range(3):
            torch.manual_seed(seed)
            ids = torch.randint(0, 71, (32, 1014), dtype=torch.uint8, device="cuda")
            ends = torch.randint(0, 500, (32, 1), device="cuda")
            ids[torch.arange(1014, device="cuda") >= ends] = 71
            labels = torch.randint(0, 4, (32,), device="cuda")
            for network in (plain, packed):
                network.zero_grad()
                logits = plain(ids) if network is plain else captured(ids, int(packed.groups(ids).sum()))
                torch.autograd.backward(torch.nn.functional.cross_entropy(logits, labels))
            for (name, ours), theirs in zip(packed.named_parameters(), plain.parameters(), strict=True):
                assert (ours.grad - theirs.grad).norm() < 1e-3 * theirs.grad.norm(), name


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds one GPU")
def test_two_gpus_have_the_losses_of_one() -> None:
    recipe = replace(QUICK, epochs=3, learning_rate=2e-5)
    one, two = (
        quick_train(articles(240), recipe, device="cuda", precision="fp32", gpus=gpus).history for gpus in (1, 2)
    )
    assert [epoch.loss for epoch in two] == pytest.approx([epoch.loss for epoch in one], rel=1e-3)
