"""Reads the metadata of a Parquet file in a child process first, because a damaged file may end the process.

pyarrow checks some values of a footer only when they are asked for, in C++ functions whose exceptions do not become
Python's. They end the process, and a job with it. So a child process asks for all values that this package uses, and
only a footer that it survives is read here. Each process checks a footer once if it reads the footer's file.

Usage: python -m broadsheet.pipeline.source.formats.parquet_check CONNECTION (a file descriptor)
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from ...processes.child import Child, parent_of, spare_pandas
from ...processes.messages import Closed, receive, send

_MAGIC = b"PAR1"


class FooterCheck:
    """The child process that checks footers. It is started for the first footer, and started again if a footer has
    ended it.

    Attributes
    ----------
    module : str
        The module that the process runs.

    """

    def __init__(self, module: str) -> None:
        self.module = module
        self._child: Child | None = None
        self._lock = threading.Lock()

    def problem(self, footer: bytes) -> str | None:
        """Return why a footer cannot be read, or None if it can. footer: its bytes, without the length after it."""
        with self._lock:
            self._child = self._child or Child(self.module, stderr=subprocess.DEVNULL)
            try:
                send(self._child.connection, [footer])
                return bytes(receive(self._child.connection)[0]).decode() or None
            except Closed:
                ended = self._child.how_it_ended()
                self._child.end()
                self._child = None
                return f"its metadata is damaged: the process that read it {ended}"


FOOTERS = FooterCheck(__name__)
"""The footer check of this process."""


def as_file(footer: bytes) -> bytes:
    """Return a Parquet file without rows that has this footer."""
    return b"".join((_MAGIC, footer, len(footer).to_bytes(4, "little"), _MAGIC))


def ask_for_all(footer: bytes) -> None:
    """Ask for all metadata of columns that this package uses. Raises the errors of pyarrow.

    A footer that pyarrow cannot read at all passes: the process that reads it next gets an error, and does not end.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(pa.BufferReader(as_file(footer)))
    except (OSError, ValueError, pa.ArrowException):
        return
    for group in range(metadata.num_row_groups):
        about = metadata.row_group(group)
        for number in range(about.num_columns):
            column = about.column(number)
            _ = (column.path_in_schema, column.compression, column.encodings, column.physical_type)


def main(ask: Callable[[bytes], None] = ask_for_all) -> None:
    """Answer with an empty message for each footer that can be read, and with a reason for each other one. ask: reads a
    footer.
    """
    spare_pandas()
    connection = parent_of(sys.argv[1])
    with suppress(Closed):
        while True:
            (footer,) = receive(connection)
            try:
                ask(bytes(footer))
                answer = ""
            except Exception as error:  # whatever the error is, the footer cannot be read
                answer = f"its metadata is damaged ({type(error).__name__}: {error})"
            send(connection, [answer.encode("utf-8", "backslashreplace")])


if __name__ == "__main__":
    main()
