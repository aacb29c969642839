"""Files on servers of the web: of every kind of manners, and with what must not be told in the address."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, CommandHere
from distributed import Client

import pipeline
from pipeline.errors import UsageError
from pipeline.model.charcnn import Model
from pipeline.source.chunk import Selection
from pipeline.source.find.files import Files, find_files
from pipeline.source.inputs import chunks_here, identify, open_input
from pipeline.source.open.opening import open_location
from pipeline.source.plan.plan import changed_chunks

TEXTS = [f"article {i}, on the web" for i in range(600)]
CSV = b"id,text\n" + b"".join(b'%d,"%s"\n' % (i, text.encode()) for i, text in enumerate(TEXTS))
SECRET = "sig=s3cret%2Fkey&x=1"


class Server(BaseHTTPRequestHandler):
    """The first part of the path says how: ranges, whole, chunked (of unknown length), endless (ranges of such a file),
    moved, signed, or no HEAD. With "broken-" before it, two answers of three are cut off in the middle, or say that the
    server is busy.
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
        with suppress(ConnectionError):  # who does not want all of it
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


@pytest.mark.parametrize("manners", ["ranges", "whole", "chunked", "endless", "moved", "head", "signed"])
def test_a_file_is_read_whatever_its_server_can_do(web: str, manners: str) -> None:
    given = identify(f"{web}/{manners}/a.csv?{SECRET}", 70, 1014, whole_hash=False, by_content=False)
    assert isinstance(given, Files)
    assert [file.ranges for file in given.found] == [manners not in ("whole", "chunked", "endless")]
    job_input = open_input(given, Selection(), 1000)
    assert [t.decode() for c in chunks_here(job_input) for t in c.text.to_pylist()] == TEXTS
    assert job_input.plan is not None
    assert changed_chunks(job_input.plan) == []
    (Server.folder / "a.csv").write_bytes(CSV + b"600,one more\n")
    if manners not in ("chunked", "endless"):  # a server that tells neither length nor time cannot tell a change
        (changed,) = changed_chunks(job_input.plan)
        assert "it has changed since the job was planned" in changed[1]


@pytest.mark.parametrize("manners", ["broken-ranges", "broken-whole", "broken-chunked"])
def test_a_file_is_read_through_what_its_server_breaks(web: str, manners: str) -> None:
    data = random.Random(0).randbytes(5 << 20)
    (Server.folder / "big.txt").write_bytes(data)
    Server.answers = 1  # the first is whole: it says what the server can do
    with open_location(f"{web}/{manners}/big.txt") as file:
        assert file.ranges is (manners == "broken-ranges")
        assert file.read() == data
    assert Server.answers > 4


def test_archives_and_tables_on_the_web(web: str, client: Client, small_model: Model) -> None:
    pq.write_table(pa.table({"text": TEXTS[:100]}), Server.folder / "t.parquet")
    with zipfile.ZipFile(Server.folder / "z.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("in.csv", CSV)
    inputs = pipeline.Paths([f"{web}/ranges/t.parquet?{SECRET}", f"{web}/signed/z.zip?{SECRET}"])
    report = pipeline.classify(inputs, model=small_model, client=client, chunk_size=1000)
    assert report.rows_written == 700
    assert set(report.to_pandas()["file"]) == {f"{web}/ranges/t.parquet", f"zip://in.csv::{web}/signed/z.zip"}
    found = find_files([f"{web}/whole/t.parquet", f"{web}/chunked/z.zip"], 70, 1014)
    assert not found.found
    assert all("its server cannot do that; download it first" in why for _, why in found.problems)
    names = [f.path for f in find_files([f"{web}/whole/a.csv?part={i}" for i in (1, 2)], 70, 1014).found]
    assert names == [f"{web}/whole/a.csv", f"{web}/whole/a.csv#2"]


def test_what_is_said_of_an_address_has_no_secret(web: str, broadsheet_here: CommandHere, tmp_path: Path) -> None:
    for path, what in (("signed/a.csv", "its server answers 403 Forbidden"), ("ranges/no.csv", "404 Not Found")):
        code, said = broadsheet_here("classify", f"{web}/{path}?wrong=s3cret", "-o", tmp_path / "out")
        assert (code, what in " ".join(said.split()), "s3cret" in said) == (2, True, False), said
    code, said = broadsheet_here("classify", "http://127.0.0.1:9/a.csv?key=s3cret", "-o", tmp_path / "out")
    assert (code, "s3cret" in said, "Traceback" in said) == (2, False, False), said


def test_a_missing_driver_is_named_with_how_to_install_it() -> None:
    with pytest.raises(UsageError, match=r"smb://host/a\.csv: smb:// needs smbclient: pip install"):
        find_files(["smb://host/a.csv"], 70, 1014)
    code = "import sys; sys.modules['aiohttp'] = None; from pipeline.cli import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", code, "classify", "https://host/folder/*.csv", "-o", "/nowhere/out"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.returncode == 2
    assert "https:// needs aiohttp: pip install aiohttp" in " ".join(run.stderr.split())
