"""The Dask graph on a real cluster: what overlaps, what is bounded, and what a chunk that kills workers costs."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing import resource_tracker
from pathlib import Path

import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, Command
from dask import config as dask_config
from distributed import Client, Scheduler
from jobs import Link, Processes, children_of, spans_of, start_scheduler, start_worker, wait_until, workers_that_run

from benchmarks.chaos.jobs import contents
from benchmarks.processes import PRELOAD, STAND_IN, run_job
from broadsheet.cluster import connect
from broadsheet.pipeline import classify, verify
from broadsheet.pipeline.ecosystem.resident import release
from broadsheet.pipeline.job.watchdog import Watchdog
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.report.job import Progress


def write_csv(path: Path, rows: int, width: int = 100) -> Path:
    path.write_text("text\n" + "".join(f"{i} {'x' * width}\n" for i in range(rows)))
    return path


OVERLAP = """
import threading
from broadsheet.pipeline.job.worker import STATE
from broadsheet.pipeline.labelling.engines import ENGINES
kept = vars(STATE).setdefault("kept", (STATE.read_range, STATE.commit, ENGINES.open_engine))
meeting = ({"read": 0, "infer": 0, "write": 0}, threading.Condition(), [])
entered, changed, computing = vars(STATE).setdefault("meeting", meeting)  # Dask runs a preload more than once
def enter(step, until):
    with changed:
        number = entered[step]
        entered[step] += 1
        changed.notify_all()
        if not changed.wait_for(lambda: until(number), 120):
            raise AssertionError(f"{step} {number} is alone: {entered}")
def read_range(*a):
    for found in kept[0](*a):
        if hasattr(found, "name"):  # while the chunk before it is computed
            enter("read", lambda number: entered["infer"] >= number)
        yield found
def commit(*a):  # while the chunk after it is computed
    enter("write", lambda number: entered["infer"] >= min(number + 2, 16))
    return kept[1](*a)
class Engine:
    def __init__(self, *a):
        self.engine = kept[2](*a)
    def __getattr__(self, name):
        return getattr(self.engine, name)
    def classify(self, texts, top_k=1, all_scores=False, spans=None, each_kernel=False, turn=None):
        if len(texts) != 3:  # no chunk of the job: a trial when the engine is opened
            return self.engine.classify(texts, top_k, all_scores, spans, each_kernel)
        with turn:  # while the chunk before it is written, and the one after it is read
            assert not computing
            computing.append("a chunk")
            enter("infer", lambda number: entered["write"] >= number and entered["read"] >= min(number + 2, 16))
            found = self.engine.classify(texts, top_k, all_scores, spans, each_kernel)
            computing.clear()
        return found
STATE.read_range, STATE.commit, ENGINES.open_engine = read_range, commit, Engine
"""


@pytest.mark.slow
def test_reading_computing_and_writing_overlap(
    broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path
) -> None:
    """Each step begins before the steps that run beside it have ended. If the steps ran one after the other, none
    would.
    """
    preload = tmp_path / "overlap.py"
    preload.write_text(OVERLAP)
    path = write_csv(tmp_path / "in.csv", 48)
    arguments = ["classify", path, "-o", tmp_path / "out", "--model", small_model_file, "--chunk-size", 3]
    with dask_config.set({"distributed.worker.preload": [str(preload)]}):
        run = broadsheet_in_process(*arguments, "--workers", 1)
    assert run.returncode == 0, run.stderr
    steps = Counter(s["name"] for s in spans_of(tmp_path / "out"))
    assert [steps[name] for name in ("read", "infer", "write")] == [16] * 3


TROUBLE = """
import os, signal, time
from broadsheet.pipeline.job.worker import STATE
kept = vars(STATE).setdefault("kept", STATE.read_range)
def trouble(path, first_row):
    name = os.path.basename(path)
    if (name, first_row) in (("chunk.csv", 12), ("large.csv", 12), ("row-groups.parquet", 42)):
        os.kill(os.getpid(), signal.SIGKILL)
    if (name, first_row) == ("stall.csv", 3):
        time.sleep(4)
def read_range(range_, *a):
    for item in kept(range_, *a):
        # Its rows have numbers.
        if range_.start is not None or not range_.part_number or range_.files[0].format.name == "parquet":
            trouble(*getattr(item, "sources", [("", 0)])[0][:2])
        yield item
