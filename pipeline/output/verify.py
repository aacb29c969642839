"""Reads a finished job's output again, and checks it row by row against its manifest, its plan and its input."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from threading import Semaphore

from msgspec import UNSET

from ..errors import OutputError, SourceError, UsageError
from ..processes.threads import available_cores, threads
from ..source.formats.onehot import OneHot
from ..source.plan.plan import Range, RangeEnd, plan_files
from ..source.read.read import read_range
from .account import Sources, Sums, gaps, range_numbers
from .commit import check_chunk
from .folder import REPAIR, OutputFolder
from .layout import CLAIM, MANIFEST, OF_CHUNKS, OLD_MANIFEST, SUCCESS
from .object_store import place_of
from .read_again import selection_of, unchanged_input
from .record import ClosingEntry, Entry, Manifest, SavedPlan, Totals
from .sidecars import check_sidecars
from .store import check_claim, is_claimed
from .where import Where

_LARGE_ROWS, _LARGE_AT_ONCE = 1 << 19, 2
"""A chunk with more rows takes much memory. At most two such chunks are checked at the same time."""


def verify(
    path: str | os.PathLike[str],
    *,
    input: bool = False,  # noqa: A002 - the command calls it --input
    root: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
) -> Totals:
    """Check every file of an output folder.

    Parameters
    ----------
    path : str or path
        The output folder of a finished job, or its URL.
    input : bool
        Also compare with the input files: whether they are those that were labelled, and whether they have as many
        rows. The rows are counted again.
    root : str or path, optional
        The folder to which the paths of the input files are relative, if the job had one. Default: the current folder.
    endpoint : str, optional
        See `classify`.

    Returns
    -------
    Totals
        The job's totals: ``chunks``, ``rows_read``, ``rows_written``, ``rows_filtered``,
        ``rows_quarantined`` and others.

    Raises
    ------
    OutputError
        At the first damage: a file that is missing, changed or has no entry; a row that is lost or duplicated; a
        planned chunk without an entry; totals that do not add up. The message says whether ``resume=True`` repairs it.
        Also for a job that is not finished, for a folder of an earlier version, and for any other folder or file.
    SourceError
        For an input file that has changed or cannot be read.
    UsageError
        For the input of a job whose rows were in memory.

    Examples
    --------
    >>> report = broadsheet.classify("news.csv", "labels", text_column=["title", "body"])
    >>> broadsheet.verify("labels").rows_written
    100

    """
    # Read what the folder should have: its plan, schema and totals.
    folder = OutputFolder(place_of(path, endpoint))
    manifest, totals = finished(folder)
    job = manifest.fingerprint.id
    plan = folder.checked_plan(manifest)
    schema, given = folder.schema(manifest), manifest.fingerprint.settings.where
    where = None if given is None else Where(given)
    labelled = manifest.fingerprint.settings.labelled
    # Check every entry and its files, and add up their figures.
    sums = Sums(plan)
    updates = [Sums(folder.plan_of(manifest, number)) for number in range(1, 1 + len(manifest.updates))]
    chunks: dict[str, Sources] = {}
    closed: dict[int, ClosingEntry] = {}
    files: set[str] = set()
    few = Semaphore(_LARGE_AT_ONCE)

    def check(entry: Entry) -> None:
        with few if entry.rows_read > _LARGE_ROWS else nullcontext():
            check_chunk(folder.store, entry, schema, where, labelled)

    for entry, _ in folder.each_entry(job, None, check):
        for counted in (sums, *updates):
            counted.add(entry)
        if isinstance(entry, ClosingEntry):
            closed[entry.group] = entry
        else:
            chunks[entry.chunk] = entry.sources
            files.update(file.name for file in entry.files)
    # Compare the entries with the files and with the plan.
    for name in (name for place in OF_CHUNKS for name in folder.store.files(place)):
        if name not in files:
            raise OutputError(f"{folder.path / name} belongs to no entry: {REPAIR}")
    for gap in gaps(chunks, closed, plan):
        raise OutputError(f"{gap.message}: {REPAIR}")
    check_sidecars(folder.store, manifest, range_numbers(plan))
    # Compare the sums with the totals of the job and of each update.
    _check_totals(folder, totals, sums.totals)
    for number, (update, counted) in enumerate(zip(manifest.updates, updates, strict=True), 1):
        _check_totals(folder, update.totals, counted.totals, number)
    # Count the rows of the input again.
    if input:
        _recount(manifest, plan, closed.values(), root, endpoint)
    return totals


def finished(folder: OutputFolder) -> tuple[Manifest, Totals]:
    """Return the manifest of a finished job, and its totals. Raises OutputError for anything else."""
    if not folder.exists:
        raise OutputError(f"{folder.path} does not exist or is empty")
    if not {MANIFEST, OLD_MANIFEST} & folder.store.names():
        if is_claimed(folder.store):
            raise OutputError(f"{folder.path} has lost its {MANIFEST}: {REPAIR}")
        raise OutputError(f"{folder.path} is not an output folder of broadsheet: {MANIFEST} is missing")
    manifest = folder.manifest()
    totals = manifest.totals
    if CLAIM in folder.store.names():
        check_claim(folder.store, manifest.fingerprint.id)
    if totals is None or not folder.store.has(SUCCESS) or folder.under_way(manifest):
        chosen = manifest.fingerprint.settings.chosen is not UNSET
        remedy = "choose again with --overwrite" if chosen else "continue with --resume"
        if totals is not None and folder.compaction_under_way(manifest):
            remedy = f"joining its parts was stopped: do that again{'' if chosen else ', or continue with --resume'}"
        raise OutputError(f"{folder.path} is not finished: {remedy}")
    return manifest, totals


def _check_totals(folder: OutputFolder, totals: Totals, counted: Totals, update: int = 0) -> None:
    """Raise OutputError unless the totals in the manifest are those that were counted.

    update: the number of the update that the totals belong to, or 0 for the totals of the whole job.
    """
    whose = f" of update {update}" if update else ""
    for name in Totals.__struct_fields__:
        said, summed = getattr(totals, name), getattr(counted, name)
        if name in ("problems", "unread"):
            said, summed = sorted(map(str, said)), sorted(map(str, summed))
        if said != summed:
            what = "in the manifest is not that of its entries"
            if isinstance(said, int):
                what = f"is {said:,} in the manifest, its entries have {summed:,}"
            raise OutputError(f"{folder.path}: {name}{whose} {what}: {REPAIR}")


def _recount(
    manifest: Manifest,
    plan: SavedPlan | None,
    closed: Iterable[ClosingEntry],
    root: str | os.PathLike[str] | None,
    endpoint: str | None,
) -> None:
    """List the input of a job again, count its rows, and compare them with the rows that were labelled.

    For a file of encoded articles the listing is enough, since its size determines its rows. Raises SourceError for a
    file that has changed, or has other rows than those that were labelled. Raises UsageError if the input was rows in
    memory.

    Parameters
    ----------
    manifest : Manifest
        The manifest of the job.
    plan : SavedPlan or None
        The plan of the job; None for rows in memory.
    closed : iterable of ClosingEntry
        The closing entries of the job.
    root, endpoint
        See `verify`.

    """
    # Find the files, and the rows that were labelled of each.
    if plan is None:
        raise UsageError("the rows of this job were in memory: there is no input that they can be compared with")
    settings = manifest.fingerprint.settings
    files = [file for file in unchanged_input(plan, settings, root, endpoint) if not isinstance(file.format, OneHot)]
    rows: Counter[str] = Counter()
    for path, count in (file for closing in closed for file in closing.files):
        rows[path] += count or 0
    # Plan the files again without parts, and count the rows of each range.
    again = plan_files(files, selection_of(plan, settings), plan.chunk_rows, settings.limit)
    again = replace(again, parts=(1,) * len(again.sizes))

    def counted(range_: Range) -> RangeEnd:
        *_, end = read_range(range_, again.selection, plan.chunk_rows, lambda _: True)
        if not isinstance(end, RangeEnd):
            raise TypeError("a range has an end")
        return end

    with threads(available_cores()) as pool:
        for end in pool.map(counted, again.ranges):
            for path, count in end.files:
                if count != rows[path]:
                    raise SourceError(f"{path} has {count:,} rows, {rows[path]:,} are in the output")
