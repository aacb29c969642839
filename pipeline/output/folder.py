"""A job's output folder: created, resumed, finished."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa

from pipeline.errors import OutputError, UsageError
from pipeline.output import layout
from pipeline.output.account import Committed, check_account
from pipeline.output.claim import check_claim, claim, claimed_by, is_claimed, take_over
from pipeline.output.commit import read_committed
from pipeline.output.layout import (
    CLAIM,
    ENTRIES,
    FOLDERS,
    MANIFEST,
    OLD_MANIFEST,
    PARTS,
    PLAN,
    QUARANTINE,
    RUNS,
    SUCCESS,
)
from pipeline.output.record import ClosingEntry, Entry, Fingerprint, Manifest, SavedPlan, Totals, from_json, to_json
from pipeline.output.saved_plan import check_plan
from pipeline.output.store import LocalStore
from pipeline.source.chunk import NO_TRUTH
from pipeline.threads import available_cores, threads

_FORMAT, _OLD_FORMAT = b'"broadsheet-output"', b'"broadsheet-output/1"'
_OLD_QUARANTINE = "quarantine"
_OLD = (
    "{path} holds the output of an earlier version of broadsheet (its format is 1, this version's is {version}): "
    "verify or finish it with that version, or replace it with --overwrite"
)
_LEAST_READERS = 8
"""Threads that read small files, which takes time rather than work on a file system of the network."""


@dataclass(frozen=True)
class OutputFolder:
    """A job's folder on a file system that every worker sees at the same path."""

    path: Path

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.path)

    @property
    def exists(self) -> bool:
        """Whether there is anything at the path. Raises OutputError where that cannot be found out."""
        return bool(self.store.names()) or (os.path.exists(self.path) and not os.path.isdir(self.path))

    @property
    def is_begun(self) -> bool:
        """Whether it holds a manifest of this program: from then on the job can be resumed."""
        return MANIFEST in self.store.names()

    @property
    def _is_old(self) -> bool:
        return self.store.has(OLD_MANIFEST) and _OLD_FORMAT in self.store.read(OLD_MANIFEST)

    @property
    def _is_beginning(self) -> bool:
        """Whether it holds only what `create` writes before the manifest: a job was killed at that moment."""
        names = self.store.names()
        attempts = {name for name in names if LocalStore.is_attempt(name)}
        empty = not any(LocalStore(self.path / name).names() for name in (*FOLDERS, _OLD_QUARANTINE))
        return bool(names) and empty and names <= {*FOLDERS, _OLD_QUARANTINE, PLAN, CLAIM, *attempts}

    @property
    def _is_ours(self) -> bool:
        """Whether a job of ours is there, of any version, damaged or not: its manifest or its claim says so."""
        return self._is_old or is_claimed(self.store) or (self.is_begun and _FORMAT in self.store.read(MANIFEST))

    def refuse_unless(self, resume: bool, overwrite: bool) -> None:
        """Raise UsageError where the state of the folder does not fit the options."""
        if resume and overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
        if not self.exists or self._is_beginning:
            return
        if not resume and not overwrite:
            raise UsageError(f"{self.path} exists: choose another folder, or give --resume or --overwrite")
        if resume and self._is_old:
            raise UsageError(_OLD.format(path=self.path, version=layout.VERSION))
        if not self._is_ours:
            what = "resume" if resume else "overwrite"
            raise UsageError(f"{self.path} is not an output folder of broadsheet: will not {what} it")

    def create(self, fingerprint: Fingerprint, plan: bytes | None, resume: bool, overwrite: bool) -> None:
        """Begin a job: write the claim, the folders, the plan, and last the manifest: then it can be resumed.

        Of several jobs that begin here at once, one creates the claim. With `overwrite` the claim is replaced and old
        content removed; from then on no other job can write here (see `LocalStore.put`). Raises UsageError where
        another job has begun here, OutputError where the folder cannot be written.
        """
        store, job = self.store, fingerprint.id
        self.refuse_unless(resume, overwrite)
        store.make(("",))
        if overwrite:
            take_over(store, job)
        elif not claim(store, job):
            if not (resume and claimed_by(store) == job):
                raise UsageError(
                    f"another job has begun in {self.path}, or was stopped as it began: choose another folder, or give "
                    "--resume to continue the same job, or --overwrite"
                )
            if self.is_begun:
                return  # by another run of this job, since this one looked
        try:
            self._begin(fingerprint, plan, overwrite, partial(check_claim, store, job))
        except BaseException:
            with suppress(OutputError):
                if claimed_by(store) == job:
                    store.remove(CLAIM)  # so that the same command can be given again
            raise

    def _begin(self, fingerprint: Fingerprint, plan: bytes | None, overwrite: bool, check: Callable[[], None]) -> None:
        """Old content is removed, a manifest last, so that an interrupted removal can still be recognised."""
        store = self.store
        old = (SUCCESS, *FOLDERS, _OLD_QUARANTINE, PLAN, MANIFEST, OLD_MANIFEST) if overwrite else (_OLD_QUARANTINE,)
        if overwrite:
            store.remove_attempts(())
        for name in old:
            check()
            store.remove(name)
        store.make(FOLDERS)
        if plan is not None:
            store.put(PLAN, plan, check)
        digest = None if plan is None else hashlib.sha256(plan).hexdigest()
        store.put(MANIFEST, to_json(Manifest(fingerprint=fingerprint, plan=digest)), check)

    def take_up(self) -> Manifest:
        """Resume the job of this folder. Raises UsageError where another job had begun to overwrite it."""
        try:
            manifest = self.manifest()
        except OutputError as error:
            raise OutputError(f"{error.message}. Start again with --overwrite") from error
        job = manifest.fingerprint.id
        if not claim(self.store, job) and claimed_by(self.store) != job:
            raise UsageError(f"cannot resume {self.path}: it was being overwritten. Start again with --overwrite")
        self.store.make(FOLDERS)  # copies of a folder may lack those that were empty
        return manifest

    def check_claim(self, job: str) -> None:
        """Raise OutputError where another job has taken the folder."""
        check_claim(self.store, job)

    def manifest(self) -> Manifest:
        """Raises OutputError where there is none, or it is damaged or of another version."""
        if self._is_old:
            raise OutputError(_OLD.format(path=self.path, version=layout.VERSION))
        return from_json(self.store.read(MANIFEST), Manifest, self.path / MANIFEST)

    def plan(self) -> bytes:
        """The saved plan. Raises OutputError where it is missing, or not the one that the job began with."""
        data = self.store.read(PLAN)
        if hashlib.sha256(data).hexdigest() != self.manifest().plan:
            what = "is damaged: it is not the plan that the job began with"
            raise OutputError(f"{self.path / PLAN} {what}. Start again with --overwrite")
        return data

    def entries(self, job: str) -> Committed:
        """The entries of a job; those of another job do not count. Raises OutputError for a damaged one."""
        chunks, closed = {}, {}
        for entry in self._entries(job):
            if isinstance(entry, OutputError):
                raise entry
            if isinstance(entry, Entry):
                chunks[entry.chunk] = entry
            else:
                closed[entry.file] = entry
        return Committed(chunks, closed)

    def committed(self, job: str, classes: Sequence[str]) -> dict[str, Entry]:
        """The entries by which a resumed job skips chunks: not those that are damaged, or that have labels other than
        `classes`, or whose files are not there in their size. Such a chunk is computed again.

        A job that was finished and has lost some of them is no longer finished.
        """
        entries = [entry for entry in self._entries(job) if isinstance(entry, Entry)]
        with self._readers() as pool:
            whole = pool.map(lambda entry: _is_of(entry, len(classes), {*classes}) and self._has_files(entry), entries)
            found = {entry.chunk: entry for entry, kept in zip(entries, whole, strict=True) if kept}
        totals = self.manifest().totals
        if totals is not None and totals.chunks != len(found):
            self.store.remove(SUCCESS)
        return found

    def _has_files(self, entry: Entry) -> bool:
        return all(self.store.size(file.name) == file.bytes for file in entry.files)

    def _entries(self, job: str) -> Iterator[Entry | ClosingEntry | OutputError]:
        """The entries of a job, and errors for damaged ones."""

        def read(name: str) -> Entry | ClosingEntry | OutputError:
            kind: type[Entry | ClosingEntry] = ClosingEntry if layout.is_closing(name) else Entry
            try:
                found = from_json(self.store.read(name), kind, self.path / name)
                if isinstance(found, Entry) and not found.files:
                    raise OutputError(f"{self.path / name} is damaged: it names no files")
                return found
            except OutputError as error:
                return OutputError(f"{error.message}. Remove it, then continue with --resume")

        names = [name for name in self.store.files(ENTRIES) if layout.of_job(name, job)]
        with self._readers() as pool:
            for name, found in zip(names, pool.map(read, names), strict=True):
                if isinstance(found, OutputError):
                    yield found
                elif found.job == job and found.file_name != name:
                    yield OutputError(f"{self.path / name} is the entry of {found.file_name}: remove it")
                elif found.job == job:
                    yield found

    def _readers(self) -> AbstractContextManager[ThreadPoolExecutor]:
        return threads(max(_LEAST_READERS, available_cores()))

    def close(self, entry: ClosingEntry) -> None:
        """Commit the end of what was counted as it was read. Raises OutputError, also where another job took the
        folder.
        """
        self.store.put(entry.file_name, to_json(entry), partial(check_claim, self.store, entry.job))

    def finish(self, totals: Totals, job: str, counted: Mapping[str, bytes]) -> None:
        """Check all that was committed, and write the totals into the manifest, then _SUCCESS.

        counted: the digest of the entry of each chunk that the totals are made of. Files that a job which was
        overwritten has left, and temporary files, are removed. Raises OutputError where another job took the folder, or
        where not all is there as it was committed.
        """
        check = partial(check_claim, self.store, job)
        check()
        manifest = msgspec.structs.replace(self.manifest(), totals=totals)
        self.store.remove_attempts(FOLDERS)
        for name in (name for folder in (PARTS, QUARANTINE, ENTRIES) for name in self.store.files(folder)):
            if not layout.of_job(name, job):
                check()  # they might be those of a job that has taken the folder just now
                self.store.remove(name)
        self._check_committed(manifest, counted)
        self.store.put(MANIFEST, to_json(manifest), check)
        self.store.put(SUCCESS, b"", check)

    def _check_committed(self, manifest: Manifest, counted: Mapping[str, bytes]) -> None:
        """Raise OutputError unless the entries are those that were counted, and their files as they were written."""
        job = manifest.fingerprint.id
        committed = self.entries(job)
        for chunk, digest in counted.items():
            path = self.path / layout.entry_file(chunk, job)
            entry = committed.chunks.get(chunk)
            if entry is None:
                raise OutputError(f"{path} was removed while the job ran: continue with --resume")
            if entry.digest != digest:
                raise OutputError(f"{path} was changed while the job ran: remove it, then continue with --resume")
        check_account(committed, self.checked_plan(manifest), manifest.fingerprint.inputs)
        files = [file for entry in committed.chunks.values() for file in entry.files]
        with self._readers() as pool:
            for _ in pool.map(lambda file: len(read_committed(self.store, file)), files):
                pass

    def checked_plan(self, manifest: Manifest) -> SavedPlan | None:
        """The plan of a job over files, without contradictions; None for rows in memory. Raises OutputError."""
        if manifest.plan is None:
            return None
        path = self.path / PLAN
        plan = from_json(self.plan(), SavedPlan, path)
        try:
            check_plan(plan, [file.path for file in manifest.fingerprint.inputs])
        except ValueError as error:
            raise OutputError(f"{path} is damaged: {error}. Start again with --overwrite") from error
        return plan

    def record_run(self, name: str, report: bytes, spans: pa.Table) -> None:
        """Save the report of a run, JSON, and its spans as an Arrow file."""
        self.store.put(f"{RUNS}/{name}.json", report)
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_file(buffer, spans.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
            file.write_table(spans)
        self.store.put(f"{RUNS}/{name}.spans.arrow", buffer.getvalue().to_pybytes())


def _is_of(entry: Entry, count: int, classes: set[str]) -> bool:
    """Whether an entry's labels are among the model's classes."""
    pairs = entry.confusion or ()
    return entry.labels.keys() <= classes and all(NO_TRUTH <= a < count and 0 <= b < count for a, b, _ in pairs)
