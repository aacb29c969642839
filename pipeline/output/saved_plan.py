"""Saves the plan of a job in the output folder, and loads it for a resumed job."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import TypeVar

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType

from ..errors import OutputError, first_of
from ..source.plan.files import Files
from ..source.plan.plan import Plan, bound, plan_files
from ..source.rows.chunk import Selection
from ..source.rows.format import InputFile, Schema
from ..source.rows.labels import LabelRules
from .layout import VERSION, WITHDRAWING
from .record import ListedFile, SavedPlan, SavedSelection, from_json

_Named = TypeVar("_Named", bound=tuple[str, object])


def listed(files: Iterable[InputFile]) -> Iterator[ListedFile]:
    """Yield what identifies each file: its path, size, time of modification and hash."""
    return (ListedFile(file.path, file.size, file.modified, file.digest) for file in files)


def listing_digest(files: Iterable[ListedFile]) -> str:
    """Return the SHA-256 of a listing, in hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(list(files))).hexdigest()


def plan_bytes(plan: Plan, withdrawn: tuple[int, ...] = ()) -> bytes:
    """Return a plan as JSON, which is compact because there may be very many files. withdrawn: see `SavedPlan`."""
    saved = SavedPlan(
        version=WITHDRAWING if withdrawn else VERSION,
        files=tuple(listed(plan.files)),
        groups=plan.sizes,
        parts=_saved_parts(plan.parts),
        first_group=plan.first_range,
        first=_first(plan),
        selection=_saved(plan.selection),
        chunk_rows=plan.chunk_rows,
        problems=plan.problems,
        unread=plan.unread,
        left_out=plan.left_out or UNSET,
        whole=listing_digest(listed(plan.whole)) if plan.whole else UNSET,
        withdrawn=withdrawn or UNSET,
    )
    return msgspec.json.encode(saved) + b"\n"


def plan_from(
    data: bytes,
    files: Sequence[InputFile],
    requested: Selection,
    chunk_rows: int,
    name: object,
    limit: int | None = None,
) -> Plan:
    """Load a plan over the files as they are now. This opens the file that resolved the columns and, if columns are
    copied, a few others to find the types of these, as `plan_files` does.

    Raises OutputError if the plan is damaged or is not that of the job.

    Parameters
    ----------
    data : bytes
        The saved plan.
    files, requested, chunk_rows, limit
        The files and the options of the job, see `plan_files`.
    name : object
        The path of the plan's file, for messages.

    """
    saved = from_json(data, SavedPlan, name)
    try:
        check_plan(saved)
        counted = replace(requested, rules=_rules(saved, requested))
        plan = plan_files(files, counted, chunk_rows, limit, _number_of_first(saved))
        plan = replace(plan, parts=parts_of_saved(saved))  # earlier versions cut no file
        plan = replace(plan, problems=saved.problems, unread=saved.unread, left_out=saved.left_out or ())
        same = {
            "files": saved.files == tuple(listed(plan.files)),
            "groups": (saved.groups, saved.ranges) == (plan.sizes, len(plan.ranges)),
            "columns": (saved.selection, saved.first) == (_saved(plan.selection), _first(plan)),
            "chunk size": saved.chunk_rows == plan.chunk_rows,
        }
        for what, is_same in same.items():
            if not is_same:
                raise ValueError(f"its {what} are not those of the job")
    except ValueError as error:
        raise OutputError(f"{name} is damaged: {error}. Start again with --overwrite") from error
    return plan


