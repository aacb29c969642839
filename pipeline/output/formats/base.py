"""What every format of parts is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa


class PartFormat(Protocol):
    """Rows as the bytes of a file, and back. The same rows are always the same bytes."""

    def write(self, table: pa.Table) -> bytes:
        """The file. Raises UnwritableType for a column of a type that it cannot hold."""

    def read(self, data: bytes, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Table:
        """The rows, or some of their columns. schema: of the table that was written. Raises ValueError, KeyError,
        TypeError, OSError, RecursionError or pyarrow.ArrowException where `data` is something else.
        """


class UnwritableType(TypeError):
    """A type that a format cannot hold."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(f"cannot hold {kind}")
