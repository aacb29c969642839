"""Merges the output folders of the shares of a job, which ran without a cluster, into the output of one job.

No row is read. The files of each chunk get a second name on the same disk or are copied within their bucket; otherwise
they are copied through this process. The entries are written anew, and `finish` checks all of them as for any job.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import msgspec
import pyarrow as pa
from msgspec import UNSET

from ..errors import UsageError, first_of
from ..processes.threads import threads
from ..source.open.ahead import in_order
from ..source.plan.files import share_of
from ..source.plan.plan import part_name
from ..storage.disk import refuse_outputs
from .account import Entries
from .finish import finish
from .folder import OutputFolder
from .layout import closing_file, range_of
from .object_store import place_of
from .record import ClosingEntry, Entry, Fingerprint, Manifest, SavedPlan, Totals, to_json
from .saved_plan import joined_plan, listing_digest
from .store import check_claim
from .verify import finished


@dataclass(frozen=True)
class _Share:
    """A share of a job.

    Attributes
    ----------
    folder : OutputFolder
        The output folder of the share.
    manifest, plan
        The manifest and the plan that are saved there.

    """

    folder: OutputFolder
    manifest: Manifest
    plan: SavedPlan

    @property
    def number(self) -> tuple[int, int]:
        """The number of the share, from 1, and the number of all shares."""
        return share_of(str(self.manifest.fingerprint.settings.shard))

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint without the fields that differ between shares."""
        job = self.manifest.fingerprint
        return msgspec.structs.replace(job, input="0" * 64, settings=msgspec.structs.replace(job.settings, shard=UNSET))


