"""A job's rows, labelled and quarantined: in memory, or in its output folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.output.commit import committed_rows
from pipeline.output.folder import OutputFolder
from pipeline.output.layout import QUARANTINE, of_job
from pipeline.output.quarantine import quarantine_table
from pipeline.source.chunk import QUARANTINE_SCHEMA
from pipeline.tasks import Done


class Results:
    """The rows of a job. schema: of the labelled rows. folder: the output folder; None for rows in memory. job: id."""

    def __init__(self, schema: pa.Schema, folder: OutputFolder | None, job: str) -> None:
        self._schema = schema
        self._folder = folder
        self._job = job
        self._tables: dict[str, tuple[pa.Table, pa.Table]] = {}

    def add(self, done: Done) -> None:
        """Keep the rows of a chunk, where there is no output folder."""
        if done.table is not None and done.quarantine is not None:
            self._tables[done.name] = (done.table, done.quarantine)

    def labelled(self) -> pa.Table:
        """In input order."""
        if self._folder is None:
            tables = [table for _, (table, _) in sorted(self._tables.items())]
        else:
            chunks = sorted(self._folder.entries(self._job).chunks.items())
            tables = [committed_rows(self._folder.store, entry, self._schema) for _, entry in chunks]
        return pa.concat_tables([self._schema.empty_table(), *tables])

    def quarantined(self) -> pa.Table:
        """In input order: file, row, byte_offset, reason, head."""
        return pa.concat_tables([QUARANTINE_SCHEMA.empty_table(), *self._quarantined()])

    def first_quarantined(self, count: int) -> list[dict[str, Any]]:
        """The first quarantined rows, without reading them all."""
        found: list[dict[str, Any]] = []
        for table in self._quarantined():
            found += table.slice(0, count - len(found)).to_pylist()
            if len(found) == count:
                break
        return found

    def _quarantined(self) -> Iterator[pa.Table]:
        if self._folder is None:
            yield from (quarantine for _, (_, quarantine) in sorted(self._tables.items()))
        else:
            yield from (quarantine_table(data, path) for data, path in self._quarantine_files(self._folder))

    def _quarantine_files(self, folder: OutputFolder) -> Iterator[tuple[bytes, Path]]:
        """The job's own: one that was overwritten may still have written there."""
        return (
            (folder.store.read(name), folder.path / name)
            for name in folder.store.files(QUARANTINE)
            if of_job(name, self._job)
        )
