"""Two workers on one GPU: when the command starts them, and that they write the same output as one worker."""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import pytest
from jobs import committed, wait_until

from benchmarks.chaos.jobs import contents
from broadsheet import pipeline
from broadsheet.cluster import connect
from broadsheet.cluster.doctor import OK, examine
from broadsheet.cluster.protocol import count_gpus
from broadsheet.pipeline.cli.shared_gpus import is_long
from broadsheet.pipeline.errors import UsageError

GPUS = count_gpus()
needs_gpu = pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU, or no dask-cuda to find it")
ROWS, CHUNK_ROWS = 20_000, 1_000


def test_a_job_is_long_from_32_gib_of_input_on(tmp_path: Path) -> None:
    """The input is folders, globs and files. Sparse files take no room."""
    for number in range(3):
        (tmp_path / f"{number}.parquet").touch()
        os.truncate(tmp_path / f"{number}.parquet", 11 << 30)
    assert is_long([str(tmp_path)])
    assert is_long([str(tmp_path / "*.parquet")])
    assert is_long(["s3://bucket/in"])
    assert not is_long([str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet"), str(tmp_path / "absent.jsonl")])
    assert not is_long([])


@pytest.fixture(scope="module")
def news(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("news") / "in.csv"
    path.write_text("text\n" + "".join(f'"{"stocks fell, goals rose; " * (i % 50)}{i}"\n' for i in range(ROWS)))
    return path


@pytest.mark.gpu
@needs_gpu
def test_two_workers_on_a_gpu_write_what_one_writes(news: Path, tmp_path: Path) -> None:
    with connect("cuda", workers=1) as client:
        pipeline.classify(str(news), tmp_path / "one", client=client, chunk_size=CHUNK_ROWS)
    with connect("cuda", workers=2 * GPUS) as client:
        visible = client.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0])
        assert set(Counter(visible.values()).values()) == {2}
        findings = {finding.check: finding for finding in examine(client)}
        assert (findings["GPUs"].verdict, findings["CPU cores"].verdict) == (OK, OK)
        assert "two workers share a GPU" in findings["GPUs"].found
        report = pipeline.classify(str(news), tmp_path / "two", client=client, chunk_size=CHUNK_ROWS)
        assert sum(device["chunks"] > 0 for device in report.to_dict()["breakdown"]["devices"]) == 2 * GPUS
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.gpu
@needs_gpu
def test_a_worker_that_shares_a_gpu_may_be_killed(news: Path, tmp_path: Path) -> None:
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    with connect("cuda", workers=2 * GPUS) as client, ThreadPoolExecutor() as pool:
        pipeline.classify(str(news), undisturbed, client=client, chunk_size=25)
        killed = next(iter(client.run(os.getpid).values()))
        job = pool.submit(pipeline.classify, str(news), out, client=client, chunk_size=25)
        wait_until(lambda: committed(out) >= 2)
        os.kill(killed, signal.SIGKILL)
        assert job.result().rows_written == ROWS
        wait_until(lambda: len(client.nthreads()) == 2 * GPUS)
    assert contents(out) == contents(undisturbed)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("is_list", [True, False])  # an environment variable sets one name without a list
def test_workers_on_gpus_run_the_preloads_that_dask_is_set_to(tmp_path: Path, is_list: bool) -> None:
    preload = tmp_path / "preload.py"
    preload.write_text("import os\nos.environ['OF_A_PRELOAD'] = 'here'\n")
    preloads = [str(preload)] if is_list else str(preload)
    with dask.config.set({"distributed.worker.preload": preloads}), connect("cuda", workers=2 * GPUS) as client:
        assert set(client.run(lambda: os.environ.get("OF_A_PRELOAD")).values()) == {"here"}


@pytest.mark.gpu
@needs_gpu
def test_more_than_two_workers_on_a_gpu_are_refused() -> None:
    with pytest.raises(UsageError, match="at most two share a GPU"), connect("cuda", workers=2 * GPUS + 1):
        pass
