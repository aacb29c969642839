"""Labels on request, from a server process over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pyarrow as pa
import pytest
from conftest import CommandHere, examples, random_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import children_of
from serving import ARROW, JSON, Server, serving, stream

import broadsheet
from broadsheet.pipeline import AsyncClient, ServerError, UsageError
from broadsheet.pipeline.model.charcnn import Model

NAMES = ("small", "other", "several")
MANY, TOO_MANY = 1500, 1501
"""The numbers of texts in the largest request, which takes a while, and in one that is refused."""
WORDS = ["market", "goal", "Zürich", "naïve", "🎉", "research", "ΔG", "a\tb", "-", "42", "\x00", "\u202e"]


def mixed_texts(count: int, seed: int) -> list[str]:
    """Return texts of none to 400 characters, which is more than the models read."""
    chosen = random.Random(seed)
    longest = [0, 1, 20, 122, 123, 124, 200, 400]
    return [" ".join(chosen.choices(WORDS, k=90))[: chosen.choice(longest)] for _ in range(count)]


@pytest.fixture(scope="module")
def folder(small_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("serve")
    small_model.save(made / "small.safetensors")
    random_model(seed=2, length=200, classes=3).save(made / "other.safetensors")
    # Gives several labels to a text.
    replace(small_model, thresholds=(0.2, 0.3, 0.2, 0.4)).save(made / "several.safetensors")
    (made / "admin").write_text("an-admin-token-for-tests\n")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A server with three models, and a target that a busy machine meets."""
    with serving(
        *(part for name in NAMES for part in ("--model", f"{name}={folder / name}.safetensors")),
        *("--target-ms", 240_000, "--drain-s", 240, "--admin-token-file", folder / "admin"),
        *("--max-texts", MANY, "--max-body-mb", 1, "--http-processes", 2),
    ) as found:
        yield found


def post(server: Server, content: bytes, headers: dict[str, str] = JSON, **params: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/classify", content=content, headers=headers, params=params, timeout=240)


def metric(server: Server, name: str) -> float:
    """Return the sum of a metric's values over its labels."""
    lines = httpx.get(f"{server.url}/metrics", timeout=240).text.splitlines()
    found = [line for line in lines if line.startswith((name + " ", name + "{"))]
    return sum(float(line.rpartition(" ")[2]) for line in found)


@pytest.mark.slow
def test_served_labels_are_those_of_a_job_to_the_bit(server: Server, folder: Path, tmp_path: Path) -> None:
    """The texts are batched with any others: requests of all sizes, for two models, at once, as JSON and as Arrow."""
    texts, jobs, lines = mixed_texts(60, seed=1), {}, {}
    for name in NAMES:
        options = {"model": folder / f"{name}.safetensors", "scores": True, "top_k": 2, "device": "cpu"}
        jobs[name] = broadsheet.classify(texts, **options).to_arrow().drop_columns(["file", "row", "reason"])
        broadsheet.classify(texts, tmp_path / name, format="jsonl", **options)
        parts = sorted((tmp_path / name / "parts").rglob("*.jsonl"))
        lines[name] = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    chosen = random.Random(2)
    asked = []
    for i in range(40):
        first = chosen.randrange(len(texts))
        asked.append((chosen.choice(NAMES), first, first + chosen.choice([1, 1, 1, 2, 7, 25]), i % 3 == 0))

    def ask(name: str, first: int, last: int, as_arrow: bool) -> None:
        given = texts[first:last]
        options = {"model": name, "top_k": 2, "scores": True}
        if as_arrow:
            found = client.classify_arrow(pa.array(given), **options)
            assert found.equals(jobs[name].slice(first, last - first).cast(found.schema).combine_chunks())
            return
        for result, line in zip(client.classify(given, **options), lines[name][first:last], strict=True):
            expected = {key: value for key, value in line.items() if key not in ("file", "row")}
            assert list(result.items()) == list(expected.items())

    def batches_of_one_text() -> float:
        page = httpx.get(f"{server.url}/metrics", timeout=240).text
        return sum(map(float, re.findall(r'^broadsheet_batch_texts_bucket\{.*le="1\.0".*\} (.+)$', page, re.MULTILINE)))

    before = batches_of_one_text()  # of earlier tests
    with server.client() as client, ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(ask, *each) for each in asked]:
            done.result()
    alone = batches_of_one_text() - before
    assert alone < sum(last - first == 1 for _, first, last, _ in asked)  # the requests did share batches


