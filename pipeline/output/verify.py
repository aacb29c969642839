"""Reread a finished job's output and check it against its manifest, row by row."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.errors import OutputError
from pipeline.output.folder import OutputFolder
from pipeline.output.layout import PARTS, QUARANTINE, SUCCESS
from pipeline.output.parts import read_part
from pipeline.output.quarantine import quarantine_table
from pipeline.output.record import Entry, FileRecord, Totals

_SUMS = ("rows_read", "rows_written", "rows_filtered", "rows_quarantined")


def verify(path: str | Path) -> Totals:
    """Check every file of an output folder.

    Parameters
    ----------
    path : str or Path
        The output folder of a finished job.

    Returns
    -------
    Totals
        The job's totals: ``chunks``, ``rows_read``, ``rows_written``, ``rows_quarantined`` and others.

    Raises
    ------
    OutputError
        At the first damage: a file missing, changed or without an entry, a row lost or duplicated, totals that do not
        add up; also for a job that is not finished, and for a folder of an earlier version.

    Examples
    --------
    >>> pipeline.verify("labels").rows_written
    100

    """
    folder = OutputFolder(Path(path))
    if not folder.exists:
        raise OutputError(f"{path} does not exist or is empty")
    manifest = folder.manifest()
    totals = manifest.totals
    if totals is None or not folder.store.has(SUCCESS):
        raise OutputError(f"{path} is not finished: continue with --resume")
    entries = folder.entries(manifest.fingerprint.id)
    files: set[str] = set()
    sums: Counter[str] = Counter(chunks=len(entries))
    for entry in entries.values():
        _check_rows(entry, [_read(folder, file) for file in entry.files])
        files.update(file.name for file in entry.files)
        sums.update({name: getattr(entry, name) for name in _SUMS})
    for name in (*folder.store.files(PARTS), *folder.store.files(QUARANTINE)):
        if name not in files:
            raise OutputError(f"{folder.path / name} belongs to no entry of the manifest")
    for name, counted in sums.items():
        if getattr(totals, name) != counted:
            raise OutputError(f"{path}: {name} is {getattr(totals, name)} in the manifest, its entries have {counted}")
    return totals


def _read(folder: OutputFolder, file: FileRecord) -> pa.Table:
    """The columns `file` and `row`."""
    path, data = folder.path / file.name, folder.store.read(file.name)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise OutputError(f"{path} is damaged: the hash of its {len(data):,} bytes is not that in its entry")
    table = read_part(data, ["file", "row"]) if file.name.startswith(PARTS) else quarantine_table(data)
    if len(table) != file.rows:
        raise OutputError(f"{path} holds {len(table):,} rows, its entry has {file.rows:,}")
    return table


def _check_rows(entry: Entry, tables: Iterable[pa.Table]) -> None:
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
    for file, first, rows in entry.sources:
        expected[file].append(np.arange(first, first + rows))
    if count != entry.rows_read - entry.rows_filtered:
        raise OutputError(f"{entry.chunk}: {entry.rows_read:,} rows were read, {count:,} are written or quarantined")
    for file, pieces in found.items():  # as many as were read, none twice, none that was not read: so all
        here, read = np.concatenate(pieces), np.concatenate([*expected[file], np.empty(0, np.int64)])
        if len(np.unique(here)) < len(here) or not np.isin(here, read).all():
            raise OutputError(f"{entry.chunk}: rows of {file} are missing or duplicated")
