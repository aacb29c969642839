"""Parts in every format, and in a folder for each label, as common libraries read them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dask.dataframe as dd
import duckdb
import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import examples
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chaos.jobs import contents
from broadsheet.pipeline import OutputError, SourceError, UsageError, classify, dry_run, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.formats import PART_FORMATS, part_files
from broadsheet.pipeline.output.layout import PartNames
from broadsheet.pipeline.report.job import JobReport

LABELS = ("never", "a.b=c%20", "Zürich ñ +&#?[x]*{y}", "Sci/Tech")
ODD = [
    "plain",
    "a,b",
    'a "quote"',
    "two\nlines",
    "a\r\nb",
    "",
    " blank ",
    "\ufeffmark",
    "=1+1",
    "null",
    "NaN",
    "\x00",
    "😀",
]

UNUSABLE = ["__HIVE_DEFAULT_PARTITION__", "x" * 300, "é" * 50]
"""Values that cannot name a folder: the name that means null, and two that are too long (over 255 bytes
percent-encoded).
"""

Run = Callable[..., JobReport]


@pytest.fixture(scope="module")
def run(client: Client, small_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a job over two files that share a chunk, with rows to quarantine and columns that are hard to
    write as text.
    """
    folder = tmp_path_factory.mktemp("input")
    for name, first in (("b", 0), ("a", 30)):
        count = range(first, first + 30)
        columns = {
            "text": [None if i % 13 == 7 else f"{i} {hashlib.sha256(bytes([i])).hexdigest()}" for i in count],
            "odd": [None if i % 11 == 3 else ODD[i % len(ODD)] for i in count],
            "when": pa.array([i * 10**13 for i in count], pa.timestamp("us", "UTC")),
            "day": pa.array([None if i % 5 == 1 else dt.date(2024, 1, 1 + i % 28) for i in count]),
            "small": pa.array(np.array([i / 7 for i in count], np.float32)),
            "nested": [None if i % 4 == 0 else [{"x": i / 3, "y": ODD[i % len(ODD)]}, None] for i in count],
            "raw": [b"bytes %d" % i for i in count],
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=8)
    model = dataclasses.replace(small_model, classes=LABELS)
    kept = ("odd", "when", "day", "small", "nested", "raw")
    return partial(classify, [folder / "b.parquet", folder / "a.parquet"], model=model, client=client, id_column=kept)


@pytest.fixture(scope="module")
def in_memory(run: Run) -> JobReport:
    report = run(scores=True, top_k=2)
    assert set(report.to_arrow()["label"].drop_null().to_pylist()) == set(LABELS[1:])
    return report


def labelled(report: JobReport) -> pa.Table:
    """Return the rows that an output folder has: all but those that could not be labelled."""
    rows = report.to_arrow()
    return rows.filter(rows["reason"].is_null()).drop_columns("reason")


def test_every_format_gives_back_every_row_as_it_was(run: Run, in_memory: JobReport, tmp_path: Path) -> None:
    expected = labelled(in_memory)
    for format_ in ("parquet", "jsonl", "csv"):
        report = run(tmp_path / format_, scores=True, top_k=2, format=format_, chunk_size=16)
        assert report.to_arrow().equals(expected), format_
        assert verify(tmp_path / format_).rows_written == len(expected)
        assert {path.suffix for path in (tmp_path / format_ / "parts").iterdir()} == {f".{format_}"}
    lines, table = tmp_path / "jsonl" / "parts" / "*.jsonl", tmp_path / "csv" / "parts" / "*.csv"
    assert not [f for f in (tmp_path / "csv" / "parts").iterdir() if b"\n\n" in f.read_bytes().replace(b"two\n", b"")]
    scores, odd = expected["score"].to_pylist(), expected["odd"].to_pylist()
    for frame in (
        pl.read_ndjson(lines, infer_schema_length=None),
        pl.read_csv(table),
        duckdb.sql(f"from read_csv('{table}', quote='\"', escape='\"')").pl(),
        duckdb.sql(f"from read_json('{lines}')").pl(),
        pl.from_pandas(pd.concat(map(partial(pd.read_json, lines=True), sorted(lines.parent.glob("*"))))),
        pl.from_pandas(pd.concat(map(pd.read_csv, sorted(table.parent.glob("*"))))),
    ):
        rows = frame.with_columns(name=pl.col("file").str.contains("b.parquet")).sort("name", descending=True)
        assert rows.sort("name", "row", descending=[True, False])["score"].cast(pl.Float32).to_list() == scores
        assert Counter(rows["label"]) == in_memory.tally.labels
    column = pl.read_csv(table)["odd"].to_list()
    assert column == odd
    assert [json.loads(line)["odd"] for f in sorted(lines.parent.iterdir()) for line in f.open()] == odd


