"""Arrow files and streams as written by pyarrow, pandas, Polars and `datasets`; and damaged and hostile files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pytest
from conftest import ROOT, examples
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather
from reading import found, read_files, read_split

from broadsheet import pipeline
from broadsheet.pipeline import classify, select
from broadsheet.pipeline.errors import BroadsheetError, UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.formats.tables import table_chunk
from broadsheet.pipeline.source.inputs import chunks_here, identify, open_input
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.source.plan.plan import Plan
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection, concat
from broadsheet.pipeline.source.rows.layouts import has_views
from broadsheet.pipeline.source.rows.limits import LIMITS, Limits

TEXTS = [f"article {i} é" if i % 7 else None for i in range(1000)]
TABLE = pa.table({"id": pa.array(range(1000), pa.int32()), "text": TEXTS, "kind": ["a", "bb"] * 500})
FRAME = polars.from_arrow(TABLE).with_columns(polars.col("kind").cast(polars.Categorical))


def write_stream(path: Path, **options: object) -> None:
    with pa.ipc.new_stream(path, TABLE.schema, options=pa.ipc.IpcWriteOptions(**options)) as to:
        to.write_table(TABLE, 90)


def write_file(path: Path) -> None:
    kinds = TABLE.column("kind").dictionary_encode()
    table = TABLE.set_column(2, "kind", kinds)
    with pa.ipc.new_file(path, table.schema) as to:
        to.write_table(table, 90)


WRITERS: dict[str, Callable[[Path], object]] = {
    "stream.arrow": write_stream,
    "zstd.arrows": lambda path: write_stream(path, compression="zstd"),
    "legacy.arrow": lambda path: write_stream(path, use_legacy_format=True),
    "dictionary.ipc": write_file,
    "lz4.feather": lambda path: feather.write_feather(TABLE, path),
    "pandas.feather": lambda path: TABLE.to_pandas().to_feather(path),
    "polars.arrow": FRAME.write_ipc,
    "polars_zstd.arrow": lambda path: FRAME.write_ipc(path, compression="zstd"),
    "polars_stream.arrow": FRAME.write_ipc_stream,
}


def read(path: Path, limits: Limits | None = None, chunk_rows: int = 128) -> tuple[Chunk, Plan, list[int]]:
    selection = Selection(text=("text",), kept_columns=("id", "kind"))
    result = read_split(found([path], limits or LIMITS), selection, chunk_rows)
    assert not result.messages
    return concat(result.chunks), result.plan, [chunk.rows_read for chunk in result.chunks]


@pytest.mark.parametrize("name", WRITERS)
def test_every_writers_file_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    for limits in (None, Limits(chunk_bytes=3000)):  # under this limit, several fragments take rows of one batch
        chunk, _, sizes = read(tmp_path / name, limits)
        assert max(sizes) <= 128
        good = [i for i, text in enumerate(TEXTS) if text]
        assert [t.decode() for t in chunk.text.to_pylist()] == [TEXTS[i] for i in good]
        assert chunk.rows["row"].to_pylist() == chunk.rows["id"].to_pylist() == good
        assert chunk.rows["kind"].to_pylist() == [("a", "bb")[i % 2] for i in good]
        assert chunk.rows.schema.field("id").type == pa.int32()
        assert chunk.quarantine["reason"].to_pylist() == ["the text is null"] * (1000 - len(good))
        assert len(sizes) >= (8 if limits is None else 9)


@pytest.mark.slow
def test_a_saved_dataset_is_read_by_its_shards_and_splits(client: Client, small_model: Model, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"text": [f"article {i}" for i in range(900)], "n": range(900)})
    rows.save_to_disk(tmp_path / "one", num_shards=3)
    datasets.load_from_disk(str(tmp_path / "one")).map(lambda row: {"n": len(row["text"])})  # leaves a cache there
    assert list((tmp_path / "one").glob("cache-*.arrow"))
    out = tmp_path / "out"
    report = pipeline.classify(tmp_path / "one", out, model=small_model, client=client, chunk_size=200, keep="n")
    assert (report.exit_code, report.rows_written, report.tally.left_out) == (0, 900, ())
    table = report.to_pandas()
    assert list(table["file"].unique()) == [f"{tmp_path}/one/data-0000{i}-of-00003.arrow" for i in range(3)]
    expected = pipeline.classify(rows.to_pandas(), model=small_model, client=client).to_pandas()
    assert table["label"].tolist() == expected["label"].tolist()
    assert pipeline.verify(out, input=True).rows_read == 900
    (min((out / "parts").iterdir())).unlink()
    resumed = pipeline.classify(
        tmp_path / "one", out, model=small_model, client=client, chunk_size=200, keep="n", resume=True
    )
    assert resumed.rows_written == 900
    both = datasets.DatasetDict(train=rows.select(range(10)), test=rows.select(range(5)))
    both.save_to_disk(tmp_path / "splits")
    split = find_files([str(tmp_path / "splits")], 70, 1014)
    assert [Path(f.path).parent.name for f in split.found] == ["test", "train"]
    assert not split.left_out


def test_a_stream_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    write_stream(tmp_path / "f.arrow")
    whole = (tmp_path / "f.arrow").read_bytes()
    (tmp_path / "f.arrow").write_bytes(whole[: len(whole) // 2])
    for read_as in (read_files, read_split):
        result = read_as(found([tmp_path]), Selection(), 1000)
        assert "cut off or damaged at byte" in result.messages[0]
        assert sum(chunk.rows_read for chunk in result.chunks) in range(90, 1000, 90)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("old.feather", b"FEA1 and more", "Feather file of version 1"),
        ("text.arrow", b"text\nan article\n", "not a readable Arrow file"),
        ("file.arrow", b"ARROW1\0\0 but no more", "its list of batches is missing"),
        ("f.csv", b"ARROW1\0\0", "it is a arrow file by its first bytes"),
    ],
)
def test_what_is_no_arrow_file_is_said(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    (problem,) = read_files(found([tmp_path / name]), Selection(), 1000).messages
    assert message in problem


def bombs(folder: Path) -> None:
    """Write small hostile files: a buffer that claims a tebibyte, and a long value that 20,000 rows refer to in two
    ways.
    """
    feather.write_feather(pa.table({"text": ["x" * 5000]}), folder / "claim.arrow", compression="zstd")
    claimed = (
        (folder / "claim.arrow").read_bytes().replace((5000).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little"))
    )
    (folder / "claim.arrow").write_bytes(claimed)
    long = pa.array(["x" * (8 << 20)])
    words = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), long)
    feather.write_feather(pa.table({"text": words}), folder / "words.arrow", compression="zstd")
    view = long.cast(pa.string_view())
    place = np.frombuffer(view.buffers()[1], np.uint8)
    buffers = [None, pa.py_buffer(np.tile(place, 20_000)), *view.buffers()[2:]]
    views = pa.Array.from_buffers(pa.string_view(), 20_000, buffers)
    feather.write_feather(pa.table({"text": views}), folder / "views.arrow", compression="zstd")


BOMB = """
import sys
from pathlib import Path
from broadsheet.pipeline.source.rows.chunk import Selection
sys.path.insert(0, "tests/helpers")
from reading import found, read_files
result = read_files(found([sys.argv[1]]), Selection(reads=123), 20_000)
rows = [chunk for chunk in result.chunks if len(chunk)]
print(result.messages)
mebibytes = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10
print([(len(chunk), chunk.n_chars.max().item()) for chunk in rows], mebibytes)
"""


def test_files_that_stand_for_far_more_are_read_in_bounded_memory(tmp_path: Path) -> None:
    bombs(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1 << 20
    run = subprocess.run(
        [sys.executable, "-c", BOMB, tmp_path], capture_output=True, text=True, cwd=ROOT, env={**os.environ}
    )
    assert run.returncode == 0, run.stderr
    problems, read_ = run.stdout.splitlines()
    assert "record batch 0 takes 1,048,576 MiB for 1 rows" in problems
    assert read_.startswith("[(20000, 8388608), (20000, 8388608)]"), read_
    assert int(read_.split()[-1]) < 900


@pytest.mark.slow
def test_no_flipped_byte_crashes_a_process_or_invents_rows(tmp_path: Path) -> None:
    for name in ("dictionary.ipc", "stream.arrow", "polars_zstd.arrow"):
        WRITERS[name](tmp_path / name)
    code = "import sys; from test_arrow_files import fuzz; fuzz(sys.argv[1])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, cwd=ROOT, env=env)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr


def fuzz(folder: str) -> None:
    """Read files in which bytes are replaced, and check that the result is rows or one of our errors."""
    rng = np.random.default_rng(0)
    for source in sorted(Path(folder).iterdir()):
        whole = source.read_bytes()
        for _ in range(40):
            data = bytearray(whole)
            edge = (0, 400) if rng.random() < 0.5 else (len(data) - 2000, len(data))
            where = rng.integers(*edge) if rng.random() < 0.8 else rng.integers(len(data))
            data[where] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)])
            damaged = source.with_name(f"damaged{source.suffix}")
            damaged.write_bytes(data)
            try:
                given = identify(damaged, 70, 1014, whole_hash=False, by_content=False)
                read_rows = sum(chunk.rows_read for chunk in chunks_here(open_input(given, Selection(), 128)))
                assert read_rows <= 2000
            except BroadsheetError:
                pass
            damaged.unlink()
    print("done")


N = 3
ROWS = ["oil rose", "stocks fell", "a match ended"]
NO_FIELDS = pa.struct([])
UNION = pa.UnionArray.from_dense(
    pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["a"])]
)
TWICE = pa.StructArray.from_arrays([pa.array([1, 2, 3]), pa.array([4, 5, 6])], names=["a", "a"])
RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"]))
MONTHS = pa.array([(1, 2, 3)] * N, pa.month_day_nano_interval())
NOWHERE = pa.array([1, 2, 3], pa.timestamp("us", "Mars/Olympus"))


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize(
    "column",
    [pa.array([{}] * N, NO_FIELDS), pa.array([[{}]] * N, pa.list_(NO_FIELDS)), UNION, TWICE, RUNS, MONTHS, NOWHERE],
)
def test_a_column_that_cannot_be_kept_is_refused_before_any_work(
    client: Client, small_model: Model, tmp_path: Path, column: pa.Array, kind: str
) -> None:
    """The column is refused or copied unchanged, in memory, in an Arrow file or in a list. A job may leave it out."""
    listed = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), column)
    for values in (column, listed):
        table = pa.table({"text": ROWS, "k": values})
        with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
            writer.write_table(table)
        for number, source in enumerate((table, tmp_path / "a.arrow")):
            job = {"model": small_model, "client": client}
            try:
                report = classify(source, tmp_path / f"out{number}", keep="k", format=kind, overwrite=True, **job)
            except UsageError as error:
                assert "the column 'k' cannot be" in str(error)  # noqa: PT017
                assert not (tmp_path / f"out{number}" / "_entries").exists()
            else:
                assert report.to_arrow().column("k").combine_chunks().equals(values)
                assert "struct<>" in str(values.type) if kind != "parquet" else "Mars" in str(values.type)
            assert classify(source, **job).rows_written == N
            with suppress(UsageError):
                assert classify(source, keep="k", **job).rows_written == N


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Berlin"), pa.date32()]),
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-(2**40), 2**40)), min_size=1),
    st.sampled_from(["plain", "struct", "list"]),
)
def test_a_time_that_no_text_can_hold_costs_its_row(kind: pa.DataType, numbers: list[int | None], shape: str) -> None:
    """The time is in a column, a field or an item of a list. Other rows are copied unchanged."""
    bits = pa.int32() if kind == pa.date32() else pa.int64()
    low = 2**31 if kind == pa.date32() else 2**63
    plain = pa.array([None if n is None else (n + low) % (2 * low) - low for n in numbers], bits).view(kind)
    naive = plain.cast(pa.timestamp(kind.unit)) if pa.types.is_timestamp(kind) else plain
    good = ["out of range" not in (text or "") for text in naive.cast(pa.string()).to_pylist()]
    shapes = {
        "plain": plain,
        "struct": pa.StructArray.from_arrays([plain], names=["at"]),
        "list": pa.ListArray.from_arrays(pa.array([0, *range(len(plain) + 1)], pa.int32()), plain),
    }
    column, good = shapes[shape], [True] * (shape == "list") + good  # the first list is empty
    selection = Selection(kept_columns=("k",), kept_types=(column.type,))
    table = pa.table({"text": pa.array(["x"] * len(column), pa.large_binary()), "k": column})
    chunk = table_chunk(table, "f", 0, selection)
    assert chunk.rows["k"].combine_chunks().equals(column.filter(pa.array(good)))
    assert chunk.quarantine["row"].to_pylist() == [i for i, is_good in enumerate(good) if not is_good]
    assert set(chunk.quarantine["reason"].to_pylist()) <= {"column 'k' holds a time out of range"}
    assert chunk.bad is not None
    assert chunk.bad["k"].null_count == len(chunk.bad) == good.count(False)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
def test_rows_with_strange_times_leave_a_folder_that_can_be_read(
    client: Client, small_model: Model, tmp_path: Path, kind: str
) -> None:
    at = pa.array([0, 2**62, 1], pa.timestamp("s"))
    table = pa.table({"text": ROWS, "at": at, "in": pa.StructArray.from_arrays([at], names=["at"])})
    report = classify(table, tmp_path / "out", keep=["at", "in"], format=kind, model=small_model, client=client)
    assert (report.rows_written, report.rows_quarantined) == (2, 1)
    assert report.to_arrow()["at"].to_pylist() == [at[0].as_py(), at[2].as_py()]
    select(tmp_path / "out", tmp_path / "chosen.csv", where="score >= 0")
    assert (tmp_path / "chosen.csv").read_text().count("1970-01-01") == 4


VIEWS = {
    "list of views": pa.array([["a"], None, [], ["b", None, "é" * 20]], pa.list_(pa.string_view())),
    "large list of views": pa.array([["a"], None, [], [b"b"]], pa.large_list(pa.binary_view())),
    "struct": pa.array([{"a": "x", "b": [1]}, None], pa.struct([("a", pa.string_view()), ("b", pa.list_(pa.int8()))])),
    "map": pa.array([[("k", "v"), ("l", None)], None, []], pa.map_(pa.string_view(), pa.string_view())),
    "fixed size": pa.array([["a", "b"], None, [None, "c"]], pa.list_(pa.string_view(), 2)),
    "deep": pa.array(
        [[{"a": [["x"], None]}], None], pa.list_(pa.struct([("a", pa.list_(pa.list_(pa.string_view())))]))
    ),
    "words": pa.ListArray.from_arrays(
        pa.array([0, 2, None, 3], pa.int32()),
        pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.uint32()), pa.array(["a", "b"], pa.string_view())),
    ),
    "list view": pa.ListViewArray.from_arrays(
        pa.array([2, 0, 0, 1], pa.int32()),
        pa.array([1, 3, 0, 2], pa.int32()),
        pa.array(["a", None, "c"], pa.string_view()),
        mask=pa.array([False, False, True, False]),
    ),
    "large list view": pa.array([[1], None, [2, None]], pa.large_list_view(pa.int64())),
    "json": pa.ExtensionArray.from_storage(pa.json_(pa.string_view()), pa.array(["[1]", None], pa.string_view())),
    "list of json": pa.ListArray.from_arrays(
        [0, 1, 2], pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[1]", "{}"]))
    ),
}
"""Columns in layouts that few of Arrow's functions accept."""


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("how", ["file", "stream", "zstd", "memory"])
def test_what_is_within_others_is_kept_in_every_layout(small_model: Model, tmp_path: Path, name: str, how: str) -> None:
    if name == "fixed size" and int(pa.__version__.partition(".")[0]) < 26:
        pytest.skip("PyArrow before 26 cannot write fixed-size lists that are null to Parquet")
    table = pa.table({"text": [f"article {i}" for i in range(len(VIEWS[name]))], "kept": VIEWS[name]})
    source: object = table
    if how != "memory":
        options = pa.ipc.IpcWriteOptions(compression="zstd" if how == "zstd" else None)
        with (pa.ipc.new_stream if how == "stream" else pa.ipc.new_file)(
            source := tmp_path / "f.arrow", table.schema, options=options
        ) as to:
            to.write_table(table)
            to.write_table(table.slice(1))
        table = pa.concat_tables([table, table.slice(1)])
    for form in ("parquet", "jsonl", "csv"):
        if (name, form) in {("map", "jsonl"), ("map", "csv")}:
            with pytest.raises(UsageError, match="'kept' cannot be written"):
                classify(source, tmp_path / form, model=small_model, keep="kept", format=form)
            continue
        report = classify(source, tmp_path / form, model=small_model, keep="kept", format=form)
        assert report.exit_code == 0
        assert pipeline.verify(tmp_path / form).rows_read == len(table)
        kept = report.to_arrow()["kept"]
        if pa.types.is_binary(getattr(kept.type, "value_type", kept.type)) and form != "parquet":
            continue  # the value is in base64
        assert kept.to_pylist() == table["kept"].to_pylist()
        assert not has_views(kept.type)


