"""The first rows of an input, where the user has set a limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.source.chunk import Chunk, Selection
from pipeline.source.formats.base import FilePlan, Fragment, InputFile, Scan, Stream
from pipeline.source.records import Records, Splitter


def first_chunks(chunks: Iterable[Chunk], rows: int | None) -> Iterator[Chunk]:
    """The chunks of one file or table up to its first `rows` rows, quarantined ones included; None: all.

    What comes after them is not read.
    """
    left = rows
    for chunk in chunks:
        if left is None or chunk.rows_read <= left:
            yield chunk
        else:
            yield _before(chunk, rows or 0)
        left = None if left is None else left - chunk.rows_read
        if left is not None and left <= 0:
            return


def first_of_file(plan: FilePlan, stream: Stream, rows: int, selection: Selection, chunk_rows: int) -> FilePlan:
    """The plan for the first `rows` rows of a file. stream: how it is read front to back, where it must be.

    A file that is read front to back is read up to there, so that the rows of those after it are known.
    """
    if plan.streamed:
        read = first_chunks(stream.file.format.stream(stream, selection, chunk_rows), rows)
        return replace(plan, rows=sum(chunk.rows_read for chunk in read))
    fragments: list[Fragment] = []
    for fragment in plan.fragments:
        if fragment.rows > rows and fragment.file.front_to_back:
            return replace(plan, fragments=(), streamed=True, rows=rows)
        if rows:
            fragments.append(fragment if fragment.rows <= rows else fragment.file.format.shorten(fragment, rows))
        rows -= min(rows, fragment.rows)
    return replace(plan, fragments=fragments)


def scan_first(scan: Scan, rows: int) -> Scan:
    """A scan that ends after more than `rows` records: so that it is known where the one after them begins."""

    def first(file: InputFile, start: int, split: Splitter) -> Iterator[Records]:
        count = 0
        for records in scan(file, start, split):
            yield records
            count += len(records)
            if count > rows:
                return

    return first


def _before(chunk: Chunk, row: int) -> Chunk:
    """The rows of a chunk of one file that have a number below `row`."""
    mask = pc.less(chunk.rows.column("row"), row).combine_chunks()
    keep, bad = mask.to_numpy(zero_copy_only=False), pc.less(chunk.quarantine.column("row"), pa.scalar(row))
    return replace(
        chunk,
        text=chunk.text.filter(mask),
        rows=chunk.rows.filter(mask),
        quarantine=chunk.quarantine.filter(bad),
        ids=None if chunk.ids is None else chunk.ids[keep],
        truth=None if chunk.truth is None else chunk.truth[keep],
        n_chars=None if chunk.n_chars is None else chunk.n_chars[keep],
        bad=None if chunk.bad is None else chunk.bad.filter(bad),
    )
