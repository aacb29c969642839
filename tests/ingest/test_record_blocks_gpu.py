"""Blocks of records on a GPU: the rows, texts and bad rows that the host finds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from blocks import SLOT_BYTES, parts_of, told, written
from reading import found

from broadsheet.pipeline import classify, close
from broadsheet.pipeline.engine.open import why_no_gpu
from broadsheet.pipeline.ingest.reading import read_range as read_in_blocks
from broadsheet.pipeline.source.chunk import Selection
from broadsheet.pipeline.source.plan.plan import plan_files
from broadsheet.pipeline.source.read.read import read_range
from broadsheet.pipeline.source.read.readers import Readers
from broadsheet.pipeline.source.read.ring import RawBlock

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


SUFFIXES = [".jsonl", ".csv", ".tsv", ".txt"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("others", [0.0, 0.002, 0.6])
@pytest.mark.parametrize("keep_all", [False, True])
@pytest.mark.parametrize("reads", [0, 90])
def test_a_gpu_reads_what_the_host_reads(
    readers: Readers, suffix: str, others: float, keep_all: bool, reads: int, tmp_path: Path
) -> None:
    """Of a block with many records that are left to the host, it reads all."""
    from broadsheet.pipeline.ingest.record_blocks import RecordBlocks

    chance = random.Random(f"{suffix} {others} {keep_all} {reads}")
    refused = []

    class Noted(RecordBlocks):
        def read(self, block: RawBlock, held: memoryview, row: int):
            rows = super().read(block, held, row)
            refused.append(rows is None)
            return rows

    (tmp_path / "label=a").mkdir()
    path = written(tmp_path / "label=a" / f"a{suffix}", 3000, chance, others)
    kept, truth = (("label", "text"), None) if suffix == ".txt" else (("id", "text"), "label")
    selection = Selection(kept=kept, truth=truth, classes=("a",), reads=reads, keep_all=keep_all)
    plan = plan_files(found([path]), selection, 700)
    for part in parts_of(plan):
        given = (part, plan.selection, 700, never)
        blocks = read_in_blocks(readers, partial(Noted, lambda slot: None), *given, [])
        assert told([*blocks]) == told([*read_range(*given)])
    assert refused
    assert any(refused) == (others == 0.6)


@pytest.mark.parametrize(
    "row",
    ['1,5" of rain,a\n', '1,"a",a\n1,"two\nlines",a,b\n', '1,"never closed,a\n', "1,text,a\n" * 9 + '1,"x" y,a\n'],
)
def test_a_block_with_a_quote_that_does_not_fit_is_read_by_the_host(readers: Readers, row: str, tmp_path: Path) -> None:
    from broadsheet.pipeline.ingest.record_blocks import RecordBlocks

    (tmp_path / "place=here").mkdir()
    path = tmp_path / "place=here" / "a.csv"
    path.write_text("id,text,label\n" + '2,"good,\n""row""",a\r\n' * 9000 + row + "3,good,a\n" * 9000)
    selection = Selection(kept=("id", "place"), truth="label", classes=("a",))
    plan = plan_files(found([path]), selection, 700)
    for part in parts_of(plan):
        given = (part, plan.selection, 700, never)
        blocks = read_in_blocks(readers, partial(RecordBlocks, lambda slot: None), *given, [])
        assert told([*blocks]) == told([*read_range(*given)])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_block_of_blank_lines(readers: Readers, suffix: str, tmp_path: Path) -> None:
    from broadsheet.pipeline.ingest.record_blocks import RecordBlocks

    path, blank = tmp_path / f"a{suffix}", " \n\r\n\n" if suffix == ".jsonl" else "\n\r\n"
    first, last = ('{"text": "a"}\n', '{"text": "b"}\n') if suffix == ".jsonl" else ("text\na\n", "b\n")
    path.write_text(first + blank * 60_000 + last)
    plan = plan_files(found([path]), Selection(), 700)
    for part in parts_of(plan):
        given = (part, plan.selection, 700, never)
        blocks = read_in_blocks(readers, partial(RecordBlocks, lambda slot: None), *given, [])
        assert told([*blocks]) == told([*read_range(*given)])


@pytest.mark.parametrize("chunk_rows", [700, 900, 4000])
def test_a_chunk_may_begin_with_rows_of_the_host(readers: Readers, chunk_rows: int, tmp_path: Path) -> None:
    """As with the last row of a file, which lacks its line end."""
    from broadsheet.pipeline.ingest.record_blocks import RecordBlocks

    (tmp_path / "place=here").mkdir()
    paths = [tmp_path / "place=here" / name for name in ("a.csv", "b.jsonl", "c.csv")]
    for path in paths:
        many = path.suffix == ".csv"
        row = '1,"some text",a\n' if many else '{"id": 1, "text": "some text", "label": "a"}\n'
        path.write_text("id,text,label\n" * many + (row * 700).rstrip("\n"))
    selection = Selection(kept=("id", "place"), truth="label", classes=("a",))
    plan = plan_files(found(paths), selection, chunk_rows)
    for part in plan.ranges:
        given = (part, plan.selection, chunk_rows, never)
        blocks = read_in_blocks(readers, partial(RecordBlocks, lambda slot: None), *given, [])
        assert told([*blocks]) == told([*read_range(*given)])


def test_a_job_writes_the_same_files_either_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    (tmp_path / "in").mkdir()
    for number, suffix in enumerate((".jsonl", ".jsonl", ".csv", ".tsv")):
        written(tmp_path / "in" / f"{number}{suffix}", 12_000, chance, 0.001)
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
