"""Committing a chunk: its part, then its quarantined rows, then the entry by which both are committed."""

from __future__ import annotations

import hashlib

import msgspec
import pyarrow as pa

from pipeline.output.layout import entry_file, part_file, quarantine_file
from pipeline.output.parts import part_bytes
from pipeline.output.quarantine import quarantine_bytes
from pipeline.output.record import Entry, FileRecord, to_json
from pipeline.output.store import LocalStore


def commit_chunk(store: LocalStore, table: pa.Table, quarantine: pa.Table, about: Entry) -> Entry:
    """Write a chunk's files, then its entry, which is returned: `about` with the files.

    Safe to run twice, also at the same time: every attempt writes the same bytes. Raises OutputError.
    """
    files = [_commit(store, part_file(about.chunk, about.job), len(table), part_bytes(table))]
    if len(quarantine):
        name = quarantine_file(about.chunk, about.job)
        files.append(_commit(store, name, len(quarantine), quarantine_bytes(quarantine)))
    entry = msgspec.structs.replace(about, files=tuple(files))
    store.put(entry_file(about.chunk, about.job), to_json(entry))
    return entry


def _commit(store: LocalStore, name: str, rows: int, data: bytes) -> FileRecord:
    store.put(name, data)
    return FileRecord(name, rows, len(data), hashlib.sha256(data).hexdigest())