def test_lists_that_refer_to_the_same_values_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """As lists, 20,000 lists of the same 20,000 numbers take 3 GiB."""
    offsets, sizes = pa.array(np.zeros(20_000, np.int32)), pa.array(np.full(20_000, 20_000, np.int32))
    lists = pa.ListViewArray.from_arrays(offsets, sizes, pa.array(np.arange(20_000)))
    feather.write_feather(pa.table({"text": ["a"] * 20_000, "kept": lists}), tmp_path / "f.arrow")
    (message,) = read_files(found([tmp_path]), Selection(kept_columns=("kept",)), 1000).messages
    assert "take more than 1,024 MiB; write it with smaller record batches" in message


def test_a_stream_may_replace_its_dictionaries_any_number_of_times(tmp_path: Path) -> None:
    """Together the dictionaries take far more memory than the limit."""
    limits = Limits(chunk_bytes=1 << 16)
    tables = [
        pa.table({"text": pa.array([f"{i} {word * 2000}" for word in "abcdefgh"] * 2).dictionary_encode()})
        for i in range(100)
    ]
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(tmp_path / "f.arrows", tables[0].schema, options=options) as to:
        for table in tables:
            to.write_table(table)
    texts = [text.encode() for table in tables for text in table["text"].to_pylist()]
    assert sum(map(len, texts)) // 2 > 16 * limits.chunk_bytes
    for read_as in (read_files, read_split):
        result = read_as(found([tmp_path], limits), Selection(), 10)
        assert not result.messages
        assert result.texts == texts
    part = read_split(found([tmp_path], limits), Selection(), 10, segment=1 << 10)  # parts begin at many dictionaries
    assert part.texts == texts


