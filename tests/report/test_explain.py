"""Every job explains itself: spans, breakdown and verdict, the exported timeline, clocks, what a process did in each
second, NVTX ranges.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from pathlib import Path

import dask
import numpy as np
import pytest
from conftest import ROOT, Command
from jobs import spans_of

from benchmarks.chaos.processes import KILL_PRELOAD
from benchmarks.chaos.slow import slowed
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.engine.profile import sample
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.report.breakdown import MOMENTS, break_down
from broadsheet.pipeline.report.timeline import Timeline
from broadsheet.pipeline.telemetry.activity import WAITING, ActivityLog
from broadsheet.pipeline.telemetry.spans import Clock, Place, Span, device_spans

BLOCKS = {"conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2", "fc3"}


def write_csv(path: Path, rows: int) -> Path:
    """Write a file above 64 KiB, because one worker alone reads a smaller file."""
    path.write_text("text\n" + "".join(f"{i} {'x' * (70_000 // rows)}\n" for i in range(rows)))
    return path


def figureless(line: str) -> str:
    return " ".join(re.sub(r"[\d.,]+%?|─+", "", line).split())


@pytest.mark.slow
def test_a_job_says_where_its_time_went(broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path) -> None:
    path, out = write_csv(tmp_path / "in.csv", 96), tmp_path / "out"
    arguments = ["classify", path, "-o", out, "--model", small_model_file, "--workers", 2, "--chunk-size", 8]
    run = broadsheet_in_process(*arguments, "--profile", "--trace", "trace.json", env={"COLUMNS": "80"}, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    shown = run.stdout.splitlines()
    for name in (*MOMENTS, "end", "busy", "articles"):
        assert any(line.strip().startswith(name) for line in shown), name
    quoted = (ROOT / "docs" / "explain.md").read_text().partition("seconds from start")[2].partition("bound by")[0]
    assert set(map(figureless, quoted.splitlines()[1:])) <= set(map(figureless, shown))
    paths = (str(tmp_path), str(small_model_file))
    assert max(len(line) for line in shown if not any(p in line for p in paths)) <= 80

    (record,) = (out / "_runs").glob("2*.json")
    report = json.loads(record.read_text())
    breakdown = report["breakdown"]
    assert len(breakdown["devices"]) == 2
    assert sum(d["rows"] for d in breakdown["devices"]) == 96
    for device in breakdown["devices"]:
        at = device["moments"]
        assert 0 < at["classifier start"] < at["memory ready"] <= at["engine ready"] < at["input started"]
        assert at["input started"] < at["first compute"] < at["compute finished"] < at["output gathered"]
        assert at["output gathered"] < breakdown["end"]
        assert sum(device["shares"].values()) == pytest.approx(1, abs=1e-3)
        assert 0 < device["shares"]["compute"] < 1
    assert all(abs(w["clock_offset"]) <= w["clock_error"] < 1 for w in report["workers"])  # one host, one clock
    if breakdown["window"] < 3:
        assert breakdown["bound_by"] == "start"
    if breakdown["end"] >= 3:
        assert breakdown["verdict"] in " ".join(" ".join(shown).split())

    spans = spans_of(out)
    of_chunk = defaultdict(set)
    for span in spans:
        of_chunk[span["chunk"]].add(span["name"])
    assert len(of_chunk) == report["chunks"]
    for names in of_chunk.values():
        assert names - {"decode", "room"} == {
            "read",
            "queue",
            "wait",
            "infer",
            "kernels",
            "encode",
            "head",
            "write",
            *BLOCKS,
        }
    assert any("decode" in names for names in of_chunk.values())  # a block from which several chunks may come
    check_trace(json.loads((tmp_path / "trace.json").read_text())["traceEvents"], len(spans), breakdown["end"])


def check_trace(events: list[dict], spans: int, end: float) -> None:
    """Assert what a viewer draws: every span within the job, and in each row spans beside or within each other."""
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, rows.values())) == spans
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert named == set(rows)
    assert len({e["pid"] for e in events if e["name"] == "process_name"}) == 2
    for bars in rows.values():
        assert all(0 < begin <= closed < end * 1e6 for begin, closed in bars)
        open_until: list[float] = []
        for begin, closed in sorted(bars, key=lambda bar: (bar[0], -bar[1])):
            while open_until and open_until[-1] <= begin + 0.01:  # times are rounded
                open_until.pop()
            assert not open_until or closed <= open_until[-1] + 51  # microseconds
            open_until.append(closed)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cause"), [("read", "reader"), ("commit", "writer")])
def test_the_verdict_names_what_was_slow(
    broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path, name: str, cause: str
) -> None:
    (tmp_path / "slow.py").write_text(slowed(name, 3.5))  # chunks are read and committed in parallel
    path = write_csv(tmp_path / "in.csv", 64)
    arguments = ["classify", path, "-o", tmp_path / "out", "--model", small_model_file, "--workers", 1, "--json"]
    with dask.config.set({"distributed.worker.preload": [str(tmp_path / "slow.py")]}):
        run = broadsheet_in_process(*arguments, "--chunk-size", 32)
    assert run.returncode == 0, run.stderr
    breakdown = json.loads(run.stdout)["breakdown"]
    assert breakdown["bound_by"] == cause
    assert f"bound by the {cause}: CPU busy " in breakdown["verdict"]
    assert breakdown["busy"] < 0.5


def made_up(*lanes: tuple[str, float, float], place: str = "node-a:1", device: str = "cuda:0") -> list[Span]:
    return [Span(lane, begin, end - begin, place, lane, device) for lane, begin, end in lanes]


def test_a_busy_gpu_copies_and_uneven_shares_are_told_apart() -> None:
    timeline = Timeline(began=100.0, ended=111.0)
    place = Place("node-a:1", "cuda:0", 100.1, 100.2, 100.3, Clock(0.0, 0.001))
    spans = made_up(("read", 101, 102), ("copy-in", 102, 103), ("compute", 103, 104), ("write", 104, 111))
    timeline.add("part-0", 10, spans, place)
    alone = break_down(timeline, "fp16")
    assert alone.devices[0].shares == pytest.approx(
        {"compute": 0.1, "transfer": 0.1, "reader": 0.1, "writer": 0.7}
        | dict.fromkeys(("store", "hand-over", "ingest", "imbalance"), 0)
    )
    assert alone.bound_by == "writer"
    outage = Timeline(began=100.0, ended=111.0)
    waits = made_up(("wait", 102.5, 110), ("store", 104.5, 110.5), device="")
    outage.add("part-0", 10, [*spans, *waits], place)
    told = break_down(outage, "fp16")
    assert (told.bound_by, told.devices[0].shares["store"]) == ("store", pytest.approx(0.6))
    assert told.verdict.startswith("bound by the store: GPU busy 10%, 60% waiting for it; try again once it answers")
    other = Place("node-b:1", "cuda:0", 95.1, 95.2, 95.3, Clock(5.0, 0.002))  # this place's clock is five seconds slow
    spans = made_up(("read", 96, 96.1), ("compute", 96.1, 106), ("write", 106, 106.1), place="node-b:1")
    timeline.add("part-1", 30, spans, other)
    both = break_down(timeline, "fp16")
    assert both.devices[1].moments["first compute"] == pytest.approx(1.1)
    assert both.devices[1].shares["compute"] == pytest.approx(0.99, abs=0.01)
    assert both.clock_error == float("inf") or both.clock_error == 0.002
    soon = Timeline(began=100.0, ended=103.0)
    soon.add("part-0", 10, made_up(("read", 101, 101.1), ("compute", 101.1, 102.9), ("write", 102.9, 103)), place)
    assert break_down(soon, "fp16").bound_by == "GPU"
    soon.ended = 105.5
    assert break_down(soon, "fp16").bound_by == "start"
    assert break_down(soon, "fp16").verdict.startswith("bound by the start: start and end took 3.5 of 5.5 s; ")
    copying = Timeline(began=100.0, ended=120.0)
    for i in range(20):
        own = made_up(("read", 100 + i, 100.1 + i), ("copy-in", 100.1 + i, 100.9 + i), ("compute", 100.9 + i, 101 + i))
        copying.add(f"part-{i}", 10, [*own, *made_up(("write", 101 + i, 101.1 + i))], place)
    assert break_down(copying, "fp16", chunk_rows=10).verdict.endswith("waiting for it; try larger chunks")
    assert "try more cores" in break_down(copying, "fp16", chunk_rows=1000).verdict  # the file has no more rows
    busy = Timeline(began=100.0, ended=111.0)
    busy.add("part-1", 30, spans, other)
    assert break_down(busy, "fp16", asked=0.2).verdict == "bound by the GPU, busy 98%: go faster with more GPUs"
    assert break_down(busy, "fp16", asked=0.42).verdict == (
        "bound by the GPU, busy 98%: go faster with more GPUs, or with --network none (n-grams alone, less exact): the "
        "network is asked about 42% of the texts"
    )
    idle = made_up(("read", 96, 96.1), ("compute", 96.1, 97), ("write", 97, 97.1), place="node-a:1")
    busy.add("part-2", 30, idle, Place("node-a:1", "cuda:0", 95.1, 95.2, 95.3, Clock(5.0, 0.002)))
    assert break_down(busy, "fp32").bound_by == "imbalance"


def test_two_workers_that_share_a_gpu_keep_it_busy_together() -> None:
    timeline = Timeline(began=100.0, ended=110.0)
    for number, half in enumerate((100.0, 105.0)):
        where = f"node-a:{number}"
        spans = made_up(("read", 100, 101), ("compute", half, half + 5), ("write", 109.9, 110), place=where)
        timeline.add(f"part-{number}", 10, spans, Place(where, "cuda:0", 99.0, 99.1, 99.2, Clock(0.0, 0.001)))
    told = break_down(timeline, "fp16")
    assert [device.busy for device in told.devices] == pytest.approx([1, 1])
    assert (told.rows, [device.rows for device in told.devices]) == (20, [10, 10])
    apart = Timeline(began=100.0, ended=110.0)
    for number, half in enumerate((100.0, 105.0)):
        where = f"node-{number}:1"
        spans = made_up(("read", 100, 101), ("compute", half, half + 5), ("write", 109.9, 110), place=where)
        apart.add(f"part-{number}", 10, spans, Place(where, "cuda:0", 99.0, 99.1, 99.2, Clock(0.0, 0.001)))
    assert [device.busy for device in break_down(apart, "fp16").devices] == pytest.approx([0.5, 0.5])


def test_the_verdict_advises_two_workers_where_one_cannot_keep_a_gpu_busy() -> None:
    """The chunks are as large as the input allows, and the GPU waits for a worker that has one."""
    timeline = Timeline(began=100.0, ended=110.0)
    spans = made_up(("read", 100, 101), ("compute", 101, 103), ("infer", 101, 109), ("write", 109, 110))
    for number in range(4):
        timeline.add(f"part-{number}", 10, spans, Place("node-a:1", "cuda:0", 99.0, 99.1, 99.2, Clock(0.0, 0.001)))
    assert break_down(timeline, "fp16", 1000).verdict.endswith("waiting for it; try two workers on each GPU")
    second = made_up(*((span.lane, span.start, span.end) for span in spans), place="node-a:2")
    timeline.add("part-4", 10, second, Place("node-a:2", "cuda:0", 99.0, 99.1, 99.2, Clock(0.0, 0.001)))
    assert "try more cores for each worker" in break_down(timeline, "fp16", 1000).verdict


def largest_share(*lanes: tuple[str, float, float]) -> tuple[str, float]:
    """Return the cause that took most of ten seconds, and its share. A kernel ran in the first and the last second."""
    timeline = Timeline(began=100.0, ended=110.0)
    spans = [
        Span(name, 100 + begin, end - begin, "node-a:1", LANE_OF.get(name, name), "cuda:0" if name == "infer" else "")
        for name, begin, end in lanes
    ]
    spans += made_up(("compute", 100, 101), ("read", 100, 100.1), ("compute", 109, 110), ("write", 109.9, 110))
    timeline.add("part-0", 10, spans, Place("node-a:1", "cuda:0", 100.0, 100.0, 100.0, Clock(0.0, 0.001)))
    shares = break_down(timeline, "fp16").devices[0].shares
    assert sum(shares.values()) == pytest.approx(1)
    del shares["compute"]
    name = max(shares, key=lambda cause: shares[cause])
    return name, pytest.approx(shares[name])


LANE_OF = {"room": "read", "decode": "read", "queue": "wait"}


def test_of_many_that_wait_for_one_another_the_last_one_is_named() -> None:
    """Reader processes and a GPU read four ranges all the time, unless a test says otherwise."""
    reads = [("read", 1, 9)] * 4
    ingests = [("ingest", 1, 9), ("ingest", 1, 5)]  # two ranges: 12 of 32 seconds
    assert largest_share(*reads) == ("reader", 0.8)
    assert largest_share(*reads, *ingests) == ("reader", 0.5)
    assert largest_share(*reads, *ingests, *ingests) == ("ingest", 0.6)
    # The engine has a chunk and launches no kernel, or a chunk that has been read is not handed to it.
    assert largest_share(*reads, *ingests, ("infer", 1, 9)) == ("hand-over", 0.8)
    assert largest_share(*reads, *ingests, ("wait", 1, 9)) == ("hand-over", 0.8)
    # All threads write. A chunk that has been read waits for one of them, or reading waits for the room that it will
    # free.
    writes = [("write", 1, 9)] * 16
    assert largest_share(*reads, *writes) == ("reader", 0.8)
    assert largest_share(*reads, *writes, ("queue", 1, 9)) == ("writer", 0.8)
    assert largest_share(*reads, *writes, *[("room", 1, 9)] * 4) == ("writer", 0.8)
    assert largest_share(*reads, *writes, *[("room", 1, 9)] * 3) == ("reader", 0.8)
    # Chunks that processes parse before the turn of their range are not waited for.
    assert largest_share(*reads, *writes, *[("room", 1, 9), ("decode", 1, 9)] * 4) == ("writer", 0.8)


def test_device_events_become_spans_of_the_epoch() -> None:
    (copy, kernel) = device_spans(1e9, [("copy-in", "copy-in", 0.0, 2.0), ("conv2", "compute", 2.5, 4.0)], "cuda:1")
    assert (copy.start, copy.seconds) == (1e9, 0.002)
    assert (kernel.name, kernel.start, kernel.seconds) == ("conv2", 1e9 + 0.0025, pytest.approx(0.0015))
    assert (kernel.lane, kernel.device) == ("compute", "cuda:1")


AHEAD = """
import os, time
import broadsheet.cluster.clock  # which asks the scheduler for its time.time
own = vars(time).setdefault("own", time.time)  # Dask runs a preload more than once
try:
    os.close(os.open({flag!r}, os.O_CREAT | os.O_EXCL))
    time.time = lambda: own() + 10_800
