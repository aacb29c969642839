"""Sidecar files, which match the input files row for row, compared with the labels of the same job without them."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import start
from conftest import ROOT
from distributed import Client
from jobs import wait_until
from s3 import Folder

from benchmarks.chaos.jobs import contents
from broadsheet.pipeline import OutputError, UsageError, classify, merge, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.folder import OutputFolder
from broadsheet.pipeline.output.layout import EVERY_FOLDER
from broadsheet.pipeline.output.local_store import LocalStore
from broadsheet.pipeline.output.sidecars import write_sidecars

FORMATS = ("jsonl", "parquet", "npy")
FILES = ("a/0.jsonl.gz", "a/b/1.jsonl", "2.jsonl.gz", "a/3.jsonl.gz")
ROWS = 60


def write_documents(folder: Path, names: tuple[str, ...] = FILES, source: str = "test") -> Path:
    """Write documents in Dolma's format. Each file has some without a text, and one line that is not JSON."""
    for number, name in enumerate(names):
        texts = [None if i % 13 == 5 else f"text {(i * 7 + number) % 40} of a document" for i in range(ROWS)]
        lines = [json.dumps({"id": f"{number}-{i}", "text": text, "source": source}) for i, text in enumerate(texts)]
        lines[17] = "{"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("corpus") / "documents")


@pytest.fixture(scope="module")
def job(corpus: Path, client: Client, small_model: Model):
    """Label the documents into a folder."""

    def run(out: Path | str | None, paths: Path = corpus, **options: object):
        given = {"model": small_model, "client": client, "root": corpus, "id_column": "id", "chunk_size": 7}
        return classify(paths, out, **{**given, "scores": True, "layout": "attributes", **options})

    return run


@pytest.fixture(scope="module")
def rows(job, corpus: Path) -> dict[str, pd.DataFrame]:
    """The labels of each file by row number, from a job without the sidecar layout."""
    job(corpus.parent / "plain", layout="parts")
    labels = pd.read_parquet(corpus.parent / "plain" / "parts").sort_values("row")
    return {name: of_file.set_index("row") for name, of_file in labels.groupby("file", observed=True)}


@pytest.mark.slow
@pytest.mark.parametrize("format_", FORMATS)
def test_each_file_joins_by_position(job, rows: dict[str, pd.DataFrame], tmp_path: Path, format_: str) -> None:
    out = tmp_path / "out"
    job(out, format=format_)
    verify(out)
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    beside = {name for name in names if not name.startswith("_")}
    ending = {"jsonl": None, "parquet": ".parquet", "npy": ".npy"}[format_]
    assert beside == {name if ending is None else name.partition(".")[0] + ending for name in FILES}
    for number, name in enumerate(FILES):
        expected = rows[name].reindex(range(ROWS))
        scores = [column for column in expected if column.startswith("score_")]
        path = out / (name if ending is None else name.partition(".")[0] + ending)
        ids = [None if i == 17 else f"{number}-{i}" for i in range(ROWS)]
        if format_ == "npy":
            np.testing.assert_array_equal(np.load(path), expected[scores].to_numpy(np.float32))
        elif format_ == "parquet":
            table = pq.read_table(path)
            assert table.column("id").to_pylist() == ids
            kinds = {"truncated": "boolean", "n_chars": "float", "unknown_chars": "float"}
            labels = expected.drop(columns=["file", "id"]).reset_index(drop=True).astype(kinds)
            pd.testing.assert_frame_equal(table.drop_columns("id").to_pandas().astype(kinds), labels)
        else:
            text = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
            lines = [json.loads(line) for line in text.splitlines()]
            assert [line["id"] for line in lines] == ids
            for line, (_, row) in zip(lines, expected.iterrows(), strict=True):
                spans = {} if pd.isna(row["n_chars"]) else {c: [[0, row["n_chars"], row[c]]] for c in scores}
                assert {c: np.float32(v).tolist() for c, v in line["attributes"].items()} == {
                    c: np.float32(v).tolist() for c, v in spans.items()
                }


