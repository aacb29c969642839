"""A process that reads input for a worker, so that the two do not share a GIL. Started by `readers.py`.

Usage: python -m broadsheet.pipeline.source.read.reader_process CONNECTION SHARE (two file descriptors)
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

from ...processes.child import parent_of, spare_pandas

spare_pandas()  # before pyarrow is imported

from ...errors import BroadsheetError  # noqa: E402
from ...processes.messages import Closed, packed, receive, send, unpacked  # noqa: E402
from ...telemetry.spans import STORE_WAITS, Span, take  # noqa: E402
from ..chunk import Chunk  # noqa: E402
from ..open.ahead import PARSING, ahead  # noqa: E402
from ..plan.plan import RangeEnd  # noqa: E402
from .read import Skipped, count_range, read_range  # noqa: E402
from .readers import Failure, Item, Question, Request, Share, Size, bytes_of  # noqa: E402


class _Reading:
    """What answers the requests of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def answer(self) -> None:
        """Answer the next request. Raises Closed."""
        frames = receive(self._connection)
        spans: list[Span] = []
        try:
            for item in ahead([partial(self._items, unpacked(frames), spans)], 1, 1):  # one is sent, the next one read
                own = take(spans)
                if isinstance(item, Chunk):
                    self._send(Size(bytes_of(item)))
                self._send(Item(item, [*own, *take(STORE_WAITS)]))
        except Closed:
            raise
        except BroadsheetError as error:
            self._send(Failure(error, spans))
        except BaseException as error:
            told = "".join(traceback.format_exception(error, limit=-8))
            self._send(Failure(RuntimeError(f"{type(error).__name__}: {error}\n{told}"), spans))

    def _items(self, request: Request, spans: list[Span]) -> Iterator[Chunk | Skipped | RangeEnd]:
        part, selection = request.part, request.selection
        if request.chunk_rows:
            yield from read_range(part, selection, request.chunk_rows, self._is_skipped, spans)
        else:
            yield count_range(part, selection)

    def _is_skipped(self, name: str) -> bool:
        self._send(Question(name))
        return bool(unpacked(receive(self._connection)))

    def _send(self, message: Size | Item | Question | Failure) -> None:
        frames = packed(message)
        with self._sending:
            send(self._connection, frames)


def main(descriptor: str, share: str) -> None:
    PARSING.share = Share(int(share)).get
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process like this for every core
    reading = _Reading(parent_of(descriptor))
    with suppress(Closed):
        while True:
            reading.answer()


if __name__ == "__main__":
    main(*sys.argv[1:])
