"""Reread a finished job's output and check it against its manifest and plan, row by row, and against its input."""

from __future__ import annotations

import os
from collections import Counter

from pipeline.errors import OutputError
from pipeline.output.account import gaps
from pipeline.output.check import check_chunk
from pipeline.output.claim import check_claim, is_claimed
from pipeline.output.folder import REPAIR, OutputFolder
from pipeline.output.layout import CLAIM, MANIFEST, OLD_MANIFEST, PARTS, QUARANTINE, SUCCESS
from pipeline.output.place import place_of
from pipeline.output.record import SUMS, Totals
from pipeline.output.recount import recount
from pipeline.output.where import Where


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
    if totals is None or not folder.store.has(SUCCESS):
        raise OutputError(f"{folder.path} is not finished: continue with --resume")
    plan = folder.checked_plan(manifest)
    schema, given = folder.schema(manifest), manifest.fingerprint.settings.where
    where = None if given is None else Where(given)
    committed = folder.entries(job)
    files: set[str] = set()
    sums: Counter[str] = Counter(chunks=len(committed.chunks))
    labels: Counter[str] = Counter()
    doubtful: Counter[str] = Counter()
    for entry in committed.chunks.values():
        try:
            check_chunk(folder.store, entry, schema, where)
        except OutputError as error:
            raise OutputError(f"{error.message}: {REPAIR}") from error
        files.update(file.name for file in entry.files)
        sums.update({name: getattr(entry, name) for name in SUMS})
        labels.update(entry.labels)
        doubtful.update(entry.doubtful)
    for name in (*folder.store.files(PARTS), *folder.store.files(QUARANTINE)):
        if name not in files:
            raise OutputError(f"{folder.path / name} belongs to no entry: {REPAIR}")
    for gap in gaps(committed, plan):
        raise OutputError(f"{gap.message}: {REPAIR}")
    for name, counted in sums.items():
        if getattr(totals, name) != counted:
            found = f"{name} is {getattr(totals, name)} in the manifest, its entries have {counted}"
            raise OutputError(f"{folder.path}: {found}: {REPAIR}")
    if totals.labels != +labels or totals.doubtful != +doubtful:
        found = "the labels or doubtful rows in the manifest are not the sums of those of its entries"
        raise OutputError(f"{folder.path}: {found}: {REPAIR}")
    unread = [each for closing in committed.closed.values() for each in closing.unread]
    if sorted(map(str, totals.unread)) != sorted(map(str, (*unread, *(plan.unread if plan else ())))):
        found = "the files not read are others in the manifest than in its entries"
        raise OutputError(f"{folder.path}: {found}: {REPAIR}")
    if input:
        recount(manifest, plan, committed, root, endpoint)
    return totals
