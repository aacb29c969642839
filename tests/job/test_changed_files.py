"""`--update --changed`: the folder ends with the labels of the current input, whichever files changed, came or went."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, examples
from distributed import Client
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jobs import Once, check_whole
from s3 import Folder

from benchmarks.chaos.jobs import contents
from broadsheet.pipeline import OutputError, SourceError, UsageError, classify, dry_run, select, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.record import to_json
from broadsheet.pipeline.report.job import JobReport

KEPT = {"id_column": "id", "chunk_size": 5, "label_column": "kind"}
Run = Callable[..., JobReport]


def write(folder: Path, name: str, rows: int, version: int = 0) -> None:
    """Write `rows` rows of 2 KB and a bad one. The version sets the file's time.

    Two or three files of 14 rows share a range; a file of 120 rows is read in parts.
    """
    folder.mkdir(exist_ok=True)
    lines = [f"{i},class {i % 4},{version} {name} {i} {'text ' * (i % 7)}{'.' * 2000}\n" for i in range(rows)]
    (folder / name).write_text(f"id,kind,text\n{''.join(lines)}{rows}\n")
    os.utime(folder / name, (1_700_000_000 + version,) * 2)


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by([("file", "ascending"), ("row", "ascending")]).to_pylist()


def fail() -> None:
    raise InterruptedError


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """Two ranges that hold several files each, and a file that is read in parts."""
    for name in ("a.csv", "b.csv", "c.csv", "d.csv"):
        write(tmp_path / "in", name, 14)
    write(tmp_path / "in", "e.csv", 120)
    return tmp_path / "in"


def change(days: Path) -> None:
    write(days, "b.csv", 15, version=1)
    (days / "d.csv").unlink()
    write(days, "f.csv", 3)


@pytest.fixture
def job(client: Client, small_model: Model, days: Path, tmp_path: Path) -> Run:
    return partial(classify, days, output=tmp_path / "out", model=small_model, client=client, **KEPT)


@pytest.fixture(scope="module")
def label(client: Client, small_model: Model) -> Run:
    def run(folder: Path, out: Path, **options: object) -> JobReport:
        return classify(folder, out, model=small_model, client=client, root=folder, **KEPT, **options)

    return run


INPUTS = st.dictionaries(
    st.sampled_from(["a.csv", "b.csv", "c.csv", "d.csv", "e.csv", "f.csv"]),
    st.tuples(st.sampled_from([0, 1, 8, 14, 14, 120]), st.integers(0, 1)),
    min_size=1,
)
LAYOUTS = ({}, {}, {"partition_by": "label", "format": "jsonl"}, {"layout": "attributes", "scores": True})


@pytest.mark.slow
@settings(max_examples=examples(8), phases=[Phase.generate])  # shrinking a failure takes minutes
@given(inputs=st.lists(INPUTS, min_size=3, max_size=3), layout=st.sampled_from(LAYOUTS))
def test_the_folder_is_that_of_a_new_job_but_for_the_order_of_its_parts(
    label: Run, inputs: list[dict[str, tuple[int, int]]], layout: dict[str, Any]
) -> None:
    """After each of two updates, these equal a new job's: rows, quarantine, totals, `verify`, `select`, and sidecar
    files.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name) / "in", Path(name) / "out"
        run = partial(label, folder, **layout)
        for number, (before, now) in enumerate(zip([{}, *inputs], inputs, strict=False)):
            for file in before.keys() - now:
                (folder / file).unlink()
            for file, (rows, version) in now.items():
                write(folder, file, rows, version)
            report, new = run(out, update=True, changed=True), run(Path(name) / f"new-{number}")
            if number and (growth := report.job.growth):
                assert growth.removed == len(before.keys() - now)
                assert growth.new == len(now.keys() - before)
                assert growth.again == sum(now.get(file, about) != about for file, about in before.items())
                assert (growth.changed, growth.gone, growth.later) == ((), (), 0)
            assert report.exit_code == new.exit_code
            assert in_order(report.to_arrow()) == in_order(new.to_arrow())
            assert in_order(report.quarantine()) == in_order(new.quarantine())
            totals = verify(out, input=True, root=folder), new.tally.totals
            assert len({to_json(msgspec.structs.replace(one, chunks=0)) for one in totals}) == 1
            select(out, Path(name) / "all.parquet", overwrite=True)
            assert in_order(pq.read_table(Path(name) / "all.parquet")) == in_order(new.to_arrow())
            beside = [
                {file: data for file, data in contents(place).items() if not file.startswith(("_", "parts/"))}
                for place in (out, Path(name) / f"new-{number}")
            ]
            assert beside[0] == beside[1]