@pytest.mark.slow
def test_a_killed_end_is_repeated_and_damage_repaired(
    job, corpus: Path, client: Client, small_model_file: Path, tmp_path: Path
) -> None:
    """SIGKILL hits while the job writes the files. Each file is complete or absent, and the repaired bytes are the
    same.
    """
    documents = write_documents(tmp_path / "documents", tuple(f"{i:02d}.jsonl" for i in range(12)), "x" * 1500)
    given = {"root": documents, "id_column": "id", "layout": "attributes", "format": "jsonl", "chunk_size": 50}
    whole, out = tmp_path / "whole", tmp_path / "out"
    classify(documents, whole, model=small_model_file, client=client, **{**given, "root": None})
    flags = [f for name, value in given.items() for f in (f"--{name.replace('_', '-')}", value)]
    process = start("broadsheet", "classify", documents, "--model", small_model_file, "-o", out, *flags, "--quiet")
    wait_until(lambda: process.poll() is not None or any((out / "_sidecars").glob("group-*")))
    process.kill()
    process.communicate()
    expected = contents(whole)
    assert all(data == expected[name] for name, data in contents(out).items() if name.endswith(".jsonl"))
    classify(documents, out, model=small_model_file, client=client, resume=True, **given)
    assert contents(out) == expected
    for damaged in (out / "03.jsonl", next(iter(sorted((out / "_sidecars").glob("*"))))):
        damaged.write_bytes(damaged.read_bytes()[:-2] + b"x\n")
        with pytest.raises(OutputError, match=r"03.jsonl is missing or damaged|are not made from its entries"):
            verify(out)
        classify(documents, out, model=small_model_file, client=client, resume=True, **given)
        assert contents(out) == expected
    (documents / "00.jsonl").unlink()
    given["format"] = "parquet"
    classify(documents, out, model=small_model_file, client=client, overwrite=True, **given)
    assert not [name for name in contents(out) if name.endswith(".jsonl") and not name.startswith("_")]


def test_files_are_of_the_entries_that_are_there(client: Client, small_model: Model, tmp_path: Path) -> None:
    """The test changes a figure in an entry and in the manifest, and leaves the closing entry of the group
    unchanged.
    """
    documents, out = write_documents(tmp_path / "documents", FILES[:1]), tmp_path / "out"
    given = {"model": small_model, "client": client, "root": documents, "id_column": "id", "layout": "attributes"}
    classify(documents, out, **given)
    expected = contents(out)
    (entry,) = (out / "_entries").glob("part-*.json")
    entry.write_text(json.dumps({**json.loads(entry.read_text()), "asked": 1}))
    manifest = json.loads((out / "_manifest.json").read_text())
    manifest["totals"]["asked"] = 1
    (out / "_manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(OutputError, match="the files of group 0 are not made from its entries"):
        verify(out)
    assert {name for name in expected if not name.startswith("_")} == {"a/0.parquet"}


def test_a_run_that_ends_removes_what_another_has_begun(client: Client, small_model: Model, tmp_path: Path) -> None:
    """If two runs resume a job and one ends, the other begins its files again."""
    documents, out = write_documents(tmp_path / "documents"), tmp_path / "out"
    classify(documents, out, model=small_model, client=client, root=documents, layout="attributes")
    expected, lost = contents(out), []

    class Ended(LocalStore):
        def put_stream(self, name: str, write: Any, check: Any) -> Any:
            def written(file: Any) -> Any:
                result = write(file)
                if len(lost) < 2:
                    lost.append(name)
                    self.remove_attempts(EVERY_FOLDER)
                return result

            return super().put_stream(name, written, check)

    for name in expected:
        if not name.startswith("_"):
            (out / name).unlink()
    manifest = OutputFolder(out).manifest()
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(manifest.schema)))
    write_sidecars(Ended(out), manifest, schema, range(1))
    assert len(lost) == 2
    assert contents(out).keys() >= {name for name in expected if name.startswith("a/")}
    verify(out)


def test_an_update_adds_files(client: Client, small_model: Model, tmp_path: Path) -> None:
    documents, out = write_documents(tmp_path / "documents", FILES[:2]), tmp_path / "out"
    given = {"model": small_model, "client": client, "root": documents, "id_column": "id", "layout": "attributes"}
    classify(documents, out, **given)
    first = contents(out)["a/0.parquet"]
    write_documents(documents / "new", ("4.jsonl",))
    classify(documents, out, update=True, **given)
    verify(out, input=True, root=documents)
    assert (contents(out)["a/0.parquet"], pq.read_metadata(out / "new/4.parquet").num_rows) == (first, ROWS)
    write_documents(documents, ("new/4.jsonl.gz",))
    with pytest.raises(UsageError, match=r"new/4.jsonl and new/4.jsonl.gz would both have new/4.parquet beside them"):
        classify(documents, out, update=True, **given)


