"""Whether the entries of a job account for every row that was planned, or that was counted as it was read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import OutputError
from pipeline.output.record import ClosingEntry, Entry, InputIdentity, SavedPlan, SavedStream
from pipeline.source.plan import part_name

_RESUME = "continue with --resume"


@dataclass(frozen=True)
class Committed:
    """What the entries of a job say. chunks: by name. closed: the closing entries by the file's number."""

    chunks: Mapping[str, Entry]
    closed: Mapping[int, ClosingEntry]


def check_account(committed: Committed, plan: SavedPlan | None, inputs: Sequence[InputIdentity]) -> None:
    """Raise OutputError unless the entries are those of the plan's chunks and of every file that was counted as it was
    read. plan: None for rows in memory, which are one such file.
    """
    left = dict(committed.chunks)
    for unit in plan.units if plan else ():
        if isinstance(unit, SavedStream):
            continue
        expected = tuple((inputs[f.file].path, f.first_row, f.rows) for f in unit.fragments)
        entry = left.pop(unit.name, None)
        if entry is None:
            where = f" (rows of {expected[0][0]} from {expected[0][1]:,} on)" if expected else ""
            raise OutputError(f"the chunk {unit.name}{where} has no entry: {_RESUME}")
        if entry.sources != expected:
            raise OutputError(f"the entry of {unit.name} has other rows than the plan: remove it, then {_RESUME}")
    counted = [unit.file for unit in plan.units if isinstance(unit, SavedStream)] if plan else [0]
    by_file: dict[int, dict[str, Entry]] = defaultdict(dict)
    for name, entry in left.items():
        by_file[int(name.split("-")[1])][name] = entry
    for number in counted:
        _check_counted(inputs[number].path, number, committed.closed.get(number), by_file.pop(number, {}))
    strange = [name for entries in by_file.values() for name in entries]
    strange += [f"the closing entry of file {number}" for number in committed.closed.keys() - set(counted)]
    if strange:
        raise OutputError(
            f"{strange[0]} is no chunk or file of this job: remove what _entries has of it, then {_RESUME}"
        )


def _check_counted(path: str, number: int, closing: ClosingEntry | None, entries: dict[str, Entry]) -> None:
    """The chunks of a file are numbered from 0, and each begins where the one before it ends."""
    if closing is None or closing.path != path:
        raise OutputError(f"{path} has no closing entry, which says how many chunks it has: {_RESUME}")
    row = 0
    for chunk in range(closing.chunks):
        name = part_name(number, chunk)
        entry = entries.pop(name, None)
        if entry is None:
            raise OutputError(f"the chunk {name} of {path} has no entry: {_RESUME}")
        if closing.rows is not None and entry.sources != ((path, row, entry.rows_read),):
            raise OutputError(f"the entry of {name} does not begin at row {row:,} of {path}: remove it, then {_RESUME}")
        row += entry.rows_read
    if entries:
        more = f"{min(entries)} comes after the {closing.chunks:,} chunks of {path}"
        raise OutputError(f"{more}: remove what _entries has of it, then {_RESUME}")
    if closing.rows is not None and row != closing.rows:
        raise OutputError(f"{path} has {closing.rows:,} rows, its entries have {row:,}: {_RESUME}")
