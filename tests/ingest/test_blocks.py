"""Ranges whose records a worker finds itself, in blocks that reader processes fill: as one process reads them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from blocks import SLOT_BYTES, OnHost, told, written
from jobs import children_of
from reading import found

from broadsheet.pipeline import close
from broadsheet.pipeline.ingest.reading import read_range as read_in_blocks
from broadsheet.pipeline.source.chunk import Selection
from broadsheet.pipeline.source.plan.plan import Plan, Range, RangeEnd, Start, plan_files
from broadsheet.pipeline.source.read.read import read_range
from broadsheet.pipeline.source.read.readers import ReaderLost, Readers

SELECTION = Selection(kept=("id",), truth="label", classes=("a",))


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    close()  # a worker that another test has kept in this process has readers too
    readers = Readers(1, 1, SLOT_BYTES)
    yield readers
    readers.close()


def never(_: str) -> bool:
    return False


def pids() -> set[int]:
    return {child.pid for child in children_of(os.getpid(), "broadsheet.pipeline.source.read.reader_process")}


def parts_of(plan: Plan) -> Iterator[Range]:
    """The ranges of a file, each with its start once the one before it has been read."""
    start = None
    for part in plan.ranges:
        numbered = Range(part.number, part.files, part.first, None, part.part, part.parts, start)
        yield numbered
        *_, end = read_range(numbered, plan.selection, 5000, never)
        assert isinstance(end, RangeEnd)
        row = (start.row if start else 0) + sum(rows or 0 for _, rows in end.files)
        start = None if end.after is None else Start(row, end.after)


@pytest.mark.parametrize("every", [0, 3])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_blocks_hold_what_one_process_reads(readers: Readers, suffix: str, every: int, tmp_path: Path) -> None:
    chance, before = random.Random(f"{suffix} {every}"), pids()
    for turn, chunk_rows in enumerate((97, 5000)):
        path = written(tmp_path / f"{turn}{suffix}", 3000, chance)
        selection = Selection(kept=("id",), truth="label", classes=("a",), reads=(0, 90)[turn])
        plan = plan_files(found([path]), selection, chunk_rows)
        for part in parts_of(plan):
            given = (part, plan.selection, chunk_rows, never)
            blocks = read_in_blocks(readers, partial(OnHost, every, chance), *given, [])
            assert told([*blocks]) == told([*read_range(*given)])
    assert pids() == before  # each range was received to its end, so that no process had to be replaced


def test_a_part_that_begins_at_a_guess_is_read_from_there(readers: Readers, tmp_path: Path) -> None:
    chance = random.Random(7)
    plan = plan_files(found([written(tmp_path / "a.jsonl", 3000, chance, others=0)]), SELECTION, 1000)
    for part in plan.ranges[1:5]:
        given = (part, plan.selection, 1000, never)
        assert told([*read_in_blocks(readers, partial(OnHost, 0, chance), *given, [])]) == told([*read_range(*given)])


def test_a_damaged_file_is_read_up_to_the_damage(readers: Readers, tmp_path: Path) -> None:
    chance = random.Random(8)
    path = written(tmp_path / "a.jsonl.gz", 3000, chance, others=0)
    path.write_bytes(path.read_bytes()[:-2000])
    plan = plan_files(found([path]), SELECTION, 1000)
    given = (plan.ranges[0], plan.selection, 1000, never)
    items = told([*read_in_blocks(readers, partial(OnHost, 0, chance), *given, [])])
    assert items == told([*read_range(*given)])
    assert "cut off or damaged" in str(items[-1])


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
