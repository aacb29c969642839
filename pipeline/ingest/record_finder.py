"""The interface through which a format tells a GPU how to find its records and their values."""

from __future__ import annotations

from typing import Protocol

from ..kernels.record_ops import LineRules, RecordOperations, RecordsToRead


class RecordFinder(Protocol):
    """Finds the values of one file's records.

    Attributes
    ----------
    rules : LineRules
        The rules that say how records end.

    """

    @property
    def rules(self) -> LineRules: ...

    def find(self, operations: RecordOperations, records: RecordsToRead) -> None:
        """Start to look for the values of records, column by column in the order of `Selection.columns`."""
