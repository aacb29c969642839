"""Blocks of records on a GPU: it finds the rows, texts and bad rows that the host finds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from blocks import SLOT_BYTES, parts_of, told, written
from jobs import workers_that_run
from reading import found

from broadsheet.pipeline import classify, close
from broadsheet.pipeline.engine.open import why_no_gpu
from broadsheet.pipeline.ingest.blocks import BlockRows, OpenBlocks
from broadsheet.pipeline.ingest.reading import read_range as read_in_blocks
from broadsheet.pipeline.source.plan.plan import RangeEnd, plan_files
from broadsheet.pipeline.source.read.read import read_range
from broadsheet.pipeline.source.read.readers import Readers
from broadsheet.pipeline.source.read.ring import RawBlock
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.telemetry.remarks import REMARKS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]


ON_HOST = """
from broadsheet.pipeline.job.worker import STATE
read_range = vars(STATE).setdefault("kept_read", STATE.read_range)  # Dask runs a preload more than once
STATE.read_range = lambda *given: read_range(*given[:6])
"""
"""A worker that never keeps texts on the GPU."""


Opened = tuple[OpenBlocks, list[bool]]


@pytest.fixture
def opened() -> Opened:
    """The function that opens a file's blocks on a GPU, and a list that records whether each block was refused."""
    from broadsheet.pipeline.ingest.record_blocks import RecordBlocks

    refused: list[bool] = []

    class Noted(RecordBlocks):
        def read(self, block: RawBlock, held: memoryview, row: int) -> BlockRows | str:
            rows = super().read(block, held, row)
            refused.append(isinstance(rows, str))
            return rows

    return partial(Noted, lambda slot: None), refused


def compare(readers: Readers, opened: OpenBlocks, paths: list[Path], selection: Selection, chunk_rows: int) -> None:
    """Assert that the rows of files read in blocks are those that the host reads."""
    plan = plan_files(found(paths), selection, chunk_rows)
    for part in parts_of(plan):
        given = (part, plan.selection, chunk_rows, never)
        items = [*read_in_blocks(readers, opened, *given, [])]
        assert told(items) == told([*read_range(*given)])
        end = items[-1]
        assert isinstance(end, RangeEnd)
        assert sum(end.read_by.values()) == sum(rows or 0 for _, rows in end.files)


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
# No record is left to the host, few are, or so many that the host reads whole blocks.
@pytest.mark.parametrize("others", [0.0, 0.002, 0.6])
@pytest.mark.parametrize("keep_all", [False, True])
# Whole texts, the beginnings of long ones, and texts that are joined from two columns.
@pytest.mark.parametrize(("reads", "text"), [(0, ("text",)), (90, ("text",)), (90, ("label", "text"))])
def test_a_gpu_reads_what_the_host_reads(
    readers: Readers,
    opened: Opened,
    suffix: str,
    others: float,
    keep_all: bool,
    reads: int,
    text: tuple[str, ...],
    tmp_path: Path,
) -> None:
    """If many records of a block are left to the host, the host reads the whole block."""
    text = ("text",) if suffix == ".txt" else text
    chance, (open_blocks, refused) = random.Random(f"{suffix} {others} {keep_all} {reads} {text}"), opened
    (tmp_path / "label=a").mkdir()
    path = written(tmp_path / "label=a" / f"a{suffix}", 3000, chance, others)
    kept, truth = (("label", "text"), None) if suffix == ".txt" else (("id", "text"), "label")
    selection = Selection(text, kept, truth, classes=("a",), reads=reads, keep_all=keep_all)
    compare(readers, open_blocks, [path], selection, 700)
    assert refused
    assert any(refused) == (others == 0.6)


