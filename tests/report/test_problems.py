"""Problems with the input of a job, in a form for programs."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from conftest import CommandHere


def test_a_program_reads_what_went_wrong_by_file_and_reason(
    small_model_file: Path, broadsheet_here: CommandHere, tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    good = [{"text": f"text {row}", "url": f"u{row}"} for row in range(200)]
    lines = "".join(json.dumps(row) + "\n" for row in good)
    bad = "".join(f'{{"text": "cut {"x" * row}\n' for row in range(7))
    (folder / "a.jsonl").write_text(lines + '{"text": null}\n')
    (folder / "b.jsonl").write_text(bad + lines + bad)
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-30])
    pq.write_table(pa.table({"text": ["a"] * 9, "url": list(range(9))}), folder / "d.parquet")
    pq.write_table(pa.table({"other": ["a"] * 11}), folder / "e.parquet")
    (folder / "f.jsonl").write_text('{"text": "no address"}\n' * 3)
    (folder / "notes.md").write_text("x")
    job = ("classify", folder, "-o", out, "--model", small_model_file, "--keep", "url", "--root", folder)
    code, printed = broadsheet_here(*job, "--json", "--quiet")
    assert code == 3, printed
    report = json.loads(printed[printed.index("{") :].splitlines()[0])
    (listed,) = out.glob("_runs/*.problems.jsonl")
    assert report["problems_file"] == str(listed)
    found = [json.loads(line) for line in listed.read_text().splitlines()]
    told = [(one["kind"], one["path"], one["rows_read"], one["rows_lost"], one["remedy"]) for one in found]
    in_c = report["rows_read"] - 201 - 214 - 9 - 3
    assert 0 < in_c < 201
    mended = "--update --changed"
    cut_off = [("quarantined", "c.jsonl.gz", in_c, 1, None)] if len(told) == 7 else []  # the line that was cut off
    assert told == [
        ("unread", "e.parquet", 0, 11, mended),
        ("in part", "c.jsonl.gz", in_c, None, mended),
        ("quarantined", "b.jsonl", None, 14, None),
        ("quarantined", "a.jsonl", None, 1, None),
        *cut_off,
        ("note", "f.jsonl", None, 0, None),
        ("skipped", "notes.md", 0, None, None),
    ]
    reasons = [one["reason"] for one in found]
    assert re.fullmatch(r"not JSON: .* line 1 column \d+ \(char \d+\)", reasons[2])  # the first row's position
    assert "none of its first rows has 'url'" in found[-2]["reason"]
    assert sum(one["rows_lost"] for one in found if one["kind"] == "quarantined") == report["rows_quarantined"]
    _, shown = broadsheet_here(*job, "--resume")
    assert "row 0: not JSON" in shown
    assert str(max(out.glob("_runs/*.problems.jsonl"), key=lambda path: path.stat().st_mtime)) in shown


def test_the_readme_of_an_output_says_what_is_in_it_and_what_is_missing(
    small_model_file: Path, broadsheet_here: CommandHere, tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    pq.write_table(pa.table({"text": ["a", None, "b"], "n": [1, 2, 3]}), folder / "a.parquet")
    (folder / "broken.parquet").write_bytes(b"PAR1")
    job = ("classify", folder, "-o", out, "--model", small_model_file, "--keep", "n", "--root", folder)
    assert broadsheet_here(*job)[0] == 3
    code, said = broadsheet_here("inspect", out, "--card", tmp_path / "README.md")
    assert code == 0, said
    text = (tmp_path / "README.md").read_text()
    head = json.loads(text.split("---")[1])
    assert [*out.glob(head["configs"][0]["data_files"])] == [*(out / "parts").iterdir()]
    for told in (
        "# out",
        "3 rows read = 2 labelled + 1 quarantined",
        "- `n`: int64",
        "1 row could not",
        "broken.parquet",
    ):
        assert told in text
    assert str(tmp_path) not in text
    assert "the output folder of a job" in broadsheet_here("inspect", out, "--card", out / "README.md")[1]
    assert "is there already" in broadsheet_here("inspect", out, "--card", tmp_path / "README.md")[1]