def test_a_client_gets_labels_and_is_told_what_is_wrong(server: Server) -> None:
    with server.client() as client:
        assert client.classify([]) == []
        assert len(client.classify_arrow(pa.chunked_array([["a"], ["b", "c"]]))) == 3
        (result,) = client.classify(["x" * 200])
        assert set(result) == {"label", "score", "n_chars", "truncated", "unknown_chars"}
        assert (result["n_chars"], result["truncated"]) == (200, True)
        assert len(client.classify(["a"], top_k=10)[0]["top_labels"]) == 4  # the model has no more classes
        small, other, _ = client.models()
        assert (small["name"], small["default"], small["reads"], other["classes"]) == (
            *("small", True, 123),
            [f"class {i}" for i in range(3)],
        )
        with pytest.raises(ServerError, match="no model of that name") as caught:
            client.classify(["a"], model="none")
        assert caught.value.status == 404

    async def ask() -> list[dict[str, Any]]:
        async with AsyncClient(server.url) as client:
            return (await asyncio.gather(*(client.classify([text]) for text in ("a", "x" * 200))))[1]

    assert asyncio.run(ask()) == [result]
    with pytest.raises(ServerError, match="does not answer"):
        broadsheet.Client("http://127.0.0.1:1").models()
    with pytest.raises(UsageError, match="a str is not a list of texts"):
        broadsheet.Client(server.url).classify("one text")


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b'{"texts": ["caf\xe9"]}', JSON, 400),
        (b'{"texts": ["\\ud800"]}', JSON, 400),
        (b'{"texts": ["a"], "top_k": NaN}', JSON, 400),
        (b'{"texts": ["a"]', JSON, 400),
        (b"", JSON, 400),
        (b"\xef\xbb\xbf{}", JSON, 400),
        (b'{"texts": ' + b"[" * 100_000, JSON, 422),
        (b"[" * 100_000, JSON, 422),
        (b'{"texts": ["a"], "deep": ' + b"[" * 100_000, JSON, 422),
        (b'{"texts": ["a", null]}', JSON, 422),
        (b'{"texts": "a"}', JSON, 422),
        (b'{"text": ["a"]}', JSON, 422),
        (b'{"texts": ["a"], "top_k": 0}', JSON, 422),
        (b'{"texts": ["a"], "top_k": 1e400}', JSON, 422),
        (b'{"texts": ["a"], "scores": 1}', JSON, 422),
        (json.dumps({"texts": ["a"] * TOO_MANY}).encode(), JSON, 413),
        (json.dumps({"texts": ["a" * (1 << 20)]}).encode(), JSON, 413),
        (b'{"texts": ["a"]}', {"content-type": "text/plain"}, 415),
        (b'{"texts": ["a"]}', {"content-type": "application/json; charset=latin-1"}, 415),
        (b'{"texts": ["a"]}', {}, 415),
        (gzip.compress(b'{"texts": ["a"]}', mtime=0), JSON | {"content-encoding": "gzip"}, 415),
        (b"not Arrow", ARROW, 400),
        (b"", ARROW, 400),
        (stream(pa.array(["a"]))[:-40], ARROW, 400),
        (stream(pa.array(["a"]), name="other"), ARROW, 422),
        (stream(pa.array([1])), ARROW, 422),
        (stream(pa.array(["a", None])), ARROW, 422),
        (stream(pa.array(["a" * 1000] * 100), compression="zstd"), ARROW, 422),
        (stream(pa.array([""] * TOO_MANY)), ARROW, 413),
        (stream(pa.array([b"caf\xe9"], pa.binary()).view(pa.string())), ARROW, 400),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, bytes) else "",
)
def test_a_bad_body_is_refused_with_a_message(
    server: Server, content: bytes, headers: dict[str, str], status: int
) -> None:
    answer = post(server, content, headers)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_wrong_paths_and_methods_are_refused_in_json(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        for method, path, status in (
            *(("GET", "/v1/classify", 405), ("GET", "/none", 404), ("POST", "/v1/models/small/reload", 401)),
            *(("GET", "/%ff", 404), ("PUT", "/v1/models", 405)),
        ):
            answer = http.request(method, path)
            assert (answer.status_code, list(answer.json())) == (status, ["error"])
        assert post(server, stream(pa.array(["a"])), ARROW, top_k="x").status_code == 422
        assert post(server, stream(pa.array(["a"])), ARROW, unknown=1).status_code == 422
        # "model" is an option of the body.
        assert post(server, b'{"texts": ["a"]}', JSON, model="other").status_code == 422
        with socket.create_connection(urlsplit(server.url).netloc.split(":")) as raw:
            raw.sendall(b"GET / HTTP/9.9\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 400")


A_TEXT = b'{"texts": ["a"]}'
ASK = b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n\r\n" % len(A_TEXT)
CHUNKED = b"transfer-encoding: chunked\r\n\r\n10\r\n" + A_TEXT + b"\r\n0\r\n"
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
IS_ALIVE = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
LAST = IS_ALIVE + b"connection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        ((ASK + H2C + LENGTH + A_TEXT + LAST,), [200, 200]),
        ((ASK + H2C + LENGTH, A_TEXT, LAST), [200, 200]),
        # Its body is not read as a request.
        ((ASK + H2C + b"content-length: %d\r\n\r\n" % len(LAST), LAST, LAST), [400, 200]),
        ((ASK + H2C + CHUNKED + b"\r\n" + LAST,), [200, 200]),
        (((ASK + H2C + LENGTH + A_TEXT).replace(b"h2c", b"websocket"), LAST), [200, 200]),
        (((IS_ALIVE + H2C + b"\r\n") * 1500, LAST), [200] * 1501),
        ((b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n", LAST), [400]),
        ((IS_ALIVE + b"\r\n\0\r\n\r\n" + LAST,), [200, 400]),
        ((ASK + LENGTH + A_TEXT + ASK + b"transfer-encoding: chunked\r\n\r\nx", LAST), [200, 400]),
        ((2 * (ASK + LENGTH + A_TEXT) + ASK + b"transfer-encoding: chunked\r\n\r\nx", LAST), [200, 200, 400]),
        ((ASK + b"content-length: " + b"9" * 5000 + b"\r\n\r\n" + A_TEXT,), [400]),
        ((b"GET /" + b"a" * 60_000, b"a" * 60_000), [414]),
        ((ASK.replace(b"json", b"xml") + LENGTH, A_TEXT, LAST), [415, 200]),
        ((ASK.replace(b"content", b"other") + CHUNKED + b"content-type: application/json\r\n\r\n", LAST), [415, 200]),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else str(value[:3]),
)
def test_each_request_of_a_connection_gets_one_answer_in_order(
    server: Server, sent: tuple[bytes, ...], statuses: list[int]
) -> None:
    assert statuses_of(server, *sent) == statuses


def statuses_of(server: Server, *sent: bytes) -> list[int]:
    """Return the statuses of all answers on a connection, until the server closes it."""
    answered = b""
    with socket.create_connection(urlsplit(server.url).netloc.split(":"), timeout=240) as raw, suppress(OSError):
        for number, part in enumerate(sent):
            time.sleep(0.05 * (number > 0))  # so that the server reads each piece alone
            raw.sendall(part)
        while found := raw.recv(1 << 16):
            answered += found
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", answered)]


def head_of(size: int) -> bytes:
    """Return a request whose header lines have about this many bytes."""
    lines, left = [], size
    for number in range(8):
        begin = b"x-%d: " % number
        lines.append(begin + b"a" * (left // (8 - number) - len(begin) - 2) + b"\r\n")
        left -= len(lines[-1])
    return IS_ALIVE + b"".join(lines) + b"connection: close\r\n\r\n"


# Just below and just above the limit of 64 KiB.
@pytest.mark.parametrize(("size", "status"), [((64 << 10) - 200, 200), ((64 << 10) + 1, 431)])
# The head in one packet, in two, and in many.
@pytest.mark.parametrize("piece", [1 << 20, 40_000, 4_000])
def test_the_limit_of_a_head_does_not_depend_on_how_it_is_delivered(
    server: Server, size: int, status: int, piece: int
) -> None:
    head = head_of(size)
    parts = [head[at : at + piece] for at in range(0, len(head), piece)]
    assert statuses_of(server, *parts) == [status]
    assert statuses_of(server, ASK + LENGTH + A_TEXT + parts[0], *parts[1:]) == [200, status]


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (IS_ALIVE + b"\r\n", [200]),
        (2 * (ASK + LENGTH + A_TEXT), [200, 200]),
        (IS_ALIVE, [400]),
        (ASK + LENGTH + A_TEXT[:5], [400]),
        (b"", []),
    ],
)
def test_a_client_that_sends_no_more_still_gets_its_answers(server: Server, sent: bytes, statuses: list[int]) -> None:
    answered = b""
    with socket.create_connection(urlsplit(server.url).netloc.split(":"), timeout=240) as raw:
        raw.sendall(sent)
        raw.shutdown(socket.SHUT_WR)
        while found := raw.recv(1 << 16):
            answered += found
    assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", answered)] == statuses
    if statuses == [200, 200]:
        assert answered.lower().count(b"connection: close\r\n") == 1


PREFLIGHT = {"origin": "https://app.example.com", "access-control-request-method": "POST"}
PREFLIGHT |= {"access-control-request-headers": "authorization,content-type"}


@pytest.mark.slow
def test_pages_of_other_origins_may_call_only_where_that_is_allowed(server: Server, small_model_file: Path) -> None:
    with httpx.Client(base_url=server.url) as http:
        assert http.options("/v1/classify", headers=PREFLIGHT).status_code == 405
        assert "access-control-allow-origin" not in http.get("/healthz", headers=PREFLIGHT).headers
    origin = PREFLIGHT["origin"]
    with serving("--model", f"small={small_model_file}", "--allow-origin", origin) as allowing:
        with httpx.Client(base_url=allowing.url) as http:
            preflight = http.options("/v1/classify", headers=PREFLIGHT)
            assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, origin)
            asked = http.post("/v1/classify", json={"texts": ["a"]}, headers={"origin": origin})
            assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, origin)
            other = http.post("/v1/classify", json={"texts": ["a"]}, headers={"origin": "https://other.example"})
            assert "access-control-allow-origin" not in other.headers
        assert allowing.stop() == 0


