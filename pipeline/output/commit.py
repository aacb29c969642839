"""Committing a chunk: its part, then its quarantined rows, then the entry by which both count; and reading it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

import msgspec
import pyarrow as pa

from pipeline.errors import OutputError
from pipeline.output.claim import check_claim
from pipeline.output.layout import entry_file, part_file, quarantine_file
from pipeline.output.parts import part_bytes
from pipeline.output.quarantine import quarantine_bytes
from pipeline.output.record import Entry, FileRecord, to_json
from pipeline.output.store import LocalStore


def commit_chunk(store: LocalStore, table: pa.Table, quarantine: pa.Table, about: Entry) -> Entry:
    """Write a chunk's files, then its entry, which is returned: `about` with the files.

    Safe to run twice, also at the same time: every attempt writes the same bytes. Raises OutputError, also where
    another job has taken the folder.
    """
    check = partial(check_claim, store, about.job)
    files = [_commit(store, part_file(about.chunk, about.job), len(table), part_bytes(table), check)]
    if len(quarantine):
        name = quarantine_file(about.chunk, about.job)
        files.append(_commit(store, name, len(quarantine), quarantine_bytes(quarantine), check))
    entry = msgspec.structs.replace(about, files=tuple(files))
    store.put(entry_file(about.chunk, about.job), to_json(entry), check)
    return entry


def read_committed(store: LocalStore, file: FileRecord) -> bytes:
    """A committed file. Raises OutputError unless its size and hash are those of its entry."""
    path, data = store.root / file.name, store.read(file.name)
    if len(data) != file.bytes:
        what = f"it has {len(data):,} bytes, its entry says {file.bytes:,}: continue with --resume"
    elif hashlib.sha256(data).hexdigest() != file.sha256:
        what = f"the hash of its {len(data):,} bytes is not that in its entry: remove it, then continue with --resume"
    else:
        return data
    raise OutputError(f"{path} is damaged: {what}")


def _commit(store: LocalStore, name: str, rows: int, data: bytes, check: Callable[[], None]) -> FileRecord:
    store.put(name, data, check)
    return FileRecord(name, rows, len(data), hashlib.sha256(data).hexdigest())
