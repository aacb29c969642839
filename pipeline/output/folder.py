"""The recovery point: what a job is (its fingerprint), and what of it is committed (its entries)."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.engine.base import Backend
from pipeline.errors import OutputError, UsageError
from pipeline.output.commit import commit_bytes, commit_json, sync_folder
from pipeline.output.layout import ENTRIES, MANIFEST, PARTS, PLAN, QUARANTINE, RUNS, SUCCESS, TEMPORARY
from pipeline.output.parts import PART_LAYOUT

FORMAT = "broadsheet-output/1"
_FOLDERS = (PARTS, QUARANTINE, ENTRIES, RUNS)
_VERSION = version("broadsheet")


def fingerprint(
    inputs: Sequence[Mapping[str, Any]], model: str, backend: Backend, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """All that decides a byte of the output. model: its digest."""
    return {
        "inputs": [dict(i) for i in inputs],
        "model": model,
        "backend": asdict(backend),
        "settings": dict(settings),
        "writer": {"broadsheet": _VERSION, "pyarrow": pa.__version__, "layout": PART_LAYOUT},
    }


def fingerprint_id(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class OutputFolder:
    """A job's folder on a file system that every worker sees at the same path."""

    path: Path

    @property
    def exists(self) -> bool:
        """Whether there is anything at the path."""
        return self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))

    @property
    def is_begun(self) -> bool:
        """Whether a job of ours got as far as its manifest, from which on it can be resumed."""
        return (self.path / MANIFEST).exists()

    @property
    def _is_beginning(self) -> bool:
        """Whether it holds only what `create` makes before the manifest: a job was killed just there."""
        names = {path.name for path in self.path.iterdir()} if self.path.is_dir() else {""}
        temporary = {name for name in names if name.startswith(".") and name.endswith(TEMPORARY)}
        folders = (self.path / name for name in _FOLDERS)
        return names <= {*_FOLDERS, PLAN, *temporary} and not any(any(f.iterdir()) for f in folders if f.is_dir())

    @property
    def is_ours(self) -> bool:
        """Whether it holds a job of ours, or the beginnings of one."""
        try:
            return self._json(MANIFEST).get("format") == FORMAT
        except OutputError:
            return False

    def refuse_unless(self, resume: bool, overwrite: bool) -> None:
        """Raise UsageError where the folder is not in a state for what is asked for."""
        if resume and overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
        if not self.exists or self._is_beginning:
            return
        if not resume and not overwrite:
            raise UsageError(f"{self.path} exists: choose another folder, or give --resume or --overwrite")
        if not self.is_ours:
            what = "resume" if resume else "overwrite"
            raise UsageError(f"{self.path} is not an output folder of broadsheet: will not {what} it")

    def create(self, value: Mapping[str, Any], plan: Mapping[str, Any] | None) -> None:
        """Begin a job: folders, plan, and the manifest last, which makes the folder ours. What was there is removed."""
        try:
            if self.exists:
                self._remove()
            for name in _FOLDERS:
                (self.path / name).mkdir(parents=True, exist_ok=True)
            sync_folder(self.path)
        except OSError as error:
            raise OutputError(f"{self.path} cannot be made: {error.strerror}") from error
        if plan is not None:
            commit_json(self.path / PLAN, plan)
        commit_json(self.path / MANIFEST, {"format": FORMAT, "fingerprint": value, "totals": None})

    def _remove(self) -> None:
        """The manifest goes last: until then an interrupted removal can be told from a stranger's folder."""
        (self.path / SUCCESS).unlink(missing_ok=True)
        for name in _FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / PLAN).unlink(missing_ok=True)
        (self.path / MANIFEST).unlink(missing_ok=True)

    def fingerprint(self) -> dict[str, Any]:
        value = self._json(MANIFEST).get("fingerprint")
        if not isinstance(value, dict):
            raise OutputError(f"{self.path / MANIFEST} is damaged: start again with --overwrite")
        return value

    def plan(self) -> dict[str, Any]:
        return self._json(PLAN)

    def refuse_difference(self, value: Mapping[str, Any]) -> None:
        """Raise UsageError, naming what changed, unless the job begun here is this one."""
        changes = list(_differences(self.fingerprint(), json.loads(json.dumps(value)), ""))
        if changes:
            more = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
            raise UsageError(f"cannot resume {self.path}: {changes[0]}{more}. Start again with --overwrite")

    def entries(self, job: str) -> dict[str, dict[str, Any]]:
        """The entries of a job by part name; those of another job do not count."""
        found = {}
        for path in sorted((self.path / ENTRIES).glob("[!.]*.json")):
            entry = self._json(path.relative_to(self.path))
            if entry.get("fingerprint") == job:
                found[str(entry["name"])] = entry
        return found

    def committed(self, job: str) -> dict[str, dict[str, Any]]:
        """The entries whose files are there: the chunks that a resumed job need not do again."""
        entries = self.entries(job)
        return {name: e for name, e in entries.items() if all(file.is_file() for file, _ in self.files_of(e))}

    def files_of(self, entry: Mapping[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The files that an entry makes count, with their rows, bytes and sha256."""
        for folder, about in ((PARTS, entry["part"]), (QUARANTINE, entry["quarantine"])):
            if about is not None:
                yield self.path / folder / f"{entry['name']}.parquet", about

    def clean(self) -> None:
        """Remove what interrupted attempts left under names of their own."""
        for name in (".", *_FOLDERS):
            for path in (self.path / name).glob(f".*{TEMPORARY}"):
                path.unlink(missing_ok=True)

    def finish(self, totals: Mapping[str, Any], job: str) -> None:
        """Write the totals into the manifest, then _SUCCESS. Raises OutputError where another job took the folder."""
        if fingerprint_id(self.fingerprint()) != job:
            raise OutputError(f"another job has overwritten {self.path} meanwhile: this one's labels are not there")
        self.clean()
        value = {"format": FORMAT, "fingerprint": self.fingerprint(), "totals": dict(totals)}
        commit_json(self.path / MANIFEST, value)
        commit_bytes(self.path / SUCCESS, b"")

    def record_run(self, name: str, value: Mapping[str, Any], spans: pa.Table) -> None:
        """Keep what a run was: its report as JSON, its spans as Parquet."""
        commit_json(self.path / RUNS / f"{name}.json", value)
        buffer = pa.BufferOutputStream()
        pq.write_table(spans, buffer, compression="zstd")
        commit_bytes(self.path / RUNS / f"{name}.spans.parquet", buffer.getvalue().to_pybytes())

    def totals(self) -> dict[str, Any] | None:
        """What `finish` wrote, or None for an unfinished job."""
        totals = self._json(MANIFEST).get("totals")
        return totals if isinstance(totals, dict) else None

    def _json(self, name: str | Path) -> dict[str, Any]:
        path = self.path / name
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise OutputError(f"{path} is missing") from error
        except (OSError, ValueError) as error:
            raise OutputError(f"{path} is damaged: {error}") from error
        if not isinstance(value, dict):
            raise OutputError(f"{path} is damaged: not a JSON object")
        return value


def _differences(before: Any, now: Any, where: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            yield from _differences(before.get(key), now.get(key), f"{where}.{key}" if where else key)
    elif where == "inputs" and isinstance(before, list) and isinstance(now, list):
        if [i["path"] for i in before] != [i["path"] for i in now]:
            yield f"the inputs were {[i['path'] for i in before]}, now {[i['path'] for i in now]}"
        else:
            yield from (f"input {old['path']} changed" for old, new in zip(before, now, strict=True) if old != new)
    elif before != now:
        yield "another model" if where == "model" else f"{where} was {before!r}, now {now!r}"