@pytest.mark.parametrize("kind", ["job", "update", "damaged"])
def test_files_whose_record_was_not_written_go_with_their_job(
    client: Client, small_model: Model, tmp_path: Path, kind: str
) -> None:
    """A job or an update was killed while it wrote the files, before the record of their group. --overwrite removes
    them.

    If the manifest is damaged, the records still name the files.
    """
    documents, out = write_documents(tmp_path / "documents", FILES[:1]), tmp_path / "out"
    given = {"model": small_model, "client": client, "root": documents, "id_column": "id", "layout": "attributes"}
    classify(documents, out, **given)
    if kind == "update":
        write_documents(documents, ("new/\n.jsonl",))
        classify(documents, out, update=True, **given)
        verify(out)
        manifest = json.loads((out / "_manifest.json").read_text())
        update, manifest["updates"] = manifest["updates"][0], []
        manifest["totals"] = {**manifest["totals"], "rows_read": manifest["totals"]["rows_read"] - ROWS}
        (out / "_manifest.json").write_text(json.dumps(manifest))
        assert update["totals"]["rows_read"] == ROWS
    (out / "_SUCCESS").unlink()
    if kind == "damaged":
        (out / "_manifest.json").write_text("{")
    else:
        sorted((out / "_sidecars").iterdir())[-1].unlink()
    shutil.rmtree(documents)
    write_documents(documents, ("z.jsonl",))
    classify(documents, out, overwrite=True, **given)
    beside = {path.relative_to(out).as_posix() for path in out.rglob("*.parquet")}
    assert {name for name in beside if not name.startswith("_")} == {"z.parquet"}


@pytest.mark.slow
def test_in_a_bucket_also_of_shares(job, s3: Folder, tmp_path: Path) -> None:
    """The bucket has the same bytes as the disk. Shares that are merged in the bucket give the same files."""
    job(tmp_path / "out", format="jsonl")
    job(s3.url, endpoint=s3.endpoint, format="jsonl")
    assert s3.contents() == contents(tmp_path / "out")
    verify(s3.url, endpoint=s3.endpoint)
    shares = [f"{s3.url}-{i}" for i in (1, 2)]
    for number, url in enumerate(shares, 1):
        job(url, endpoint=s3.endpoint, format="jsonl", shard=f"{number}/2")
    merged = f"{s3.url}-merged"
    totals = merge(shares, merged, endpoint=s3.endpoint)
    assert totals.rows_read == len(FILES) * ROWS == verify(merged, endpoint=s3.endpoint).rows_read
    objects = Folder(s3.endpoint, f"{s3.name}-merged").contents()
    assert {name: objects[name] for name in FILES} == {name: contents(tmp_path / "out")[name] for name in FILES}


def test_what_cannot_be_beside_a_file_is_refused(job, tmp_path: Path, client: Client, small_model: Model) -> None:
    for options, message in (
        ({"where": "score > 0.5"}, "has a row for each row of the input: leave out where="),
        ({"partition_by": "label"}, "leave out partition_by="),
        ({"limit": 3}, "leave out limit="),
        ({"root": None, "paths": [tmp_path, tmp_path]}, "give one folder, or root=, the folder above all files"),
        ({"format": "csv"}, 'leave out format="csv"'),
        ({"format": "jsonl", "id_column": ()}, "add id_column= id"),
        ({"format": "npy", "scores": False}, "add scores=True"),
        ({"format": "npy", "layout": "parts"}, 'goes with layout="attributes"'),
    ):
        with pytest.raises(UsageError, match=message):
            job(tmp_path / "out", **options)
    documents = write_documents(tmp_path / "both", ("a.parquet/0.jsonl", "a.jsonl"))
    with pytest.raises(UsageError, match=r"a.jsonl would have a.parquet beside it, a folder for a.parquet/0.jsonl"):
        job(tmp_path / "out", root=documents, paths=documents)
    documents = write_documents(tmp_path / "documents", ("_parts/0.jsonl",))
    given = {"model": small_model, "client": client, "layout": "attributes"}
    with pytest.raises(UsageError, match=r"the output has a folder _parts of its own"):
        classify(documents / "_parts" / "0.jsonl", tmp_path / "out", root=documents, **given)
    with pytest.raises(UsageError, match="give a folder for these"):
        job(None)
    assert not (tmp_path / "out").exists()


