"""Columns that are copied from files, and nested columns named with dots: their types, files that differ in their
columns, and the messages about files that are not read.
"""

from __future__ import annotations

import datetime
import decimal
import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from conftest import CommandHere, examples
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import block_of, found, read_files, same
from s3 import KEYS, Folder, s3, s3_server  # noqa: F401

from broadsheet import pipeline
from broadsheet.pipeline import Paths, UsageError, classify, label, verify
from broadsheet.pipeline.errors import OutputError
from broadsheet.pipeline.labelling.windows import Windows
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.output.model_columns import ModelColumns, Names
from broadsheet.pipeline.output.saved_plan import plan_bytes, plan_from
from broadsheet.pipeline.report.job import Progress
from broadsheet.pipeline.source.formats.jsonl import Jsonl, parse_one_by_one
from broadsheet.pipeline.source.plan.plan import plan_files
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.source.rows.columns import copied, is_held_by, type_of_both

COLUMNS = {
    "id": pa.array([7, None], pa.int32()),
    "tags": pa.array([["a", "b"], None]),
    "about": pa.array([{"x": 1, "y": "é"}, {"x": None, "y": "z"}]),
    "when": pa.array([datetime.datetime(2024, 5, 1, 12)] * 2, pa.timestamp("ms", "UTC")),
    "kind": pa.array(["x", "y"]).dictionary_encode(),
    "photo": pa.array([b"\xff\x00", b""], pa.large_binary()),
    "price": pa.array([decimal.Decimal("1.50"), None]),
    "uuid": pa.array([bytes(range(16))] * 2, pa.binary(16)),
    "none": pa.nulls(2),
    "label": pa.array(["theirs", "ours"]),
    "file": pa.array(["scan-1.png", "scan-2.png"]),
    "label_source": pa.array([1.5, 2.5], pa.float32()),
}


