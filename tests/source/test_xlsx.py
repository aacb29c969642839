"""Excel workbooks: their first sheet, as text; what is not read is said; and small ones that stand for gigabytes."""

from __future__ import annotations

import datetime
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import openpyxl
import pandas
import pytest
from conftest import ROOT
from distributed import Client
from reading import found, read_files

from broadsheet import pipeline
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.chunk import Selection
from broadsheet.pipeline.source.plan.files import find_files

ROWS = [
    ("an article", 1, datetime.datetime(2024, 1, 31), True, 0.1),
    ("another", 2.0, datetime.datetime(2024, 1, 31, 12, 30), False, None),
    (None, None, None, None, None),
    ("after an empty row", 10**12, datetime.date(2024, 2, 1), None, "=1+1"),
    (3.5, "x", None, None, None),
]
TEXTS = ["an article", "another", None, "after an empty row", "3.5"]


def workbook(path: Path, rows: list[tuple[object, ...]], others: int = 0) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for i in range(others):
        book.create_sheet(f"more {i}").append(["text"])
    book.create_sheet("empty")
    book.save(path)
    return path


def test_the_first_sheet_is_read_as_text(client: Client, small_model: Model, tmp_path: Path) -> None:
    path = workbook(tmp_path / "b.xlsx", [(), ("text", "n", "day", "yes", None, ""), *ROWS, (None, ""), ()])
    out = tmp_path / "out"
    keep = ["n", "day", "yes"]
    report = pipeline.classify(path, out, model=small_model, client=client, chunk_size=2, keep=keep)
    assert (report.exit_code, report.rows_read, report.rows_quarantined) == (0, 5, 1)
    rows = report.to_arrow().select(["row", *keep]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (0, "1", "2024-01-31", "TRUE"),
        (1, "2", "2024-01-31 12:30:00", "FALSE"),
        (3, "1000000000000", "2024-02-01", None),
        (4, "x", None, None),
    ]
    assert pandas.read_excel(path, header=1)["text"].astype(object).where(lambda t: t.notna(), None).tolist() == [
        *TEXTS[:4],
        3.5,
    ]  # row numbers are those of pandas
    expected = pipeline.classify(TEXTS, model=small_model, client=client)
    assert report.to_pandas()["label"].tolist() == expected.to_pandas()["label"].dropna().tolist()
    assert pipeline.verify(out, input=True).rows_read == 5


def test_other_sheets_are_named(tmp_path: Path) -> None:
    workbook(tmp_path / "b.xlsx", [("text",), ("one",)], others=2)
    (message,) = read_files(found([tmp_path]), Selection(), 10).messages
    assert "only its first sheet was read, not 'more 0', 'more 1'" in message


@pytest.mark.slow
def test_without_openpyxl_and_for_an_old_workbook_there_is_a_remedy(tmp_path: Path) -> None:
    path = workbook(tmp_path / "b.xlsx", [("text",), ("one",)])
    code = "import sys; sys.modules['openpyxl'] = None; from broadsheet.pipeline.cli import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", code, "classify", path, "-o", tmp_path / "out"], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 2
    assert "pip install 'broadsheet[xlsx]'" in " ".join(run.stderr.split())
    with pytest.raises(UsageError, match=r"save it as \.xlsx or \.csv"):
        find_files([str(path.rename(tmp_path / "b.xls"))], 70, 1014)


@pytest.mark.parametrize(
    ("member", "content", "times", "message"),
    [
        ("xl/theme/theme1.xml", b"<si><t>a text</t></si>" * 50_000, 250, "its texts take more than 256 MiB"),
        ("xl/worksheets/sheet1.xml", b"<c/>" * 50_000, 90, "a row takes more than 16 MiB"),
        ("xl/worksheets/sheet1.xml", b"<worksheet", 1, "not a readable Excel file"),
        ("xl/workbook.xml", b"", 1, "not a readable Excel file"),
    ],
)
def test_a_workbook_made_to_fill_memory_or_damaged_is_refused(
    tmp_path: Path, member: str, content: bytes, times: int, message: str
) -> None:
    source, bad = workbook(tmp_path / "good.xlsx", [("text",), ("one",)]), tmp_path / "bad.xlsx"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new:
        for name in old.namelist():
            with new.open(name, "w") as to:
                for _ in range(times if name == member else 1):
                    to.write(content if name == member else old.read(name))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert message in read_files(found([bad]), Selection(), 10).messages[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
