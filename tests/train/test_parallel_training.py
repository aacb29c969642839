"""Training in several processes, here and on workers of a cluster: the same run; one that is lost ends it clearly."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow.csv as pa_csv
import pytest
from conftest import Command
from distributed import Client
from jobs import children_of
from training import LENGTH, QUICK, articles, one_thread, quick_train

from pipeline import load_model
from pipeline.errors import BroadsheetError
from pipeline.train import Epoch

torch = pytest.importorskip("torch")

__all__ = ["one_thread"]  # a fixture of every test here too

RECIPE = replace(QUICK, epochs=3, learning_rate=2e-5)
ROWS = articles(80)


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The losses of a run in one process."""
    torch.set_num_threads(1)
    return [epoch.loss for epoch in quick_train(ROWS, RECIPE).history]


def test_two_processes_share_each_batch_until_one_is_killed_and_one_alone_goes_on(
    tmp_path: Path, alone: list[float]
) -> None:
    options = {"checkpoint": tmp_path / "run.checkpoint", "checkpoint_every": 1}
    told: list[Epoch] = []

    def kill(what: object) -> None:
        if isinstance(what, Epoch):
            told.append(what)
            for process in children_of(os.getpid(), "broadsheet.pipeline.train.process")[:1]:
                with suppress(psutil.NoSuchProcess):  # lost by itself, as the other was
                    process.kill()

    with pytest.raises(BroadsheetError, match=r"process \d of 2 was ended by SIGKILL.* resume=True, also with"):
        quick_train(ROWS, RECIPE, gpus=2, tell=kill, **options)
    assert len(told) < RECIPE.epochs
    resumed = quick_train(ROWS, RECIPE, resume=True, **options)
    assert [epoch.loss for epoch in resumed.history] == pytest.approx(alone, rel=1e-3)


def test_the_workers_of_a_cluster_share_each_batch(client: Client, alone: list[float]) -> None:
    told: list[object] = []
    trained = quick_train(ROWS, RECIPE, client=client, tell=told.append)
    count = len(client.scheduler_info()["workers"])
    assert trained.model.card["trained_on"] == f"{count} × CPU, fp32"
    assert [what for what in told if isinstance(what, Epoch)] == list(trained.history)
    assert len(trained.history) == RECIPE.epochs
    assert [epoch.loss for epoch in trained.history] == pytest.approx(alone, rel=1e-3)


def test_a_sweep_keeps_the_best_and_tells_of_the_others(broadsheet_in_process: Command, tmp_path: Path) -> None:
    pa_csv.write_csv(articles(40), tmp_path / "rows.csv")
    arguments = ["train", "rows.csv", "--label-column", "kind", "-o", "topics.safetensors", "--epochs", "2"]
    arguments += ["--batch-size", "16", "--length", LENGTH, "--hold-out", "0.2", "--device", "cpu", "--ngrams", "0"]
    run = broadsheet_in_process(*arguments, "--sweep", "rate=0.001,1e30", "seed=7", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert re.search(r"^ *0.001 +7 +\d+\.\d\d% +\d\.\d{4}", run.stderr, re.MULTILINE)
    assert re.search(r"^ *1e30 +7 +the loss is", run.stderr, re.MULTILINE)
    card = load_model(tmp_path / "topics.safetensors").card
    assert (card["seed"], card["recipe"]["learning_rate"]) == (7, 0.001)
