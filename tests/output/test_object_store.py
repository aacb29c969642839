"""Output in an object store, against a real S3 server: complete, exactly once, and with a message for each failure."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from threading import Barrier, Event

import msgspec
import obstore
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest
from conftest import Command
from distributed import Client
from jobs import Once, resumed
from s3 import BUCKET, KEYS, READER, Decide, Fault, Folder, Proxy, make_bucket

from benchmarks.chaos.jobs import contents
from broadsheet.pipeline import BroadsheetError, OutputError, UsageError, classify, select, verify
from broadsheet.pipeline.errors import OutputUnavailable
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.commit import commit_chunk
from broadsheet.pipeline.output.folder import OutputFolder
from broadsheet.pipeline.output.layout import PartNames
from broadsheet.pipeline.output.look import compare, look
from broadsheet.pipeline.output.object_store import ObjectStore, open_store, place_of
from broadsheet.pipeline.output.record import Entry
from broadsheet.pipeline.output.store import claim, claimed_by
from broadsheet.pipeline.report.job import JobReport
from broadsheet.pipeline.source.rows.chunk import QUARANTINE_SCHEMA
from broadsheet.pipeline.storage.buckets import bucket_client, patiently
from broadsheet.pipeline.storage.requests import FIRST_PATIENCE
from broadsheet.pipeline.telemetry.spans import STORE_WAITS, drain

ROWS = 60


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of two labels, and some rows that belong in the quarantine."""
    lines = [f'{i},"{random.Random(i).randbytes(40).hex()}"\n' if i % 9 else f"{i}\n" for i in range(ROWS)]
    path = tmp_path_factory.mktemp("in") / "in.csv"
    path.write_text("id,text\n" + "".join(lines))
    return path


Run = Callable[..., JobReport]


@pytest.fixture(scope="module")
def run(source: Path, client: Client, small_model: Model) -> Run:
    def run(output: object, given: object = source, **options: object) -> JobReport:
        return classify(given, output, model=small_model, client=client, chunk_size=6, **options)

    return run


