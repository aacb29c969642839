"""The plan in the output folder: saved, and loaded for a resumed job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from pipeline.errors import OutputError, SourceError, UsageError
from pipeline.output.record import (
    SavedFragment,
    SavedPlan,
    SavedSelection,
    SavedStream,
    SavedUnit,
    from_json,
    to_json,
)
from pipeline.source.chunk import Selection
from pipeline.source.formats.base import Fragment, InputFile, Schema, Seek, Stream
from pipeline.source.plan import Plan, Unit, bound, part_name, plan_files
from pipeline.source.schema import kept_types
from pipeline.threads import available_cores, threads

_HEAD_BYTES = 64 << 10
"""Of a file, that usually hold its header."""


def plan_bytes(plan: Plan) -> bytes:
    """A plan as JSON, without size, time and hash of its files, which are part of the job's fingerprint."""
    number = {id(file): i for i, file in enumerate(plan.files)}

    def saved(unit: Unit | Stream) -> SavedUnit | SavedStream:
        if isinstance(unit, Stream):
            return SavedStream(unit.number, unit.start, unit.rows)
        fragments = (
            SavedFragment(number[id(f.file)], f.start, f.stop, f.first_row, f.rows, f.group, f.regular)
            for f in unit.fragments
        )
        return SavedUnit(unit.name, tuple(fragments))

    chosen = plan.selection
    types = pa.schema(list(zip(chosen.kept, chosen.kept_types, strict=False)))
    selection = SavedSelection(
        text=chosen.text,
        kept=chosen.kept,
        kept_types=types.serialize().to_pybytes().hex(),
        truth=chosen.truth,
        header=chosen.header,
        classes=chosen.classes,
        answers=chosen.answers,
    )
    units = tuple(saved(unit) for unit in plan.units)
    return to_json(
        SavedPlan(
            columns=plan.columns,
            units=units,
            problems=plan.problems,
            selection=selection,
            chunk_rows=plan.chunk_rows,
            unread=plan.unread,
        )
    )


def plan_from(
    data: bytes,
    found: Sequence[InputFile],
    asked: Selection,
    chunk_rows: int,
    name: object,
    limit: int | None = None,
) -> Plan:
    """Load a plan over the files as found now. asked, chunk_rows, limit: what the job that is resumed was asked for.

    Raises OutputError, with `name`, where it is damaged, is not a plan of that job, or has not every row once.
    """
    saved = from_json(data, SavedPlan, name)
    found = bound(found, asked)
    try:
        pairs = zip(found, saved.columns, strict=True)
        files = [replace(file, format=file.format.for_columns(names)) for file, names in pairs]
        check_plan(saved, [file.path for file in files])
        types = tuple(pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(saved.selection.kept_types))).types)
        resolved = _selection(saved, types, asked)
        units = tuple(_unit(unit, files) for unit in saved.units)
        plan = Plan(tuple(files), saved.columns, units, saved.problems, resolved, saved.chunk_rows, saved.unread)
        if saved.chunk_rows != chunk_rows:
            raise ValueError(f"its chunks have {saved.chunk_rows} rows, those of the job {chunk_rows}")
        if limit is not None and plan.rows_known > limit:
            raise ValueError(f"it has {plan.rows_known} rows, those of the job end after {limit}")
        _check_files(saved, found, resolved, reaches_limit=plan.rows_known == limit)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise OutputError(f"{name} is damaged: {error}. Start again with --overwrite") from error
    return plan


def check_plan(saved: SavedPlan, paths: Sequence[str]) -> None:
    """Raise ValueError where a plan over these files contradicts itself: each row of a file is in one chunk, in order.

    Whether it has the rows that are in the files is for those who read them.
    """
    last = -1
    streams: set[int] = set()
    ends: dict[int, SavedFragment] = {}
    pieces: Counter[int] = Counter()
    for unit in saved.units:
        numbers = [unit.file] if isinstance(unit, SavedStream) else [f.file for f in unit.fragments]
        for number in numbers:
            if number >= len(paths):
                raise ValueError(f"there is no file {number}")
            if number < last or number in streams or (isinstance(unit, SavedStream) and number == last):
                raise ValueError(f"the chunks of {paths[number]} are not in order")
            last = number
        if isinstance(unit, SavedStream):
            streams.add(unit.file)
            continue
        first = numbers[0] if numbers else 0
        if unit.name != part_name(first, pieces[first]) or not (numbers or len(saved.units) == 1):
            raise ValueError(f"{unit.name} stands in the place of {part_name(first, pieces[first])}")
        for fragment in unit.fragments:
            if not _follows(ends.get(fragment.file), fragment):
                raise ValueError(
                    f"{unit.name} does not begin where the chunk before it ends, in {paths[fragment.file]}"
                )
            ends[fragment.file] = fragment
            pieces[fragment.file] += 1
        if sum(fragment.rows for fragment in unit.fragments) > saved.chunk_rows:
            raise ValueError(f"{unit.name} has more than {saved.chunk_rows} rows")