STATE.read_range = read_range
"""


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Two workers. In each of three files, one chunk kills every worker that reads it."""
    with workers_that_run(TROUBLE, tmp_path_factory.mktemp("preload"), 2) as client:
        yield client


class Told(Progress):
    """Collects the warnings."""

    def __init__(self, patience: float = 60.0) -> None:
        self.patience = patience
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.mark.slow
def test_a_chunk_that_kills_its_workers_is_set_aside_alone_and_each_lost_worker_is_told(
    troubled: Client, small_model: Model, tmp_path: Path
) -> None:
    path, out, told = write_csv(tmp_path / "large.csv", 30, width=4000), tmp_path / "out", Told()
    workers = set(troubled.scheduler_info(n_workers=-1)["workers"])
    report = classify(path, out, model=small_model, client=troubled, chunk_size=3, progress=told)
    assert report.exit_code == 3
    assert [name for name, _ in report.run.set_aside] == ["part-000000-0000004"]
    assert report.rows_written == 26  # neither the rows of its part nor those after it
    assert not (out / "_SUCCESS").exists()
    *lost, left_out = told.warnings
    assert len(lost) == 3, told.warnings  # two workers with other chunks, and one alone
    assert all("or silent for too long) while it had" in warning for warning in lost)
    assert workers & {warning.split()[1] for warning in lost}
    assert "while it had group-000000;" in lost[-1]
    assert left_out.startswith("1 chunk was set aside: part-000000-0000004: ")
    assert classify(path, out, model=small_model, chunk_size=3, resume=True).exit_code == 0
    assert pd.read_parquet(out)["row"].tolist() == list(range(30))
    verify(out)


@pytest.mark.slow
def test_a_small_file_that_kills_workers_is_set_aside_from_there_on(
    troubled: Client, client: Client, small_model: Model, tmp_path: Path
) -> None:
    """One task reads it together with the file before it. Chunks that the task has committed stay, and are not done
    again.
    """
    write_csv(tmp_path / "a.csv", 8)
    write_csv(tmp_path / "chunk.csv", 30)
    given, out, told = {"model": small_model, "chunk_size": 4}, tmp_path / "out", Told()
    source = [tmp_path / "a.csv", tmp_path / "chunk.csv"]
    report = classify(source, out, client=troubled, progress=told, **given)
    assert report.exit_code == 3
    ((name, reason),) = report.run.set_aside
    assert (name, reason) == ("part-000000-0000005", "it kills every worker that takes it")
    assert report.rows_written == pd.read_parquet(out).shape[0] == 20
    assert sum("while it had group-000000;" in warning for warning in told.warnings) == 3
    whole = classify(source, out, client=client, resume=True, **given)
    assert (whole.exit_code, whole.run.chunks_before, whole.rows_written) == (0, 5, 38)
    verify(out)


@pytest.mark.slow
def test_row_groups_that_kill_workers_are_set_aside_and_no_others(
    troubled: Client, small_model: Model, tmp_path: Path
) -> None:
    """The file has a part for each of its three row groups. In memory, the labels of a lost worker are lost."""
    path, told = tmp_path / "row-groups.parquet", Told()
    pq.write_table(pa.table({"text": [f"{i} {os.urandom(2000).hex()}" for i in range(90)]}), path, row_group_size=30)
    report = classify(path, model=small_model, client=troubled, chunk_size=3, progress=told)
    ((name, reason),) = report.run.set_aside
    assert reason == "it kills every worker that takes it"
    rows = report.to_pandas()
    assert rows["row"].tolist() == [*range(30), *range(60, 90)], name
    assert rows["label"].notna().all()
    assert 3 <= len(told.warnings) <= 6, told.warnings


