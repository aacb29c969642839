"""Other users of this host can reach loopback as we do, and get nowhere; and settings that a site may have."""

from __future__ import annotations

import json
import os
import shlex
import socket
import ssl
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import psutil
import pytest
import yaml
from bokeh.core.properties import validate
from conftest import examples
from cryptography.x509 import load_pem_x509_certificate
from distributed import Client
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broadsheet.cluster import connect
from broadsheet.cluster.slurm.site import Site, load_site
from broadsheet.cluster.slurm.submit import job_script
from broadsheet.cluster.tls import make_certificates
from broadsheet.pipeline.errors import UsageError

NOBODY = 65534
OTHER_USER = f"""
import json, os, sys
from urllib.request import urlopen
from distributed import Client, Security
address, folders, pages = json.loads(sys.argv[1])
own = Security.temporary()
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})

def gets(attack):
    try:
        return attack()
    except Exception as error:
        return type(error).__name__

def run(address, **options):
    with Client(address, timeout=2, set_as_default=False, **options) as client:
        return client.submit(os.getuid).result()

print(json.dumps([
    gets(lambda: run("tcp://" + address)),
    gets(lambda: run("tls://" + address, security=own)),
    [gets(lambda: os.listdir(folder)) for folder in folders],
    [gets(lambda: urlopen(page).status) for page in pages],
]))
"""
PAGES = ("", "status", "broadsheet", "sitemap.json", "json/counts.json", "info/main/workers.html", "metrics", "health",
         "individual-plots.json", "statics/css/base.css", "t0/status")  # fmt: skip

as_another = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


def another_user(client: Client) -> list:
    """Return what the user "nobody" gets from code on the cluster, from its folders, and from its HTTP servers."""
    parts, workers = urlsplit(client.scheduler.address), client.scheduler_info(n_workers=-1)["workers"]
    ports = [urlsplit(client.dashboard_link).port, *(worker["services"]["dashboard"] for worker in workers.values())]
    pages = [f"http://127.0.0.1:{port}/{page}" for port in ports for page in PAGES]
    aim = json.dumps([parts.netloc, scratch_of(client), pages])
    run = subprocess.run([sys.executable, "-c", OTHER_USER, aim], capture_output=True, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def scratch_of(client: Client) -> list[str]:
    folder = Path(next(iter(client.run(lambda dask_worker: dask_worker.local_directory).values()))).parents[1]
    return [str(folder), *map(str, folder.iterdir())]


@as_another
def test_another_user_of_this_host_can_neither_run_nor_read_anything(client: Client) -> None:
    plain, with_tls, folders, pages = another_user(client)
    assert plain not in (0, NOBODY)
    assert with_tls not in (0, NOBODY)
    assert len(folders) >= 3  # the cluster's own, the certificates', the workers'
    assert set(folders) == {"PermissionError"}
    sitemaps = [page for page, name in zip(pages, PAGES * 3, strict=True) if name == "sitemap.json"]
    assert sitemaps == ["HTTPError", 200, 200]  # a worker's HTTP server has only an empty sitemap
    assert pages.count("HTTPError") == len(pages) - 2


@pytest.mark.slow
@as_another
def test_without_tls_another_user_runs_code_as_you_and_you_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The same attack succeeds without TLS, which shows that the test above can fail."""
    with connect(workers=1, tls=False) as client:
        assert "without TLS: any user of this host can run code as you" in capsys.readouterr().err
        assert another_user(client)[0] == os.getuid()


ALERT = 0x15
"""The first byte of a TLS alert, which a server sends to a client that does not speak TLS."""


def answer(port: int, context: ssl.SSLContext | None) -> bytes:
    """Return what a port sends to an unknown client until it hangs up.

    Dask begins a connection with a greeting. A client without TLS sends something else, and may get an alert.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=240) as plain:
        try:
            if context is not None:
                return context.wrap_socket(plain).recv(64)
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n" * 8)
            said = b""
            while piece := plain.recv(64):
                said += piece
        except TimeoutError:
            raise
        except OSError:
            return b""
    return b"" if said[:1] == bytes([ALERT]) and len(said) == 7 else said


def stranger(folder: Path | None) -> ssl.SSLContext:
    """Return the context of a client that trusts anyone, with another job's certificate or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if folder is not None:
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def test_a_stranger_gets_nothing_from_any_port(client: Client, tmp_path: Path) -> None:
    """No port of the scheduler, the nannies and the workers answers without this job's certificate."""
    make_certificates(tmp_path / "another")
    assert (tmp_path / "another").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "another").iterdir()} == {0o600}
    certificate = load_pem_x509_certificate((tmp_path / "another" / "certificate.pem").read_bytes())
    assert certificate.not_valid_before_utc <= datetime.now(UTC) - timedelta(days=1)  # clocks may be set back
    workers = client.scheduler_info(n_workers=-1)["workers"]
    addresses = [client.scheduler.address, *workers, *(worker["nanny"] for worker in workers.values())]
    assert len(addresses) == 5
    for address in addresses:
        assert address.startswith("tls://127.0.0.1:")
        port = urlsplit(address).port or 0
        assert [answer(port, c) for c in (None, stranger(None), stranger(tmp_path / "another"))] == [b""] * 3


