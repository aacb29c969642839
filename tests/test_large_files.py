"""Large files that one worker reads: what is told of them, and what becomes of a job whose input stays away."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

from s3 import KEYS, Folder, Proxy, proxy, s3, s3_server  # noqa: F401

from pipeline.report.reach import Reach
from pipeline.source.chunk import Selection
from pipeline.source.files import find_files
from pipeline.source.group import GroupChunk, GroupEnd
from pipeline.source.inputs import Paths, identify, open_input
from pipeline.source.plan import is_split, plan_files
from pipeline.source.read import read_here


def lines(count: int) -> bytes:
    chance = random.Random(count)
    return b"".join(b'{"text": "%s"}\n' % chance.randbytes(40).hex().encode() for _ in range(count))


def test_a_single_compressed_file_is_told_by_the_bytes_read_of_it(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl.gz").write_bytes(gzip.compress(lines(400_000), 1))
    size = (tmp_path / "f.jsonl.gz").stat().st_size
    found = identify(Paths([tmp_path]), 70, 1014, whole_hash=False, by_content=False)
    reach = Reach(0, {0: size})
    shares = []
    for each in read_here(open_input(found, Selection(), 50_000)):
        if isinstance(each, GroupChunk):
            reach.note(each.name, 50_000, each.stored)
            shares.append(reach.share)
            assert reach.rows_known == 0
        elif isinstance(each, GroupEnd):
            reach.close(each)
    assert len(shares) == 8
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.6
    assert (reach.share, reach.rows_known) == (1, 400_000)


def test_large_text_of_a_bucket_is_read_once_and_of_a_disk_by_many(s3: Folder, tmp_path: Path, monkeypatch) -> None:  # noqa: F811
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    s3.write("f.jsonl", lines(2_000))
    (tmp_path / "f.jsonl").write_bytes(lines(2_000))
    splits = []
    for place in (s3.url, str(tmp_path)):
        plan = plan_files(find_files([place], 70, 1014, endpoint=s3.endpoint).found, Selection(), 100)
        splits.append([is_split(group, 100) for group in plan.groups])
    assert splits == [[False], [True]]