except FileExistsError:
    pass
"""


@pytest.mark.slow
def test_spans_of_a_worker_with_another_clock_come_home_right(
    broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path
) -> None:
    """One of two workers is three hours ahead."""
    (tmp_path / "ahead.py").write_text(AHEAD.format(flag=str(tmp_path / "flag")))
    path = write_csv(tmp_path / "in.csv", 256)  # more chunks than one worker has threads
    arguments = ["classify", path, "-o", tmp_path / "out", "--model", small_model_file, "--workers", 2, "--json"]
    with dask.config.set({"distributed.worker.preload": [str(tmp_path / "ahead.py")]}):
        run = broadsheet_in_process(*arguments, "--chunk-size", 4)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    offsets = sorted(w["clock_offset"] for w in report["workers"])
    assert offsets == pytest.approx([-10_800, 0], abs=1)
    assert all(0 < w["clock_error"] < 1 for w in report["workers"])
    end = report["breakdown"]["end"]
    assert all(0 < at < end for d in report["breakdown"]["devices"] for at in d["moments"].values())


@pytest.mark.slow
def test_spans_survive_their_worker(broadsheet: Command, small_model_file: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "in.csv", tmp_path / "out"
    path.write_text("text\n" + f"{'x' * 1_000}\n" * 1_600)  # a chunk is reported before the next one is done
    env = {"BROADSHEET_KILL": f"before-entry worker {tmp_path / 'flag'}"}
    options = ["--model", small_model_file, "--workers", 1, "--chunk-size", 100, "--json"]
    env["DASK_DISTRIBUTED__WORKER__PRELOAD"] = KILL_PRELOAD
    run = broadsheet("classify", path, "-o", out, *options, env=env)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "flag").exists()
    report = json.loads(run.stdout)
    assert len(report["workers"]) == 2  # the worker that was killed, and its successor
    assert [d["chunks"] > 0 for d in report["breakdown"]["devices"]] == [True, True]
    spans = spans_of(out)
    written = [s["chunk"] for s in spans if s["name"] == "write"]
    assert sorted(written) == sorted(
        p.name[:19] for p in (out / "parts").iterdir()
    )  # each chunk once: lost work does not count


def test_recording_changes_no_bit_of_a_score(small_model: Model) -> None:
    engine = open_engine(small_model, "cpu", threads=2)
    texts = sample(small_model, 70)
    plain = engine.classify(texts, all_scores=True)
    spans: list[Span] = []
    recorded = engine.classify(texts, 1, True, spans, True)
    groups = len(engine.groups(np.empty((70, small_model.length), np.uint8)))
    engine.close()
    assert np.array_equal(plain.all_scores, recorded.all_scores)
    assert [s.name for s in spans].count("conv2") == groups > 1
    kernels = next(s for s in spans if s.name == "kernels")
    assert all(kernels.start <= s.start + 1e-3 and s.end <= kernels.end + 1e-3 for s in spans)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--report", "none/out.html", "--report none/out.html: give a file in a folder that exists"),
        ("--trace", ".", "--trace .: give a file in a folder that exists"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_first(
    broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path, option: str, value: str, message: str
) -> None:
    path = write_csv(tmp_path / "in.csv", 4)
    run = broadsheet_in_process("classify", path, "-o", "out", "--model", small_model_file, option, value, cwd=tmp_path)
    assert (run.returncode, message in run.stderr) == (2, True), run.stderr
    assert not (tmp_path / "out").exists()


# What a process does, second for second: counted as it happens, or for a GPU's batches once they are done.


def test_each_second_counts_for_one_activity() -> None:
    """There are two batches. The second is copied in while the first computes, whose results go out while the second
    computes.
    """
    log = ActivityLog(lambda: 0)
    for name, start, end in (
        ("copy-in", 10, 12), ("kernels", 12, 20), ("copy-out", 20, 21),
        ("copy-in", 15, 17), ("kernels", 20.5, 25), ("copy-out", 25, 28),
    ):  # fmt: skip
        log.add(name, start, end)
    assert log.seconds(0, 40) == {WAITING: 22, "copy-in": 2, "kernels": 12.5, "copy-out": 3.5}
    assert log.seconds(11, 13) == {"copy-in": 1, "kernels": 1}
    assert log.seconds(13, 14) == {"kernels": 1}
    halves = [log.seconds(a, b) for a, b in ((0, 16.25), (16.25, 40))]
    whole = log.seconds(0, 40)
    assert {name: sum(half.get(name, 0) for half in halves) for name in whole} == pytest.approx(whole)


def test_a_block_is_noted_while_it_runs_and_a_device_goes_before_it() -> None:
    clock = iter([0, 100, 102, 103, 108])
    log = ActivityLog(lambda: next(clock))
    with log.during("computing"):
        with log.during("copy-in"):
            pass
        log.add("kernels", 104, 106)
        assert log.seconds(99, 107) == {WAITING: 1, "computing": 4, "copy-in": 1, "kernels": 2}
    assert log.seconds(106, 110) == {"computing": 2, WAITING: 2}


def test_nothing_is_said_of_the_time_before_the_log() -> None:
    began = time.time()
    log = ActivityLog()
    ended = time.time()
    assert 1 <= sum(log.seconds(began - 5, ended + 1).values()) <= 1 + ended - began


# Steps are NVTX ranges, which a tool that listens to every process of a job hears, as nsys does.


@pytest.mark.slow
def test_a_tool_hears_every_step_of_every_worker(broadsheet: Command, small_model_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the listener with")
    listener = tmp_path / "listener.so"
    source = ROOT / "tests" / "helpers" / "nvtx_listener.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", listener, source], check=True)
    for name in ("one.csv", "two.csv"):  # more than 64 KiB together: two groups, one for each worker
        (tmp_path / name).write_text("text\n" + "".join(f"{i} {'words ' * 350}\n" for i in range(20)))
    arguments = ["classify", "one.csv", "two.csv", "-o", "out", "--model", small_model_file]
    arguments += ["--workers", 2, "--chunk-size", 5]
    env = {"NVTX_INJECTION64_PATH": str(listener), "NVTX_HEARD": str(tmp_path / "heard")}
    run = broadsheet(*arguments, "--quiet", env=env, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    ranges = [line.split(" ") for line in (tmp_path / "heard").read_text().splitlines()]
    assert {domain for _, domain, _, _ in ranges} == {"broadsheet"}
    workers = {pid for pid, _, name, _ in ranges if name == "infer"}
    assert len(workers) == 2
    chunks = Counter((pid, name, int(payload)) for pid, _, name, payload in ranges)
    for worker in workers:
        for step in ("read", "infer", "write"):
            assert [chunks[worker, step, number] for number in range(4)] == [1] * 4, step
