"""Workers that scan a large file: they find what threads find, whatever becomes of them."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from distributed import Client, get_task_stream
from jobs import Processes, start_scheduler, start_worker
from reading import found, units_of

from broadsheet.cluster import connect
from broadsheet.cluster.scanner import _Workers, workers_scanner
from broadsheet.pipeline.errors import BroadsheetError, SourceError
from broadsheet.pipeline.source.chunk import Selection
from broadsheet.pipeline.source.formats.base import InputFile
from broadsheet.pipeline.source.formats.csv import Csv
from broadsheet.pipeline.source.formats.records import Split
from broadsheet.pipeline.source.inputs import identify, open_input
from broadsheet.pipeline.source.plan.plan import GroupEnd, RowGroups, Unit, plan_files
from broadsheet.pipeline.source.plan.scan import Scanner, threads_scanner

COLUMNS = Selection(text=("text",), kept=("id",))
ROWS = 40_000
SEGMENT = 50_000  # more of them than are scanned ahead of their use
SPLIT = Csv(columns=("id", "text")).split


@pytest.fixture(scope="module")
def content() -> bytes:
    """Quotes, line ends in fields, fields too many, and one quote left open: what makes a guess wrong."""
    rows = [b'%d,"article %d ""quoted"",\nin two lines"\n' % (i, i) for i in range(ROWS)]
    rows[ROWS // 3] = b"too,many,fields\n"
    rows[ROWS // 2] = b'7,"left open\n'
    return b"id,text\n" + b"".join(rows)


def planned(path: str, scanner: Scanner | None) -> list[Unit | RowGroups]:
    plan = plan_files(found([path]), COLUMNS, 1000)
    with threads_scanner() as here:
        units, ends = units_of(plan, scanner or here)
    assert not any(end.problems for end in ends)
    return units


class Recorded:
    """An executor that keeps what it was asked for."""

    def __init__(self, client: Client) -> None:
        self.asked: list[Future[Any]] = []
        self._pool = _Workers(client)

    def submit(self, *call: Any) -> Future[Any]:
        self.asked.append(self._pool.submit(*call))
        return self.asked[-1]

    def shutdown(self) -> None:
        self._pool.shutdown()


@pytest.mark.slow
def test_workers_find_what_threads_find(client: Client, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(content)
    pool = Recorded(client)
    units = planned(str(tmp_path / "f.csv"), Scanner(pool, 8, SEGMENT))
    assert units == planned(str(tmp_path / "f.csv"), None)
    assert sum(unit.rows for unit in units) == ROWS  # the open quote is one row, closed by the next
    assert len(pool.asked) == -(-(len(content) - len(b"id,text\n")) // SEGMENT)
    assert not any(future.exception() for future in pool.asked)


def test_what_workers_do_not_see_is_scanned_here(client: Client, content: bytes) -> None:
    with fsspec.open("memory://unseen/f.csv", "wb") as stream:  # in this process's memory
        stream.write(content)
    pool = Recorded(client)
    assert planned("memory://unseen/f.csv", Scanner(pool, 8, SEGMENT)) == planned("memory://unseen/f.csv", None)
    assert all(isinstance(future.exception(), SourceError) for future in pool.asked)


@pytest.fixture
def file(content: bytes, tmp_path: Path) -> InputFile:
    (tmp_path / "f.csv").write_bytes(content)
    return found([tmp_path / "f.csv"])[0]


def begun(client: Client, file: InputFile) -> Iterator[int]:
    """The offsets of all records, scanned by workers."""
    with workers_scanner(client, least=2, segment=SEGMENT) as scanner:
        assert scanner is not None
        for block in scanner.scan(file, 8, SPLIT):
            yield from block.offsets.tolist()


@pytest.mark.slow
def test_a_worker_that_dies_while_it_scans_changes_nothing(file: InputFile) -> None:
    with threads_scanner() as here:
        expected = [int(offset) for block in here.scan(file, 8, SPLIT) for offset in block.offsets]
    with connect(workers=2) as client:
        offsets = begun(client, file)
        first = next(offsets)
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        assert [first, *offsets] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "message"), [("scheduler", "the connection to the scheduler"), ("workers", "has lost all its workers")]
)
def test_a_cluster_lost_while_it_scans_is_reported(
    processes: Processes, file: InputFile, tmp_path: Path, killed: str, message: str
) -> None:
    scheduler, address = start_scheduler(processes, tmp_path, NO_WORKERS_TIMEOUT="2s")
    workers = [start_worker(processes, address) for _ in range(2)]
    with pytest.raises(BroadsheetError, match=message), connect(scheduler_file=address) as client:  # noqa: PT012
        client.wait_for_workers(2, timeout=240)
        offsets = begun(client, file)
        next(offsets)
        for process in [scheduler] if killed == "scheduler" else workers:
            process.kill()
        list(offsets)


@pytest.mark.slow
def test_whoever_stops_a_plan_does_not_wait_for_it(client: Client, file: InputFile) -> None:
    with workers_scanner(client, least=2, segment=SEGMENT) as scanner:
        assert scanner is not None
        blocks = scanner.scan(file, 8, SPLIT)
        next(blocks)
    with pytest.raises(BroadsheetError, match="stopped"):
        list(blocks)


@pytest.mark.slow
def test_what_fails_on_workers_is_reported_and_done_here(
    client: Client, file: InputFile, caplog: pytest.LogCaptureFixture
) -> None:
    here = os.getpid()
    caplog.handler.setLevel(logging.WARNING)  # Dask's embedded cluster has silenced it

    def split(buffer: bytes, final: bool) -> Split:
        if os.getpid() != here:
            raise RuntimeError("a worker of another version")
        return SPLIT(buffer, final)

    with workers_scanner(client, least=2, segment=SEGMENT) as scanner:
        assert scanner is not None
        offsets = [int(offset) for block in scanner.scan(file, 8, split) for offset in block.offsets]
    assert offsets == list(begun(client, file))
    (warning,) = (record.getMessage() for record in caplog.records if record.name.endswith("pipeline.source.plan.scan"))
    assert file.path in warning
    assert "a worker of another version" in warning


def test_a_file_that_became_shorter_is_reported(client: Client, file: InputFile) -> None:
    with open(file.location, "r+b") as stream:
        stream.truncate(file.size // 2)
    with pytest.raises(SourceError, match="it has changed"):
        list(begun(client, file))


def test_files_of_a_segment_are_scanned_here(client: Client, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.csv").write_text('id,text\n1,"an article"\n')
    pool = Recorded(client)
    with threads_scanner() as here:
        assert planned(str(tmp_path), Scanner(pool, 8, SEGMENT, here)) == planned(str(tmp_path), None)
    assert not pool.asked


def test_a_cluster_that_runs_finds_the_chunks_that_threads_find(client: Client, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("id,text\n" + "".join(f'{i},"article {i}"\n' for i in range(9000)))
    given = identify(tmp_path / "f.csv", 70, 1014, whole_hash=False, by_content=False)
    ends: list[GroupEnd] = []
    scanner = partial(workers_scanner, client, least=2, segment=50_000)
    with get_task_stream(client) as tasks:
        by_workers = list(open_input(given, COLUMNS, 300, scanner=scanner).chunks((), ends.append))
    assert len(tasks.data) > 1
    assert by_workers == list(open_input(given, COLUMNS, 300).chunks((), ends.append))
    assert len(by_workers) == 30
    assert ends[0] == ends[1]
    assert ends[0].files == ((str(tmp_path / "f.csv"), 9000),)


def test_fewer_workers_leave_the_scan_to_threads_here(client: Client) -> None:
    with workers_scanner(client) as scanner:
        assert scanner is None
