"""A server for other machines: TLS, tokens, limits on connections, and more requests than it can answer."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fcntl import ioctl
from functools import partial
from pathlib import Path
from select import select
from termios import TIOCOUTQ
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from certificates import write_certificate
from conftest import CommandHere
from jobs import children_of, wait_until
from serving import Server, serving, starting

from broadsheet.pipeline import ServerError
from broadsheet.pipeline.serve.http_process import TICK_S, Turn, came

TOKEN = "a-token-that-is-only-for-tests"
MOST_CONNECTIONS = 60


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("certificate") / "server.pem"
    write_certificate(file)
    return file


@pytest.fixture(scope="module")
def server(certificate: Path, small_model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN)
    with serving(
        *("--host", "0.0.0.0", "--model", f"small={small_model_file}", "--target-ms", 1000, "--log-texts"),
        *("--token-file", token, "--tls-certificate", certificate, "--max-connections", MOST_CONNECTIONS),
        *("--head-s", 1, "--body-s", 1, "--idle-s", 1, "--drain-s", 1.5, "--http-processes", 2),
    ) as found:
        found.url = found.url.replace("0.0.0.0", "127.0.0.1")
        yield found


@pytest.mark.slow
def test_who_shows_the_token_over_tls_is_answered(server: Server, certificate: Path) -> None:
    with server.client(token=TOKEN, certificates=certificate) as client:
        answers: list[dict[str, Any]] = []

        def is_answered() -> bool:
            try:
                answers.extend(client.classify(["a text"]))
            except ServerError as error:
                if error.status != 503:  # 503: a busy machine did not answer within a second
                    raise
            return bool(answers)

        wait_until(is_answered)
        assert answers[0]["n_chars"] == 6
    told = server.wait_for("request")
    # Texts are logged because the server was asked to.
    assert (told["logged_texts"], told["route"]) == (["a text"], "/v1/classify")
    assert re.fullmatch(r"[0-9a-f]{16}", told["id"])
    trust = ssl.create_default_context(cafile=str(certificate))
    for wrong in (None, "another-token-than-that", "é" * 20):
        headers = {} if wrong is None else {"authorization": f"Bearer {wrong}".encode()}
        for method, path in (
            *(("POST", path) for path in ("/v1/classify", "/predict", "/", "/classify", "/invocations")),
            *(("POST", "/v2/models/small/infer"), ("GET", "/v2/models/small"), ("GET", "/info")),
            *(("GET", "/v1/models"), ("GET", "/metrics")),
        ):
            answer = httpx.request(method, server.url + path, headers=headers, verify=trust, timeout=240)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    answer = httpx.post(
        f"{server.url}/v1/models/small/reload", headers={"authorization": f"Bearer {TOKEN}"}, verify=trust
    )
    assert answer.status_code == 403  # the server has no admin token, and this token is another
    for path in ("/readyz", "/health", "/ping", "/v2/health/ready", "/v2/models/small/ready", "/v2"):
        assert httpx.get(server.url + path, verify=trust, timeout=240).status_code == 200
    with pytest.raises(ServerError, match="does not answer"):
        server.client(token=TOKEN).classify(["a"])  # the system does not trust the certificate


def connect(server: Server, certificate: Path) -> ssl.SSLSocket:
    trust = ssl.create_default_context(cafile=str(certificate))
    address = urlsplit(server.url)
    raw = socket.create_connection((address.hostname, address.port), timeout=240)
    return trust.wrap_socket(raw, server_hostname=address.hostname)


def read_all(connection: ssl.SSLSocket) -> bytes:
    """Return all bytes that arrive until the server closes the connection."""
    found = b""
    while piece := connection.recv(1 << 16):
        found += piece
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", 408),
        (b"GET / HT", 408),
        (b"\r\n", 408),
        (b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n", 408),
        (b"POST /v1/classify HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n"
         b"content-length: 100\r\n\r\n{" % TOKEN.encode(), 408),
        (b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * (1 << 17), 431),
        (b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{", 401),
    ],
)  # fmt: skip
def test_a_request_that_does_not_come_is_not_waited_for(
    server: Server, certificate: Path, sent: bytes, status: int
) -> None:
    with connect(server, certificate) as connection:
        connection.sendall(sent)
        answer = read_all(connection)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.count(b"HTTP/1.1") == 1
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def test_idle_connections_are_closed_and_too_many_refused(server: Server, certificate: Path) -> None:
    with connect(server, certificate) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"alive" in read_all(connection)

    def is_refused() -> bool:
        with ExitStack() as others:
            for _ in range(MOST_CONNECTIONS):
                others.enter_context(connect(server, certificate))
            with connect(server, certificate) as connection:
                return read_all(connection).startswith(b"HTTP/1.1 503")

    wait_until(is_refused)  # if opening so many takes a second, the first have been closed by then


def is_answered_with_200(form: Any) -> bool:
    """Return whether a form is answered with 200.

    The status 503 means that this busy machine could not answer within the server's second. The first page then repeats
    its request by itself, but this page does not.
    """
    form.locator("button").click()
    form.locator("pre").wait_for()
    status: str = form.locator("[role=status]").inner_text()
    assert re.match("200, |503, |$", status), status
    return status.startswith("200, ")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_labels_what_is_typed(server: Server, chromium: Any, width: int) -> None:
    complaints: list[str] = []
    asked: set[str] = set()
    context = chromium.new_context(ignore_https_errors=True, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
    page.goto(server.url)
    page.locator("#login").wait_for()  # the server has a token
    assert "token" in page.inner_text("#error").lower()
    page.fill("#token", TOKEN)
    text = "<b onclick=alert(1)>Café</b> & " + "goal " * 40
    page.fill("#text", text)
    page.click("button")
    page.locator("#result").wait_for()
    assert page.locator("#error").is_hidden()
    assert page.inner_text("#label").startswith("class ")
    assert page.locator(".bar").count() == 4
    shares = [float(share.strip(" %")) for share in page.locator(".share").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    assert abs(sum(shares) - 100) < 1
    assert f"{len(text)} characters, of which it read the first 123; " in page.inner_text("#counts")
    assert page.locator("#read").text_content() == text  # shown as text, not run
    assert "é" in page.locator("#read mark").all_text_contents()
    assert page.locator("#read .rest").text_content() == text[123:]
    assert page.inner_text("#name").startswith("small, ")
    assert page.locator("#classes li").all_inner_texts() == [f"class {i}" for i in range(4)]
    assert re.fullmatch(r"1 text in [0-9.]+ ms", page.inner_text("#took"))
    page.fill("#text", "one text\n\n  \nanother <b>text</b>")
    page.click("form button")
    page.locator("#several").wait_for()
    assert page.locator("#several tbody td:first-child").all_inner_texts() == ["one text", "another <b>text</b>"]
    page.click("#several tr:last-child button")
    assert page.locator("#read").text_content() == "another <b>text</b>"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    assert asked == {urlsplit(server.url).netloc}
    page.goto(f"{server.url}/docs")
    assert "/v1/classify" in page.inner_text("body")
    page.fill("#token", TOKEN)
    for form in page.locator("form:has(textarea)").all():  # answers the text that the form holds
        wait_until(partial(is_answered_with_200, form))
    assert page.locator("form:has(textarea)").count() == 6
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_what_cannot_be_answered_in_time_is_refused_at_once(server: Server, certificate: Path) -> None:
    """Slow requests come until the server refuses one, however fast this machine is."""
    body = json.dumps({"texts": [f"text number {i}" for i in range(250)]}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    limits = httpx.Limits(max_connections=40)
    trust = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(base_url=server.url, headers=headers, verify=trust, limits=limits, timeout=240) as http:
        wait_until(lambda: http.post("/v1/classify", content=body).status_code == 200)
        shed_before = shed(http)
        with ThreadPoolExecutor(40) as pool:
            is_refused = Event()

            def ask(_: int) -> list[httpx.Response]:
                found = []
                while not is_refused.is_set():
                    found.append(http.post("/v1/classify", content=body))
                    if found[-1].status_code == 503:
                        is_refused.set()
                return found

            answers = [answer for found in pool.map(ask, range(40)) for answer in found]
        assert {answer.status_code for answer in answers} <= {200, 503}
        refused = [answer for answer in answers if answer.status_code == 503]
        assert refused
        assert all(int(answer.headers["retry-after"]) >= 1 and "ms" in answer.json()["error"] for answer in refused)
        assert shed(http) - shed_before == len(refused)
        wait_until(lambda: "broadsheet_queue_texts 0.0" in http.get("/metrics").text)
        wait_until(lambda: http.post("/v1/classify", content=body).status_code == 200)  # the server works as before


def shed(http: httpx.Client) -> float:
    """Return how many requests the server has refused, from its metrics."""
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("broadsheet_shed_requests_total{"))


ASK = b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 21\r\n\r\n"
ASK += b'{"texts": ["a text"]}'
TWO_TEXTS = ASK.replace(b" 21", b" 25").replace(b'"a text"', b'"a text", ""')
"""The requests in one piece."""


def status_of(connection: socket.socket, sent: bytes = ASK) -> int:
    connection.sendall(sent)
    return int(connection.recv(1 << 16).split()[1])


@pytest.fixture(scope="module")
def slow_to_read(small_model_file: Path) -> Iterator[Server]:
    with serving("--model", f"small={small_model_file}", "--target-ms", 1000, "--http-processes", 1) as found:
        yield found


def connected(server: Server) -> socket.socket:
    return socket.create_connection(urlsplit(server.url).netloc.split(":"), timeout=240)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["http_process", "engine_process", ""])
def test_a_lone_client_is_answered_however_late_it_is_read(slow_to_read: Server, which: str) -> None:
    """No other client asks. Any process may be held up, for any time."""
    main = psutil.Process(slow_to_read.process.pid)
    held_up = children_of(main.pid, f"broadsheet.pipeline.serve.{which}")[0] if which else main
    with connected(slow_to_read) as lone:
        for _ in range(2):
            held_up.suspend()
            lone.sendall(ASK)
            time.sleep(1.2)  # more than the target
            held_up.resume()
            assert lone.recv(1 << 16).split()[1] == b"200"
            assert status_of(lone) == 200


def test_who_asks_again_at_once_leaves_time_for_others_and_is_answered_then(slow_to_read: Server) -> None:
    """A process that has much to answer refuses what it reads late.

    It holds back the next request of that client, answers others meanwhile, and then answers it. The time for which it
    held the request does not count as late.
    """
    (process,) = children_of(slow_to_read.process.pid, "broadsheet.pipeline.serve.http_process")
    (engine,) = children_of(slow_to_read.process.pid, "broadsheet.pipeline.serve.engine_process")
    refused_from = 0.0

    def is_refused(hasty: socket.socket) -> bool:
        nonlocal refused_from
        with ExitStack() as others:
            engine.suspend()
            while waiting_texts(slow_to_read) < 12:
                for _ in range(20):
                    others.enter_context(connected(slow_to_read)).sendall(ASK)
            process.suspend()
            hasty.sendall(ASK)
            time.sleep(0.6)  # twice the time in which it must be read
            refused_from = time.monotonic()
            process.resume()
            status = hasty.recv(1 << 16).split()[1]
            engine.resume()
            return status == b"503"

    def milliseconds_of_the_next() -> float:
        """Return the server's own figure, from the start of a request's time to its answer."""
        with connected(slow_to_read) as hasty, connected(slow_to_read) as other:
            wait_until(lambda: is_refused(hasty))
            hasty.sendall(TWO_TEXTS)
            wait_until(lambda: status_of(other) == 200)
            assert hasty.recv(1 << 16).split()[1] == b"200"
            assert time.monotonic() - refused_from > 0.5
            assert status_of(hasty) == 200
        while (line := slow_to_read.wait_for("request"))["texts"] != 2:
            pass
        return float(line["milliseconds"])

    assert any(milliseconds_of_the_next() < 500 for _ in range(5))  # the server holds a request for at least 500 ms


def test_the_time_of_a_large_body_begins_when_it_is_read(slow_to_read: Server) -> None:
    """Reading the body takes longer than the target, and others are computed meanwhile, but the server answers the
    request.
    """
    (process,) = children_of(slow_to_read.process.pid, "broadsheet.pipeline.serve.http_process")
    (engine,) = children_of(slow_to_read.process.pid, "broadsheet.pipeline.serve.engine_process")
    body = json.dumps({"texts": ["a text " * 30_000]}).encode()
    head = ASK.partition(b"\r\n\r\n")[0].replace(b" 21", b" %d" % len(body)) + b"\r\n\r\n"

    def statuses() -> list[int]:
        with connected(slow_to_read) as other, connected(slow_to_read) as large:
            engine.suspend()
            other.sendall(ASK)
            large.sendall(head + body[:-1])
            wait_until(lambda: ioctl(large, TIOCOUTQ, bytes(4)) == bytes(4))  # most of the body has been read
            process.suspend()
            large.sendall(body[-1:])
            time.sleep(1.2)  # more than the target
            process.resume()
            wait_until(lambda: waiting_texts(slow_to_read) == 1 or bool(select([large], [], [], 0)[0]))
            engine.resume()
            return [int(asking.recv(1 << 16).split()[1]) for asking in (other, large)]

    assert any(statuses() == [200, 200] for _ in range(5))


def test_what_waited_in_its_socket_is_late_by_that() -> None:
    """The wait is half a second. The kernel's clock may miss some ticks on a busy machine, where they come late."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    with one, other:
        one.sendall(b"x")
        time.sleep(0.5)
        other.recv(1)
        turn = time.monotonic()
        assert came(other, turn) < turn - 0.3