@settings(max_examples=examples(60), deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from([*"/*?#:@[]%.x", "http:", "//", "é", "healthz"]), min_size=1), st.booleans())
def test_whatever_the_url_it_is_answered_in_its_turn_and_the_log_is_json(
    server: Server, parts: list[str], is_long: bool
) -> None:
    url = "".join([*parts, "a" * 70_000 * is_long]).encode()
    first, *others = statuses_of(server, IS_ALIVE + b"\r\n" + b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % url + LAST)
    assert first == 200
    if is_long:
        assert others in ([414], [400])
        assert others == [414] or not re.fullmatch(b"/[/:@.a-z]*", url)
    else:
        assert others in ([400], [200, 200], [404, 200], [405, 200])
    assert [line for line in server.said if line["message"] == "not JSON"] == []


def test_errors_of_all_packages_are_json_in_a_json_log() -> None:
    code = (
        "import asyncio; from broadsheet.pipeline.serve.settings import start_log; start_log(True)\n"
        "async def main(): asyncio.get_running_loop().call_soon(lambda: 1 / 0); await asyncio.sleep(0)\n"
        "asyncio.run(main())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    (told,) = map(json.loads, printed.splitlines())
    assert (told["level"], "ZeroDivisionError" in told["message"]) == ("error", True)


@contextmanager
def engine_held(server: Server) -> Iterator[int]:
    """Stop the engine's process in the block. Requests sent meanwhile wait for it, however slow this process is."""
    engine = next(line["process"] for line in reversed(server.said) if line["message"] == "engine ready")
    os.kill(engine, signal.SIGSTOP)
    try:
        yield engine
    finally:
        with suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)