class Hearing(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warn(self, message: str) -> None:
        self.lines.append(message)


def test_every_column_of_a_parquet_file_keeps_its_type(client: Client, small_model: Model, tmp_path: Path) -> None:
    table = pa.table({"text": ["one", "two"], **COLUMNS})
    pq.write_table(table, tmp_path / "in.parquet")
    job = {"model": small_model, "client": client, "keep_all": True, "chunk_size": 1}
    report = classify(tmp_path / "in.parquet", tmp_path / "out", **job)
    rows = report.to_arrow()
    names = {"label": "label_source_source", "file": "file_source"}
    for name in table.column_names:
        held = rows.column(names.get(name, name))
        assert held.to_pylist() == table.column(name).to_pylist(), name
        expected = {"photo": pa.binary(), "none": pa.string()}.get(name, table.schema.field(name).type)
        assert held.type == expected, name
    assert set(rows["label"].to_pylist()) <= set(small_model.classes)
    verify(tmp_path / "out", input=True)
    with pytest.raises(UsageError, match="'label'"):
        classify(tmp_path / "in.parquet", model=small_model, client=client, keep="label")


@pytest.mark.parametrize("thresholds", [None, (0.5, 0.5)])
def test_a_copied_column_never_has_the_name_of_a_column_of_a_model(thresholds: tuple[float, ...] | None) -> None:
    of_model = ModelColumns(
        ("A", "B"), 2, True, Names("one_", thresholds is not None), (), None, thresholds, Windows(2)
    )
    names = [field.name for field in (*of_model.first, *of_model.more, *of_model.of_text)]
    assert len({*names}) == 9
    chosen = Selection(kept_columns=(*names,), keep_all=True, classes=("A", "B"), prefixes=("one_",), windows=True)
    assert chosen.kept_names == tuple(f"{name}_source" for name in names)


@pytest.mark.slow
def test_keys_that_the_first_lines_lack_are_not_lost_in_silence(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    """The keys are in one row of three, from the line with their number on."""
    first_lines = {"late": 150, "later": 260, "of every type": 120, "\ud800": 130}
    values = [1, 2.5, None, "x", [1], {"a": 1}, True, {}]
    rows = [{"text": f"oil rose {i}", "id": i} for i in range(300)]
    for i, row in enumerate(rows):
        row |= {key: values[i % 8] if " " in key else i for key, line in first_lines.items() if i >= line and not i % 3}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "second.jsonl").write_text('{"text": "a", "late": 1, "id": 7}\n' * 3)
    expected = Counter(key for row in rows for key, value in row.items() if key in first_lines and value is not None)
    expected = Counter({key.replace("\ud800", "\\ud800"): count for key, count in expected.items()})
    job = {"model": small_model, "client": client}
    for chunk_size in (7, 1000):
        out = tmp_path / f"out-{chunk_size}"
        report = classify(tmp_path / "in.jsonl", out, keep_all=True, chunk_size=chunk_size, **job)
        assert report.tally.not_copied == expected
        assert report.exit_code == 0
        assert f"'late' of {expected['late']} rows" in report.hints[0]
        assert verify(out, input=True).rows_written == 300
    of_text = [{"text": "oil rose " * 40} | ({"late": 1} if i > 100 and i % 3 else {}) for i in range(3000)]
    without = [row | {"text": None} if i % 4 == 1 else row for i, row in enumerate(of_text)]
    for some in (of_text, without):
        (tmp_path / "of-text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
        report = classify(tmp_path / "of-text.jsonl", keep_all=True, **job)
        assert report.tally.not_copied == {"late": sum("late" in row for row in some)}
    both = classify([tmp_path / "in.jsonl", tmp_path / "second.jsonl"], keep_all=True, **job)
    assert both.tally.not_copied["late"] == expected["late"] + 3
    kept = classify(tmp_path / "in.jsonl", keep=["late", "later"], **job)
    assert kept.tally.not_copied == {}
    assert kept.to_arrow()["later"].to_pylist() == [None if "later" not in row else str(row["later"]) for row in rows]
    once = classify(iter(rows), keep_all=True, **job)
    assert once.tally.not_copied == expected
    held = classify(rows, keep_all=True, **job)
    assert held.tally.not_copied == {"\\ud800": expected["\\ud800"]}
    assert held.to_arrow()["late"].to_pylist() == [row.get("late") for row in rows]


def test_a_text_column_may_begin_on_a_later_line(client: Client, small_model: Model, tmp_path: Path) -> None:
    rows = [{"meta": {"a": i}} if i < 200 else {"text": "oil rose", "meta": {"b": i}} for i in range(300)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source in (tmp_path / "in.jsonl", rows):
        report = classify(source, model=small_model, client=client, keep="meta.b")
        table = report.to_arrow()
        assert set(table["reason"][:200].to_pylist()) == {"no key 'text'"}
        assert [str(value) for value in table["meta.b"][200:].to_pylist()] == [str(i) for i in range(200, 300)]
    with pytest.raises(UsageError, match="no column 'txt'"):
        classify(tmp_path / "in.jsonl", model=small_model, client=client, text_column="txt")


@pytest.mark.parametrize("limit", [None, 3])
def test_the_input_is_verified_where_it_has_columns_of_our_names(
    client: Client, small_model: Model, tmp_path: Path, limit: int | None
) -> None:
    with gzip.open(tmp_path / "in.csv.gz", "wt") as file:
        file.write("text,file,row\n" + "a,x.png,7\n" * 5)
    job = {"model": small_model, "client": client, "keep_all": True, "chunk_size": 2, "limit": limit}
    written = classify(tmp_path / "in.csv.gz", tmp_path / "out", **job).rows_written
    assert verify(tmp_path / "out", input=True).rows_read == written == (limit or 5)


def write_mixed(folder: Path) -> None:
    folder.mkdir()
    pq.write_table(
        pa.table({"id": pa.array([1, 2], pa.int64()), "text": ["a", "b"], "n": [1, 2], "w": [1.0, 0.5]}),
        folder / "1.parquet",
    )
    pq.write_table(
        pa.table({"id": ["x", "y"], "text": ["c", "d"], "n": pa.array([3, 4], pa.int16())}), folder / "2.parquet"
    )
    pq.write_table(pa.table({"id": ["z"] * 250, "text": pa.array(range(250))}), folder / "3.parquet")
    (folder / "4.parquet").write_bytes(b"PAR1 and no more")


def test_ids_of_different_types_fit_the_strings_of_the_first_file(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    write_mixed(tmp_path / "in")
    (tmp_path / "in" / "0.csv").write_text("text,id,w,n\ne,5,five,\n")
    (tmp_path / "in" / "6.jsonl").write_text('{"text": "f"}\n{"text": "g", "id": 6, "n": null, "w": [1]}\n{"id": 1}\n')
    job = {"model": small_model, "client": client, "id_column": "id", "keep": ["n", "w"], "chunk_size": 3}
    report = classify(tmp_path / "in", tmp_path / "out", **job)
    rows = report.to_arrow()
    assert rows["id"].to_pylist() == ["5", "1", "2", "x", "y", None, "6"]
    assert rows["n"].to_pylist() == ["", "1", "2", "3", "4", None, None]
    assert rows["w"].to_pylist() == ["five", "1", "0.5", None, None, None, "[1]"]
    assert report.quarantine()["reason"].to_pylist() == ["no key 'text'"]
    assert report.exit_code == 3
    messages = dict(report.tally.problems)
    assert "it has no 'w': null in its rows" in messages[str(tmp_path / "in" / "2.parquet")]
    assert "'text' holds int64, not strings" in messages[str(tmp_path / "in" / "3.parquet")]
    whole = {"chunk_size": 1000, **{name: job[name] for name in ("model", "client", "id_column", "keep")}}
    other = classify(tmp_path / "in", **whole).to_arrow()
    other = other.filter(other["reason"].is_null())  # in memory, the row without a text is among the others
    assert other.select(["id", "n", "w"]).equals(rows.select(["id", "n", "w"]))
    (tmp_path / "out" / "_SUCCESS").unlink()
    for entry in sorted((tmp_path / "out" / "_entries").glob("part-*"))[1:]:
        entry.unlink()
    assert classify(tmp_path / "in", tmp_path / "out", resume=True, **job).to_arrow().equals(rows)


def test_types_that_all_files_share_stay_and_integers_stay_numbers(
    client: Client, small_model: Model, tmp_path: Path
) -> None:
    write_mixed(tmp_path / "in")
    short = {"id": pa.array([3, 4], pa.int8()), "text": ["c", "d"], "n": pa.array([3, 4], pa.int16())}
    pq.write_table(pa.table(short), tmp_path / "in" / "2.parquet")
    job = {"model": small_model, "client": client, "keep_all": True, "id_column": "n"}
    report = classify(pipeline.Paths([str(tmp_path / "in" / name) for name in ("1.parquet", "2.parquet")]), **job)
    assert report.to_arrow().schema.names[2:6] == ["n", "id", "text", "w"]
    assert report.to_arrow()["n"].to_pylist() == [1, 2, 3, 4]
    assert report.to_arrow()["w"].to_pylist() == [1.0, 0.5, None, None]
    pq.write_table(pa.table({"text": ["h"], "n": [None], "more": [1]}), tmp_path / "in" / "2.parquet")
    report = classify(pipeline.Paths([str(tmp_path / "in" / name) for name in ("1.parquet", "2.parquet")]), **job)
    assert report.to_arrow().column("n").to_pylist() == [1, 2, None]
    assert "it has no 'id', 'w': null in its rows; not copied: 'more'" in report.tally.problems[0][1]


def test_what_is_not_read_is_said(
    broadsheet_here: CommandHere, client: Client, small_model: Model, tmp_path: Path
) -> None:
    write_mixed(tmp_path / "in")
    (tmp_path / "in" / "sub").mkdir()
    for name in ("notes.json", "README", "sub/x.pdf", "_draft.csv", ".hidden"):
        (tmp_path / "in" / name).write_text("{}")
    heard = Hearing()
    report = classify(tmp_path / "in", tmp_path / "out", keep="w", model=small_model, client=client, progress=heard)
    unread = f"2 files were not read (250 rows in 1 of them): {tmp_path}/in/3.parquet, {tmp_path}/in/4.parquet"
    skipped = f"{tmp_path}/in/README, {tmp_path}/in/sub/x.pdf (its suffix belongs to no format); "
    skipped += f"{tmp_path}/in/notes.json (it is a JSON object, as a configuration is, and not an object a line)"
    assert report.not_read[0] == unread
    assert report.not_read[1] == f"3 files were skipped: {skipped}"
    assert report.not_read[2].startswith("1 file was read with a problem: ")
    assert heard.lines == [*report.not_read, *report.hints]
    code, printed = broadsheet_here("verify", tmp_path / "out")
    assert code == 0
    assert "out: whole, as far as its input was read. " in printed
    assert f"Input: {unread}" in printed
    assert f"Input: {report.not_read[2]}" in printed  # the file that was read with a problem
    assert json.loads(broadsheet_here("verify", tmp_path / "out", "--json")[1])["unread"] == [
        [f"{tmp_path}/in/3.parquet", 250],
        [f"{tmp_path}/in/4.parquet", None],
    ]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (pa.array([7, None], pa.uint64()), ["7", None]),
        (pa.array([1.0, 0.25]), ["1", "0.25"]),
        (pa.array([True, False]), ["true", "false"]),
        (pa.array([datetime.datetime(2024, 5, 1)], pa.timestamp("s")), ["2024-05-01T00:00:00"]),
        (pa.array([datetime.datetime(2024, 5, 1)], pa.timestamp("ms", "UTC")), ["2024-05-01T00:00:00.000Z"]),
        (pa.array([datetime.date(2024, 5, 1)]), ["2024-05-01"]),
        (pa.array([decimal.Decimal("1.50")]), ["1.50"]),
        (pa.array([[1, 2], None, []]), ["[1, 2]", None, "[]"]),
        (pa.array([{"a": "é", "d": datetime.date(2024, 5, 1)}]), ['{"a": "é", "d": "2024-05-01"}']),
        (pa.array([b"\x00\xff"], pa.binary(2)), ["00ff"]),
        (pa.array([[float("nan"), -0.0], [float("inf"), None, 1e300]]), ["[null, -0.0]", "[null, null, 1e+300]"]),
        (pa.array([{"a": [float("-inf")], "b": True}]), ['{"a": [null], "b": true}']),
        (pa.array([{"t": None, "b": True}], pa.struct({"t": pa.null(), "b": pa.bool_()})), ['{"t": null, "b": true}']),
        (pa.array([["a"], ["é"]], pa.list_(pa.string_view())), ['["a"]', '["é"]']),
    ],
)
def test_values_become_text_one_by_one(values: pa.Array, text: list[str | None]) -> None:
    assert copied(values, pa.string()).to_pylist() == text
    assert [copied(values.slice(i, 1), pa.string()).to_pylist()[0] for i in range(len(values))] == text


def test_types_hold_the_values_of_several_files(tmp_path: Path) -> None:
    category = pa.dictionary(pa.int32(), pa.string())
    for kind, other, holds in (
        (pa.string(), pa.int64(), True), (category, pa.string(), True), (pa.int64(), pa.uint32(), True),
        (pa.int64(), pa.uint64(), False), (pa.uint64(), pa.int8(), False), (pa.int8(), pa.int64(), False),
        (pa.float64(), pa.float32(), True), (pa.float64(), pa.int64(), False), (pa.int8(), pa.null(), True),
        (pa.date32(), pa.string(), False),
    ):  # fmt: skip
        assert is_held_by(kind, other) is holds, (kind, other)
    for kind, other, both in (
        (category, pa.int64(), pa.string()), (category, category, category), (category, pa.string(), pa.string()),
        (category, pa.null(), category), (pa.int64(), pa.date32(), pa.string()),
    ):  # fmt: skip
        assert type_of_both(kind, other) == type_of_both(other, kind) == both
    for name, ids in (("a", pa.array([1], pa.int8())), ("b", pa.array([2], pa.int64())), ("c", pa.array(["x"]))):
        pq.write_table(pa.table({"text": [name], "id": ids}), tmp_path / f"{name}.parquet")
    a, b, c = (tmp_path / f"{name}.parquet" for name in "abc")
    for files, ids in (([a, b], [1, 2]), ([b, a], [2, 1]), ([a, b, c], ["1", "2", "x"]), ([a], [1])):
        result = read_files(found(files), Selection(kept_columns=("id",)), 10)
        assert result.chunks[0].rows.column("id").to_pylist() == ids
        assert not result.messages


def test_a_file_whose_column_does_not_fit_is_told_what_to_do(tmp_path: Path) -> None:
    """If there are many files, the job asks only some of them for their types."""
    for number in range(41):
        ids = pa.array(["x"]) if number == 2 else pa.array([number])
        pq.write_table(pa.table({"text": ["a"], "id": ids}), tmp_path / f"{number:02}.parquet")
    files = [tmp_path / f"{number:02}.parquet" for number in range(41)]
    result = read_files(found(files), Selection(kept_columns=("id",)), 100)
    assert result.chunks[0].rows.column("id").to_pylist() == [i for i in range(41) if i != 2]
    (message,) = result.messages
    assert "02.parquet: the column 'id' holds string, which this job cannot copy as int64, its type in " in message
    assert "name this file first, or do not keep the column" in message
    result = read_files(found([files[2], *files]), Selection(kept_columns=("id",)), 100)
    assert (len(result.chunks[0]), result.messages) == (41, [])


def test_a_saved_plan_has_the_types_that_the_files_give(tmp_path: Path) -> None:
    write_mixed(tmp_path / "in")
    files = found([tmp_path / "in"])
    asked = Selection(kept_columns=("id",), keep_all=True)
    plan = plan_files(files, asked, 10)
    assert plan.selection.kept_columns == ("id", "text", "n", "w")
    assert plan.selection.kept_types == (pa.string(), pa.string(), pa.int64(), pa.float64())
    assert plan_from(plan_bytes(plan), files, asked, 10, "plan") == plan
    forged = replace(plan, selection=replace(plan.selection, kept_types=(pa.string(),) * 4))
    with pytest.raises(OutputError, match="its columns are not those of the job"):
        plan_from(plan_bytes(forged), files, asked, 10, "plan")


# Nested columns, named with dots (`doc.body`), in files and in memory; and names that contain dots.


ROWS = [
    {
        "id": i,
        "doc": {"body": f"text {i} é", "meta": {"lang": "de" if i % 2 else "en", "n": i}, "x.y": "dots"},
        "a.b": "own",
    }
    for i in range(40)
] + [{"id": 40, "doc": None, "a.b": "own"}, {"id": 41, "doc": {"body": None, "meta": None, "x.y": None}, "a.b": None}]
FLAT = [row["doc"]["body"] if row["doc"] else None for row in ROWS]
TABLE = pa.Table.from_pylist(ROWS)
ASKED = {"text_column": "doc.body", "id_column": "id", "keep": ["doc.meta.lang", "doc.meta.n", "a.b"], "chunk_size": 9}


def as_files(folder: Path) -> dict[str, object]:
    (folder / "in.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS))
    pq.write_table(TABLE, folder / "in.parquet", row_group_size=20)
    feather.write_feather(TABLE, folder / "in.arrow", compression="lz4", chunksize=15)
    return {name: folder / name for name in ("in.jsonl", "in.parquet", "in.arrow")}


@pytest.mark.slow
def test_what_is_within_columns_is_read_kept_and_filtered_everywhere(small_model: Model, tmp_path: Path) -> None:
    sources = as_files(tmp_path) | {
        "table": TABLE,
        "batches": pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=7)),
        "polars": pl.from_arrow(TABLE),
        "pandas": pd.DataFrame(ROWS),
        "dicts": ROWS,
        "iterator": iter(ROWS),
    }
    expected = classify(FLAT, model=small_model, scores=True).to_arrow()
    lang = [row["doc"]["meta"]["lang"] for row in ROWS[:40]]
    for name, source in sources.items():
        report = classify(source, model=small_model, scores=True, **ASKED)
        table = report.to_arrow()
        assert (report.rows_written, report.rows_quarantined) == (40, 2), name
        for column in ("label", "score"):
            assert table[column].equals(expected[column]), name
        table = table.slice(0, 40)
        assert table["doc.meta.lang"].to_pylist() == lang, name
        assert [int(n) for n in table["doc.meta.n"].to_pylist()] == [*range(40)], name
        assert {*table["a.b"].to_pylist()} == {"own"}, name
    german = classify(tmp_path / "in.parquet", model=small_model, where='doc.meta.lang == "de"', **ASKED).to_arrow()
    assert {*german["doc.meta.lang"].to_pylist()} == {"de", None}  # quarantined rows keep their values
    assert german.filter(german["reason"].is_null()).num_rows == 20


def test_a_truth_within_a_column_is_compared(small_model: Model, tmp_path: Path) -> None:
    rows = [{"doc": {"body": text}, "gold": {"topic": f"class {i % 4}"}} for i, text in enumerate(FLAT[:40])]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source in (tmp_path / "in.jsonl", pa.Table.from_pylist(rows), rows):
        report = classify(source, model=small_model, text_column="doc.body", label_column="gold.topic")
        assert report.to_arrow()["truth"].to_pylist() == [f"class {i % 4}" for i in range(40)]


def test_a_name_that_has_the_dots_itself_wins(small_model: Model, tmp_path: Path) -> None:
    rows = [{"doc": {"body": "within"}, "doc.body": "own"}, {"doc": {"body": "within"}, "doc.body": "own"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    feather.write_feather(pa.Table.from_pylist(rows), tmp_path / "in.arrow")
    for source in (
        *(tmp_path / f"in.{kind}" for kind in ("jsonl", "parquet", "arrow")),
        rows,
        pa.Table.from_pylist(rows),
    ):
        table = classify(source, model=small_model, text_column="doc.body", keep="doc.body").to_arrow()
        assert table["doc.body"].to_pylist() == ["own", "own"]
        assert table["n_chars"].to_pylist() == [3, 3]


def test_a_wrong_name_is_told_with_the_one_that_was_meant(small_model: Model, tmp_path: Path) -> None:
    for name, source in (as_files(tmp_path) | {"table": TABLE, "dicts": ROWS}).items():
        with pytest.raises(UsageError, match=r"no column 'body'.*doc\.body.*did you mean 'doc\.body'"):
            classify(source, model=small_model, text_column="body")
        with pytest.raises(UsageError, match=r"no column 'doc\.bdy'.*did you mean 'doc\.body'"):
            classify(source, model=small_model, text_column="doc.bdy")
        if name not in ("in.jsonl",):
            with pytest.raises(UsageError, match=r"the text column 'doc(\.meta)?' holds struct"):
                classify(source, model=small_model, text_column="doc.meta" if name != "dicts" else "doc")


def test_labels_are_added_to_a_frame_by_such_a_name(small_model: Model) -> None:
    frame = pd.DataFrame(ROWS[:40])
    added = label(frame, model=small_model, text_column="doc.body")
    assert added["label"].tolist() == classify(FLAT[:40], model=small_model).to_arrow()["label"].to_pylist()


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=4)),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "a.b", ""]), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(60), deadline=None)
@given(
    lines=st.lists(
        st.dictionaries(st.sampled_from(["a", "b", "a.b", "id"]), VALUES, max_size=4), min_size=1, max_size=9
    )
)
def test_a_json_line_is_read_the_same_alone_and_among_others(lines: list[dict]) -> None:
    """Both Arrow's parser and Python's are tested."""
    block = block_of([json.dumps(line).encode() for line in [{"id": "1", "a": {"b": "x", "c": "y"}}, *lines]])
    for selection in (
        Selection(("a.b",)), Selection(("a.b",), ("id", "a.c"), reads=2), Selection(("a.b",), ("a",)),
        Selection(("id",), ("a.b", "b.a.b")),
    ):  # fmt: skip
        assert same(Jsonl().parse(block, "f", 3, selection), parse_one_by_one(block, "f", 3, selection))


