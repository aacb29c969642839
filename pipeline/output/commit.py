"""Committing a chunk, so that its part is there whole or not at all.

The order of a commit: the part, then the quarantined rows, then the manifest entry that makes both count. Each file is
written under a name of this attempt's own, flushed to the disk, renamed, and its folder flushed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import OutputError
from pipeline.output.layout import ENTRIES, PARTS, QUARANTINE, TEMPORARY

_REPEATING = ["file", "label", "top_labels.list.element", "reason"]
_COUNTS = ["row", "n_chars", "unknown_chars"]


def commit_chunk(
    out: Path, name: str, table: pa.Table, quarantine: pa.Table, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a chunk's part and quarantined rows, then its entry, which is returned.

    Safe to run twice, also at the same time: every attempt writes the same bytes. Raises OutputError.
    """
    entry = dict(about)
    entry["part"] = _commit_table(out / PARTS / f"{name}.parquet", table)
    entry["quarantine"] = _commit_table(out / QUARANTINE / f"{name}.parquet", quarantine) if len(quarantine) else None
    commit_json(out / ENTRIES / f"{name}.json", entry)
    return entry


def _commit_table(path: Path, table: pa.Table) -> dict[str, Any]:
    sink = pa.BufferOutputStream()
    # What repeats as a dictionary, what counts up as differences: a third of the time and of the bytes of the default.
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=_REPEATING,
        column_encoding=dict.fromkeys(_COUNTS, "DELTA_BINARY_PACKED"),
    )
    data = sink.getvalue().to_pybytes()
    commit_bytes(path, data)
    return {"rows": len(table), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def commit_json(path: Path, value: Mapping[str, Any]) -> None:
    """Commit a JSON file, its keys sorted so that the same value is always the same bytes."""
    commit_bytes(path, json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1).encode() + b"\n")


def commit_bytes(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, and stays after a power cut. Raises OutputError."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
    try:
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise OutputError(_explain(path, len(data), error)) from error


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explain(path: Path, size: int, error: OSError) -> str:
    message = f"{path} ({size:,} bytes) cannot be written: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(path.parent).free
        message += f"; {free:,} bytes are free there. Make room"
    elif error.errno == errno.EFBIG:
        message += " (a limit on file size). Raise the limit, or use a smaller --chunk-size with --overwrite"
    return message + ", then go on with --resume: what is committed stays"