class _LastReceived:
    """A connection for which the kernel says how long ago it received something."""

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = milliseconds

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        return struct.pack("8B12I", *[0] * 19, self._milliseconds)


def test_a_tick_that_passed_in_no_time_makes_no_request_late() -> None:
    now = time.monotonic()
    for milliseconds in range(int(1000 * TICK_S) + 1):
        assert came(_LastReceived(milliseconds), now) == now


def test_a_turn_of_the_event_loop_has_one_beginning() -> None:
    async def run() -> None:
        loop, turn, began = asyncio.get_running_loop(), Turn(), []
        for _ in range(2):
            before = time.monotonic()
            for _ in range(2):
                turn.begin(loop)
                began.append(turn.began)
                time.sleep(0.001)
            assert before <= began[-2] == began[-1]
            await asyncio.sleep(0)
        assert began[1] < began[2]

    with ThreadPoolExecutor(1) as pool:  # Playwright's loop runs in this thread
        pool.submit(asyncio.run, run()).result()


def waiting_texts(server: Server) -> float:
    page = httpx.get(f"{server.url}/metrics", timeout=240).text
    return float(re.findall("^broadsheet_queue_texts (.+)$", page, re.MULTILINE)[0])


def test_a_server_is_not_ready_while_an_http_process_has_not_answered(slow_to_read: Server) -> None:
    """The process was started again, and must have a text labelled before the server sends it connections."""
    port = urlsplit(slow_to_read.url).port or 0
    (process,) = children_of(slow_to_read.process.pid, "broadsheet.pipeline.serve.http_process")
    (engine,) = children_of(slow_to_read.process.pid, "broadsheet.pipeline.serve.engine_process")
    assert status_of_ready(port) == 200
    engine.suspend()
    process.kill()
    slow_to_read.wait_for("HTTP process ready")
    assert status_of_ready(port) == 503
    engine.resume()
    wait_until(lambda: status_of_ready(port) == 200)
    with connected(slow_to_read) as lone:
        assert status_of(lone) == 200


