"""Where workers come from: what `connect` starts, refuses and says; TLS; the doctor."""

from __future__ import annotations

import gc
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from conftest import ROOT, Command
from distributed import Client
from distributed.core import PooledRPCCall
from jobs import Processes, wait_until

import pipeline
from cluster import connect
from cluster.protocol import choose, count_gpus, has_ucx
from cluster.tls import make_certificates
from pipeline.errors import UsageError
from pipeline.model.charcnn import Model

TEXTS = [f"{'x' * (i % 37)} {i}" for i in range(90)]


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    found.end()


def ports_of(client: Client) -> list[int]:
    """Where the scheduler, the nannies and the workers listen."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    addresses = [client.scheduler.address, *workers, *(worker["nanny"] for worker in workers.values())]
    return [urlsplit(address).port or 0 for address in addresses]


def answer(port: int, context: ssl.SSLContext | None) -> bytes:
    """What a port sends to an unknown client: Dask's side of a connection begins with a greeting."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as plain:
            return (plain if context is None else context.wrap_socket(plain)).recv(64)
    except (OSError, ssl.SSLError):
        return b""


def stranger(folder: Path | None) -> ssl.SSLContext:
    """A client that trusts anyone, with another job's certificate or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if folder is not None:
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def test_with_tls_a_stranger_gets_nothing_from_any_port(
    small_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without TLS, or without this job's certificate, no port answers; those of a cluster without TLS do."""
    make_certificates(tmp_path / "another")
    assert (tmp_path / "another").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "another").iterdir()} == {0o600}
    with connect(workers=2, tls=True) as client:
        assert "protocol: TLS over TCP, as requested" in capsys.readouterr().err
        assert client.scheduler.address.startswith("tls://127.0.0.1:")
        assert pipeline.classify(TEXTS, model=small_model, client=client, chunk_size=10).rows_written == len(TEXTS)
        assert len(ports_of(client)) == 5
        me = psutil.Process()
        sockets = [c for p in (me, *me.children(recursive=True)) for c in p.net_connections("tcp")]
        assert {c.laddr.ip for c in sockets if c.status == "LISTEN"} <= {"127.0.0.1", "::1"}
        for port in ports_of(client):
            for context in (None, stranger(None), stranger(tmp_path / "another")):
                assert answer(port, context) == b""
        with pytest.raises(OSError, match=r"TLS|SSL|imed out|closed|certificate"):
            Client(client.scheduler.address.replace("tls://", "tcp://"), timeout=2)
    with connect(workers=1) as client:
        assert all(answer(port, None) for port in ports_of(client))


