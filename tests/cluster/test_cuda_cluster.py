"""Clusters of this machine's GPUs: one worker and one CUDA context for each, and the same labels for any number of
GPUs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from jobs import Processes, committed, wait_until
from training import LIKE, QUICK, articles, quick_train

from benchmarks.chaos.jobs import contents
from broadsheet import pipeline
from broadsheet.cluster import connect
from broadsheet.cluster.doctor import FAILURE, OK, examine
from broadsheet.cluster.protocol import count_gpus, has_ucx
from broadsheet.pipeline.labelling.engines import MOST_ENGINES

GPUS = count_gpus()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU, or no dask-cuda to find it")]

two = pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, there are {GPUS}")
protocols = pytest.mark.parametrize(
    "protocol",
    ["tls", pytest.param("ucx", marks=pytest.mark.skipif(not has_ucx(), reason="distributed-ucxx is not installed"))],
)
ROWS, CHUNK_ROWS = 20_000, 1_000
MANY_ROWS = 25  # rows in each chunk; enough for a job to be still under way when the test disturbs it


@pytest.fixture(scope="module")
def news(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Articles of every length, from empty to longer than the model reads."""
    path = tmp_path_factory.mktemp("news") / "in.csv"
    path.write_text("text\n" + "".join(f'"{"stocks fell, goals rose; " * (i % 50)}{i}"\n' for i in range(ROWS)))
    return path


@pytest.fixture(scope="module")
def by_one(news: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one") / "out"
    with connect("cuda", workers=1) as client:
        pipeline.classify(str(news), out, client=client, chunk_size=CHUNK_ROWS)
    return out


def contexts() -> Counter[int]:
    """Return the number of processes with a CUDA context on each GPU."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    return Counter({i: len(pynvml.nvmlDeviceGetComputeRunningProcesses(h)) for i, h in enumerate(handles)})


def free_bytes() -> list[int]:
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    return [pynvml.nvmlDeviceGetMemoryInfo(handle).free for handle in handles]


@two
@protocols
def test_each_gpu_has_one_worker_one_context_and_gives_what_one_gpu_gives(
    news: Path, by_one: Path, tmp_path: Path, protocol: str
) -> None:
    before, free = contexts(), free_bytes()
    with connect("cuda", protocol="ucx" if protocol == "ucx" else "auto") as client:
        report = pipeline.classify(str(news), tmp_path / "out", client=client, chunk_size=CHUNK_ROWS)
        assert report.rows_written == ROWS
        threads = client.nthreads()
        assert len(threads) == GPUS
        assert min(threads.values()) >= 4
        assert client.scheduler.address.startswith(f"{protocol}://")
        now = contexts()
        assert {gpu: now[gpu] - before[gpu] for gpu in now} == dict.fromkeys(range(GPUS), 1)
        findings = {finding.check: finding for finding in examine(client)}
        assert findings["GPUs"].verdict == OK
        assert "cuda" in findings["kernels"].found
        assert FAILURE not in {finding.verdict for finding in findings.values()}
    assert contents(tmp_path / "out") == contents(by_one)
    assert contexts() == before
    assert all(abs(now - then) < 64 << 20 for now, then in zip(free_bytes(), free, strict=True))


@two
@protocols
def test_a_worker_that_is_killed_costs_only_time(news: Path, tmp_path: Path, protocol: str) -> None:
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    with connect("cuda", protocol="ucx" if protocol == "ucx" else "auto") as client, ThreadPoolExecutor() as pool:
        pipeline.classify(str(news), undisturbed, client=client, chunk_size=MANY_ROWS)
        killed = next(iter(client.run(os.getpid).values()))
        job = pool.submit(pipeline.classify, str(news), out, client=client, chunk_size=MANY_ROWS)
        wait_until(lambda: committed(out) >= 2)
        os.kill(killed, signal.SIGKILL)
        assert job.result().rows_written == ROWS
        wait_until(lambda: len(client.nthreads()) == GPUS)
        assert killed not in client.run(os.getpid).values()
    assert contents(out) == contents(undisturbed)


@two
@protocols
def test_a_network_is_trained_on_the_workers(protocol: str) -> None:
    recipe = replace(QUICK, epochs=4, learning_rate=1e-4)
    one = quick_train(articles(240), recipe, device="cuda", precision="fp32")
    with connect("cuda", protocol="ucx" if protocol == "ucx" else "auto") as client:
        all_of_them = quick_train(articles(240), recipe, device="cuda", precision="fp32", client=client)
    assert all_of_them.model.card["trained_on"].startswith(f"{GPUS} × ")
    assert [e.loss for e in all_of_them.history] == pytest.approx([e.loss for e in one.history], rel=LIKE)


@two
def test_every_gpu_takes_part(news: Path, tmp_path: Path) -> None:
    with connect("cuda") as client:
        pipeline.classify(str(news), tmp_path / "out", client=client, chunk_size=CHUNK_ROWS)
        rows = client.run(
            lambda: __import__("broadsheet.pipeline.telemetry.activity").pipeline.telemetry.activity.ACTIVITY.rows
        )
    assert min(rows.values()) >= CHUNK_ROWS


def test_a_model_that_goes_gives_its_device_memory_back(news: Path, tmp_path: Path) -> None:
    """A limited number of engines stays loaded: after three more models the GPU holds as much memory as before."""
    first = pipeline.load_model("ag-news")

    def other(number: int) -> pipeline.Model:
        tensors = {name: tensor * (1 + number / 100) for name, tensor in first.tensors.items()}
        return pipeline.Model(first.alphabet, first.classes, first.length, tensors)

    with connect("cuda", workers=1) as client:
        held = []
        for number in range(MOST_ENGINES + 3):
            pipeline.classify(["a", "b"], model=other(number), client=client, device="cuda")
            held.append(free_bytes())
    assert all(abs(a - b) < 64 << 20 for a, b in zip(held[MOST_ENGINES - 1], held[-1], strict=True))


def test_the_command_uses_the_gpus_unless_told(processes: Processes, news: Path, by_one: Path, tmp_path: Path) -> None:
    """With one GPU, the command computes in its own process. A killed job resumes there, with the bytes of a
    cluster.
    """
    out = tmp_path / "out"
    command = (sys.executable, "-m", "broadsheet", "classify")
    killed = processes.start(*command, news, "-o", out, "--chunk-size", CHUNK_ROWS)
    wait_until(lambda: committed(out) >= 2 or killed.poll() is not None)
    killed.kill()
    killed.communicate()
    resumed = processes.start(*command, "--resume", "-o", out)
    said, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    assert "on  cuda" in said
    assert contents(out) == contents(by_one)
    (run,) = (json.loads(file.read_text()) for file in (out / "_runs").glob("2*.json"))
    here = [worker["where"].endswith(f":{resumed.pid}") for worker in run["workers"]]
    assert here == ([True] if count_gpus() == 1 else [False] * count_gpus())