def wait_for_texts(server: Server) -> None:
    """Wait until texts wait for an engine."""
    while metric(server, "broadsheet_queue_texts") == 0:
        time.sleep(0.01)


@pytest.mark.slow
def test_a_large_request_and_single_ones_amid_it_get_their_own_answers(server: Server) -> None:
    """The order of the answers is tested in test_queue.py, which depends on no real clock."""
    large = json.dumps({"texts": [f"text number {i}" for i in range(MANY)]}).encode()
    with ThreadPoolExecutor(1) as pool, server.client() as client:
        with engine_held(server):
            waiting = pool.submit(post, server, large)
            wait_for_texts(server)
        for _ in range(3):
            assert client.classify(["a single one"])[0]["n_chars"] == 12
        results = waiting.result().json()["results"]
    assert [result["n_chars"] for result in results] == [len(f"text number {i}") for i in range(MANY)]


def test_a_client_that_hangs_up_is_forgotten(server: Server) -> None:
    before = metric(server, "broadsheet_batch_texts_sum")
    body = json.dumps({"texts": [f"text number {i}" for i in range(MANY)]}).encode()
    host, port = urlsplit(server.url).netloc.split(":")
    with engine_held(server), socket.create_connection((host, int(port))) as raw:
        head = f"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        # A second request, which waits for the answer to the first.
        raw.sendall(head.encode() + b"\r\n\r\n" + body + IS_ALIVE + b"\r\n")
        wait_for_texts(server)
        # Closing now resets the connection.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    while metric(server, "broadsheet_queue_texts"):
        time.sleep(0.01)
    server.wait_for("request")
    with server.client() as client:
        client.classify(["the next one"])
    assert metric(server, "broadsheet_batch_texts_sum") - before < MANY
    assert [line for line in server.said if line.get("level") != "info"] == []


