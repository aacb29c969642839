"""Zip archives: of one file or many, from other systems, damaged, encrypted, or made to fill memory."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import fsspec
import pytest
from conftest import ROOT, CommandHere
from distributed import Client

from broadsheet import pipeline
from broadsheet.pipeline.errors import SourceError, UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.plan.files import find_files

ROWS = [f"article {i}" for i in range(60)]
CSV = "id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(ROWS))


def zipped(path: Path, members: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_each_file_of_an_archive_is_read_as_if_it_were_unpacked(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    inner = io.BytesIO()
    zipped(inner, {"d.csv": CSV})
    members = {
        "news/2024.csv": CSV,
        "news/2025.csv": CSV,
        "a.jsonl": '{"id": 7, "text": "a line"}\n',
        "readme.md": "what this is",
        "__MACOSX/news/._2024.csv": b"\x00\x05\x16\x07",
        "news/.DS_Store": b"\x00",
        "news/table.parquet": b"PAR1",
        "older.zip": inner.getvalue(),
        "empty.csv": "",
    }
    path = zipped(tmp_path / "news.zip", members)
    out = tmp_path / "out"
    report = pipeline.classify(path, out, model=small_model, client=client, chunk_size=50, keep="id")
    assert report.exit_code == 3
    table = report.to_pandas()
    named = [f"zip://{name}::{path}" for name in ("news/2024.csv", "news/2025.csv", "a.jsonl")]
    assert list(table["file"].unique()) == named
    assert table["row"].tolist() == [*range(60), *range(60), 0]
    assert table["id"].astype(str).tolist() == [*map(str, [*range(60), *range(60)]), "7"]
    with fsspec.open(named[0]) as stream:  # other programs use the same name for a member
        assert stream.read().decode() == CSV
    told = {Path(where.split("::")[0]).name: why for where, why in report.tally.problems}
    assert set(told) == {"table.parquet", "older.zip"}
    assert "unpack the archive first" in told["table.parquet"]
    assert "unpack the outer one" in told["older.zip"]
    assert report.tally.left_out == ((f"zip://readme.md::{path}", "its suffix belongs to no format"),)
    assert pipeline.verify(out, input=True).rows_read == 121
    alone = pipeline.classify(named[1], model=small_model, client=client).to_pandas()
    assert alone["label"].tolist() == table["label"].tolist()[60:120]
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("late.csv", CSV)
    with pytest.raises(SourceError, match="has changed since it was labelled"):
        pipeline.verify(out, input=True)


def test_members_are_found_however_their_paths_are_written(
    client: Client, small_model: Model, broadsheet_here: CommandHere, tmp_path: Path
) -> None:
    """Paths may begin with a dot or a slash, or lead outside the archive. All members are labelled, and found again."""
    written = ["./c.csv", "/abs/d.csv", "../e.csv", "f//g.csv", "q[1].csv", "q1.csv"]
    path = zipped(tmp_path / "one.zip", {name: f"text\n{name}\n" for name in written})
    report = pipeline.classify(path, tmp_path / "out", model=small_model, client=client)
    assert (report.exit_code, report.rows_written) == (0, 6)
    named = [file.split("::")[0] for file in report.to_pandas()["file"]]
    assert named == [f"zip://{name}" for name in ("c.csv", "abs/d.csv", "../e.csv", "f/g.csv", "q[1].csv", "q1.csv")]
    code, told = broadsheet_here("verify", tmp_path / "out", "--input")
    assert code == 0, told
    for wanted, rows in (("q[1].csv", 1), ("q1.csv", 1), ("q*.csv", 2), ("./c.csv", 1), ("/abs/d.csv", 1)):
        one = pipeline.classify(f"zip://{wanted}::{path}", model=small_model, client=client)
        assert one.rows_written == rows, wanted


@pytest.mark.slow
def test_members_that_cannot_be_read_are_named_and_the_others_are_read(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    path = zipped(tmp_path / "m.zip", {"good.csv": CSV, "locked.csv": CSV, "odd.csv": CSV, "damaged.csv": CSV * 40})
    data = bytearray(path.read_bytes())
    listed = data.index(b"PK\x01\x02")
    for name, place, value in ((b"locked.csv", 8, 1), (b"odd.csv", 10, 9)):  # encrypted, and Deflate64
        data[data.index(name, listed) - 46 + place] = value
    damaged = data.index(b"damaged.csv") + len(b"damaged.csv")
    data[damaged + 150] ^= 0xFF
    path.write_bytes(data)
    report = pipeline.classify(path, model=small_model, client=client, chunk_size=1000)
    told = " ".join(why for _, why in report.tally.problems)
    for what in ("locked.csv::", "it is encrypted", "odd.csv::", "method 9", "damaged.csv::", "cut off or damaged"):
        assert what in told
    assert sum("good.csv" in file for file in report.to_pandas()["file"]) == 60
    path.write_bytes(data[: len(data) // 2])
    files = find_files([str(path)], 70, 1014)
    assert not files.found
    assert "not a readable zip archive" in files.problems[0][1]


BOMB = """
import sys
from pathlib import Path
from broadsheet.pipeline.source.inputs import identify, open_input
from broadsheet.pipeline.source.inputs import chunks_here
from broadsheet.pipeline.source.rows.chunk import Selection
given = identify(sys.argv[1], 70, 1014, whole_hash=False, by_content=False)
rows = sum(chunk.rows_read for chunk in chunks_here(open_input(given, Selection(), 131_072)))
print(rows, int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10)
"""


@pytest.mark.slow
def test_an_archive_that_stands_for_far_more_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("a.txt", "w") as to:
        for _ in range(30):
            to.write(b"x" * (1 << 24))  # builds a line of 480 MiB
        to.write(b"\nlast line\n")
    assert path.stat().st_size < 8 << 20
    run = subprocess.run(
        [sys.executable, "-c", BOMB, path], capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ}
    )
    rows, mebibytes = map(int, run.stdout.split())
    assert rows == 2
    assert mebibytes < 560  # holding the line would take 480 MiB more


def test_an_archive_within_a_folder_or_at_a_url_is_read(tmp_path: Path) -> None:
    zipped(tmp_path / "a.zip", {"x.csv": CSV}, zipfile.ZIP_STORED)
    (tmp_path / "b.csv").write_text(CSV)
    assert [f.path for f in find_files([str(tmp_path)], 70, 1014).found] == [
        f"zip://x.csv::{tmp_path}/a.zip",
        f"{tmp_path}/b.csv",
    ]
    assert find_files([str(tmp_path)], 70, 1014, root=tmp_path).found[0].path == "zip://x.csv::a.zip"
    with fsspec.open("memory://bucket/a.zip", "wb") as stream:
        stream.write((tmp_path / "a.zip").read_bytes())
    (member,) = find_files(["memory://bucket/a.zip"], 70, 1014).found
    assert member.path == "zip://x.csv::memory://bucket/a.zip"
    with pytest.raises(UsageError, match=r"no input at 'zip://y\.csv::.+': the archive has no such file"):
        find_files([f"zip://y.csv::{tmp_path}/a.zip"], 70, 1014)
    zipped(tmp_path / "c.zip", {"picture.png": b"", "none.doc": b""})
    assert len(find_files([str(tmp_path)], 70, 1014).left_out) == 2
    with pytest.raises(UsageError, match=r"no input in .+c\.zip': 2 files of other kinds"):
        find_files([str(tmp_path / "c.zip")], 70, 1014)
    with pytest.raises(UsageError, match="no such file"):
        find_files([str(tmp_path / "none.zip")], 70, 1014)