MOMENTS = {
    "the plan is not there yet": ("link", "_plan-1-", 1),
    "it is, and _SUCCESS too": ("unlink", "_SUCCESS", 1),
    "some chunks are committed": ("replace", "_entries/part-", 4),
    "before the manifest": ("replace", "_manifest.json", 1),
    "after it": ("unlink", "_entries/", 1),
    "some of what was withdrawn is removed": ("unlink", "parts/", 2),
    "before _SUCCESS": ("replace", "_SUCCESS", 1),
}
KILLED = """
import os, signal, sys
from broadsheet.pipeline import classify
step, name, left = sys.argv[1], sys.argv[2], [int(sys.argv[3])]
call = getattr(os, step)
def called(*paths, **options):
    if name in os.fspath(paths[-1]):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
    return call(*paths, **options)
setattr(os, step, called)
folder, out, model, layout = sys.argv[4:]
classify(folder, out, model=model, update=True, changed=True, **eval(layout))
"""


def kill(moment: tuple[str, str, int], *arguments: object) -> None:
    """Start a process that updates a folder, and have it killed at a moment."""
    command = [sys.executable, "-c", KILLED, *moment, *arguments]
    assert subprocess.run([*map(str, command)], cwd=ROOT, check=False).returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_update_that_is_killed_ends_as_one_that_is_not(
    job: Run, days: Path, small_model_file: Path, tmp_path: Path, moment: str
) -> None:
    """Both --resume and the same command finish the update. Until then the job counts as not finished."""
    out, other, again = (tmp_path / name for name in ("out", "other", "again"))
    job()
    shutil.copytree(out, other)
    change(days)
    job(output=other, update=True, changed=True)
    kill(MOMENTS[moment], days, out, small_model_file, KEPT)
    if "not there" in moment:
        assert verify(out).rows_read == 5 + 4 * 14 + 120
    else:
        with pytest.raises(OutputError, match="is not finished: continue with resume=True"):
            verify(out)
    shutil.copytree(out, again)
    if "not there" not in moment:
        job(resume=True)
        check_whole(out, other)
    job(output=again, update=True, changed=True)
    check_whole(again, other)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, {"layout": "attributes", "format": "jsonl"}])
def test_an_update_whose_files_changed_back_is_as_if_it_had_not_begun(
    job: Run, days: Path, small_model_file: Path, tmp_path: Path, layout: dict[str, str]
) -> None:
    """The killed update has by then rewritten the sidecar files, under the names of the old ones."""
    job(**layout)
    before = contents(tmp_path / "out")
    shutil.copytree(days, tmp_path / "kept")
    change(days)
    kill(MOMENTS["before the manifest"], days, tmp_path / "out", small_model_file, KEPT | layout)
    assert set(contents(tmp_path / "out")) > set(before) - {"_SUCCESS"}
    shutil.rmtree(days)
    shutil.copytree(tmp_path / "kept", days)
    report = job(update=True, changed=True, **layout)
    assert "nothing new; 5 files labelled before" in str(report)
    assert contents(tmp_path / "out") == before
    verify(tmp_path / "out", input=True, root=days if layout else None)


def test_what_is_stopped_tells_each_row_once_and_what_comes_meanwhile_is_labelled_next(
    job: Run, days: Path, tmp_path: Path
) -> None:
    job()
    change(days)
    stopped = job(update=True, changed=True, stop=lambda: True)
    assert stopped.exit_code == 4
    (days / "e.csv").unlink()  # the file is in a range that this update does not touch
    write(days, "g.csv", 2)
    resumed = job(resume=True)
    assert resumed.exit_code == 0
    assert resumed.not_read[-1] == "1 file is new since this began: --update labels it"
    with pytest.raises(InterruptedError):
        job(update=True, changed=True, progress=Once(fail))
    failed = job(resume=True, stop=lambda: True)  # chunks that were in flight may have ended meanwhile
    report = job(resume=True)
    assert report.rows_read == verify(tmp_path / "out", input=True).rows_read == 15 + 16 + 15 + 4 + 3
    for labelled in (stopped, resumed, failed, report):
        rows = labelled.to_arrow().select(["file", "row"]).to_pylist()
        assert len({(row["file"], row["row"]) for row in rows}) == len(rows)


def test_what_it_does_is_said_before_and_after(job: Run, days: Path, tmp_path: Path) -> None:
    """The folder has a file that earlier builds refuse only if the update withdrew a range."""
    out = tmp_path / "out"
    job()
    write(days, "0.csv", 2)
    job(update=True)
    change(days)
    asked = {"update": True, "changed": True, "model": job.keywords["model"], **KEPT}
    estimate = dry_run(days, out, **asked)
    assert str(estimate.update) == "1 new file, 1 changed, 1 removed; 6 files labelled before"
    assert (estimate.files, estimate.rows) == (4, 15 + 16 + 15 + 4)  # two of the files share ranges with the others
    told = dry_run(days, out, **asked | {"changed": False})
    assert [line.partition(":")[0] for line in told.warnings[:2]] == [
        "1 file has changed since its rows were labelled; its labels are the old ones",
        "1 file is gone; its labels stay",
    ]
    assert told.warnings[0].endswith("To label it again, give --update --changed")
    report = job(update=True, changed=True)
    assert report.job.growth == estimate.update
    assert (report.exit_code, report.run.rows, report.not_read) == (0, estimate.rows, [])
    versions = {path.name: json.loads(path.read_text()).get("version") for path in out.rglob("*.json")}
    assert {name for name, version in versions.items() if version == 5} == {
        name for name in versions if name.startswith("_plan-2-")
    }
    (days / "e.csv").unlink()  # the file has its ranges to itself, so nothing is labelled
    last = job(update=True, changed=True)
    assert (last.run.rows, last.rows_read) == (0, verify(out, input=True).rows_read)


