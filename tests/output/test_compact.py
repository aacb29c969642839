"""Joining small parts into parts of a target size: the rows stay the same, and the folder goes on like any
other job's.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, CommandHere, examples
from distributed import Client
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jobs import file_size_limit
from s3 import Folder

from benchmarks.chaos.jobs import contents
from broadsheet.pipeline import OutputError, UsageError, classify, compact, dry_run, merge, select, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.record import to_json
from broadsheet.pipeline.report.job import JobReport

KEPT = {"id_column": "id", "chunk_size": 5, "label_column": "kind"}
Run = Callable[..., JobReport]


def write(folder: Path, name: str, rows: int, version: int = 0) -> None:
    """Write `rows` rows of 2 KB and a bad one. Two or three files of 14 rows share a range; one of 120 is read in
    parts.
    """
    folder.mkdir(exist_ok=True)
    lines = [f"{i},class {i % 4},{version} {name} {i} {'text ' * (i % 7)}{'.' * 2000}\n" for i in range(rows)]
    (folder / name).write_text(f"id,kind,text\n{''.join(lines)}{rows}\n")
    os.utime(folder / name, (1_700_000_000 + version,) * 2)


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by([("file", "ascending"), ("row", "ascending")]).to_pylist()


def parts(out: Path) -> list[Path]:
    return sorted(path for path in (out / "parts").rglob("*") if path.is_file())


def rows_in(out: Path) -> list[int]:
    """Return the number of rows in each part."""
    return [pq.read_metadata(path).num_rows for path in parts(out)]


@pytest.fixture(scope="module")
def label(client: Client, small_model: Model) -> Run:
    def run(folder: Path, out: Path, **options: object) -> JobReport:
        return classify(folder, out, model=small_model, client=client, root=folder, **KEPT, **options)

    return run


@pytest.fixture(scope="module")
def labelled(label: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The input `in`, with 181 rows in five files, and the folder `out`, with their 176 labels in 37 parts."""
    top = tmp_path_factory.mktemp("labelled")
    for name in ("a.csv", "b.csv", "c.csv", "d.csv"):
        write(top / "in", name, 14)
    write(top / "in", "e.csv", 120)
    label(top / "in", top / "out")
    return top


@pytest.fixture
def top(labelled: Path, tmp_path: Path) -> Path:
    return shutil.copytree(labelled, tmp_path / "top")


INPUTS = st.dictionaries(
    st.sampled_from(["a.csv", "b.csv", "c.csv", "d.csv", "e.csv", "f.csv"]),
    st.tuples(st.sampled_from([0, 1, 8, 14, 14, 120]), st.integers(0, 1)),
    min_size=1,
)
LAYOUTS = (
    {},
    {"partition_by": "label"},
    {"partition_by": "label", "format": "jsonl", "where": 'label != "class 2"'},
    {"partition_by": ("id", "label"), "format": "csv"},
    {"format": "csv", "scores": True, "top_k": 2},
)


