"""Where workers come from: the clusters that `connect` starts, refuses and describes; and the doctor."""

from __future__ import annotations

import gc
import json
import os
import re
import socket
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import and_
from pathlib import Path

import pytest
from conftest import ROOT, Command
from distributed import Client
from distributed.batched import BatchedSend
from distributed.core import PooledRPCCall
from jobs import Processes, wait_until

from broadsheet import pipeline
from broadsheet.cluster import connect
from broadsheet.cluster.protocol import choose, count_gpus, has_ucx
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model.charcnn import Model

TEXTS = [f"{'x' * (i % 37)} {i}" for i in range(90)]


def test_ucx_with_tls_is_refused_and_says_why(broadsheet_in_process: Command, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\nhello\n")
    run = broadsheet_in_process("classify", tmp_path / "in.csv", "-o", tmp_path / "out", "--protocol", "ucx", "--tls")
    assert run.returncode == 2
    assert "UCX traffic is neither encrypted nor bound to one interface" in run.stderr


@pytest.mark.slow
@pytest.mark.skipif(not has_ucx(), reason="distributed-ucxx is not installed (extra ucx13)")
def test_ucx_gives_the_labels_that_tcp_gives(
    broadsheet: Command, broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("text\n" + "".join(f"{text}\n" for text in TEXTS))
    arguments = ["classify", tmp_path / "in.csv", "--model", small_model_file, "--chunk-size", 10, "--workers", 1]
    env = {"UCX_TLS": "tcp,self"} if not count_gpus() else {}
    run = broadsheet(*arguments, "-o", tmp_path / "ucx", "--protocol", "ucx", "--cluster", "local", env=env)
    assert run.returncode == 0, run.stderr
    assert "protocol: UCX, as requested; transports: " in run.stderr
    assert "not encrypted, listens on all interfaces" in run.stderr
    assert "without TLS: anyone who can reach it can run code as you" in run.stderr
    run = broadsheet_in_process(*arguments, "-o", tmp_path / "tcp", "--protocol", "tcp", "--cluster", "local")
    assert run.returncode == 0, run.stderr
    assert "protocol: TLS over TCP: encrypted" in run.stderr
    assert "without TLS" not in run.stderr
    for file in (tmp_path / "tcp" / "parts").iterdir():
        assert (tmp_path / "ucx" / "parts" / file.name).read_bytes() == file.read_bytes()


def test_options_that_would_have_no_effect_are_refused(client: Client, small_model: Model, tmp_path: Path) -> None:
    for useless in ({"workers": 2}, {"protocol": "tcp"}, {"tls": False}):
        with pytest.raises(UsageError, match="a worker within this process"), connect(processes=False, **useless):
            pass
    job = {"model": small_model, "device": "cpu"}
    with pytest.raises(UsageError, match="client has its own"):
        pipeline.classify(["a"], client=client, workers=2, **job)
    with pytest.raises(UsageError, match="root= is for the paths of files"):
        pipeline.classify(["a"], client=client, root=tmp_path, **job)


@pytest.mark.skipif(count_gpus() > 0, reason="there are GPUs")
def test_without_gpus_the_protocol_is_tcp_and_says_why() -> None:
    assert choose("auto", hosts=4)[0] == choose("tcp", hosts=1)[0] == choose("auto", hosts=1, tls=True)[0] == "tls"
    assert choose("auto", hosts=1, tls=False) == ("tcp", "protocol: TCP, since all workers are on one host")
    assert choose("auto", hosts=4, tls=False) == ("tcp", "protocol: TCP, since the 4 hosts have no GPUs to connect")
    with pytest.raises(UsageError, match=r"does nvidia-smi list one\?|needs dask-cuda: pip install 'dask-cuda"):
        connect("cuda").__enter__()


def test_a_small_job_on_a_warm_cluster_costs_few_requests(
    client: Client, small_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test counts what the client asks of the scheduler. Text goes straight to the workers, and nothing is asked
    twice.

    Dask asks for things of its own between the requests of a job, so only requests that all five jobs made count.
    """
    pipeline.classify(TEXTS, model=small_model, client=client, device="cpu")
    asked: list[str] = []
    kept = PooledRPCCall.__getattr__

    def ask(rpc: PooledRPCCall, name: str) -> object:
        if rpc is client.scheduler:
            asked.append(name)
        return kept(rpc, name)

    monkeypatch.setattr(PooledRPCCall, "__getattr__", ask)
    jobs = []
    for _ in range(5):
        asked.clear()
        pipeline.classify(TEXTS, model=small_model, client=client, device="cpu", chunk_size=30)
        wait_until(lambda: asked.count("set_metadata") >= 2)  # for the dashboard; no code waits for it
        jobs.append(Counter(asked))
    in_each_job = reduce(and_, jobs)
    assert 1 <= in_each_job.pop("gather") <= 3
    of_dask = {"set_metadata", "identity"}  # Dask's client asks for "identity" every two seconds, to learn of workers
    assert {name: count for name, count in in_each_job.items() if name not in of_dask} == {
        "run_function": 1,
        "ncores_running": 1,
        "update_data": 1,
    }


def test_a_small_job_sends_its_graph_at_once_and_releases_its_chunks_at_its_end(
    client: Client, small_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask's client sends one batch of messages in 10 ms, so a message in the middle of a job would delay the next."""
    pipeline.classify(TEXTS, model=small_model, client=client, device="cpu")
    events: list[str] = []
    sent, kept = BatchedSend.send, PooledRPCCall.__getattr__

    def send(batched: BatchedSend, *messages: dict) -> None:
        if batched is client.scheduler_comm:
            events.extend(message["op"] for message in messages)
        sent(batched, *messages)

    def ask(rpc: PooledRPCCall, name: str) -> object:
        if rpc is client.scheduler:
            events.append(name)
        return kept(rpc, name)

    def is_in_order(ours: list[str]) -> bool:
        """Return whether the messages are one graph, then requests about results, then releases."""
        releases = len(ours) - ours.index("client-releases-keys")
        return ours.count("update-graph") == 1 and {*ours[-releases:]} == {"client-releases-keys"}

    monkeypatch.setattr(BatchedSend, "send", send)
    monkeypatch.setattr(PooledRPCCall, "__getattr__", ask)
    jobs: list[list[str]] = []
    # On a busy machine, a job may be sent in several batches.
    while len(jobs) < 20 and not (jobs and is_in_order(jobs[-1])):
        gc.collect()  # Dask sends messages about what earlier tests left behind
        time.sleep(0.1)
        events.clear()
        pipeline.classify(TEXTS, model=small_model, client=client, device="cpu", chunk_size=6)
        wait_until(lambda: events.count("client-releases-keys") >= len(TEXTS) / 6)
        jobs.append([event for event in events if event in {"update-graph", "gather", "client-releases-keys"}])
    assert is_in_order(jobs[-1]), jobs


def test_a_script_for_slurm_is_printed_and_a_wrong_setting_refused(
    broadsheet_in_process: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my news.csv").write_text("title,text\na,b\n")
    site = tmp_path / "site.yaml"
    site.write_text("partition: gpu\naccount: news\ninterface: ib0\ndirectives: ['--qos=long']\n")
    arguments = ["submit", "my news.csv", "-o", "out", "--text-column", "title", "--nodes", 4, "--gpus-per-node", 4]
    run = broadsheet_in_process(*arguments, "--site", site, "--dry-run")
    assert run.returncode == 0, run.stderr
    for line in ("--nodes=4", "--gpus-per-node=4", "--partition=gpu", "--account=news", "--qos=long", "--requeue",
                 "--signal=B:USR1@120"):  # fmt: skip
        assert f"#SBATCH {line}\n" in run.stdout
    assert "ARGUMENTS=('my news.csv' -o out --text-column title --resume)" in run.stdout
    assert subprocess.run(["bash", "-n"], input=run.stdout, text=True, check=False).returncode == 0
    assert "--update)" in broadsheet_in_process(*arguments[:4], "--update", "--dry-run", "--site", site).stdout
    interactive = broadsheet_in_process("submit", "--interactive", "--nodes", 2, "--dry-run", "--site", site)
    assert 'connect(scheduler_file="$scheduler_file")' in interactive.stdout
    for more, message in (
        (["--tls", "--protocol", "ucx"], "UCX together with TLS is refused"),
        (["--overwrite"], "remove the old folder yourself"),
        (["--id-column", "titel"], "no column 'titel'; it has: title, text; did you mean 'title'?"),
        (["none.csv"], "no input at 'none.csv'"),
        (["--model", "none.safetensors"], "none.safetensors"),
        (["--nonsense"], "No such option"),
        (["-o", "-"], "reads files and writes to a folder"),
    ):
        refused = broadsheet_in_process(*arguments, "--site", site, "--dry-run", *more)
        assert refused.returncode == 2
        assert message in refused.stderr
    site.write_text("partitoin: gpu\n")
    refused = broadsheet_in_process(*arguments, "--site", site, "--dry-run")
    assert refused.returncode == 2
    assert "unknown key 'partitoin'" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["auto", "ucx"] if has_ucx() else ["auto"])
def test_the_doctor_finds_nothing_wrong_here(
    broadsheet: Command, broadsheet_in_process: Command, tmp_path: Path, protocol: str
) -> None:
    """With UCX, which you have to ask for, its only finding is that UCX has no TLS."""
    env = {"COLUMNS": "80"} | ({} if count_gpus() else {"UCX_TLS": "tcp,self"})
    doctor = broadsheet if protocol == "ucx" else broadsheet_in_process  # once loaded, UCX stays in a process
    run = doctor("doctor", "-o", tmp_path / "out", "--protocol", protocol, env=env)
    assert run.returncode == 0, run.stdout + run.stderr
    assert max(map(len, run.stdout.splitlines())) <= 80
    checks = ["versions", "imports", "GPUs", "CPU cores", "kernels", "interface", "TLS", "listening", "output folder"]
    transfer = ["UCX transports", "transfer, ucx"] if protocol == "ucx" else ["transfer, tls"]
    for check in [*checks, *transfer, "clocks"]:
        assert any(line.startswith(f"{check}  ") for line in run.stdout.splitlines()), check
    (tls,) = (line.split() for line in run.stdout.splitlines() if line.startswith("TLS  "))
    assert tls[1] == ("warning" if protocol == "ucx" else "ok")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_the_doctor_names_what_is_wrong_with_a_cluster(
    broadsheet_in_process: Command, processes: Processes, tmp_path: Path
) -> None:
    """The worker's `broadsheet` is a folder of the user's, and the worker sees another output folder."""
    file, shadow = tmp_path / "scheduler.json", tmp_path / "shadow"
    (shadow / "broadsheet").mkdir(parents=True)
    (shadow / "broadsheet" / "__init__.py").write_text("# an analysis of newspapers\n")
    processes.dask(
        "scheduler", "--host", "127.0.0.1", "--port", 0, "--scheduler-file", file, "--dashboard-address", ":0"
    )
    here = ["worker", "--scheduler-file", file, "--host", "127.0.0.1", "--no-nanny", "--no-dashboard"]
    processes.dask(*here)
    # Start in another folder, because `python -m` looks for modules in the current one first.
    processes.dask(*here, env={"PYTHONPATH": f"{shadow}{os.pathsep}{ROOT}"}, cwd=tmp_path)
    wait_until(file.exists)
    with Client(scheduler_file=str(file)) as client:
        client.wait_for_workers(2, timeout=240)
    run = broadsheet_in_process("doctor", "--scheduler-file", file, "--json", "-o", "/proc/nowhere", cwd=tmp_path)
    assert run.returncode == 1, run.stderr
    findings = {finding["check"]: finding for finding in json.loads(run.stdout)}
    assert findings["imports"]["verdict"] == "FAILURE"
    assert f"imports broadsheet from {shadow / 'broadsheet'}" in findings["imports"]["found"]
    assert "rename your own folder" in findings["imports"]["remedy"]
    assert findings["output folder"]["verdict"] == "FAILURE"
    assert findings["TLS"]["found"] == "none: any user of this host can run code as you"
    assert findings["listening"]["verdict"] == "warning"  # the dashboard listens on every interface
    assert findings["transfer, tcp"]["verdict"] == "ok"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", b"", "no Dask scheduler: it says b'SSH-2.0"),
        (b"", b"HTTP/1.0 200 OK\r\n\r\n", "no Dask scheduler: it says b'HTTP/1.0 200 OK"),
        (b"", b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS: give tls://"),
    ],
)
def test_what_is_no_scheduler_is_named(first: bytes, then: bytes, told: str) -> None:
    """One such server speaks first, and the other only answers requests, as a web server does."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            with server.accept()[0] as other:
                other.sendall(first)
                if other.recv(100):
                    other.sendall(then)

        answering = pool.submit(answer)
        with pytest.raises(UsageError, match=re.escape(told)), connect(f"tcp://127.0.0.1:{server.getsockname()[1]}"):
            pass
        answering.result()
