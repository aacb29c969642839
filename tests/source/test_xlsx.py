"""Excel workbooks: the first sheet is read as text, the rest is reported, and small files that expand to gigabytes
fail.
"""

from __future__ import annotations

import datetime
import re
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
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
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.source.rows.chunk import Selection, concat

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


def edited(path: Path, edit: Callable[[bytes], bytes], member: str = "xl/worksheets/sheet1.xml") -> Path:
    """Write a copy of the workbook in which the function has edited one member, and return its path."""
    other = path.with_name(f"edited_{path.name}")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            new.writestr(name, edit(old.read(name)) if name == member else old.read(name))
    return other


def columns(path: Path) -> dict[str, list[object]]:
    """Return the copied columns of a workbook that has no problem."""
    result = read_files(found([path]), Selection(keep_all=True), 7)
    assert not result.messages
    return concat(result.chunks).rows.drop_columns(["file", "row"]).to_pydict()


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
    assert "pip install 'openpyxl>=" in " ".join(run.stderr.split())
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


# Dimensions that are too small, right, elsewhere, as large as Excel allows, and outside the cells.
@pytest.mark.parametrize("claimed", ["A1", "A1:B21", "C3:D4", "A1:XFD1048576", "A90:B95"])
def test_all_rows_are_read_whatever_the_sheet_says_of_its_size(tmp_path: Path, claimed: str) -> None:
    rows = [(f"article {i}", str(i)) for i in range(50)]
    path = workbook(tmp_path / "b.xlsx", [("text", "n"), *rows])
    claim = f'<dimension ref="{claimed}"'.encode()
    path = edited(path, lambda sheet: re.sub(rb'<dimension ref="[^"]*"', claim, sheet))
    assert claim in zipfile.ZipFile(path).read("xl/worksheets/sheet1.xml")
    read = columns(path)
    assert [*zip(read["text"], read["n"], strict=True)] == rows


ESCAPED = {
    "a_x000D_\nb": "a\r\nb",
    "_x005F_x000D_": "_x000D_",
    "_x005F_x005F_": "_x005F_",
    "a path x005F_b of it": "a path x005F_b of it",
    "_x000d_ and _x0041_": "\r and A",
    "_xD83D__xDE00_!": "😀!",
    "_xD83D_!": "\ufffd!",
    "_x12_ _X0041_ _x00G1_ x0041_": "_x12_ _X0041_ _x00G1_ x0041_",
}
"""Texts as a workbook stores them, and their meaning."""


@pytest.mark.parametrize("kind", ["inline", "shared", "formula"])
def test_escapes_in_texts_are_what_they_stand_for(tmp_path: Path, kind: str) -> None:
    path = workbook(tmp_path / "b.xlsx", [("text",), *((text,) for text in ESCAPED)])
    inline, texts = re.compile(rb't="inlineStr"><is><t[^>]*>([^<]*)</t></is></c>'), ["text", *ESCAPED]
    with zipfile.ZipFile(path) as book:
        assert len(inline.findall(book.read("xl/worksheets/sheet1.xml"))) == len(texts)
    if kind == "formula":
        path = edited(path, lambda sheet: inline.sub(rb't="str"><f>A9</f><v>\1</v></c>', sheet))
    if kind == "shared":
        numbers = iter(range(len(texts)))
        items = "".join(f"<si><t>{text}</t></si>" for text in texts).encode()
        path = edited(path, lambda sheet: inline.sub(lambda _: b't="s"><v>%d</v></c>' % next(numbers), sheet))
        path = edited(path, lambda types: types.replace(b"</Types>", SHARED + b"</Types>"), "[Content_Types].xml")
        with zipfile.ZipFile(path, "a") as book:
            book.writestr("xl/sharedStrings.xml", TABLE % items)
    assert columns(path)["text"] == [*ESCAPED.values()]


SHARED = (
    b'<Override PartName="/xl/sharedStrings.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    b'spreadsheetml.sharedStrings+xml"/>'
)
TABLE = b'<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">%s</sst>'


def test_what_xlsxwriter_escapes_is_read_again(tmp_path: Path) -> None:
    xlsxwriter = pytest.importorskip("xlsxwriter")
    texts = ["a\rb", "\x01\x02", "_x000D_", "_x005F_", "plain"]
    for options in ({}, {"constant_memory": True}):  # shared texts; texts within cells
        with xlsxwriter.Workbook(tmp_path / "b.xlsx", options) as book:
            sheet = book.add_worksheet()
            for row, text in enumerate(["text", *texts]):
                sheet.write_string(row, 0, text)
        assert columns(tmp_path / "b.xlsx")["text"] == texts


def test_durations_are_hours_as_excel_shows_them(tmp_path: Path) -> None:
    shown = {
        datetime.timedelta(hours=26, minutes=30): "26:30:00",
        datetime.timedelta(minutes=5, seconds=1.5): "0:05:01.5",
        datetime.timedelta(days=400): "9600:00:00",
        -datetime.timedelta(hours=1, minutes=30): "-1:30:00",
        datetime.timedelta(0): "0:00:00",
    }
    path = workbook(tmp_path / "b.xlsx", [("text", "took"), *(("x", took) for took in shown)])
    assert columns(path)["took"] == [*shown.values()]


def test_rows_that_openpyxl_leaves_out_are_not_lost_in_silence(tmp_path: Path) -> None:
    path = workbook(tmp_path / "b.xlsx", [("text",), ("one",), ("two",), ("three",)])
    for number in (b"2", b"4"):  # an earlier row, and the same row twice
        bad = edited(path, lambda sheet, number=number: sheet.replace(b'<row r="3"', b'<row r="%s"' % number))
        sheet = openpyxl.load_workbook(bad, read_only=True).active
        sheet.reset_dimensions()
        assert [row for row in sheet.values if row] != [("text",), ("one",), ("two",), ("three",)]
        (message,) = read_files(found([bad]), Selection(), 10).messages
        assert re.search("its row [24] comes after row [24]: open it and save it again", message)


@pytest.mark.parametrize("rest", [1, 8, 14, 20, 22, 23])
def test_a_row_that_is_cut_by_the_block_in_which_it_is_checked_is_read(tmp_path: Path, rest: int) -> None:
    """Sheets are checked in blocks of 16 MiB, and a tag may be cut in two. rest: how many of its bytes the first block
    has.
    """
    path = workbook(tmp_path / "b.xlsx", [("text",), ("one",), ("two",)])
    row = b'<row r="3" spans="1:1">'

    def fill(sheet: bytes) -> bytes:
        sheet = re.sub(rb'<row r="3"[^>]*>', row, sheet)
        before, after = sheet.split(row)
        return before + b" " * ((16 << 20) - rest - len(before)) + row + after

    assert columns(edited(path, fill))["text"] == ["one", "two"]


def test_a_strict_workbook_is_named(tmp_path: Path) -> None:
    path = workbook(tmp_path / "b.xlsx", [("text",), ("one",)])
    main, strict = "schemas.openxmlformats.org/spreadsheetml/2006/main", "purl.oclc.org/ooxml/spreadsheetml/main"
    path = edited(path, lambda sheet: sheet.replace(main.encode(), strict.encode()))
    (message,) = read_files(found([path]), Selection(), 10).messages
    assert 'it is a "Strict Open XML" workbook: save it as "Excel Workbook (.xlsx)"' in message
