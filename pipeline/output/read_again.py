"""The input files of a finished job, read again: as they were then, or not at all; and with all of their columns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET
from numpy.typing import NDArray

from ..errors import SourceError, UsageError
from ..source.chunk import Selection
from ..source.find.files import find_again
from ..source.formats.base import InputFile
from ..source.formats.onehot import OneHot
from ..source.plan.plan import Group, GroupChunk, Plan, plan_files
from ..source.read.read import read_group
from .record import Entry, ListedFile, SavedPlan, Settings
from .saved_plan import listed


def unchanged_input(
    plan: SavedPlan, settings: Settings, root: str | os.PathLike[str] | None, endpoint: str | None
) -> list[InputFile]:
    """The files of a plan as they are found now. Raises SourceError where one has changed since."""
    found = find_again([file.path for file in plan.files], root, settings.hash == "full", endpoint)
    if found.problems:
        raise SourceError(found.problems[0][1])
    now = {file.path: file for file in listed(found.found)}
    for before in plan.files:
        _refuse_difference(before, now.get(before.path))
    return list(found.found)


def _refuse_difference(before: ListedFile, file: ListedFile | None) -> None:
    """Raise SourceError where the file is another now."""
    if file is None:
        raise SourceError(f"{before.path} is not there any more")
    for what, was, now in (
        ("size", before.size, file.size),
        ("time of modification", before.modified, file.modified),
        ("hash", before.digest, file.digest),
    ):
        if was != now:
            raise SourceError(f"{before.path} has changed since it was labelled: its {what} was {was}, now {now}")


def selection_of(plan: SavedPlan, settings: Settings) -> Selection:
    """As the job's options had it."""
    return Selection(
        settings.text_columns,
        plan.selection.kept,
        settings.truth_column,
        settings.columns,
        plan.selection.classes,
        keep_all=settings.keep_all,
        encoding=settings.encoding,
        delimiter=settings.delimiter,
    )


@dataclass(frozen=True)
class InputAgain:
    """The files of a job, which are read again with all of their columns."""

    plan: Plan

    @property
    def schema(self) -> pa.Schema:
        return self.plan.selection.row_schema

    def chunks(self, group: Group) -> Iterator[pa.Table]:
        with closing(read_group(group, self.plan.selection, self.plan.chunk_rows, lambda _: False)) as found:
            for each in found:
                if isinstance(each, GroupChunk) and each.chunk is not None:
                    yield pa.table(each.chunk.rows.columns, self.schema)


def input_again(
    plan: SavedPlan | None, settings: Settings, root: str | os.PathLike[str] | None, endpoint: str | None
) -> InputAgain:
    """Raises SourceError where a file has changed, UsageError where there is none."""
    if plan is None:
        raise UsageError("the rows of this job were in memory: there is no input to read again. Leave out --input")
    files = unchanged_input(plan, settings, root, endpoint)
    if any(isinstance(file.format, OneHot) for file in files):
        raise UsageError("encoded articles have no columns to read again: leave out --input")
    every = replace(
        selection_of(plan, settings),
        kept=(),
        keep_all=True,
        prefixes=tuple(names.prefix for names in settings.labelled),
        windows=settings.windows is not UNSET,
    )
    again = plan_files(files, every, plan.chunk_rows, settings.limit)
    return InputAgain(replace(again, sizes=plan.groups, first_group=plan.first_group))


def with_input(found: Iterable[tuple[Entry, pa.Table]], source: InputAgain) -> Iterator[tuple[Entry, pa.Table]]:
    """The same with the columns of the input, which is read beside it. Raises SourceError where that is not there."""
    groups = {group.number: group for group in source.plan.groups}
    number, here, chunks = -1, source.schema.empty_table(), iter(())
    for entry, rows in found:
        if number != (number := int(entry.chunk.split("-")[1])):
            here, chunks = source.schema.empty_table(), source.chunks(groups[number])
        pieces, left = [], rows
        while len(left):
            places = _places(left, here)
            pieces.append(here.take(pa.array(places[places >= 0])))
            left = left.filter(pa.array(places < 0))
            if len(left):
                following = next(chunks, None)
                if following is None:
                    row = left.select(["file", "row"]).slice(0, 1).to_pylist()[0]
                    raise SourceError(f"{row['file']} has no row {row['row']:,} that can be read any more")
                here = following
        added = pa.concat_tables([source.schema.empty_table(), *pieces])
        for name in rows.column_names:
            if name not in added.column_names:
                added = added.append_column(rows.schema.field(name), rows.column(name))
        yield entry, added


def _places(wanted: pa.Table, here: pa.Table) -> NDArray[np.int64]:
    """Where each wanted row, by file and number, is among those that are here; -1 where it is not."""
    found = np.full(len(wanted), -1, np.int64)
    for file in pc.unique(wanted.column("file")):
        asked, there = (np.flatnonzero(pc.equal(table.column("file"), file).to_numpy()) for table in (wanted, here))
        rows, numbers = here.column("row").to_numpy()[there], wanted.column("row").to_numpy()[asked]
        at = np.searchsorted(rows, numbers)
        is_here = np.append(rows, -1)[at] == numbers
        found[asked[is_here]] = there[at[is_here]]
    return found