@pytest.mark.slow
def test_a_stalled_job_says_which_chunk_worker_and_step_it_waits_for(
    troubled: Client, small_model: Model, tmp_path: Path
) -> None:
    """The job also names a stopped process, including one of Python's own helpers.

    It names it at its end too, because the process holds the command's output open.
    """
    told, path = Told(patience=1.0), write_csv(tmp_path / "stall.csv", 9)
    resource_tracker.ensure_running()
    helpers = children_of(os.getpid(), "from multiprocessing.resource_tracker")
    for helper in helpers:
        helper.suspend()
    try:
        report = classify(path, model=small_model, client=troubled, chunk_size=3, progress=told)
    finally:
        for helper in helpers:
            helper.resume()
    assert report.exit_code == 0
    assert report.rows_written == 9
    workers = "|".join(map(re.escape, troubled.scheduler_info(n_workers=-1)["workers"]))
    stopped = [
        f"process {helper.pid} (multiprocessing's resource tracker) is stopped: kill -CONT {helper.pid} lets it go on"
        for helper in helpers
    ]
    expected = rf"no chunk has finished for (\d+) s: group-000000 is in label on worker ({workers}) for \d+ s; "
    # The job has continued them at its end.
    assert not any(helper.status() == psutil.STATUS_STOPPED for helper in helpers)
    assert told.warnings.count(stopped[0]) <= 1  # the process is named alone at most once
    warnings = [w for w in told.warnings if w != stopped[0]]
    found = [re.fullmatch(expected + re.escape("; ".join(stopped)), w) for w in warnings]
    named = [each[0] for each in found if each]
    seconds = [int(each[1]) for each in found if each]
    assert seconds, told.warnings
    # Warnings come after one second, two, four, and so on. The delay starts over once a chunk has finished.
    assert sum(then < 2 * now - 2 for now, then in pairwise(seconds)) <= 3, told.warnings
    before = re.compile(
        r"the model is not loaded|no chunk has finished for \d+ s: (\d+ tasks wait|the client is|the scheduler has)"
    )
    of_chunks = [w for w in warnings if not before.match(w)]  # warnings before that come only on a busy machine
    assert [*named, told.warnings[-1]] == of_chunks  # the job repeats its warning at the end
    assert told.warnings[-1].startswith(f"{stopped[-1]}; whoever reads what this command says")


@pytest.mark.slow
def test_files_that_vanish_are_set_aside_and_the_rest_is_done(
    broadsheet_in_process: Command, client: Client, small_model_file: Path, tmp_path: Path
) -> None:
    """One file is small, and one is large enough to be scanned. A resume reads both once they exist again."""
    preload, folder, out = tmp_path / "vanish.py", tmp_path / "in", tmp_path / "out"
    gone = [folder / "b.csv", folder / "d.csv"]
    preload.write_text(
        "import os\n"
        f"for name in {[str(path) for path in gone]}:\n"
        "    if os.path.exists(name):\n        os.rename(name, name + '.away')\n"
    )
    folder.mkdir()
    for name, width in {"a": 30_000, "b": 100, "c": 30_000, "d": 30_000}.items():
        write_csv(folder / f"{name}.csv", 5, width)
    arguments = ["classify", folder, "-o", out, "--model", small_model_file, "--chunk-size", 5]
    with dask_config.set({"distributed.worker.preload": [str(preload)]}):
        run = broadsheet_in_process(*arguments)
    assert run.returncode == 3
    for path in gone:
        assert f"{path}: it can no longer be read: No such file or directory" in run.stdout
        os.rename(f"{path}.away", path)
    assert len(pd.read_parquet(out)) == 10
    assert classify(folder, out, model=small_model_file, chunk_size=5, client=client, resume=True).exit_code == 0
    assert len(pd.read_parquet(out)) == 20


def test_a_job_goes_on_when_somebody_replicates_data(client: Client) -> None:
    """Dask then logs an event that it cannot send to a client which subscribes to all events."""

    def looks(dask_scheduler: Scheduler) -> int:
        asked = [event for _, event in dask_scheduler.get_events("all") if event["action"] == "run-function"]
        return sum("watchdog" in repr(event["function"]) for event in asked)

    before = client.run_on_scheduler(looks)
    with Watchdog(client, "nothing is done", pytest.fail, patience=1e6) as watchdog:
        watchdog.worker_lost()
        wait_until(lambda: client.run_on_scheduler(looks) > before)
        (numbers,) = client.scatter([[1, 2]], broadcast=True, hash=False)
        assert client.submit(sum, numbers, pure=False).result() == 3


