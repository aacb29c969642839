"""Training on GPUs: steps that are replayed as CUDA graphs have the losses of steps that are not, and two GPUs those of
one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_train import QUICK, articles, quick_train

from pipeline.train import graphs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")]

RECIPE = replace(QUICK, epochs=8, learning_rate=1e-4)
"""48 steps, of which the average of the weights begins at the twelfth."""


@pytest.mark.parametrize("balanced", [False, True])
def test_replayed_steps_have_the_losses_of_those_that_are_not(monkeypatch: pytest.MonkeyPatch, balanced: bool) -> None:
    captured: list[object] = []
    graph = graphs._Graph

    def noted(*given: Any) -> graphs._Graph:
        captured.append(given)
        return graph(*given)

    monkeypatch.setattr(graphs, "_Graph", noted)
    given = {"device": "cuda", "precision": "fp32", "balanced": balanced}
    replayed = quick_train(articles(240), RECIPE, **given).history
    assert 2 <= len(captured) < 24  # most steps are of a kind that was there before
    monkeypatch.setattr(graphs, "EAGER_CALLS", 1000)
    as_they_are = quick_train(articles(240), RECIPE, **given).history
    assert [epoch.loss for epoch in replayed] == pytest.approx([epoch.loss for epoch in as_they_are], rel=1e-3)
    assert replayed[-1].loss < 0.95 * replayed[0].loss


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds one GPU")
def test_two_gpus_have_the_losses_of_one() -> None:
    one, two = (
        quick_train(articles(240), RECIPE, device="cuda", precision="fp32", gpus=gpus).history for gpus in (1, 2)
    )
    assert [epoch.loss for epoch in two] == pytest.approx([epoch.loss for epoch in one], rel=1e-3)