@pytest.mark.slow
@settings(max_examples=examples(10), phases=[Phase.generate])
@given(
    inputs=st.lists(INPUTS, min_size=2, max_size=3),
    layout=st.sampled_from(LAYOUTS),
    part_rows=st.lists(st.sampled_from([None, 1, 7, 20, 50, 1000]), min_size=3, max_size=3),
)
def test_the_rows_are_those_of_a_job_whose_parts_are_small(
    label: Run, inputs: list[dict[str, tuple[int, int]]], layout: dict[str, Any], part_rows: list[int | None]
) -> None:
    """The test updates the folder several times while files come, change or go, and may join parts after each
    update.
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
            if (target := part_rows[number]) is not None:
                about = compact(out, target)
                assert about.parts_after == len(parts(out))
                assert compact(out, target).joined == 0
            assert in_order(report.to_arrow()) == in_order(new.to_arrow())
            assert in_order(report.quarantine()) == in_order(new.quarantine())
            totals = verify(out, input=True, root=folder), new.tally.totals
            assert len({to_json(msgspec.structs.replace(one, chunks=0)) for one in totals}) == 1
            select(out, Path(name) / "all.parquet", overwrite=True)
            assert in_order(pq.read_table(Path(name) / "all.parquet")) == in_order(new.to_arrow())


def test_parts_have_the_target_size_and_those_that_are_large_stay(label: Run, top: Path) -> None:
    out = top / "out"
    before = verify(out)
    compact(out, 60)
    assert rows_in(out) == [61, 61, 54]  # chunks have 5 rows, but some are cut short at the end of a range
    assert in_order(pq.read_table(out / "parts")) == in_order(pq.read_table(top / "out" / "parts"))
    assert verify(out).rows_written == before.rows_written == sum(rows_in(out))
    large = {path.name: path.stat().st_mtime_ns for path in parts(out)}
    for night in ("f.csv", "g.csv"):
        write(top / "in", night, 14)
        label(top / "in", out, update=True)
    assert len(parts(out)) == len(large) + 6
    report = label(top / "in", out, update=True, part_rows=60)  # finds nothing new, and joins the earlier parts
    assert report.run.rows == 0
    assert sorted(rows_in(out)) == sorted([61, 61, 54, 28])
    assert {name: written for name, written in large.items() if (out / "parts" / name).exists()} == large
    verify(out, input=True, root=top / "in")


@pytest.mark.slow
def test_many_small_files_and_many_labels_become_few_parts(label: Run, tmp_path: Path) -> None:
    """One run does this, and its summary says so. Rows of several folders are joined folder by folder."""
    for number in range(30):
        write(tmp_path / "in", f"{number:02d}.csv", 10)
    report = label(tmp_path / "in", tmp_path / "out", part_rows=400)
    assert rows_in(tmp_path / "out") == [300]
    assert "parts  1, after 70 of 70 were joined" in str(report)
    assert report.to_dict()["parts"] == {"parts_before": 70, "parts_after": 1, "joined": 70}
    assert len(report.to_arrow()) == 300
    small = label(tmp_path / "in", tmp_path / "small", partition_by="label")
    joined = label(tmp_path / "in", tmp_path / "joined", partition_by="label", part_rows=1000)
    assert len(parts(tmp_path / "small")) > 30
    assert len(parts(tmp_path / "joined")) == len(joined.tally.labels)
    assert in_order(joined.to_arrow()) == in_order(small.to_arrow())
    frame = pd.read_parquet(tmp_path / "joined")
    assert Counter(frame["label"].tolist()) == Counter(small.to_arrow()["label"].to_pylist())


def test_a_choice_has_parts_of_the_target_size(top: Path, tmp_path: Path, broadsheet_here: CommandHere) -> None:
    for out, more in ((tmp_path / "small", ()), (tmp_path / "joined", ("--part-rows", "25"))):
        code, said = broadsheet_here("select", top / "out", "-o", out, "--top", "20%", *more)
        assert code == 0, said
    assert len(parts(tmp_path / "small")) == 37
    assert rows_in(tmp_path / "joined") == [36]
    rows = [pq.read_table(tmp_path / name / "parts") for name in ("small", "joined")]
    assert rows[0] == rows[1]
    assert verify(tmp_path / "joined").rows_filtered == 176 - 36
    assert select(tmp_path / "joined", tmp_path / "again", count=3).chosen == 3
    code, said = broadsheet_here("select", top / "out", "-o", tmp_path / "a.parquet", "--part-rows", "25")
    assert (code, "one file, written at once: leave out --part-rows" in said) == (2, True)


MOMENTS = {
    "the plan is not there yet": ("link", "_plan-1-", 1),
    "it is, and _SUCCESS too": ("unlink", "_SUCCESS", 1),
    "some parts are written": ("replace", "parts/part-", 2),
    "some chunks are committed": ("replace", "_entries/part-", 2),
    "before the manifest": ("replace", "_manifest.json", 1),
    "after it": ("unlink", "_entries/", 1),
    "some of the old parts are removed": ("unlink", "parts/", 2),
    "before _SUCCESS": ("replace", "_SUCCESS", 1),
}
QUICK_MOMENT = "before the manifest"
"""The moment at which `make test` kills the compaction."""
KILLED = """
import os, signal, sys
from broadsheet.pipeline import compact
step, name, left = sys.argv[1], sys.argv[2], [int(sys.argv[3])]
call = getattr(os, step)
def called(*paths, **options):
    if name in os.fspath(paths[-1]):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
    return call(*paths, **options)
