"""Writes Arrow tables to CSV files that the user named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..storage.disk import write_file

if TYPE_CHECKING:
    import pyarrow as pa


def write_rows(file: Path, rows: pa.Table) -> None:
    """Write rows to a CSV file. Raises OutputError if the whole file cannot be written."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    with pa.BufferOutputStream() as csv:
        pa_csv.write_csv(rows, csv)
        write_file(file, csv.getvalue().to_pybytes())
