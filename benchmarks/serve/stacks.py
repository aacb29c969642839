"""Each server as a process group, which answers JSON at a URL: `{"texts": […]}`, or what Triton takes."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.processes import environment
from benchmarks.record import ROOT

OURS = "Broadsheet"
STACKS = (OURS, "LitServe", "Triton")
_STARTS_WITHIN = 600.0
_LAST_WORDS = 2000


@dataclass(frozen=True)
class Server:
    """A server that answers at `url`, unless it is paused."""

    url: str
    process: subprocess.Popen[bytes]

    def pause(self) -> None:
        """Stop all its processes, so that they take nothing of the processor while another server is measured."""
        process = psutil.Process(self.process.pid)
        for member in (process, *process.children(recursive=True)):
            member.suspend()

    @contextmanager
    def awake(self) -> Iterator[str]:
        """Let its processes run within the block; yields the URL."""
        process = psutil.Process(self.process.pid)
        for member in (*reversed(process.children(recursive=True)), process):
            member.resume()
        yield self.url
        self.pause()


@contextmanager
def served(
    stack: str, python: str, model: str, device: str, target_ms: float, batch: int, wait_ms: float
) -> Iterator[Server]:
    """Start a server, wait until it answers, and end it with all its processes.

    Parameters
    ----------
    stack : str
        Which of STACKS to start.
    python : str
        The interpreter of the peers' environment.
    model : str
        The model; "no-op" for a handler that computes nothing.
    device : str
        "cpu" or "cuda".
    target_ms : float
        Milliseconds that a request may take, for our server.
    batch : int
        Requests of a batch, for the others.
    wait_ms : float
        Milliseconds for which they wait for a batch to fill.

    """
    port = _free_port()
    command, path = _command(stack, python, port, model, device, target_ms, batch, wait_ms)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}{path}"
            if not _comes_up(url, body_of(stack, ["a text"]), process):
                said.seek(0)
                last = said.read()[-_LAST_WORDS:].decode(errors="replace")
                raise RuntimeError(f"{shlex.join(command)} does not serve, exit code {process.poll()}: {last}")
            yield Server(url, process)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        others = psutil.Process(process.pid).children(recursive=True)
        for member in (*others, process):
            member.send_signal(signal.SIGCONT)  # it may be paused
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
        for member in (*others, process):
            with suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait()


def _command(
    stack: str, python: str, port: int, model: str, device: str, target_ms: float, batch: int, wait_ms: float
) -> tuple[list[str], str]:
    """The command, and the URL's path.

    Parameters
    ----------
    port : int
        Where the server is to listen.
    stack, python, model, device, target_ms, batch, wait_ms
        As in `served`.

    """
    if stack == "LitServe":
        given = map(str, (port, model, device, batch, wait_ms))
        return [python, "-m", "benchmarks.serve.litserve_app", *given], "/classify"
    if stack == "Triton":
        given = map(str, (port, model, device, batch, wait_ms))
        return [python, "-m", "benchmarks.serve.triton_app", *given], "/v2/models/model/infer"
    if model == "no-op":
        return [sys.executable, "-m", "benchmarks.serve.noop_app", str(port)], "/v1/classify"
    options = ["--port", str(port), "--model", model, "--device", device, "--target-ms", str(target_ms)]
    options += ["--no-log-requests", "--max-connections", "5000"]
    return [sys.executable, "-m", "broadsheet", "serve", *options], "/v1/classify"


def body_of(stack: str, texts: Sequence[str]) -> bytes:
    """The body of a request."""
    tensor = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
    return json.dumps({"inputs": [tensor]} if stack == "Triton" else {"texts": texts}).encode()


def _comes_up(url: str, body: bytes, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _STARTS_WITHIN
    while not _answers(url, body):
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _answers(url: str, body: bytes) -> bool:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status: Any = answer.status
            return bool(status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