def documented_filter(name: str, least: float) -> str:
    """Return the filter of docs/output.md with another attribute and limit."""
    (told,) = re.findall("^```jq\n(.+)\n```$", (ROOT / "docs" / "output.md").read_text(), re.MULTILINE)
    return told.replace(".score_Sports", f'["{name}"]').replace("0.9", str(least))


@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq")
@pytest.mark.parametrize("scores", [True, False])
def test_the_documented_filter_takes_what_is_not_there(job, tmp_path: Path, scores: bool) -> None:
    """It handles quarantined rows and rows with other labels, and never takes an element of null.

    Indexing null gives null in jq, but an error in Dolma's mixer.
    """
    job(tmp_path / "out", format="jsonl", scores=scores)
    lines = gzip.decompress((tmp_path / "out" / FILES[0]).read_bytes()).splitlines()
    written = [json.loads(line)["attributes"] for line in lines]
    assert {} in written
    name, least = next((name, spans[0][2]) for attributes in written for name, spans in attributes.items())
    looks, index = documented_filter(name, least), f'.attributes["{name}"][0]'
    assert looks.count(index) == 1
    for program in (looks, looks.replace(index, f'(.attributes["{name}"] // error("null"))[0]')):
        given = "".join(json.dumps({"attributes": attributes}) + "\n" for attributes in written)
        kept = subprocess.run(["jq", "-c", program], input=given, check=True, capture_output=True, text=True).stdout
        assert [line == "true" for line in kept.split()] == [
            name in attributes and attributes[name][0][2] >= least for attributes in written
        ]


_READ = """
import sys
from datatrove.pipeline.readers import JsonlReader, ParquetReader
reader, pattern = (JsonlReader, "*/*.jsonl.gz") if sys.argv[2] == "jsonl" else (ParquetReader, "[!_]*/*.parquet")
print(sorted(document.text for document in reader(sys.argv[1], glob_pattern=pattern, text_key="id")()))
"""


@pytest.mark.slow
@pytest.mark.skipif("BROADSHEET_PEERS" not in os.environ, reason="no environment with dolma and datatrove")
def test_the_mixer_of_dolma_and_the_readers_of_datatrove_take_them(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    """BROADSHEET_PEERS names a virtual environment that has both."""
    peers, documents = Path(os.environ["BROADSHEET_PEERS"]) / "bin", tmp_path / "documents"
    for number, name in enumerate(("a/0.jsonl.gz", "b/1.jsonl.gz")):
        texts = [f"text {i}" * (i % 7 > 0) if i % 13 else None for i in range(ROWS)]
        lines = [{"id": f"{number}-{i}", "text": text, "source": "test"} for i, text in enumerate(texts)]
        path = documents / name
        path.parent.mkdir(parents=True)
        path.write_bytes(gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode()))
    given = {"model": small_model, "client": client, "root": documents, "id_column": "id", "layout": "attributes"}
    out = tmp_path / "attributes" / "quality"
    classify(documents, out, format="jsonl", **given)
    written = [
        json.loads(line)
        for path in sorted(out.glob("?/*.gz"))
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    name, least = next((name, spans[0][2]) for line in written for name, spans in line["attributes"].items())
    stream = {
        "name": "best",
        "documents": [f"{documents}/*/*.jsonl.gz"],
        "attributes": ["quality"],
        "filter": {
            "syntax": "jq",
            "include": [documented_filter(name, least)],
        },
        "output": {"path": str(tmp_path / "mixed"), "max_size_in_bytes": 1 << 20},
    }
    config = tmp_path / "mix.json"
    config.write_text(json.dumps({"streams": [stream], "processes": 1}))
    subprocess.run([peers / "dolma", "-c", config, "mix"], check=True, capture_output=True)
    mixed = [
        json.loads(line)["id"]
        for path in (tmp_path / "mixed").rglob("*.gz")
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    best = {line["id"] for line in written if name in line["attributes"] and line["attributes"][name][0][2] >= least}
    assert best
    assert sorted(mixed) == sorted(best)
    classify(documents, tmp_path / "parquet", **given)
    for folder, kind in ((out, "jsonl"), (tmp_path / "parquet", "parquet")):
        read = subprocess.run([peers / "python", "-c", _READ, folder, kind], check=True, capture_output=True, text=True)
        assert read.stdout.splitlines()[-1] == str(sorted(line["id"] for line in written))
