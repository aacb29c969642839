"""Reread a finished job's output and check it against its manifest, row by row."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import OutputError
from pipeline.output.folder import OutputFolder, fingerprint_id
from pipeline.output.layout import PARTS, QUARANTINE, SUCCESS


def verify(path: str | Path) -> dict[str, Any]:
    """Check every file of an output folder; return the job's totals.

    Raises OutputError at the first damage: a file missing, changed or of no entry, a row lost or doubled, totals that
    do not add up, or a job that is not finished.
    """
    folder = OutputFolder(Path(path))
    if not folder.exists:
        raise OutputError(f"{path} does not exist or is empty")
    job = fingerprint_id(folder.fingerprint())
    totals = folder.totals()
    if totals is None or not (folder.path / SUCCESS).is_file():
        raise OutputError(f"{path} is not finished: go on with --resume")
    entries = folder.entries(job)
    files: set[Path] = set()
    sums: dict[str, int] = defaultdict(int)
    for entry in entries.values():
        tables = []
        for file, about in folder.files_of(entry):
            files.add(file)
            tables.append(_read(file, about))
        _check_rows(entry, tables)
        for name in ("rows_read", "rows_written", "rows_quarantined"):
            sums[name] += entry[name]
    for name in (PARTS, QUARANTINE):
        for file in sorted((folder.path / name).glob("[!.]*")):
            if file not in files:
                raise OutputError(f"{file} belongs to no entry of the manifest")
    for name, counted in {"chunks": len(entries), **sums}.items():
        if totals.get(name) != counted:
            raise OutputError(f"{path}: {name} is {totals.get(name)} in the manifest, its entries have {counted}")
    return totals


def _read(file: Path, about: dict[str, Any]) -> pa.Table:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise OutputError(f"{file} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != about["sha256"]:
        raise OutputError(f"{file} is damaged: {len(data):,} bytes of another hash than its entry has")
    table = pq.ParquetFile(pa.BufferReader(data)).read(["file", "row"], use_threads=False)
    if len(table) != about["rows"]:
        raise OutputError(f"{file} holds {len(table):,} rows, its entry has {about['rows']:,}")
    return table


def _check_rows(entry: dict[str, Any], tables: Iterable[pa.Table]) -> None:
    """Each row of the entry's sources must be there once, written or quarantined."""
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    count = 0
    for table in tables:
        count += len(table)
        names = table.column("file").combine_chunks().dictionary_encode()
        numbers, which = table.column("row").to_numpy(), names.indices.to_numpy()
        for i, file in enumerate(names.dictionary.to_pylist()):
            found[file].append(numbers[which == i])
    expected: dict[str, list[np.ndarray]] = defaultdict(list)
    for file, first, rows in entry["sources"]:
        expected[file].append(np.arange(first, first + rows))
    name = entry["name"]
    if count != entry["rows_read"]:
        raise OutputError(f"{name}: {entry['rows_read']:,} rows were read, {count:,} are written or quarantined")
    for file, pieces in expected.items():
        here = np.sort(np.concatenate([*found[file], np.empty(0, np.int64)]))
        if not np.array_equal(here, np.sort(np.concatenate(pieces))):
            raise OutputError(f"{name}: rows of {file} are missing or doubled")