def test_what_json_lacks_is_null_and_minus_zero_keeps_its_sign(small_model: Model, tmp_path: Path) -> None:
    """The values are within objects and arrays that are copied as text, from a file and from memory."""
    lines = ['{"text": "a", "n": -0, "x": {"b": [-0, -0.0, NaN, -Infinity, 1e5, "NaN"]}}', '{"text": "b", "n": 5}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines * 90))
    rows = classify(tmp_path / "a.jsonl", model=small_model, keep=["n", "x"]).to_arrow()
    assert rows["n"].to_pylist() == ["-0", "5"] * 90
    assert rows["x"].to_pylist() == ['{"b": [-0, -0.0, null, null, 1e5, "NaN"]}', None] * 90
    values = [{"b": [float("nan"), -0.0, (float("inf"),)]}, "text"]
    rows = classify([{"text": "a", "x": value} for value in values], model=small_model, keep="x").to_arrow()
    assert rows["x"].to_pylist() == ['{"b": [null, -0.0, [null]]}', "text"]


def test_words_of_one_file_and_numbers_of_another_are_both_read(small_model: Model, tmp_path: Path) -> None:
    words = pa.array(["x", "y"]).dictionary_encode()
    for name, column in (("a", words), ("b", pa.array([1, 2])), ("c", pa.array([None, None], pa.null()))):
        pq.write_table(pa.table({"text": ["one", "two"], "kept": column}), tmp_path / f"{name}.parquet")
    for order, kept in (("ab", ["x", "y", "1", "2"]), ("ba", ["1", "2", "x", "y"]), ("ac", ["x", "y", None, None])):
        files = Paths(tmp_path / f"{name}.parquet" for name in order)
        report = classify(files, model=small_model, keep="kept")
        assert report.exit_code == 0
        assert report.to_arrow()["kept"].to_pylist() == kept
    for number in range(60):  # the job opens only a few of these files for their types
        pq.write_table(pa.table({"text": ["one"], "kept": words[:1]}), tmp_path / f"a{number:03}.parquet")
    pq.write_table(pa.table({"text": ["one"], "kept": [7]}), tmp_path / "a030x.parquet")
    report = classify(Paths(sorted(tmp_path.glob("a0*.parquet"))), model=small_model, keep="kept")
    assert report.exit_code == 0
    assert sorted(report.to_arrow()["kept"].to_pylist()) == ["7", *["x"] * 60]


def write_hive(place: Path) -> None:
    """Write two files of each format into folders for a code and a year, and a file that has a column for the code
    itself.
    """
    table = pa.table({"text": ["a b", "c d"], "id": [1, 2]})
    for code in ("01001", "2%2F3", "__HIVE_DEFAULT_PARTITION__"):
        folder = place / f"code={code}" / "year=2024"
        folder.mkdir(parents=True)
        pq.write_table(table, folder / "a.parquet")
        feather.write_feather(table, folder / "b.arrow")
        (folder / "c.csv").write_text("id,text\n1,a b\n2,c d\n")
        (folder / "d.jsonl").write_text('{"text": "a b", "id": 1}\n{"text": "c d", "id": 2}\n')
        (folder / "e.jsonl.gz").write_bytes(gzip.compress((folder / "d.jsonl").read_bytes()))
    (place / "code=01001" / "year=2024" / "z.jsonl").write_text('{"text": "a", "code": "own"}\n{"text": "b"}\n')


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_kept_column_may_be_in_the_path(
    where: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hive(tmp_path / "in")
    source: dict[str, object] = {"source": tmp_path / "in"}
    if where == "bucket":
        folder: Folder = request.getfixturevalue("s3")
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        for file in (tmp_path / "in").rglob("*.*"):
            folder.store.put(str(file.relative_to(tmp_path)), file.read_bytes())
        source = {"source": pipeline.Paths([f"{folder.url}/in/"]), "endpoint": folder.endpoint}
    report = classify(**source, output=tmp_path / "out", keep=["code", "year"], device="cpu")
    rows = pq.read_table(tmp_path / "out" / "parts").select(["file", "row", "code", "year"]).to_pylist()
    values = {"code=01001": "01001", "code=2%2F3": "2/3", "code=__HIVE_DEFAULT_PARTITION__": None}
    assert len(rows) == 3 * 5 * 2 + 2
    for row in rows:
        above = next(value for folder, value in values.items() if folder in row["file"])
        own = (("own", None)[row["row"]],) if row["file"].endswith("z.jsonl") else (above,)
        assert (row["code"],) == own
        assert row["year"] == "2024"
    assert report.to_arrow().schema.field("code").type == pa.string()
    assert verify(tmp_path / "out").rows_read == len(rows)


def test_a_column_of_a_file_wins_over_its_path_and_that_is_said(tmp_path: Path) -> None:
    write_hive(tmp_path)
    file = tmp_path / "code=01001" / "year=2024" / "z.jsonl"
    with pytest.warns(UserWarning, match="'code' is copied from its column, not from its folder's name") as told:
        table = classify(file, keep=["code", "year"], device="cpu").to_arrow()
    assert len(told) == 1
    assert table.column("code").to_pylist() == ["own", None]
    assert table.column("year").to_pylist() == ["2024"] * 2
    folder = tmp_path / "later" / "lang=x"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("text\nOil\n")
    (folder / "b.csv").write_text("text,lang\nOil,own\n")
    later = classify(folder.parent, output=tmp_path / "out", keep=["lang"], device="cpu")
    assert later.exit_code == 0  # a file with a column of its own is no error
    assert f"{folder / 'b.csv'}: 'lang' is copied from its column, not from its folder's name" in later.hints
    assert sorted(later.to_arrow().column("lang").to_pylist()) == ["own", "x"]
    with pytest.raises(UsageError, match="no column 'cod'"):
        classify(file, keep="cod", device="cpu")
