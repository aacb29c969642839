"""Small objects on an https server whose names do not show the format. A signal stops the reading at once."""

from __future__ import annotations

import gzip
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from certificates import write_certificate
from commands import start
from conftest import CommandHere

ROWS = 20
LINES = "".join(f'{{"text": "oil prices rose on row {row}"}}\n' for row in range(ROWS)).encode()
OBJECTS = {"a.json": LINES, "a.json.gz": gzip.compress(LINES), "part-00000": LINES, "none.json": b""}


class Web(ThreadingHTTPServer):
    """An https server.

    It sends a byte each second for paths below `slow/`, ignores ranges below `whole/`, and answers a range beyond the
    end with an error below `strict/`.
    """

    daemon_threads = True

    def __init__(self, certificate: Path) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                manner, _, name = self.path[1:].partition("/")
                data, asked = OBJECTS[name], self.headers.get("Range")
                if asked is None or manner == "whole":
                    self.send_response(200)
                    begin, end = 0, len(data)
                else:
                    first, last = asked.removeprefix("bytes=").split("-")
                    begin, end = int(first), min(int(last or len(data)) + 1, len(data))
                    is_beyond = begin >= len(data) or (manner == "strict" and last and int(last) >= len(data))
                    self.send_response(416 if is_beyond else 206)
                    self.send_header("Content-Range", f"bytes {'*' if is_beyond else f'{begin}-{end - 1}'}/{len(data)}")
                    begin, end = (0, 0) if is_beyond else (begin, end)
                self.send_header("Content-Length", str(end - begin))
                self.end_headers()
                for at in range(begin, end) if manner == "slow" else ():
                    self.wfile.write(data[at : at + 1])
                    time.sleep(1)
                self.wfile.write(b"" if manner == "slow" else data[begin:end])

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """Ignore clients that were interrupted."""


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    certificate = tmp_path / "server.pem"
    write_certificate(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server = Web(certificate)
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("manner", ["ranges", "whole", "strict"])
@pytest.mark.parametrize("name", OBJECTS)
def test_a_small_object_is_read_whole(
    web: Web, manner: str, name: str, small_model_file: Path, tmp_path: Path, broadsheet_here: CommandHere
) -> None:
    job = ("classify", f"{web.url}/{manner}/{name}", "-o", tmp_path / "out.jsonl", "--model", small_model_file)
    code, said = broadsheet_here(*job)
    assert code == 0, said
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == (0 if name == "none.json" else ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_job_that_reads_the_head_of_a_slow_object(web: Web, number: int, tmp_path: Path) -> None:
    """The whole head would take a quarter of an hour."""
    process = start("broadsheet", "classify", f"{web.url}/slow/part-00000", "-o", tmp_path / "out")
    try:
        assert process.stderr is not None
        said = ""
        while "waiting for" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(number)
        said += process.communicate(timeout=45)[1]
    finally:
        process.kill()
    assert process.returncode == 1, said
    assert "broadsheet: interrupted" in said
    assert f"{web.url}/slow/part-00000" in " ".join(said.split())
