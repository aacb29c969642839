"""The end of a job: what was committed is checked, what belongs to nothing removed, and the totals written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import pyarrow as pa

from ..errors import OutputError
from . import layout
from .account import Gap, Sources, Sums, gaps, groups_of
from .commit import read_committed
from .folder import REPAIR, OutputFolder
from .layout import ENTRIES, EVERY_FOLDER, MANIFEST, OF_CHUNKS, SUCCESS
from .record import ClosingEntry, Entry, Manifest, SavedPlan, Totals, Update, to_json
from .saved_plan import schema_hex
from .sidecars import write_sidecars
from .store import check_claim

Digests = Mapping[str, bytes]
"""Of the entries that a run has counted, by their chunks."""


def finish(
    folder: OutputFolder, totals: Totals, schema: pa.Schema, job: str, counted: Digests, update: int, updates: int
) -> None:
    """Check all that was committed, and write the totals into the manifest, then _SUCCESS.

    Whatever belongs to none of the counted entries, such as files of a job that was overwritten, and temporary files
    are removed; those of earlier updates are not looked at. Raises OutputError where another job took the folder, or
    where not all is there as it was committed.

    Parameters
    ----------
    folder : OutputFolder
        The folder of the job.
    totals : Totals
        The totals of all that is labelled.
    schema : pyarrow.Schema
        Of the job's parts.
    job : str
        The id of the job.
    counted : mapping of str to bytes
        The digest of the entry of each chunk that this run has counted: of the update, or of the whole job.
    update : int
        The number of the update that ends; 0 for the whole job.
    updates : int
        How many updates the job had when this run began.

    """
    check = partial(check_claim, folder.store, job)
    check()
    before = folder.store.read(MANIFEST)
    manifest = folder.manifest()
    if not update and (len(manifest.updates) != updates or folder.under_way(manifest)):
        raise OutputError(f"{folder.path} was updated while this job ran: its labels are there, and complete")
    if update and update <= len(manifest.updates):  # another run of this update has finished it
        if not folder.under_way(manifest):
            folder.remove_withdrawn(manifest)
            folder.store.add(SUCCESS, b"", check)
        return
    if update and manifest.totals is None:
        raise OutputError(f"{folder.path} is not finished: continue with --resume")
    plan = folder.plan_of(manifest, update) if update else folder.checked_plan(manifest)
    groups = groups_of(plan)
    others = {group for number in range(update) for group in groups_of(folder.plan_of(manifest, number))}
    folder.store.remove_attempts(EVERY_FOLDER)
    ours = {layout.entry_file(chunk, job) for chunk in counted}
    ours |= {layout.closing_file(number, job) for number in groups}
    _remove_others(folder, (ENTRIES,), lambda name: name in ours or layout.group_in(name, job) in others, job)
    withdrawn = {*(plan.withdrawn or ())} if plan else set()
    numbers = range(1 if withdrawn else update or 1, 1 + (update or len(manifest.updates)))
    sums = {number: Sums(folder.plan_of(manifest, number)) for number in numbers}
    parts = _check_committed(folder, manifest, plan, counted, list(sums.values()))
    if withdrawn:
        for entry, _ in folder.each_entry(job, others - withdrawn, lambda _: None):
            for of_update in sums.values():
                of_update.add(entry)
    _remove_others(folder, OF_CHUNKS, lambda name: name in parts or layout.group_in(name, job) in others, job)
    folder.store.remove_empty_folders(manifest.fingerprint.settings.names.folder)
    write_sidecars(folder.store, manifest, schema, groups)
    told = {"totals": totals, "schema": schema_hex(schema), "updates": _updates(folder, manifest, sums)}
    manifest = msgspec.structs.replace(manifest, **told)
    folder.store.update(MANIFEST, before, to_json(manifest), check)
    folder.remove_withdrawn(manifest)
    folder.store.add(SUCCESS, b"", check)


def seal(folder: OutputFolder, manifest: Manifest) -> None:
    """Write _SUCCESS, where a job or its last update was killed between its totals and that.

    Raises OutputError where not all is there as it was committed.
    """
    job, totals = manifest.fingerprint.id, manifest.totals
    check = partial(check_claim, folder.store, job)
    plan = folder.plan_of(manifest, len(manifest.updates))
    files = folder.entry_files(job, range(groups_of(plan).stop))
    count = sum(not layout.is_closing(name) for name in files)
    if totals is not None and count != totals.chunks:
        raise OutputError(f"{folder.path} has {count:,} entries, its job had {totals.chunks:,} chunks: {REPAIR}")
    _check_committed(folder, manifest, plan, {}, [])
    folder.store.remove_attempts(EVERY_FOLDER)
    folder.store.add(SUCCESS, b"", check)


def _updates(folder: OutputFolder, manifest: Manifest, sums: Mapping[int, Sums]) -> tuple[Update, ...]:
    """Those of the manifest, from the first that is counted on counted anew, and the one that ends. sums: of those that
    are counted, by number. Raises OutputError.
    """
    plans = {number: folder.store.read(layout.update_plan(number, manifest.fingerprint.id)) for number in sums}
    counted = (Update(plan=hashlib.sha256(plans[number]).hexdigest(), totals=sums[number].totals) for number in sums)
    return (*manifest.updates[: min(sums, default=1) - 1], *counted)


def _remove_others(folder: OutputFolder, places: tuple[str, ...], is_ours: Callable[[str], bool], job: str) -> None:
    for name in (name for place in places for name in folder.store.files(place)):
        if not is_ours(name):
            folder.check_claim(job)  # it might be that of a job that has taken the folder just now
            folder.store.remove(name)


def _check_committed(
    folder: OutputFolder, manifest: Manifest, plan: SavedPlan | None, counted: Digests, sums: Sequence[Sums]
) -> set[str]:
    """The names of the chunks' files. Their entries must be those that were counted, with their files as they were
    written.

    Otherwise raises OutputError, and the entries of the chunks that are not so are removed, so that a resumed job
    computes these again.

    Parameters
    ----------
    folder : OutputFolder
        The folder of the job.
    manifest : Manifest
        Its manifest.
    plan : SavedPlan or None
        Its plan; None for rows in memory.
    counted : mapping of str to bytes
        As of `finish`.
    sums : sequence of Sums
        Every entry is added to each of them.

    """
    job = manifest.fingerprint.id
    chunks: dict[str, Sources] = {}
    closed: dict[int, ClosingEntry] = {}
    parts: set[str] = set()
    paths: dict[str, str] = {}  # each once, as there may be millions of chunks
    changed, damaged = [], []

    def damage(entry: Entry) -> Gap | None:
        try:
            for file in entry.files:
                read_committed(folder.store, file)
        except OutputError as error:
            return Gap(error.message, entry.chunk)
        return None

    for entry, gap in folder.each_entry(job, groups_of(plan), damage):
        for totals in sums:
            totals.add(entry)
        if isinstance(entry, ClosingEntry):
            closed[entry.group] = entry
            continue
        chunks[entry.chunk] = tuple(one._replace(path=paths.setdefault(one.path, one.path)) for one in entry.sources)
        parts.update(file.name for file in entry.files)
        damaged += [gap] if gap else []
        if counted.get(entry.chunk, entry.digest) != entry.digest:
            changed.append(Gap(f"{folder.path / entry.file_name} was changed while the job ran", entry.chunk))
    lost = [Gap(f"{folder.path / layout.entry_file(n, job)} was removed while the job ran", n) for n in counted]
    wrong = [*changed, *(gap for gap in lost if gap.chunk not in chunks), *gaps(chunks, closed, plan), *damaged]
    for chunk in {gap.chunk for gap in wrong if gap.chunk}:
        folder.check_claim(job)
        folder.store.remove(layout.entry_file(chunk, job))
        folder.store.remove_all([name for name in parts if name.rpartition("/")[2].startswith(f"{chunk}-")])
    for group in {gap.group for gap in wrong if gap.group is not None}:
        folder.check_claim(job)
        folder.store.remove(layout.closing_file(group, job))
    for gap in wrong:
        raise OutputError(f"{gap.message}: {REPAIR}")
    return parts
