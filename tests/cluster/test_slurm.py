"""`broadsheet submit` on a real Slurm of four nodes, each with a network of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import jobs
import psutil
import pytest
from conftest import ROOT, Command
from jobs import check_whole, committed, settings_of, spans_of

from benchmarks.chaos.slow import slowed
from benchmarks.chaos.slurm_nodes import BRIDGE, NODES, SlurmNodes, missing
from broadsheet.cluster import connect, probes
from broadsheet.cluster.protocol import count_gpus
from broadsheet.cluster.settings import SETTINGS
from broadsheet.pipeline import classify, merge, verify
from broadsheet.pipeline.model.charcnn import Model

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(missing() is not None, reason=f"no Slurm: {missing()}"),
]
GPUS_PER_NODE = int(count_gpus() > 0)
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
FILES, CHUNKS = 160, 320
"""The files and chunks of a job. Each file is a range, and there are more than two ranges for each of the 16 threads.

With fewer, Dask gives all of them to the first workers, and a worker that comes late finds none.
"""

wait_until = partial(jobs.wait_until, every=0.25)  # each check starts a process of Slurm's, or looks at all processes


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNodes]:
    nodes = SlurmNodes(tmp_path_factory.mktemp("slurm"))
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.stop()


@pytest.fixture(scope="module")
def job(small_model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list, Path]:
    folder = tmp_path_factory.mktemp("job")
    (folder / "in").mkdir()
    for number in range(FILES):
        rows = [os.urandom(10_000).hex() for _ in range(CHUNKS // FILES)]
        (folder / "in" / f"{number:02}.csv").write_text("\n".join(["text", *rows, ""]))
    options = {"model": small_model_file, "id_column": "text", "chunk_size": 1}
    classify(folder / "in", folder / "undisturbed", **options)
    arguments = ["classify", folder / "in", "--model", small_model_file, "--id-column", "text", "--chunk-size", 1]
    return arguments, folder / "undisturbed"


@pytest.fixture
def submit(broadsheet: Command, slurm: SlurmNodes, tmp_path: Path):
    """Submit a job from its folder, and return its number."""

    def run(arguments: list, *options: object, settings: str = "", env: dict[str, str] | None = None) -> str:
        site = tmp_path / "site.yaml"
        site.write_text(f"interface: eth0\nfolder: {tmp_path / 'shared'}\ngpus_per_node: {GPUS_PER_NODE}\n{settings}")
        done = broadsheet(
            "submit", *arguments[1:], *options, "--site", site,
            env={**slurm.environment, "UCX_TLS": "tcp,self", **(env or {})}, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return re.findall(r"job (\d+) is submitted", done.stdout)[0]

    return run


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """Slow workers down to 0.3 s for reading a chunk, until there is a file `fast`."""
    seconds = f"0 if os.path.exists({str(tmp_path / 'fast')!r}) else 0.3"
    return preloaded(tmp_path, slowed("read", seconds))


HELD_UP = """
import os, threading, time
def seconds(first=threading.Semaphore(4)):
    open(os.path.join({hosts!r}, os.uname().nodename), "w").close()
    while not first.acquire(blocking=False) and not os.path.exists({go_on!r}):
        time.sleep(0.1)
    return 0