def check_plan(saved: SavedPlan) -> None:
    """Raise ValueError if a plan contradicts itself. Each file is in one group, and a file that is cut is alone."""
    cuts = parts_of_saved(saved)
    if len(cuts) != len(saved.groups) or any(c > 1 and n != 1 for c, n in zip(cuts, saved.groups, strict=True)):
        raise ValueError("its parts are not those of its groups")
    if sum(saved.groups) != len(saved.files):
        raise ValueError(f"its groups have {sum(saved.groups):,} files, {len(saved.files):,} were listed")
    if any(number >= saved.first_group for number in saved.withdrawn or ()):
        raise ValueError("it withdraws groups that are not of an earlier one")
    if saved.first is None or saved.first_group or saved.whole is not UNSET or 0 in saved.groups:
        return  # the first file may belong to another update or share, or to a range that was withdrawn
    if saved.first[0] not in {file.path for file in saved.files}:
        raise ValueError(f"there is no file {saved.first[0]}")


def _first(plan: Plan) -> tuple[str, tuple[str, ...] | None] | None:
    """Return the path and the columns of the first readable file; None if there is none."""
    return None if plan.first is None else (plan.first[0], plan.first[1].names)


def _number_of_first(saved: SavedPlan) -> int:
    if saved.first is None:
        return 0
    return next(number for number, file in enumerate(saved.files) if file.path == saved.first[0])


def joined_plan(plans: Sequence[SavedPlan]) -> SavedPlan:
    """Join the plan of a job and the plans of its updates into one.

    Some numbers of ranges belong to no plan, because an update was discarded, or were withdrawn by an update. The
    ranges of these numbers have no files in the result. Raises ValueError if two plans have the same number.
    """
    groups: list[int] = []
    parts: list[int] = []
    for plan in plans:
        missing = plan.first_group - sum(parts)
        if missing < 0:
            raise ValueError("the groups of an update begin before those of the one before it end")
        groups += [0] * missing + list(plan.groups)
        parts += [1] * missing + list(parts_of_saved(plan))
    later = [{file.path for plan in plans[at:] for file in plan.files} for at in range(1, len(plans) + 1)]
    whole = msgspec.structs.replace(
        plans[0],
        files=tuple(chain.from_iterable(plan.files for plan in plans)),
        groups=tuple(groups),
        parts=_saved_parts(parts),
        problems=tuple(one for plan, files in zip(plans, later, strict=True) for one in _still(plan.problems, files)),
        unread=tuple(one for plan, files in zip(plans, later, strict=True) for one in _still(plan.unread, files)),
        left_out=plans[-1].left_out,  # each plan lists all of the input
    )
    return without(whole, {number for plan in plans for number in plan.withdrawn or ()})


def _still(named: Iterable[_Named], labelled: Collection[str]) -> Iterator[_Named]:
    """Yield the problems of files from a listing, without the files that are labelled later, since those are repaired.

    named: tuples that begin with the path of a file.
    """
    return (one for one in named if one[0] not in labelled)


def without(plan: SavedPlan, withdrawn: Collection[int]) -> SavedPlan:
    """Return a plan in which the withdrawn ranges have no files."""
    files: list[ListedFile] = []
    groups: list[int] = []
    parts: list[int] = []
    gone, cuts = {*withdrawn}, parts_of_saved(plan)
    numbers = accumulate(cuts, initial=plan.first_group)
    for count, end, cut, number in zip(plan.groups, accumulate(plan.groups), cuts, numbers, strict=False):
        files += () if number in gone else plan.files[end - count : end]
        groups += [0] * cut if number in gone else [count]
        parts += [1] * cut if number in gone else [cut]
    return msgspec.structs.replace(plan, files=tuple(files), groups=tuple(groups), parts=_saved_parts(parts))


def ranges_with(plan: SavedPlan, paths: Collection[str]) -> tuple[int, ...]:
    """Return the numbers of the ranges that have at least one of these files."""
    ranges = enumerate(files_of(plan), plan.first_group)
    return tuple(number for number, files in ranges if any(file.path in paths for file in files))


def files_of(saved: SavedPlan) -> list[tuple[ListedFile, ...]]:
    """Return the files of each range."""
    ends = list(accumulate(saved.groups))
    files_of_groups = [saved.files[end - count : end] for end, count in zip(ends, saved.groups, strict=True)]
    return [files for files, parts in zip(files_of_groups, parts_of_saved(saved), strict=True) for _ in range(parts)]


