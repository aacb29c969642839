"""A server as a user starts one: a process, which is asked over sockets and ended by signals."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline import Client

STARTS_WITHIN = 240.0


class Server:
    """url: where it listens. said: the lines of its log so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.url = str(self.wait_for("listening")["url"])
        self.wait_for("ready")

    def wait_for(self, message: str) -> dict[str, Any]:
        """The next line of the log with that message."""
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
    command = [sys.executable, "-m", "broadsheet", "serve", "--port", "0", "--log-format", "json", "--device", "cpu"]
    with subprocess.Popen(
        [*command, *map(str, arguments)], stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}
    ) as process:
        try:
            yield Server(process)
        finally:
            if process.poll() is None:
                process.kill()