""" + slowed("read", "seconds()")


@pytest.fixture
def held_up(tmp_path: Path) -> dict[str, str]:
    """Have workers write their host's name into `hosts`, and read only four chunks each until there is a file `fast`.

    So some chunks are done, and a worker that starts late finds more to do.
    """
    (tmp_path / "hosts").mkdir()
    return preloaded(tmp_path, HELD_UP.format(hosts=str(tmp_path / "hosts"), go_on=str(tmp_path / "fast")))


def preloaded(folder: Path, code: str) -> dict[str, str]:
    (folder / "preload.py").write_text(code)
    return {"DASK_DISTRIBUTED__WORKER__PRELOAD": str(folder / "preload.py")}


def hosts_in(folder: Path) -> set[str]:
    """Return the hosts whose workers have begun to read a chunk."""
    return {path.name for path in (folder / "hosts").iterdir()}


def wait_for_end(slurm: SlurmNodes, number: str, log: Path) -> dict[str, str]:
    try:
        wait_until(lambda: slurm.job(number)["JobState"] in ENDED)
    except AssertionError:
        raise AssertionError((slurm.job(number), log.read_text()[-5000:])) from None
    return slurm.job(number)


def idle(slurm: SlurmNodes) -> int:
    """Return the number of nodes without a job. A job that is ending counts as a job."""
    return int(slurm.run("sinfo", "-h", "-t", "idle", "-o", "%D") or 0)


def hosts_of(out: Path) -> set[str]:
    """Return the hosts that classified the last run's chunks."""
    return {span["where"].partition(":")[0] for span in spans_of(out)}


@pytest.mark.parametrize("nodes", [2, pytest.param(len(NODES), marks=pytest.mark.slow)])
def test_the_batch_script_spreads_a_job_over_nodes_by_ucx(
    broadsheet: Command, slurm: SlurmNodes, submit, job, held_up, tmp_path: Path, nodes: int
) -> None:
    """The default is two nodes, because UCX polls without a pause, and on four nodes ten processes share this machine's
    cores. The next test uses four nodes, without UCX.
    """
    arguments, undisturbed = job
    number = submit([*arguments, "-o", "out", "--nodes", nodes, "--protocol", "ucx"], env=held_up)
    log = tmp_path / f"broadsheet-{number}.log"
    wait_until(lambda: len(hosts_in(tmp_path)) == nodes)
    (tmp_path / "fast").touch()
    ended = wait_for_end(slurm, number, log)
    text = log.read_text()
    assert ended["JobState"] == "COMPLETED", text
    assert "protocol: UCX, as requested; transports: tcp" in text
    assert not re.search(r"Killed|srun|Traceback", text), text
    assert text.count(" distributed.") <= 2 * nodes, text  # a worker may log two lines while it stops
    assert hosts_of(tmp_path / "out") == hosts_in(tmp_path) <= set(NODES)
    check_whole(tmp_path / "out", undisturbed)
    assert not list((tmp_path / "shared").iterdir())


def test_a_node_that_loses_its_network_costs_only_time(
    broadsheet: Command, slurm: SlurmNodes, submit, job, held_up, tmp_path: Path
) -> None:
    arguments, undisturbed = job
    settings = {"SCHEDULER__WORKER_TTL": "5s", "COMM__TIMEOUTS__CONNECT": "3s"}
    env = held_up | {f"DASK_DISTRIBUTED__{name}": value for name, value in settings.items()}
    number = submit([*arguments, "-o", "out", "--nodes", 4, "--no-tls"], env=env)
    log = tmp_path / f"broadsheet-{number}.log"
    wait_until(lambda: committed(tmp_path / "out") >= 10)
    wait_until(lambda: hosts_in(tmp_path) == set(NODES))
    slurm.cut("gpu3")  # the scheduler is on gpu1
    (tmp_path / "fast").touch()
    try:
        ended = wait_for_end(slurm, number, log)
    finally:
        slurm.mend("gpu3")
    assert ended["JobState"] == "COMPLETED", log.read_text()
    assert re.search(r"listens on 10\.77\.0\.11:\d+ without TLS: anyone who can reach it can run", log.read_text())
    assert hosts_of(tmp_path / "out") >= {"gpu1", "gpu2", "gpu4"}
    check_whole(tmp_path / "out", undisturbed)
    wait_until(lambda: idle(slurm) == len(NODES))


STOP_BEFORE = 100


