"""Finds the lines of plain text on a GPU, as CSV of one field without quotes."""

from __future__ import annotations

from ..kernels.record_ops import NOT_THERE, DeviceFields, LineRules, RecordOperations, RecordsToRead, SkippedLines
from ..source.formats.record_format import TEXT_COLUMN
from ..source.rows.chunk import Selection


class TextRecords:
    """Finds the lines of plain text (see `RecordFinder`).

    Parameters
    ----------
    selection : Selection
        The columns that the job uses: the text column, and kept columns, which a line does not have.

    """

    rules = LineRules(SkippedLines.NONE)

    def __init__(self, selection: Selection) -> None:
        wanted = [0 if name == TEXT_COLUMN else NOT_THERE for name in selection.columns]
        self._fields = DeviceFields(self.rules, 1, wanted)

    def find(self, operations: RecordOperations, records: RecordsToRead) -> None:
        """Start to look for the values of records (see `RecordFinder`)."""
        operations.fields(records, self._fields)
