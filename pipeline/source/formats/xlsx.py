"""Excel workbooks (.xlsx), read by openpyxl: the first sheet, in which the first row that is not empty names the
columns.

A workbook is an archive of XML, of which a few kilobytes may stand for gigabytes. openpyxl reads a sheet row by row,
but reads all texts that cells share in one go. So a workbook is read only if these texts, and each row, are of bounded
size.

Some of the values that openpyxl returns are not what Excel shows. openpyxl stops where the sheet's `<dimension>` says
that the cells end, which may be wrong, so the dimension is reset. It leaves out a row that follows one with a higher
number, so such a sheet is refused. It leaves the escapes of texts as they are (`_x000D_` is a carriage return), and
damages those of the underscore, so the shared texts are read here.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, time, timedelta
from itertools import islice
from typing import IO, Any, BinaryIO

import pyarrow as pa

from ...errors import InputChanged, SourceError, UsageError, install
from ..open.front_to_back import ZIP_MAGIC
from ..open.opening import open_at
from ..rows.chunk import Chunk, Selection, empty_chunk
from ..rows.format import FilePlan, Format, InputFile, Schema, Seek
from .tables import table_chunk

_MOST_TEXTS = 256 << 20  # bytes of XML without the sheets
_MOST_ROW = 16 << 20  # bytes of XML in a row
_MOST_ROWS = 1 << 20  # the limit of a sheet in Excel
_MOST_TAG = 4096  # bytes of a tag
_STRICT = b"http://purl.oclc.org/ooxml/spreadsheetml/main"
_ROW = re.compile(rb"<(?:\w+:)?row[\s/>]")
_ROW_NUMBER = re.compile(rb"<(?:\w+:)?row\s(?:[^>]*\s)?r\s*=\s*[\"'](\d+)[\"']")
_ESCAPES = re.compile("(?:_x[0-9A-Fa-f]{4}_)+")
"""Matches UTF-16 code units that stand for characters, some of which XML cannot hold (ECMA-376, part 1, 22.9.2.19)."""

_Row = tuple[str | None, ...]


class Xlsx(Format):
    """Excel workbooks. All values become text, much as Excel saves them in a CSV: 5, 0.1, TRUE, 2024-01-31, and
    26:30:00 for a duration. A formula becomes its result.
    """

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
    """Return a context with the sheets of a workbook. Raises SourceError if they cannot be read, and UsageError if
    openpyxl is not installed.
    """
    with open_at(file) as stream:
        try:
            _refuse_unreadable(stream)
            sheets = _workbook(stream).worksheets
            if not sheets:
                raise ValueError("it has no sheet of cells")
            for sheet in sheets:
                sheet.reset_dimensions()
            yield sheets
        except ImportError as error:
            needs = f"an Excel file needs openpyxl: {install('xlsx')}, or save the sheet as .csv"
            raise UsageError(f"{file.path}: {needs}") from error
        except (SourceError, UsageError):
            raise
        except Exception as error:  # openpyxl raises nearly any error if a workbook is not as it expects
            raise SourceError(f"{file.path}: not a readable Excel file ({error})") from error


def _workbook(stream: BinaryIO) -> Any:
    """Return the workbook, which is read row by row, with its texts as they are stored."""
    from openpyxl.cell.text import Text
    from openpyxl.reader.excel import ExcelReader
    from openpyxl.xml.constants import SHARED_STRINGS, SHEET_MAIN_NS
    from openpyxl.xml.functions import iterparse

    class Reader(ExcelReader):  # type: ignore[misc]
        def read_strings(self) -> None:
            if (part := self.package.find(SHARED_STRINGS)) is not None:
                with self.archive.open(part.PartName[1:]) as source:
                    for _, node in iterparse(source):
                        if node.tag == f"{{{SHEET_MAIN_NS}}}si":
                            self.shared_strings.append(Text.from_tree(node).content)
                            node.clear()

    reader = Reader(stream, read_only=True, data_only=True, keep_links=False)
    reader.read()
    return reader.wb


def _refuse_unreadable(stream: BinaryIO) -> None:
    """Raise ValueError if openpyxl would read more in one go than it should, or would leave out rows
    without an error.
    """
    texts = 0
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():
            if member.filename.startswith("xl/worksheets/") and member.filename.endswith(".xml"):
                with archive.open(member) as sheet:
                    _refuse_sheet(sheet)
            elif member.filename.endswith((".xml", ".rels")):
                texts += member.file_size
    if texts > _MOST_TEXTS:
        raise ValueError(f"its texts take more than {_MOST_TEXTS >> 20} MiB; save it as .csv")
    stream.seek(0)


def _refuse_sheet(sheet: IO[bytes]) -> None:
    """Raise ValueError for a sheet with a row that is too large, or with rows that are not in order."""
    tag, last = b"", 0
    while block := sheet.read(_MOST_ROW):
        if _STRICT in block[:_MOST_TAG]:
            raise ValueError('it is a "Strict Open XML" workbook: save it as "Excel Workbook (.xlsx)", or as .csv')
        if len(block) == _MOST_ROW and not _ROW.search(block):
            raise ValueError(f"a row takes more than {_MOST_ROW >> 20} MiB; save it as .csv")
        block = tag + block
        open_tag = block[block.rfind(b"<") :]
        is_cut_off = b">" not in open_tag and len(open_tag) < _MOST_TAG
        tag = open_tag if is_cut_off else b""  # the tag continues in the next block
        whole = block[: len(block) - len(tag)]
        for number in map(int, _ROW_NUMBER.findall(whole)):
            if number <= last:
                raise ValueError(f"its row {number:,} comes after row {last:,}: open it and save it again, or as .csv")
            last = number


def _rows(sheet: Any) -> Iterator[_Row]:
    """Yield the rows up to the last that is not empty, as text. An empty row has no values."""
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
    """Return the names of the columns from the first row that is not empty. The name of a column without one is made of
    its number.
    """
    first = next(filter(None, rows), None)
    if first is None:
        raise ValueError("its first sheet is empty")
    last = max(i for i, name in enumerate(first) if name is not None)
    return tuple(f"column {i + 1}" if name is None else name for i, name in enumerate(first[: last + 1]))


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        return str(int(value))
    if isinstance(value, datetime):
        return _without_zeros(value.isoformat(" ")).removesuffix(" 00:00:00")
    if isinstance(value, time):
        return _without_zeros(value.isoformat())
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, str):
        value = _ESCAPES.sub(_unescaped, value)
    return None if value is None or value == "" else str(value)


def _unescaped(escapes: re.Match[str]) -> str:
    """Return the characters for which a run of escapes stands. Halves of a surrogate pair become U+FFFD."""
    units = "".join(escape[2:6] for escape in re.findall("_x....", escapes[0]))
    return bytes.fromhex(units).decode("utf-16-be", "replace")


def _duration(value: timedelta) -> str:
    """Return hours, minutes and seconds in Excel's format [h]:mm:ss, in which hours do not become days."""
    seconds, rest = divmod(abs(value), timedelta(seconds=1))
    hours, minutes = divmod(seconds // 60, 60)
    clock = _without_zeros(f"{hours}:{minutes:02}:{seconds % 60:02}.{rest.microseconds:06}")
    return f"-{clock}" if value < timedelta(0) else clock


def _without_zeros(clock: str) -> str:
    """Return a time without zeros at the end of the fraction of its seconds."""
    return clock.rstrip("0").rstrip(".") if "." in clock else clock
