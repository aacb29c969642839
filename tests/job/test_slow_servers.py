"""Servers that do not answer while a job is planned: the job says what it waits for, and obeys Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from commands import start
from s3 import KEYS

SECONDS = 45
"""Shorter than the timeout of any request, and longer than a busy machine takes to end a process."""


class Slow(ThreadingHTTPServer):
    """Never answers, or answers that it is overloaded. It only serves the first byte of paths that contain `told`."""

    daemon_threads = True

    def __init__(self, *, is_silent: bool) -> None:
        self.ended = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if "told" in self.path and self.headers.get("Range") == "bytes=0-0":
                    self.send_response(206)
                    self.send_header("Content-Range", "bytes 0-0/100000")
                    self.send_header("Content-Length", "1")
                    self.end_headers()
                    self.wfile.write(b"{")
                    return
                if is_silent:
                    server.ended.wait()
                    return
                self.send_response(503)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture(params=[True, False], ids=["silent", "overloaded"])
def slow(request: pytest.FixtureRequest) -> Iterator[Slow]:
    server = Slow(is_silent=request.param)
    yield server
    server.ended.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("place", "number"),
    [
        ("web", signal.SIGINT),
        pytest.param("planned", signal.SIGTERM, marks=pytest.mark.slow),  # a cluster starts at the same time
        pytest.param("object", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("folder", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("output", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_job_that_waits_for_a_server_says_so_and_ends_at_a_signal(
    place: str, number: int, slow: Slow, small_model_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "an article"}\n')
    web = {"web": f"{slow.url}/a.json", "planned": f"{slow.url}/told.jsonl"}
    source = (web | {"object": "s3://bucket/a.json", "folder": "s3://bucket/in"}).get(place)
    out = "s3://bucket/out" if place == "output" else str(tmp_path / "out")
    arguments = [source or tmp_path / "a.jsonl", "-o", out, "--model", small_model_file]
    arguments += [] if place in web else ["--endpoint", slow.url]
    process = start("broadsheet", "classify", *arguments, env={**KEYS, "AWS_REGION": "us-east-1"})
    try:
        assert process.stderr is not None
        said = ""
        while "waiting for" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(number)
        said += process.communicate(timeout=SECONDS)[1]
    finally:
        process.kill()
    assert process.returncode == 1, said
    assert "broadsheet: interrupted" in said
    assert (source or out) in " ".join(said.split())
    assert "Traceback" not in said


ENDS_WITH_A_REQUEST = """
import sys, threading
from broadsheet.pipeline.cli import process
from broadsheet.pipeline.storage.requests import repeated, under_way

threading.Thread(target=repeated, args=(threading.Event().wait, None, "https://example.com")).start()
while not under_way():
    pass
sys.argv = ["broadsheet", sys.argv[1]]
process()
"""


@pytest.mark.parametrize(("command", "code"), [("recipes", 0), ("no-such-command", 2)])
def test_a_command_that_is_done_ends_with_its_own_code_while_a_request_has_no_answer(command: str, code: int) -> None:
    arguments = [sys.executable, "-c", ENDS_WITH_A_REQUEST, command]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=240)
    assert run.returncode == code, run.stderr
    assert run.stdout or run.stderr
