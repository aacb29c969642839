"""Reread a finished job's output and check it against its manifest and plan, row by row, and against its input."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import OutputError
from pipeline.output.account import check_account
from pipeline.output.claim import check_claim
from pipeline.output.commit import read_committed
from pipeline.output.folder import OutputFolder
from pipeline.output.layout import CLAIM, MANIFEST, OLD_MANIFEST, PARTS, QUARANTINE, SUCCESS
from pipeline.output.parts import read_part
from pipeline.output.quarantine import quarantine_table
from pipeline.output.record import Entry, FileRecord, Totals
from pipeline.output.recount import recount

_SUMS = ("rows_read", "rows_written", "rows_filtered", "rows_quarantined", "chars", "truncated", "unknown_chars")
_FIGURES = {"chars": "n_chars", "truncated": "truncated", "unknown_chars": "unknown_chars"}
_ROWS = pa.schema([("file", pa.string()), ("row", pa.int64())])
_PART = pa.schema(
    [
        *_ROWS,
        ("label", pa.string()),
        ("n_chars", pa.int64()),
        ("truncated", pa.bool_()),
        ("unknown_chars", pa.int64()),
    ]
)


def verify(path: str | Path, *, input: bool = False) -> Totals:  # noqa: A002 - the command calls it --input
    """Check every file of an output folder.

    Parameters
    ----------
    path : str or Path
        The output folder of a finished job.
    input : bool
        Also compare with the input files: that they are those that were labelled, and how many rows they have, which is
        found out anew. Relative paths are relative to the folder in which the job ran.

    Returns
    -------
    Totals
        The job's totals: ``chunks``, ``rows_read``, ``rows_written``, ``rows_quarantined`` and others.

    Raises
    ------
    OutputError
        At the first damage: a file missing, changed or without an entry, a row lost or duplicated, a planned chunk
        without an entry, totals that do not add up; also for a job that is not finished, for a folder of an earlier
        version, and for any other folder or file.
    SourceError
        For an input file that has changed or cannot be read.
    UsageError
        For the input of a job whose rows were in memory.

    Examples
    --------
    >>> pipeline.verify("labels").rows_written
    100

    """
    folder = OutputFolder(Path(path))
    if not folder.exists:
        raise OutputError(f"{path} does not exist or is empty")
    if not {MANIFEST, OLD_MANIFEST} & folder.store.names():
        raise OutputError(f"{path} is not an output folder of broadsheet: {MANIFEST} is missing")
    manifest = folder.manifest()
    totals, job = manifest.totals, manifest.fingerprint.id
    if CLAIM in folder.store.names():
        check_claim(folder.store, job)
    if totals is None or not folder.store.has(SUCCESS):
        raise OutputError(f"{path} is not finished: continue with --resume")
    plan = folder.checked_plan(manifest)
    committed = folder.entries(job)
    files: set[str] = set()
    sums: Counter[str] = Counter(chunks=len(committed.chunks))
    labels: Counter[str] = Counter()
    for entry in committed.chunks.values():
        part, *quarantined = (_read(folder, file) for file in entry.files)
        _check_rows(entry, [part, *quarantined])
        _check_figures(entry, part)
        files.update(file.name for file in entry.files)
        sums.update({name: getattr(entry, name) for name in _SUMS})
        labels.update(entry.labels)
    for name in (*folder.store.files(PARTS), *folder.store.files(QUARANTINE)):
        if name not in files:
            raise OutputError(f"{folder.path / name} belongs to no entry of the manifest")
    check_account(committed, plan, manifest.fingerprint.inputs)
    for name, counted in sums.items():
        if getattr(totals, name) != counted:
            raise OutputError(f"{path}: {name} is {getattr(totals, name)} in the manifest, its entries have {counted}")
    if totals.labels != +labels:
        raise OutputError(f"{path}: the labels in the manifest do not add up to those of its entries")
    if totals.unread != (plan.unread if plan else ()):
        raise OutputError(f"{path}: the files that were not read are others in the manifest than in the plan")
    if input:
        recount(manifest, plan, committed)
    return totals


def _read(folder: OutputFolder, file: FileRecord) -> pa.Table:
    """The columns of `_PART`, or of `_ROWS` for quarantined rows."""
    path, data = folder.path / file.name, read_committed(folder.store, file)
    of_part = file.name.startswith(PARTS)
    schema = _PART if of_part else _ROWS
    table = read_part(data, path, schema.names) if of_part else quarantine_table(data, path)
    try:
        table = table.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise OutputError(f"{path} has columns of other types ({error})") from error
    if len(table) != file.rows:
        raise OutputError(f"{path} holds {len(table):,} rows, its entry has {file.rows:,}")
    if any(column.null_count for column in table.columns):
        raise OutputError(f"{path} has a null among file, row, label and counts")
    return table


def _check_figures(entry: Entry, part: pa.Table) -> None:
    """The entry's share of the totals must be that of its part."""
    labels = {count["values"]: count["counts"] for count in part.column("label").value_counts().to_pylist()}
    sums = {name: pc.sum(part.column(column)).as_py() or 0 for name, column in _FIGURES.items()}
    if labels != entry.labels or any(getattr(entry, name) != value for name, value in sums.items()):
        raise OutputError(f"{entry.chunk}: the labels or counts in its entry are not those of its part")


def _check_rows(entry: Entry, tables: Iterable[pa.Table]) -> None:
    """Each row of the entry's sources must be there once, written or quarantined."""
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    for table in tables:
        names = table.column("file").combine_chunks().dictionary_encode()
        numbers, which = table.column("row").to_numpy(), names.indices.to_numpy()
        for i, file in enumerate(names.dictionary.to_pylist()):
            found[file].append(numbers[which == i])
    count = sum(len(piece) for pieces in found.values() for piece in pieces)
    if count != entry.rows_read - entry.rows_filtered:
        raise OutputError(f"{entry.chunk}: {entry.rows_read:,} rows were read, {count:,} are written or quarantined")
    expected: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for file, first, rows in entry.sources:
        expected[file].append((first, first + rows))
    for file, pieces in found.items():  # as many as were read, none twice, none that was not read: so all
        here = np.concatenate(pieces)
        if len(np.unique(here)) < len(here) or not _within(here, expected[file]).all():
            raise OutputError(f"{entry.chunk}: rows of {file} are missing or duplicated")


def _within(rows: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    """Which rows are in one of the ranges."""
    found = np.zeros(len(rows), np.bool_)
    for first, end in ranges:
        found |= (rows >= first) & (rows < end)
    return found
