"""Input in buckets and on the web: found as on disk, read in parallel, and byte for byte the same despite faults. The
web servers behave in many ways, and the addresses hold secrets.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import re
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, CommandHere
from distributed import Client
from s3 import BUCKET, Folder, Proxy

from broadsheet import pipeline
from broadsheet.pipeline.errors import InputChanged, SourceError, UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.inputs import chunks_here, identify, open_input
from broadsheet.pipeline.source.open.opening import expect, open_at, open_location
from broadsheet.pipeline.source.plan.files import Files, find_files, is_known
from broadsheet.pipeline.source.plan.plan import changed_chunks, plan_files
from broadsheet.pipeline.source.plan.search import search
from broadsheet.pipeline.source.rows.chunk import Selection

TEXTS = [f"article {i}, in a bucket" for i in range(300)]
LINES = b"".join(b'{"text": "%s"}\n' % text.encode() for text in TEXTS)


def names_found(given: str, endpoint: str) -> tuple[list[str], list[str]]:
    listed = search([given], is_known, endpoint)
    return [file.location for file in listed.files], [url for url, _ in listed.left_out]


def test_folders_and_patterns_name_the_same_in_a_bucket_as_on_disk(s3: Folder, tmp_path: Path) -> None:
    parts = ["_broadsheet.json", "_entries/part-0.json", "parts/part-0.jsonl"]
    for name in ["a.jsonl", "b[1].jsonl", "c.pdf", ".hidden.jsonl", "_no/a.jsonl", "in/d.jsonl.gz", "in/deep/e é.jsonl",
                 "in/.x/f.jsonl", *(f"labels/{part}" for part in parts)]:  # fmt: skip
        data = gzip.compress(LINES) if name.endswith(".gz") else LINES
        s3.write(name, data)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    for pattern in ["", "/", "/in", "/*.jsonl", "/*", "/**/*.jsonl*", "/*/*", "/b[[]1].jsonl", "/b[1].jsonl", "/in/**"]:
        here, there = names_found(f"{tmp_path}{pattern}", s3.endpoint), names_found(f"{s3.url}{pattern}", s3.endpoint)
        assert [[n.removeprefix(str(tmp_path)) for n in names] for names in here] == [
            [n.removeprefix(s3.url) for n in names] for names in there
        ], pattern
    with pytest.raises(UsageError, match="no input at"):
        names_found(f"{s3.url}/none", s3.endpoint)


@pytest.mark.slow
def test_a_job_reads_every_kind_of_file_from_a_bucket(
    s3: Folder, client: Client, small_model: Model, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "t.parquet", row_group_size=100)
    s3.write("t.parquet", (tmp_path / "t.parquet").read_bytes())
    s3.write("l.jsonl", LINES)
    s3.write("z.jsonl.gz", gzip.compress(LINES))
    for i in range(40):
        s3.write(f"small/{i:02d}.jsonl", b"".join(LINES.splitlines(keepends=True)[: i + 1]))
    report = pipeline.classify(s3.url, model=small_model, client=client, chunk_size=128, endpoint=s3.endpoint)
    frame = report.to_pandas()
    assert report.exit_code == 0, report
    counts = Counter(frame["file"])
    assert [counts[f"{s3.url}/{name}"] for name in ("t.parquet", "l.jsonl", "z.jsonl.gz")] == [300] * 3
    assert [counts[f"{s3.url}/small/{i:02d}.jsonl"] for i in range(40)] == list(range(1, 41))
    assert "secret" not in "".join(frame["file"])


class Cut:
    """Faults of a proxy: every few reads it uses another fault, until it has tried each."""

    def __init__(self) -> None:
        self._faults: Iterator[str | int | None] = iter([None, 503, "reset", None, "lost", "drop", 500, "slow", None])
        self._lock = Lock()

    def __call__(self, method: str, path: str) -> str | int | None:
        with self._lock:
            return next(self._faults, None) if method == "GET" else None


def test_what_is_read_through_faults_is_what_was_stored(s3: Folder, proxy: Proxy) -> None:
    data = os.urandom(1 << 20) * 24
    s3.write("a.txt", data)
    proxy.decide = Cut()
    (file,) = find_files([f"{s3.url}/a.txt"], 70, 1014, endpoint=proxy.url).found
    with open_at(file) as stream:
        assert stream.read() == data
    assert {fault for _, _, fault in proxy.seen} >= {503, "reset", "lost", "drop", 500, "slow"}


def test_an_object_that_changes_or_goes_is_told_and_nothing_mixed_is_read(s3: Folder) -> None:
    s3.write("a.txt", b"a" * (20 << 20))
    s3.write("b.txt", b"b" * 100)
    a, b = find_files([s3.url], 70, 1014, endpoint=s3.endpoint).found
    with open_at(a) as stream:
        assert stream.read(1000) == b"a" * 1000
        s3.write("a.txt", b"c" * (20 << 20))
        blocks = []

        def read_on() -> None:
            while block := stream.read(1 << 20):
                blocks.append(block)

        with pytest.raises(InputChanged, match=r"a\.txt: it has changed since the job was planned"):
            read_on()
        assert set(b"".join(blocks)) <= set(b"a")
    s3.remove("b.txt")
    with pytest.raises(SourceError, match=r"b\.txt: there is no such object"), open_at(b) as stream:
        stream.read()


def test_what_has_changed_in_a_large_folder_is_seen_in_its_listing(s3: Folder, proxy: Proxy) -> None:
    for number in range(120):
        s3.write(f"{number:03}.txt", b"an article")
    plan = plan_files(find_files([s3.url], 70, 1014, endpoint=proxy.url).found, Selection(), 8)
    proxy.seen.clear()
    assert changed_chunks(plan) == []
    assert len(proxy.seen) == 1
    s3.write("007.txt", b"another")
    s3.remove("110.txt")
    told = [message for _, message in changed_chunks(plan)]
    assert len(told) == 2
    assert "007.txt: it has changed since the job was planned (size was 10, is 7)" in told[0]
    assert "110.txt: it can no longer be read: there is no such object" in told[1]


@pytest.mark.parametrize(
    ("keys", "bucket", "said"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, BUCKET, r"does not accept the credentials \(SignatureDoesNotMatch\)"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, BUCKET, r"does not accept the credentials \(InvalidAccessKeyId\)"),
        ({}, "nowhere", "there is no bucket 'nowhere': create it, or correct the URL"),
    ],
)
def test_what_is_wrong_is_told_at_once_with_the_remedy(
    s3_server: str, keys: dict[str, str], bucket: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    for given in (f"s3://{bucket}/a.csv", f"s3://{bucket}/*.csv", f"s3://{bucket}"):
        with pytest.raises(UsageError, match=said) as told:
            find_files([given], 70, 1014, endpoint=s3_server)
        assert "\n" not in told.value.message


def settled(proxy: Proxy) -> int:
    """Return the number of requests since the last call, once all are answered and no more come."""
    count = -1
    while count < len(proxy.seen) or proxy.answered < count:
        count = len(proxy.seen)
        time.sleep(0.2)
    proxy.answered = 0
    proxy.seen.clear()
    return count


def test_read_ahead_is_bounded_and_a_reader_that_jumps_gets_little_more_than_it_asks_for(
    s3: Folder, proxy: Proxy
) -> None:
    size = 96 << 20
    s3.write("a.txt", bytes(size))
    (file,) = find_files([f"{s3.url}/a.txt"], 70, 1014, endpoint=proxy.url).found
    settled(proxy)
    with open_at(file) as stream:
        stream.read(40 << 20)
        assert settled(proxy) <= (40 + 8 * 4 + 4) >> 2
    settled(proxy)
    with open_at(file) as stream:
        for at in range(8, 80, 8):
            stream.seek(at << 20)
            assert stream.read(100) == bytes(100)
    assert settled(proxy) <= 2 * 9
    with open_at(file, 10 << 20, 22 << 20) as stream:
        assert len(stream.read(12 << 20)) == 12 << 20
    assert settled(proxy) == 3  # three requests of 4 MiB each, and none for later data
    with open_at(file) as stream:
        expect(stream, [(1 << 20, 2 << 20), (2 << 20, 3 << 20), (50 << 20, 51 << 20)])
        for at in (1, 2, 50):
            stream.seek(at << 20)
            assert len(stream.read(1 << 20)) == 1 << 20
    assert settled(proxy) == 2


# Files on web servers that behave in many ways, and whose addresses hold secrets.


WEB_TEXTS = [f"article {i}, on the web" for i in range(600)]
CSV = b"id,text\n" + b"".join(b'%d,"%s"\n' % (i, text.encode()) for i, text in enumerate(WEB_TEXTS))
SECRET = "sig=s3cret%2Fkey&x=1"


class Server(BaseHTTPRequestHandler):
    """A web server. The first part of the path says how it behaves:

    - "ranges", "whole": serves ranges, or only whole files.
    - "chunked": does not say a file's length.
    - "endless": serves ranges of a file of unknown length.
    - "moved": redirects. "signed": demands a signature. "head": refuses HEAD.

    After the prefix "broken-", it cuts off one answer of three, and says that it is busy in another.
    """

    protocol_version = "HTTP/1.1"
    folder: Path
    answers = 0

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        manners, _, rest = self.path.removeprefix("/").partition("/")
        name, _, query = rest.partition("?")
        file = self.folder / name
        broken, manners = manners.startswith("broken-"), manners.removeprefix("broken-")
        Server.answers += 1
        if broken and Server.answers % 3 == 0:
            self.send_error(503)
            return
        self.cut_off = broken and Server.answers % 3 == 1
        if manners == "moved":
            self.send_response(302)
            self.send_header("Location", f"/ranges/{rest}?{SECRET}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif (manners == "signed" and query != SECRET) or (manners == "head" and self.command == "HEAD"):
            self.send_error(403)
        elif not file.is_file():
            self.send_error(404)
        else:
            self._send(file.read_bytes(), manners)

    def _send(self, data: bytes, manners: str) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and manners not in ("whole", "chunked"):
            first, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
            self.send_response(206)
            size = "*" if manners == "endless" else len(data)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            data = data[first : last + 1]
        else:
            self.send_response(200)
        if manners == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
            data = b"".join(b"%x\r\n%s\r\n" % (len(d), d) for d in (data[:1000], data[1000:])) + b"0\r\n\r\n"
        else:
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if self.cut_off else data)
            self.close_connection = self.close_connection or self.cut_off

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client may not want the whole answer
            super().handle()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "www").mkdir()
    Server.folder = tmp_path / "www"
    (Server.folder / "a.csv").write_bytes(CSV)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


SIZES = (0, 1, 40_000, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 200_000)
"""Sizes of files, of which a head of 64 KiB is read. Some are shorter than the head."""


def json_lines(size: int) -> bytes:
    line = b'{"text": "an article, the first of the file"}\n'
    return line if 0 < size < len(line) else (line * (size // len(line) + 1))[:size].rpartition(b"\n")[0]


@pytest.mark.parametrize("manners", ["ranges", "whole", "chunked", "endless", "head"])
def test_a_head_of_a_small_file_is_read_in_one_request(web: str, manners: str) -> None:
    """A server sends no byte beyond the end, however often it is asked, so no request asks for one."""
    for size in SIZES:
        (Server.folder / "a.json").write_bytes(json_lines(size))
        Server.answers = 0
        with open_location(f"{web}/{manners}/a.json", stop=64 << 10) as raw, io.BufferedReader(raw) as stream:
            assert stream.read(64 << 10) == json_lines(size)[: 64 << 10]
        assert Server.answers <= 2
        listed = find_files([f"{web}/{manners}/a.json"], 70, 1014)
        assert ([file.format.name for file in listed.found], listed.left_out, listed.problems) == (["jsonl"], (), ())


def test_a_small_object_whose_name_does_not_tell_its_format_is_read(s3: Folder, proxy: Proxy) -> None:
    for size in SIZES:
        s3.write(f"{size}.json", json_lines(size))
        s3.write(f"{size}.json.gz", gzip.compress(json_lines(size)))
        s3.write(f"part-{size:05}", json_lines(size))
    listed = find_files([s3.url], 70, 1014, endpoint=proxy.url)
    assert (len(listed.found), listed.left_out, listed.problems) == (3 * len(SIZES), (), ())
    # One of the requests is the listing.
    assert len([method for method, *_ in proxy.seen if method == "GET"]) <= 1 + 3 * len(SIZES)
    for file in listed.found:
        size = int(re.findall(r"\d+", file.path)[-1])
        with open_at(file, peek=True) as stream:
            assert b"".join(iter(lambda stream=stream: stream.read(1 << 20), b"")) == json_lines(size)


def test_an_object_that_must_not_be_read_is_a_problem_whatever_it_is_called(s3: Folder, proxy: Proxy) -> None:
    for name in ("a.json", "part-00000", "b.jsonl"):
        s3.write(name, LINES)
    proxy.decide = lambda method, path: 403 if path.endswith(("a.json", "part-00000")) else None
    listed = find_files([s3.url], 70, 1014, endpoint=proxy.url)
    assert [file.path for file in listed.found] == [f"{s3.url}/b.jsonl"]
    assert [path for path, _ in listed.problems] == [f"{s3.url}/{name}" for name in ("a.json", "part-00000")]
    assert all("the credentials do not allow this" in why for _, why in listed.problems)


@pytest.mark.slow
@pytest.mark.parametrize("manners", ["whole", "chunked", "signed"])
def test_a_job_reads_a_file_and_takes_it_up_again(
    web: str, manners: str, client: Client, small_model: Model, tmp_path: Path
) -> None:
    given, out = f"{web}/{manners}/a.csv?{SECRET}#top", tmp_path / "out"
    report = pipeline.classify(given, out, model=small_model, client=client, chunk_size=1000, keep="id")
    table = report.to_pandas()
    assert (report.exit_code, table["id"].astype(int).tolist()) == (0, list(range(600)))
    assert set(table["file"]) == {f"{web}/{manners}/a.csv"}
    assert not [f for f in out.rglob("*") if f.is_file() and b"s3cret" in f.read_bytes()]
    if manners != "signed":
        assert pipeline.verify(out, input=True).rows_read == 600
        return
    again = pipeline.classify(given, out, model=small_model, client=client, keep="id", resume=True)
    assert again.rows_written == 600
    with pytest.raises(pipeline.BroadsheetError, match=r"signed/a\.csv: its server answers 403 Forbidden"):
        pipeline.verify(out, input=True)


@pytest.mark.slow
@pytest.mark.parametrize("manners", ["ranges", "whole", "chunked", "endless", "moved", "head", "signed"])
def test_a_file_is_read_whatever_its_server_can_do(web: str, manners: str) -> None:
    given = identify(f"{web}/{manners}/a.csv?{SECRET}", 70, 1014, whole_hash=False, by_content=False)
    assert isinstance(given, Files)
    assert [file.ranges for file in given.found] == [manners not in ("whole", "chunked", "endless")]
    job_input = open_input(given, Selection(), 1000)
    assert [t.decode() for c in chunks_here(job_input) for t in c.text.to_pylist()] == WEB_TEXTS
    assert job_input.plan is not None
    assert changed_chunks(job_input.plan) == []
    (Server.folder / "a.csv").write_bytes(CSV + b"600,one more\n")
    if manners not in ("chunked", "endless"):  # without length and time, a change goes unnoticed
        (changed,) = changed_chunks(job_input.plan)
        assert "it has changed since the job was planned" in changed[1]


@pytest.mark.slow
@pytest.mark.parametrize("manners", ["broken-ranges", "broken-whole", "broken-chunked"])
def test_a_file_is_read_through_what_its_server_breaks(web: str, manners: str) -> None:
    data = random.Random(0).randbytes(5 << 20)
    (Server.folder / "big.txt").write_bytes(data)
    Server.answers = 1  # the first answer is complete, and says what the server can do
    with open_location(f"{web}/{manners}/big.txt") as file:
        assert file.ranges is (manners == "broken-ranges")
        assert file.read() == data
    assert Server.answers > 4


def test_archives_and_tables_on_the_web(web: str, client: Client, small_model: Model) -> None:
    pq.write_table(pa.table({"text": WEB_TEXTS[:100]}), Server.folder / "t.parquet")
    with zipfile.ZipFile(Server.folder / "z.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("in.csv", CSV)
    inputs = pipeline.Paths([f"{web}/ranges/t.parquet?{SECRET}", f"{web}/signed/z.zip?{SECRET}"])
    report = pipeline.classify(inputs, model=small_model, client=client, chunk_size=1000)
    assert report.rows_written == 700
    assert set(report.to_pandas()["file"]) == {f"{web}/ranges/t.parquet", f"zip://in.csv::{web}/signed/z.zip"}
    files = find_files([f"{web}/whole/t.parquet", f"{web}/chunked/z.zip"], 70, 1014)
    assert not files.found
    assert all("its server cannot do that; download it first" in why for _, why in files.problems)
    names = [f.path for f in find_files([f"{web}/whole/a.csv?part={i}" for i in (1, 2)], 70, 1014).found]
    assert names == [f"{web}/whole/a.csv", f"{web}/whole/a.csv#2"]


def test_what_is_said_of_an_address_has_no_secret(web: str, broadsheet_here: CommandHere, tmp_path: Path) -> None:
    for path, what in (("signed/a.csv", "its server answers 403 Forbidden"), ("ranges/no.csv", "404 Not Found")):
        code, said = broadsheet_here("classify", f"{web}/{path}?wrong=s3cret", "-o", tmp_path / "out")
        assert (code, what in " ".join(said.split()), "s3cret" in said) == (2, True, False), said
    code, said = broadsheet_here("classify", "http://127.0.0.1:9/a.csv?key=s3cret", "-o", tmp_path / "out")
    assert (code, "s3cret" in said, "Traceback" in said) == (2, False, False), said


@pytest.mark.slow
def test_a_missing_driver_is_named_with_how_to_install_it() -> None:
    with pytest.raises(UsageError, match=r"smb://host/a\.csv: smb:// needs smbclient: pip install"):
        find_files(["smb://host/a.csv"], 70, 1014)
    code = "import sys; sys.modules['aiohttp'] = None; from broadsheet.pipeline.cli import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", code, "classify", "https://host/folder/*.csv", "-o", "/nowhere/out"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.returncode == 2
    assert "https:// needs aiohttp: pip install aiohttp" in " ".join(run.stderr.split())