def test_health_metrics_and_the_document(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        assert http.get("/healthz").json() == {"status": "alive"}
        ready = http.get("/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready", "engines": {"cpu": "ready"}})
        server.client().classify(["a"])
        page = http.get("/metrics").text
        for name in (
            *('requests_total{model="small",status="200"}', 'texts_total{model="small"}', "queue_texts "),
            *('batch_texts_bucket{device="cpu",le="1.0",model="small"}', 'queue_seconds_sum{model="small"}'),
            *('engine_seconds_count{device="cpu",model="small"}', 'device_busy_share{device="cpu"}'),
        ):
            assert f"broadsheet_{name}" in page, name
        docs = http.get("/docs").text
        assert "/v1/classify" in docs
        assert "://" not in docs.replace(server.url, "")  # nothing comes from another host
    assert not any("logged_texts" in line for line in server.said)


def load(server: Server, until: threading.Event, model: str, texts: list[str]) -> list[httpx.Response | Exception]:
    """Return what a client gets that asks again and again."""
    found: list[httpx.Response | Exception] = []
    body = json.dumps({"texts": texts, "model": model, "scores": True}).encode()
    with httpx.Client(base_url=server.url, timeout=240) as http:
        while not until.wait(0.02):  # leaves the reloads their share of the cores
            try:
                found.append(http.post("/v1/classify", content=body, headers=JSON))
            except httpx.HTTPError as error:
                found.append(error)
    return found


