"""A job's output folder: created, resumed, finished."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from pipeline.errors import OutputError, UsageError
from pipeline.output import layout
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
from pipeline.output.record import Claim, Entry, Fingerprint, Manifest, Totals, from_json, to_json
from pipeline.output.store import LocalStore

_FORMAT, _OLD_FORMAT = b'"broadsheet-output"', b'"broadsheet-output/1"'
_OLD_QUARANTINE = "quarantine"
_OLD = (
    "{path} holds the output of an earlier version of broadsheet (its format is 1, this version's is {version}): "
    "verify or finish it with that version, or replace it with --overwrite"
)


@dataclass(frozen=True)
class OutputFolder:
    """A job's folder on a file system that every worker sees at the same path."""

    path: Path

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.path)

    @property
    def exists(self) -> bool:
        """Whether there is anything at the path."""
        return self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))

    @property
    def is_begun(self) -> bool:
        """Whether it holds a manifest of this program: from then on the job can be resumed."""
        return self.store.has(MANIFEST)

    @property
    def _is_old(self) -> bool:
        return self.store.has(OLD_MANIFEST) and _OLD_FORMAT in self.store.read(OLD_MANIFEST)

    @property
    def _is_beginning(self) -> bool:
        """Whether it holds only what `create` writes before the manifest: a job was killed at that moment."""
        names = {path.name for path in self.path.iterdir()} if self.path.is_dir() else {""}
        attempts = {name for name in names if LocalStore.is_attempt(name)}
        folders = [self.path / name for name in (*FOLDERS, _OLD_QUARANTINE)]
        empty = not any(any(folder.iterdir()) for folder in folders if folder.is_dir())
        return empty and names <= {*FOLDERS, _OLD_QUARANTINE, PLAN, CLAIM, *attempts}

    @property
    def _is_ours(self) -> bool:
        """Whether a job of ours is there, of any version, damaged or not."""
        return self._is_old or (self.is_begun and _FORMAT in self.store.read(MANIFEST))

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

    def create(self, fingerprint: Fingerprint, plan: bytes | None, overwrite: bool) -> None:
        """Begin a job: write the claim, the folders, the plan, and last the manifest: then it can be resumed.

        Old content is removed once the claim is written, after which no other job can finish here: it ends with an
        error. Raises UsageError where a job has begun here since this one looked, OutputError where the folder cannot
        be written.
        """
        store = self.store
        store.make(("",))
        self.refuse_unless(False, overwrite)
        store.put(CLAIM, to_json(Claim(fingerprint.id)))  # of two jobs that begin at once the later claim counts
        self._remove()
        store.make(FOLDERS)
        if plan is not None:
            store.put(PLAN, plan)
        digest = None if plan is None else hashlib.sha256(plan).hexdigest()
        store.put(MANIFEST, to_json(Manifest(fingerprint=fingerprint, plan=digest)))

    def take_up(self) -> Manifest:
        """Resume the job of this folder. Raises UsageError where another job had begun to overwrite it."""
        manifest = self.manifest()
        self.store.create(CLAIM, to_json(Claim(manifest.fingerprint.id)))
        if self._claimed_by() != manifest.fingerprint.id:
            raise UsageError(f"cannot resume {self.path}: it was being overwritten. Start again with --overwrite")
        return manifest

    def check_claim(self, job: str) -> None:
        """Raise OutputError where another job has taken the folder."""
        if self._claimed_by() != job:
            raise OutputError(f"another job has overwritten {self.path}: the labels of this one are lost")

    def _claimed_by(self) -> str:
        return from_json(self.store.read(CLAIM), Claim, self.path / CLAIM).job

    def _remove(self) -> None:
        """Remove all but the claim; a manifest last, so that an interrupted removal can still be recognised."""
        for name in (SUCCESS, *FOLDERS, _OLD_QUARANTINE, PLAN, MANIFEST, OLD_MANIFEST):
            self.store.remove(name)

    def manifest(self) -> Manifest:
        """Raises OutputError where there is none, or it is damaged or of another version."""
        if self._is_old:
            raise OutputError(_OLD.format(path=self.path, version=layout.VERSION))
        return from_json(self.store.read(MANIFEST), Manifest, self.path / MANIFEST)

    def plan(self) -> bytes:
        """The saved plan. Raises OutputError where it is missing, or not the one that the job began with."""
        data = self.store.read(PLAN)
        if hashlib.sha256(data).hexdigest() != self.manifest().plan:
            raise OutputError(f"{self.path / PLAN} is damaged: it is not the plan that the job began with")
        return data

    def entries(self, job: str) -> dict[str, Entry]:
        """The entries of a job by chunk; those of another job do not count. Raises OutputError for a damaged one."""
        found = {}
        for name in self.store.files(ENTRIES):
            if layout.of_job(name, job):
                entry = from_json(self.store.read(name), Entry, self.path / name)
                if entry.job == job:
                    found[entry.chunk] = entry
        return found

    def committed(self, job: str) -> dict[str, Entry]:
        """The entries whose files exist: the chunks that a resumed job skips."""
        has = self.store.has
        return {chunk: e for chunk, e in self.entries(job).items() if all(has(file.name) for file in e.files)}

    def clean(self) -> None:
        """Remove the temporary files of interrupted attempts."""
        self.store.remove_attempts(FOLDERS)

    def finish(self, totals: Totals, job: str) -> None:
        """Write the totals into the manifest, then _SUCCESS. Raises OutputError where another job took the folder.

        Files that a job which was overwritten has written since are removed.
        """
        self.check_claim(job)
        self.clean()
        for name in (name for folder in (PARTS, QUARANTINE, ENTRIES) for name in self.store.files(folder)):
            if not layout.of_job(name, job):
                self.store.remove(name)
        self.store.put(MANIFEST, to_json(msgspec.structs.replace(self.manifest(), totals=totals)))
        self.store.put(SUCCESS, b"")

    def record_run(self, name: str, report: bytes, spans: pa.Table) -> None:
        """Save the report of a run, JSON, and its spans as an Arrow file."""
        self.store.put(f"{RUNS}/{name}.json", report)
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_file(buffer, spans.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
            file.write_table(spans)
        self.store.put(f"{RUNS}/{name}.spans.arrow", buffer.getvalue().to_pybytes())
