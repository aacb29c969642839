"""Groups of files: what is read of them together is what each file gives by itself."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.source.chunk import Selection
from pipeline.source.find.files import find_files
from pipeline.source.plan.plan import Group, GroupChunk, GroupEnd, Plan, group_sizes, part_name, plan_files
from pipeline.source.read.read import read_group

SELECTION = Selection(kept=("id",), reads=40)
WORDS = st.text("abcé \"',", max_size=60)
KINDS = ("jsonl", "jsonl.gz", "csv", "parquet", "txt")


def write(path: Path, kind: str, texts: list[str]) -> None:
    """A file of that kind with these texts; a damaged one where `kind` says so."""
    kind, _, damage = kind.partition(" ")
    table = pa.table({"id": [str(i) for i in range(len(texts))], "text": texts})
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=3)
    elif kind == "csv":
        path.write_text("id,text\n" + "".join('{},"{}"\n'.format(i, t.replace('"', '""')) for i, t in enumerate(texts)))
    else:
        lines = "\n".join(json.dumps({"id": str(i), "text": t}) for i, t in enumerate(texts))
        data = lines.encode() + b"\n" * (len(texts) % 2)
        path.write_bytes(gzip.compress(data, mtime=0) if kind.endswith(".gz") else data)
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "row":
        path.write_bytes(data + b"\n{no row\n")
    elif damage == "other":
        path.write_text('{"id": "1", "body": "x"}\n' if kind != "csv" else "id,body\n1,x\n")


def test_few_bytes_in_many_files_are_work_for_many_readers(tmp_path: Path) -> None:
    for number in range(160):
        with open(tmp_path / f"{number:03}.jsonl.gz", "wb") as file:
            file.truncate(100 << 10)
    files = find_files([str(tmp_path)], 70, 1014).found
    assert group_sizes(files, 131_072) == [2] * 80
    assert group_sizes(files * 100, 131_072)[:-1] == [163] * 98
    assert group_sizes(files, 512) == [1] * 160


def plan_of(folder: Path, chunk_rows: int, limit: int | None = None) -> Plan:
    return plan_files(find_files([str(folder)], 70, 1014).found, SELECTION, chunk_rows, limit)


def read(group: Group, plan: Plan, skip: Callable[[str], bool] = lambda _: False) -> tuple[list[GroupChunk], GroupEnd]:
    *chunks, end = read_group(group, plan.selection, plan.chunk_rows, skip)
    assert isinstance(end, GroupEnd)
    return [chunk for chunk in chunks if isinstance(chunk, GroupChunk)], end


def rows_of(chunks: list[GroupChunk]) -> list[tuple[object, ...]]:
    """Every row as it was read, labelled or quarantined, in order of file and row."""
    found: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for each in chunks:
        chunk = each.chunk
        assert chunk is not None
        assert [sum(n for *_, n in each.sources)] == [chunk.rows_read]
        counts = chunk.n_chars.tolist() if chunk.n_chars is not None else [None] * len(chunk)
        for row, text, count in zip(chunk.rows.to_pylist(), chunk.text.to_pylist(), counts, strict=True):
            found[row["file"]].append((row["row"], row["id"], text, count))
        for row in chunk.quarantine.to_pylist():
            found[row["file"]].append((row["row"], row["reason"], row["byte_offset"], row["head"]))
    return [(file, *row) for file in sorted(found) for row in sorted(found[file], key=lambda row: row[0])]


files = st.lists(
    st.tuples(
        st.sampled_from(
            ["jsonl", "jsonl.gz", "csv", "parquet", "jsonl.gz cut", "jsonl empty", "jsonl row", "csv other",
             "jsonl other", "parquet cut"]
        ),
        st.lists(WORDS, max_size=12),
    ),
    min_size=1,
    max_size=9,
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files, st.integers(1, 9), st.integers(0, 50), st.data())
def test_a_group_is_read_as_its_files_are(
    tmp_path: Path, given_files: list[tuple[str, list[str]]], chunk_rows: int, limit: int, data: st.DataObject
) -> None:
    folder = tmp_path / os.urandom(6).hex()
    folder.mkdir()
    (folder / "00.jsonl").write_text('{"id": "first", "text": "one"}\n')
    for number, (kind, texts) in enumerate(given_files, 1):
        write(folder / f"{number:02d}.{kind.partition(' ')[0]}", kind, texts)
    plan = plan_of(folder, chunk_rows)
    (group,) = plan.groups
    chunks, end = read(group, plan)
    assert [chunk.name for chunk in chunks] == [part_name(0, i) for i in range(end.chunks)]
    assert all(chunk.chunk is not None and chunk.chunk.rows_read == chunk_rows for chunk in chunks[:-1])

    alone = [read(Group(1, (file,), group.first), plan) for file in group.files]
    assert rows_of(chunks) == [row for each, _ in alone for row in rows_of(each)]
    assert end.files == tuple(count for _, each in alone for count in each.files)
    assert end.problems == tuple(problem for _, each in alone for problem in each.problems)
    assert end.unread == tuple(unread for _, each in alone for unread in each.unread)

    wanted = data.draw(st.sets(st.sampled_from([chunk.name for chunk in chunks])))
    some, same_end = read(group, plan, lambda name: name not in wanted)
    assert same_end == end
    assert [(chunk.name, chunk.sources) for chunk in some] == [(chunk.name, chunk.sources) for chunk in chunks]
    for one, other in zip(some, chunks, strict=True):
        assert (one.chunk is None) == (one.name not in wanted)
        if one.chunk is not None and other.chunk is not None:
            assert rows_of([one]) == rows_of([other])

    if limit:
        first, limited = plan_of(folder, chunk_rows, limit), rows_of(chunks)[:limit]
        assert rows_of(read(first.groups[0], first)[0]) == limited