@pytest.mark.slow
def test_a_model_is_reloaded_under_load_and_no_request_is_lost(server: Server, folder: Path) -> None:
    texts, file = mixed_texts(3, seed=3), folder / "small.safetensors"
    saved = file.read_bytes()
    reload = {
        "url": f"{server.url}/v1/models/small/reload",
        "headers": {"authorization": "Bearer an-admin-token-for-tests"},
    }
    first = server.client().classify(texts, scores=True)
    stop, other = threading.Event(), folder / "to come.safetensors"
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(load, server, stop, "small", texts) for _ in range(3)]
        try:
            file.write_bytes(b"no model at all")
            refused = httpx.post(**reload, timeout=240)
            replace(random_model(seed=9, length=123), classes=("not", "of", "the", "first")).save(file)
            done = httpx.post(**reload, timeout=240)
            second = server.client().classify(texts, scores=True)
            contents, overlapping = [saved, file.read_bytes()], []
            for i in range(3):
                other.write_bytes(contents[i % 2])
                other.replace(file)
                overlapping.append(pool.submit(httpx.post, **reload, timeout=240))
            numbers = {each.result().json()["loaded"] for each in overlapping}
            for _ in range(4):
                server.wait_for("model reloaded")
            assert server.client().classify(texts, scores=True) == first
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("model reloaded")
            for _ in NAMES[1:]:
                server.wait_for("model reloaded")
        finally:
            stop.set()
    assert refused.status_code == 409
    assert "the old one goes on" in refused.json()["error"]
    assert done.json()["loaded"] == 2
    assert numbers == {3, 4, 5}
    assert first != second
    seen = [answer for each in asking for answer in each.result()]
    assert {answer.status_code for answer in seen} == {200}
    assert all(answer.json()["results"] in (first, second) for answer in seen)
    assert server.client().classify(texts, scores=True) == first


@pytest.mark.slow
def test_a_killed_engine_is_replaced_and_its_requests_are_told(server: Server) -> None:
    large = json.dumps({"texts": [f"text number {i}" for i in range(MANY)]}).encode()
    with ThreadPoolExecutor(1) as pool:
        with engine_held(server) as engine:
            waiting = pool.submit(post, server, large)
            wait_for_texts(server)
            os.kill(engine, signal.SIGKILL)
        lost = waiting.result()
    assert lost.status_code == 503
    assert int(lost.headers["retry-after"]) >= 1
    ready = httpx.get(f"{server.url}/readyz", timeout=240)
    assert ready.status_code == 503
    assert "started again" in ready.json()["engines"]["cpu"]
    for path in ("/health", "/ping", "/v2/health/ready", "/v2/models/small/ready"):
        assert httpx.get(server.url + path, timeout=240).status_code == 503
    assert httpx.get(f"{server.url}/v2/health/live", timeout=240).status_code == 200
    assert post(server, b'{"texts": ["a"]}').status_code == 503
    assert server.wait_for("engine ready")["process"] != engine
    assert httpx.get(f"{server.url}/readyz", timeout=240).status_code == 200
    assert post(server, b'{"texts": ["a"]}').status_code == 200


def http_processes(server: Server) -> list[psutil.Process]:
    return children_of(server.process.pid, "broadsheet.pipeline.serve.http_process")