def test_what_a_late_worker_writes_of_a_withdrawn_range_is_no_part_of_the_job(
    job: Run, days: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    job()
    late = {name: data for name, data in contents(out).items() if "-000000-" in name}
    assert {name.partition("-")[0] for name in late} >= {"parts/part", "_entries/part", "_entries/group"}
    change(days)
    job(update=True, changed=True)
    whole = contents(out)
    assert not late.keys() & whole
    groups = {name for name in late if name.startswith("_entries/group")}
    for names in (groups, late.keys() - groups, late):
        for name in names:
            (out / name).write_bytes(late[name])
        with pytest.raises(OutputError, match=r"(of group 0, which is none|no chunk) of this job: resume=True repairs"):
            verify(out)
        job(resume=True)
        assert contents(out) == whole


def test_what_cannot_be_is_refused(job: Run, days: Path, tmp_path: Path) -> None:
    job()
    before = contents(tmp_path / "out")
    (days / "a.csv").unlink()
    (days / "link.csv").symlink_to(days / "nowhere")  # a link that cannot be listed might be a file that is gone
    with pytest.raises(SourceError, match=r"link.csv: No such file .+ not known which files are gone: leave out ch"):
        job(update=True, changed=True)
    with pytest.raises(UsageError, match="changed=True goes with update=True"):
        job(resume=True, changed=True)
    with pytest.raises(UsageError, match=r"labels.csv is one file, .+: leave out update=True, or give a folder"):
        job(output=tmp_path / "labels.csv", update=True, changed=True)
    assert contents(tmp_path / "out") == before


@pytest.mark.slow
def test_a_bucket_has_what_a_disk_has(job: Run, days: Path, tmp_path: Path, s3: Folder) -> None:
    """An interrupted and resumed update in a bucket gives the same files as well."""
    in_bucket = partial(job, output=s3.url, endpoint=s3.endpoint)
    for run in (job, in_bucket):
        run()
    change(days)
    job(update=True, changed=True)
    with pytest.raises(InterruptedError):
        in_bucket(update=True, changed=True, progress=Once(fail))
    in_bucket(resume=True)
    assert s3.contents() == contents(tmp_path / "out")
    assert verify(s3.url, input=True, endpoint=s3.endpoint).rows_read == 15 + 16 + 15 + 121 + 4


OF_UNFINISHED = {
    "before the new entries": ("replace", "_entries/group-", 1),
    "after some": ("replace", "_entries/group-", 3),
    "before the manifest": ("replace", "_manifest.json", 1),
    "before _SUCCESS": ("replace", "_SUCCESS", 1),
}


@pytest.mark.parametrize("moment", [None, *(pytest.param(moment, marks=pytest.mark.slow) for moment in OF_UNFINISHED)])
def test_a_job_whose_files_change_before_it_is_finished(
    job: Run, days: Path, small_model_file: Path, tmp_path: Path, moment: str | None
) -> None:
    """The labels of other files that were committed stay, even if the update is killed."""
    out = tmp_path / "out"
    job()
    manifest = json.loads((out / "_manifest.json").read_text())
    (out / "_manifest.json").write_bytes(to_json(manifest | {"totals": None}))
    for entry in ("_SUCCESS", *(path for path in (out / "_entries").iterdir() if "-000000-" in path.name)):
        (out / entry).unlink()  # as if the job had been killed earlier
    change(days)
    parts = {name: data for name, data in contents(out).items() if name.startswith("parts/")}
    others = {name for name in parts if {*pq.read_table(out / name)["file"].to_pylist()} == {str(days / "e.csv")}}
    assert others
    with pytest.raises(
        UsageError, match=r"gone: .*d\.csv.*changed: .*b\.csv\. update=True changed=True labels the rest"
    ):
        job(resume=True)
    if moment is not None:
        kill(OF_UNFINISHED[moment], days, out, small_model_file, KEPT)
    report = job(update=True, changed=True)
    assert report.exit_code == 0
    new = job(output=tmp_path / "new")
    assert in_order(report.to_arrow()) == in_order(new.to_arrow())
    assert in_order(report.quarantine()) == in_order(new.quarantine())
    totals = verify(out, input=True), new.tally.totals
    assert len({to_json(msgspec.structs.replace(one, chunks=0)) for one in totals}) == 1
    assert {name: contents(out).get(name) for name in others} == {name: parts[name] for name in others}
