"""Several jobs in one output folder at once: different jobs never both finish, and two runs of the same job both do."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import msgspec
import pyarrow.parquet as pq
import pytest
from distributed import Client
from jobs import Once, contents

from broadsheet.pipeline import BroadsheetError, OutputError, UsageError, classify, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.commit import commit_chunk
from broadsheet.pipeline.output.folder import OutputFolder
from broadsheet.pipeline.output.layout import PartNames
from broadsheet.pipeline.output.local_store import LocalStore
from broadsheet.pipeline.output.record import Entry
from broadsheet.pipeline.output.store import check_claim, take_over
from broadsheet.pipeline.report.job import JobReport
from broadsheet.pipeline.source.rows.chunk import QUARANTINE_SCHEMA

TEXTS = [f"article {i}" for i in range(24)]


@pytest.fixture
def job(client: Client, small_model: Model, tmp_path: Path) -> Callable[..., JobReport]:
    return partial(classify, output=tmp_path / "out", model=small_model, client=client, chunk_size=3)


def test_a_job_whose_folder_another_takes_ends_with_that_message_and_leaves_nothing(job, tmp_path: Path) -> None:
    """The job tries to commit its chunks in flight while the other job runs, and one more long after that job has
    ended.
    """
    out = tmp_path / "out"
    late: list[Entry] = []

    def overwrite() -> None:
        store = OutputFolder(out)
        late.extend(store.entries(store.manifest().fingerprint.id).chunks.values())
        job([*TEXTS, "one more"], overwrite=True)

    with pytest.raises(OutputError, match=r"another job has overwritten .+ the labels of this one are lost"):
        job(TEXTS, progress=Once(overwrite))
    parts = contents(out)
    assert verify(out).rows_written == 25
    entry = msgspec.structs.replace(late[0], files=())
    rows = pq.read_table(next((out / "parts").iterdir()))
    with pytest.raises(OutputError, match="another job has overwritten"):
        commit_chunk(LocalStore(out), rows, QUARANTINE_SCHEMA.empty_table(), entry, PartNames())
    assert contents(out) == parts


def test_a_write_is_stopped_however_late_the_folder_is_taken(tmp_path: Path) -> None:
    """If the other job comes after the check, it removes the temporary file with the old content. If it comes before,
    the check finds its claim.
    """
    store = LocalStore(tmp_path)
    take_over(store, "0" * 16)
    checks = []

    def check() -> None:
        check_claim(store, "0" * 16)
        if not checks:
            take_over(store, "1" * 16)
            store.remove_attempts(())
        checks.append("passed")

    with pytest.raises(OutputError, match="another job has overwritten"):
        store.put("_manifest.json", b"{}", check)
    assert checks == ["passed"]
    assert [path.name for path in tmp_path.iterdir()] == ["_claim.json"]


def test_of_jobs_that_begin_at_once_in_an_empty_folder_one_wins(job, tmp_path: Path) -> None:
    together = Barrier(2)

    def begin(texts: list[str]) -> JobReport | BroadsheetError:
        together.wait()
        try:
            return job(texts)
        except BroadsheetError as error:
            return error

    (tmp_path / "out").mkdir()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(begin, (TEXTS, TEXTS[:9])))
    (report,) = (r for r in results if isinstance(r, JobReport))
    (error,) = (r for r in results if isinstance(r, BroadsheetError))
    assert isinstance(error, UsageError)
    assert re.search(r"another job has begun in .+ choose another folder|exists: choose another folder", str(error))
    assert verify(tmp_path / "out").rows_written == report.rows_written


def test_a_claim_is_created_by_one_whole_and_as_the_umask_says(tmp_path: Path) -> None:
    store, before = LocalStore(tmp_path), os.umask(0o027)
    try:
        with ThreadPoolExecutor(8) as pool:
            created = list(pool.map(lambda i: store.create("claim", b"%d" % i * 9), range(8)))
    finally:
        os.umask(before)
    assert created.count(True) == 1
    assert store.read("claim") == b"%d" % created.index(True) * 9
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]
    assert stat.S_IMODE((tmp_path / "claim").stat().st_mode) == 0o640


def test_a_job_that_was_killed_as_it_began_is_begun_again(job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job(TEXTS)
    whole, claim = contents(out), (out / "_claim.json").read_bytes()
    for option in ({"resume": True}, {"overwrite": True}):
        OutputFolder(tmp_path).store.remove("out")
        out.mkdir()
        (out / "_claim.json").write_bytes(claim)
        with pytest.raises(UsageError, match=r"another job has begun in .+, or was stopped as it began"):
            job(TEXTS)
        with pytest.raises(UsageError, match=r"another job has begun in .+, or was stopped as it began"):
            job(TEXTS[:9], resume=True)
        job(TEXTS, **option)
        assert contents(out) == whole


def test_two_resumes_at_once_both_finish(job, tmp_path: Path) -> None:
    """The second run finishes, and removes temporary files, while the first has chunks in flight."""
    out = tmp_path / "out"
    job(TEXTS)
    whole = contents(out)
    for name in ("_SUCCESS", *(n for n in whole if n.startswith("_entries/part"))):
        (out / name).unlink()
    assert job(TEXTS, resume=True, progress=Once(lambda: job(TEXTS, resume=True))).rows_written == 24
    assert contents(out) == whole


def test_a_write_whose_temporary_file_is_removed_is_repeated(tmp_path: Path) -> None:
    store, cleanings = LocalStore(tmp_path), []

    def check() -> None:
        if not cleanings:
            store.remove_attempts(())
        cleanings.append("done")

    store.put("part", b"rows", check)
    assert store.read("part") == b"rows"
    assert len(list(tmp_path.iterdir())) == 1