setattr(os, step, called)
compact(sys.argv[4], 60)
"""


@pytest.mark.parametrize(
    "moment", [QUICK_MOMENT, *(pytest.param(one, marks=pytest.mark.slow) for one in MOMENTS if one != QUICK_MOMENT)]
)
def test_a_compaction_that_is_killed_loses_nothing(label: Run, small_model: Model, top: Path, moment: str) -> None:
    """Next comes the same command, a resume, an update, or a dry run, which changes nothing."""
    out, whole = top / "out", in_order(pq.read_table(top / "out" / "parts"))
    command = [sys.executable, "-c", KILLED, *map(str, MOMENTS[moment]), str(out)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    begun = "not there" not in moment
    counts = moment in ("after it", "some of the old parts are removed", "before _SUCCESS")
    if begun:
        remedy = "continue with resume=True" if counts else "joining its parts was stopped: do that again"
        with pytest.raises(OutputError, match=f"is not finished: {remedy}"):
            verify(out)
    killed = contents(out)
    estimate = dry_run(top / "in", out, model=small_model, root=top / "in", update=True, **KEPT)
    assert estimate.update is not None
    assert (estimate.update.new, estimate.update.before) == (0, 5)
    assert contents(out) == killed
    for name in ("again", "resumed", "updated"):
        shutil.copytree(out, top / name)
    compact(top / "again", 60)
    label(top / "in", top / "resumed", resume=True)
    write(top / "in", "f.csv", 3)
    label(top / "in", top / "updated", update=True)
    assert rows_in(top / "again") == [61, 61, 54]
    assert len(rows_in(top / "resumed")) == (3 if counts else 37)
    for name, more in (("again", 0), ("resumed", 0), ("updated", 3)):
        verify(top / name)
        rows = in_order(pq.read_table(top / name / "parts"))
        assert [row for row in rows if row["file"] != "f.csv"] == whole
        assert len(rows) == len(whole) + more


def test_a_damaged_part_is_computed_again(label: Run, top: Path) -> None:
    out, whole = top / "out", in_order(pq.read_table(top / "out" / "parts"))
    compact(out, 60)
    for damage in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)):
        damage(parts(out)[1])
        with pytest.raises(OutputError, match="resume=True repairs this"):
            verify(out)
        label(top / "in", out, resume=True)
        verify(out, input=True, root=top / "in")
        assert in_order(pq.read_table(out / "parts")) == whole
        compact(out, 60)


def test_what_cannot_be_written_leaves_the_folder_as_it_was(top: Path) -> None:
    before = contents(top / "out")
    with (
        file_size_limit(1500),
        pytest.raises(OutputError, match=r"then join the parts again\. The labels in .* as they"),
    ):
        compact(top / "out", 60)
    assert contents(top / "out") == before
    damaged = parts(top / "out")[7]
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-9] + b"x" + data[-8:])
    with pytest.raises(OutputError, match=f"{damaged.name} is damaged"):
        compact(top / "out", 60)
    damaged.write_bytes(data)
    assert contents(top / "out") == before


def test_files_that_were_not_wholly_readable_keep_their_parts(label: Run, top: Path, tmp_path: Path) -> None:
    """A resumed job can then read the files again once they are repaired."""
    bad = top / "in" / "c2.csv.gz"
    bad.write_bytes(gzip.compress(b"id,kind,text\n" + b"1,class 1,text\n" * 3)[:-9])
    out = tmp_path / "out"
    first = label(top / "in", out)
    compact(out, 60)
    assert verify(out).problems == first.tally.totals.problems
    assert len(first.tally.totals.problems) == 1
    select(out, tmp_path / "all", part_rows=1000)  # nobody resumes a selection
    assert len(parts(tmp_path / "all")) == 1 < len(parts(out))
    assert verify(tmp_path / "all").problems == first.tally.totals.problems
    bad.write_bytes(gzip.compress(b"id,kind,text\n1,class 1,text\n"))
    update = label(top / "in", out, update=True, changed=True)
    assert update.run.rows < 60  # the repaired file's rows, and those of files that were read together with it
    assert (verify(out, input=True, root=top / "in").rows_read, verify(out).problems) == (182, ())


@pytest.mark.slow
def test_a_bucket_has_what_a_disk_has(label: Run, top: Path, s3: Folder) -> None:
    label(top / "in", s3.url, endpoint=s3.endpoint)
    compact(s3.url, 60, endpoint=s3.endpoint)
    compact(top / "out", 60)
    assert s3.contents() == contents(top / "out")
    write(top / "in", "f.csv", 3)
    for out, more in ((top / "out", {}), (s3.url, {"endpoint": s3.endpoint})):
        label(top / "in", out, update=True, changed=True, part_rows=1000, **more)
        verify(out, input=True, root=top / "in", **more)
    assert s3.contents() == contents(top / "out")
    assert sum(rows_in(top / "out")) == 179


def test_shares_are_joined_when_they_are_merged(
    label: Run, top: Path, tmp_path: Path, broadsheet_here: CommandHere
) -> None:
    shares = [tmp_path / f"share-{number}" for number in (1, 2)]
    for number, share in enumerate(shares, 1):
        label(top / "in", share, shard=f"{number}/2")
    code, said = broadsheet_here("merge", *shares, "-o", tmp_path / "out", "--part-rows", "60", "--json")
    assert code == 0, said
    told = json.loads(said.splitlines()[0])
    assert (told["rows_written"], told["parts"]["parts_after"], told["parts"]["joined"] > 30) == (176, 3, True)
    assert in_order(pq.read_table(tmp_path / "out" / "parts")) == in_order(pq.read_table(top / "out" / "parts"))
    parts(tmp_path / "out")[0].unlink()
    with pytest.raises(UsageError, match="classify INPUT -o` there with resume=True repairs it"):
        merge(shares, tmp_path / "out", resume=True)
    label(top / "in", tmp_path / "out", resume=True)
    assert verify(tmp_path / "out", input=True, root=top / "in").rows_written == 176


def test_what_the_command_says(top: Path, tmp_path: Path, label: Run, broadsheet_here: CommandHere) -> None:
    out = top / "out"
    code, said = broadsheet_here("merge", "--compact", out)
    assert (code, " ".join(said.split())) == (0, f"{out}: parts: 1, after 37 of 37 were joined joining 37 parts")
    code, said = broadsheet_here("merge", "--compact", out, "--quiet")
    assert (code, said) == (0, "")
    code, said = broadsheet_here("merge", "--compact", out)
    assert (code, " ".join(said.split())) == (0, f"{out}: parts: 1, none to join")
    assert broadsheet_here("inspect", out)[0] == 0
    limited, share = tmp_path / "limited", tmp_path / "share"
    label(top / "in", limited, limit=20)
    label(top / "in", share, shard="1/2")
    for arguments, message in (
        ((out,), "give -o, a folder for all shares; or with --compact one folder"),
        (("--compact", out, out), "only the parts of one folder are joined where they are"),
        (("--compact", out, "--resume"), "--resume and --overwrite go with -o"),
        (("--compact", limited), f"its job had a --limit. `broadsheet select {limited} -o COPY.parquet` writes"),
        (("--compact", share), "is a share of a job: join its parts when you merge it"),
        (("--compact", tmp_path), "is not an output folder of broadsheet"),
    ):
        code, said = broadsheet_here("merge", *arguments)
        assert (code in (1, 2), message in " ".join(said.split())) == (True, True), said
    for options in ({"limit": 5}, {"shard": "1/2"}, {"layout": "attributes", "scores": True}):
        with pytest.raises(UsageError, match="part_rows"):
            label(top / "in", tmp_path / "other", part_rows=5, **options)
