"""A server started the way a user starts one: a process, reached over sockets and ended by signals."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from commands import start

from broadsheet.pipeline import Client

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
JSON = {"content-type": "application/json"}
STARTS_WITHIN = 240.0


class Server:
    """A running server. url: its address, once it is ready. said: the lines of its log so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.url = ""

    def wait_until_ready(self) -> None:
        self.url = str(self.wait_for("listening")["url"])
        self.wait_for("ready")

    def wait_for(self, message: str) -> dict[str, Any]:
        """Return the next line of the log with this message."""
        while True:
            line = self._lines.get(timeout=STARTS_WITHIN)
            if line["message"] == message:
                return line
            assert line["message"] != "", self.said[-20:]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(240)

    def client(self, **options: Any) -> Client:
        return Client(self.url, **options)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                told = json.loads(line)
            except ValueError:
                told = {"message": "not JSON", "line": line}
            self.said.append(told)
            self._lines.put(told)
        self._lines.put({"message": ""})


@contextmanager
def serving(*arguments: object) -> Iterator[Server]:
    with starting("--port", 0, *arguments) as server:
        server.wait_until_ready()
        yield server


@contextmanager
def starting(*arguments: object) -> Iterator[Server]:
    """Start a server, and yield it before it is ready."""
    options = ("--log-format", "json", "--device", "cpu")
    process = start("broadsheet", "serve", *options, *arguments)
    try:
        yield Server(process)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            stream.close()


def stream(column: pa.Array, name: str = "text", compression: str | None = None) -> bytes:
    """Return an Arrow stream with one column, as the body of a request."""
    table, sink = pa.table({name: column}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
