"""Groups of files: reading them together gives what each file gives by itself. As tasks, each group is read by one
worker, and may be lost in the middle, stopped or interrupted.
"""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, Worker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import check_whole, committed, spans_of, wait_until, workers_that_run

from broadsheet.cluster import connect
from broadsheet.pipeline import SourceError, classify
from broadsheet.pipeline.job.worker import STATE
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.report.job import JobReport, Progress
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.source.plan.plan import Plan, Range, RangeEnd, files_in_ranges, part_name, plan_files
from broadsheet.pipeline.source.read.read import Skipped, read_range
from broadsheet.pipeline.source.read.readers import Room
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection

# Workers record each commit. A worker dies, once, as it reads the fourth chunk of "b.jsonl.gz". At that time no other
# chunk has begun, and the client has heard of all that have. Chunks of "slow" take longer, and the fifth takes until
# the job is stopped, or until there is a file "go".
PRELOAD = """
import os, signal, time
from pathlib import Path
from broadsheet.pipeline.job.worker import STATE
folder = Path({folder!r})
read_range, commit = vars(STATE).setdefault("kept", (STATE.read_range, STATE.commit))
def troubled(group, *a):
    name, stopped = os.path.basename(group.files[0].path), len(STATE.stopped)
    for number, found in enumerate(read_range(group, *a)):
        if name == "slow.jsonl.gz":
            time.sleep(0.3)
            while number == 4 and len(STATE.stopped) == stopped and not (folder / "go").exists():
                time.sleep(0.01)
        if name == "b.jsonl.gz":
            (folder / "b").touch()
        while name != "b.jsonl.gz" and (folder / "b").exists() and (folder / "kill").exists():
            time.sleep(0.01)
        if name == "b.jsonl.gz" and number == 3 and (folder / "kill").exists():
            while len(list((folder / "heard").iterdir())) < len((folder / "begun").read_text()):
                time.sleep(0.01)
            (folder / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        with open(folder / "begun", "a") as file:
            file.write("x" * hasattr(found, "text"))
        yield found
def noted(store, table, quarantine, entry, names):
    entry = commit(store, table, quarantine, entry, names)
    with open(folder / "commits", "a") as file:
        file.write(entry.chunk + "\\n")
    return entry
STATE.read_range, STATE.commit = troubled, noted
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("groups")


@pytest.fixture(scope="module")
def troubled(folder: Path) -> Iterator[Client]:
    (folder / "commits").touch()
    (folder / "heard").mkdir()
    with workers_that_run(PRELOAD.format(folder=str(folder)), folder, 2) as client:
        yield client


def write_gzip(path: Path, bad: int = 7) -> Path:
    """Write 150 rows of more than 64 KiB in all, so that the file is a group of its own. bad: the number of
    bad rows.
    """
    lines = [json.dumps({"text": os.urandom(600).hex()}) for _ in range(150 - bad)]
    for number in range(bad):
        lines.insert(20 * number, "{")
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert path.stat().st_size > 64 << 10
    return path


class Heard(Progress):
    """Writes a file for each chunk whose spans have reached the client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def advance(self, report: JobReport) -> None:
        for chunk in report.run.timeline.spans.to_table()["chunk"].unique().to_pylist():
            (self.folder / chunk).touch()


@pytest.mark.slow
def test_a_worker_lost_in_the_middle_of_a_group(
    troubled: Client, client: Client, small_model: Model, folder: Path, tmp_path: Path
) -> None:
    """No committed chunk is classified again, and the output equals that of an undisturbed run, byte for byte."""
    given = {"model": small_model, "chunk_size": 25}
    source = [write_gzip(tmp_path / f"{name}.jsonl.gz") for name in "abc"]
    whole = classify(source, tmp_path / "undisturbed", client=client, **given)
    (folder / "kill").touch()
    (folder / "commits").write_text("")
    report = classify(source, tmp_path / "out", client=troubled, progress=Heard(folder / "heard"), **given)
    assert not (folder / "kill").exists()
    assert report.exit_code == 0
    assert report.tally == whole.tally
    assert report.rows_quarantined == 3 * 7
    check_whole(tmp_path / "out", tmp_path / "undisturbed")
    times = Counter((folder / "commits").read_text().split())
    assert set(times.values()) == {1}, times
    computed = Counter(span["chunk"] for span in spans_of(tmp_path / "out") if span["name"] == "infer")
    assert computed == times  # includes the spans of the lost worker


class Interrupted(Progress):
    """Raises Ctrl-C's exception at the first chunk."""

    def advance(self, report: JobReport) -> None:
        raise KeyboardInterrupt


def wanted(dask_worker: Worker) -> int:
    """Return how many tasks a worker has begun that a client waits for."""
    return sum(task.state in ("executing", "long-running") for task in dask_worker.state.tasks.values())


