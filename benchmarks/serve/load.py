"""Load a server: python -m benchmarks.serve.load URL TEXTS.json EACH RATE CLIENTS SECONDS ARROW PROCESSES

Each request has EACH texts, as JSON or, if ARROW is 1, as an Arrow stream. The processes share the RATE, in requests
per second, and the clients. The latency of a request counts from the time at which it is due, even if it is sent later.
If the rate is 0, a client sends the next request as soon as it has an answer (closed loop).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httptools
import numpy as np
import pyarrow as pa
import uvloop

_AFTER_REFUSAL = 0.1
"""The seconds after which a refused client of a closed loop asks again. At once, it would only be refused again."""

_PATIENCE = 5.0
"""The seconds to wait for answers at the end."""


@dataclass(frozen=True)
class Share:
    """The part of the load that one process sends.

    Attributes
    ----------
    url : str
        The URL of the server.
    texts : str
        A JSON file of texts.
    each : int
        The number of texts in a request.
    rate : float
        Requests per second; 0 for a closed loop.
    clients : int
        The largest number of open connections.
    seconds : float
        How long requests are sent.
    arrow : bool
        Whether to send Arrow streams in place of JSON.

    """

    url: str
    texts: str
    each: int
    rate: float
    clients: int
    seconds: float
    arrow: bool


class _Connection(asyncio.Protocol):
    """A client, which sends one request at a time.

    It calls `on_end` with itself and the HTTP status, or 0 for a lost connection.
    """

    def __init__(self, on_end: Callable[[_Connection, int], None]) -> None:
        self.began = 0.0
        self.is_asking = False
        self._on_end, self._parser = on_end, httptools.HttpResponseParser(self)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self, request: bytes, began: float) -> None:
        self.began, self.is_asking = began, True
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        status, self._parser = self._parser.get_status_code(), httptools.HttpResponseParser(self)
        self._end(status)

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_asking:
            self._end(0)

    def _end(self, status: int) -> None:
        self.is_asking = False
        self._on_end(self, status)


class _Load:
    """The clients of one process, which send requests until the time is over, and what they measure."""

    def __init__(self, share: Share) -> None:
        self._share, self._loop = share, asyncio.get_running_loop()
        texts = json.loads(Path(share.texts).read_text())
        self._texts = [json.dumps(text).encode() for text in texts]
        self._stream = arrow_stream(texts[: share.each]) if share.arrow else b""
        address = urlsplit(share.url)
        self._host, self._port = address.hostname, address.port
        kind = "vnd.apache.arrow.stream" if share.arrow else "json"
        self._head = f"POST {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/{kind}\r\n"
        self._idle: list[_Connection] = []
        self._open, self._asking = 0, 0
        self._opening: set[asyncio.Task[None]] = set()
        self._seconds: list[float] = []
        self._counts: Counter[str] = Counter()
        self._is_over = False

    async def run(self) -> tuple[list[float], Counter[str], float]:
        """Send the load. Returns the seconds of each answer, counts of other results, and the seconds in all."""
        share, began = self._share, time.monotonic()
        if share.rate:
            await self._send(began)
        else:
            for _ in range(share.clients):
                self._new(None)
            await asyncio.sleep(share.seconds)
        self._is_over = True
        end = time.monotonic() + _PATIENCE
        while self._asking and time.monotonic() < end:
            await asyncio.sleep(0.01)
        self._counts["failed"] += self._asking
        return self._seconds, self._counts, time.monotonic() - began

    async def _send(self, began: float) -> None:
        """Send requests when they are due, or count them as not sent if all clients are waiting for answers."""
        due, end = began, began + self._share.seconds
        while due < end:
            now = time.monotonic()
            while due <= now and due < end:
                if self._idle:
                    self._ask(self._idle.pop(), due)
                elif self._open < self._share.clients:
                    self._new(due)
                else:
                    self._counts["not_sent"] += 1
                due += 1 / self._share.rate
            await asyncio.sleep(due - now)

    def _new(self, due: float | None) -> None:
        """Open a connection, which sends a request that was due at this time, or is due now for None."""

        async def connect() -> None:
            try:
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self._ended), self._host, self._port
                )
            except OSError:
                self._counts["failed"] += 1
                self._open -= 1
            else:
                self._ask(connection, time.monotonic() if due is None else due)

        self._open += 1
        task = self._loop.create_task(connect())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _ask(self, connection: _Connection, began: float) -> None:
        """Send a request with random texts. Its time counts from `began`."""
        self._asking += 1
        body = self._stream or b'{"texts":[%s]}' % b",".join(random.choices(self._texts, k=self._share.each))
        connection.ask(self._head.encode() + b"content-length: %d\r\n\r\n%s" % (len(body), body), began)

    def _ended(self, connection: _Connection, status: int) -> None:
        """Count an answer, and let the connection send the next request in a closed loop."""
        self._asking -= 1
        if status == 200:
            self._seconds.append(time.monotonic() - connection.began)
        self._counts["refused"] += status == 503
        self._counts["failed"] += status not in (200, 503)
        if status == 0:
            self._open -= 1
        elif self._share.rate:
            self._idle.append(connection)
        elif not self._is_over:
            wait = _AFTER_REFUSAL if status == 503 else 0.0
            self._loop.call_later(wait, lambda: self._ask(connection, time.monotonic()))


def run(share: Share) -> tuple[list[float], Counter[str], float]:
    """Send a share of the load in this process. Returns what `_Load.run` returns."""

    async def work() -> tuple[list[float], Counter[str], float]:
        return await _Load(share).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())


def arrow_stream(texts: list[str]) -> bytes:
    """Return texts as an Arrow stream with a column "text"."""
    table, sink = pa.table({"text": texts}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def main() -> None:
    """Send the load from several processes, and print the results as JSON."""
    url, texts, size, rate, clients, seconds, arrow, most_processes = sys.argv[1:]
    processes = min(int(most_processes), int(clients))
    shared = float(rate) / processes, int(clients) // processes
    share = Share(url, texts, int(size), *shared, float(seconds), arrow == "1")
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        answers = list(pool.map(run, [share] * processes))
    times = 1000 * np.concatenate([seconds for seconds, _, _ in answers])
    counts = sum((counts for _, counts, _ in answers), Counter[str]())
    result: dict[str, Any] = {"answered": len(times), "seconds": max(seconds for _, _, seconds in answers)}
    result |= {name: counts[name] for name in ("refused", "failed", "not_sent")}
    if len(times):
        p50, p99 = np.percentile(times, [50, 99])
        result |= {"p50_ms": p50, "p99_ms": p99, "most_ms": times.max()}
    print(json.dumps(result, default=float))


if __name__ == "__main__":
    main()
