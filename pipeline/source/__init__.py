"""Fragments to chunks: one reader a format behind `read_unit` and `read_stream`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.source.chunk import QUARANTINE_SCHEMA, Chunk, Selection, concat
from pipeline.source.files import InputFile, open_at, open_native
from pipeline.source.formats import csv, jsonl, onehot, parquet, text
from pipeline.source.plan import CHUNK_BYTES, Fragment, Stream, Unit, splitter_of
from pipeline.source.records import Records, cut, read_records
from pipeline.telemetry.spans import Span, span

__all__ = ["Chunk", "Selection", "read_stream", "read_unit"]


def read_unit(unit: Unit, selection: Selection, symbols: int, length: int, spans: list[Span] | None = None) -> Chunk:
    """The rows of a unit, in input order. symbols, length: of the model, for one-hot input. spans: where the time of
    parsing is noted, as "decode"; the rest is reading.

    Raises SourceError where a file is not to be read any more, or is no longer what was planned.
    """
    if not unit.fragments:
        return empty_chunk(selection)
    pieces = [piece for f in unit.fragments for piece in _read_fragment(f, selection, symbols, length, spans)]
    return concat(pieces)


def empty_chunk(selection: Selection, problems: tuple[str, ...] = ()) -> Chunk:
    """A chunk of no rows, with the schemas of one that has some."""
    none = pa.array([], pa.large_binary())
    return Chunk(none, selection.row_schema.empty_table(), QUARANTINE_SCHEMA.empty_table(), problems=problems)


def _read_fragment(
    fragment: Fragment, selection: Selection, symbols: int, length: int, spans: list[Span] | None
) -> Iterator[Chunk]:
    file = fragment.file
    stop = fragment.stop if fragment.stop is not None else file.size
    if file.format == "onehot":
        yield onehot.parse(file, fragment.start, stop, symbols, length, selection)
    elif file.format == "parquet":
        yield parquet.parse(file, fragment.group, fragment.start, stop, fragment.first_row, selection)
    elif (chunk := _at_once(fragment, stop, selection, spans)) is not None:
        yield chunk
    else:
        size = None if file.compression else stop - fragment.start
        row = fragment.first_row
        for chunk, count, _ in _parse_all(file, fragment.start, size, row, fragment.rows, selection, spans):
            yield chunk
            row += count
        if row != fragment.first_row + fragment.rows:
            found = row - fragment.first_row
            raise SourceError(
                f"{file.path}: {found} records at byte {fragment.start:,}, where {fragment.rows} were planned: "
                "the file was changed while the job ran"
            )


def _at_once(fragment: Fragment, stop: int, selection: Selection, spans: list[Span] | None) -> Chunk | None:
    """A fragment that takes the parser alone; None where it takes a scan for its records too."""
    file = fragment.file
    if not fragment.regular or file.compression or file.format not in ("csv", "tsv"):
        return None
    with open_native(file) as stream:
        data = csv.read_fragment(stream, fragment.start, stop)
    with span("decode", spans, "read"):
        return None if data is None else csv.parse_at_once(data, fragment.rows, fragment.first_row, file, selection)


def read_stream(stream: Stream, selection: Selection, chunk_rows: int) -> Iterator[Chunk]:
    """The chunks of a compressed file, of up to `chunk_rows` rows and CHUNK_BYTES bytes each. What cuts the file off is
    a problem of the last chunk, not an error.
    """
    held: list[Chunk] = []
    for chunk, _, new in _parse_all(stream.file, stream.start, None, 0, chunk_rows, selection):
        if new and held:
            yield concat(held)
            held = []
        held.append(chunk)
    if held:
        yield concat(held)


def _parse_all(
    file: InputFile,
    start: int,
    size: int | None,
    row: int,
    chunk_rows: int,
    selection: Selection,
    spans: list[Span] | None = None,
) -> Iterator[tuple[Chunk, int, bool]]:
    """Chunks, how many records each covers, and whether it begins a new chunk of the plan."""
    with open_at(file, start) as source:
        try:
            for records, new in cut(read_records(source, splitter_of(file), start, size), chunk_rows, CHUNK_BYTES):
                with span("decode", spans, "read"):
                    chunk = _parse(file, records, row, selection)
                yield chunk, len(records), new
                row += len(records)
        except SourceError as error:
            if not file.compression:
                raise
            yield empty_chunk(selection, (str(error),)), 0, False


def _parse(file: InputFile, records: Records, row: int, selection: Selection) -> Chunk:
    if file.format == "jsonl":
        return jsonl.parse(records, file.path, row, selection)
    if file.format == "text":
        return text.parse(records, file.path, row, selection)
    return csv.parse(records, file.columns, file.delimiter, file.path, row, selection)
