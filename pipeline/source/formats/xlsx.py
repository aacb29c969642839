"""Excel workbooks (.xlsx), by openpyxl: the first sheet, whose first row that is not empty names the columns.

A workbook is an archive of XML, of which a few kilobytes may stand for gigabytes. openpyxl reads a sheet row by row,
but all texts that cells share at once: a workbook is read if these, and each row, are of bounded size.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, time
from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa

from ...errors import InputChanged, SourceError, UsageError
from ..chunk import Chunk, Selection, empty_chunk
from ..memory.tables import table_chunk
from ..open.front_to_back import ZIP_MAGIC
from ..open.opening import open_at
from .base import FilePlan, Format, InputFile, Scan, Schema, Seek, Stream

_NEEDS = "an Excel file needs openpyxl: pip install 'broadsheet[xlsx]', or save the sheet as .csv"
_SHEETS = "xl/worksheets/"
_MOST_SHARED = 256 << 20  # bytes of XML without the sheets
_MOST_ROW = 16 << 20  # bytes of XML
_MOST_ROWS = 1 << 20  # that a sheet has in Excel
_MOST_COLUMNS = 1 << 14
_BLOCK = 1 << 20

_Row = tuple[str | None, ...]


class Xlsx(Format):
    """All values are text, as Excel would save them in a CSV: 5, 0.1, TRUE, 2024-01-31; of a formula, its result."""

    name = "xlsx"
    suffixes = (".xlsx",)
    seeks = Seek.NOTHING
    jumps = True
    magic = ZIP_MAGIC

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        with _workbook(file) as book:
            return Schema(_header(file, _rows(file, book.worksheets[0])))

    def plan(self, file: InputFile, schema: Schema, selection: Selection, chunk_rows: int, scan: Scan) -> FilePlan:
        with _workbook(file) as book:
            others = [sheet.title for sheet in book.worksheets[1:] if next(_rows(file, sheet), None)]
        if not others:
            return FilePlan(streamed=True)
        named = ", ".join(map(repr, others))
        return FilePlan((), [f"{file.path}: only its first sheet was read, not {named}: save those as files"], True)

    def stream(self, stream: Stream, selection: Selection, chunk_rows: int) -> Iterator[Chunk]:
        file, first = stream.file, 0
        try:
            with _workbook(file) as book:
                rows = _rows(file, book.worksheets[0])
                names = _header(file, rows)
                places = [names.index(name) for name in selection.columns]
                while held := list(islice(rows, chunk_rows)):
                    columns = [pa.array([_at(row, place) for row in held], pa.large_string()) for place in places]
                    table = pa.table(columns, list(selection.columns))
                    yield table_chunk(table, file.path, first, selection)
                    first += len(held)
        except InputChanged:
            raise
        except SourceError as error:
            yield empty_chunk(selection, (f"{error.message}; all before row {first:,} is read",))


@contextmanager
def _workbook(file: InputFile) -> Iterator[Any]:
    """Raises SourceError where it cannot be read, UsageError where openpyxl is not installed."""
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise UsageError(f"{file.path}: {_NEEDS}") from error
    with open_at(file) as stream, _source_errors(file):
        _refuse_large(stream)
        book = load_workbook(stream, read_only=True, data_only=True, keep_links=False)
        if not book.worksheets:
            raise ValueError("it has no sheet of cells")
        yield book


@contextmanager
def _source_errors(file: InputFile) -> Iterator[None]:
    """openpyxl raises nearly anything where a workbook is not as it expects."""
    try:
        yield
    except (SourceError, UsageError, GeneratorExit):
        raise
    except Exception as error:
        raise SourceError(f"{file.path}: not a readable Excel file ({error})") from error


def _refuse_large(stream: BinaryIO) -> None:
    """Raise ValueError where what openpyxl reads at once takes more than it should."""
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        others = [m for m in members if not m.filename.startswith(_SHEETS) and m.filename.endswith((".xml", ".rels"))]
        if sum(member.file_size for member in others) > _MOST_SHARED:
            raise ValueError(f"its texts take more than {_MOST_SHARED >> 20} MiB; save it as .csv")
        for member in members:
            if member.filename.startswith(_SHEETS):
                with archive.open(member) as sheet:
                    _refuse_long_rows(sheet)
    stream.seek(0)


def _refuse_long_rows(sheet: Any) -> None:
    since, before = 0, b""
    while block := sheet.read(_BLOCK):
        found = (before + block).rfind(b"<row")
        since = len(before + block) - found if found >= 0 else since + len(block)
        if since > _MOST_ROW:
            raise ValueError(f"a row takes more than {_MOST_ROW >> 20} MiB; save it as .csv")
        before = block[-3:]


def _rows(file: InputFile, sheet: Any) -> Iterator[_Row]:
    """The rows from the first that is not empty to the last such, as text."""
    empty, begun = 0, False
    with _source_errors(file):
        for number, cells in enumerate(sheet.iter_rows(values_only=True)):
            if number >= _MOST_ROWS or len(cells) > _MOST_COLUMNS:
                raise ValueError("it has more rows or columns than Excel allows")
            row = tuple(map(_text, cells))
            if not any(value is not None for value in row):
                empty += begun
                continue
            yield from [()] * empty
            yield row
            empty, begun = 0, True


def _header(file: InputFile, rows: Iterator[_Row]) -> tuple[str, ...]:
    """The names of the columns; one without a name is called by its number."""
    first = next(rows, None)
    if first is None:
        raise SourceError(f"{file.path}: its first sheet is empty")
    last = max(i for i, name in enumerate(first) if name is not None)
    return tuple(f"column {i + 1}" if name is None else name for i, name in enumerate(first[: last + 1]))


def _at(row: _Row, place: int) -> str | None:
    return row[place] if place < len(row) else None


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return None if value is None or value == "" else str(value)
