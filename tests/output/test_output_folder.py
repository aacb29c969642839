"""The output folder's own files: golden folders of this version and the one before, damaged or foreign records, and the
names that input files get.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest
from conftest import ROOT, CommandHere
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

from broadsheet import pipeline
from broadsheet.pipeline import OutputError, UsageError, classify, verify
from broadsheet.pipeline.errors import SourceError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.commit import escape, unescape
from broadsheet.pipeline.output.record import Claim, ClosingEntry, Entry, Manifest, SavedPlan, from_json, to_json
from broadsheet.pipeline.report.job import JobReport, Progress
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.storage.names import located, named, without_secrets

GOLDEN = ROOT / "tests" / "data"


def test_a_folder_that_an_earlier_build_of_this_version_wrote_is_whole() -> None:
    totals = verify(GOLDEN / "output-v4")
    assert (totals.chunks, totals.rows_read, totals.rows_written, totals.rows_filtered) == (3, 5, 3, 1)


def test_a_folder_whose_files_changed_is_whole_and_refused_by_builds_before_that() -> None:
    """Earlier builds know only version 4, just as this build knows no later version of a plan."""
    folder = GOLDEN / "output-v5"
    totals = verify(folder)
    assert (totals.chunks, totals.rows_read, totals.rows_written, totals.rows_filtered) == (2, 4, 2, 1)
    versions = {file.name: json.loads(file.read_text()).get("version") for file in folder.rglob("*.json")}
    assert {name for name, version in versions.items() if version != 4} == {"_plan-1-6701fb77.json"}
    with pytest.raises(OutputError, match=r"_plan-1.json is of version 7, this version of broadsheet reads version 4"):
        from_json(b'{"version": 7}', SavedPlan, "_plan-1.json")


@pytest.mark.parametrize("version", [4, 5])
def test_what_is_kept_of_a_job_is_what_its_schema_says(version: int) -> None:
    folder = GOLDEN / f"output-v{version}"
    records = (Entry, ClosingEntry, Manifest, SavedPlan, Claim)
    _, kinds = msgspec.json.schema_components(records, ref_template="#/$defs/{name}")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": kinds}
    files = {
        "Manifest": "_manifest.json",
        "Claim": "_claim.json",
        "SavedPlan": "_plan*.json",
        "Entry": "_entries/part-*",
    }
    files["ClosingEntry"] = "_entries/group-*"
    for name, pattern in files.items():
        there = list(folder.glob(pattern))
        assert there
        for file in there:
            jsonschema.validate(json.loads(file.read_text()), schema | {"$ref": f"#/$defs/{name}"})


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_folder_of_an_earlier_version_is_refused_by_name_and_can_be_replaced(
    client: Client, small_model: Model, tmp_path: Path, version: int
) -> None:
    """The repository keeps only those files of an old folder by which a build recognises it."""
    old = shutil.copytree(GOLDEN / f"output-v{version}", tmp_path / "old")
    with pytest.raises(OutputError, match=rf"an earlier version of broadsheet .+its format is {version}, this .+ is 4"):
        verify(old)
    (tmp_path / "in.csv").write_text("text\none\ntwo\n")
    job = {"model": small_model, "client": client}
    with pytest.raises(UsageError, match=r"finish it with that version, or replace it with overwrite=True"):
        classify(tmp_path / "in.csv", old, resume=True, **job)
    classify(tmp_path / "in.csv", old, overwrite=True, **job)
    assert verify(old).rows_written == 2
    assert {path.name for path in old.iterdir()} == {
        "parts", "_quarantine", "_entries", "_runs", "_claim.json", "_manifest.json", "_plan.json", "_SUCCESS"
    }  # fmt: skip


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN / "output-v4", tmp_path / "golden")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("_manifest.json", {"version": 5}, "is of version 5, this version of broadsheet reads version 4"),
        ("_manifest.json", {"plan": 7}, r"_manifest.json is damaged: .+\$\.plan"),
        ("_manifest.json", {"strange": 1}, "damaged: .+strange"),
        ("_entries/*-0000001-*", {"rows_read": -1}, r"damaged: .+\$\.rows_read"),
        ("_entries/*-0000001-*", {"chunk": "../../escaped"}, r"damaged: .+\$\.chunk"),
        ("_entries/*-0000001-*", {"kind": "file"}, "damaged: .+kind"),
    ],
)
def test_a_record_that_is_not_as_it_should_be_is_refused_with_the_place(
    golden: Path, file: str, change: dict[str, object], message: str
) -> None:
    (path,) = golden.glob(file)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(OutputError, match=message):
        verify(golden)


def test_a_folder_that_another_job_began_meanwhile_is_left_alone(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    """The job looks at the folder when you ask for the job, and again when it begins to write."""
    out, job = tmp_path / "out", {"model": small_model, "client": client}

    def late() -> AbstractContextManager[Client]:
        classify(["the", "first"], out, **job)
        return nullcontext(client)

    with pytest.raises(UsageError, match="exists: choose another folder"):
        classify(["the", "second", "job"], out, model=small_model, client=late)
    assert verify(out).rows_written == 2


def test_a_job_that_was_about_to_be_replaced_is_not_resumed(client: Client, small_model: Model, tmp_path: Path) -> None:
    out, job = tmp_path / "out", {"model": small_model, "client": client}
    classify(["a", "b"], out, **job)
    (out / "_SUCCESS").unlink()
    (out / "_claim.json").write_text('{"job": "0123456789abcdef", "version": 4}')  # as a job with --overwrite begins
    with pytest.raises(UsageError, match=r"it was being overwritten\. Start again with overwrite=True"):
        classify(["a", "b"], out, resume=True, **job)
    (out / "_claim.json").unlink()
    assert classify(["a", "b"], out, resume=True, **job).run.chunks_before == 1
    assert verify(out).rows_written == 2


def test_what_an_overwritten_job_still_writes_does_not_count(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    out, job = tmp_path / "out", {"model": small_model, "client": client}
    classify(["a", "b"], out, **job)
    stray = next((out / "parts").iterdir())
    stray = stray.with_name(stray.name.replace(stray.stem[-8:], "01234567"))

    class Straggler(Progress):
        def advance(self, report: JobReport) -> None:
            stray.write_bytes(b"PAR1")

    report = classify(["c", "d", "e"], out, overwrite=True, progress=Straggler(), **job)
    assert len(report.to_arrow()) == verify(out).rows_written == 3


def test_numbers_of_numpy_are_numbers_in_json() -> None:
    assert json.loads(to_json({"share": np.float64(0.5), "rows": np.int64(3)})) == {"share": 0.5, "rows": 3}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner),
)


@given(values)
def test_records_are_json_as_python_writes_it_indented_by_one(value: object) -> None:
    """Keys hold any characters, as paths do: lone surrogates stand for bytes that are not UTF-8."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1)
    assert to_json(value) == text.encode("utf-8", "backslashreplace") + b"\n"


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_the_bytes_of_a_quarantined_row_can_be_had_back(head: bytes) -> None:
    assert unescape(escape(head)) == head