def _saved_parts(parts: Sequence[int]) -> tuple[int, ...] | UnsetType:
    """Return the field `parts` of a saved plan, which `parts_of_saved` reads: UNSET if no group is cut."""
    return UNSET if set(parts) <= {1} else tuple(parts)


def parts_of_saved(saved: SavedPlan) -> tuple[int, ...]:
    """Return the number of ranges that each group is cut into."""
    return (1,) * len(saved.groups) if saved.parts is UNSET else saved.parts


@dataclass(frozen=True)
class Changes:
    """The differences between the files of the input and those of a plan.

    Attributes
    ----------
    new, changed, gone : tuple of str
        Paths. A changed file has another size, time of modification or hash.

    """

    new: tuple[str, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]

    def __str__(self) -> str:
        kinds = (("gone", self.gone), ("new", self.new), ("changed", self.changed))
        listing = "; ".join(f"{kind}: {first_of(names)}" for kind, names in kinds if names)
        return listing or "the input files are in another order"


def changes(saved: SavedPlan, now: Files) -> Changes:
    """Return the files that are new, changed and gone since a plan was made."""
    before, after = {file.path: file for file in saved.files}, {file.path: file for file in listed(now.found)}
    return Changes(
        tuple(path for path in after if path not in before),
        tuple(path for path, file in after.items() if before.get(path, file) != file),
        tuple(path for path in before if path not in after),
    )


def resolved(saved: SavedPlan, requested: Selection) -> Selection:
    """Return the selection of a job as its first file resolved it. Raises OutputError."""
    chosen = saved.selection
    try:
        types = schema_from(chosen.kept_types)
    except ValueError as error:
        what = f"the plan is damaged: no types of columns ({error})"
        raise OutputError(f"{what}. Start again with --overwrite") from error
    rules = _rules(saved, requested)
    return replace(
        requested, text=chosen.text, kept_columns=chosen.kept_columns, kept_types=tuple(types.types), rules=rules
    )


def _rules(saved: SavedPlan, requested: Selection) -> LabelRules:
    """Return how labels name classes. Class numbers start where they did when the job was planned."""
    first = saved.selection.label_numbers_from
    return requested.rules if first is UNSET else replace(requested.rules, numbers_from=first)


def plan_again(saved: SavedPlan, files: Sequence[InputFile], requested: Selection) -> Plan:
    """Return the saved plan over its files as they are now, without opening a file. Raises OutputError."""
    selection = resolved(saved, requested)
    first = None if saved.first is None else (saved.first[0], Schema(saved.first[1]))
    return Plan(
        files=tuple(bound(files, selection)),
        sizes=saved.groups,
        parts=parts_of_saved(saved),
        selection=selection,
        chunk_rows=saved.chunk_rows,
        first=first,
        problems=saved.problems,
        unread=saved.unread,
        left_out=saved.left_out or (),
        first_range=saved.first_group,
    )


def _saved(selection: Selection) -> SavedSelection:
    types = pa.schema(list(zip(selection.kept_columns, selection.kept_types, strict=False)))
    numbers_from = selection.rules.numbers_from
    return SavedSelection(
        text=selection.text,
        kept_columns=selection.kept_columns,
        kept_types=schema_hex(types),
        truth=selection.truth,
        header=selection.header,
        classes=selection.classes,
        answers=selection.answers,
        label_numbers_from=UNSET if numbers_from is None else numbers_from,
    )


def schema_hex(schema: pa.Schema) -> str:
    """Return a schema as a plan and the manifest store it: its IPC message in hexadecimal."""
    return str(schema.serialize().to_pybytes().hex())


def schema_from(text: str) -> pa.Schema:
    """Return the schema that `schema_hex` has written. Raises ValueError."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(str(error)) from error