def test_a_stream_may_add_to_its_dictionaries(tmp_path: Path) -> None:
    words = [f"article {i}" for i in range(60)]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    kind = pa.dictionary(pa.int32(), pa.string())
    with pa.ipc.new_stream(tmp_path / "f.arrows", pa.schema([("text", kind)]), options=options) as to:
        for count in (10, 10, 30, 60):
            indices = pa.array(range(count), pa.int32())
            to.write_batch(pa.record_batch({"text": pa.DictionaryArray.from_arrays(indices, words[:count])}))
    expected = [word.encode() for count in (10, 10, 30, 60) for word in words[:count]]
    for segment in (100, 1 << 20):
        assert read_split(found([tmp_path]), Selection(), 7, segment).texts == expected


def test_rows_that_are_claimed_and_not_there_cost_no_time(tmp_path: Path) -> None:
    """A batch of two rows claims 2^30 rows."""
    for name, column in (("text", ["one", "two"]), ("null", pa.nulls(2))):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("text", pa.array(column).type)])) as to:
            to.write_table(pa.table({"text": column}))
        rows, claimed = (count.to_bytes(8, "little") for count in (2, 1 << 30))
        data = sink.getvalue().to_pybytes()
        assert rows in data
        (tmp_path / f"{name}.arrows").write_bytes(data.replace(rows, claimed))
    messages = read_files(found([tmp_path]), Selection(), 512).messages
    assert len(messages) == 2
    assert all("it claims to hold 1,073,741,824 rows that take no byte" in message for message in messages)
    (tmp_path / "few").mkdir()
    coded = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int8()), ["a text"])
    path = tmp_path / "few" / "claim.arrow"
    feather.write_feather(pa.table({"text": coded}), path, compression="zstd")
    # Changes the size of the index's buffer too.
    rows, claimed = (count.to_bytes(8, "little") for count in (5000, 1 << 29))
    path.write_bytes(path.read_bytes().replace(rows, claimed))
    (message,) = read_files(found([path]), Selection(), 512).messages
    assert "it claims to hold 536,870,912 rows that take no byte" in message
    feather.write_feather(pa.table({"text": pa.nulls(5000)}), tmp_path / "nulls.arrow")
    result = read_files(found([tmp_path / "nulls.arrow"]), Selection(), 512)
    assert sum(len(chunk.quarantine) for chunk in result.chunks) == 5000