def test_ucx_with_tls_is_refused_and_says_why(broadsheet: Command, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\nhello\n")
    run = broadsheet("classify", tmp_path / "in.csv", "-o", tmp_path / "out", "--protocol", "ucx", "--tls")
    assert run.returncode == 2
    assert "UCX traffic is neither encrypted nor bound to one interface" in run.stderr


@pytest.mark.skipif(not has_ucx(), reason="distributed-ucxx is not installed (extra ucx13)")
def test_ucx_gives_the_labels_that_tcp_gives(broadsheet: Command, small_model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\n" + "".join(f"{text}\n" for text in TEXTS))
    arguments = ["classify", tmp_path / "in.csv", "--model", small_model_file, "--chunk-size", 10, "--workers", 2]
    env = {"UCX_TLS": "tcp,self"} if not count_gpus() else {}
    run = broadsheet(*arguments, "-o", tmp_path / "ucx", "--protocol", "ucx", "--cluster", "local", env=env)
    assert run.returncode == 0, run.stderr
    assert "protocol: UCX, as requested; transports: " in run.stderr
    assert "not encrypted, listens on all interfaces" in run.stderr
    assert broadsheet(*arguments, "-o", tmp_path / "tcp", "--protocol", "tcp", "--cluster", "local").returncode == 0
    for file in (tmp_path / "tcp" / "parts").iterdir():
        assert (tmp_path / "ucx" / "parts" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.skipif(count_gpus() > 0, reason="there are GPUs")
def test_without_gpus_the_protocol_is_tcp_and_says_why() -> None:
    assert choose("auto", hosts=1) == ("tcp", "protocol: TCP, since all workers are on one host")
    assert choose("auto", hosts=4) == ("tcp", "protocol: TCP, since the 4 hosts have no GPUs to connect")
    with pytest.raises(UsageError, match=r"does nvidia-smi list one\?|pip install 'broadsheet\[cluster\]'"):
        connect("cuda").__enter__()


def test_another_model_replaces_the_engine_and_the_same_one_stays(client: Client, small_model: Model) -> None:
    def engines() -> dict[str, list[tuple[str, int]]]:
        return client.run(lambda: [(k, id(e)) for k, e in import_module("pipeline.worker").STATE.engines.items()])

    pipeline.classify(TEXTS, model=small_model, client=client)
    before = engines()
    pipeline.classify(TEXTS, model=small_model, client=client)
    assert engines() == before
    tensors = {name: -tensor for name, tensor in small_model.tensors.items()}
    other = Model(small_model.alphabet, small_model.classes, small_model.length, tensors)
    with Client(client.scheduler.address, set_as_default=False) as another:
        pipeline.classify(TEXTS, model=other, client=another)
    after = engines()
    assert all(len(of_worker) == 1 and of_worker[0][0] != before[w][0][0] for w, of_worker in after.items())
    assert pipeline.classify(TEXTS, model=small_model, client=client).rows_written == len(TEXTS)


def test_a_small_job_on_a_warm_cluster_costs_few_requests(
    client: Client, small_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the client asks of the scheduler: nothing is passed on to workers but text, and nothing asked twice."""
    pipeline.classify(TEXTS, model=small_model, client=client, device="cpu")
    asked: list[str] = []
    kept = PooledRPCCall.__getattr__

    def ask(rpc: PooledRPCCall, name: str) -> object:
        if rpc is client.scheduler:
            asked.append(name)
        return kept(rpc, name)

    monkeypatch.setattr(PooledRPCCall, "__getattr__", ask)
    pipeline.classify(TEXTS, model=small_model, client=client, device="cpu", chunk_size=30)
    wait_until(lambda: asked.count("set_metadata") >= 2)  # for the dashboard, with nobody waiting
    waited_for = Counter(name for name in asked if name != "set_metadata")
    assert 1 <= waited_for.pop("gather") <= 3
    assert waited_for == {"run_function": 1, "scatter": 1}


def test_a_small_job_leaves_no_message_that_delays_the_next_one(client: Client, small_model: Model) -> None:
    """Dask's client sends its scheduler one message in 10 ms: a job is one, and the end of all its chunks another."""
    sent = []
    for chunk_size in (30, 30, 10, 10, 6, 6, 6):
        gc.collect()  # what earlier tests left
        time.sleep(0.1)
        before = client.scheduler_comm.batch_count
        pipeline.classify(TEXTS, model=small_model, client=client, device="cpu", chunk_size=chunk_size)
        time.sleep(0.2)
        sent.append(client.scheduler_comm.batch_count - before)
    assert statistics.median(sent) == 2  # a heartbeat may be among them


def test_a_script_for_slurm_is_printed_and_a_wrong_setting_refused(broadsheet: Command, tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("partition: gpu\naccount: news\ninterface: ib0\ndirectives: ['--qos=long']\n")
    arguments = ["submit", "my news.csv", "-o", "out", "--text-column", "title", "--nodes", 4, "--gpus-per-node", 4]
    run = broadsheet(*arguments, "--site", site, "--dry-run")
    assert run.returncode == 0, run.stderr
    for line in ("--nodes=4", "--gpus-per-node=4", "--partition=gpu", "--account=news", "--qos=long", "--requeue",
                 "--signal=B:USR1@120"):  # fmt: skip
        assert f"#SBATCH {line}\n" in run.stdout
    assert "ARGUMENTS=('my news.csv' -o out --text-column title)" in run.stdout
    assert subprocess.run(["bash", "-n"], input=run.stdout, text=True, check=False).returncode == 0
    interactive = broadsheet("submit", "--interactive", "--nodes", 2, "--dry-run", "--site", site)
    assert 'connect(scheduler_file="$scheduler_file")' in interactive.stdout
    for more, message in (
        (["--tls", "--protocol", "ucx"], "UCX together with TLS is refused"),
        (["--overwrite"], "remove the old folder yourself"),
    ):
        refused = broadsheet(*arguments, "--site", site, "--dry-run", *more)
        assert refused.returncode == 2
        assert message in refused.stderr
    site.write_text("partitoin: gpu\n")
    refused = broadsheet(*arguments, "--site", site, "--dry-run")
    assert refused.returncode == 2
    assert "unknown key 'partitoin'" in refused.stderr


def test_the_doctor_finds_nothing_wrong_here(broadsheet: Command, tmp_path: Path) -> None:
    env = {"COLUMNS": "80"} | ({} if count_gpus() else {"UCX_TLS": "tcp,self"})
    run = broadsheet("doctor", "-o", tmp_path / "out", env=env)
    assert run.returncode == 0, run.stdout + run.stderr
    assert max(map(len, run.stdout.splitlines())) <= 80
    checks = ["versions", "imports", "GPUs", "CPU cores", "kernels", "interface", "transfer, tcp", "TLS", "listening"]
    for check in checks + ["output folder", "clocks"] + ["UCX transports", "transfer, ucx"] * has_ucx():
        assert any(line.startswith(f"{check}  ") for line in run.stdout.splitlines()), check
    assert not list((tmp_path / "out").iterdir())


def test_the_doctor_names_what_is_wrong_with_a_cluster(
    broadsheet: Command, processes: Processes, tmp_path: Path
) -> None:
    """A worker whose `cluster` is a folder of the user's, and that sees another output folder."""
    file, shadow = tmp_path / "scheduler.json", tmp_path / "shadow"
    (shadow / "cluster").mkdir(parents=True)
    (shadow / "cluster" / "__init__.py").write_text("# an analysis of clusters\n")
    processes.dask(
        "scheduler", "--host", "127.0.0.1", "--port", 0, "--scheduler-file", file, "--dashboard-address", ":0"
    )
    here = ["worker", "--scheduler-file", file, "--host", "127.0.0.1", "--no-nanny", "--no-dashboard"]
    processes.dask(*here)
    processes.dask(*here, env={"PYTHONPATH": f"{shadow}{os.pathsep}{ROOT}"})
    wait_until(file.exists)
    with Client(scheduler_file=str(file)) as client:
        client.wait_for_workers(2, timeout=60)
    run = broadsheet("doctor", "--scheduler-file", file, "--json", "-o", "/proc/nowhere", cwd=tmp_path)
    assert run.returncode == 1, run.stderr
    findings = {finding["check"]: finding for finding in json.loads(run.stdout)}
    assert findings["imports"]["verdict"] == "FAILURE"
    assert f"imports cluster from {shadow / 'cluster'}" in findings["imports"]["found"]
    assert "rename your own folder" in findings["imports"]["remedy"]
    assert findings["output folder"]["verdict"] == "FAILURE"
    assert findings["listening"]["verdict"] == "warning"  # its dashboard, on every interface
    assert findings["transfer, tcp"]["verdict"] == "ok"


def test_a_folder_called_cluster_where_a_job_starts_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "__init__.py").write_text("raise ImportError('the wrong one')\n")
    (tmp_path / "in.csv").write_text("text\nhello\n")
    command = [Path(sys.executable).with_name("broadsheet"), "classify", "in.csv", "-o", "out", "--workers", "1"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ, check=False)
    assert run.returncode == 0, run.stderr
