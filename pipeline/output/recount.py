"""The output of a finished job against its input as it is now: the same files, and as many rows in them."""

from __future__ import annotations

import os

from ..errors import SourceError, UsageError
from ..processes.threads import available_cores, threads
from ..source.chunk import Selection
from ..source.find.files import find_again
from ..source.formats.onehot import OneHot
from ..source.plan.plan import Group, GroupEnd, plan_files
from ..source.read.read import read_group
from .account import Committed
from .record import ListedFile, Manifest, SavedPlan, Settings
from .saved_plan import listed


def recount(
    manifest: Manifest,
    plan: SavedPlan | None,
    committed: Committed,
    root: str | os.PathLike[str] | None,
    endpoint: str | None,
) -> None:
    """List the input of a job again, count its rows, and compare. root: of relative paths. endpoint: of buckets.

    A file of encoded articles is only compared by what the listing says: its size determines its rows. Raises
    SourceError for a file that has changed, or has other rows than were labelled, UsageError where the input were rows
    in memory.
    """
    if plan is None:
        raise UsageError("the rows of this job were in memory: there is no input that they can be compared with")
    settings = manifest.fingerprint.settings
    found = find_again([file.path for file in plan.files], root, settings.hash == "full", endpoint)
    if found.problems:
        raise SourceError(found.problems[0][1])
    now = {file.path: file for file in listed(found.found)}
    for before in plan.files:
        _refuse_difference(before, now.get(before.path))
    rows = dict(count for closing in committed.closed.values() for count in closing.files)
    files = [file for file in found.found if not isinstance(file.format, OneHot)]
    again = plan_files(files, _selection(plan, settings), plan.chunk_rows, settings.limit)

    def counted(group: Group) -> GroupEnd:
        *_, end = read_group(group, again.selection, plan.chunk_rows, lambda _: True)
        if not isinstance(end, GroupEnd):
            raise TypeError("a group has an end")
        return end

    with threads(available_cores()) as pool:
        for end in pool.map(counted, again.groups):
            for path, count in end.files:
                if count != rows[path]:
                    raise SourceError(f"{path} has {count:,} rows, {rows[path]:,} are in the output")


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


def _selection(plan: SavedPlan, settings: Settings) -> Selection:
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
