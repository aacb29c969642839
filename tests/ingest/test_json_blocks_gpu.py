"""Blocks of JSON Lines on a GPU: the rows, texts and bad rows that the host finds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from blocks import SLOT_BYTES, told, written
from reading import found

from broadsheet.pipeline import classify, close
from broadsheet.pipeline.engine.open import why_no_gpu
from broadsheet.pipeline.ingest.reading import read_range as read_in_blocks
from broadsheet.pipeline.source.chunk import Selection
from broadsheet.pipeline.source.plan.plan import RangeEnd, plan_files
from broadsheet.pipeline.source.read.read import read_range
from broadsheet.pipeline.source.read.readers import Readers
from broadsheet.pipeline.source.read.ring import RawBlock
from broadsheet.pipeline.telemetry.read_by import MANY_ODD
from broadsheet.pipeline.telemetry.remarks import REMARKS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]


ON_HOST = """
from broadsheet.pipeline.job.worker import STATE
read_range = STATE.read_range
STATE.read_range = lambda *given: read_range(*given[:6])
"""
"""A worker that never keeps texts on the GPU."""


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    close()
    readers = Readers(1, 1, SLOT_BYTES)
    yield readers
    readers.close()


def never(_: str) -> bool:
    return False


@pytest.mark.parametrize("others", [0.0, 0.002, 0.6])
@pytest.mark.parametrize("keep_all", [False, True])
@pytest.mark.parametrize("reads", [0, 90])
def test_a_gpu_reads_what_the_host_reads(
    readers: Readers, others: float, keep_all: bool, reads: int, tmp_path: Path
) -> None:
    """Of a block with many records that are left to the host, it reads all."""
    from broadsheet.pipeline.ingest.json_blocks import JsonBlocks

    chance = random.Random(f"{others} {keep_all} {reads}")
    refused = []

    class Noted(JsonBlocks):
        def read(self, block: RawBlock, held: memoryview, row: int):
            rows = super().read(block, held, row)
            refused.append(isinstance(rows, str))
            return rows

    path = written(tmp_path / "a.jsonl", 3000, chance, others)
    selection = Selection(kept=("id", "text"), truth="label", classes=("a",), reads=reads, keep_all=keep_all)
    plan = plan_files(found([path]), selection, 700)
    for part in plan.ranges:
        given, before = (part, plan.selection, 700, never), len(refused)
        items = [*read_in_blocks(readers, partial(Noted, lambda slot: None), *given, [])]
        assert told(items) == told([*read_range(*given)])
        end = items[-1]
        assert isinstance(end, RangeEnd)
        assert sum(end.read_by.values()) == sum(rows or 0 for _, rows in end.files)
        assert (MANY_ODD in end.read_by) == any(refused[before:])
    assert refused
    assert any(refused) == (others == 0.6)


def test_a_block_of_blank_lines_has_no_rows(readers: Readers, tmp_path: Path) -> None:
    from broadsheet.pipeline.ingest.json_blocks import JsonBlocks

    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' + " \n\r\n\n" * 60_000 + '{"text": "b"}\n')
    plan = plan_files(found([path]), Selection(), 700)
    for part in plan.ranges:
        given = (part, plan.selection, 700, never)
        blocks = read_in_blocks(readers, partial(JsonBlocks, lambda slot: None), *given, [])
        assert told([*blocks]) == told([*read_range(*given)])


def test_where_memory_cannot_be_page_locked_it_is_used_all_the_same_and_said_once(readers: Readers) -> None:
    """CUDA refuses to lock what is locked already."""
    from broadsheet.pipeline.ingest.page_lock import PageLocks

    first, second = PageLocks(readers.ring), PageLocks(readers.ring)
    first.lock(0)
    first.lock(0)
    assert not REMARKS
    second.lock(0)
    second.lock(1)
    (remark,) = REMARKS
    assert remark.startswith("the host does not page-lock memory for reading, so a GPU copied its input more slowly: ")
    second.close()
    assert not REMARKS
    first.close()
    again = PageLocks(readers.ring)
    again.lock(0)
    assert not REMARKS
    again.close()


def test_a_job_writes_the_same_files_either_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    (tmp_path / "in").mkdir()
    for number in range(3):
        written(tmp_path / "in" / f"{number}.jsonl", 12_000, chance, 0.001)
    job = {"model": "ag-news", "device": "cuda", "keep": ["id", "text"], "chunk_size": 5000}

    def parts(name: str) -> dict[str, bytes]:
        classify(tmp_path / "in", tmp_path / name, **job)
        return {path.name: path.read_bytes() for path in sorted((tmp_path / name / "parts").iterdir())}

    by_gpu = parts("gpu")
    assert len(by_gpu) > 6
    preload = tmp_path / "preload.py"
    preload.write_text(ON_HOST)
    close()
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", f'["{preload}"]')
    assert parts("host") == by_gpu
    close()
