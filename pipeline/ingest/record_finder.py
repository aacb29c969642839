"""What a format says of its records, so that a GPU finds them and their values."""

from __future__ import annotations

from typing import Protocol

from ..kernels.record_ops import LineRules, RecordOperations, Unread


class RecordFinder(Protocol):
    """Finds the values of one file's records.

    Attributes
    ----------
    rules : LineRules
        How its records end.

    """

    @property
    def rules(self) -> LineRules: ...

    def find(self, operations: RecordOperations, records: Unread) -> None:
        """Begin to look for the values of records, column by column in the order of `Selection.columns`."""
