"""A process that reads input for a worker, so that the two do not share a GIL. `readers.py` starts it.

Usage: python -m broadsheet.pipeline.source.read.reader_process CONNECTION RING FIRST BYTES. The first two are file
descriptors, FIRST is the number of the first slot of this process in the ring, and BYTES is the size of a slot.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from ...processes.child import parent_of, spare_pandas

spare_pandas()  # before pyarrow is imported

import pyarrow as pa  # noqa: E402

from ...errors import BroadsheetError, InputChanged, SourceError, UsageError  # noqa: E402
from ...processes.messages import Closed, receive, unpacked  # noqa: E402
from ...telemetry.spans import STORE_WAITS, Span, drain  # noqa: E402
from ..open.ahead import PARSING, ahead  # noqa: E402
from ..plan.plan import RangeEnd  # noqa: E402
from ..rows.chunk import Chunk  # noqa: E402
from .read import OpenedFile, Skipped, count_range, read_range  # noqa: E402
from .readers import (  # noqa: E402
    Failure,
    FileBegun,
    FileDone,
    HostRows,
    Item,
    Question,
    RawEnd,
    ReadRequest,
    Size,
    bytes_of,
)
from .ring import Freed, RawBlock, Refused, Share, Slots  # noqa: E402
from .ring_messages import send_message  # noqa: E402


class _Reading:
    """Answers the requests of one connection."""

    def __init__(self, connection: socket.socket, ring: int, first: int, slot_bytes: int) -> None:
        self._connection = connection
        self._talking = threading.Lock()  # held while a message is sent, or a question is sent and answered
        self._slots = Slots(ring, first, slot_bytes, lambda: unpacked(receive(connection)))

    def answer(self) -> None:
        """Answer the next request. Raises Closed."""
        spans: list[Span] = []
        request: ReadRequest = self._next()
        try:
            if request.is_raw:
                for one in self._raw(request, spans):
                    self._send(Item(one, [*drain(spans), *drain(STORE_WAITS)]))
                self._send(RawEnd())
                return
            # One item is sent while the next one is read.
            for item in ahead([partial(self._items, request, spans)], 1, 1):
                item_spans, apart = drain(spans), None
                if isinstance(item, Chunk):
                    self._send(Size(bytes_of(item)))
                    apart = item.text if request.are_texts_apart and item.text_bytes else None
                self._send(Item(item, [*item_spans, *drain(STORE_WAITS)]), apart)
                del item, apart  # freed before the next item is read
        except Closed:
            raise
        except BroadsheetError as error:
            self._send(Failure(error, spans))
        except BaseException as error:
            last_frames = "".join(traceback.format_exception(error, limit=-8))
            self._send(Failure(RuntimeError(f"{type(error).__name__}: {error}\n{last_frames}"), spans))

    def _items(self, request: ReadRequest, spans: list[Span]) -> Iterator[Chunk | Skipped | RangeEnd]:
        range_, selection = request.range, request.selection
        if request.chunk_rows:
            yield from read_range(range_, selection, request.chunk_rows, self._is_skipped, spans)
        else:
            yield count_range(range_, selection)

    def _raw(self, request: ReadRequest, spans: list[Span]) -> Iterator[FileBegun | RawBlock | HostRows | FileDone]:
        """Yield the messages about the files of a range, and about the blocks of each file."""
        for file in request.range.files:
            opened = OpenedFile(file, request.range, request.selection, request.chunk_rows, spans)
            yield FileBegun(opened.file.format, opened.selection, opened.start_row, opened.extent)
            error = None
            try:
                for block in opened.blocks(self._slots):
                    if isinstance(block, RawBlock):
                        yield block
                    else:
                        yield HostRows(block.chunk, block.sizes(), opened.stored)
            except InputChanged:
                raise
            except (SourceError, UsageError) as failure:
                error = failure
            yield FileDone(opened.problems, opened.notes, opened.extent, opened.counting, error)

    def _is_skipped(self, name: str) -> bool:
        with self._talking:
            send_message(self._connection, self._slots, Question(name))
            return bool(self._next())

    def _send(self, message: Size | Item | RawEnd | Failure, apart: pa.LargeBinaryArray | None = None) -> None:
        with self._talking:
            send_message(self._connection, self._slots, message, apart)

    def _next(self) -> Any:
        """Return the worker's next message that is not about a slot. Raises Closed."""
        while isinstance(message := unpacked(receive(self._connection)), Freed | Refused):
            self._slots.note(message)
        return message


def main(descriptor: str, ring: str, first: str, slot_bytes: str) -> None:
    PARSING.share = Share.of(int(ring)).get
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process like this for every core
    reading = _Reading(parent_of(descriptor), int(ring), int(first), int(slot_bytes))
    with suppress(Closed):
        while True:
            reading.answer()


if __name__ == "__main__":
    main(*sys.argv[1:])
