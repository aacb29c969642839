"""A chunk's rows as its parts, in the format and folders of the job, and the rows of a part again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import OutputError, UsageError
from .formats import csv, jsonl, parquet
from .formats.base import PartFormat, UnwritableType
from .layout import NULL_FOLDER, PartNames, folder_label, label_folder

FORMATS: dict[str, PartFormat] = {"parquet": parquet, "jsonl": jsonl, "csv": csv}
"""By the name that the user gives."""

_TAKEN_FROM_FOLDER = ("parquet",)
"""Formats whose readers take the label from the folder's name; some of them refuse to have it in the file as well. Of
the readers of other formats only DuckDB knows such folders.
"""

_LONGEST_NAME = 255
"""Bytes of a file name on every common file system."""


def check_writable(schema: pa.Schema, names: PartNames, classes: Iterable[str]) -> None:
    """Raise UsageError for a column that the format cannot hold, or a class that cannot name a folder."""
    for field in schema:
        try:
            FORMATS[names.format].write(pa.schema([field]).empty_table())
        except UnwritableType as error:
            raise UsageError(f"the column {field.name!r} cannot be written: {names.format} {error}") from error
    for label in classes if names.by is not None else ():
        if label == NULL_FOLDER or len(label_folder(names.by or "", label)) > _LONGEST_NAME:
            raise UsageError(f"the class {label!r} cannot be the name of a folder, as --partition-by needs it")


def part_files(table: pa.Table, names: PartNames, chunk: str, job: str) -> list[tuple[str, int, bytes]]:
    """The name, number of rows and bytes of each part of a chunk."""
    write, by = FORMATS[names.format].write, names.by
    found = []
    for name, label in names.files(chunk, job, [] if by is None else pc.unique(table.column(by)).to_pylist()):
        rows = table
        if by is not None:
            rows = table.filter(_has(table.column(by), label))
            rows = rows.drop_columns(by) if names.format in _TAKEN_FROM_FOLDER else rows
        found.append((name, len(rows), write(rows)))
    return found


def _has(labels: pa.ChunkedArray, label: str | None) -> pa.ChunkedArray:
    """Which rows have this label, or none."""
    return labels.is_null() if label is None else pc.fill_null(pc.equal(labels, label), False)


def read_part(
    data: bytes, name: str, path: object, schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows of a part, or some columns of it. schema: of the job's parts. Raises OutputError, with `path`, for
    another kind of file.
    """
    format_, (by, label) = PartNames.like(name).format, folder_label(name)
    chosen = schema.names if columns is None else list(columns)
    try:
        if by is None or format_ not in _TAKEN_FROM_FOLDER:
            table = FORMATS[format_].read(data, schema, chosen)
            if by in chosen and not pc.all(_has(table.column(by), label)).as_py():
                raise ValueError(f"it has rows with another label than {label!r}")
            return table
        without = schema.remove(schema.get_field_index(by))
        table = FORMATS[format_].read(data, without, [column for column in chosen if column != by])
        labels = pa.array([label], pa.string()).take(pa.array(np.zeros(len(table), np.int64)))
        return table.append_column(schema.field(by), labels).select(chosen)
    except (OSError, ValueError, KeyError, TypeError, MemoryError, RecursionError, pa.ArrowException) as error:
        raise OutputError(f"{path} is not a part of this job ({error})") from error
