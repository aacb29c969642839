"""Reads a range with a reader process and a GPU: the process fills blocks, and the GPU finds the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..source.formats.record_format import Parsed
from ..source.formats.records import Extent
from ..source.plan.plan import Range, RangeEnd
from ..source.read.pieces import ParsedRows, Piece
from ..source.read.read import Skipped, chunks_of
from ..source.read.readers import FileBegun, FileDone, HostRows, Readers, holding_a_process
from ..source.read.ring import Freed, RawBlock, Refused
from ..source.rows.chunk import Chunk, Selection, numbered
from ..source.rows.format import InputFile
from ..telemetry.read_by import BY_GPU, ODD, OUTSIDE_BLOCKS
from ..telemetry.spans import Span, span
from .blocks import BlockReader, BlockRows, OpenBlocks, can_read

_Result = TypeVar("_Result")

_LEAST_BYTES = 1 << 20
"""How many bytes the files of a range must have on average. Smaller files are parsed together on the host."""


def can_gpu_read(range_: Range, selection: Selection) -> bool:
    """Whether a GPU can find the records of a range, judging by the listing of its files and the columns that the job
    uses.
    """
    if not range_.files or range_.rows is not None or range_.bytes < _LEAST_BYTES * len(range_.files):
        return False
    return all(can_read(file.format, selection) for file in range_.files)


def read_range(
    readers: Readers,
    open_blocks: OpenBlocks,
    range_: Range,
    selection: Selection,
    chunk_rows: int,
    skip: Callable[[str], bool],
    spans: list[Span],
) -> Generator[Chunk | Skipped | RangeEnd, None, None]:
    """Read a range from its first row to its last. This waits for a reader process before it returns. It yields and
    raises what `broadsheet.pipeline.source.read.read.read_range` does.

    Parameters
    ----------
    readers : Readers
        The reader processes. One of them reads the files.
    open_blocks : callable
        Returns the reader that finds the records of a file.
    range_, selection, chunk_rows, skip, spans
        See `broadsheet.pipeline.source.read.read.read_range`.

    """
    return holding_a_process(_items(readers, open_blocks, range_, selection, chunk_rows, skip, spans))


def _items(
    readers: Readers,
    open_blocks: OpenBlocks,
    range_: Range,
    selection: Selection,
    chunk_rows: int,
    skip: Callable[[str], bool],
    spans: list[Span],
) -> Generator[Any, None, None]:
    """Yield None as soon as there is a reader process, then what `read_range` yields.

    Parameters
    ----------
    readers, open_blocks, range_, selection, chunk_rows, skip, spans
        See `read_range`.

    """
    read_by: Counter[str] = Counter()
    with closing(readers.read_raw(range_, selection, spans)) as messages:
        yield None
        files = _files(messages, readers, open_blocks, range_, spans, read_by)
        with closing(chunks_of(files, range_, selection, chunk_rows, skip, spans, _one_after_the_other)) as items:
            for item in items:
                yield replace(item, read_by=dict(read_by)) if isinstance(item, RangeEnd) else item


def _one_after_the_other(calls: Iterable[Callable[[], _Result]]) -> Iterator[_Result]:
    return (call() for call in calls)


def _files(
    messages: Generator[Any, Any, None],
    readers: Readers,
    open_blocks: OpenBlocks,
    range_: Range,
    spans: list[Span],
    read_by: Counter[str],
) -> Generator[_File, None, None]:
    """Yield the files of a range, in order.

    Parameters
    ----------
    messages : generator
        The messages that `Readers.read_raw` returned for the range.
    readers, open_blocks, range_, spans
        See `read_range`.
    read_by : Counter
        Counts the records, by the keys of `RangeEnd.read_by`.

    """
    for file in range_.files:
        begin_message: FileBegun = next(messages)
        blocks = open_blocks(begin_message.form, file.path, begin_message.selection)
        yield _File(file, begin_message, messages, readers, blocks, spans, read_by)
    next(messages, None)  # the end of the messages, after which the process is free for other ranges


class _File:
    """A file whose blocks arrive from a reader process (see `FileOfPieces`).

    Parameters
    ----------
    file : InputFile
        The file, as it was listed.
    begin_message : FileBegun
        What the process that reads the file has found.
    messages : generator
        The messages that `Readers.read_raw` yields next.
    readers : Readers
        The reader processes, whose ring has the blocks.
    blocks : BlockReader
        The reader that finds the records of the file.
    spans : list of Span
        A span "ingest" is appended for each block.
    read_by : Counter
        See `_files`.

    """

    def __init__(
        self,
        file: InputFile,
        begin_message: FileBegun,
        messages: Generator[Any, Any, None],
        readers: Readers,
        blocks: BlockReader,
        spans: list[Span],
        read_by: Counter[str],
    ) -> None:
        self.file = replace(file, format=begin_message.form)
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.extent: Extent | None = begin_message.extent
        self.stored = 0
        self.pieces = self._pieces(messages, begin_message.row)
        self._readers, self._blocks, self._spans, self._read_by = readers, blocks, spans, read_by

    def _pieces(self, messages: Generator[Any, Any, None], row: int) -> Iterator[Piece]:
        refusal: str | None = None
        first = row
        for message in messages:
            # The end of the file brings what the reader process has noted about it.
            if isinstance(message, FileDone):
                self.problems += message.problems
                self.notes += message.notes
                if self.extent is not None and message.extent is not None:
                    self.extent.begin, self.extent.after = message.extent.begin, message.extent.after
                if message.error is not None:
                    raise message.error
                self.notes += message.counting.notes(row - first) if message.counting else []
                return
            # Get rows from the reader process, or find them in a raw block on the GPU.
            rows: BlockRows | HostRows | None = None
            if isinstance(message, HostRows):
                rows = message
                self._read_by[refusal or OUTSIDE_BLOCKS] += rows.chunk.rows_read
            elif refusal is None:
                with span("ingest", self._spans, "ingest"):
                    found = self._rows_of(message, row)
                if isinstance(found, str):
                    refusal = found
                else:
                    rows = found
                    self._read_by.update({BY_GPU: rows.chunk.rows_read - rows.odd, ODD: rows.odd})
                messages.send(Freed() if refusal is None else Refused())
            # Number the rows and yield them.
            if rows is not None and rows.chunk.rows_read:
                self.stored = message.stored
                block = Parsed(rows.chunk, partial(np.asarray, rows.sizes), int(rows.sizes.sum()))
                chunk = numbered(rows.chunk, row) if isinstance(rows, HostRows) else rows.chunk
                yield ParsedRows(self.file, row, chunk, block)
                row += rows.chunk.rows_read

    def _rows_of(self, block: RawBlock, row: int) -> BlockRows | str:
        return self._blocks.read(block, self._readers.ring.block(block.slot, block.size), row)
