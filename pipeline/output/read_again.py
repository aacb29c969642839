"""Reads the input files of a finished job again, with all of their columns. A file that has changed is an error."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET
from numpy.typing import NDArray

from ..errors import SourceError, UsageError
from ..source.formats.onehot import OneHot
from ..source.plan.files import find_again
from ..source.plan.plan import Plan, Range, plan_files
from ..source.read.read import read_range
from ..source.rows.chunk import Chunk, Selection
from ..source.rows.format import InputFile
from .layout import range_of
from .record import Entry, SavedPlan, Settings
from .saved_plan import listed, parts_of_saved

MOST_ROWS = 1 << 44
"""The limit of rows in one file."""

SomeRows: TypeAlias = tuple[Entry, pa.Table]
"""The entry of a chunk, and some of the rows of the chunk."""


def unchanged_input(
    plan: SavedPlan, settings: Settings, root: str | os.PathLike[str] | None, endpoint: str | None
) -> list[InputFile]:
    """Return the files of a plan as they are found now. Raises SourceError if a file is missing or has changed."""
    names, whole = [file.path for file in plan.files], settings.hash == "full"
    files = find_again(names, root, whole, endpoint, settings.input_format or None)
    if files.problems:
        raise SourceError(files.problems[0][1])
    now = {file.path: file for file in listed(files.found)}
    for before in plan.files:
        if before.path not in now:
            raise SourceError(f"{before.path} is not there any more")
        after = msgspec.structs.asdict(now[before.path])
        for name, was in msgspec.structs.asdict(before).items():
            if was != after[name]:
                what = {"modified": "time of modification", "digest": "hash"}.get(name, name)
                changed = f"its {what} was {was}, now {after[name]}"
                raise SourceError(f"{before.path} has changed since it was labelled: {changed}")
    return list(files.found)


def selection_of(plan: SavedPlan, settings: Settings) -> Selection:
    """Return the selection that the options of a job gave."""
    return Selection(
        settings.text_columns,
        plan.selection.kept_columns,
        settings.truth_column,
        settings.columns,
        plan.selection.classes,
        keep_all=settings.keep_all,
        encoding=settings.encoding,
        delimiter=settings.delimiter,
        quote=settings.quote or None,
        escape=settings.escape or None,
        join="" if settings.join is UNSET else settings.join,
    )


def input_again(
    plan: SavedPlan | None, settings: Settings, root: str | os.PathLike[str] | None, endpoint: str | None
) -> Plan:
    """Return the plan of a job over its files, but with all of their columns.

    Raises SourceError if a file has changed, and UsageError if there are no files with columns to read again.
    """
    if plan is None:
        raise UsageError("the rows of this job were in memory: there is no input to read again")
    files = unchanged_input(plan, settings, root, endpoint)
    if any(isinstance(file.format, OneHot) for file in files):
        raise UsageError("encoded articles have no columns to read again")
    prefixes, windows = tuple(names.prefix for names in settings.labelled), settings.windows is not UNSET
    every = replace(selection_of(plan, settings), kept_columns=(), keep_all=True, prefixes=prefixes, windows=windows)
    again = plan_files(files, every, plan.chunk_rows, settings.limit)
    return replace(again, sizes=plan.groups, parts=parts_of_saved(plan), first_range=plan.first_group)


def with_input(chosen: Iterable[SomeRows], plan: Plan) -> Iterator[SomeRows]:
    """Yield the chosen rows with the columns of the input, which is read in step with them.

    Raises SourceError if a row is no longer in the input.
    """
    whole = {
        range_.number: replace(range_, part_number=0, parts=1) for range_ in plan.ranges
    }  # reads a file of several ranges once
    schema, range_ = plan.selection.row_schema, None
    for entry, rows in chosen:
        # Start to read the files of the chunk, unless they are being read already.
        following = whole[range_of(entry.chunk)]
        if range_ is None or range_.files is not following.files:
            range_, here, there = following, schema.empty_table(), np.empty(0, np.int64)
            chunks = _chunks(range_, plan)
        # Take the wanted rows from the rows read last (`here`, numbered by `there`), and read on until all are found.
        pieces, wanted = [here.slice(0, 0)], order_of(rows, [file.path for file in range_.files])
        while len(wanted):
            count = np.searchsorted(wanted, there[-1], "right") if len(there) else 0
            places = np.searchsorted(there, wanted[:count])
            lost = [*np.flatnonzero(there[places] != wanted[:count]), count]
            more = next(chunks, None) if count < len(wanted) else here
            if more is None or len(lost) > 1:
                row = rows.select(["file", "row"]).slice(len(rows) - len(wanted) + lost[0], 1).to_pylist()[0]
                raise SourceError(f"{row['file']} has no row {row['row']:,} that can be read any more")
            pieces.append(here.take(places))
            wanted = wanted[count:]
            if more is not here:
                here, there = more, order_of(more, [file.path for file in range_.files])
        # Add the columns of the job.
        added = pa.concat_tables(pieces)
        for name in rows.column_names:
            if name not in added.column_names:
                added = added.append_column(rows.schema.field(name), rows.column(name))
        yield entry, added


def _chunks(range_: Range, plan: Plan) -> Iterator[pa.Table]:
    with closing(read_range(range_, plan.selection, plan.chunk_rows, lambda _: False)) as chunks:
        for chunk in chunks:
            if isinstance(chunk, Chunk):
                yield pa.table(chunk.rows.columns, plan.selection.row_schema)


def order_of(rows: pa.Table, paths: Sequence[str]) -> NDArray[np.int64]:
    """Return a number for each row, [N], that orders the rows by file, as in `paths`, and row."""
    files = pc.index_in(rows.column("file"), pa.array(paths, pa.string()))
    return np.asarray(files.to_numpy() * np.int64(MOST_ROWS) + rows.column("row").to_numpy())
