"""Input that changes during a job, is not a file, cannot be read, or is far larger than it looks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from reading import found, read_files

from broadsheet import pipeline
from broadsheet.pipeline import UsageError, classify, verify
from broadsheet.pipeline.errors import SourceError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.report.job import Progress
from broadsheet.pipeline.source.formats.parquet_check import FOOTERS
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.source.plan.plan import plan_files
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.source.rows.limits import Limits

ROWS = 400
MANY_ROWS = 600  # in chunks of ten, more than two workers are given at once
OLD, NEW = "an old article number {:04}" + 200 * ".", "a later article no. {:04}xx" + 200 * "."  # of equal length


class Disturbing(Progress):
    """Calls `disturb` once: after the first chunk of a job, or once its last chunk is done."""

    def __init__(self, disturb: Callable[[], object], at_the_end: bool = False) -> None:
        self._disturb, self._at_the_end = disturb, at_the_end

    def advance(self, report: pipeline.JobReport) -> None:
        if not self._at_the_end:
            self._once()

    def stop(self) -> None:
        self._once()

    def _once(self) -> None:
        disturb, self._disturb = self._disturb, lambda: None
        disturb()


def write_rows(path: Path, text: str = OLD, count: int = ROWS) -> None:
    rows = [text.format(i) for i in range(count)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": rows}), path, row_group_size=100)
    elif path.name.endswith(".csv.gz"):
        with pa.CompressedOutputStream(str(path), "gzip") as stream:
            stream.write(("text\n" + "\n".join(rows) + "\n").encode())
    else:
        path.write_text("text\n" + "\n".join(rows) + "\n")


def append(path: Path) -> None:
    with path.open("a") as stream:
        stream.write("one more article\n")


def replace_by_rename(path: Path) -> None:
    write_rows(path.with_name("new"), NEW, MANY_ROWS)
    path.with_name("new").rename(path)


CHANGES = {
    "same size": lambda path: write_rows(path, NEW, MANY_ROWS),
    "appended": append,
    "touched": lambda path: os.utime(path),
    "another file": replace_by_rename,
    "removed": Path.unlink,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [*(("in.csv", change) for change in CHANGES), ("in.parquet", "same size"), ("in.csv.gz", "same size")],
)
def test_no_row_of_another_file_is_labelled_once_the_input_changes(
    client: Client, small_model: Model, tmp_path: Path, name: str, change: str
) -> None:
    path, out = tmp_path / name, tmp_path / "out"
    write_rows(path, count=MANY_ROWS)
    chunk_size = 10 if name == "in.csv" else 50
    report = classify(
        path, out, model=small_model, client=client, id_column="text", chunk_size=chunk_size,
        progress=Disturbing(lambda: CHANGES[change](path)),
    )  # fmt: skip
    labelled = report.to_arrow()
    expected = [OLD.format(row) for row in labelled["row"].to_pylist()]
    assert labelled["text"].to_pylist() == expected
    assert expected
    assert report.exit_code == 3
    assert not (out / "_SUCCESS").exists()
    aside = {chunk for chunk, _ in report.run.set_aside}
    assert "part-000000-*" in aside  # includes chunks committed before the change, as their file no longer fits the job
    reasons = " ".join(why for _, why in report.run.set_aside)
    assert f"{path}: " in reasons
    assert ("No such file" if change == "removed" else "it has changed since the job was planned") in reasons
    told = " ".join(str(report).split())
    assert ("update=True changed=True labels what is left" in told, "resume=True tries those" in told) == (
        change != "removed",
        change == "removed",
    )
    if change != "removed":
        options = {"model": small_model, "client": client, "id_column": "text", "chunk_size": chunk_size}
        with pytest.raises(UsageError, match="update=True changed=True labels the rest and what has changed"):
            classify(path, out, resume=True, **options)
        classify(path, out, update=True, changed=True, **options)
        now = verify(out, input=True).rows_read
        assert now == len(classify(path, tmp_path / "new", **options).to_arrow())
        assert now == MANY_ROWS + (change == "appended")


@pytest.mark.slow
def test_a_change_after_the_last_read_is_seen_before_success(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    good, late, out = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "out"
    for path in (good, late):
        write_rows(path)
    options = {"model": small_model, "client": client, "chunk_size": ROWS}
    change = Disturbing(lambda: append(late), at_the_end=True)
    report = classify(pipeline.Paths([str(good), str(late)]), out, progress=change, **options)
    assert report.rows_written == 2 * ROWS
    assert report.exit_code == 3
    of_good = {path.name.split("-")[1] for path in (out / "parts").iterdir()} - {
        name.split("-")[1] for name, _ in report.run.set_aside
    }
    assert of_good  # parts of the unchanged file stay
    assert all(f"{late}: it has changed since the job was planned (size was " in why for _, why in report.run.set_aside)
    assert not (out / "_SUCCESS").exists()
    touch = Disturbing(lambda: os.utime(late), at_the_end=True)
    with pytest.raises(SourceError, match="it has changed since"):
        classify(late, strict=True, progress=touch, **options)


def test_a_folder_and_a_pattern_leave_nothing_out_in_silence(tmp_path: Path) -> None:
    top = tmp_path / "in"
    (top / "sub").mkdir(parents=True)
    for name in ("a.csv", "sub/b.csv", "notes.pdf", ".hidden.csv", "_draft.csv"):
        (top / name).write_text("text\nx\n")
    (top / "sub" / "up").symlink_to(top)  # a loop
    (top / "also").symlink_to(top / "sub")
    os.mkfifo(top / "fifo.csv")
    (top / "link.csv").symlink_to("fifo.csv")
    (top / "zero.csv").symlink_to("/dev/zero")
    (top / "gone.csv").symlink_to("nowhere")
    (top / "empty.csv").touch()
    (top / "line\nbreak.csv").write_text("text\nx\n")
    with open(os.fsencode(top) + b"/caf\xe9.csv", "w") as stream:
        stream.write("text\nx\n")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(top / "socket.csv"))
    unreadable = too_deep(top)
    problems = {
        "fifo.csv": "it is a FIFO, not a regular file",
        "link.csv": "it is a FIFO, not a regular file",
        "zero.csv": "it is a device, not a regular file",
        "socket.csv": "it is a socket, not a regular file",
        "gone.csv": "No such file or directory",
        "caf\\xe9.csv": "its name is not UTF-8",
        unreadable: "nothing in this folder was read",
    }
    for given in (str(top), f"{top}/**/*.csv"):
        listed = find_files([given], 70, 1014)
        told = {Path(path).name: message for path, message in listed.problems}
        assert told.keys() == problems.keys()
        assert all(problems[name] in message for name, message in told.items())
        names = ["a.csv", "b.csv", "empty.csv", "line\nbreak.csv"]
        names += ["_draft.csv"] if "*" in given else []
        # Each file once, despite the loop.
        assert sorted(Path(file.path).name for file in listed.found) == sorted(names)
        assert [Path(path).name for path, _ in listed.left_out] == ([] if "*" in given else ["notes.pdf"])


def too_deep(top: Path) -> str:
    """Make a folder whose path is too long for any program to open, and return its name."""
    at = os.open(top, os.O_RDONLY)
    for level in range(17):
        name = f"{level:02d}" + "d" * 248
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    depth = next(n for n in range(17) if len(os.fspath(top)) + 251 * (n + 1) >= 4096)
    return f"{depth:02d}" + "d" * 248


def test_left_out_files_and_unreadable_ones_are_reported(client: Client, small_model: Model, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\nx\n")
    (tmp_path / "b.docx").write_text("x")
    os.mkfifo(tmp_path / "c.csv")
    report = classify(tmp_path, model=small_model, client=client)
    assert (report.rows_written, report.exit_code) == (1, 3)
    reasons = {"its suffix belongs to no format": 1}
    assert report.to_dict()["left_out"] == {"count": 1, "first": [str(tmp_path / "b.docx")], "reasons": reasons}


def test_answers_must_be_a_regular_file_and_stay_the_same(client: Client, small_model: Model, tmp_path: Path) -> None:
    zeros, answers = np.zeros((3, len(small_model.alphabet), small_model.length), "<f4"), tmp_path / "answers"
    zeros.tofile(tmp_path / "in.bin")
    os.mkfifo(answers)
    options = {"model": small_model, "client": client, "truth": answers}
    with pytest.raises(UsageError, match="is a FIFO, not a regular file"):
        classify(tmp_path / "in.bin", **options)
    answers.unlink()
    np.zeros(3, "<f4").tofile(answers)
    change = Disturbing(lambda: np.ones(3, "<f4").tofile(answers), at_the_end=True)
    report = classify(tmp_path / "in.bin", progress=change, **options)
    assert report.run.set_aside == [(str(answers), "the answers have changed since the job was planned")]


@pytest.mark.parametrize("options", [{"text_column": "\ud800"}, {"id_column": "\udcff"}, {"output": "\udcff"}])
def test_names_that_are_not_text_are_refused(small_model: Model, options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        classify(["x"], model=small_model, **options)


BOMB_ROWS, BOMB_BYTES = 200_000, 1 << 20
READ_BOMB = """
import resource, sys
from pathlib import Path
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.source.plan.plan import plan_files
from broadsheet.pipeline.source.read.read import read_range
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
found = find_files([sys.argv[1]], 70, 1014).found
before, rows = peak(), 0
plan = plan_files(found, Selection(reads=1014, kept_columns=tuple(sys.argv[3:])), 131_072)
for chunk in read_range(plan.ranges[0], plan.selection, 131_072, lambda _: False):
    if hasattr(chunk, "text"):
        assert set(chunk.n_chars.tolist()) == {int(sys.argv[2])} and chunk.text[-1].as_py() == b"x" * 1014
        rows += len(chunk)
