"""Finishes a job: checks all that was committed, removes files that belong to nothing, and writes the totals."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import pyarrow as pa

from ..errors import OutputError
from . import layout
from .account import Gap, Sources, Sums, gaps, range_numbers
from .commit import read_committed
from .folder import REPAIR, OutputFolder
from .layout import ENTRIES, EVERY_FOLDER, MANIFEST, OF_CHUNKS, SUCCESS
from .record import ClosingEntry, Entry, Manifest, SavedPlan, Totals, Update, to_json
from .saved_plan import schema_hex
from .sidecars import write_sidecars
from .store import check_claim

Digests = Mapping[str, bytes]
"""The digests of the entries that a run has counted, by the names of their chunks."""


def finish(
    folder: OutputFolder, totals: Totals, schema: pa.Schema, job: str, counted: Digests, update: int, updates: int
) -> None:
    """Check all that was committed, write the totals into the manifest, and then write _SUCCESS.

    Temporary files and files that belong to no counted entry, such as those of a job that was overwritten, are removed.
    The files of earlier updates are neither checked nor removed. Raises OutputError if another job has taken the
    folder, or if a committed file is missing or has changed.

    Parameters
    ----------
    folder : OutputFolder
        The folder of the job.
    totals : Totals
        The totals over all labelled rows.
    schema : pyarrow.Schema
        The schema of the job's parts.
    job : str
        The id of the job.
    counted : mapping of str to bytes
        The digest of the entry of each chunk that this run has counted: of the update, or of the whole job.
    update : int
        The number of the update that ends; 0 for the whole job.
    updates : int
        How many updates the job had when this run began.

    """
    # Return early if another run has finished the job or the update.
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

    # Remove entries of other jobs and temporary files, and check what is left.
    plan = folder.plan_of(manifest, update) if update else folder.checked_plan(manifest)
    ranges = range_numbers(plan)
    others = {number for earlier in range(update) for number in range_numbers(folder.plan_of(manifest, earlier))}
    folder.store.remove_attempts(EVERY_FOLDER)
    ours = {layout.entry_file(chunk, job) for chunk in counted}
    ours |= {layout.closing_file(number, job) for number in ranges}
    _remove_others(folder, (ENTRIES,), lambda name: name in ours or layout.range_in_job(name, job) in others, job)
    withdrawn = {*(plan.withdrawn or ())} if plan else set()
    # Add up the totals of the update that ends. If it withdraws ranges, or the whole job ends, those of all updates.
    numbers = range(1 if withdrawn else update or 1, 1 + (update or len(manifest.updates)))
    sums = {number: Sums(folder.plan_of(manifest, number)) for number in numbers}
    parts = _check_committed(folder, manifest, plan, counted, list(sums.values()))

    # If ranges were withdrawn, count all other entries again.
    if withdrawn:
        for entry, _ in folder.each_entry(job, others - withdrawn, lambda _: None):
            for of_update in sums.values():
                of_update.add(entry)

    # Remove files without an entry, and write the sidecars and the totals.
    _remove_others(folder, OF_CHUNKS, lambda name: name in parts or layout.range_in_job(name, job) in others, job)
    folder.store.remove_empty_folders(manifest.fingerprint.settings.names.folder)
    write_sidecars(folder.store, manifest, schema, ranges)
    updates_now = _updates(folder, manifest, sums)
    manifest = msgspec.structs.replace(manifest, totals=totals, schema=schema_hex(schema), updates=updates_now)
    folder.store.update(MANIFEST, before, to_json(manifest), check)
    folder.remove_withdrawn(manifest)
    folder.store.add(SUCCESS, b"", check)


def seal(folder: OutputFolder, manifest: Manifest) -> None:
    """Write _SUCCESS for a job, or a last update, that was killed after it wrote its totals.

    Raises OutputError if a committed file is missing or has changed.
    """
    job, totals = manifest.fingerprint.id, manifest.totals
    check = partial(check_claim, folder.store, job)
    plan = folder.plan_of(manifest, len(manifest.updates))
    files = folder.entry_files(job, range(range_numbers(plan).stop))
    count = sum(not layout.is_closing(name) for name in files)
    if totals is not None and count != totals.chunks:
        raise OutputError(f"{folder.path} has {count:,} entries, its job had {totals.chunks:,} chunks: {REPAIR}")
    _check_committed(folder, manifest, plan, {}, [])
    folder.store.remove_attempts(EVERY_FOLDER)
    folder.store.add(SUCCESS, b"", check)


def _updates(folder: OutputFolder, manifest: Manifest, sums: Mapping[int, Sums]) -> tuple[Update, ...]:
    """Return the updates for the manifest: those before the first counted one as they are, then the counted ones.

    sums: the sums of each counted update, by its number. The last may be the update that ends. Raises OutputError.
    """
    plans = {number: folder.store.read(layout.update_plan(number, manifest.fingerprint.id)) for number in sums}
    counted = (Update(plan=hashlib.sha256(plans[number]).hexdigest(), totals=sums[number].totals) for number in sums)
    return (*manifest.updates[: min(sums, default=1) - 1], *counted)


def _remove_others(folder: OutputFolder, places: tuple[str, ...], is_ours: Callable[[str], bool], job: str) -> None:
    for name in (name for place in places for name in folder.store.files(place)):
        if not is_ours(name):
            folder.check_claim(job)  # the file may belong to a job that has just taken the folder
            folder.store.remove(name)


def _check_committed(
    folder: OutputFolder, manifest: Manifest, plan: SavedPlan | None, counted: Digests, sums: Sequence[Sums]
) -> set[str]:
    """Check the committed chunks, and return the names of their files.

    The entries must be those that were counted, and their files must be as they were written. Otherwise this function
    removes the entries of the wrong chunks, so that a resumed job computes these again, and raises OutputError.

    Parameters
    ----------
    folder : OutputFolder
        The folder of the job.
    manifest : Manifest
        The manifest of the job.
    plan : SavedPlan or None
        The plan of the job; None for rows in memory.
    counted : mapping of str to bytes
        See `finish`.
    sums : sequence of Sums
        Sums that this function adds every entry to.

    """
    job = manifest.fingerprint.id
    chunks: dict[str, Sources] = {}
    closed: dict[int, ClosingEntry] = {}
    parts: set[str] = set()
    paths: dict[str, str] = {}  # holds each path once, as there may be millions of chunks
    changed, damaged = [], []

    def damage(entry: Entry) -> Gap | None:
        try:
            for file in entry.files:
                read_committed(folder.store, file)
        except OutputError as error:
            return Gap(error.message, entry.chunk)
        return None

    # Read the entries and their files.
    for entry, gap in folder.each_entry(job, range_numbers(plan), damage):
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

    # Find what is wrong, remove it, and report the first problem.
    lost = [Gap(f"{folder.path / layout.entry_file(n, job)} was removed while the job ran", n) for n in counted]
    wrong = [*changed, *(gap for gap in lost if gap.chunk not in chunks), *gaps(chunks, closed, plan), *damaged]
    for chunk in {gap.chunk for gap in wrong if gap.chunk}:
        folder.check_claim(job)
        folder.store.remove(layout.entry_file(chunk, job))
        folder.store.remove_all([name for name in parts if name.rpartition("/")[2].startswith(f"{chunk}-")])
    for number in {gap.range_number for gap in wrong if gap.range_number is not None}:
        folder.check_claim(job)
        folder.store.remove(layout.closing_file(number, job))
    for gap in wrong:
        raise OutputError(f"{gap.message}: {REPAIR}")
    return parts
