"""Plain text, a text a line, found on a GPU: CSV of one field, without quotes."""

from __future__ import annotations

from ..kernels.record_ops import NOT_THERE, DeviceFields, LineRules, RecordOperations, Skipped, Unread
from ..source.chunk import Selection
from ..source.formats.record_format import TEXT_COLUMN


class TextRecords:
    """Finds the lines of plain text: as of `RecordFinder`.

    Parameters
    ----------
    selection : Selection
        The columns that the job uses: that of the text, and kept ones, which a line does not have.

    """

    rules = LineRules(Skipped.NONE)

    def __init__(self, selection: Selection) -> None:
        wanted = [0 if name == TEXT_COLUMN else NOT_THERE for name in selection.columns]
        self._fields = DeviceFields(self.rules, 1, wanted)

    def find(self, operations: RecordOperations, records: Unread) -> None:
        """Begin to look for the values of records: as of `RecordFinder`."""
        operations.fields(records, self._fields)
