"""Reads files in both ways: with the host's reader, and in blocks in which the device finds the records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from os import fspath
from pathlib import Path
from typing import Any

from benchmarks.fuzz_records.comparing import Difference, Item, difference
from benchmarks.fuzz_records.trials import Look
from benchmarks.record import ROOT
from broadsheet.pipeline.ingest.blocks import BlockReader, BlockRows, can_read
from broadsheet.pipeline.ingest.reading import read_range as read_by_device
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.source.plan.plan import Plan, Range, RangeEnd, Start, plan_files
from broadsheet.pipeline.source.read.read import read_range as read_by_host
from broadsheet.pipeline.source.read.readers import Readers
from broadsheet.pipeline.source.read.ring import RawBlock
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection
from broadsheet.pipeline.source.rows.format import Format

_SYMBOLS, _READS = 70, 1014


@dataclass
class Counts:
    """How much was read, and by whom.

    Attributes
    ----------
    ranges : int
        Ranges that were read in both ways.
    records : int
        Records in these ranges.
    by_device : int
        Records that the device found, and whose values it read.
    alone : int
        Single records that the device found, but left to the host.
    refused : int
        Records of blocks that the device left to the host, and those after them in their ranges.
    other : int
        Records outside blocks: those longer than a block and all after them, those at the end of a range, and those of
        files that only the host reads.
    blocks, refused_blocks : int
        All blocks, and those that the device left to the host.
    bytes : int
        Bytes of the blocks.
    quarantined : int
        Records in the quarantine.
    failed : int
        Ranges that the host could not read to the end.

    """

    ranges: int = 0
    records: int = 0
    by_device: int = 0
    alone: int = 0
    refused: int = 0
    other: int = 0
    blocks: int = 0
    refused_blocks: int = 0
    bytes: int = 0
    quarantined: int = 0
    failed: int = 0


@dataclass
class Blocks:
    """How much the device has read of a range.

    Attributes
    ----------
    rows : int
        Records of the blocks that it read.
    alone, blocks, refused_blocks, bytes : int
        As in `Counts`.

    """

    rows: int = 0
    alone: int = 0
    blocks: int = 0
    refused_blocks: int = 0
    bytes: int = 0


@cache
def _device_reader(device: str) -> type:
    """Return the class that reads the blocks of a file, with the kernels on a GPU or compiled for the CPU."""
    if device == "cpu":
        sys.path[:0] = [fspath(ROOT / "tests" / "kernels" / "on_cpu"), fspath(ROOT / "tests" / "helpers")]
        from record_blocks_on_cpu import RecordBlocksOnCpu as RecordBlocks
    else:
        from broadsheet.pipeline.ingest.record_blocks import RecordBlocks

    class CountingBlocks(RecordBlocks):  # type: ignore[misc, valid-type]
        """`RecordBlocks`, which also counts what it reads."""

        def __init__(self, counts: Blocks, *given: Any) -> None:
            super().__init__(*given)
            self._counts = counts

        def read(self, block: RawBlock, held: memoryview, row: int) -> BlockRows | str:
            rows: BlockRows | str = super().read(block, held, row)
            self._counts.blocks += 1
            self._counts.bytes += block.size
            if isinstance(rows, str):
                self._counts.refused_blocks += 1
            else:
                self._counts.rows += rows.chunk.rows_read
                self._counts.alone += rows.odd
            return rows

    return CountingBlocks


class BothWays:
    """Reads files in both ways, in one process.

    Parameters
    ----------
    device : str
        "cuda", or "cpu" for the kernels compiled for the CPU.

    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._reader = _device_reader(device)
        self._readers: dict[int, tuple[Readers, Callable[[int], None]]] = {}

    def read(self, paths: Sequence[Path], look: Look, counts: Counts) -> Iterator[tuple[Range, Difference]]:
        """Read files in both ways, and yield the first difference of each range that has one.

        Raises UsageError if the files cannot be read at all.

        Parameters
        ----------
        paths : sequence of Path
            The files. Several files are read as one range.
        look : Look
            How to read them.
        counts : Counts
            The counts, to which the method adds.

        """
        # Plan the ranges.
        files = find_files([fspath(path) for path in paths], _SYMBOLS, _READS).found
        plan = plan_files(files, look.selection, look.chunk_rows)
        if not all(can_read(file.format, plan.selection) for file in plan.files):
            return
        # Read each in both ways, and compare.
        start: Start | None = None
        for range_ in _ranges(plan, look):
            known = replace(range_, start=start) if range_.part_number and not look.is_guessed else range_
            by_host = [*_items(read_by_host(known, plan.selection, look.chunk_rows, _never))]
            blocks = Blocks()
            by_device = [*_items(self.by_device(known, plan.selection, look, blocks))]
            _note(counts, by_host, blocks)
            if found := difference(by_host, by_device):
                yield known, found
            start = _start_after(by_host, start)

    def by_device(self, range_: Range, selection: Selection, look: Look, blocks: Blocks) -> Generator[Any, None, None]:
        """Read a range in blocks, and yield what `read_range` yields. blocks: the counts, to which the method adds."""
        readers, lock = self._readers_of(look.slot_bytes)

        def opened(form: Format, path: str, selection: Selection) -> BlockReader:
            reader: BlockReader = self._reader(blocks, lock, form, path, selection)
            return reader

        return read_by_device(readers, opened, range_, selection, look.chunk_rows, _never, [])

    def _readers_of(self, slot_bytes: int) -> tuple[Readers, Callable[[int], None]]:
        """Return a reader process with blocks of this size, and the function that page-locks a block."""
        if slot_bytes not in self._readers:
            readers = Readers(1, 1, slot_bytes)
            self._readers[slot_bytes] = readers, self._lock_of(readers)
        return self._readers[slot_bytes]

    def _lock_of(self, readers: Readers) -> Callable[[int], None]:
        if self._device == "cpu":
            return lambda slot: None
        from broadsheet.pipeline.ingest.page_lock import PageLocks

        return PageLocks(readers.ring).lock

    def close(self) -> None:
        """End the processes that read."""
        for readers, _ in self._readers.values():
            readers.close()