@pytest.mark.parametrize("shape", ["list", "large list", "list view", "fixed list", "map", "struct"])
def test_an_index_that_no_dictionary_has_is_found_within_others(tmp_path: Path, shape: str) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int8()), pa.array(["a", "b"]))
    structs, offsets = pa.StructArray.from_arrays([words], ["a"]), pa.array([0, 1, 3], pa.int32())
    kept = {
        "list": lambda: pa.ListArray.from_arrays(offsets, structs),
        "large list": lambda: pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), structs),
        "list view": lambda: pa.ListViewArray.from_arrays(offsets[:2], pa.array([1, 2], pa.int32()), structs),
        "fixed list": lambda: pa.FixedSizeListArray.from_arrays(structs, 3),
        "map": lambda: pa.MapArray.from_arrays(offsets, pa.array(["k", "l", "m"]), structs),
        "struct": lambda: structs,
    }[shape]()
    table = pa.table({"text": ["article"] * len(kept), "kept": kept})
    feather.write_feather(table, tmp_path / "f.arrow", compression="uncompressed")
    selection = Selection(kept_columns=("kept",))
    assert concat(read_files(found([tmp_path]), selection, 9).chunks).rows["kept"].to_pylist() == kept.to_pylist()
    data, indices = (tmp_path / "f.arrow").read_bytes(), b"\1\0\1".ljust(8, b"\0")
    assert data.count(indices) == 1
    (tmp_path / "f.arrow").write_bytes(data.replace(indices, b"\x4d\0\1".ljust(8, b"\0")))
    (message,) = read_files(found([tmp_path]), selection, 9).messages
    assert "record batch 0 cannot be read" in message


@pytest.mark.parametrize("writer", [pa.ipc.new_stream, pa.ipc.new_file])
def test_a_damaged_batch_is_named_by_its_number(tmp_path: Path, writer: Callable[..., Any]) -> None:
    """The batches before it are read."""
    table = pa.table({"text": [f"a long enough text {i} " * 9 for i in range(30)]})
    with writer(tmp_path / "f.arrow", table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as to:
        to.write_table(table, 10)
    data, frame = (tmp_path / "f.arrow").read_bytes(), b"\x28\xb5\x2f\xfd"  # the bytes that zstd data begins with
    assert data.count(frame) >= 3
    last = data.rindex(frame)
    (tmp_path / "f.arrow").write_bytes(data[: last + 8] + bytes(9) + data[last + 17 :])
    result = read_files(found([tmp_path]), Selection(), 10)
    assert len(result.texts) == 20
    assert "record batch 2 cannot be read" in result.messages[0]
