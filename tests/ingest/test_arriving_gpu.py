"""Texts that the host decodes and that go to a GPU from the readers' slots equal those in the host's memory."""

from __future__ import annotations

import csv
import gzip
import random
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blocks import SLOT_BYTES, told
from jobs import workers_that_run
from reading import found

from broadsheet.pipeline import classify, close
from broadsheet.pipeline.engine.open import why_no_gpu
from broadsheet.pipeline.source.plan.plan import plan_files
from broadsheet.pipeline.source.read.read import read_range
from broadsheet.pipeline.source.read.readers import Readers
from broadsheet.pipeline.source.read.ring import Ring
from broadsheet.pipeline.source.read.ring_messages import PIECE_BYTES, OnHost
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")]

PRELOAD = """
from broadsheet.pipeline.job.worker import STATE
def dask_setup(worker):
    STATE.small_bytes = 0
    read_range = STATE.read_range
    def noted(*given):
        for item in read_range(*given[:{arguments}]):
            if hasattr(item, "text") and len(item.text):
                with open({file!r}, "a") as file:
                    print(type(item.text).__name__, file=file)
            yield item
    STATE.read_range = noted
"""
"""A worker that reads all files in processes, and records where texts are. With 6 arguments, they stay on the host."""


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    close()
    readers = Readers(1, 1, SLOT_BYTES)
    yield readers
    readers.close()


def never(_: str) -> bool:
    return False


def room(_: int) -> bool:
    return True


def texts(count: int) -> list[str]:
    chance = random.Random(count)
    words = ["Stocks", "fell", "日本語", "Straße", "\n", '"so"', "\u3000", "x" * 300]
    return [" ".join(chance.choices(words, k=chance.randrange(60))) for _ in range(count)]


def conversion(number: int, text: bytes) -> bytes:
    """Return a record of a WET file."""
    fields = ("WARC-Type: conversion", f"WARC-Target-URI: https://example.org/{number}", f"Content-Length: {len(text)}")
    return "\r\n".join(["WARC/1.0", *fields, "\r\n"]).encode() + text + b"\r\n\r\n"


def written(folder: Path, form: str, rows: int) -> Path:
    """Write a file of texts, of which some are blank, and some are missing if the format has null."""
    path, every = folder / f"in.{form}", texts(rows)
    table = pa.table({"id": range(rows), "text": [None if i % 97 == 5 else text for i, text in enumerate(every)]})
    if form == "parquet":
        pq.write_table(table, path, row_group_size=900)
    elif form == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, 700)
    elif form == "wet.gz":
        path = folder / "in.warc.wet.gz"
        path.write_bytes(b"".join(gzip.compress(conversion(i, text.encode())) for i, text in enumerate(every)))
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("id", "text"), *enumerate(every)])
    return path


FORMS = ("parquet", "arrow", "csv", "wet.gz")


@pytest.mark.parametrize("form", FORMS)
def test_texts_on_the_gpu_are_those_of_the_host(readers: Readers, form: str, tmp_path: Path) -> None:
    """Some chunks are larger than all slots together."""
    from broadsheet.pipeline.ingest.arriving import place_on_gpu
    from broadsheet.pipeline.ingest.texts import GpuTexts

    path = written(tmp_path, form, 4000)
    kept = ("url",) if form == "wet.gz" else ("id", "text")
    for chunk_rows, reads in ((300, 0), (4000, 90)):
        plan = plan_files(found([path]), Selection(kept_columns=kept, reads=reads), chunk_rows)
        for range_ in plan.ranges:
            given = (range_, plan.selection, chunk_rows, never)
            came = [*readers.read_range(*given, [], room, partial(place_on_gpu, lambda slot: None))]
            assert told(came) == told([*read_range(*given)])
            assert all(isinstance(item.text, GpuTexts) for item in came if isinstance(item, Chunk) and item.text_bytes)


def test_texts_for_which_the_gpu_has_no_memory_stay_on_the_host() -> None:
    import cupy as cp

    from broadsheet.pipeline.ingest.arriving import place_on_gpu

    held = [place_on_gpu(lambda slot: None, 1 << 33)]
    while not isinstance(held[-1], OnHost):  # takes no memory that is never written to
        held.append(place_on_gpu(lambda slot: None, 1 << 33))
    assert len(held) > 1
    held.clear()
    cp.get_default_memory_pool().free_all_blocks()


def test_a_slot_is_locked_as_far_as_it_is_used() -> None:
    """The slot holds pieces of messages, then a whole block, then pieces again."""
    import cupy as cp

    from broadsheet.pipeline.ingest.page_lock import PageLocks

    ring = Ring(1)
    locks = PageLocks(ring)
    uses = [(locks.lock_for_pieces, PIECE_BYTES), (locks.lock, ring.slot_bytes), (locks.lock_for_pieces, PIECE_BYTES)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for lock, size in uses:
            lock(1)
            held = np.frombuffer(ring.block(1, size), np.uint8)
            held[:] = size % 251
            on_gpu = cp.empty(size, np.uint8)
            on_gpu.data.copy_from_host_async(held.ctypes.data, size, cp.cuda.get_current_stream())
            assert bool((on_gpu == size % 251).all())
            del held
    locks.close()
    ring.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_job_writes_the_same_files_either_way(form: str, tmp_path: Path) -> None:
    path = written(tmp_path, form, 6000)
    job = {"model": "ag-news", "device": "cuda", "keep": ["url" if form == "wet.gz" else "id"], "chunk_size": 2500}
    close()

    def parts(name: str, arguments: int) -> tuple[dict[str, bytes], set[str]]:
        noted = tmp_path / f"{name}.txt"
        with workers_that_run(PRELOAD.format(arguments=arguments, file=str(noted)), tmp_path, 1) as client:
            classify(path, tmp_path / name, client=client, **job)
        folders = (tmp_path / name / "parts", tmp_path / name / "_quarantine")
        files = {file.name: file.read_bytes() for folder in folders for file in sorted(folder.glob("*"))}
        return files, {*noted.read_text().split()}

    (by_gpu, gpu), (by_host, host) = parts("gpu", 7), parts("host", 6)
    assert len(by_gpu) >= 3
    assert by_gpu == by_host
    assert (gpu, host) == ({"GpuTexts"}, {"LargeBinaryArray"})
