"""Excel workbooks (.xlsx), by openpyxl: the first sheet, whose first row that is not empty names the columns.

A workbook is an archive of XML, of which a few kilobytes may stand for gigabytes. openpyxl reads a sheet row by row,
but all texts that cells share at once: a workbook is read if these, and each row, are of bounded size.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa

from ...errors import InputChanged, SourceError, UsageError
from ..chunk import Chunk, Selection, empty_chunk
from ..format import FilePlan, Format, InputFile, Schema, Seek
from ..open.front_to_back import ZIP_MAGIC
from ..open.opening import open_at
from .tables import table_chunk

_NEEDS = "an Excel file needs openpyxl: pip install 'broadsheet[xlsx]', or save the sheet as .csv"
_MOST_TEXTS = 256 << 20  # bytes of XML without the sheets
_MOST_ROW = 16 << 20  # bytes of XML
_MOST_ROWS = 1 << 20  # that a sheet has in Excel

_Row = tuple[str | None, ...]


class Xlsx(Format):
    """All values are text, as Excel would save them in a CSV: 5, 0.1, TRUE, 2024-01-31; of a formula, its result."""

    name = "xlsx"
    suffixes = (".xlsx",)
    seeks = Seek.NOTHING
    jumps = True
    magic = ZIP_MAGIC

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        with _sheets(file) as (first, *_):
            return Schema(_header(_rows(first)))

    def plan(self, file: InputFile, schema: Schema, selection: Selection, chunk_rows: int) -> FilePlan:
        with _sheets(file) as (_, *others):
            named = ", ".join(repr(sheet.title) for sheet in others if any(_rows(sheet)))
        problem = f"{file.path}: only its first sheet was read, not {named}: save those as files"
        return FilePlan((), [problem] if named else [])

    def stream(self, file: InputFile, selection: Selection, chunk_rows: int) -> Iterator[Chunk]:
        count = 0
        try:
            with _sheets(file) as (first, *_):
                rows = _rows(first)
                names = _header(rows)
                places = [names.index(name) for name in selection.columns]
                while block := list(islice(rows, chunk_rows)):
                    values = [[row[place] if place < len(row) else None for row in block] for place in places]
                    table = pa.table([pa.array(v, pa.large_string()) for v in values], list(selection.columns))
                    yield table_chunk(table, file.path, count, selection)
                    count += len(block)
        except InputChanged:
            raise
        except SourceError as error:
            yield empty_chunk(selection, (f"{error.message}; all before row {count:,} is read",))


@contextmanager
def _sheets(file: InputFile) -> Iterator[list[Any]]:
    """Raises SourceError where they cannot be read, UsageError where openpyxl is not installed."""
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise UsageError(f"{file.path}: {_NEEDS}") from error
    with open_at(file) as stream:
        try:
            _refuse_large(stream)
            sheets = load_workbook(stream, read_only=True, data_only=True, keep_links=False).worksheets
            if not sheets:
                raise ValueError("it has no sheet of cells")
            yield sheets
        except (SourceError, UsageError):
            raise
        except Exception as error:  # openpyxl raises nearly anything where a workbook is not as it expects
            raise SourceError(f"{file.path}: not a readable Excel file ({error})") from error


def _refuse_large(stream: BinaryIO) -> None:
    """Raise ValueError where what openpyxl reads at once takes more than it should."""
    texts = 0
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():
            if member.filename.startswith("xl/worksheets/"):
                with archive.open(member) as sheet:
                    while len(block := sheet.read(_MOST_ROW)) == _MOST_ROW:
                        if b"<row" not in block:
                            raise ValueError(f"a row takes more than {_MOST_ROW >> 20} MiB; save it as .csv")
            elif member.filename.endswith((".xml", ".rels")):
                texts += member.file_size
    if texts > _MOST_TEXTS:
        raise ValueError(f"its texts take more than {_MOST_TEXTS >> 20} MiB; save it as .csv")
    stream.seek(0)


def _rows(sheet: Any) -> Iterator[_Row]:
    """The rows up to the last that is not empty, as text; an empty one has no values."""
    empty = 0
    for number, cells in enumerate(sheet.iter_rows(values_only=True)):
        if number >= _MOST_ROWS:
            raise ValueError("it has more rows than Excel allows")
        row = tuple(map(_text, cells))
        if any(row):
            yield from [()] * empty
            yield row
        empty = 0 if any(row) else empty + 1


def _header(rows: Iterator[_Row]) -> tuple[str, ...]:
    """The names of the columns, by the first row that is not empty; one without a name is called by its number."""
    first = next(filter(None, rows), None)
    if first is None:
        raise ValueError("its first sheet is empty")
    last = max(i for i, name in enumerate(first) if name is not None)
    return tuple(f"column {i + 1}" if name is None else name for i, name in enumerate(first[: last + 1]))


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime):
        return value.isoformat(" ").removesuffix(" 00:00:00")
    return None if value is None or value == "" else str(value)
