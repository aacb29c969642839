"""Finds the fields of CSV and TSV on a GPU."""

from __future__ import annotations

import numpy as np

from ..kernels.record_ops import NOT_THERE, DeviceFields, LineRules, RecordOperations, RecordsToRead, SkippedLines
from ..source.formats.csv import Csv
from ..source.rows.chunk import Selection

_ALL = int(np.iinfo(np.uint32).max)
"""Says that every CR before a line end belongs to the line end (see `LineRules`)."""


class CsvRecords:
    """Finds the fields of CSV records (see `RecordFinder`).

    Parameters
    ----------
    form : Csv
        The format, bound to the columns and the dialect of the file.
    selection : Selection
        The columns that the job uses. A column that the file lacks has no values.

    """

    def __init__(self, form: Csv, selection: Selection) -> None:
        quote = ord(form.quote) if form.quote else NOT_THERE
        self.rules = LineRules(SkippedLines.EMPTY, _ALL, quote, ord(form.delimiter))
        wanted = [form.columns.index(name) if name in form.columns else NOT_THERE for name in selection.columns]
        self._fields = DeviceFields(self.rules, len(form.columns), wanted)

    def find(self, operations: RecordOperations, records: RecordsToRead) -> None:
        """Start to look for the values of records (see `RecordFinder`)."""
        operations.fields(records, self._fields)
