"""Finds the values of JSON Lines on a GPU."""

from __future__ import annotations

from ..kernels.record_ops import DeviceKeys, LineRules, RecordOperations, RecordsToRead, SkippedLines
from ..source.rows.chunk import Selection
from .blocks import keys_of


class JsonRecords:
    """Finds the values of JSON objects, one per line (see `RecordFinder`).

    Parameters
    ----------
    selection : Selection
        The columns that the job uses.

    """

    rules = LineRules(SkippedLines.BLANK)

    def __init__(self, selection: Selection) -> None:
        keys = keys_of(selection)
        assert keys is not None
        self._keys = DeviceKeys(keys)
        self._may_be_nested = len(selection.columns) > len(selection.text)

    def find(self, operations: RecordOperations, records: RecordsToRead) -> None:
        """Start to look for the values of records (see `RecordFinder`)."""
        operations.objects(records, self._keys)
        if self._may_be_nested:
            operations.refuse_repeated_keys(records)