@pytest.mark.parametrize(
    ("row", "is_refused"),
    [
        ('1,5" of rain,a\n', False),
        ('1,"x" y,a\n', False),
        ('1,"a",a\n1,"two\nlines",a,b\n', True),
        ('1,"never closed,a\n', True),
    ],
)
def test_quotes_are_what_they_are_to_the_host(
    readers: Readers, opened: Opened, row: str, is_refused: bool, tmp_path: Path
) -> None:
    """If a record may have a quote that was left open, the host reads the block."""
    (tmp_path / "place=here").mkdir()
    path = tmp_path / "place=here" / "a.csv"
    path.write_text("id,text,label\n" + '2,"good,\n""row""",a\r\n' * 9000 + row + "3,good,a\n" * 9000)
    selection = Selection(kept_columns=("id", "place"), truth="label", classes=("a",))
    open_blocks, refused = opened
    compare(readers, open_blocks, [path], selection, 700)
    assert any(refused) == is_refused


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_block_of_blank_lines(readers: Readers, opened: Opened, suffix: str, tmp_path: Path) -> None:
    path, blank = tmp_path / f"a{suffix}", " \n\r\n\n" if suffix == ".jsonl" else "\n\r\n"
    first, last = ('{"text": "a"}\n', '{"text": "b"}\n') if suffix == ".jsonl" else ("text\na\n", "b\n")
    path.write_text(first + blank * 60_000 + last)
    compare(readers, opened[0], [path], Selection(), 700)


@pytest.mark.parametrize("chunk_rows", [700, 900, 4000])
def test_a_chunk_may_begin_with_rows_of_the_host(
    readers: Readers, opened: Opened, chunk_rows: int, tmp_path: Path
) -> None:
    """An example is the last row of a file, if it lacks its line end."""
    (tmp_path / "place=here").mkdir()
    paths = [tmp_path / "place=here" / name for name in ("a.csv", "b.jsonl", "c.csv")]
    for path in paths:
        is_csv = path.suffix == ".csv"
        row = '1,"some text",a\n' if is_csv else '{"id": 1, "text": "some text", "label": "a"}\n'
        path.write_text("id,text,label\n" * is_csv + (row * 700).rstrip("\n"))
    compare(
        readers, opened[0], paths, Selection(kept_columns=("id", "place"), truth="label", classes=("a",)), chunk_rows
    )


def test_where_memory_cannot_be_page_locked_it_is_used_all_the_same_and_said_once(readers: Readers) -> None:
    """CUDA refuses to lock memory that is already locked."""
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


STEPS = [
    {"step": "replace", "pattern": "\n", "by": " "},
    {"step": "replace", "pattern": "e", "by": "a"},
    {"step": "strip"},
]


@pytest.mark.parametrize("steps", [None, STEPS])
def test_a_job_writes_the_same_files_either_way(tmp_path: Path, steps: list[dict[str, str]] | None) -> None:
    chance = random.Random(3)
    (tmp_path / "in").mkdir()
    for number, suffix in enumerate((".jsonl", ".jsonl", ".csv", ".tsv")):
        written(tmp_path / "in" / f"{number}{suffix}", 12_000, chance, 0.001)
    # Chunks decide the size of ranges; the host reads those that are smaller than 1 MiB.
    job = {"model": "ag-news", "device": "cuda", "keep": ["id", "text"], "chunk_size": 16_000}
    if steps is not None:
        (tmp_path / "steps.json").write_text(json.dumps(steps))
        job["preparation"] = tmp_path / "steps.json"
    close()

    def parts(name: str, code: str) -> dict[str, bytes]:
        with workers_that_run(code, tmp_path, 1) as client:
            read_by = classify(tmp_path / "in", tmp_path / name, client=client, **job).to_dict()["read_by"]
        assert (read_by is not None) == (name == "gpu")
        return {path.name: path.read_bytes() for path in sorted((tmp_path / name / "parts").iterdir())}

    by_gpu = parts("gpu", "")
    assert len(by_gpu) > 6
    assert parts("host", ON_HOST) == by_gpu


def test_a_table_stays_where_it_is_when_the_next_block_uses_the_memory_of_this_one() -> None:
    """A table that several blocks read is made while the first of them is read."""
    import cupy as cp

    from broadsheet.pipeline.ingest.workspace import workspace
    from broadsheet.pipeline.kernels.record_ops import device_table

    content = np.random.default_rng(8).integers(0, 256, 4096).astype(np.uint8)
    for _ in range(2):  # the first time, a new workspace learns how much memory a block takes
        with workspace():
            cp.empty(1 << 20, np.uint8)
    with workspace():
        table = device_table(content)
    with workspace():
        cp.full(1 << 20, 7, np.uint8)
    assert (cp.asnumpy(table) == content).all()
