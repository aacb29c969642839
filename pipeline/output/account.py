"""Whether the entries of a job account for every row that was planned, or that was counted as it was read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.output.record import ClosingEntry, Entry, InputIdentity, SavedPlan, SavedStream
from pipeline.source.plan import part_name


@dataclass(frozen=True)
class Committed:
    """What the entries of a job say. chunks: by name. closed: the closing entries by the file's number."""

    chunks: Mapping[str, Entry]
    closed: Mapping[int, ClosingEntry]


@dataclass(frozen=True)
class Gap:
    """Rows that the entries do not account for once. chunk: whose entry is missing or wrong; None for another cause."""

    message: str
    chunk: str | None = None


def counted_files(plan: SavedPlan | None) -> list[int]:
    """The numbers of the files that are counted as they are read. plan: None for rows in memory, which are one such
    file.
    """
    return [unit.file for unit in plan.units if isinstance(unit, SavedStream)] if plan else [0]


def gaps(committed: Committed, plan: SavedPlan | None, inputs: Sequence[InputIdentity]) -> Iterator[Gap]:
    """Everything in which the entries are not those of the plan's chunks and of every file that was counted as it was
    read. plan: None for rows in memory.
    """
    left = dict(committed.chunks)
    for unit in plan.units if plan else ():
        if isinstance(unit, SavedStream):
            continue
        expected = tuple((inputs[f.file].path, f.first_row, f.rows) for f in unit.fragments)
        entry = left.pop(unit.name, None)
        if entry is None:
            where = f" (rows of {expected[0][0]} from {expected[0][1]:,} on)" if expected else ""
            yield Gap(f"the chunk {unit.name}{where} has no entry", unit.name)
        elif entry.sources != expected:
            yield Gap(f"the entry of {unit.name} has other rows than the plan", unit.name)
    by_file: dict[int, dict[str, Entry]] = defaultdict(dict)
    for name, entry in left.items():
        by_file[int(name.split("-")[1])][name] = entry
    for number in counted_files(plan):
        yield from _counted(inputs[number].path, number, committed.closed.get(number), by_file.pop(number, {}))
    for entries in by_file.values():
        yield from (Gap(f"{name} is no chunk of this job", name) for name in entries)
    for number in committed.closed.keys() - set(counted_files(plan)):
        yield Gap(f"there is a closing entry of file {number}, which is no such file of this job")


def _counted(path: str, number: int, closing: ClosingEntry | None, entries: dict[str, Entry]) -> Iterator[Gap]:
    """The chunks of a file are numbered from 0, and each begins where the one before it ends."""
    if closing is None or closing.path != path:
        yield Gap(f"{path} has no closing entry, which says how many chunks it has")
        return
    row = 0
    for chunk in range(closing.chunks):
        name = part_name(number, chunk)
        entry = entries.pop(name, None)
        if entry is None:
            yield Gap(f"the chunk {name} of {path} has no entry", name)
            return  # where the next one should begin is not known
        if closing.rows is not None and entry.sources != ((path, row, entry.rows_read),):
            yield Gap(f"the entry of {name} does not begin at row {row:,} of {path}", name)
        row += entry.rows_read
    for name in entries:
        yield Gap(f"{name} comes after the {closing.chunks:,} chunks of {path}", name)
    if closing.rows is not None and row != closing.rows:
        yield Gap(f"{path} has {closing.rows:,} rows, its entries have {row:,}")