@pytest.fixture(scope="module")
def on_disk(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the same job in a folder on disk."""
    out = tmp_path_factory.mktemp("job") / "out"
    run(out)
    return contents(out)


@pytest.mark.slow
def test_what_is_read_is_never_written_to(run: Run, s3: Folder, broadsheet_in_process: Command) -> None:
    run(s3.url, endpoint=s3.endpoint)
    before = s3.contents()
    for command in (
        ("select", s3.url, "-o", s3.url),
        ("select", s3.url, "-o", f"{s3.url}/"),
        ("select", s3.url, "-o", s3.url.rpartition("/")[0]),
        ("merge", s3.url, s3.url, "-o", s3.url),
        ("classify", f"{s3.url}/parts/*.parquet", "--text-column", "label", "--device", "cpu", "-o", s3.url),
    ):
        done = broadsheet_in_process(*command, "--overwrite", "--endpoint", s3.endpoint)
        message = " ".join(done.stderr.split())
        assert done.returncode == 2, command
        assert "is what the command reads" in message or "which the command writes to" in message, (command, message)
        assert s3.contents() == before, command


@pytest.mark.slow
def test_rows_of_a_job_in_a_bucket_are_chosen_into_a_bucket_or_nothing_is(
    run: Run, s3: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, best = f"{s3.url}/labels", f"{s3.url}/best"
    run(labels, endpoint=s3.endpoint)
    chosen = select(labels, best, top="20%", keep_all=True, endpoint=s3.endpoint).chosen
    assert chosen == verify(best, input=True, endpoint=s3.endpoint).rows_written == -(-(ROWS - 7) // 5)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    (looked,) = look(labels, ["file"])
    assert (looked["all"]["rows"], compare(labels, best)["all"]["rows"]) == (ROWS - 7, chosen)
    with pytest.raises(UsageError, match="one file in a bucket: copy it to a disk"):
        look(f"{s3.url}/top.parquet", ["file"])
    labels_alone = {name for name in s3.names() if not name.startswith("best/")}
    part = next(name for name in s3.names() if name.startswith("labels/parts/"))
    s3.write(part, b"damaged")
    with pytest.raises(OutputError, match="is damaged"):
        select(labels, best, where="n_chars >= 0", overwrite=True, endpoint=s3.endpoint)
    assert {*s3.names()} == labels_alone


def test_labels_and_chosen_rows_are_one_file_of_a_bucket(run: Run, s3: Folder, tmp_path: Path) -> None:
    run(tmp_path / "labels", endpoint=None)
    run(f"{s3.url}/labels.parquet", endpoint=s3.endpoint)
    names = [name for name in s3.names() if not name.startswith(".")]
    kept = {name.partition("/")[0] for name in s3.names() if name.startswith(".")}
    # The folder stays because it holds the quarantined rows.
    assert (names, kept) == (["labels.parquet"], {".labels.parquet.job"})
    select(tmp_path / "labels", f"{s3.url}/all.parquet", endpoint=s3.endpoint)
    assert s3.read("labels.parquet") == s3.read("all.parquet")
    select(tmp_path / "labels", f"{s3.url}/top.csv", top="20%", endpoint=s3.endpoint)
    select(tmp_path / "labels", tmp_path / "top.csv", top="20%")
    assert s3.read("top.csv") == (tmp_path / "top.csv").read_bytes()
    for write in (partial(run, f"{s3.url}/labels.parquet"), partial(select, tmp_path / "labels", f"{s3.url}/top.csv")):
        with pytest.raises(UsageError, match="is there already: give another name, or overwrite=True"):
            write(endpoint=s3.endpoint)
    run(f"{s3.url}/labels.parquet", endpoint=s3.endpoint, limit=9, where="n_chars > 0", overwrite=True)
    assert pq.read_table(pa.BufferReader(s3.read("labels.parquet"))).num_rows == 8


@pytest.mark.slow
def test_a_job_writes_into_a_bucket_what_it_writes_into_a_folder(
    run: Run, s3: Folder, on_disk: dict[str, bytes], broadsheet_in_process: Command
) -> None:
    report = run(f"{s3.url}/", endpoint=s3.endpoint)
    assert report.job.output == s3.url
    assert s3.contents() == on_disk
    runs = sorted(name.partition(".")[2] for name in s3.names() if name.startswith("_runs/"))
    assert [name for name in runs if name != "json"] == ["problems.jsonl", "spans.arrow"]
    assert verify(s3.url, endpoint=s3.endpoint).rows_quarantined == report.rows_quarantined == 7
    assert report.to_arrow().num_rows == ROWS - 7
    assert len(report.quarantine()) == 7
    said = broadsheet_in_process("verify", s3.url, "--endpoint", s3.endpoint)
    assert said.stdout.startswith(f"{s3.url}: whole. 10 chunks; 60 rows read")
    with pytest.raises(UsageError, match=rf"{s3.url} exists: choose another folder"):
        run(s3.url, endpoint=s3.endpoint)
    stored = b"".join([*s3.contents().values(), *(s3.read(name) for name in s3.names())])
    assert KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in stored
    assert s3.endpoint.encode() not in stored


def test_others_read_the_folder_of_a_bucket_as_one_dataset(run: Run, s3: Folder) -> None:
    rows = run(s3.url, endpoint=s3.endpoint, scores=True).to_arrow().num_rows
    key, secret = KEYS.values()
    system = fs.S3FileSystem(access_key=key, secret_key=secret, endpoint_override=s3.endpoint, region="us-east-1")
    assert ds.dataset(f"{BUCKET}/{s3.name}", filesystem=system).count_rows() == rows
    options = {name.lower(): value for name, value in KEYS.items()} | {"aws_endpoint_url": s3.endpoint}
    assert len(pl.read_parquet(f"{s3.url}/parts/*.parquet", storage_options=options)) == rows


def test_of_jobs_that_begin_at_once_in_a_bucket_one_wins(run: Run, s3: Folder) -> None:
    together = Barrier(2)

    def begin(texts: list[str]) -> JobReport | BroadsheetError:
        together.wait()
        try:
            return run(s3.url, texts, endpoint=s3.endpoint)
        except BroadsheetError as error:
            return error

    texts = [f"article {i}" for i in range(24)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(begin, (texts, texts[:9])))
    (report,) = (r for r in results if isinstance(r, JobReport))
    (error,) = (r for r in results if isinstance(r, UsageError))
    assert "another job has begun in" in str(error) or "exists: choose another folder" in str(error)
    assert verify(s3.url, endpoint=s3.endpoint).rows_written == report.rows_written


def test_a_job_whose_folder_in_a_bucket_is_taken_leaves_nothing_however_late(run: Run, s3: Folder) -> None:
    """The job tries to commit its chunks in flight while the other job runs, and one more long after that job has
    ended.
    """
    late: list[Entry] = []
    texts = [f"article {i}" for i in range(24)]

    def overwrite() -> None:
        folder = OutputFolder(place_of(s3.url, s3.endpoint))
        late.extend(folder.entries(folder.manifest().fingerprint.id).chunks.values())
        run(s3.url, [*texts, "one more"], endpoint=s3.endpoint, overwrite=True)

    with pytest.raises(OutputError, match=rf"another job has overwritten {s3.url}: the labels of this one are lost"):
        run(s3.url, texts, endpoint=s3.endpoint, progress=Once(overwrite))
    before = s3.contents()
    assert verify(s3.url, endpoint=s3.endpoint).rows_written == 25
    store = open_store(place_of(s3.url, s3.endpoint))
    rows = pl.read_parquet(s3.read(next(name for name in before if name.startswith("parts/")))).to_arrow()
    entry = msgspec.structs.replace(late[0], files=())
    with pytest.raises(OutputError, match="another job has overwritten"):
        commit_chunk(store, rows, QUARANTINE_SCHEMA.empty_table(), entry, PartNames())
    assert s3.contents() == before


def test_two_resumes_at_once_in_a_bucket_both_finish(run: Run, s3: Folder, on_disk: dict[str, bytes]) -> None:
    """The second run lists what is there, and finishes, while the first commits its chunks."""
    run(s3.url, endpoint=s3.endpoint)
    s3.remove("_SUCCESS", *(name for name in on_disk if name.startswith("_entries/part")))
    again = partial(run, s3.url, endpoint=s3.endpoint, resume=True)
    assert again(progress=Once(again)).rows_read == ROWS
    assert s3.contents() == on_disk


@pytest.mark.slow
def test_what_is_there_with_another_content_is_named_and_damage_is_repaired(
    run: Run, s3: Folder, on_disk: dict[str, bytes]
) -> None:
    run(s3.url, endpoint=s3.endpoint)
    part, quarantined, entry = (
        next(name for name in sorted(on_disk) if name.startswith(f"{folder}/part-000000-000000{chunk}"))
        for folder, chunk in (("parts", 0), ("_quarantine", 1), ("_entries", 2))
    )
    s3.write(part, b"something else")
    with pytest.raises(OutputError, match=rf"{s3.url}/{part} is damaged: .+ resume=True repairs this"):
        verify(s3.url, endpoint=s3.endpoint)
    s3.write(entry, b"{")
    s3.remove(quarantined)
    run(s3.url, endpoint=s3.endpoint, resume=True)
    assert s3.contents() == on_disk
    s3.write(part, b"something else")
    s3.remove(entry.replace("0000002", "0000000"))
    with pytest.raises(OutputError, match=rf"{s3.url}/{part} is there already with another content .+ Remove it, then"):
        run(s3.url, endpoint=s3.endpoint, resume=True)
    s3.remove(part)
    run(s3.url, endpoint=s3.endpoint, resume=True)
    assert s3.contents() == on_disk


@pytest.mark.slow
def test_faults_of_the_network_and_of_the_server_are_outlasted(
    run: Run, s3: Folder, proxy: Proxy, on_disk: dict[str, bytes]
) -> None:
    """Every seventh request fails, each time in another way. Writes lose their answers too."""
    faults = itertools.cycle(["drop", "reset", "lost", "slow", 503, 500])
    number = itertools.count(1)
    proxy.decide = lambda method, path: None if next(number) % 7 else next(faults)
    run(s3.url, endpoint=proxy.url)
    assert {fault for *_, fault in proxy.seen} == {None, "drop", "reset", "lost", "slow", 503, 500}
    assert s3.contents() == on_disk


class JumpingClock:
    """A clock for repeated requests. It advances only by the pauses between them, and pauses take no real time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_an_outage_is_outlasted(run: Run, s3: Folder, proxy: Proxy, on_disk: dict[str, bytes]) -> None:
    """The outage begins when the first chunk is committed, and 60 requests fail. The job records how long it waited."""
    left = 60
    begun = False

    def decide(method: str, path: str) -> int | None:
        nonlocal begun, left
        begun = begun or ("/_entries/" in path and method == "PUT")
        if not begun or not left:
            return None
        left -= 1
        return 503

    proxy.decide = decide
    run(s3.url, endpoint=proxy.url)
    assert left == 0
    assert s3.contents() == on_disk
    (spans,) = (name for name in s3.names() if name.endswith(".spans.arrow"))
    assert "store" in pa.ipc.open_file(s3.read(spans)).read_all()["lane"].to_pylist()


@pytest.mark.slow
def test_an_overloaded_store_is_waited_for_from_the_first_request_on(s3: Folder, proxy: Proxy) -> None:
    """The wait is recorded. A store that fails in another way may have a wrong address, which is reported within
    seconds.
    """
    client, clock = bucket_client(f"s3://{BUCKET}", proxy.url), JumpingClock()
    s3.write("object", b"whole")
    proxy.decide = lambda method, path: 503 if clock.now < 20 else None

    def listed() -> list[str]:
        return [about["path"] for page in obstore.list(client, s3.name) for about in page]

    drain(STORE_WAITS)
    assert patiently(listed, s3.url, FIRST_PATIENCE, clock) == [f"{s3.name}/object"]
    assert 20 < clock.now < 20 + 8
    (noted,) = drain(STORE_WAITS)
    assert (noted.lane, noted.seconds) == ("store", pytest.approx(clock.now))
    patiently(listed, s3.url)
    assert STORE_WAITS == []
    for fault in ("reset", 500):
        clock, proxy.decide = JumpingClock(), lambda method, path, fault=fault: fault
        with pytest.raises(OSError, match=r"cannot be reached|answers 500"):
            patiently(listed, s3.url, FIRST_PATIENCE, clock)
        assert clock.now <= FIRST_PATIENCE


@pytest.mark.slow
def test_a_job_of_an_array_begins_while_its_store_is_overloaded(
    run: Run, source: Path, s3: Folder, proxy: Proxy
) -> None:
    """The store refuses the first listings and writes for longer than a job tries a server that does not answer."""
    s3.write("in/in.csv", source.read_bytes())
    failed: Counter[bool] = Counter()

    def decide(method: str, path: str) -> int | None:
        failed[method == "PUT"] += 1
        return 503 if failed[method == "PUT"] <= 28 else None

    proxy.decide = decide
    run(f"{s3.url}/out", f"{s3.url}/in", endpoint=proxy.url)
    assert "out/_SUCCESS" in s3.names()


def test_an_outage_costs_its_time_and_no_more(s3: Folder, proxy: Proxy) -> None:
    client, clock = bucket_client(f"s3://{BUCKET}", proxy.url), JumpingClock()
    proxy.decide = lambda method, path: 503 if clock.now < 2 else None
    patiently(lambda: client.put(f"{s3.name}/object", b"whole"), s3.url, clock=clock)
    assert 2 < clock.now < 2 + 8
    assert s3.contents() == {"object": b"whole"}


@pytest.mark.slow
def test_a_job_whose_store_stays_out_of_reach_ends_with_one_message_and_is_resumed(
    run: Run, s3: Folder, proxy: Proxy, on_disk: dict[str, bytes]
) -> None:
    """Credentials that expire in the middle end the job at once, with a message like that of a long outage."""
    entries = itertools.count(1)
    expired = Event()

    def decide(method: str, path: str) -> int | None:
        if method == "PUT" and "/_entries/" in path and next(entries) == 4:
            expired.set()
        return 400 if expired.is_set() else None

    proxy.decide = decide
    with pytest.raises(BroadsheetError) as error:
        run(s3.url, endpoint=proxy.url)
    what = r"cannot be (written|read): the credentials have expired: renew them \([A-Z_a-z, ]+\)"
    remedy = r"What is committed stays: continue with resume=True"
    assert re.fullmatch(rf"{s3.url}/\S+ {what}\. {remedy}", str(error.value))
    proxy.decide = lambda method, path: None
    assert 3 <= run(s3.url, endpoint=proxy.url, resume=True).run.chunks_before < 10
    assert s3.contents() == on_disk


def test_requests_are_repeated_for_as_long_as_a_store_has_patience(s3: Folder, proxy: Proxy) -> None:
    store, clock = ObjectStore(place_of(s3.url, proxy.url), patience=1), JumpingClock()
    client = bucket_client(f"s3://{BUCKET}", proxy.url)
    proxy.decide = lambda method, path: 503
    with pytest.raises(
        OutputUnavailable, match=rf"{s3.url}/_claim\.json cannot be read: its server answers 503 SlowDown"
    ):
        claimed_by(store)
    with pytest.raises(OSError, match="its server answers 503 SlowDown"):
        patiently(lambda: client.get(f"{s3.name}/_claim.json"), s3.url, 1, clock)
    assert 0 < clock.now <= 1
    proxy.decide = lambda method, path: None
    assert claim(store, "0" * 16)
    assert claimed_by(store) == "0" * 16


def _kill_at(process: ForkServerProcess, step: str) -> Decide:
    """Kill the process once the server has written an object with this name, and drop all that the process
    sends later.
    """

    def decide(method: str, path: str) -> Fault:
        if process.exitcode is not None:
            return "drop"
        return process.kill if method == "PUT" and f"/{step}" in path else None

    return decide


@pytest.mark.slow
def test_a_job_that_is_killed_after_any_write_is_whole_in_the_end(
    source: Path, small_model_file: Path, s3: Folder, proxy: Proxy, on_disk: dict[str, bytes], run: Run
) -> None:
    """The test runs the job several times. Each run is killed as soon as the server has carried out a write of the next
    kind.
    """
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(
        ["jobs", "broadsheet.pipeline.job.run", "broadsheet.cluster.local"]
    )  # imports that then take no time
    steps = ["_claim.json", "parts/part", "_entries/part", "_manifest.json"]
    for number, step in enumerate(steps):
        process = processes.Process(target=resumed, args=(source, small_model_file, s3.url, proxy.url))
        proxy.decide = _kill_at(process, step)
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        is_finishing = number == len(steps) - 1
        assert is_finishing == ("_manifest.json" in s3.names() and b'"totals": {' in s3.read("_manifest.json"))
        with pytest.raises(OutputError, match=r"is not finished|has lost its _manifest\.json"):
            verify(s3.url, endpoint=s3.endpoint)
    report = run(s3.url, endpoint=s3.endpoint, resume=True)
    assert report.run.chunks_before == 10
    assert s3.contents() == on_disk


@pytest.fixture
def careless(tmp_path: Path) -> Iterator[str]:
    """The URL of moto's server, which ignores conditions on writes."""
    from moto.server import ThreadedMotoServer  # takes a second to import

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    proxy = Proxy("http://{}:{}".format(*moto.get_host_and_port()))
    proxy.decide = lambda method, path: "unconditional"
    make_bucket(proxy.url)
    yield proxy.url
    proxy.close()
    moto.stop()


@pytest.mark.slow
def test_what_cannot_be_written_to_is_told_with_the_remedy(
    s3: Folder, proxy: Proxy, careless: str, small_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message comes before anything is labelled, and contains no key."""

    def told(url: str = s3.url, endpoint: str = s3.endpoint, **environment: str) -> str:
        with monkeypatch.context() as changed:
            for name, value in environment.items():
                changed.setenv(name, value)
            with pytest.raises(BroadsheetError) as error:
                classify(["a text"], url, endpoint=endpoint, model=small_model)
        assert not any(secret in str(error.value) for secret in ("a-secret", "another-secret", "wrong-secret"))
        return str(error.value)

    assert "does not accept the credentials (SignatureDoesNotMatch)" in told(AWS_SECRET_ACCESS_KEY="wrong-secret")
    assert "(InvalidAccessKeyId): check AWS_ACCESS_KEY_ID and" in told(AWS_ACCESS_KEY_ID="nobody")
    assert f"do not allow this (AccessDenied): give them the right to it in '{BUCKET}'" in told(**READER)
    assert "there is no bucket 'nowhere': create it, or correct the URL" in told("s3://nowhere/labels")
    assert "AWS_PROFILE, or ~/.aws, cannot be used: The config profile (nobody) could not be found" in told(
        AWS_ACCESS_KEY_ID="", AWS_PROFILE="nobody"
    )
    assert "its store ignores conditions on writes (If-None-Match, If-Match)" in told(endpoint=careless)
    proxy.decide = lambda method, path: 400
    assert "the credentials have expired: renew them (AWS_ACCESS_KEY_ID" in told(endpoint=proxy.url)
    assert "its server http://127.0.0.1:1 cannot be reached: check the network" in told(endpoint="http://127.0.0.1:1")
    assert "endpoint= is '127.0.0.1:1': write a URL" in told(endpoint="127.0.0.1:1")
    assert "write s3://BUCKET/FOLDER" in told("s3://")
    assert "a bucket's URL has no password" in told("s3://key:wrong-secret@bucket/labels")
    assert s3.names() == []


def test_keys_of_a_profile_are_used(
    s3: Folder, small_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{name.lower()} = {value}" for name, value in KEYS.items()]
    (tmp_path / "credentials").write_text("\n".join(["[labels]", *lines]))
    for name in KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "labels")
    classify(["a text"], s3.url, endpoint=s3.endpoint, model=small_model)
    assert verify(s3.url, endpoint=s3.endpoint).rows_written == 1
