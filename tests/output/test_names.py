"""What files are called in the output: absolute, or relative to a root; and what no name holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import CommandHere
from distributed import Client

import pipeline
from pipeline.errors import SourceError, UsageError
from pipeline.model.charcnn import Model
from pipeline.source.find.files import find_files
from pipeline.storage.names import located, named, without_secrets


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