def requests_of(page: str) -> float:
    found = [line for line in page.splitlines() if line.startswith("broadsheet_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


@pytest.mark.slow
def test_http_processes_answer_as_one_and_one_that_is_killed_costs_its_own_connections(server: Server) -> None:
    before = metric(server, "broadsheet_requests_total")
    clients = [httpx.Client(base_url=server.url, timeout=240) for _ in range(24)]
    asked = {"content": b'{"texts": ["a"]}', "headers": JSON}
    for i, http in enumerate(clients, 1):
        assert http.post("/v1/classify", **asked).status_code == 200
        while (seen := requests_of(clients[-i].get("/metrics").text)) < before + i:
            time.sleep(0.01)  # the answering process may not have heard of it yet
        assert seen == before + i
    first, *others = http_processes(server)
    assert len(others) == 1
    first.kill()
    server.wait_for("HTTP process lost")
    for http in clients:  # they connect again
        assert http.post("/v1/classify", **asked).status_code == 200
        http.close()
    assert server.wait_for("HTTP process ready")["process"] != first.pid
    assert metric(server, "broadsheet_http_restarts_total") == 1
    assert len(http_processes(server)) == 2


@pytest.mark.slow
def test_sigterm_answers_what_is_in_flight_and_ends_with_0(server: Server) -> None:
    """It answers requests that nobody has read yet, and those of a process that replaced a lost one. This is the last
    test of this server.
    """
    large = json.dumps({"texts": [f"text number {i}" for i in range(100)]}).encode()
    waiting = [HTTPConnection(urlsplit(server.url).netloc, timeout=240) for _ in range(6)]
    before = metric(server, "broadsheet_requests_total")
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool, ExitStack() as at_the_end:
        at_the_end.callback(stop.set)
        asking = pool.submit(load, server, stop, "other", ["a single one"])
        while metric(server, "broadsheet_requests_total") == before:
            time.sleep(0.01)
        for each in waiting:
            each.request("POST", "/v1/classify", large, JSON)
        other, restarted = sorted(http_processes(server), key=psutil.Process.create_time)
        restarted.suspend()
        server.process.send_signal(signal.SIGTERM)
        with suppress(psutil.NoSuchProcess):
            while other.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
        restarted.resume()
        assert server.process.wait(240) == 0
    assert [len(json.load(each.getresponse())["results"]) for each in waiting] == [100] * 6
    answers = [answer for answer in asking.result() if isinstance(answer, httpx.Response)]
    assert {answer.status_code for answer in answers} == {200}
    assert server.said[-1]["message"] == "stopped"


@pytest.mark.slow
def test_a_server_that_stops_refuses_connections_while_it_answers(folder: Path) -> None:
    body = json.dumps({"texts": [f"text number {i} " * 20 for i in range(5_000)]}).encode()
    of_model = ("--model", f"small={folder / 'small.safetensors'}")
    with serving(*of_model, "--target-ms", 240_000, "--drain-s", 240) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(httpx.post, f"{server.url}/v1/classify", content=body, headers=JSON, timeout=240)
        while not metric(server, "broadsheet_queue_texts"):
            assert not waiting.done()
        server.process.send_signal(signal.SIGTERM)
        at = urlsplit(server.url)
        with suppress(ConnectionError):  # refused, or reset as it closes
            while not waiting.done():
                socket.create_connection((at.hostname or "", at.port or 0), 240).close()
                time.sleep(0.01)
        assert not waiting.done()
        assert len(waiting.result().json()["results"]) == 5_000
        assert server.process.wait(240) == 0


@pytest.mark.slow
def test_no_process_is_left_and_no_port_is_shared(folder: Path, broadsheet_here: CommandHere) -> None:
    with serving("--model", f"small={folder / 'small.safetensors'}", "--http-processes", 2) as server:
        code, printed = broadsheet_here("serve", "--device", "cpu", "--port", urlsplit(server.url).port)
        assert (code, "cannot be listened on" in printed) == (2, True)
        children = children_of(server.process.pid, "broadsheet.pipeline.serve.")
        assert len(children) == 3
        server.process.kill()
        assert psutil.wait_procs(children, timeout=240)[1] == []
