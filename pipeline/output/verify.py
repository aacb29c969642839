"""Reread a finished job's output and check it against its manifest and plan, row by row, and against its input."""

from __future__ import annotations

import os

from ..errors import OutputError
from .account import gaps
from .check import check_chunk
from .claim import check_claim, is_claimed
from .folder import REPAIR, OutputFolder
from .layout import CLAIM, MANIFEST, OLD_MANIFEST, PARTS, QUARANTINE, SUCCESS
from .place import place_of
from .record import Totals
from .recount import recount
from .totals import totals_of
from .where import Where


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
    >>> report = broadsheet.classify("news.csv", "labels", text_column=["title", "body"])
    >>> broadsheet.verify("labels").rows_written
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
    labelled = manifest.fingerprint.settings.labelled
    committed = folder.entries(job)
    files: set[str] = set()
    for entry in committed.chunks.values():
        try:
            check_chunk(folder.store, entry, schema, where, labelled)
        except OutputError as error:
            raise OutputError(f"{error.message}: {REPAIR}") from error
        files.update(file.name for file in entry.files)
    for name in (*folder.store.files(PARTS), *folder.store.files(QUARANTINE)):
        if name not in files:
            raise OutputError(f"{folder.path / name} belongs to no entry: {REPAIR}")
    for gap in gaps(committed, plan):
        raise OutputError(f"{gap.message}: {REPAIR}")
    _check_totals(folder, totals, totals_of(committed, plan))
    for number, update in enumerate(manifest.updates, 1):
        _check_totals(folder, update.totals, totals_of(committed, folder.plan_of(manifest, number)), number)
    if input:
        recount(manifest, plan, committed, root, endpoint)
    return totals


def _check_totals(folder: OutputFolder, totals: Totals, counted: Totals, update: int = 0) -> None:
    """Raise OutputError unless the totals in the manifest are those that were counted. update: whose, or 0 for all."""
    whose = f" of update {update}" if update else ""
    for name in Totals.__struct_fields__:
        said, found = getattr(totals, name), getattr(counted, name)
        if name in ("problems", "unread"):
            said, found = sorted(map(str, said)), sorted(map(str, found))
        if said != found:
            what = "in the manifest is not that of its entries"
            if isinstance(said, int):
                what = f"is {said:,} in the manifest, its entries have {found:,}"
            raise OutputError(f"{folder.path}: {name}{whose} {what}: {REPAIR}")
