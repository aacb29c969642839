"""Reads texts that are piped into the command: records of one format, read once, from front to back, as they arrive."""

from __future__ import annotations

import csv
import io
import json
import re
import select
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from io import RawIOBase
from itertools import islice
from typing import BinaryIO, cast

import numpy as np

from ...errors import UsageError
from ..formats.csv import Csv, Tsv
from ..formats.jsonl import Jsonl
from ..formats.record_format import DELIMITERS, Head, Piped, RecordFormat, Text
from ..formats.records import BOM, read_records
from ..formats.wet import Wet
from ..plan.examine import refuse_twice, resolve
from ..plan.files import Identity
from ..rows.chunk import Chunk, Selection, concat
from ..rows.compression import HEAD_BYTES, UTF8, Transcoded, compression_of
from ..rows.cutting import Cutting, gathered

STDIN = "stdin"
"""The value of the column `file` for rows from standard input."""

KINDS: dict[str, RecordFormat] = {"text": Text(), "csv": Csv(), "tsv": Tsv(), "jsonl": Jsonl(), "wet": Wet()}
"""The formats that may be piped in, by the names that the user gives them."""

_OTHERS = {b"PK\x03\x04": "zip", b"PAR1": "Parquet"}
_BLOCK = 1 << 20

_LOOKED_AT = 20
"""How many records after the first line show whether it names columns."""

_NAME = re.compile(r"[^\W\d](?:[\w .:/()-]{0,38}[\w)])?")
"""Matches what may be the name of a column: up to 40 characters that are neither a sentence nor a number."""


class Stdin:
    """A stream of records.

    Parameters
    ----------
    stream : RawIOBase
        The stream, which must be unbuffered, so that a read returns the bytes that have arrived.
    kind : str, optional
        One of `KINDS`. By default the stream is text, and is refused if it looks like another of these formats.

    """

    def __init__(self, stream: RawIOBase, kind: str | None = None) -> None:
        if kind not in (None, *KINDS):
            raise UsageError(f"--stdin-format {kind}: choose one of {', '.join(KINDS)}")
        self._arriving: _Arriving | Transcoded = _Arriving(stream)
        self._is_said = kind is not None
        self._format = KINDS[kind or "text"]
        self._pending = b""
        self._start = 0

    @property
    def identity(self) -> Identity:
        """The identity of the stream. It cannot be read twice, so nothing identifies its content."""
        return [{"path": STDIN, "digest": ""}]

    def open(self, selection: Selection) -> Selection:
        """Wait for the first record, which has the columns. Return the selection with these resolved.

        Raises UsageError if they are not the columns of the job, or if the stream plainly holds something else.
        """
        if isinstance(self._format, Text) and (set(selection.columns) - {"text"} or selection.header):
            name = next(iter(set(selection.columns) - {"text"}), None)
            what = f"no column {name!r}" if name else "no columns to name"
            raise UsageError(
                f"stdin is read as text, an article a line, and has {what}: say --stdin-format csv, tsv or jsonl"
            )
        if selection.encoding != UTF8:
            self._arriving = Transcoded(cast(BinaryIO, self._arriving), selection.encoding)
        form = self._format.for_options(replace(selection, encoding=UTF8))
        head, final = b"", False
        while not final and len(head) < _BLOCK and not len(form.split(head.removeprefix(BOM), False).starts):
            block = self._arriving.read(_BLOCK)
            head, final = head + block, not block
        if not head.removeprefix(BOM):  # there are no rows, so their columns do not matter
            return selection
        self._refuse_others(head)
        start = len(BOM) if head.startswith(BOM) else 0
        file = Piped(STDIN, form, None, len(head), "", STDIN, first=Head(head[start:], start, final))
        schema = form.schema(file, selection)
        refuse_twice(STDIN, schema, selection)
        selection = resolve(file, schema, selection)
        self._format = form.for_schema(schema)
        self._pending, self._start = head[schema.start :], schema.start
        return selection

    def arriving(self, selection: Selection, max_rows: int) -> Iterator[Chunk]:
        """Yield what has arrived, in chunks of up to `max_rows` rows. A record is yielded as soon as it is complete."""
        return (chunk for chunk, _, _ in self._pieces(selection, max_rows))

    def chunks(self, selection: Selection, chunk_rows: int) -> Iterator[Chunk]:
        """Yield chunks of `chunk_rows` rows, or fewer if the texts are long. They do not depend on how
        the rows arrive.
        """
        return map(concat, gathered(self._pieces(selection, chunk_rows), chunk_rows))

    def _pieces(self, selection: Selection, chunk_rows: int) -> Iterator[tuple[Chunk, int, bool]]:
        """Yield what has arrived in pieces, with their rows, and whether each begins a new chunk."""
        row, limits, split = 0, self._format.limits, self._format.quick_split
        blocks = read_records(cast(BinaryIO, self), split, self._start, limits=limits, as_they_arrive=True)
        cutting = Cutting(chunk_rows, limits.chunk_bytes)
        for records in blocks:
            for first, last, new in cutting.cut(np.minimum(records.sizes, selection.most_held)):
                chunk = self._format.parse(records.slice(first, last), STDIN, row, selection)
                yield chunk, chunk.rows_read, new
                row += last - first

    def read(self, size: int) -> bytes:
        """Return up to `size` of the bytes that have arrived, or none at the end."""
        if self._pending:
            data, self._pending = self._pending[:size], self._pending[size:]
            return data
        return self._arriving.read(size)

    def _refuse_others(self, head: bytes) -> None:
        names = [name for magic, name in _OTHERS.items() if head.startswith(magic)]
        if compression := compression_of(head[:HEAD_BYTES]):
            names.append(compression.name)
        if names:
            raise UsageError(f"stdin holds {names[0]}, not lines of text: unpack it before the pipe, or give the file")
        if not self._is_said and (flags := _looks_like(head.removeprefix(BOM))):
            raise UsageError(
                f"stdin looks like {flags.partition(' ')[0].upper()}: say --stdin-format {flags} (or --stdin-format "
                "text, to label lines as they are)"
            )


class _Arriving:
    """A stream whose reads return the bytes that have arrived. A read waits only if there are none."""

    def __init__(self, stream: RawIOBase) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        while (block := self._stream.read(size)) is None:  # another program has made the stream non-blocking
            select.select([self._stream], [], [])
        return block


def _looks_like(head: bytes) -> str | None:
    """Return the flags that a user needs for data with this beginning, if it is plainly more than lines of text."""
    if head.startswith(Wet.magic):
        return "wet"
    if _is_object(head.partition(b"\n")[0]):
        return "jsonl"
    flags = {",": "csv", "\t": "tsv"}
    marks = (mark for mark in DELIMITERS if _has_header(head, mark))
    return next((flags.get(mark, f"csv --delimiter '{mark}'") for mark in marks), None)


def _has_header(head: bytes, delimiter: str) -> bool:
    """Whether the first line names columns. This is so if one is called "text", or if no name could be a sentence or a
    number and the records that have arrived have as many fields.
    """
    lines = io.StringIO(head.decode("latin-1"), newline="")
    with suppress(csv.Error):
        names, *records = islice(csv.reader(lines, delimiter=delimiter), 1 + _LOOKED_AT)
        if len(names) < 2 or len({*names}) < len(names):
            return False
        whole = records[:-1] or records  # the last record may not have arrived to its end
        are_names = all(map(_NAME.fullmatch, names)) and {*map(len, whole)} == {len(names)}
        return are_names or "text" in map(str.lower, names)
    return False


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
