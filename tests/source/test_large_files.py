"""Large files that one worker reads: what is told of them, and what becomes of a job whose input stays away."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

from s3 import KEYS, Folder, Proxy, proxy, s3, s3_server  # noqa: F401

from pipeline.report.tally import Reach
from pipeline.source.chunk import Selection
from pipeline.source.find.files import find_files
from pipeline.source.inputs import Paths, identify, open_input, read_here
from pipeline.source.plan.plan import Group, GroupChunk, GroupEnd, Unit, is_split, plan_files
from pipeline.source.read.read import read_group, read_unit


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


def test_many_large_files_are_handed_out_whole_and_few_in_chunks_with_the_same_rows(tmp_path: Path) -> None:
    for number in range(34):
        broken = b'{"text": 1}\n\xff\n{\n{"text": "\\ud800"}\n' * (number % 3)
        (tmp_path / f"{number:02d}.jsonl").write_bytes(lines(400 + number) + broken + lines(450))
    given = identify(tmp_path, 70, 1014)

    def read(workers: int) -> tuple[set[type], dict[str, list], list[GroupEnd]]:
        job_input = open_input(given, Selection(), 300, workers=lambda: workers)
        kinds, chunks, ends = set(), {}, []
        for source in job_input.chunks((), ends.append):
            kinds.add(type(source))
            if isinstance(source, Unit):
                found = [GroupChunk(source.name, source.sources, read_unit(source, job_input.selection))]
            else:
                assert isinstance(source, Group)
                found = list(read_group(source, job_input.selection, 300, lambda _: False))
            for one in found:
                if isinstance(one, GroupEnd):
                    ends.append(one)
                else:
                    tables = one.chunk.text, one.chunk.rows, one.chunk.quarantine
                    chunks[one.name] = [one.sources, *(table.to_pylist() for table in tables)]
        return kinds, chunks, sorted(ends, key=lambda end: end.number)

    whole, split = read(1), read(2)
    assert (whole[0], split[0]) == ({Group}, {Unit})
    assert whole[1:] == split[1:]
    assert sum(end.files[0][1] for end in whole[2]) == sum(850 + n + 4 * (n % 3) for n in range(34))


def test_of_a_plain_file_that_is_read_whole_the_bytes_are_told(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(lines(300_000))
    plan = plan_files(identify(tmp_path, 70, 1014).found, Selection(), 50_000)
    chunks = list(read_group(plan.groups[0], plan.selection, 50_000, lambda _: False))[:-1]
    told = [chunk.stored / plan.bytes for chunk in chunks]
    assert len(told) == 6
    assert told == sorted(told)
    assert 0 < told[0] < 0.6