def busy(dask_worker: Worker) -> int:
    """Return how many tasks a worker has begun that have not ended."""
    return len(dask_worker.active_threads)


@pytest.mark.slow
def test_a_group_that_is_stopped_or_interrupted_begins_no_further_chunk(
    troubled: Client, client: Client, small_model: Model, folder: Path, tmp_path: Path
) -> None:
    """A stopped job reports what is done, and an interrupted job leaves nothing running. Both can be resumed."""
    given = {"model": small_model, "chunk_size": 16}
    source, stopped, interrupted = (
        write_gzip(tmp_path / "slow.jsonl.gz"),
        tmp_path / "stopped",
        tmp_path / "interrupted",
    )
    classify(source, tmp_path / "undisturbed", client=client, **given)
    report = classify(source, stopped, client=troubled, stop=lambda: committed(stopped) >= 2, **given)
    assert report.exit_code == 4
    assert 2 <= report.tally.chunks == committed(stopped) < 9
    with pytest.raises(KeyboardInterrupt):
        classify(source, interrupted, client=troubled, progress=Interrupted(), **given)
    wait_until(lambda: not any(troubled.run(wanted).values()))
    (folder / "go").touch()
    wait_until(lambda: not any(troubled.run(busy).values()))
    assert 1 <= committed(interrupted) < 9
    for out in (stopped, interrupted):
        assert classify(source, out, client=client, resume=True, **given).exit_code == 0
        check_whole(out, tmp_path / "undisturbed")


class Watched(threading.Condition):
    """Records that a thread waits for room."""

    def __init__(self, told: threading.Event) -> None:
        super().__init__()
        self.told = told

    def wait(self, timeout: float | None = None) -> bool:
        self.told.set()
        return super().wait(timeout)