print(rows, peak() - before)
"""


@pytest.mark.slow
def test_a_few_hundred_bytes_that_stand_for_200_gb_are_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(BOMB_ROWS, np.int32)), pa.array(["x" * BOMB_BYTES]))
    pq.write_table(pa.table({"text": text}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1000
    rows, mebibytes = read_bomb(path, BOMB_BYTES)
    assert rows == BOMB_ROWS
    assert mebibytes < 800  # 131,072 rows of 1,014 characters are 127 MiB


def read_bomb(path: Path, text_bytes: int, *kept: str) -> tuple[int, int]:
    """Return how many rows were read, and how many MiB of memory that took."""
    command = [sys.executable, "-c", READ_BOMB, path, str(text_bytes), *kept]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    rows, mebibytes = map(int, run.stdout.split())
    return rows, mebibytes


def nested(texts: pa.Array) -> dict[str, pa.Array]:
    """Return the same texts in every kind of column that can hold texts."""
    one_each = pa.array(range(len(texts) + 1), pa.int32())
    struct = pa.StructArray.from_arrays([texts, pa.array(range(len(texts)))], ["a", "n"])
    return {
        "plain": texts,
        "struct": struct,
        "list": pa.ListArray.from_arrays(one_each, texts),
        "lists": pa.ListArray.from_arrays(one_each, struct),
        "map": pa.MapArray.from_arrays(one_each, pa.array(["k"] * len(texts)), texts),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", nested(pa.array([""])))
def test_repeated_long_values_are_kept_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    """The values take 2.3 GB, more than one Arrow array holds, in a file of some KB."""
    count, text = 280_000, "x" * 8192
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))
    table = pa.table({"text": repeated, "kept": nested(repeated)[kind]})
    pq.write_table(table, tmp_path / "in.parquet", compression="zstd", store_schema=False)
    rows, mebibytes = read_bomb(tmp_path / "in.parquet", len(text), "kept")
    assert rows == count
    assert mebibytes < 2000  # a chunk's 256 MiB, the next chunk's, and copies


ENCODINGS = ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"]


@pytest.mark.parametrize("columns", [0, 1, 100])  # the number of columns that are stored without a dictionary
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("chunk_bytes", [pytest.param(3000, marks=pytest.mark.slow), 20_000, 64 << 20])
def test_kept_values_of_every_kind_and_encoding_are_those_of_the_file(
    tmp_path: Path, encoding: str, columns: int, chunk_bytes: int
) -> None:
    """The smaller limits are below the decoded size of a row group, and split it into several chunks."""
    texts = pa.array([None if i % 7 == 3 else f"{i % 5} {'é' * (i % 5 * 90)}" for i in range(300)])
    lists = [None if i % 11 == 2 else [{"a": texts[(i + j) % 300].as_py()} for j in range(i % 4)] for i in range(300)]
    table = pa.table({"text": [f"text {i % 3}" for i in range(300)], **nested(texts), "uneven": lists})
    path = tmp_path / "in.parquet"
    pq.write_table(table, path)
    schema = pq.ParquetFile(path).schema
    strings = [leaf.path for leaf in map(schema.column, range(len(schema))) if leaf.physical_type == "BYTE_ARRAY"]
    encodings = dict.fromkeys(strings[:columns], encoding) or None
    pq.write_table(table, path, row_group_size=130, use_dictionary=strings[columns:], column_encoding=encodings)
    kept = tuple(table.column_names)
    for chunk_rows in (90, 1000):
        read = read_files(
            found([path], Limits(chunk_bytes=chunk_bytes)), Selection(kept_columns=kept, reads=100), chunk_rows
        )
        assert read.messages == []
        rows = pa.concat_tables([chunk.rows for chunk in read.chunks])
        assert rows.column("row").to_pylist() == list(range(300))
        assert rows.select(kept).to_pylist() == table.to_pylist()
        assert all(chunk.kept_bytes <= 4 * chunk_bytes or len(chunk) == 1 for chunk in read.chunks)


@pytest.mark.parametrize("rows", [20, 200])
def test_row_groups_share_a_chunk_by_what_they_take_decoded(tmp_path: Path, rows: int) -> None:
    """The file has more than one chunk, and its row groups are joined or cut before they are read."""
    noise = np.random.default_rng(0).bytes(100 << 10)
    table = pa.table(
        {
            "text": ["a", "b"] * 400,
            "kept": ["x" * 1000] * 800,
            "noise": [noise[i : i + 128] for i in range(0, 800 * 128, 128)],
        }
    )
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=rows)
    read = read_files(
        found([tmp_path / "in.parquet"], Limits(chunk_bytes=10_000)), Selection(kept_columns=("kept",)), 400
    )
    assert pa.concat_tables([chunk.rows for chunk in read.chunks]).column("row").to_pylist() == list(range(800))
    assert 20_000 < max(chunk.kept_bytes for chunk in read.chunks) <= 40_000


@pytest.mark.parametrize("columns", [["text"], ["title", "text"]])
def test_repeated_long_texts_get_the_labels_of_the_same_texts_in_memory(
    client: Client, small_model: Model, tmp_path: Path, columns: list[str]
) -> None:
    texts = [
        b"\xc3\xa9" * 300_000,
        b"Stocks fell. " * 60_000,
        b"z" * (17 << 20),
        None,
        b"short",
        b"x" * 400_000 + b"\xff",
    ]
    one = pa.table({"title": [" t "] * 6, "text": pa.array(texts, pa.binary()).view(pa.string())})
    many = pa.concat_tables([one] * 6).combine_chunks()
    pq.write_table(many, tmp_path / "in.parquet", compression="zstd", dictionary_pagesize_limit=1 << 30)
    options = {"model": small_model, "client": client, "text_column": columns, "scores": True}
    labelled = classify(tmp_path / "in.parquet", chunk_size=60, **options)
    expected = classify(one, **options)
    assert labelled.rows_read == 36
    for here, there in ((labelled.to_arrow(), expected.to_arrow()), (labelled.quarantine(), expected.quarantine())):
        rows = {row["row"]: {**row, "file": ""} for row in there.to_pylist()}
        for row in here.to_pylist():
            assert {**row, "file": "", "row": row["row"] % 6} == rows[row["row"] % 6]


@pytest.mark.slow
@pytest.mark.parametrize("chunk_bytes", [1000, 30_000])
def test_batches_of_a_row_group_are_read_in_any_order(tmp_path: Path, chunk_bytes: int) -> None:
    """The smaller limit is below the size of the column in the file, and the larger one above it."""
    count = 400  # each fragment reads its row group from the start, so the time grows with the square of the rows
    texts = [f"{i} " + "é" * 80 * (i % 5) for i in range(count)]
    title = [f"title {i % 9} " + "t" * 900 for i in range(count)]
    pq.write_table(pa.table({"title": title, "text": texts, "n": range(count)}), tmp_path / "f.parquet")
    (limited,) = found([tmp_path / "f.parquet"], Limits(chunk_bytes=chunk_bytes))
    plan = plan_files([limited], Selection(text=("title", "text"), kept_columns=("n",), reads=123), 100)
    assert plan.first is not None
    fragments = limited.format.plan(limited, plan.first[1], plan.selection, 100).fragments
    assert len(fragments) > 1
    for fragment in [*reversed(fragments[:4]), *fragments]:
        (chunk,) = limited.format.read([fragment], plan.selection, None)
        rows = range(fragment.first_row, fragment.first_row + fragment.rows)
        whole = [f"{title[i]} {texts[i]}".strip() for i in rows]
        assert [len(text) for text in whole] == (
            chunk.n_chars.tolist() if chunk.n_chars is not None else list(map(len, whole))
        )
        cut = 123 if chunk.n_chars is not None else None
        assert [text.decode() for text in chunk.text.to_pylist()] == [text[:cut] for text in whole]
        assert chunk.rows.column("n").to_pylist() == list(rows)


# The file is alone, comes before the other files, or is between them.
@pytest.mark.parametrize("place", ["alone", "first", "in the middle"])
def test_a_footer_that_ends_the_process_that_reads_it_costs_one_file(
    small_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Some C++ exceptions of pyarrow end the process. Here a sound footer ends the process that checks it."""
    monkeypatch.setattr(FOOTERS, "module", "dying_footer_check")
    monkeypatch.setattr(FOOTERS, "_child", None)
    names = {"alone": ["dies"], "first": ["dies", "b", "c"], "in the middle": ["a", "dies", "z"]}[place]
    for name in names:
        pq.write_table(pa.table({"text": ["a text"] * 3, name: [1, 2, 3]}), tmp_path / f"{name}.parquet")
    report = classify(tmp_path, model=small_model, device="cpu")
    assert report.rows_read == 3 * (len(names) - 1)
    (problem,) = report.tally.problems
    assert problem[0].endswith("dies.parquet")
    assert "its metadata is damaged: the process that read it was ended by SIGABRT" in problem[1]
    assert report.exit_code == 3


def test_a_damaged_footer_is_a_problem_of_its_file(small_model: Model, tmp_path: Path) -> None:
    """The footer has a column path that is not UTF-8, for which pyarrow raises an error in an unexpected place."""
    pq.write_table(pa.table({"text": ["a text"] * 3, "other": [1, 2, 3]}), tmp_path / "good.parquet")
    data = (tmp_path / "good.parquet").read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    (tmp_path / "bad.parquet").write_bytes(data[:footer] + data[footer:].replace(b"other", b"oth\xffr"))
    report = classify(tmp_path, model=small_model, device="cpu")
    assert report.rows_read == 3
    (problem,) = report.tally.problems
    assert problem[0].endswith("bad.parquet")
    assert "not a readable Parquet file" in problem[1]