def test_nothing_listens_beyond_loopback_and_cores_are_not_oversubscribed(client: Client, small_model: Model) -> None:
    client.run(release)
    classify(["x"] * 40, model=small_model, client=client)
    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    addresses = {c.laddr.ip for p in processes for c in p.net_connections("tcp") if c.status == "LISTEN"}
    assert addresses
    assert addresses <= {"127.0.0.1", "::1"}
    assert client.dashboard_link.startswith("http://127.0.0.1:")
    # A page without Bokeh: where two clusters of one process have open pages, one in a hundred of Bokeh's pages fails.
    with urllib.request.urlopen(
        client.dashboard_link.replace("/status", "/info/main/workers.html"), timeout=240
    ) as page:
        assert b"Scheduler" in page.read()
    threads = client.run(_threads)
    most = max(1, (os.cpu_count() or 1) // 2)  # threads of one engine; one engine computes at a time
    assert all(blas == "1" and count <= most * engines for blas, count, engines in threads.values())


def _threads() -> tuple[str | None, int, int]:
    """Return the setting of BLAS, the number of computing threads, and the number of engines in a worker."""
    from broadsheet.pipeline.labelling.engines import ENGINES

    computing = sum(thread.name.startswith("broadsheet-compute") for thread in threading.enumerate())
    return os.environ.get("OPENBLAS_NUM_THREADS"), computing, len(ENGINES.engines)


@pytest.mark.slow
def test_memory_is_bounded_by_chunks_in_flight(small_model_file: Path) -> None:
    """For 1.5 GiB of input, no process holds more than a fifth of it beyond what it has loaded, even on a
    busy machine.
    """
    megabytes = 1536
    command = [sys.executable, "-m", "benchmarks.memory", "--model", str(small_model_file)]
    command += ["--megabytes", str(megabytes), "--chunk-size", "4096"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=True)
    (measured,) = json.loads(run.stdout)["runs"]
    assert measured["rows"] > 6_000_000
    loaded = 300 << 20  # loaded by a worker, and by a client
    for role in ("client", "worker"):
        assert measured["peak_bytes"][role] < loaded + (megabytes << 20) // 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_chunk_that_is_done_leaves_little(small_model_file: Path) -> None:
    """For 10,000 chunks of one file, the job keeps their packed entries and the places of their spans, and nothing
    else.
    """
    chunks = 10_000
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        path = Path(folder) / "in.jsonl.gz"
        path.write_bytes(gzip.compress(b"".join(b'{"text": "news %d"}\n' % row for row in range(chunks))))
        options = ["--model", small_model_file, "--chunk-size", 1, "--workers", 1]
        report, sampler = run_job(path, "-o", Path(folder) / "out", *options, **{PRELOAD: STAND_IN})
    assert report["rows_written"] == chunks
    found = sampler.to_dict(chunks)
    assert found["worker"]["growth_bytes_a_chunk"] < 1500
    assert found["client"]["growth_bytes_a_chunk"] < 1500


@pytest.mark.slow
def test_a_scheduler_that_runs_and_workers_that_differ(
    broadsheet_in_process: Command, client: Client, small_model_file: Path, processes: Processes, tmp_path: Path
) -> None:
    """Workers of one kind give the same result as the embedded cluster. A mixture of kinds is refused unless you allow
    it.
    """
    path = write_csv(tmp_path / "in.csv", 40)
    arguments = ["classify", path, "--model", small_model_file, "--chunk-size", 5]
    _, scheduler_file = start_scheduler(processes, tmp_path)
    start_worker(processes, scheduler_file)
    with connect(scheduler_file=scheduler_file) as running:
        options = {"client": running, "progress": (progress := Link())}
        classify(path, tmp_path / "there", model=small_model_file, chunk_size=5, **options)
    assert re.fullmatch(r"http://.+/status", progress.dashboard)  # Dask's dashboard, without our page
    classify(path, tmp_path / "here", model=small_model_file, chunk_size=5, client=client)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    start_worker(processes, scheduler_file, {"OPENBLAS_CORETYPE": "Prescott"})
    with Client(scheduler_file=str(scheduler_file), set_as_default=False) as running:
        running.wait_for_workers(2, timeout=240)
    mixed = [*arguments, "-o", tmp_path / "mixed", "--scheduler-file", scheduler_file]
    refused = broadsheet_in_process(*mixed)
    assert refused.returncode == 2
    assert "Use workers of one kind, or --allow-mixed" in refused.stderr
    allowed = broadsheet_in_process(*mixed, "--allow-mixed")
    assert allowed.returncode == 0, allowed.stderr
    assert broadsheet_in_process("verify", tmp_path / "mixed").returncode == 0