def test_no_more_is_read_than_there_is_room_for_while_nothing_can_be_written(
    small_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit waits until the reader waits too, or has read the whole file, which is ten times the room."""
    held, room = threading.Event(), Room(most_chunks=3)
    room._changed = Watched(held)
    read_range, commit, sizes = STATE.read_range, STATE.commit, Counter[str]()

    def reading(*given: Any) -> Iterator[Any]:
        for found in read_range(*given):
            sizes["read"] += isinstance(found, Chunk)
            sizes["most"] = max(sizes["most"], sizes["read"] - sizes["written"])
            yield found
        held.set()

    def writing(*given: Any) -> Any:
        held.wait()
        sizes["written"] += 1  # the chunk gives its room back after that
        return commit(*given)

    for name, value in (("room", room), ("read_range", reading), ("commit", writing)):
        monkeypatch.setattr(STATE, name, value)
    source = write_gzip(tmp_path / "long.jsonl.gz", bad=0)
    with connect(processes=False) as client:
        report = classify(source, tmp_path / "out", client=client, model=small_model, chunk_size=5)
    assert report.rows_written == 150
    assert sizes == {"read": 30, "written": 30, "most": 3}


def test_what_is_amiss_with_files_is_counted_once_however_often_the_job_runs(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    """The files are one that is cut off, an array, and one with other columns. Each has its problem in its closing
    entry.
    """
    given = {"model": small_model, "chunk_size": 25, "client": client}
    data = write_gzip(tmp_path / "a.jsonl.gz", bad=0).read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(data[: len(data) * 3 // 4])
    (tmp_path / "c.jsonl").write_text("[\n")
    with pytest.raises(SourceError, match=r"(b\.jsonl\.gz|c\.jsonl): .*\(strict=True stops here\)"):
        classify(tmp_path, tmp_path / "strict", strict=True, **given)
    out = tmp_path / "out"
    report = classify(tmp_path / "*.jsonl*", out, **given)
    assert report.exit_code == 3
    assert [Path(path).name for path, _ in report.tally.problems] == ["b.jsonl.gz", "c.jsonl"]
    assert [(Path(path).name, rows) for path, rows in report.tally.unread] == [("c.jsonl", None)]
    (out / "_SUCCESS").unlink()
    max((out / "parts").iterdir()).unlink()
    again = classify(tmp_path / "*.jsonl*", out, resume=True, **given)
    assert again.tally == report.tally
    assert again.run.chunks_before == report.tally.chunks - 1


# Groups of files: reading them together gives what each file gives by itself.


SELECTION = Selection(kept_columns=("id",), reads=40)
WORDS = st.text("abcé \"',", max_size=60)
KINDS = ("jsonl", "jsonl.gz", "csv", "parquet", "txt")


def write(path: Path, kind: str, texts: list[str]) -> None:
    """Write a file of this kind with these texts. Some kinds are damaged."""
    kind, _, damage = kind.partition(" ")
    table = pa.table({"id": [str(i) for i in range(len(texts))], "text": texts})
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=3)
    elif kind == "csv":
        path.write_text("id,text\n" + "".join('{},"{}"\n'.format(i, t.replace('"', '""')) for i, t in enumerate(texts)))
    else:
        lines = "\n".join(json.dumps({"id": str(i), "text": t}) for i, t in enumerate(texts))
        data = lines.encode() + b"\n" * (len(texts) % 2)
        path.write_bytes(gzip.compress(data, mtime=0) if kind.endswith(".gz") else data)
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "row":
        path.write_bytes(data + b"\n{no row\n")
    elif damage == "other":
        path.write_text('{"id": "1", "body": "x"}\n' if kind != "csv" else "id,body\n1,x\n")


@pytest.mark.slow
def test_few_bytes_in_many_files_are_work_for_many_readers(tmp_path: Path) -> None:
    for number in range(160):
        with open(tmp_path / f"{number:03}.jsonl.gz", "wb") as file:
            file.truncate(100 << 10)
    files = find_files([str(tmp_path)], 70, 1014).found
    assert files_in_ranges(files, 131_072) == [2] * 80
    assert files_in_ranges(files * 100, 131_072)[:-1] == [163] * 98
    assert files_in_ranges(files, 512) == [1] * 160


def plan_of(folder: Path, chunk_rows: int, limit: int | None = None) -> Plan:
    return plan_files(find_files([str(folder)], 70, 1014).found, SELECTION, chunk_rows, limit)


def read(
    range_: Range, plan: Plan, skip: Callable[[str], bool] = lambda _: False
) -> tuple[list[Chunk | Skipped], RangeEnd]:
    *chunks, end = read_range(range_, plan.selection, plan.chunk_rows, skip)
    assert isinstance(end, RangeEnd)
    return [chunk for chunk in chunks if not isinstance(chunk, RangeEnd)], end


def rows_of(chunks: list[Chunk | Skipped]) -> list[tuple[object, ...]]:
    """Return every row that was read, labelled or quarantined, in order of file and row."""
    rows: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for chunk in chunks:
        assert isinstance(chunk, Chunk)
        assert sum(source.rows for source in chunk.sources) == chunk.rows_read
        counts = chunk.n_chars.tolist() if chunk.n_chars is not None else [None] * len(chunk)
        for row, text, count in zip(chunk.rows.to_pylist(), chunk.text.to_pylist(), counts, strict=True):
            rows[row["file"]].append((row["row"], row["id"], text, count))
        for row in chunk.quarantine.to_pylist():
            rows[row["file"]].append((row["row"], row["reason"], row["byte_offset"], row["head"]))
    return [(file, *row) for file in sorted(rows) for row in sorted(rows[file], key=lambda row: row[0])]


files = st.lists(
    st.tuples(
        st.sampled_from(
            ["jsonl", "jsonl.gz", "csv", "parquet", "jsonl.gz cut", "jsonl empty", "jsonl row", "csv other",
             "jsonl other", "parquet cut"]
        ),
        st.lists(WORDS, max_size=12),
    ),
    min_size=1,
    max_size=9,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files, st.integers(1, 9), st.integers(0, 50), st.data())
def test_a_group_is_read_as_its_files_are(
    tmp_path: Path, given_files: list[tuple[str, list[str]]], chunk_rows: int, limit: int, data: st.DataObject
) -> None:
    folder = tmp_path / os.urandom(6).hex()
    folder.mkdir()
    (folder / "00.jsonl").write_text('{"id": "first", "text": "one"}\n')
    for number, (kind, texts) in enumerate(given_files, 1):
        write(folder / f"{number:02d}.{kind.partition(' ')[0]}", kind, texts)
    plan = plan_of(folder, chunk_rows)
    (range_,) = plan.ranges
    chunks, end = read(range_, plan)
    assert [chunk.name for chunk in chunks] == [part_name(0, i) for i in range(end.chunks)]
    assert all(isinstance(chunk, Chunk) and chunk.rows_read == chunk_rows for chunk in chunks[:-1])

    alone = [read(Range(1, (file,), range_.first), plan) for file in range_.files]
    assert rows_of(chunks) == [row for each, _ in alone for row in rows_of(each)]
    assert end.files == tuple(count for _, each in alone for count in each.files)
    assert end.problems == tuple(problem for _, each in alone for problem in each.problems)
    assert end.unread == tuple(unread for _, each in alone for unread in each.unread)

    wanted = data.draw(st.sets(st.sampled_from([chunk.name for chunk in chunks])))
    some, same_end = read(range_, plan, lambda name: name not in wanted)
    assert same_end == end
    assert [chunk.name for chunk in some] == [chunk.name for chunk in chunks]
    for one, other in zip(some, chunks, strict=True):
        assert isinstance(one, Skipped) == (one.name not in wanted)
        if isinstance(one, Chunk):
            assert rows_of([one]) == rows_of([other])

    if limit:
        first, limited = plan_of(folder, chunk_rows, limit), rows_of(chunks)[:limit]
        assert rows_of(read(first.ranges[0], first)[0]) == limited
