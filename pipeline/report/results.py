"""A job's rows, labelled and quarantined: in memory, or in its output folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipeline.output.folder import OutputFolder
from pipeline.output.layout import PARTS, QUARANTINE
from pipeline.output.parts import read_part
from pipeline.output.quarantine import quarantine_table
from pipeline.source.chunk import QUARANTINE_SCHEMA
from pipeline.tasks import Done


class Results:
    """The rows of a job. schema: of the labelled rows. folder: the output folder; None for rows in memory."""

    def __init__(self, schema: pa.Schema, folder: OutputFolder | None) -> None:
        self._schema = schema
        self._folder = folder
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
            store = self._folder.store
            tables = [read_part(store.read(name)) for name in store.files(PARTS)]
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
            store = self._folder.store
            yield from (quarantine_table(store.read(name)) for name in store.files(QUARANTINE))