def _follows(before: SavedFragment | None, fragment: SavedFragment) -> bool:
    """Whether a fragment begins where the one before it in its file ends."""
    if not fragment.rows or (fragment.stop is not None and fragment.stop <= fragment.start):
        return False
    if fragment.group >= 0 and fragment.stop != fragment.start + fragment.rows:
        return False
    if before is None:
        return fragment.first_row == 0 and (fragment.group < 0 or fragment.start == 0)
    starts = {before.stop} if fragment.group == before.group else {0}
    return (
        fragment.first_row == before.first_row + before.rows
        and fragment.group >= before.group
        and fragment.start in starts
    )


def _check_files(saved: SavedPlan, found: Sequence[InputFile], selection: Selection, reaches_limit: bool) -> None:
    """Raise ValueError unless the chunks of each file have its columns, begin after its header and end where it ends,
    and the kept columns have the types that the files give them.

    A file without chunks must have a problem, which the job reports, or no rows. Of each file only the head, or its own
    metadata, are read. reaches_limit: the last file with a chunk may end after it, and those after it have none.
    """
    pieces: dict[int, list[SavedFragment]] = defaultdict(list)
    for fragment in (f for unit in saved.units if isinstance(unit, SavedUnit) for f in unit.fragments):
        pieces[fragment.file].append(fragment)
    starts = {number: fragments[0].start for number, fragments in pieces.items()}
    starts |= {unit.file: unit.start for unit in saved.units if isinstance(unit, SavedStream)}
    told = {path for path, _ in saved.problems}
    schemas: dict[int, Schema] = {}
    counted = replace(selection, kept=(), kept_types=(), keep_all=False)
    last = max(starts, default=0) if reaches_limit else len(found)

    def rows_now(file: InputFile) -> int | None:
        """None for a file that is read front to back."""
        units = plan_files([file], counted, saved.chunk_rows).units
        return None if any(isinstance(u, Stream) for u in units) else sum(u.rows for u in units if isinstance(u, Unit))

    def difference(number: int) -> str | None:
        file, fragments = found[number], pieces[number]
        if number > last:
            return None
        if number not in starts:
            return None if file.path in told or rows_now(file) == 0 else "has rows, and no chunk"
        schema = schemas[number] = _schema(file, selection)
        if schema.complete and (schema.names or ()) != saved.columns[number]:
            return "has other columns"
        if file.format.seeks is Seek.ROWS:
            rows, here = rows_now(file) or 0, sum(f.rows for f in fragments)
            return None if rows == here or (number == last and rows > here) else "has other rows than its chunks"
        if starts[number] != schema.start:
            return f"begins at byte {schema.start:,}, its first chunk at {starts[number]:,}"
        if number < last and fragments and fragments[-1].stop != (None if file.front_to_back else file.size):
            return "does not end where its last chunk ends"
        return None

    with threads(available_cores()) as pool:
        for file, what in zip(found, pool.map(difference, range(len(found))), strict=True):
            if what:
                raise ValueError(f"{file.path} {what}")
    if kept_types([schemas[number] for number in sorted(schemas)], selection.kept) != selection.kept_types:
        raise ValueError("the types of its kept columns are not those of the files")


def _schema(file: InputFile, selection: Selection) -> Schema:
    """The file's columns from as little of it as they take. Raises SourceError or UsageError."""
    short = replace(file.format, limits=replace(file.format.limits, block_bytes=_HEAD_BYTES))
    try:
        return short.schema(replace(file, format=short), selection)
    except (SourceError, UsageError):
        return file.format.schema(file, selection)


def _selection(plan: SavedPlan, types: tuple[pa.DataType, ...], asked: Selection) -> Selection:
    """`asked` with its default text column, its kept columns and their types. Raises ValueError where the plan is for
    another.
    """
    saved = plan.selection
    text = asked.text or (("text",) if any(plan.columns) else ())  # a file of encoded articles has no columns
    kept = saved.kept[: len(asked.kept)] if asked.keep_all else saved.kept
    same = (saved.text, kept, saved.truth, saved.header) == (text, asked.kept, asked.truth, asked.header)
    if not same or len(types) != len(saved.kept):
        raise ValueError("its columns are not those of the job")
    return replace(asked, text=text, kept=saved.kept, kept_types=types)


def _unit(unit: SavedUnit | SavedStream, files: Sequence[InputFile]) -> Unit | Stream:
    if isinstance(unit, SavedStream):
        return Stream(unit.file, files[unit.file], unit.start, unit.rows)
    fragments = (
        Fragment(files[f.file], f.start, f.stop, f.first_row, f.rows, f.group, f.regular) for f in unit.fragments
    )
    return Unit(unit.name, tuple(fragments))