@pytest.mark.slow
def test_a_server_is_ready_once_each_http_process_has_answered_a_text(small_model_file: Path) -> None:
    """From then on no client is refused, whichever process gets the connection."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ("--model", f"small={small_model_file}", "--port", port, "--http-processes", 3, "--target-ms", 20)
    with starting(*options) as server, ExitStack() as opened:
        pid, of = server.process.pid, "broadsheet.pipeline.serve."
        wait_until(lambda: children_of(pid, of + "engine_process"), every=0.001)
        (engine,) = children_of(pid, of + "engine_process")
        engine.suspend()  # so that nothing is answered yet
        wait_until(lambda: len(children_of(pid, of + "http_process")) == 3)
        late = children_of(pid, of + "http_process")[1]
        late.suspend()
        engine.resume()
        server.wait_for("engine ready")
        probes = [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(60)]
        for probe in probes:
            probe.sendall(b"GET /v2/models/small/ready HTTP/1.1\r\nhost: x\r\n\r\n")
            probe.sendall(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answered, _, _ = select(probes, [], [])  # probes of the process that is held up get no answer
        assert [read_statuses(probe) for probe in answered] == [[503, 503]] * len(answered)
        late.resume()
        wait_until(lambda: status_of_ready(port) == 200, every=0.001)
        for _ in range(40):
            with socket.create_connection(("127.0.0.1", port), timeout=240) as lone:
                assert [status_of(lone) for _ in range(5)] == [200] * 5


def status_of_ready(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=240) as probe:
        return status_of(probe, b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")


def read_statuses(connection: socket.socket) -> list[int]:
    found = b""
    while piece := connection.recv(1 << 16):
        found += piece
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", found)]


@pytest.mark.slow
def test_what_takes_longer_than_the_time_to_drain_is_told(server: Server, certificate: Path) -> None:
    """The last test of this server."""
    body = json.dumps({"texts": [f"text number {i} " * 20 for i in range(10_000)]}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    trust = ssl.create_default_context(cafile=str(certificate))
    http = httpx.Client(base_url=server.url, headers=headers, verify=trust, timeout=240)
    with http, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.post, "/v1/classify", content=body)  # takes at least some seconds
        while "broadsheet_queue_texts 0.0" in http.get("/metrics").text:
            assert not waiting.done()
        assert server.stop() == 0
        answer = waiting.result()
    assert answer.status_code == 503
    assert answer.json()["error"] == "the server stops"


def test_nothing_is_served_in_the_open_by_mistake(broadsheet_here: CommandHere, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("secret")
    for arguments, said in (
        (["--host", "0.0.0.0"], "give --token-file FILE, or --insecure"),
        (["--token-file", short], "at least 16"),
        (["--token-file", tmp_path / "none"], "no token can be read"),
        (["--tls-certificate", short], "no certificate with its key"),
        (["--tls-key", short], "goes with --tls-certificate"),
        (["--model", "=a"], "give NAME=PATH"),
        (["--model", "a=b", "--model", "a=c"], "another model has that name"),
        (["--model", "none"], "no model 'none'"),
        (["--host", "203.0.113.1", "--insecure"], "cannot be listened on"),
        (["--cluster", "local", "--scheduler-file", short], "and not both"),
    ):
        code, printed = broadsheet_here("serve", *arguments)
        assert code == 2, printed
        assert said in printed
