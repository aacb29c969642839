"""Creates, resumes, updates and reads the output folder of a job.

Each chunk has an entry, and each range has a closing entry. The names of files and their JSON call a range a group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
from msgspec import UNSET

from ..errors import BroadsheetError, OutputError, OutputUnavailable, UsageError
from ..processes.threads import threads
from ..source.open.ahead import in_order
from ..source.plan.plan import part_name
from . import layout
from .account import Entries, Sums, gaps, open_to_change, range_numbers
from .commit import check_chunk, committed_entry
from .layout import CLAIM, ENTRIES, MANIFEST, PLAN, SUCCESS, PartNames
from .object_store import open_store
from .record import ClosingEntry, Entry, Fingerprint, Manifest, OtherVersion, SavedPlan, Totals, from_json, to_json
from .saved_plan import check_plan, files_of, joined_plan, listing_digest, schema_from, schema_hex
from .sidecars import planned, remove_planned, remove_sidecars, write_sidecars
from .store import Location, Store, check_claim, claim, claimed_by, is_claimed, take_over
from .where import Where

_Seen = TypeVar("_Seen")

_FORMAT, _OLD_FORMAT = b'"broadsheet-output"', b'"broadsheet-output/1"'
_OLD_QUARANTINE = "quarantine"
_FOLDERS = (*layout.EVERY_FOLDER, _OLD_QUARANTINE)
_OLD = (
    "{path} holds the output of an earlier version of broadsheet (its format is {old}, this version's is {version}): "
    "verify or finish it with that version, or replace it with --overwrite"
)
_PUT_OFF = "it has changed or is gone since the job was planned, or is read together with such a file"
REPAIR = "--resume repairs this"
"""The end of a message about damage that a resumed job repairs: it computes or writes the content again."""


@dataclass(frozen=True)
class OutputFolder:
    """The output folder of a job, at a place that every worker can reach.

    A new job calls `create`; a resumed one calls `take_up` and then `keep_entries`. An update calls `begin_update`, or
    `go_on` to continue an earlier one, and `discard_update` removes it.
    """

    path: Location

    @property
    def store(self) -> Store:
        return open_store(self.path)

    @property
    def exists(self) -> bool:
        """Whether there is anything at the path. Raises OutputError if it cannot be checked."""
        return self.store.exists()

    @property
    def is_begun(self) -> bool:
        """Whether the folder holds a manifest of this program. If it does, the job can be resumed."""
        return MANIFEST in self.store.names()

    def _refuse_old(self, kind: type[BroadsheetError]) -> None:
        """Raise an error of class `kind` if an earlier version wrote the folder."""
        if self._old_version is not None:
            raise kind(_OLD.format(path=self.path, old=self._old_version, version=layout.VERSION))

    @property
    def _old_version(self) -> int | None:
        if self.store.has(layout.OLD_MANIFEST) and _OLD_FORMAT in self.store.read(layout.OLD_MANIFEST):
            return 1
        try:
            from_json(self.store.read(MANIFEST), Manifest, self.path / MANIFEST)
        except OtherVersion as other:
            return other.version if other.version < layout.VERSION else None
        except OutputError:
            pass
        return None

    @property
    def _is_beginning(self) -> bool:
        """Whether the folder holds only what `create` writes before the manifest: a job was killed at that moment."""
        names = self.store.names()
        attempts = {name for name in names if self.store.is_attempt(name)}
        if not names or not names <= {*_FOLDERS, PLAN, CLAIM, *attempts, *self._update_plans()}:
            return False
        return all(map(self.store.is_empty, _FOLDERS))

    @property
    def _is_ours(self) -> bool:
        """Whether the folder holds a job of any version of this program, as its manifest or its claim says.

        The job may be damaged.
        """
        return (
            self._old_version is not None
            or is_claimed(self.store)
            or (self.is_begun and _FORMAT in self.store.read(MANIFEST))
        )

    def refuse_unless(self, resume: bool, overwrite: bool, update: bool) -> None:
        """Raise UsageError if the state of the folder does not fit the options."""
        chosen = [name for name, given in (("resume", resume), ("overwrite", overwrite), ("update", update)) if given]
        if len(chosen) > 1:
            raise UsageError(f"--{chosen[0]} and --{chosen[1]} exclude each other")
        if not self.exists or self._is_beginning:
            return
        if not chosen:
            raise UsageError(f"{self.path} exists: choose another folder, or give --resume, --update or --overwrite")
        if not overwrite:
            self._refuse_old(UsageError)
        if not self._is_ours:
            what = chosen[0]
            raise UsageError(f"{self.path} is not an output folder of broadsheet: will not {what} it")

    def create(
        self, fingerprint: Fingerprint, schema: pa.Schema, plan: bytes | None, resume: bool, overwrite: bool
    ) -> None:
        """Begin a job: write the claim, the folders, the plan, and last the manifest.

        Once the manifest is written, the job can be resumed. If several jobs begin here at once, only one of them
        creates the claim. With `overwrite` the job replaces the claim and removes old content. From then on no other
        job can write here (see `Store.add`). Raises UsageError if another job has begun here, and OutputError if the
        folder cannot be written.

        Parameters
        ----------
        fingerprint : Fingerprint
            The settings and the input that decide the content of the folder.
        schema : pyarrow.Schema
            The schema of the parts.
        plan : bytes or None
            The plan as it is saved; None for rows in memory.
        resume, overwrite : bool
            See `classify`.

        """
        # Claim the folder, so that no other job begins here.
        store, job = self.store, fingerprint.id
        self.refuse_unless(resume, overwrite, False)
        store.make(("",))
        if overwrite:
            take_over(store, job)
        elif not claim(store, job):
            if not (resume and claimed_by(store) == job):
                raise UsageError(
                    f"another job has begun in {self.path}, or was stopped as it began: choose another folder, or give "
                    "--resume to continue the same job, or --overwrite"
                )
            if self.is_begun and not self._is_damaged:
                return  # another run of this job has begun it since this run looked

        # Write everything else, the manifest last.
        digest = None if plan is None else hashlib.sha256(plan).hexdigest()
        manifest = Manifest(fingerprint=fingerprint, schema=schema_hex(schema), plan=digest)
        try:
            self._begin(manifest, plan, overwrite, partial(check_claim, store, job))
        except OutputUnavailable:
            raise
        except BaseException:
            with suppress(BroadsheetError):
                if claimed_by(store) == job:
                    store.remove(CLAIM)  # so that the same command can be given again
            raise

    def _begin(self, manifest: Manifest, plan: bytes | None, overwrite: bool, check: Callable[[], None]) -> None:
        """Remove old content, its manifest last, so that an interrupted removal can be recognised. Write the new files.

        Parameters
        ----------
        manifest : Manifest
            The manifest of the job.
        plan : bytes or None
            The plan as it is saved; None for rows in memory.
        overwrite : bool
            See `classify`.
        check : callable
            Raises an error if the folder belongs to another job meanwhile.

        """
        # Find the old content that has to go.
        store = self.store
        files = {PLAN: plan, MANIFEST: to_json(manifest)}
        if overwrite:
            store.remove_attempts(())
            remove_sidecars(store, lambda _: True)
            with suppress(BroadsheetError):  # a damaged plan or manifest names no files
                before = self.manifest()
                for number in range(1 + len(before.updates) + bool(self.under_way(before))):
                    if (saved := self.plan_of(before, number)) is not None:
                        remove_planned(store, before.fingerprint.settings, saved)
            old = [SUCCESS, *_FOLDERS, PLAN, *self._update_plans(), MANIFEST, layout.OLD_MANIFEST]
        else:  # the files of a run of this job that was killed, or of one beside this run, which writes the same
            there = [name for name in files if store.has(name)]
            old = [_OLD_QUARANTINE, *(name for name in there if store.read(name) != files[name])]

        # Replace it by the new files.
        for name in old:
            check()
            store.remove(name)
        store.make(manifest.fingerprint.settings.names.folders)
        for name, data in files.items():
            if data is not None:
                store.add(name, data, check)

    def begin_update(self, number: int, plan: bytes, job: str) -> None:
        """Save the plan of an update, which only one run can do, and remove _SUCCESS.

        number: the number of the update, from 1. Raises UsageError if another run has begun an update.
        """
        if not self.store.create(layout.update_plan(number, job), plan):
            raise UsageError(
                f"another update of {self.path} has begun meanwhile: wait for it, or if it was killed, give --update "
                "again to continue it"
            )
        self.go_on(job)

    def go_on(self, job: str) -> None:
        """Begin or continue an update. The folder is incomplete until the update ends."""
        self.check_claim(job)
        self.store.remove(SUCCESS)

    def discard_update(self, number: int, plan: SavedPlan, job: str) -> None:
        """Remove what an unfinished update has written, its plan last."""
        self.check_claim(job)
        first, manifest = range_numbers(plan).start, self.manifest()
        remove_planned(self.store, manifest.fingerprint.settings, plan)
        self._remove_ranges(job, lambda number: number >= first)
        # Write the sidecars of the withdrawn ranges again: those of the update had the same names.
        write_sidecars(self.store, manifest, self.schema(manifest), plan.withdrawn or ())
        self.store.remove(layout.update_plan(number, job))

    def put_off(self, numbers: Collection[int], plan: SavedPlan, job: str) -> None:
        """Close ranges as if their files could not be read, and remove what the ranges have written.

        Their files have changed since the job was planned, or are read together with such files. An update is to
        label them.

        Parameters
        ----------
        numbers : collection of int
            The numbers of the ranges.
        plan : SavedPlan
            The plan of the job.
        job : str
            The id of the job.

        """
        self.check_claim(job)
        self._remove_ranges(job, {*numbers}.__contains__)
        listed = files_of(plan)
        for number in numbers:
            paths = [file.path for file in listed[number - plan.first_group]]
            closing = ClosingEntry(
                job=job,
                group=number,
                files=tuple((path, 0) for path in paths),
                chunks=0,
                problems=tuple((path, f"{path}: {_PUT_OFF}") for path in paths),
                unread=tuple((path, None) for path in paths),
            )
            self.store.add(closing.file_name, to_json(closing), partial(check_claim, self.store, job))

    def remove_withdrawn(self, manifest: Manifest) -> None:
        """Remove the ranges that the last update in a manifest has withdrawn. They no longer count."""
        last = self.plan_of(manifest, len(manifest.updates)) if manifest.updates else None
        if withdrawn := {*(last.withdrawn or ())} if last else None:
            job, settings = manifest.fingerprint.id, manifest.fingerprint.settings
            self.check_claim(job)
            self._remove_ranges(job, withdrawn.__contains__, planned(settings, self.checked_plan(manifest)))
            self.store.remove_empty_folders(settings.names.folder)

    def _remove_ranges(self, job: str, chosen: Callable[[int], bool], but: Container[str] = ()) -> None:
        """Remove what the ranges of the chosen numbers have written. but: see `remove_sidecars`."""

        def is_chosen(name: str) -> bool:
            return chosen(layout.range_in_job(name, job))

        remove_sidecars(self.store, is_chosen, but)
        names = [name for folder in (ENTRIES, *layout.OF_CHUNKS, layout.SIDECARS) for name in self.store.files(folder)]
        self.store.remove_all([*filter(is_chosen, names)])

    def under_way(self, manifest: Manifest) -> int | None:
        """Return the number of the update that has begun and is not finished; None if there is no such update."""
        number = len(manifest.updates) + 1
        return number if layout.update_plan(number, manifest.fingerprint.id) in self.store.names() else None

    def compaction_under_way(self, manifest: Manifest) -> tuple[int, SavedPlan] | None:
        """Return the number and the plan of a compaction that has begun and is not finished; None if there is none.

        Raises OutputError.
        """
        number = self.under_way(manifest)
        plan = self.plan_of(manifest, number) if number else None
        return None if number is None or plan is None or plan.compacted is UNSET else (number, plan)

    def discard_compaction(self, manifest: Manifest) -> None:
        """Remove what an unfinished compaction has written. The parts that it was to replace still count."""
        compaction = self.compaction_under_way(manifest)
        if compaction is not None:
            self.discard_update(*compaction, manifest.fingerprint.id)
            self.store.remove_empty_folders(manifest.fingerprint.settings.names.folder)

    def _compacted(self, manifest: Manifest) -> set[int]:
        """Return the numbers of the ranges that were compacted, including those that no longer count."""
        updates = (self.plan_of(manifest, number) for number in range(1, 1 + len(manifest.updates)))
        return {number for plan in updates if plan and plan.compacted is not UNSET for number in range_numbers(plan)}

    def counts(self, job: str) -> Callable[[str], bool]:
        """Return a function that says by the name of a chunk's file whether the file counts.

        The files of other jobs do not count. Neither do the files whose rows an unfinished update labels again, nor
        those that an unfinished compaction has written.
        """
        manifest = self.manifest()
        number = self.under_way(manifest)
        plan = self.plan_of(manifest, number) if number else None
        others = {-1, *(plan.withdrawn or () if plan else ())}  # -1: files of other jobs, see `range_in_job`
        if plan is not None and plan.compacted is not UNSET:
            others = {-1, *range_numbers(plan)}
        return lambda name: layout.range_in_job(name, job) not in others

    def _update_plans(self) -> list[str]:
        return [name for name in self.store.names() if layout.is_update_plan(name)]

    def take_up(self) -> Manifest | None:
        """Resume the job of this folder and return its manifest.

        Return None if the job has to begin anew: there is no manifest, or the manifest is damaged, but the claim still
        says whose folder it is. Raises UsageError if another job had begun to overwrite the folder.
        """
        if not self.is_begun or self._is_damaged:
            return None
        try:
            manifest = self.manifest()
        except OutputError as error:
            raise OutputError(f"{error.message}. Start again with --overwrite") from error
        job = manifest.fingerprint.id
        if not claim(self.store, job) and claimed_by(self.store) != job:
            raise UsageError(f"cannot resume {self.path}: it was being overwritten. Start again with --overwrite")
        self.store.make(manifest.fingerprint.settings.names.folders)  # copies of a folder may lack empty ones
        self.discard_compaction(manifest)
        if not self.store.has(SUCCESS):
            self.remove_withdrawn(manifest)
        return manifest

    @property
    def _is_damaged(self) -> bool:
        """Whether the manifest cannot be read as one of this version while the claim can be read."""
        try:
            self.manifest()
        except OtherVersion:
            return False
        except OutputError:
            return self.store.has(MANIFEST) and is_claimed(self.store)
        return False

    def check_claim(self, job: str) -> None:
        """Raise OutputError if another job has taken the folder."""
        check_claim(self.store, job)

    def manifest(self) -> Manifest:
        """Return the manifest. Raises OutputError if it is missing, damaged or of another version."""
        self._refuse_old(OutputError)
        data = self.store.read(MANIFEST)
        try:
            return from_json(data, Manifest, self.path / MANIFEST)
        except OtherVersion:
            raise
        except OutputError as error:
            raise OutputError(f"{error.message}: {REPAIR}" if is_claimed(self.store) else error.message) from error

    def schema(self, manifest: Manifest) -> pa.Schema:
        """Return the schema of the written rows. Raises OutputError if the manifest holds no schema."""
        try:
            return schema_from(manifest.schema)
        except ValueError as error:
            raise OutputError(f"{self.path / MANIFEST} is damaged: no schema ({error}): {REPAIR}") from error

    def plan(self) -> bytes | None:
        """Return the saved plan; None if it is missing or is not the one that the job began with.

        Raises OutputError.
        """
        if self.store.size(PLAN) is None and PLAN not in self.store.names():
            return None
        data = self.store.read(PLAN)
        return data if hashlib.sha256(data).hexdigest() == self.manifest().plan else None

    def restore_plan(self, data: bytes, job: str) -> None:
        """Write a plan that was made again. Raises OutputError if it is not the one that the job began with either."""
        if hashlib.sha256(data).hexdigest() != self.manifest().plan:
            what = "is damaged, and the input gives another plan than the one that the job began with"
            raise OutputError(f"{self.path / PLAN} {what}. Start again with --overwrite")
        self.store.put(PLAN, data, partial(check_claim, self.store, job))

    def entries(self, job: str, ranges: Container[int] | None = None) -> Entries:
        """Return the entries of a job, of these ranges or of all, without those of other jobs.

        Raises OutputError if an entry is damaged.
        """
        chunks, closed = {}, {}
        for entry, _ in self.each_entry(job, ranges, lambda _: None):
            if isinstance(entry, Entry):
                chunks[entry.chunk] = entry
            else:
                closed[entry.group] = entry
        return Entries(chunks, closed)

    def each_entry(
        self, job: str, ranges: Container[int] | None, look: Callable[[Entry], _Seen]
    ) -> Iterator[tuple[Entry | ClosingEntry, _Seen | None]]:
        """Yield the entries of a job one by one, because the entries of millions of chunks fill the memory.

        look: a function that is called in a thread with the entry of each chunk. Its result is yielded with the entry;
        None for closing entries. Raises OutputError if an entry is damaged.
        """
        for entry, seen in self._read_entries(self.entry_files(job, ranges), job, look):
            if isinstance(entry, OutputError):
                raise entry
            yield entry, seen

    def totals(self, plan: SavedPlan | None, job: str, ranges: Container[int] | None = None) -> Totals:
        """Return the sums over the entries of a job, of these ranges or of all. plan: the plan of the job.

        Raises OutputError.
        """
        sums = Sums(plan)
        for entry, _ in self.each_entry(job, ranges, lambda _: None):
            sums.add(entry)
        return sums.totals

    def keep_entries(self, job: str, fits: Callable[[Entry], bool], schema: pa.Schema, update: int) -> Entries:
        """Keep the entries by which a resumed job skips chunks and ranges, remove the others, and return those kept.

        An entry is removed if it is damaged, if it does not fit, if its rows contradict those of its range, or if one
        of its files is missing or has another size. The job then computes the chunk again; if the chunk belongs to a
        compacted range, it computes all chunks of the range.

        A finished job is resumed in order to repair it. Then this method checks everything that `verify` checks, and
        the job reads again the ranges whose files could not be read completely, from the first such file on. If an
        entry is wrong or has to change, the job is no longer finished.

        Parameters
        ----------
        job : str
            The id of the job.
        fits : callable
            Says whether the entry of a chunk fits the job.
        schema : pyarrow.Schema
            The schema of the job's parts.
        update : int
            The number of the update that is continued; 0 for the job itself.

        """
        # Find out what there should be: the ranges of the plan, and whether the job was finished.
        # Look for _SUCCESS before reading the manifest: another run may write its totals and then _SUCCESS meanwhile.
        sealed = self.store.has(SUCCESS)
        manifest = self.manifest()
        plan = self.plan_of(manifest, update) if update else self.checked_plan(manifest)
        ranges = range_numbers(plan)
        compacted = set() if update else self._compacted(manifest)
        finished = not update and (manifest.totals is not None or sealed)
        given = manifest.fingerprint.settings.where
        where = None if given is None else Where(given)

        # Read the entries that there are.
        names = self.entry_files(job, ranges if update else None)
        read = (entry for entry, _ in self._read_entries(names, job, lambda _: None))
        entries = [entry for entry in read if not isinstance(entry, OutputError)]
        size = self.store.sizes(layout.OF_CHUNKS)  # after the entries are read: another run may commit meanwhile

        def is_whole(entry: Entry) -> bool:
            if not fits(entry):
                return False
            if not finished:
                return all(size(file.name) == file.bytes for file in entry.files)
            try:
                check_chunk(self.store, entry, schema, where, manifest.fingerprint.settings.labelled)
            except OutputError:
                return False
            return True

        # Drop the ranges to read again, and every entry that contradicts its range.
        chunks = {entry.chunk: entry for entry in entries if isinstance(entry, Entry)}
        remaining = dict(chunks)
        closed = {entry.group: entry for entry in entries if isinstance(entry, ClosingEntry)}
        again = [closing for closing in closed.values() if finished and closing.problems]
        for closing in again:
            for chunk in open_to_change(closed.pop(closing.group), chunks):
                remaining.pop(chunk, None)
        for gap in gaps({name: entry.sources for name, entry in remaining.items()}, closed, plan):
            remaining.pop(gap.chunk or "", None)
            closed.pop(-1 if gap.range_number is None else gap.range_number, None)

        # Drop the chunks whose files are damaged, and every compacted range that has lost a chunk.
        with threads(self.store.readers) as pool:
            whole = list(pool.map(is_whole, remaining.values()))
        remaining = {chunk: entry for (chunk, entry), is_kept in zip(remaining.items(), whole, strict=True) if is_kept}
        broken = compacted - Entries(remaining, closed).whole  # if these are read again, their chunks have another size
        remaining = {chunk: entry for chunk, entry in remaining.items() if layout.range_of(chunk) not in broken}
        closed = {number: closing for number, closing in closed.items() if number not in broken}

        # Remove the others from the folder.
        kept_names = {entry.file_name for entry in remaining.values()} | {end.file_name for end in closed.values()}
        files = [file.name for chunk, entry in chunks.items() if chunk not in remaining for file in entry.files]
        self.check_claim(job)
        if finished and (again or manifest.totals is None or manifest.totals.chunks != len(remaining)):
            self.store.remove(SUCCESS)
        self.store.remove_all([name for name in names if name not in kept_names])  # otherwise workers skip these chunks
        self.store.remove_all(files)  # after the entries, because an entry needs its files
        return Entries(remaining, closed)

    def entry_files(self, job: str, ranges: Container[int] | None) -> list[str]:
        """Return the names of the entry files of a job, of these ranges or of all."""
        ours = (name for name in self.store.files(ENTRIES) if layout.of_job(name, job))
        return [name for name in ours if ranges is None or layout.range_in_job(name, job) in ranges]

    def _read_entries(
        self, files: list[str], job: str, look: Callable[[Entry], _Seen]
    ) -> Iterator[tuple[Entry | ClosingEntry | OutputError, _Seen | None]]:
        """Yield the entries of a job in these files, and an error for each damaged one. look: see `each_entry`."""

        def read(name: str) -> tuple[Entry | ClosingEntry | OutputError, _Seen | None]:
            kind: type[Entry | ClosingEntry] = ClosingEntry if layout.is_closing(name) else Entry
            try:
                entry = from_json(self.store.read(name), kind, self.path / name)
                if isinstance(entry, Entry) and not entry.has_files(names):
                    raise OutputError(f"{self.path / name} is damaged: it names other files than those of its chunk")
                if entry.job == job and entry.file_name != name:
                    raise OutputError(f"{self.path / name} is the entry of {entry.file_name}")
                return entry, look(entry) if isinstance(entry, Entry) and entry.job == job else None
            except OutputError as error:
                return OutputError(f"{error.message}: {REPAIR}"), None

        names, readers = self.manifest().fingerprint.settings.names, self.store.readers
        with threads(readers) as pool:
            for entry, seen in in_order(pool, (partial(read, name) for name in files), lambda: 2 * readers):
                if isinstance(entry, OutputError) or entry.job == job:
                    yield entry, seen

    def entries_of(self, which: int | str, job: str, names: PartNames) -> dict[str, Entry]:
        """Return the entries of the committed chunks of a range, or of one chunk, by name and in order.

        which: the number of the range, or the name of the chunk. names: the names of the job's parts.
        """
        chunks = [which] if isinstance(which, str) else []
        if isinstance(which, int):
            files = (name.rpartition("/")[2] for name in self.store.files(ENTRIES) if layout.of_job(name, job))
            # The names of a range's chunks are alike up to the number of the chunk, which here has seven digits.
            chunks = [name.rpartition("-")[0] for name in files if name.startswith(part_name(which, 0)[:-7])]
        entries = {chunk: committed_entry(self.store, chunk, job, names) for chunk in chunks}
        return {chunk: entry for chunk, entry in entries.items() if entry is not None}

    def checked_plan(self, manifest: Manifest) -> SavedPlan | None:
        """Return the plan of a job over files with its updates, after checking it; None for rows in memory.

        Raises OutputError.
        """
        saved = [self.plan_of(manifest, number) for number in range(1 + len(manifest.updates))]
        plans = [plan for plan in saved if plan is not None]
        try:
            return joined_plan(plans) if plans else None
        except ValueError as error:
            raise OutputError(f"{self.path / MANIFEST} is damaged: {error}. Start again with --overwrite") from error

    def plan_of(self, manifest: Manifest, number: int) -> SavedPlan | None:
        """Return the plan of an update; if `number` is 0, that of the job before its updates. Raises OutputError."""
        if number:
            return self._plan_of_update(manifest, number)
        if manifest.plan is None:
            return None
        path, data = self.path / PLAN, self.plan()
        if data is None:
            remedy = ". Put that back, or start again with --overwrite" if manifest.updates else f": {REPAIR}"
            raise OutputError(f"{path} is missing or damaged: it is not the plan that the job began with{remedy}")
        return self._checked(data, PLAN, manifest.fingerprint.input)

    def _plan_of_update(self, manifest: Manifest, number: int) -> SavedPlan:
        name = layout.update_plan(number, manifest.fingerprint.id)
        data = self.store.read(name)
        known = [update.plan for update in manifest.updates]
        if number <= len(known) and hashlib.sha256(data).hexdigest() != known[number - 1]:
            what = "it is not the plan that the update began with: put that back"
            raise OutputError(f"{self.path / name} is damaged: {what}, or start again with --overwrite")
        return self._checked(data, name)

    def _checked(self, data: bytes, name: str, listing: str | None = None) -> SavedPlan:
        """Return a plan after checking that it does not contradict itself. Raises OutputError.

        listing: the digest of its files; None if it is unknown.
        """
        plan = from_json(data, SavedPlan, self.path / name)
        try:
            check_plan(plan)
            if listing not in (None, listing_digest(plan.files)):
                raise ValueError("its files are not those that the job began with")
        except ValueError as error:
            raise OutputError(f"{self.path / name} is damaged: {error}. Start again with --overwrite") from error
        return plan

    def record_run(self, name: str, report: bytes, problems: bytes, spans: pa.Table) -> None:
        """Save the report of a run as JSON, the problems with its input as JSON lines, and its spans as Arrow."""
        self.store.put(f"{layout.RUNS}/{name}.json", report)
        self.store.put(f"{layout.RUNS}/{name}.problems.jsonl", problems)
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_file(buffer, spans.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
            file.write_table(spans)
        self.store.put(f"{layout.RUNS}/{name}.spans.arrow", buffer.getvalue().to_pybytes())
