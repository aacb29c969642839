"""Folders that grow: `--update` labels new files once, however often the job is killed or repeated."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import duckdb
import polars as pl
import pytest
from conftest import Command
from distributed import Client
from jobs import Once, check_whole, committed, wait_until
from s3 import Folder, Proxy

from benchmarks.chaos.jobs import contents
from benchmarks.chaos.processes import KILL_PRELOAD
from broadsheet.pipeline import BroadsheetError, OutputError, SourceError, UsageError, classify, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.report.job import JobReport

KEPT = {"id_column": "id", "chunk_size": 5, "label_column": "kind"}
Run = Callable[..., JobReport]


def add(folder: Path, *names: str, rows: int = 12, header: str = "id,kind,text") -> None:
    """Write files with `rows` rows each, the last of which is bad. All files get the same modification time."""
    for name in names:
        lines = [f"{i},class {i % 4},{name} {i} {'text ' * (i % 7)}\n" for i in range(rows - 1)]
        (folder / name).write_text(f"{header}\n{''.join(lines)}{rows}\n")
        os.utime(folder / name, ns=(1_700_000_000_000_000_000,) * 2)


def fail() -> None:
    raise InterruptedError


@pytest.fixture
def days(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    add(folder, "b.csv", "c.csv")
    return folder


@pytest.fixture
def job(client: Client, small_model: Model, days: Path, tmp_path: Path) -> Run:
    return partial(classify, days, tmp_path / "out", model=small_model, client=client, **KEPT)


def test_each_night_adds_what_is_new_and_nothing_else(job: Run, days: Path, tmp_path: Path) -> None:
    """The new file a.csv sorts before the files that are already labelled, and shares no group with them."""
    out = tmp_path / "out"
    first = job(update=True)  # no output folder exists on the first night
    assert (first.rows_read, first.exit_code) == (24, 0)
    before = contents(out)
    add(days, "a.csv", "z.csv")
    second = job(update=True)
    assert (second.rows_read, second.rows_quarantined, second.run.rows, second.exit_code) == (48, 4, 24, 0)
    assert second.confusion is not None
    assert second.confusion.rows == 44
    assert "update  2 new files; 2 files labelled before" in str(second)
    kept = {name: data for name, data in contents(out).items() if before.get(name) == data}
    assert set(before) - set(kept) == {"_manifest.json"}
    assert set(second.to_arrow()["file"].to_pylist()) == {str(days / f"{day}.csv") for day in "abcz"}
    add(days, "y.csv", rows=3)
    assert job(update=True).rows_read == 51
    names = [name for name in contents(out) if name.startswith("parts/")]
    assert [name for name in before if name.startswith("parts/")] == [
        n for n in names if n.startswith("parts/part-000000-")
    ]
    for source in (f"{out}/**/*.parquet", str(out / "parts" / "*.parquet")):
        rows = duckdb.sql(f"select count(*), count(distinct (file, row)) from '{source}'").fetchall()
        assert rows == [(46, 46)]
    assert verify(out, input=True).rows_read == 51
    whole = contents(out)
    for name in (min(names), max(names)):  # one part of the job, and one of its last update
        (out / name).write_bytes(b"")
    with pytest.raises(OutputError, match="resume=True repairs this"):
        verify(out)
    assert job(resume=True).run.rows == 8
    assert contents(out) == whole
    updates = json.loads((out / "_manifest.json").read_text())["updates"]
    assert [update["totals"]["rows_read"] for update in updates] == [24, 3]


def test_nothing_new_is_said_at_once_and_what_has_changed_or_gone_is_told(
    job: Run, days: Path, tmp_path: Path, client: Client
) -> None:
    out = tmp_path / "out"
    job()
    whole = {name: (out / name).stat().st_mtime_ns for name in contents(out)}

    def no_client() -> Client:
        raise AssertionError("no worker is needed")

    report = job(update=True, client=no_client)
    assert (report.exit_code, report.run.rows, report.rows_read) == (0, 0, 24)
    assert "update  nothing new; 2 files labelled before" in str(report)
    (days / "c.csv").unlink()
    gone = job(update=True, client=no_client)
    assert gone.exit_code == 0
    assert gone.not_read == [f"1 file is gone; its labels stay: {days / 'c.csv'}"]
    os.utime(days / "b.csv", ns=(1, 1))
    changed = job(update=True, client=no_client)
    assert changed.exit_code == 3
    assert (
        f"1 file has changed since its rows were labelled; its labels are the old ones: {days / 'b.csv'}"
        in "\n".join(changed.not_read)
    )
    assert changed.to_dict()["update"]["changed"] == (str(days / "b.csv"),)
    assert {name: (out / name).stat().st_mtime_ns for name in contents(out)} == whole
    (out / "_SUCCESS").unlink()  # as if the job was killed after it wrote the totals and before _SUCCESS
    job(update=True, client=no_client)
    assert (out / "_SUCCESS").exists()
    with pytest.raises(SourceError, match=r"1 file has changed .*stops here"):
        job(update=True, strict=True)
    add(days, "d.csv")
    assert (report := job(update=True)).exit_code == 3
    assert report.rows_read == 36
    assert verify(out).rows_read == 36


def test_what_cannot_be_listed_is_told_by_each_update_and_counted_once(job: Run, days: Path, tmp_path: Path) -> None:
    (days / "link.csv").symlink_to(days / "nowhere")
    job()
    add(days, "d.csv")
    assert job(update=True).not_read == [f"1 file was not read: {days / 'link.csv'}"]
    assert [path for path, _ in verify(tmp_path / "out").unread] == [str(days / "link.csv")]


def test_what_could_not_be_read_is_read_again_by_a_resume(
    client: Client, small_model: Model, days: Path, tmp_path: Path, s3: Folder, proxy: Proxy
) -> None:
    """The resume repeats both the job and its update, each from the first chunk that the file changes."""
    denied = ["c.csv", "e.csv"]
    proxy.decide = lambda method, path: 403 if method == "GET" and path.endswith(tuple(denied)) else None
    outs = {"told": proxy.url, "undisturbed": s3.endpoint}

    def run(name: str, **options: object) -> JobReport:
        out = tmp_path / name
        return classify(s3.url, out, endpoint=outs[name], model=small_model, client=client, **KEPT, **options)

    for names in (("b.csv", "c.csv", "d.csv"), ("a.csv", "e.csv")):
        add(days, *names)
        for name in names:
            s3.write(name, (days / name).read_bytes())
        report = run("told", update=True)
        run("undisturbed", update=True)
        (line,) = report.not_read
        assert f"1 file was not read: {s3.url}/{names[1]}" in line
        assert report.exit_code == 3
        assert "--resume reads the file again" in report.hints[0]
    assert run("told", resume=True).not_read == [f"2 files were not read: {s3.url}/c.csv, {s3.url}/e.csv"]
    assert verify(tmp_path / "told").rows_read == 36
    denied.clear()
    report = run("told", resume=True)
    assert (report.rows_read, report.run.chunks_before, report.exit_code) == (60, 4, 0)
    check_whole(tmp_path / "told", tmp_path / "undisturbed")


def test_a_job_that_is_another_is_refused_and_one_that_is_not_finished_is_continued(
    job: Run, days: Path, tmp_path: Path, client: Client
) -> None:
    assert job(stop=lambda: True).exit_code == 4
    add(days, "d.csv")
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    resumed = job(resume=True)  # leaves the new file to the update
    assert (resumed.rows_read, resumed.exit_code) == (24, 0)
    assert resumed.not_read == ["1 file is new since this began: --update labels it"]
    for options, named in (
        ({"chunk_size": 6}, "add chunk_size=5 in place of chunk_size=6"),
        ({"scores": True}, "leave out scores=True"),
    ):
        with pytest.raises(UsageError, match=f"cannot update .*{named}"):
            job(update=True, **options)
    with pytest.raises(UsageError, match=r"cannot update .*another model"):
        job(update=True, model="ag-news")
    with pytest.raises(UsageError, match="exclude each other"):
        job(update=True, resume=True)
    with pytest.raises(UsageError, match=r"cannot update .*only files can be new"):
        classify(["a text"], tmp_path / "out", update=True, **job.keywords)
    with pytest.raises(UsageError, match="nothing to resume, to overwrite or to update"):
        classify(days, update=True)
    assert job(update=True).rows_read == 36
    assert (
        classify(days, tmp_path / "copy", update=True, **job.keywords).rows_read == 36
    )  # finishes the job first, then updates it
    check_whole(tmp_path / "copy", tmp_path / "out")


@pytest.mark.slow
def test_an_update_that_is_killed_is_continued_and_equals_an_undisturbed_one(
    broadsheet: Command, small_model_file: Path, days: Path, tmp_path: Path, client: Client
) -> None:
    """The next update labels the files that came after the kill, in the same command."""
    out, other, flag = tmp_path / "out", tmp_path / "undisturbed", tmp_path / "killed"
    run = partial(classify, days, model=small_model_file, client=client, **KEPT, where="n_chars > 12")
    run(other)
    shutil.copytree(other, out)
    add(days, "a.csv", "d.csv")
    options = ["--id-column", "id", "--chunk-size", 5, "--label-column", "kind", "--where", "n_chars > 12"]
    env = {"BROADSHEET_KILL": f"before-entry all {flag}", "DASK_DISTRIBUTED__WORKER__PRELOAD": KILL_PRELOAD}
    arguments = ["classify", days, "-o", out, "--model", small_model_file, *options, "--update", "--workers", 1]
    before = committed(out)
    killed = broadsheet(*arguments, env=env, start_new_session=True)
    assert killed.returncode == -signal.SIGKILL
    assert flag.exists()
    assert committed(out) > before
    with pytest.raises(OutputError, match="is not finished: continue with resume=True"):
        verify(out)
    run(other, update=True)
    add(days, "e.csv")
    assert run(out, update=True).rows_read == 60
    run(other, update=True)
    check_whole(out, other)


def test_an_update_whose_files_changed_before_it_was_continued_begins_anew(
    job: Run, days: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    job()
    before = committed(out)
    add(days, "d.csv", "e.csv", "f.csv")
    with pytest.raises(InterruptedError):
        job(update=True, progress=Once(fail))
    wait_until(lambda: committed(out) > before)
    add(days, "e.csv", rows=20)
    (days / "d.csv").unlink()
    with pytest.raises(
        UsageError, match=r"cannot resume the update of .+: gone: .*d.csv; changed: .*e.csv\. update=Tr"
    ):
        job(resume=True)
    report = job(update=True)
    assert report.rows_read == verify(out, input=True).rows_read == 56


def test_two_updates_at_once_label_each_file_once(job: Run, days: Path, tmp_path: Path) -> None:
    job()
    together = Barrier(2)
    add(days, *(f"d{i}.csv" for i in range(4)))

    def run(_: int) -> JobReport | BroadsheetError:
        together.wait()
        try:
            return job(update=True)
        except BroadsheetError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, range(2)))
    reports = [result for result in results if isinstance(result, JobReport)]
    assert reports
    for error in (result for result in results if not isinstance(result, JobReport)):
        assert "another update of" in str(error)
    assert verify(tmp_path / "out").rows_read == reports[0].rows_read == 72
    assert len(pl.read_parquet(tmp_path / "out" / "parts").unique(["file", "row"])) == 66


def test_an_update_in_a_bucket_is_that_on_disk(job: Run, days: Path, tmp_path: Path, s3: Folder) -> None:
    in_bucket = partial(classify, days, s3.url, endpoint=s3.endpoint, **job.keywords)
    for run in (job, in_bucket):
        run()
    add(days, "a.csv")
    job(update=True)
    with pytest.raises(InterruptedError):
        in_bucket(update=True, progress=Once(fail))
    assert "_SUCCESS" not in s3.contents()
    in_bucket(resume=True)
    assert s3.contents() == contents(tmp_path / "out")
    assert in_bucket(update=True).run.rows == 0
    assert verify(s3.url, endpoint=s3.endpoint).rows_read == 36
