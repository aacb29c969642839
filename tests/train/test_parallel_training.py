"""Training in several processes, here, on workers of a cluster, and on GPUs: losses and gradients equal those of one
process and of the plain network, and a lost process ends the run with a clear message.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import scipy.sparse as sp
from distributed import Client
from jobs import children_of
from training import LENGTH, LIKE, QUICK, TOPICS, articles, one_thread, quick_train

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.errors import BroadsheetError
from broadsheet.pipeline.model.alphabet import PUBLISHED, Alphabet, encode
from broadsheet.pipeline.model.layers import FRAMES, Frame, layer_table
from broadsheet.pipeline.train import Epoch
from broadsheet.pipeline.train.graphs import EAGER_CALLS
from broadsheet.pipeline.train.group import ProcessGroup
from broadsheet.pipeline.train.linear import Fitter, GpuFitter
from broadsheet.pipeline.train.loop import DeviceExamples, TrainingRun
from broadsheet.pipeline.train.network import CharCNN
from broadsheet.pipeline.train.objective import OneLabel
from broadsheet.pipeline.train.packed import PackedCNN, can_compute

torch = pytest.importorskip("torch")

__all__ = ["one_thread"]  # a fixture that every test here uses too

RECIPE = replace(QUICK, epochs=3, learning_rate=2e-5)
ROWS = articles(80)


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The losses of a run in one process."""
    torch.set_num_threads(1)
    return [epoch.loss for epoch in quick_train(ROWS, RECIPE).history]


@pytest.mark.slow
def test_two_processes_share_each_batch_until_one_is_killed_and_one_alone_goes_on(
    tmp_path: Path, alone: list[float]
) -> None:
    options = {"checkpoint": tmp_path / "run.checkpoint", "checkpoint_every": 1}
    told: list[Epoch] = []

    def kill(what: object) -> None:
        if isinstance(what, Epoch):
            told.append(what)
            for process in children_of(os.getpid(), "broadsheet.pipeline.train.process")[:1]:
                with suppress(psutil.NoSuchProcess):  # lost by itself, as the other process was
                    process.kill()

    with pytest.raises(BroadsheetError, match=r"process \d of 2 was ended by SIGKILL.* resume=True, also with"):
        quick_train(ROWS, RECIPE, gpus=2, tell=kill, **options)
    assert len(told) < RECIPE.epochs
    resumed = quick_train(ROWS, RECIPE, resume=True, **options)
    assert [epoch.loss for epoch in resumed.history] == pytest.approx(alone, rel=1e-3)


@pytest.mark.slow
def test_the_workers_of_a_cluster_share_each_batch(client: Client, alone: list[float]) -> None:
    told: list[object] = []
    trained = quick_train(ROWS, RECIPE, client=client, tell=told.append)
    count = len(client.scheduler_info()["workers"])
    assert trained.model.card["trained_on"] == f"{count} × CPU, fp32"
    assert [what for what in told if isinstance(what, Epoch)] == list(trained.history)
    assert len(trained.history) == RECIPE.epochs
    assert [epoch.loss for epoch in trained.history] == pytest.approx(alone, rel=1e-3)


# Training on GPUs: gradients are those of the plain network. Steps replayed as CUDA graphs have the losses of other
# steps, and two GPUs those of one.


GPU_RECIPE = replace(QUICK, epochs=8, learning_rate=1e-4)
"""A recipe of 48 steps, in which the average of the weights begins at the twelfth."""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
@pytest.mark.parametrize("frame", FRAMES)
def test_gradients_are_those_of_the_plain_network(frame: Frame) -> None:
    layers = layer_table(70, 1014, 4)
    torch.manual_seed(0)
    plain, packed = CharCNN(layers, frame).cuda(), PackedCNN(layers, frame).cuda()
    for name in ("norm1.weight", "norm1.bias", "norm6.weight", "norm6.bias"):
        torch.nn.init.normal_(plain.get_parameter(name), 0.5)
    packed.load_state_dict(plain.state_dict())
    assert can_compute(torch.device("cuda", 0), layers[0])
    ids = torch.randint(0, 71, (32, 1014), dtype=torch.uint8, device="cuda")
    ends = torch.randint(0, 500, (32, 1), device="cuda")
    ends[:4, 0] = torch.tensor([0, 3, 1013, 1014])
    ids[torch.arange(1014, device="cuda") >= ends] = 71
    labels = torch.randint(0, 4, (32,), device="cuda")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for network in (plain, packed):
            torch.autograd.backward(torch.nn.functional.cross_entropy(network(ids), labels))
    for (name, ours), theirs in zip(packed.named_parameters(), plain.parameters(), strict=True):
        # PyTorch's own gradients, in fp32 on a CPU, differ by up to 0.004 from those in float64: where rounding makes
        # another value the largest of its pool, a whole gradient goes to another row.
        assert (ours.grad - theirs.grad).norm() < 1e-2 * theirs.grad.norm(), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