def test_a_job_is_requeued_at_its_time_limit_and_goes_on(
    broadsheet: Command, slurm: SlurmNodes, submit, job, held_up, tmp_path: Path
) -> None:
    """The first run cannot end within its time limit. The user submits the job once, and Slurm runs it twice."""
    arguments, undisturbed = job
    out = tmp_path / "out"
    options = ["-o", "out", "--nodes", 2, "--time", 10]
    number = submit([*arguments, *options], settings=f"stop_before: {STOP_BEFORE}\n", env=held_up)
    log = tmp_path / f"broadsheet-{number}.log"
    wait_until(lambda: committed(out))
    # Set the limit now. With a limit that is short from the start, Slurm may send its signal before any chunk is done.
    # The limit is one to two minutes away, so the signal comes within half a minute.
    minutes = int(slurm.job(number)["RunTime"].split(":")[1])
    slurm.run("scontrol", "update", f"JobId={number}", f"TimeLimit={minutes + 2}")
    until_term = ["sleep", str(STOP_BEFORE * 3 // 4)]
    wait_until(lambda: any(process.info["cmdline"] == until_term for process in psutil.process_iter(["cmdline"])))
    (tmp_path / "fast").touch()  # the run has the signal, and finishes the chunks in flight
    wait_until(lambda: (job := slurm.job(number))["Restarts"] == "1" and job["JobState"] == "PENDING")
    assert 0 < committed(out) < CHUNKS
    assert "requeued; the next run continues where this one stopped" in log.read_text()
    wait_until(lambda: idle(slurm) == len(NODES))
    # Slurm itself waits for two minutes, to be sure that the first run is gone. Here it is gone, so start the second
    # run earlier, but not at once: a node refuses a credential of the second in which it has revoked one. Extend the
    # limit, because Slurm's signal may come a minute early, and this run would be requeued too.
    slurm.run("scontrol", "update", f"JobId={number}", "TimeLimit=20", "StartTime=now+5")
    ended = wait_for_end(slurm, number, log)
    assert ended["JobState"] == "COMPLETED", log.read_text()
    assert "chunks done before" in log.read_text()
    assert "protocol: TLS over TCP" in log.read_text()
    assert "without TLS" not in log.read_text()
    check_whole(out, undisturbed)
    assert not list((tmp_path / "shared").iterdir())  # the certificates are removed with the job


def test_a_job_array_labels_shares_one_of_which_is_preempted(
    slurm: SlurmNodes, slow: dict[str, str], small_model_file: Path, tmp_path: Path
) -> None:
    """The commands are those of the documented example. A task that gets SIGTERM is queued again, and goes on."""
    folder, out = tmp_path / "in", tmp_path / "shares"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text("".join(f"text {i} of {number}\n" for i in range(40)))
    options = ["--model", small_model_file, "--chunk-size", 5, "--workers", 1]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, **slurm.environment, **slow, "PATH": path, "INPUT": str(folder), "OUTPUT": str(out)}
    command = ["sbatch", "--parsable", "--array=1-2", "--output", "log-%a", ROOT / "examples/shards/slurm_array.sh"]
    submitted = [str(part) for part in (*command, *options)]
    number = subprocess.run(submitted, cwd=tmp_path, env=env, check=True, capture_output=True, text=True).stdout.strip()
    first = f"{number}_1"
    wait_until(lambda: committed(out / "share-1") >= 2)
    subprocess.run(["scancel", "--batch", "--signal=TERM", first], env=env, check=True)
    wait_until(lambda: int(slurm.job(first)["Restarts"]) == 1)
    (tmp_path / "fast").touch()
    slurm.run("scontrol", "update", f"JobId={first}", "StartTime=now+5")  # as in the test above
    for task in (first, f"{number}_2"):
        assert wait_for_end(slurm, task, tmp_path / "log-1")["ExitCode"] == "0:0", (tmp_path / "log-1").read_text()
    assert merge([out / "share-1", out / "share-2"], tmp_path / "merged").rows_written == 160
    verify(tmp_path / "merged", input=True)


def test_a_damaged_file_holds_up_what_waits_for_an_array_unless_it_is_allowed(
    slurm: SlurmNodes, small_model_file: Path, tmp_path: Path
) -> None:
    """The commands are those of the example: the merge is cancelled, or runs and names the file."""
    folder, script = tmp_path / "in", ROOT / "examples/shards/slurm_array.sh"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.txt").write_text("".join(f"text {i} of {number}\n" for i in range(40)))
    (folder / "damaged.parquet").write_bytes(b"PAR1, and no footer")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(*command: object, out: Path) -> str:
        env = {**os.environ, **slurm.environment, "PATH": path, "INPUT": str(folder), "OUTPUT": str(out)}
        done = subprocess.run(
            ["sbatch", "--parsable", *map(str, command)], cwd=tmp_path, env=env, check=True, capture_output=True
        )
        return done.stdout.decode().strip()

    job = ["--model", small_model_file, "--workers", 1]
    for allowed, state in (([], "CANCELLED"), (["--max-unread", "1"], "COMPLETED")):
        out, merged = tmp_path / f"shares-{state}", tmp_path / f"merged-{state}"
        array = run("--array=1-2", "--output", f"log-{state}-%a", script, *job, *allowed, out=out)
        merge_all = f"broadsheet merge {out}/share-* -o {merged}"
        waits = (f"--dependency=afterok:{array}", "--kill-on-invalid-dep=yes", "--output", f"log-{state}")
        number = run(*waits, "--wrap", merge_all, out=out)
        assert wait_for_end(slurm, number, tmp_path / f"log-{state}")["JobState"] == state
        assert merged.exists() == (state == "COMPLETED")
    assert [Path(path).name for path, _ in verify(merged).unread] == ["damaged.parquet"]


def test_workers_for_a_notebook_come_by_script_or_on_demand(
    broadsheet: Command, slurm: SlurmNodes, submit, small_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = submit(["classify"], "--interactive", "--nodes", 2)
    log = tmp_path / f"broadsheet-{number}.log"
    wait_until(lambda: log.exists() and "Dashboard, from your own machine" in log.read_text())
    (file,) = re.findall(r'connect\(scheduler_file="(.+)"\)', log.read_text())
    assert re.search(r"then http://127\.0\.0\.1:8787/t\w{32}/broadsheet", log.read_text())
    assert log.stat().st_mode & 0o777 == 0o600  # the log contains the link
    found = broadsheet("doctor", "--scheduler-file", file, "--json", "-o", tmp_path / "out", env=slurm.environment)
    assert found.returncode == 0, found.stdout + found.stderr
    findings = {finding["check"]: finding for finding in json.loads(found.stdout)}
    assert findings["interface"]["found"].startswith("eth0")
    assert findings["output folder"]["verdict"] == "ok"
    assert findings["TLS"]["verdict"] == "ok"
    assert findings["listening"]["found"].endswith("dashboard 127.0.0.1:8787")
    ours = {key: str(value) for key, value in SETTINGS.items()}
    with connect(scheduler_file=file) as client:
        assert re.fullmatch(r"http://127\.0\.0\.1:8787/t\w{32}/status", client.dashboard_link)
        assert settings_of(client) == [ours, ours]
        for address, sockets in client.run(probes.listeners).items():
            beyond = {port for port, ip in sockets.items() if ip != "127.0.0.1"}
            assert beyond == {urlsplit(address).port}
    slurm.run("scancel", number)
    wait_until(lambda: idle(slurm) == len(NODES))

    site = f"interface: eth0\nscheduler_interface: {BRIDGE}\nfolder: {tmp_path / 'shared'}\n"
    (tmp_path / "site.yaml").write_text(site)
    monkeypatch.setenv("BROADSHEET_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.chdir(tmp_path)
    with connect("slurm", workers=2) as client:
        report = classify(["some", "articles"] * 50, model=small_model, client=client, chunk_size=2)
        assert report.rows_written == 100
        assert client.scheduler.address.startswith("tls://10.77.0.1:")
        assert all(found == ours for found in settings_of(client))
        assert slurm.run("squeue", "-h", "-t", "R")
    wait_until(lambda: not slurm.run("squeue", "-h"))
    assert not list((tmp_path / "shared").glob("connect-*"))  # its certificates