READ_AT_ONCE = """
import sys, threading
from pathlib import Path
sys.setswitchinterval(1e-6)
from broadsheet.pipeline.output.record import Entry, from_json
data = [file.read_bytes() for file in Path(sys.argv[1]).glob("_entries/part-*.json")]
start = threading.Barrier(8)
def read():
    start.wait()
    assert all(from_json(one, Entry, "an entry").chunk for one in data)
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.slow
def test_the_first_entries_are_read_by_several_threads() -> None:
    """In two of three such processes, msgspec crashed when two threads prepared the same type at once."""
    folder = GOLDEN / "output-v4"
    assert list(folder.glob("_entries/part-*.json"))
    for _ in range(4):
        subprocess.run([sys.executable, "-c", READ_AT_ONCE, folder], cwd=ROOT, check=True)


# Names of input files in the output: absolute, or relative to a root; and paths that cannot be such names.


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name in ("a/one.csv", "b/two.csv"):
        (tmp_path / "corpus" / name).parent.mkdir(parents=True)
        (tmp_path / "corpus" / name).write_text("text\nan article\nanother\n")
    return tmp_path / "corpus"


def test_a_job_is_resumed_and_verified_from_any_folder(
    corpus: Path, small_model: Model, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus / "a")
    out = corpus.parent / "out"
    report = pipeline.classify("../a/../b/two.csv", "../../out", model=small_model, client=client)
    assert set(report.to_pandas()["file"]) == {str(corpus / "b" / "two.csv")}
    monkeypatch.chdir("/")
    done = pipeline.classify(corpus / "b", out, model=small_model, client=client, resume=True)
    assert done.rows_written == report.rows_written == 2
    assert pipeline.verify(out, input=True).rows_read == 2


def test_names_are_relative_to_a_root(
    corpus: Path, small_model: Model, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus.parent)
    out = corpus.parent / "out"
    report = pipeline.classify("corpus", out, model=small_model, client=client, root="corpus")
    assert sorted(set(report.to_pandas()["file"])) == ["a/one.csv", "b/two.csv"]
    moved = corpus.rename(corpus.parent / "moved")
    assert pipeline.verify(out, input=True, root=moved).rows_read == 4
    monkeypatch.chdir(moved)
    assert pipeline.verify(out, input=True).rows_read == 4
    resumed = pipeline.classify(".", out, model=small_model, client=client, root=moved, resume=True)
    assert resumed.rows_written == 4
    monkeypatch.chdir("a")
    with pytest.raises(SourceError, match=r"no input at .+a/one\.csv': no such file"):
        pipeline.verify(out, input=True)


def test_what_is_outside_the_root_is_refused(corpus: Path, broadsheet_here: CommandHere) -> None:
    out = corpus.parent / "out"
    code, said = broadsheet_here("classify", corpus, "-o", out, "--root", corpus / "a")
    assert code == 2
    assert f"{corpus / 'b' / 'two.csv'} is not below the root {corpus / 'a'}" in " ".join(said.split())
    code, said = broadsheet_here("classify", corpus, "-o", out, "--root", corpus / "c")
    assert (code, "no folder" in said, out.exists()) == (2, True, False)


# URLs of unsupported servers, also with a single slash, as `Path` writes them.
@pytest.mark.parametrize("output", ["https://host/labels", "hdfs:/labels", Path("ftp://host/x"), "file:///tmp/x"])
def test_a_url_of_anything_but_an_object_store_is_no_output(
    corpus: Path, output: str | Path, broadsheet_here: CommandHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus)
    with pytest.raises(UsageError, match=r"(https://host/labels|hdfs://labels|ftp://host/x|file://tmp/x): labels are"):
        pipeline.classify(corpus, output)
    code, said = broadsheet_here("classify", corpus, "-o", output, "--cluster", "local", "--workers", 2)
    assert (code, "into a folder, or into an object store" in " ".join(said.split())) == (2, True)
    assert sorted(os.listdir(corpus)) == ["a", "b"]


def test_a_file_that_is_named_twice_is_read_once(corpus: Path) -> None:
    twice = [str(corpus), str(corpus / "a" / "one.csv"), f"{corpus}/a/../a/*.csv"]
    assert [f.path for f in find_files(twice, 70, 1014).found] == [f"{corpus}/a/one.csv", f"{corpus}/b/two.csv"]


@pytest.mark.parametrize(
    ("location", "root", "name"),
    [
        ("/data/a/x.csv", "/data", "a/x.csv"),
        ("/x.csv", "/", "x.csv"),
        ("s3://bucket/a/x.csv", "s3://bucket", "a/x.csv"),
        ("zip://in/x.csv::/data/z.zip", "/data", "zip://in/x.csv::z.zip"),
        ("s3://bucket/a?b#c.csv", None, "s3://bucket/a?b#c.csv"),
    ],
)
def test_a_name_leads_back_to_its_file(location: str, root: str | None, name: str) -> None:
    assert named(location, root) == name
    assert located(name, root) == location


def test_names_and_messages_hold_no_secrets() -> None:
    assert named("https://me:pw@host/a.csv?sig=s3cret&x=1#top", None) == "https://me@host/a.csv"
    assert named("zip://a.csv::https://host/z.zip?sig=s3cret", None) == "zip://a.csv::https://host/z.zip"
    message = "403, message='Forbidden', url='https://host/a.csv?sig=s3cret' after https://other/b?key=s3cret"
    assert "s3cret" not in without_secrets(message)
    assert without_secrets("12:30 is a time, me@host an address, a?b c") == "12:30 is a time, me@host an address, a?b c"
