"""Reread a finished job's output and check it against its manifest and plan, row by row, and against its input."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from pipeline.accuracy import LENGTHS
from pipeline.errors import OutputError
from pipeline.output.account import Committed, gaps, groups_of
from pipeline.output.check import check_chunk
from pipeline.output.claim import check_claim, is_claimed
from pipeline.output.folder import REPAIR, OutputFolder
from pipeline.output.layout import CLAIM, MANIFEST, OLD_MANIFEST, PARTS, QUARANTINE, SUCCESS, group_of
from pipeline.output.place import place_of
from pipeline.output.record import SUMS, Manifest, Totals
from pipeline.output.recount import recount
from pipeline.output.where import Where
from pipeline.source.chunk import NO_TRUTH
from pipeline.source.group import Unread


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
        Also compare with the input files: that they are those that were labelled, and how many rows they have, which is
        found out anew.
    root : str or path, optional
        The folder to which the paths of the input files are relative, where the job had one. Default: the current one.
    endpoint : str, optional
        As `classify` takes it.

    Returns
    -------
    Totals
        The job's totals: ``chunks``, ``rows_read``, ``rows_written``, ``rows_filtered``,
        ``rows_quarantined`` and others.

    Raises
    ------
    OutputError
        At the first damage: a file missing, changed or without an entry, a row lost or duplicated, a planned chunk
        without an entry, totals that do not add up; the message says whether ``resume=True`` repairs it. Also for a job
        that is not finished, for a folder of an earlier version, and for any other folder or file.
    SourceError
        For an input file that has changed or cannot be read.
    UsageError
        For the input of a job whose rows were in memory.

    Examples
    --------
    >>> pipeline.verify("labels").rows_written
    100

    """
    folder = OutputFolder(place_of(path, endpoint))
    if not folder.exists:
        raise OutputError(f"{folder.path} does not exist or is empty")
    if not {MANIFEST, OLD_MANIFEST} & folder.store.names():
        if is_claimed(folder.store):
            raise OutputError(f"{folder.path} has lost its {MANIFEST}: {REPAIR}")
        raise OutputError(f"{folder.path} is not an output folder of broadsheet: {MANIFEST} is missing")
    manifest = folder.manifest()
    totals, job = manifest.totals, manifest.fingerprint.id
    if CLAIM in folder.store.names():
        check_claim(folder.store, job)
    if totals is None or not folder.store.has(SUCCESS) or folder.under_way(manifest):
        raise OutputError(f"{folder.path} is not finished: continue with --resume")
    plan = folder.checked_plan(manifest)
    schema, given = folder.schema(manifest), manifest.fingerprint.settings.where
    where = None if given is None else Where(given)
    committed = folder.entries(job)
    files: set[str] = set()
    for entry in committed.chunks.values():
        try:
            check_chunk(folder.store, entry, schema, where)
        except OutputError as error:
            raise OutputError(f"{error.message}: {REPAIR}") from error
        files.update(file.name for file in entry.files)
    for name in (*folder.store.files(PARTS), *folder.store.files(QUARANTINE)):
        if name not in files:
            raise OutputError(f"{folder.path / name} belongs to no entry: {REPAIR}")
    for gap in gaps(committed, plan):
        raise OutputError(f"{gap.message}: {REPAIR}")
    try:
        _check_totals(totals, committed, plan.unread if plan else (), "")
    except OutputError as error:
        raise OutputError(f"{folder.path}: {error.message}: {REPAIR}") from error
    for number in range(1, 1 + len(manifest.updates)):
        _check_update(folder, manifest, number, committed)
    if input:
        recount(manifest, plan, committed, root, endpoint)
    return totals


def _check_update(folder: OutputFolder, manifest: Manifest, number: int, committed: Committed) -> None:
    """Raise OutputError unless what the manifest says of an update is right. committed: of the whole job."""
    plan = folder.plan_of(manifest, number)
    groups = groups_of(plan)
    chunks = {name: entry for name, entry in committed.chunks.items() if group_of(name) in groups}
    closed = {group: closing for group, closing in committed.closed.items() if group in groups}
    try:
        totals = manifest.updates[number - 1].totals
        _check_totals(totals, Committed(chunks, closed), plan.unread if plan else (), f" of update {number}")
    except OutputError as error:
        raise OutputError(f"{folder.path}: {error.message}. Start again with --overwrite") from error


def _check_totals(totals: Totals, committed: Committed, unread: Iterable[Unread], whose: str) -> None:
    """Raise OutputError unless totals are the sums over these entries. unread: what could not be listed. whose: they
    are, in a message.
    """
    sums: Counter[str] = Counter(chunks=len(committed.chunks))
    labels: Counter[str] = Counter()
    doubtful: Counter[str] = Counter()
    lengths = [0] * len(LENGTHS)
    confusion: Counter[tuple[int, int]] = Counter()
    for entry in committed.chunks.values():
        sums.update({name: getattr(entry, name) for name in SUMS})
        labels.update(entry.labels)
        doubtful.update(entry.doubtful)
        lengths = [sum(pair) for pair in zip(lengths, entry.lengths, strict=True)]
        for true, label, rows in entry.confusion or ():
            confusion[true, label if true != NO_TRUTH else 0] += rows
    for name, counted in sums.items():
        if getattr(totals, name) != counted:
            raise OutputError(f"{name}{whose} is {getattr(totals, name)} in the manifest, its entries have {counted}")
    if totals.labels != +labels or totals.doubtful != +doubtful:
        raise OutputError(
            f"the labels or doubtful rows{whose} in the manifest are not the sums of those of its entries"
        )
    pairs = Counter({(true, label): rows for true, label, rows in totals.confusion or ()})
    if list(totals.lengths) != lengths or pairs != confusion:
        raise OutputError(f"the lengths or confusion{whose} in the manifest are not the sums of those of its entries")
    told = (*unread, *(each for closing in committed.closed.values() for each in closing.unread))
    if sorted(map(str, totals.unread)) != sorted(map(str, told)):
        raise OutputError(f"the files not read{whose} are others in the manifest than in its entries")