def _never(_: str) -> bool:
    return False


def _ranges(plan: Plan, look: Look) -> list[Range]:
    """Return the ranges to read: those of the plan, or equal shares of a file if the look has a number of bytes."""
    files = plan.files
    if len(files) > 1:
        return [Range(0, files, plan.first)]
    if look.range_bytes is None:
        return [*plan.ranges]
    if not files[0].can_be_cut:
        return []
    parts = -(-files[0].stored // look.range_bytes)
    first = 0 if not look.is_guessed else max(0, parts // 2 - look.most_ranges)
    numbers = range(first, min(parts, first + look.most_ranges))
    return [Range(number, files, plan.first, None, number, parts) for number in numbers]


def _items(read: Generator[Item, None, None]) -> Iterator[Item]:
    """Yield all that a reader returns, and in the end the error, if it raises one."""
    try:
        yield from read
    except Exception as error:  # both ways must raise the same
        yield error


def _start_after(items: list[Item], start: Start | None) -> Start | None:
    """Return where the next range of the file starts, or None if that is unknown."""
    end = items[-1]
    if not isinstance(end, RangeEnd) or end.after is None:
        return None
    return Start((start.row if start else 0) + sum(rows or 0 for _, rows in end.files), end.after)


def _note(counts: Counts, by_host: list[Item], blocks: Blocks) -> None:
    """Add the counts of a range."""
    chunks = [item for item in by_host if isinstance(item, Chunk)]
    records = sum(chunk.rows_read for chunk in chunks)
    others = max(0, records - blocks.rows)
    counts.ranges += 1
    counts.records += records
    counts.by_device += blocks.rows - blocks.alone
    counts.alone += blocks.alone
    counts.refused += others if blocks.refused_blocks else 0
    counts.other += 0 if blocks.refused_blocks else others
    counts.blocks += blocks.blocks
    counts.refused_blocks += blocks.refused_blocks
    counts.bytes += blocks.bytes
    counts.quarantined += sum(len(chunk.quarantine) for chunk in chunks)
    counts.failed += isinstance(by_host[-1], Exception)
