"""Files whose names are wrong or say nothing about their format: their first bytes decide, or they are a problem."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard
from conftest import CommandHere
from reading import read_files

from broadsheet.pipeline import verify
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.source.rows.chunk import Selection

PACKED = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard.compress}


@pytest.mark.parametrize("suffix", ["", *PACKED])
def test_a_file_of_rows_that_cannot_be_read_is_a_problem_with_its_reason(
    suffix: str, small_model_file: Path, broadsheet_here: CommandHere, tmp_path: Path
) -> None:
    """Whatever the suffix is, and even if only the content shows the format, no row is lost with the exit code 0."""
    lines = b"".join(b'{"text": "oil prices rose for the %dth day"}\n' % day for day in range(200))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.jsonl").write_bytes(lines)
    packed = PACKED.get(suffix, bytes)
    whole = packed(lines)
    bad = {
        "array": packed(b'[{"text": "a"},\n {"text": "b"}]'),
        "first": packed(b"garbage\n" + lines),
        "several": packed(b'{\n "text": "a"\n}\n{\n "text": "b"\n}\n'),
    }
    if suffix:
        bad |= {"cut": whole[:20], "header": b"\0\0" + whole[2:]}
    for name, data in bad.items():
        (tmp_path / "in" / f"{name}.json.{suffix}".rstrip(".")).write_bytes(data)
        (tmp_path / "in" / f"part-{name}.{suffix}".rstrip(".")).write_bytes(data)
    code, said = broadsheet_here("classify", tmp_path / "in", "-o", tmp_path / "out", "--model", small_model_file)
    assert code == 3
    assert f"{2 * len(bad)} files were not read" in said
    reasons = {"array": "JSON array", "first": "its first line is 'garbage'", "several": "objects have several lines"}
    reasons |= {"cut": "cut off or damaged", "header": "cut off or damaged"}
    for name in bad:
        assert re.search(rf"{name}\.json\S*: .*{reasons[name]}", " ".join(said.split())), said
    assert verify(tmp_path / "out").rows_read == 200
    assert len(verify(tmp_path / "out").unread) == 2 * len(bad)


def test_skipped_files_are_named_with_reasons_wherever_the_job_is_described(
    small_model_file: Path, broadsheet_here: CommandHere, tmp_path: Path
) -> None:
    folder, out, html = tmp_path / "in", tmp_path / "out", tmp_path / "report.html"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "oil prices rose"}\n')
    (folder / "old.xls").write_bytes(b"x")
    (folder / "settings.json").write_text('{\n "a": 1\n}')
    job = ("classify", folder, "-o", out, "--model", small_model_file)
    code, printed = broadsheet_here(*job, "--report", html, "--json")
    assert code == 0, printed
    skipped = {str(folder / "old.xls"): "save it as .xlsx or .csv", str(folder / "settings.json"): "a JSON object"}
    told = json.loads(printed.splitlines()[0])["left_out"]
    assert (told["count"], {*told["first"]}, len(told["reasons"])) == (2, {*skipped}, 2)
    for where in (
        json.loads((out / "_manifest.json").read_text())["totals"]["left_out"],
        json.loads(broadsheet_here("verify", out, "--json")[1])["left_out"],
    ):
        assert {path: skipped[path] in reason for path, reason in where} == dict.fromkeys(skipped, True)
    verified = " ".join(broadsheet_here("verify", out)[1].split())
    assert "2 files were skipped" in verified
    for path, reason in skipped.items():
        assert path in verified
        assert reason in verified
        assert path in html.read_text()
        assert reason in html.read_text()
    (folder / "b.jsonl").write_text('{"text": "gold prices fell"}\n')
    (folder / "old.xls").unlink()
    code, printed = broadsheet_here(*job, "--update")
    assert code == 0, printed
    assert [Path(path).name for path, _ in verify(out).left_out] == ["settings.json"]


def test_what_is_in_an_archive_is_told_by_its_content_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("news.json", b'{"text": "row 0"}\n')
        archive.writestr("part-00000", b'{"text": "row 1"}\n')
        archive.writestr("list.json", b'[{"text": "x"}]')
        archive.writestr("config.json", b'{\n "a": 1\n}')
    listed = find_files([str(tmp_path / "a.zip")], 70, 1014)
    assert read_files(listed.found, Selection(), 10).texts == [b"row 0", b"row 1"]
    assert [why.partition(": ")[2][:21] for _, why in listed.problems] == ["it is a JSON array, an"[:21]]
    assert [path.partition("::")[0] for path, _ in listed.left_out] == ["zip://config.json"]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.txt.gz", "a.jsonl.zst", "a.json.gz", "part-00000"])
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, "v7"])
def test_an_archive_under_the_name_of_another_kind_is_no_text(kind: int | str, name: str, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT if kind == "v7" else kind) as archive:
        member = tarfile.TarInfo("é" * 60 + "/a.jsonl")
        member.size = 18
        archive.addfile(member, io.BytesIO(b'{"text": "row 0"}\n'))
    data = stream.getvalue()
    if kind == "v7":  # without a magic number, as the oldest programs write it
        header = bytearray(data[:512])
        header[257:500] = bytes(243)
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        data = bytes(header) + data[512:]
    suffix = name.rpartition(".")[2]
    (tmp_path / name).write_bytes(PACKED.get(suffix, bytes)(data))
    (tmp_path / "good.jsonl").write_bytes(b'{"text": "good"}\n')
    listed = find_files([str(tmp_path)], 70, 1014)
    result = read_files(listed.found, Selection(), 10)
    assert (result.texts, len(result.messages) + len(listed.problems)) == ([b"good"], 1)
    assert "it is a tar file by its first bytes" in "".join([*result.messages, *(why for _, why in listed.problems)])


@pytest.mark.parametrize("name", ["tar://*.csv::{}/a.tar", "tar://a.csv::{}/a.tar", "tar://::{}/a.tar.gz"])
def test_members_of_a_tar_archive_are_refused_by_whatever_name(name: str, tmp_path: Path) -> None:
    for path in ("a.tar", "a.tar.gz"):
        with tarfile.open(tmp_path / path, "w:gz" if path.endswith("gz") else "w") as archive:
            member = tarfile.TarInfo("a.csv")
            member.size = 11
            archive.addfile(member, io.BytesIO(b"text\nrow 0\n"))
    with pytest.raises(
        UsageError, match=r"^tar://.*: only zip archives can be read without unpacking them: unpack this one"
    ):
        find_files([name.format(tmp_path)], 70, 1014)
