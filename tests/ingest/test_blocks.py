"""Ranges whose records a worker finds itself, in blocks that reader processes fill, compared with reading in one
process.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import dask
import pytest
from blocks import SLOT_BYTES, OnHost, parts_of, told, written
from conftest import ROOT, Command
from jobs import children_of, spans_of
from reading import found

from broadsheet.pipeline import close
from broadsheet.pipeline.ingest.blocks import BlockRows, can_read
from broadsheet.pipeline.ingest.reading import read_range as read_in_blocks
from broadsheet.pipeline.source.formats.csv import Csv, Tsv
from broadsheet.pipeline.source.formats.record_format import Text
from broadsheet.pipeline.source.plan.plan import RangeEnd, plan_files
from broadsheet.pipeline.source.read.read import read_range
from broadsheet.pipeline.source.read.readers import ReaderLost, Readers
from broadsheet.pipeline.source.read.ring import RawBlock
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.telemetry.read_by import BY_GPU, BY_HOST, MANY_ODD, ODD, OUTSIDE_BLOCKS

SELECTION = Selection(kept_columns=("id",), truth="label", classes=("a",))
SUFFIXES = [".jsonl", ".csv", ".tsv", ".txt", ".jsonl.gz", ".csv.gz"]


def selection_of(suffix: str, reads: int = 0) -> Selection:
    """Return the selection that a job uses for a file of that kind."""
    return replace(Selection() if suffix == ".txt" else SELECTION, reads=reads)


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    close()  # a worker of another test in this process has readers too
    readers = Readers(1, 1, SLOT_BYTES)
    yield readers
    readers.close()


def never(_: str) -> bool:
    return False


def pids() -> set[int]:
    return {child.pid for child in children_of(os.getpid(), "broadsheet.pipeline.source.read.reader_process")}


# No block is refused (0), or about one of three is, which the host then reads.
@pytest.mark.parametrize("every", [0, 3])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_blocks_hold_what_one_process_reads(readers: Readers, suffix: str, every: int, tmp_path: Path) -> None:
    chance, before = random.Random(f"{suffix} {every}"), pids()
    refused: list[bool] = []

    class Noted(OnHost):
        def read(self, block: RawBlock, held: memoryview, row: int) -> BlockRows | str:
            rows = super().read(block, held, row)
            refused.append(isinstance(rows, str))
            return rows

    for turn, chunk_rows in enumerate((97, 5000)):
        path = written(tmp_path / f"{turn}{suffix}", 3000, chance)
        plan = plan_files(found([path]), selection_of(suffix, (0, 90)[turn]), chunk_rows)
        for range_ in parts_of(plan):
            given = (range_, plan.selection, chunk_rows, never)
            blocks = read_in_blocks(readers, partial(Noted, every, chance), *given, [])
            assert told([*blocks]) == told([*read_range(*given)])
    assert refused
    assert any(refused) == (every > 0)  # each block ends where a record does
    assert pids() == before  # each range arrived completely, so no process had to be replaced


@pytest.mark.parametrize("suffix", SUFFIXES[:4])
def test_a_part_that_begins_at_a_guess_is_read_from_there(readers: Readers, suffix: str, tmp_path: Path) -> None:
    chance = random.Random(7)
    path = written(tmp_path / f"a{suffix}", 3000, chance, others=0)
    plan = plan_files(found([path]), selection_of(suffix), 1000)
    for range_ in plan.ranges[1:5]:
        given = (range_, plan.selection, 1000, never)
        assert told([*read_in_blocks(readers, partial(OnHost, 0, chance), *given, [])]) == told([*read_range(*given)])


def lines_in(path: Path, count: int, odd: int = 0, long: int | None = None) -> Path:
    """Write lines to a file. One line in `odd` is bad, and number `long` is longer than a slot."""
    lines = [json.dumps({"id": i, "text": f"{i} {'x' * 90}", "label": "a"}) for i in range(count)]
    if odd:
        lines[::odd] = ["{"] * len(lines[::odd])
    if long is not None:
        lines[long] = json.dumps({"text": "x" * 2 * SLOT_BYTES, "label": "b"})
    path.write_text("\n".join([*lines, ""]))
    return path


def test_it_is_counted_who_has_read_each_record_and_why(readers: Readers, tmp_path: Path) -> None:
    def read_by(path: Path, every: int = 0) -> dict[str, int]:
        plan = plan_files(found([path]), SELECTION, 1000, cut=False)
        *_, end = read_in_blocks(
            readers, partial(OnHost, every, random.Random(1)), plan.ranges[0], plan.selection, 1000, never, []
        )
        assert isinstance(end, RangeEnd)
        assert sum(end.read_by.values()) == sum(rows or 0 for _, rows in end.files) == 3000
        return {reason: rows for reason, rows in end.read_by.items() if rows}

    assert read_by(lines_in(tmp_path / "odd.jsonl", 3000, odd=100)) == {BY_GPU: 2970, ODD: 30}
    long = read_by(lines_in(tmp_path / "long.jsonl", 3000, long=2000))
    assert long.keys() == {BY_GPU, OUTSIDE_BLOCKS}
    assert 1000 <= long[OUTSIDE_BLOCKS] < 1000 + SLOT_BYTES // 90
    assert read_by(lines_in(tmp_path / "refused.jsonl", 3000), every=1) == {MANY_ODD: 3000}
    later = read_by(tmp_path / "refused.jsonl", every=6)
    assert later.keys() == {BY_GPU, MANY_ODD}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_the_record_with_which_a_part_ends_is_in_its_last_block(readers: Readers, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"in{suffix}"
    if suffix == ".jsonl":
        lines_in(path, 3000)
    else:
        path.write_text("id,text,label\n" + "".join(f'{i},"two\nlines {"x" * 90}",a\n' for i in range(3000)))
    plan = plan_files(found([path]), SELECTION, 300)
    assert len(plan.ranges) > 4
    read_by = Counter[str]()
    for range_ in parts_of(plan):
        given = (range_, plan.selection, 300, never)
        blocks = [*read_in_blocks(readers, partial(OnHost, 0, random.Random(1)), *given, [])]
        assert told(blocks) == told([*read_range(*given)])
        end = blocks[-1]
        assert isinstance(end, RangeEnd)
        read_by.update(end.read_by)
    assert +read_by == {BY_GPU: 3000}


ON_A_GPU = """
import random, time
from functools import partial
from blocks import SLOT_BYTES, OnHost
from broadsheet.pipeline.ingest.reading import read_range
from broadsheet.pipeline.job.worker import STATE, _as_room_allows
from broadsheet.pipeline.telemetry.remarks import REMARKS
from broadsheet.pipeline.source.read.readers import Readers, Room
on_host = vars(STATE).setdefault("kept", STATE.read_range)
class SlowReaders(Readers):
    def _raw_messages(self, *given):
        messages = super()._raw_messages(*given)
        for message in messages:
            time.sleep({reader})
            reply = yield message
            while reply is not None:
                messages.send(reply)
                reply = yield None
