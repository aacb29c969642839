"""The plan in the output folder: saved, and loaded for a resumed job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec
import pyarrow as pa

from pipeline.errors import OutputError
from pipeline.output.record import ListedFile, SavedPlan, SavedSelection, from_json
from pipeline.source.chunk import Selection
from pipeline.source.files import Files
from pipeline.source.formats.base import InputFile
from pipeline.source.plan import Plan, plan_files

_NAMED = 3
"""Files that a message names."""


def listed(files: Iterable[InputFile]) -> Iterator[ListedFile]:
    """What identifies each file."""
    return (ListedFile(file.path, file.size, file.modified, file.digest) for file in files)


def plan_bytes(plan: Plan) -> bytes:
    """A plan as JSON; it may have very many files, so it is compact."""
    first = None
    if plan.first is not None:
        first = next(number for number, file in enumerate(plan.files) if file.path == plan.first[0])
    saved = SavedPlan(
        files=tuple(listed(plan.files)),
        groups=plan.sizes,
        first=first,
        selection=_saved(plan.selection),
        chunk_rows=plan.chunk_rows,
        problems=plan.problems,
        unread=plan.unread,
    )
    return msgspec.json.encode(saved) + b"\n"


def plan_from(
    data: bytes, found: Sequence[InputFile], asked: Selection, chunk_rows: int, name: object, limit: int | None = None
) -> Plan:
    """Load a plan over the files as found now. asked, chunk_rows, limit: what the job that is resumed was asked for.

    Only the file is opened by which the columns were resolved. Raises OutputError, with `name`, where the plan is
    damaged, or is not that of the job.
    """
    saved = from_json(data, SavedPlan, name)
    try:
        check_plan(saved)
        plan = plan_files(found, asked, chunk_rows, limit, saved.first or 0)
        same = {
            "files": saved.files == tuple(listed(plan.files)),
            "groups": saved.groups == plan.sizes,
            "columns": saved.selection == _saved(plan.selection),
            "chunk size": saved.chunk_rows == plan.chunk_rows,
        }
        for what, is_same in same.items():
            if not is_same:
                raise ValueError(f"its {what} are not those of the job")
    except ValueError as error:
        raise OutputError(f"{name} is damaged: {error}. Start again with --overwrite") from error
    return plan


def check_plan(saved: SavedPlan) -> None:
    """Raise ValueError where a plan contradicts itself: each file is in one group."""
    if sum(saved.groups) != len(saved.files):
        raise ValueError(f"its groups have {sum(saved.groups):,} files, {len(saved.files):,} were listed")
    if saved.first is not None and saved.first >= len(saved.files):
        raise ValueError(f"there is no file {saved.first}")


def files_of(saved: SavedPlan) -> list[tuple[ListedFile, ...]]:
    """The files of each group."""
    ends = list(accumulate(saved.groups))
    return [saved.files[end - count : end] for end, count in zip(ends, saved.groups, strict=True)]


def changes(saved: SavedPlan, now: Files) -> str:
    """How the files found now differ from those of a plan, in a few words."""
    before, found = {file.path: file for file in saved.files}, {file.path: file for file in listed(now.found)}
    told = [
        (what, names)
        for what, names in (
            ("gone", [path for path in before if path not in found]),
            ("new", [path for path in found if path not in before]),
            ("changed", [path for path, file in found.items() if before.get(path, file) != file]),
        )
        if names
    ]
    if not told:
        return "the input files are in another order"
    return "; ".join(f"{what}: {_few(names)}" for what, names in told)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _saved(selection: Selection) -> SavedSelection:
    types = pa.schema(list(zip(selection.kept, selection.kept_types, strict=False)))
    return SavedSelection(
        text=selection.text,
        kept=selection.kept,
        kept_types=types.serialize().to_pybytes().hex(),
        truth=selection.truth,
        header=selection.header,
        classes=selection.classes,
        answers=selection.answers,
    )
