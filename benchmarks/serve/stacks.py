"""Starts each server in a process group of its own.

The servers answer requests in JSON at a URL: `{"texts": […]}`, or for Triton the form of its own protocol.
"""

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
        """Stop all processes of the server, so that they use no processor time while another server is measured."""
        process = psutil.Process(self.process.pid)
        for member in (process, *process.children(recursive=True)):
            member.suspend()

    @contextmanager
    def awake(self) -> Iterator[str]:
        """Let the processes of the server run within the block. Yields the URL."""
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
        The server to start, one of STACKS.
    python : str
        The interpreter of the peers' environment.
    model : str
        The model; "no-op" for a handler that computes nothing.
    device : str
        "cpu" or "cuda".
    target_ms : float
        For our server, the milliseconds that a request may take.
    batch : int
        For the others, the largest number of requests in a batch.
    wait_ms : float
        For the others, the milliseconds for which they wait for more requests of a batch.

    """
    # Start the server.
    port = _free_port()
    command, path = _command(stack, python, port, model, device, target_ms, batch, wait_ms)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        # Wait until it answers.
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
    """Terminate a server, and kill its processes if they do not end within 15 seconds."""
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
    """Return the command that starts a server, and the path of its URL.

    Parameters
    ----------
    port : int
        The port of the server.
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
    """Return the body of a request."""
    tensor = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
    return json.dumps({"inputs": [tensor]} if stack == "Triton" else {"texts": texts}).encode()


def _comes_up(url: str, body: bytes, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a server answers. Returns False if it ends, or does not answer within 600 seconds."""
    deadline = time.monotonic() + _STARTS_WITHIN
    while not _answers(url, body):
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _answers(url: str, body: bytes) -> bool:
    """Whether a server answers a request with status 200."""
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
