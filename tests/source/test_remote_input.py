"""Input in buckets and on the web: found as on disk, read side by side, and through faults byte for byte."""

from __future__ import annotations

import gzip
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from s3 import BUCKET, Folder, Proxy

import pipeline
from pipeline.errors import InputChanged, SourceError, UsageError
from pipeline.model.charcnn import Model
from pipeline.source.chunk import Selection
from pipeline.source.find.files import find_files, is_known
from pipeline.source.find.search import search
from pipeline.source.open.opening import expect, open_at
from pipeline.source.plan.plan import changed_chunks, plan_files

TEXTS = [f"article {i}, in a bucket" for i in range(300)]
LINES = b"".join(b'{"text": "%s"}\n' % text.encode() for text in TEXTS)


def names_found(given: str, endpoint: str) -> tuple[list[str], list[str]]:
    found = search([given], is_known, endpoint)
    return [file.location for file in found.files], found.left_out


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
        assert [[n.removeprefix(str(tmp_path)) for n in each] for each in here] == [
            [n.removeprefix(s3.url) for n in each] for each in there
        ], pattern
    with pytest.raises(UsageError, match="no input at"):
        names_found(f"{s3.url}/none", s3.endpoint)


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
    """Faults of a proxy: every few reads, another one, until each has been tried."""

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
    """How many requests there were since it was last asked, once all are answered and no more come."""
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
    assert settled(proxy) == 3  # of 4 MiB each, and none for what follows
    with open_at(file) as stream:
        expect(stream, [(1 << 20, 2 << 20), (2 << 20, 3 << 20), (50 << 20, 51 << 20)])
        for at in (1, 2, 50):
            stream.seek(at << 20)
            assert len(stream.read(1 << 20)) == 1 << 20
    assert settled(proxy) == 2