def test_a_worker_within_this_process_listens_nowhere() -> None:
    def listening() -> set[tuple[str, int]]:
        return {c.laddr for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"}

    before = listening()
    with connect(processes=False) as client:
        assert listening() - before == {("127.0.0.1", urlsplit(client.dashboard_link).port)}
        assert client.submit(os.getpid).result() == os.getpid()


def upgrade(link: str, page: str, **headers: str) -> str:
    """Return the status line that answers a websocket request."""
    parts = urlsplit(link)
    lines = [f"GET {parts.path.removesuffix('/status')}/{page} HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade",
             "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]  # fmt: skip
    lines += [f"{name}: {value}" for name, value in {"Host": parts.netloc, **headers}.items()]
    with socket.create_connection((parts.hostname, parts.port), timeout=240) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection.recv(1024).decode("latin-1").splitlines()[0]  # a frame may follow


def test_a_page_elsewhere_cannot_use_the_dashboard_through_a_browser(client: Client) -> None:
    """Even with the link, neither a websocket nor a domain name that resolves to 127.0.0.1 helps the page."""
    link = client.dashboard_link
    own = f"http://{urlsplit(link).netloc}"
    for page in ("status/ws", "eventstream"):
        assert upgrade(link, page, Origin=own) == "HTTP/1.1 101 Switching Protocols"
        assert upgrade(link, page, Origin="http://127.0.0.1:1", Host="127.0.0.1:1").split()[1] == "101"  # a tunnel
        for foreign in ({"Origin": "http://example.com"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"},
                        {"Host": "example.com"}, {"Host": "example.com", "Origin": "http://example.com"}):  # fmt: skip
            assert upgrade(link, page, **foreign) == "HTTP/1.1 404 Not Found", foreign
    validate(False)  # the state in which two threads that update two pages at once leave it
    assert urlopen(link).status == 200
    with pytest.raises(HTTPError, match="404"):
        urlopen(Request(link, headers={"Host": "rebound.example.com"}))


LINES = st.text(alphabet="ab -=;'\"$\n\r\x1b\u2028#:[]{}&*!%@~0", max_size=12)
VALUES = st.recursive(LINES | st.integers() | st.booleans() | st.none() | st.dates(), st.lists, max_leaves=4)
DIRECTIVES = {("#SBATCH", f"--{name}") for name in (
    "job-name", "nodes", "ntasks-per-node", "time", "signal", "requeue", "no-kill", "open-mode", "output", "partition",
    "account", "gpus-per-node", "cpus-per-task", "mem")}  # fmt: skip
KEYS = st.sampled_from(list(Site.__dataclass_fields__)) | LINES
SITES = st.dictionaries(KEYS, VALUES, max_size=4).map(yaml.safe_dump)


@settings(deadline=None, max_examples=examples(60))
@given(SITES | st.text() | st.binary())
@example("partition: 'gpu\n\n  #SBATCH --uid=0'")
@example('partition: "gpu\\n#SBATCH --uid=0"')
@example("account: news --uid=0")
@example('directives: ["--qos=long\\n--uid=0"]')
@example('setup: ["module load cuda\\n#SBATCH --uid=0"]')
@example("interface: $(id)")
@example("folder: ~nosuchuser/x")
@example("time: !!int ''")
@example("[" * 1000)
def test_whatever_a_site_says_is_a_script_of_its_lines_or_a_message(text: str | bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
        file.flush()
        try:
            site = load_site(Path(file.name))
        except UsageError:
            return
    lines = job_script(site, 1, None).splitlines()
    head = lines[: lines.index("")]
    asked = [f"#SBATCH {line}" for line in site.directives]
    assert head[len(head) - len(asked) :] == asked
    ours = head[1 : len(head) - len(asked)]
    assert {tuple(line.split("=")[0].split()) for line in ours} <= DIRECTIVES
    assert all(len(line.split()) == 2 for line in ours)
    rest = lines[lines.index("") + 1 :]
    assert not any(line.startswith("#SBATCH") for line in rest if line not in (site.setup or ()))
    assert shlex.split(rest[2]) == [f"INTERFACE={site.interface or ''}"]