@pytest.mark.parametrize("kind", ["one label", "several labels", "soft"])
def test_n_grams_are_fitted_to_the_minimum_that_a_cpu_finds(kind: str) -> None:
    rng = np.random.default_rng(3)
    rows, classes = 9000, 5
    features = sp.random_array((rows, 400), density=0.05, format="csr", rng=rng)
    dense, weights = rng.normal(size=(rows, 3)), rng.uniform(0.5, 1.5, rows)
    scores = features @ rng.normal(size=(400, classes)) + 0.3 * rng.normal(size=(rows, classes))
    truth = np.eye(classes)[scores.argmax(axis=1)]
    if kind == "several labels":
        truth = (scores > 0).astype(np.float64)
        weights = np.ones(rows)
    elif kind == "soft":
        truth = 0.8 * truth + 0.04
    there, here = GpuFitter(features, truth, weights, dense), Fitter(features, truth, weights, dense)
    for strength in (1e-2, 1e-4):
        found, least = there.fit(strength), here.fit(strength)
        given, wanted = (features @ each.weights + dense @ each.of_dense + each.bias for each in (found, least))
        assert np.abs(given - wanted).max() < 0.02 * np.abs(wanted).max()
        assert (given.argmax(axis=1) == wanted.argmax(axis=1)).mean() > 0.995


@dataclass(frozen=True)
class Counted(OneLabel):
    """Counts its calls. A graph that is replayed makes none."""

    calls: list[object] = field(default_factory=list)

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls.append(None)
        return super().loss(logits, targets)


def trained(eager: int, weights: tuple[float, ...], device: str = "cuda") -> tuple[list[float], int]:
    """Run training with `eager` steps launched kernel by kernel. Return the losses, and how often a step was
    computed.
    """
    table, classes = articles(240), sorted(TOPICS)
    text = Texts.of([each.encode() for each in table["text"].to_pylist()])
    ids = encode(text.data, text.offsets, Alphabet(PUBLISHED), LENGTH).ids
    labels = np.array([classes.index(kind) for kind in table["kind"].to_pylist()])
    fit, held = (
        DeviceExamples(*(torch.from_numpy(values[rows]).to(device) for values in (ids, labels)))
        for rows in (slice(48, None), slice(48))
    )
    objective = Counted(0.1, weights)
    torch.manual_seed(0)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        network = PackedCNN(layer_table(70, LENGTH, len(classes)), "text", torch.float32).to(device)
        run = TrainingRun(
            network, fit, held, Alphabet(PUBLISHED), GPU_RECIPE, objective, 0, ProcessGroup(), eager=eager
        )
        run.finish(lambda told: None, None, lambda: False, device)
    return [epoch.loss for epoch in run.history], len(objective.calls)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
@pytest.mark.parametrize("balanced", [False, True])
def test_replayed_steps_have_the_losses_of_those_that_are_not(balanced: bool) -> None:
    weights = (0.9, 1.0, 1.1) if balanced else ()
    replayed, calls = trained(EAGER_CALLS, weights)
    as_they_are, calls_of_all = trained(1000, weights)
    assert calls < calls_of_all - 24  # of 48 steps, most repeat a kind of step
    assert replayed == pytest.approx(as_they_are, rel=LIKE)
    assert replayed[-1] < 0.95 * replayed[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds one GPU")
def test_two_gpus_have_the_losses_of_one() -> None:
    one, two = (
        quick_train(articles(240), GPU_RECIPE, device="cuda", precision="fp32", gpus=gpus).history for gpus in (1, 2)
    )
    assert [epoch.loss for epoch in two] == pytest.approx([epoch.loss for epoch in one], rel=LIKE)