READERS: dict[str, Callable[[Path], object]] = {
    "pandas": lambda out: pd.read_parquet(out),
    "Dask": lambda out: dd.read_parquet(out).compute(),
    "Polars": lambda out: pl.read_parquet(out / "parts"),
    "Polars, later": lambda out: pl.scan_parquet(out / "parts").collect(),
    "Polars, from OUT": lambda out: pl.scan_parquet(out / "**/*.parquet", hive_partitioning=True).collect(),
    "DuckDB": lambda out: duckdb.sql(f"from '{out}/**/*.parquet'").pl(),
}


@pytest.fixture(scope="module")
def partitioned(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("partitioned") / "out"
    run(out, partition_by="label", where="row != 4", chunk_size=16)
    shutil.rmtree(out / "_runs")
    return out


@pytest.mark.slow
def test_every_library_reads_the_folder_and_gives_back_each_label_exactly(
    run: Run, in_memory: JobReport, partitioned: Path, tmp_path: Path
) -> None:
    run(tmp_path / "plain", where="row != 4", chunk_size=16)
    chosen = [row for row in labelled(in_memory).to_pylist() if row["row"] != 4]
    expected = {(row["file"], row["row"]): row["label"] for row in chosen}
    for out in (tmp_path / "plain", partitioned):
        for reader, read in READERS.items():
            frame = read(out)
            pairs = zip(frame["file"], frame["row"], strict=True)
            assert dict(zip(pairs, map(str, frame["label"]), strict=True)) == expected, (reader, out)
    folders = {path.name for path in (partitioned / "parts").iterdir()}
    assert {
        "label=Sci%2FTech",
        "label=a.b%3Dc%2520",
        "label=Z%C3%BCrich%20%C3%B1%20%2B%26%23%3F%5Bx%5D%2A%7By%7D",
    } == folders
    assert verify(partitioned).rows_filtered == 2


def test_a_folder_for_each_label_is_resumed_like_any_other(
    run: Run, in_memory: JobReport, partitioned: Path, tmp_path: Path
) -> None:
    whole, out = contents(partitioned), shutil.copytree(partitioned, tmp_path / "out")
    report = run(out, partition_by="label", where="row != 4", chunk_size=16, resume=True)
    rows = labelled(in_memory)
    rows = rows.filter(pa.array([row != 4 for row in rows["row"].to_pylist()]))
    assert report.to_arrow().equals(rows.select(report.to_arrow().column_names))  # the rows are in input order
    parts = sorted((out / "parts").glob("*/*"))
    parts[0].unlink()
    (out / "parts" / "label=Nothing").mkdir()
    shutil.copy(parts[1], out / "parts" / "label=Nothing")
    with pytest.raises(OutputError, match=r"is missing: resume=True repairs this$"):
        verify(out)
    report = run(out, partition_by="label", where="row != 4", chunk_size=16, resume=True)
    assert report.run.chunks_before == report.tally.chunks - 1
    assert contents(out) == whole
    assert not (out / "parts" / "label=Nothing").exists()


def test_a_folder_for_each_value_of_a_kept_column_and_label(run: Run, in_memory: JobReport, tmp_path: Path) -> None:
    """The values may be null, empty, or odd as names. The rows come back unchanged, and the job can be resumed."""
    out, expected = tmp_path / "out", labelled(in_memory)
    report = run(out, partition_by=["odd", "label"], chunk_size=16)
    assert report.to_arrow()["odd"].equals(expected["odd"])
    folders = {path.name for path in (out / "parts").iterdir()}
    assert {"odd=", "odd=%00", "odd=two%0Alines", "odd=__HIVE_DEFAULT_PARTITION__"} <= folders
    assert verify(out).rows_written == len(expected)
    whole = contents(out)
    next((out / "parts").rglob("part-*")).unlink()
    run(out, partition_by=["odd", "label"], chunk_size=16, resume=True)
    assert contents(out) == whole
    rows = pa.table({"row": range(1001)})
    with pytest.raises(
        UsageError, match="partition_by='row' would make 1,001 folders for 1,001 rows; the limit is 1,000"
    ):
        part_files(rows, PartNames(by=("row",)), "part-000000-0000000", "0" * 16)


@pytest.mark.parametrize("format_", ["jsonl", "csv"])
def test_text_in_a_folder_for_each_label_keeps_the_label(
    run: Run, in_memory: JobReport, tmp_path: Path, format_: str
) -> None:
    out = tmp_path / "out"
    report = run(out, partition_by="label", format=format_)
    assert report.to_arrow()["label"].equals(labelled(in_memory)["label"])
    read = {"jsonl": pl.read_ndjson, "csv": pl.read_csv}[format_]
    assert Counter(read(out / "parts" / "**" / f"*.{format_}")["label"]) == in_memory.tally.labels
    reader = {"jsonl": "read_json", "csv": "read_csv"}[format_]
    rows = duckdb.sql(f"select label, count(*) from {reader}('{out}/parts/**/*.{format_}') group by label")
    assert dict(rows.fetchall()) == in_memory.tally.labels
    assert verify(out).rows_written == report.rows_written


def forge(out: Path, change: Callable[[pa.Table], pa.Table], pattern: str = "*/*") -> None:
    """Change the rows of a part, and adapt its entry to them."""
    part = min((out / "parts").glob(pattern))
    data = PART_FORMATS["parquet"].write(change(pq.ParquetFile(part).read()))
    part.write_bytes(data)
    (entry,) = (out / "_entries").glob(f"{part.stem}.json")
    record = json.loads(entry.read_text())
    (about,) = (file for file in record["files"] if file["name"] == part.relative_to(out).as_posix())
    about.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    entry.write_text(json.dumps(record))


def test_verify_evaluates_the_expression_again(partitioned: Path, tmp_path: Path) -> None:
    out = shutil.copytree(partitioned, tmp_path / "out")

    def third(table: pa.Table) -> pa.Table:
        return table.set_column(1, "row", pa.array([4, *table["row"].to_pylist()[1:]], pa.int64()))

    forge(out, third)
    with pytest.raises(OutputError, match=r"for which the job's `where` is not true: resume=True repairs this$"):
        verify(out)


def test_rows_are_chosen_by_any_column_and_counted(run: Run, in_memory: JobReport, tmp_path: Path) -> None:
    """`where` may use a score that is not written. The accuracy is the model's, and counts filtered rows too."""
    every = labelled(in_memory).to_pylist()
    least = sorted(row["score_Sci/Tech"] for row in every)[20]
    where = f"`score_Sci/Tech` >= {least} and (odd is not null or label != 'Sci/Tech') and when < '1983-01-01'"
    chosen = [
        (row["file"], row["row"])
        for row in every
        if row["score_Sci/Tech"] >= least
        and (row["odd"] is not None or row["label"] != "Sci/Tech")
        and row["when"] < dt.datetime(1983, 1, 1, tzinfo=dt.UTC)
    ]
    assert 5 < len(chosen) < len(every) - 5
    written, memory = run(tmp_path / "out", where=where), run(where=where)
    assert memory.to_arrow()["reason"].is_valid().to_pylist().count(True) == 5  # rows that could not be labelled
    for table in (written.to_arrow(), labelled(memory)):
        assert list(zip(table["file"].to_pylist(), table["row"].to_pylist(), strict=True)) == chosen
        assert "score_Sci/Tech" not in table.column_names
    totals = verify(tmp_path / "out")
    assert totals.rows_read == 60 == len(chosen) + totals.rows_filtered + totals.rows_quarantined
    assert written.to_dict()["rows_filtered"] == totals.rows_filtered == len(every) - len(chosen)
    with pytest.raises(UsageError, match="column 'odd' holds no class of the model in any of 55 rows"):
        run(tmp_path / "nothing", where="score > 1", label_column="odd")
    assert len(dd.read_parquet(tmp_path / "nothing").compute()) == len(pd.read_parquet(tmp_path / "nothing")) == 0
    assert verify(tmp_path / "nothing").rows_written == 0
    assert sum(rows for *_, rows in verify(tmp_path / "nothing").confusion) == len(every)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"where": "nonsense > 1"},
            r"there is no column 'nonsense' \(there are file, row, odd, .+ score_Sci/Tech, .+\(ch",
        ),
        (
            {"where": 'score > "x"'},
            r"'score' is a number and 'x' is text: they cannot be compared, at '> \"x\"' \(char",
        ),
        ({"format": "xml"}, "format 'xml': choose parquet, jsonl, csv"),
        ({"partition_by": "od"}, r"there is no column 'od' for partition_by= \(there .* did you mean 'odd'"),
        ({"partition_by": "score"}, "'score' is float: partition_by= takes text, integers, dates, true and false"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_written(
    run: Run, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_columns_and_classes_that_cannot_be_written_are_told(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    source = pa.table({"text": ["a"], "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})
    with pytest.raises(UsageError, match=r"the column 'map' cannot be written: jsonl cannot hold map<"):
        classify(source, tmp_path / "out", model=small_model, client=client, id_column="map", format="jsonl")
    model = dataclasses.replace(small_model, classes=("__HIVE_DEFAULT_PARTITION__", "a", "b", "c"))
    with pytest.raises(UsageError, match="'__HIVE_DEFAULT_PARTITION__' in 'label' cannot be the name of a folder"):
        classify(source, tmp_path / "out", model=model, client=client, partition_by="label")


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.sampled_from([None, "de", "", ".", "a/b", "x" * 200, *UNUSABLE]), min_size=1, max_size=30))
def test_rows_whose_value_can_name_no_folder_are_quarantined(
    client: Client, small_model: Model, tmp_path_factory: pytest.TempPathFactory, values: list[str | None]
) -> None:
    """All other rows, including those without a value, are in the folder of their value."""
    folder = tmp_path_factory.mktemp("folders")
    good = [row for row, value in enumerate(values) if value not in UNUSABLE]
    table = pa.table({"text": [f"text {i}" for i in range(len(values))], "lang": pa.array(values, pa.string())})
    pq.write_table(table, folder / "in.parquet")
    options = {"model": small_model, "id_column": "lang", "partition_by": ["lang", "label"]}
    report = classify(folder / "in.parquet", folder / "out", client=client, chunk_size=7, **options)
    assert (report.rows_written, report.rows_quarantined) == (len(good), len(values) - len(good))
    assert verify(folder / "out", input=True).rows_quarantined == report.rows_quarantined
    written = [(row["row"], row["lang"]) for row in report.to_arrow().to_pylist()]
    assert written == [(row, values[row]) for row in good]
    estimate = dry_run(folder / "in.parquet", **options)
    assert sum(estimate.reasons.values()) == len(values) - len(good)
    if len(good) < len(values):
        assert list(estimate.reasons) == ["its 'lang' cannot name a folder, which --partition-by needs"]
        with pytest.raises(SourceError, match="its 'lang' cannot name a folder"):
            classify(folder / "in.parquet", folder / "strict", client=client, strict=True, **options)


_INNER = pa.struct([("x", pa.float64()), ('y"', pa.string()), ("z", pa.list_(pa.string()))])
_JSON_TYPES = {
    "number": pa.float64(),
    "größe": pa.int64(),
    'text "quoted"': pa.string(),
    "flag": pa.bool_(),
    "texts": pa.list_(pa.string()),
    "numbers": pa.list_(pa.float64()),
    "object": _INNER,
    "objects": pa.list_(_INNER),
}


def values_of(kind: pa.DataType) -> st.SearchStrategy[object]:
    if pa.types.is_list(kind):
        return st.none() | st.lists(values_of(kind.value_type), max_size=3)
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    near = [1e-5, 9.999999999999999e-06, 1e10, 9999999999.999998, 10000000000.5, 1.0, -0.0, 12345.678, 1e16, 5e-324]
    plain = {
        pa.float64(): st.floats() | st.sampled_from(near),
        pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
        pa.string(): st.text() | st.sampled_from([*ODD, "\\"]) | st.characters(max_codepoint=0x80),
        pa.bool_(): st.booleans(),
    }
    return st.none() | plain[kind]


@settings(max_examples=examples(150), deadline=None)
@given(rows=st.lists(st.tuples(*map(values_of, _JSON_TYPES.values())), max_size=12), skipped=st.integers(0, 3))
def test_json_lines_are_those_that_an_encoder_writes_row_by_row(rows: list[tuple[object, ...]], skipped: int) -> None:
    columns = zip(*rows, strict=True) if rows else [()] * len(_JSON_TYPES)
    arrays = [pa.array(list(of), kind) for of, kind in zip(columns, _JSON_TYPES.values(), strict=True)]
    table = pa.table(arrays, [*_JSON_TYPES]).slice(skipped)
    expected = b"".join(msgspec.json.encode(row) + b"\n" for row in table.to_pylist())
    assert PART_FORMATS["jsonl"].write(table) == expected


def test_a_float32_reads_back_as_itself_from_text_and_is_short() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 50_000, dtype=np.uint32)
    values = bits.view(np.float32)
    table = pa.table({"score": values[np.isfinite(values)]})
    for form in (PART_FORMATS["csv"], PART_FORMATS["jsonl"]):
        assert form.read(form.write(table), table.schema, table.schema).equals(table)
    assert PART_FORMATS["csv"].write(pa.table({"score": np.array([0.9], np.float32)})) == b'"score"\n0.9\n'
    assert PART_FORMATS["jsonl"].write(pa.table({"score": np.array([0.9], np.float32)})) == b'{"score":0.9}\n'


def test_bytes_of_a_parquet_file_do_not_depend_on_the_pieces_in_which_its_rows_were_read() -> None:
    """A GPU and the host read the same rows in different pieces. Parquet ends a page where a piece ends."""
    rows = pa.table({"text": [f"{number} {'é' * 86}" for number in range(6008)]})  # a page holds 1 MiB
    pieces = pa.concat_tables([rows.slice(0, 6007), rows.slice(6007)])
    assert pieces.column("text").num_chunks == 2
    parquet = PART_FORMATS["parquet"]
    assert bytes(parquet.write(pieces)) == bytes(parquet.write(rows))