def merge(
    shares: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    endpoint: str | None = None,
    allow_mixed: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> Totals:
    """Merge the output folders of all shares of a job, which ran with ``shard="1/N"`` to ``"N/N"``, into one folder.

    Parameters
    ----------
    shares : sequence of str or path
        The output folders of the shares, or their URLs, in any order. `merge` does not change them, and you may remove
        them afterwards.
    output : str or path
        The folder to make. It is the output of one job, which `verify`, `select` and an update accept as any other. On
        the same disk its files are hard links to those of the shares. Within a bucket the object store copies them.
    endpoint : str, optional
        The endpoint of the object store, see `classify`.
    allow_mixed : bool
        Accept shares that ran on different processors or GPUs, whose scores may differ in their last bits.
    resume, overwrite : bool
        See `classify`.

    Returns
    -------
    Totals
        The totals over all shares.

    Raises
    ------
    UsageError
        If a share is missing or given twice, or if the shares are not of one job: they have other options, another
        model, or another listing of the input.
    OutputError
        If a share is not finished or is damaged, or if the output folder cannot be written.

    Examples
    --------
    >>> for shard in ("1/2", "2/2"):
    ...     report = broadsheet.classify(
    ...         broadsheet.Paths(["news.csv"]), f"share-{shard[0]}", text_column="title", shard=shard
    ...     )
    >>> broadsheet.merge(["share-1", "share-2"], "merged").rows_written
    100

    """
    # Open the shares and check that they belong together.
    places, place = [place_of(name, endpoint) for name in shares], OutputFolder(place_of(output, endpoint))
    refuse_outputs({}, overwrite, lambda: map(str, places), str(place.path))
    opened = [_opened(OutputFolder(share)) for share in places]
    opened.sort(key=lambda share: share.number)
    _refuse_others(opened, allow_mixed)

    # Join their plans into one. The ranges of each share are numbered after those of the share before it.
    first = opened[0]
    starts = [0, *accumulate(share.plan.ranges for share in opened)]
    plans = [msgspec.structs.replace(share.plan, whole=UNSET) for share in opened]
    joined = joined_plan([msgspec.structs.replace(p, first_group=at) for p, at in zip(plans, starts, strict=False)])
    plan = msgspec.structs.replace(joined, left_out=first.plan.left_out)  # only the first share records it
    fingerprint = msgspec.structs.replace(first.fingerprint, input=listing_digest(plan.files))
    schema = first.folder.schema(first.manifest)

    # Commit the chunks of every share that are not there yet, and finish the job.
    committed = begin(place, fingerprint, schema, msgspec.json.encode(plan) + b"\n", resume, overwrite)
    counted = {name: entry.digest for name, entry in committed.chunks.items()}
    readers = place.store.readers
    with threads(readers) as pool:
        calls = (
            partial(_take, share, entry, offset, place, fingerprint.id)
            for share, offset in zip(opened, starts, strict=False)
            for entry, _ in share.folder.each_entry(share.manifest.fingerprint.id, None, lambda _: None)
            if isinstance(entry, ClosingEntry) or _moved(entry.chunk, offset) not in counted
        )
        counted |= {entry.chunk: entry.digest for entry in in_order(pool, calls, lambda: 2 * readers) if entry}
    totals = place.totals(plan, fingerprint.id)
    finish(place, totals, schema, fingerprint.id, counted, 0, 0)
    return totals


def begin(
    place: OutputFolder, fingerprint: Fingerprint, schema: pa.Schema, plan: bytes | None, resume: bool, overwrite: bool
) -> Entries:
    """Begin or continue an output that is made from other outputs, and return the entries that it keeps.

    Raises UsageError if another output was begun there.

    Parameters
    ----------
    place : OutputFolder
        The output folder.
    fingerprint, schema, plan, resume, overwrite
        See `OutputFolder.create`.

    """
    place.refuse_unless(resume, overwrite, False)
    before = place.take_up() if resume else None
    if before is not None and before.fingerprint != fingerprint:
        raise UsageError(
            f"cannot resume {place.path}: it was to hold something else, or what it is made from has changed. Give the "
            "options that it began with, or start again with --overwrite"
        )
    if before is not None and before.updates:
        raise UsageError(
            f"{place.path} is merged, and has been updated or its parts joined since. `broadsheet verify` says whether "
            "it is whole; if it is not, `broadsheet classify INPUT -o` there with --resume repairs it"
        )
    if before is None:
        place.store.probe()
        place.create(fingerprint, schema, plan, resume, overwrite)
        return Entries({}, {})
    if plan is not None and place.plan() is None:
        place.restore_plan(plan, fingerprint.id)
    return place.keep_entries(fingerprint.id, lambda _: True, schema, 0)


def _opened(folder: OutputFolder) -> _Share:
    manifest, _ = finished(folder)
    plan = folder.checked_plan(manifest)
    if manifest.fingerprint.settings.shard is UNSET or plan is None:
        raise UsageError(f"{folder.path} is not a share of a job: it ran without --shard")
    return _Share(folder, manifest, plan)


def _refuse_others(shares: Sequence[_Share], allow_mixed: bool) -> None:
    """Raise UsageError unless these are all the shares of one job."""
    if not shares:
        raise UsageError("give the output folders of all shares")
    first, count = shares[0], shares[0].number[1]
    for share, before in zip(shares, [None, *shares], strict=False):
        if share.number[1] != count:
            raise UsageError(f"{share.folder.path} is one of {share.number[1]} shares, {first.folder.path} of {count}")
        if before is not None and before.number == share.number:
            raise UsageError(f"{before.folder.path} and {share.folder.path} are the same share, {share.number[0]}")
        if share.plan.whole != first.plan.whole:
            raise UsageError(
                f"{share.folder.path} and {first.folder.path} were divided from different listings: files came, went "
                "or changed in between. Label one of them again with --overwrite, over the same files"
            )
        for name in Fingerprint.__struct_fields__:
            a, b = getattr(first.fingerprint, name), getattr(share.fingerprint, name)
            if a != b and not (allow_mixed and name == "backend"):
                remedy = "; --allow-mixed takes them all the same" if name == "backend" else ""
                both = f"{share.folder.path} and {first.folder.path}"
                raise UsageError(f"{both} differ in {name}: {_differ(b, a)}{remedy}")
    missing = sorted({*range(1, count + 1)} - {share.number[0] for share in shares})
    if missing:
        raise UsageError(f"of {count} shares these are missing: {first_of([f'{n}/{count}' for n in missing])}")


def _differ(one: object, other: object) -> str:
    if isinstance(one, msgspec.Struct):
        pairs = ((name, getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
        return ", ".join(f"{name} {a!r}, not {b!r}" for name, a, b in pairs if a != b)
    return f"{one}, not {other}"


def _moved(chunk: str, offset: int) -> str:
    """Return the name that a chunk of a share has in the merged output."""
    return part_name(range_of(chunk) + offset, int(chunk.rpartition("-")[2]))


def _take(share: _Share, entry: Entry | ClosingEntry, offset: int, place: OutputFolder, job: str) -> Entry | None:
    """Commit to the output what an entry of a share commits. Return the new entry of a chunk; None for a closing entry.

    Parameters
    ----------
    share : _Share
        The share.
    entry : Entry or ClosingEntry
        The entry of the share.
    offset : int
        The number to add to the numbers of the share's ranges.
    place, job
        The output folder, and the id of its job.

    """
    store, check = place.store, partial(check_claim, place.store, job)
    if isinstance(entry, ClosingEntry):
        closing = msgspec.structs.replace(entry, job=job, group=entry.group + offset)
        store.add(closing_file(closing.group, job), to_json(closing), check)
        return None
    chunk, files = _moved(entry.chunk, offset), []
    for file in entry.files:
        folder, _, name = file.name.rpartition("/")
        there = f"{folder}/{chunk}-{job[:8]}.{name.rpartition('.')[2]}"
        store.take(there, share.folder.store, file.name, check)
        files.append(msgspec.structs.replace(file, name=there))
    taken = msgspec.structs.replace(entry, chunk=chunk, job=job, files=tuple(files))
    store.add(taken.file_name, to_json(taken), check)
    return taken