class SlowBlocks(OnHost):
    def read(self, *given):
        time.sleep({ingest})
        return super().read(*given)
REMARKS["memory is short on this host"] = None
readers = SlowReaders({processes}, {processes}, SLOT_BYTES)
STATE.room = Room(most_chunks={room})
if {writer}:
    commit = vars(STATE).setdefault("kept_commit", STATE.commit)
    STATE.commit = lambda *given: time.sleep({writer}) or commit(*given)
def read_here(part, selection, chunk_rows, skip, spans, take, may_stay_on_gpu):
    if part.files[0].path.endswith("small.jsonl"):
        return on_host(part, selection, chunk_rows, skip, spans, take)
    blocks = partial(SlowBlocks, 0, random.Random(1))
    return _as_room_allows(read_range(readers, blocks, part, selection, chunk_rows, skip, spans), take)
STATE.read_range = read_here
"""
"""A worker that reads as if it had a GPU, except files with one name. Slow steps take some seconds longer."""


def as_on_a_gpu(path: Path, processes: int = 2, room: int = 32, **slow: float) -> dict[str, list[str]]:
    """Return Dask's settings for such a worker.

    Parameters
    ----------
    path : Path
        The file into which the worker's preload is written.
    processes : int
        How many processes read.
    room : int
        For how many chunks there is room.
    slow : float
        Seconds that a step takes longer.

    """
    helpers = f"import sys\nsys.path.append({str(ROOT / 'tests' / 'helpers')!r})"
    steps = {"reader": 0.0, "ingest": 0.0, "writer": 0.0} | slow
    path.write_text(helpers + ON_A_GPU.format(processes=processes, room=room, **steps))
    return {"distributed.worker.preload": [str(path)]}


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["reader", "ingest", "writer"])
def test_a_job_tells_what_its_device_waited_for(
    broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path, cause: str
) -> None:
    lines_in(tmp_path / "in.jsonl", 3200)
    arguments = ["classify", tmp_path / "in.jsonl", "-o", tmp_path / "out", "--model", small_model_file, "--workers", 1]
    room = 2 if cause == "writer" else 32
    with dask.config.set(as_on_a_gpu(tmp_path / "preload.py", room=room, **{cause: 1.0})):
        run = broadsheet_in_process(*arguments, "--chunk-size", 400, "--json")
    assert run.returncode == 0, run.stderr
    (device,) = json.loads(run.stdout)["breakdown"]["devices"]
    waits = {name: share for name, share in device["shares"].items() if name != "compute"}
    assert max(waits, key=lambda name: waits[name]) == cause, device
    assert {"ingest", "read"} <= {span["lane"] for span in spans_of(tmp_path / "out")}


def test_a_job_tells_who_has_read_its_records(
    broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    big = lines_in(tmp_path / "in" / "big.jsonl", 800, odd=100)
    big.write_text(big.read_text().removesuffix("\n"))
    lines_in(tmp_path / "in" / "small.jsonl", 200)
    arguments = ["classify", tmp_path / "in", "-o", tmp_path / "out", "--model", small_model_file, "--workers", 1]
    with dask.config.set(as_on_a_gpu(tmp_path / "preload.py")):
        run = broadsheet_in_process(*arguments, "--report", tmp_path / "page.html", env={"COLUMNS": "300"})
    line = (
        "79.1% of 1,000 records by the GPU; by the host 8 of which the GPU could not be sure; 1 from a line on that is "
        "longer than a block, or has no line end; 200 in files that only the host reads"
    )
    assert f"read  {line}" in run.stdout, run.stdout + run.stderr
    assert run.stdout.count("memory is short on this host") == 1  # not once for each of three ranges
    assert line in (tmp_path / "page.html").read_text()
    (record,) = (tmp_path / "out" / "_runs").glob("2*.json")
    told_by_host = {"odd": 8, "outside_blocks": 1, "other_ranges": 200}
    assert json.loads(record.read_text())["read_by"] == {"gpu": 791, "host": told_by_host}
    explained = (ROOT / "docs" / "explain.md").read_text()
    assert all(f"\n| {reason} | " in explained for reason in BY_HOST)


@pytest.mark.slow
def test_more_ranges_than_processes_share_little_room(
    broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path
) -> None:
    """Few cores serve a GPU, as on some hosts. Neither ranges with a process nor those that wait for one get stuck."""
    (tmp_path / "in").mkdir()
    for i in range(4):
        lines_in(tmp_path / "in" / f"{i}.jsonl", 800)
    arguments = ["classify", tmp_path / "in", "-o", tmp_path / "out", "--model", small_model_file, "--workers", 1]
    with dask.config.set(as_on_a_gpu(tmp_path / "preload.py", processes=1, room=1)):
        run = broadsheet_in_process(*arguments, "--chunk-size", 100, "--json")
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert (told["rows_written"], told["read_by"]["gpu"] > 0) == (3200, True)


def test_a_damaged_file_is_read_up_to_the_damage(readers: Readers, tmp_path: Path) -> None:
    chance = random.Random(8)
    path = written(tmp_path / "a.jsonl.gz", 3000, chance, others=0)
    path.write_bytes(path.read_bytes()[:-2000])
    plan = plan_files(found([path]), SELECTION, 1000)
    given = (plan.ranges[0], plan.selection, 1000, never)
    items = told([*read_in_blocks(readers, partial(OnHost, 0, chance), *given, [])])
    assert items == told([*read_range(*given)])
    assert "cut off or damaged" in str(items[-1])


@pytest.mark.slow
def test_a_reader_that_is_killed_in_the_middle_is_said_to_be_lost(readers: Readers, tmp_path: Path) -> None:
    """The task of the range is then tried again, as for other readers."""
    chance = random.Random(9)
    plan = plan_files(found([written(tmp_path / "a.jsonl.gz", 6000, chance, others=0)]), SELECTION, 100)
    given = (plan.ranges[0], plan.selection, 100, never)
    blocks = read_in_blocks(readers, partial(OnHost, 0, chance), *given, [])
    next(blocks)
    for pid in pids():
        os.kill(pid, 9)
    with pytest.raises(ReaderLost, match=r"a\.jsonl\.gz: the process that read it was ended by SIGKILL"):
        list(blocks)
    assert told([*read_in_blocks(readers, partial(OnHost, 0, chance), *given, [])]) == told([*read_range(*given)])


# A line end in quotes with a blank line after the record, an escaped quote, and one at the end of a field.
@pytest.mark.parametrize("row", ['1,"two\nlines",a\n\n', '1,a \\"quote\\"\nand,a\n', '1,"ends with \\" a quote",a\n'])
@pytest.mark.parametrize("every", [0, 2])
def test_what_is_said_of_lines_and_quotes_is_the_same(readers: Readers, every: int, row: str, tmp_path: Path) -> None:
    """The worker knows the rows, and the reader knows the bytes."""
    path = tmp_path / "a.csv"
    path.write_text("id,text,label\n" + row * 20_000)
    plan = plan_files(found([path]), SELECTION, 5000)
    notes = []
    for range_ in parts_of(plan):
        given = (range_, plan.selection, 5000, never)
        items = [*read_in_blocks(readers, partial(OnHost, every, random.Random(1)), *given, [])]
        assert told(items) == told([*read_range(*given)])
        assert isinstance(items[-1], RangeEnd)
        notes += [note for _, note in items[-1].notes]
    assert notes


class Unused(OnHost):
    """Fails when it is asked to read a block."""

    def read(self, block: RawBlock, held: memoryview, row: int) -> BlockRows | None:
        raise AssertionError(f"block {block}, of row {row}, was sent")


@pytest.mark.parametrize("escape", [None, "\\"])
def test_no_block_is_sent_of_a_file_that_a_gpu_cannot_read(
    readers: Readers, escape: str | None, tmp_path: Path
) -> None:
    """CRs end its records, or characters are escaped. The reader learns of the CRs only when it opens the file."""
    path, selection = tmp_path / "a.csv", replace(SELECTION, escape=escape)
    end = b"\r" if escape is None else b"\n"
    path.write_bytes(b"id,text,label" + end + (b'1,"a\nb",a' + end) * 30_000)
    files = [replace(file, format=file.format.for_options(selection)) for file in found([path])]
    plan = plan_files(files, selection, 5000)
    for range_ in parts_of(plan):
        given = (range_, plan.selection, 5000, never)
        blocks = read_in_blocks(readers, partial(Unused, 0, random.Random(1)), *given, [])
        assert told([*blocks]) == told([*read_range(*given)])


def test_which_files_a_gpu_reads() -> None:
    csv, text = Csv(columns=("id", "text", "label"), cr_ends=False), Text()
    assert can_read(csv, SELECTION)
    assert can_read(Tsv(), SELECTION)
    assert can_read(text, Selection())
    assert not can_read(replace(csv, cr_ends=True), SELECTION)
    assert not can_read(replace(csv, escape="\\"), SELECTION)
    assert not can_read(replace(csv, encoding="latin-1"), SELECTION)
    assert can_read(csv, replace(SELECTION, text=("text", "id")))
    assert not can_read(csv, replace(SELECTION, kept_columns=tuple(f"{i}" for i in range(40))))
    assert not can_read(text, Selection(text=("id",)))
    assert not can_read(text, Selection(text=("text", "id")))
