r"""Committing a chunk: its parts and its quarantined rows, then the entry by which all count; and reading them.

Quarantined rows are JSON Lines: file, row, byte_offset, reason and head, the row's first bytes as escaped text.
Well-formed UTF-8 stands for itself; any other byte is `\xNN`, and a backslash is doubled, so `unescape` is exact.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import OutputError
from ..source.chunk import QUARANTINE_SCHEMA
from ..source.plan.plan import GroupEnd
from .formats import part_files, read_part
from .layout import QUARANTINE, PartNames, entry_file, quarantine_file
from .record import ClosingEntry, Entry, FileRecord, from_json, to_json
from .store import Store, check_claim

_ESCAPE = re.compile(rb"\\(?:\\|x([0-9a-f]{2}))")


def commit_chunk(store: Store, table: pa.Table, quarantine: pa.Table, about: Entry, names: PartNames) -> Entry:
    """Write a chunk's files, then its entry, which is returned: `about` with the files. names: of the job's parts.

    Safe to run twice, also at the same time: every attempt writes the same bytes. Raises OutputError, also where
    another job has taken the folder.
    """
    check = partial(check_claim, store, about.job)
    files = part_files(table, names, about.chunk, about.job)
    if len(quarantine):
        files.append((quarantine_file(about.chunk, about.job), len(quarantine), quarantine_bytes(quarantine)))
    store.add_all([(name, data) for name, _, data in files], check)
    records = (FileRecord(name, rows, len(data), hashlib.sha256(data).hexdigest()) for name, rows, data in files)
    entry = msgspec.structs.replace(about, files=tuple(records))
    store.add(entry_file(about.chunk, about.job), to_json(entry), check)
    return entry


def committed_entry(store: Store, chunk: str, job: str, names: PartNames) -> Entry | None:
    """The entry of a chunk that is committed: its files are there, in their size. None where it is not, or not wholly.

    names: of the job's parts.
    """
    name = entry_file(chunk, job)
    if not store.has(name):
        return None
    try:
        entry = from_json(store.read(name), Entry, store.root / name)
    except OutputError:
        return None
    ours = entry.chunk == chunk and entry.job == job and entry.has_files(names)
    return entry if ours and all(store.size(file.name) == file.bytes for file in entry.files) else None


def commit_end(store: Store, end: GroupEnd, job: str) -> None:
    """Write the closing entry of a group. Raises OutputError, also where another job has taken the folder."""
    entry = ClosingEntry(
        job=job, group=end.number, files=end.files, chunks=end.chunks, problems=end.problems, unread=end.unread
    )
    store.add(entry.file_name, to_json(entry), partial(check_claim, store, job))


def read_committed(store: Store, file: FileRecord) -> bytes:
    """A committed file. Raises OutputError unless its size and hash are those of its entry."""
    path, data = store.root / file.name, store.read(file.name)
    if len(data) != file.bytes:
        what = f"it has {len(data):,} bytes, its entry says {file.bytes:,}"
    elif hashlib.sha256(data).hexdigest() != file.sha256:
        what = f"the hash of its {len(data):,} bytes is not that in its entry"
    else:
        return data
    raise OutputError(f"{path} is damaged: {what}")


def committed_rows(store: Store, entry: Entry, schema: pa.Schema, chosen: pa.Schema | None = None) -> pa.Table:
    """The written rows of a chunk, in input order. schema: of the job's parts. chosen: as of `read_part`, `file` and
    `row` in it where there are several parts; None for all. Raises OutputError.
    """
    chosen = schema if chosen is None else chosen
    files = [file for file in entry.files if not file.name.startswith(QUARANTINE)]
    found = [
        read_part(read_committed(store, file), file.name, store.root / file.name, schema, chosen) for file in files
    ]
    rows = pa.concat_tables([chosen.empty_table(), *found])
    if len(found) < 2:
        return rows
    sources = pa.array([file for file, *_ in entry.sources], pa.string()).unique()
    order = pa.table([pc.index_in(rows.column("file"), sources), rows.column("row")], ["file", "row"])
    return rows.take(pc.sort_indices(order, [("file", "ascending"), ("row", "ascending")]))


def escape(head: bytes) -> str:
    return head.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unescape(text: str) -> bytes:
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()) if found[1] else b"\\", text.encode())


def quarantine_bytes(rows: pa.Table) -> bytes:
    """The lines of a chunk's file. rows: of QUARANTINE_SCHEMA."""
    lines = (row | {"head": escape(row["head"])} for row in rows.to_pylist())
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)


def quarantine_table(data: bytes, path: object) -> pa.Table:
    """The rows again. Raises OutputError, with `path`, for what `quarantine_bytes` does not write."""
    try:
        rows = [json.loads(line) for line in data.splitlines()]
        return pa.Table.from_pylist([row | {"head": unescape(row["head"])} for row in rows], QUARANTINE_SCHEMA)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise OutputError(f"{path} holds no quarantined rows of a job ({error})") from error
