"""Reading in processes of the worker's own, as workers with a GPU do; and large files that one worker reads."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from jobs import check_whole, children_of, committed, file_size_limit, wait_until, workers_that_run
from reading import found
from s3 import KEYS, Folder, Proxy, proxy, s3, s3_server  # noqa: F401

from broadsheet.pipeline import classify, close
from broadsheet.pipeline.errors import BroadsheetError, InputChanged
from broadsheet.pipeline.job.worker import WorkerState
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.report.job import Progress
from broadsheet.pipeline.report.tally import Reach
from broadsheet.pipeline.source.inputs import Paths, identify, open_input, read_in_this_process
from broadsheet.pipeline.source.plan.plan import Plan, RangeEnd, plan_files
from broadsheet.pipeline.source.read.read import Skipped, read_range
from broadsheet.pipeline.source.read.readers import ReaderLost, Readers
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection

PRELOAD = """
from broadsheet.pipeline.job.worker import STATE
def dask_setup(worker):
    STATE.small_bytes = 0
    STATE.read_in_processes(2, 2)
"""


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    close()  # a worker that another test has kept in this process has readers too
    readers = Readers(2, 2)
    yield readers
    readers.close()
    assert not pids_of(os.getpid())


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A cluster with one worker that reads in processes, as a worker with a GPU does."""
    with workers_that_run(PRELOAD, tmp_path_factory.mktemp("readers"), 1) as client:
        yield client


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is read as a stream, which takes some tenths of a second."""
    return write_gzip(tmp_path_factory.mktemp("large") / "large.jsonl.gz", 600, 30_000)


def pids_of(parent: int) -> set[int]:
    """Return the reader processes of a worker."""
    return {child.pid for child in children_of(parent, "broadsheet.pipeline.source.read.reader_process")}


def write_gzip(path: Path, rows: int, characters: int = 120) -> Path:
    """Write rows, of which every seventh cannot be parsed."""
    lines = [json.dumps({"id": i, "text": os.urandom(characters // 2).hex()}) if i % 7 else "{" for i in range(rows)]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    return path


def plan_of(*paths: Path, chunk_rows: int = 100) -> Plan:
    return plan_files(found(paths), Selection(reads=1014), chunk_rows)


def never(_: str) -> bool:
    return False


def room(_: int) -> bool:
    """Say that there is room for every chunk."""
    return True


@contextmanager
def killing(parent: int, name: str, times: int) -> Iterator[list[int]]:
    """Kill a reader process that has a file with this name open, up to `times` times."""
    killed: list[int] = []
    over = threading.Event()

    def run() -> None:
        pids: set[int] = set()
        for turn in itertools.count():
            if len(killed) == times or over.wait(0.002):
                return
            if turn % 20 == 0:  # looking through all processes takes 20 times as long as the rest of the loop
                pids = pids_of(parent)
            for pid in pids - set(killed):
                with suppress(OSError):
                    files = [os.readlink(file.path) for file in os.scandir(f"/proc/{pid}/fd")]
                    if any(file.endswith(name) for file in files):
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def test_chunks_arrive_as_they_were_read(readers: Readers, tmp_path: Path) -> None:
    """All of each chunk arrives, with the spans of its parsing and the end. Skipped chunks are not parsed."""
    plan = plan_of(write_gzip(tmp_path / "a.jsonl.gz", 400), write_gzip(tmp_path / "b.jsonl.gz", 300))
    given = (plan.ranges[0], plan.selection, plan.chunk_rows, lambda name: name.endswith("2"))
    spans: list = []
    here, there = list(read_range(*given)), list(readers.read_range(*given, spans, room))
    assert len(there) == 8
    for ours, theirs in zip(here, there, strict=True):
        if not isinstance(ours, Chunk):
            assert theirs == ours
            continue
        assert (theirs.name, theirs.sources) == (ours.name, ours.sources)
        assert theirs.text.equals(ours.text)
        assert theirs.rows.equals(ours.rows)
        assert theirs.quarantine.equals(ours.quarantine)
        assert theirs.n_chars.tolist() == ours.n_chars.tolist()
    assert [ours.name[-1] for ours in here if isinstance(ours, Skipped)] == ["2"]
    assert {span.name for span in spans} == {"decode"}
    assert {span.where.rpartition(":")[2] for span in spans} == {str(os.getpid())}


def test_an_error_arrives_as_it_was_raised(readers: Readers, tmp_path: Path) -> None:
    before = pids_of(os.getpid())
    pq.write_table(pa.table({"text": ["a"] * 500}), tmp_path / "in.parquet", row_group_size=300)
    plan = plan_of(tmp_path / "in.parquet")
    given = (plan.ranges[0], plan.selection, 100, never, [], room)
    assert [len(chunk) for chunk in list(readers.read_range(*given))[:-1]] == [100] * 5
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputChanged, match=r"in\.parquet: it has changed since the job was planned \(size was"):
        list(readers.read_range(*given))
    assert pids_of(os.getpid()) == before


def test_a_reader_that_dies_or_is_left_is_replaced(readers: Readers, large: Path) -> None:
    """The error names the file and how the process ended. The next read gets a new process."""
    (group, *_), selection = plan_of(large).ranges, plan_of(large).selection
    before = pids_of(os.getpid())
    with killing(os.getpid(), large.name, 1), pytest.raises(ReaderLost) as raised:
        list(readers.read_range(group, selection, 100, never, [], room))
    assert f"{large}: the process that read it was ended by SIGKILL (out of memory?)" == raised.value.message
    left = readers.read_range(group, selection, 100, never, [], room)
    next(left)
    left.close()
    # A process that is just starting has no command line yet.
    wait_until(lambda: len(pids_of(os.getpid())) == len(before))
    assert len(before) == 2
    assert pids_of(os.getpid()) != before
    ends = [list(readers.read_range(group, selection, 200, never, [], room))[-1] for _ in range(3)]
    assert ends[0].chunks == 3
    assert ends[0] == ends[1] == ends[2]


@pytest.mark.slow
def test_a_lost_reader_costs_nothing_but_time(reading: Client, small_model: Model, large: Path, tmp_path: Path) -> None:
    """A new process reads the range again, and the output equals byte for byte that of a job that reads in its own
    process.
    """
    given = {"model": small_model, "chunk_size": 30}
    source = [large, write_gzip(tmp_path / "small.jsonl.gz", 100)]
    (worker,) = reading.run(os.getpid).values()
    whole = classify(source, tmp_path / "undisturbed", **given)
    with killing(worker, large.name, 1) as killed:
        report = classify(source, tmp_path / "one", client=reading, **given)
    assert len(killed) == 1
    assert report.exit_code == 0
    assert report.tally == whole.tally
    check_whole(tmp_path / "one", tmp_path / "undisturbed")


@pytest.mark.slow
def test_more_files_at_a_time_than_readers_and_room(reading: Client, small_model: Model, tmp_path: Path) -> None:
    """Files that wait for a reader do not hold the room for which files with a reader wait."""
    source = [write_gzip(tmp_path / f"{number}.jsonl.gz", 30, 4_000) for number in range(20)]
    report = classify(source, tmp_path / "out", client=reading, model=small_model, chunk_size=10)
    assert report.rows_read == 30 * len(source)
    assert committed(tmp_path / "out") == 4 * len(source)  # three chunks and the end of each file


class Warned(Progress):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


@pytest.mark.slow
def test_a_file_that_kills_every_reader_is_set_aside(
    reading: Client, small_model: Model, large: Path, tmp_path: Path
) -> None:
    """The other files are labelled. Each loss is reported with the name of the file."""
    (worker,) = reading.run(os.getpid).values()
    progress = Warned()
    source = [large, write_gzip(tmp_path / "small.jsonl.gz", 100)]
    with killing(worker, large.name, 99) as killed:
        report = classify(
            source, tmp_path / "out", client=reading, model=small_model, chunk_size=2_000, progress=progress
        )
    assert len(killed) == 3
    assert report.exit_code == 3
    assert report.rows_read == 100
    assert [message for message in progress.messages if f"{large}: the process that read it was ended" in message]
    assert len(pids_of(worker)) == 2


@pytest.mark.slow
def test_a_stopped_job_leaves_readers_ready_and_a_killed_worker_takes_them_along(
    reading: Client, small_model: Model, large: Path, tmp_path: Path
) -> None:
    given = {"model": small_model, "chunk_size": 6, "client": reading}
    out = tmp_path / "out"
    report = classify(large, out, stop=lambda: committed(out) >= 2, **given)
    assert report.exit_code == 4
    (worker,) = reading.run(os.getpid).values()
    before, done = pids_of(worker), committed(out)
    assert len(before) == 2

    def kill() -> None:
        wait_until(lambda: committed(out) > done)
        os.kill(worker, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    assert classify(large, out, resume=True, **given).exit_code == 0
    thread.join()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in before))


def test_processes_start_when_there_is_something_to_read(readers: Readers, large: Path) -> None:
    plan = plan_files(found([large]), Selection(reads=1014), 100)
    before = len(pids_of(os.getpid()))
    more = Readers(3, 1)
    try:
        assert len(pids_of(os.getpid())) == before + 1
        ways = [more.read_range(plan.ranges[0], plan.selection, 100, never, [], room) for _ in range(2)]
        first, second = (next(way).text for way in ways)
        assert first == second
        assert len(pids_of(os.getpid())) == before + 2
        for way in ways:
            way.close()
    finally:
        more.close()


def test_a_small_file_is_read_without_a_process(large: Path, tmp_path: Path) -> None:
    """Starting a process would take half a second."""
    before, state = pids_of(os.getpid()), WorkerState()
    state.read_in_processes(1, 0)
    try:
        for file, started in ((write_gzip(tmp_path / "small.jsonl.gz", 400), 0), (large, 1)):
            plan = plan_of(file)
            with closing(state.read_range(plan.ranges[0], plan.selection, 100, never, [], room)) as reading:
                assert isinstance(next(reading), Chunk)
                assert len(pids_of(os.getpid()) - before) == started
    finally:
        assert state.readers is not None
        state.readers.close()


def test_a_limit_that_leaves_no_memory_to_share_is_named() -> None:
    message = r"cannot share 64 MiB of memory .*File too large. Raise the limits"
    with file_size_limit(0), pytest.raises(BroadsheetError, match=message):
        Readers(1, 1)


def test_a_reader_does_without_pandas(readers: Readers, large: Path) -> None:
    """In each process, pyarrow would import pandas, which takes as long as reading a small file."""
    plan = plan_files(found([large]), Selection(reads=1014), 100)
    with closing(readers.read_range(plan.ranges[0], plan.selection, 100, never, [], room)) as reading:
        assert next(reading)
        loaded = [Path(f"/proc/{pid}/maps").read_text() for pid in pids_of(os.getpid())]
    assert loaded
    assert [("pyarrow" in maps, "pandas" in maps) for maps in loaded] == [(True, False)] * len(loaded)


# Large files that one worker reads: the messages about them, and a job whose input becomes unavailable.


def lines(count: int) -> bytes:
    chance = random.Random(count)
    return b"".join(b'{"text": "%s"}\n' % chance.randbytes(40).hex().encode() for _ in range(count))


def test_a_single_compressed_file_is_told_by_the_bytes_read_of_it(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl.gz").write_bytes(gzip.compress(lines(400_000), 1))
    size = (tmp_path / "f.jsonl.gz").stat().st_size
    given = identify(Paths([tmp_path]), 70, 1014, whole_hash=False, by_content=False)
    reach = Reach(0, {0: size})
    shares = []
    for item in read_in_this_process(open_input(given, Selection(), 50_000)):
        if isinstance(item, Chunk):
            reach.note(item.name, 50_000, item.stored)
            shares.append(reach.share)
            assert reach.rows_known == 0
        elif isinstance(item, RangeEnd):
            reach.close(item)
    assert len(shares) == 8
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.6
    assert (reach.share, reach.rows_known) == (1, 400_000)


def test_of_a_plain_file_that_is_read_whole_the_bytes_are_told(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(lines(300_000))
    plan = plan_files(identify(tmp_path, 70, 1014).found, Selection(), 50_000, cut=False)
    chunks = list(read_range(plan.ranges[0], plan.selection, 50_000, lambda _: False))[:-1]
    told = [chunk.stored / plan.bytes for chunk in chunks]
    assert len(told) == 6
    assert told == sorted(told)
    assert 0 < told[0] < 0.6
