"""The output of a finished job against its input as it is now: the same files, and as many rows in them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from pipeline.errors import SourceError, UsageError
from pipeline.output.account import Committed
from pipeline.output.record import InputIdentity, Manifest, SavedPlan, Settings
from pipeline.source.chunk import Selection
from pipeline.source.files import find_again
from pipeline.source.formats.base import InputFile, Stream
from pipeline.source.formats.onehot import OneHot
from pipeline.source.plan import plan_files


def recount(
    manifest: Manifest,
    plan: SavedPlan | None,
    committed: Committed,
    root: str | os.PathLike[str] | None,
    endpoint: str | None,
) -> None:
    """Plan the input of a job again and compare. A file that is read front to back is read. root: of relative paths.
    endpoint: of buckets, as of `bucket_client`.

    A file of encoded articles is only compared by size, time and hash: its size determines its rows. Raises SourceError
    for a file that has changed, or has other rows than were labelled, UsageError where the input were rows in memory.
    """
    if plan is None:
        raise UsageError("the rows of this job were in memory: there is no input that they can be compared with")
    inputs, settings = manifest.fingerprint.inputs, manifest.fingerprint.settings
    found = find_again([before.path for before in inputs], root, settings.hash == "full", endpoint)
    for before, now in zip(inputs, found, strict=True):
        _refuse_difference(before, now)
    labelled: Counter[str] = Counter()
    for entry in committed.chunks.values():
        for path, _, rows in entry.sources:
            labelled[path] += rows
    files = [file for file in found if not isinstance(file.format, OneHot)]
    counted = _rows(files, _selection(plan, settings), plan, settings.limit)
    for path, rows in counted.items():
        if rows != labelled[path]:
            raise SourceError(f"{path} has {rows:,} rows, {labelled[path]:,} are in the output")


def _refuse_difference(before: InputIdentity, file: InputFile) -> None:
    """Raise SourceError where the file is another now."""
    for what, was, now in (
        ("size", before.size, file.size),
        ("time of modification", before.modified, file.modified),
        ("hash", before.digest, file.digest),
    ):
        if was != now:
            raise SourceError(f"{before.path} has changed since it was labelled: its {what} was {was}, now {now}")


def _selection(plan: SavedPlan, settings: Settings) -> Selection:
    """As the job's options had it."""
    return Selection(
        settings.text_columns,
        plan.selection.kept,
        settings.truth_column,
        settings.columns,
        plan.selection.classes,
        keep_all=settings.keep_all,
        encoding=settings.encoding,
        delimiter=settings.delimiter,
    )


def _rows(files: Sequence[InputFile], selection: Selection, before: SavedPlan, limit: int | None) -> Counter[str]:
    """The rows of each file, found out anew; with a limit those that it leaves."""
    plan = plan_files(files, selection, before.chunk_rows, limit=limit)
    rows = Counter(dict.fromkeys((file.path for file in files), 0))
    for unit in plan.units:
        if isinstance(unit, Stream) and unit.rows is not None:
            rows[unit.file.path] += unit.rows
            continue
        if isinstance(unit, Stream):
            chunks = unit.file.format.stream(unit, plan.selection, plan.chunk_rows)
            rows[unit.file.path] += sum(chunk.rows_read for chunk in chunks)
            continue
        for fragment in unit.fragments:
            rows[fragment.file.path] += fragment.rows
    return rows
