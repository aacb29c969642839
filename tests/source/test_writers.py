"""Files of real writers: for each format and column type, the values equal those that pyarrow reads from the file, or
the column is refused by name before any work.

Writers are not asked for types that they cannot hold. A writer may change values, as pandas makes floats of integers
with nulls: the file decides.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import openpyxl
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import Read, found, read_files, read_split

from broadsheet.pipeline import UsageError, classify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.memory.tables import of_table
from broadsheet.pipeline.source.rows.chunk import Selection, concat

DAY, MOMENT = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 23, 59, 58, 123456)
CLOCK, TOOK = dt.time(23, 59, 58, 123456), dt.timedelta(days=2, hours=3, milliseconds=4)
MONEY = decimal.Decimal("-123.45")


def of_storage(kind: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


COLUMNS: dict[str, pa.Array] = {
    "bool": pa.array([True, False, None]),
    **{f"int{n}": pa.array([-(1 << n - 1), (1 << n - 1) - 1, None], f"int{n}") for n in (8, 16, 32, 64)},
    **{f"uint{n}": pa.array([0, (1 << n) - 1, None], f"uint{n}") for n in (8, 16, 32, 64)},
    "int64 whole": pa.array([-(1 << 63), 0, (1 << 63) - 1]),
    "float16": pa.array([0.1, -0.0, None], pa.float16()),
    "float32": pa.array([0.1, math.inf, None], pa.float32()),
    "float64": pa.array([0.1, -0.0, 5e-324, 1e300, math.inf, math.nan, None]),
    "string": pa.array(["", 'é "q", \\N', None, "a\nb", "\ufeffNULL", " \t", "日本語 😀"]),
    "number-like": pa.array(["007", "1e5", "2024-01-31", "true", "-0", None]),
    "large_string": pa.array(["a", None], pa.large_string()),
    "string_view": pa.array(["a string of more than twelve bytes", "a", None], pa.string_view()),
    "binary": pa.array([b"\xff\x00", b"", None]),
    "large_binary": pa.array([b"\xff", None], pa.large_binary()),
    "binary_view": pa.array([b"\xff", None], pa.binary_view()),
    "fixed binary": pa.array([b"ab", None], pa.binary(2)),
    "null": pa.nulls(3),
    "date32": pa.array([DAY, None]),
    "date64": pa.array([DAY, None], pa.date64()),
    **{f"time {unit}": pa.array([CLOCK.replace(microsecond=0), None], pa.time32(unit)) for unit in ("s", "ms")},
    **{f"time {unit}": pa.array([CLOCK, None], pa.time64(unit)) for unit in ("us", "ns")},
    **{f"moment {unit}": pa.array([MOMENT, None]).cast(pa.timestamp(unit), safe=False) for unit in ("s", "ms", "us")},
    "moment ns": pa.array([1, -1, None], pa.timestamp("ns")),
    "moment UTC": pa.array([MOMENT, None], pa.timestamp("us", "UTC")),
    "moment zone": pa.array([1, None], pa.timestamp("ns", "Europe/Berlin")),
    **{f"duration {unit}": pa.array([TOOK, None]).cast(pa.duration(unit), safe=False) for unit in ("s", "ms", "us")},
    "duration ns": pa.array([1, None], pa.duration("ns")),
    "decimal128": pa.array([MONEY, None], pa.decimal128(20, 3)),
    "decimal256": pa.array([MONEY, None], pa.decimal256(60, 3)),
    "words": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    "words of views": pa.DictionaryArray.from_arrays(
        pa.array([1, 0, None], pa.uint8()), pa.array(["a", "b"], pa.string_view()), ordered=True
    ),
    "coded numbers": pa.array([5, 6, None]).dictionary_encode(),
    "list": pa.array([[1, None], [], None]),
    "list of texts": pa.array([["a", None, ""], [], None]),
    "list of floats": pa.array([[0.1, math.nan], None], pa.list_(pa.float32())),
    "large list": pa.array([["a"], None], pa.large_list(pa.large_string())),
    "list of views": pa.array([["a"], None], pa.list_(pa.string_view())),
    "list view": pa.array([["a"], None], pa.list_view(pa.string())),
    "fixed list": pa.array([[1, 2], [3, None]], pa.list_(pa.int32(), 2)),
    "list of lists": pa.array([[[1], None], None]),
    "list of words": pa.ListArray.from_arrays([0, 2], pa.array(["a", "b"]).dictionary_encode()),
    "struct": pa.array([{"a": 1, "b": "x", "c": None}, None, {"a": None, "b": "", "c": [MOMENT]}]),
    "struct of words": pa.array(
        [None, {"a": "x"}, {"a": None}], pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))])
    ),
    "list of structs": pa.array([[{"a": 1, "b": [b"\x00"]}], [], None]),
    "map": pa.array([[("k", 1), ("l", None)], [], None], pa.map_(pa.string(), pa.int64())),
    "empty struct": pa.array([{}, None], pa.struct([])),
    "json": of_storage(pa.json_(), ['{"a": 1}', "[]", None]),
    "uuid": of_storage(pa.uuid(), [uuid.UUID(int=7).bytes, None]),
    "list of uuids": pa.ListArray.from_arrays([0, 1, 2], of_storage(pa.uuid(), [uuid.UUID(int=7).bytes, None])),
    "run ends": pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]),
    "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "union": pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
}

REFUSED = {"empty struct", "run ends", "interval", "union", "list of uuids"}
"""Columns that may be refused, because Parquet files or pyarrow's empty tables cannot hold them."""


def texts(count: int) -> pa.Array:
    return pa.array([f"article {i}" for i in range(count)])


def frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas()


def arrow_frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def by_duckdb(table: pa.Table, path: Path, options: str = "") -> None:
    if "PARQUET_VERSION" in options:
        pytest.importorskip("duckdb", "1.2")
    with duckdb.connect() as database:
        database.register("given", table)
        database.execute(f"COPY given TO '{path}' {options}")


def by_fastparquet(table: pa.Table, path: Path, **options: Any) -> None:
    pytest.importorskip("fastparquet").write(str(path), frame(table), write_index=False, **options)


def dataset(table: pa.Table) -> Any:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets.Dataset(datasets.table.InMemoryTable(table))


def saved_dataset(table: pa.Table, path: Path) -> None:
    dataset(table).save_to_disk(path.with_suffix(""))
    next(path.with_suffix("").glob("*.arrow")).rename(path)


def stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(path, table.schema) as to:
        to.write_table(table, 2)


TABLES: dict[str, Callable[[pa.Table, Path], object]] = {
    "pyarrow.parquet": pq.write_table,
    "pyarrow plain.parquet": lambda table, path: pq.write_table(
        table, path, use_dictionary=False, compression="none", data_page_version="2.0", store_schema=False
    ),
    "pyarrow 1.0.parquet": lambda table, path: pq.write_table(
        table, path, version="1.0", use_deprecated_int96_timestamps=True, row_group_size=1
    ),
    "pyarrow.arrow": feather.write_feather,
    "pyarrow.arrows": stream,
    "pandas.parquet": lambda table, path: frame(table).to_parquet(path),
    "pandas of Arrow.parquet": lambda table, path: arrow_frame(table).to_parquet(path),
    "pandas.feather": lambda table, path: frame(table).to_feather(path),
    "polars.parquet": lambda table, path: pl.from_arrow(table).write_parquet(path),
    "polars by pyarrow.parquet": lambda table, path: pl.from_arrow(table).write_parquet(path, use_pyarrow=True),
    "polars.arrow": lambda table, path: pl.from_arrow(table).write_ipc(path),
    "polars oldest.arrow": lambda table, path: pl.from_arrow(table).write_ipc(
        path, compression="lz4", compat_level=pl.CompatLevel.oldest()
    ),
    "polars.arrows": lambda table, path: pl.from_arrow(table).write_ipc_stream(path),
    "duckdb.parquet": by_duckdb,
    "duckdb 2.parquet": lambda table, path: by_duckdb(table, path, "(PARQUET_VERSION v2, COMPRESSION zstd)"),
    "fastparquet.parquet": by_fastparquet,
    "fastparquet int96.parquet": lambda table, path: by_fastparquet(table, path, times="int96", stats=False),
    "datasets.parquet": lambda table, path: dataset(table).to_parquet(path),
    "datasets.arrow": saved_dataset,
}

LINES: dict[str, Callable[[pa.Table, Path], object]] = {
    "pandas.csv": lambda table, path: frame(table).to_csv(path, index=False),
    "polars.csv": lambda table, path: pl.from_arrow(table).write_csv(path),
    "duckdb.csv": by_duckdb,
    "pyarrow.csv": pa_csv.write_csv,
    "datasets.csv": lambda table, path: dataset(table).to_csv(path),
    "pandas.jsonl": lambda table, path: frame(table).to_json(path, orient="records", lines=True),
    "polars.jsonl": lambda table, path: pl.from_arrow(table).write_ndjson(path),
    "duckdb.jsonl": lambda table, path: by_duckdb(table, path, "(FORMAT json)"),
    "datasets.jsonl": lambda table, path: dataset(table).to_json(path),
}


def written(writer: Callable[[pa.Table, Path], object], table: pa.Table, path: Path) -> bool:
    """Write the table, and return whether the writer can."""
    try:
        writer(table, path)
    except pytest.skip.Exception:
        raise
    except BaseException as error:  # each writer has errors of its own, and Polars panics
        if isinstance(error, KeyboardInterrupt):
            raise
        path.unlink(missing_ok=True)
        return False
    return True


def as_pyarrow_reads(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    try:
        return pa.ipc.open_file(path.read_bytes()).read_all()
    except pa.ArrowInvalid:  # the file is a stream
        return pa.ipc.open_stream(path.read_bytes()).read_all()


def plain(value: Any) -> Any:
    """Return a value that equals itself, unlike NaN, and in which a zero keeps its sign."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


LAYOUTS = {"large_string": "string", "string_view": "string", "large_binary": "binary", "binary_view": "binary"}


def same_type(kept: pa.DataType, read: pa.DataType) -> bool:
    """Return whether a copied column keeps the type that it is read with, apart from the layout of strings
    and lists.
    """
    kept, read = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (kept, read))
    if pa.types.is_null(read) or isinstance(read, pa.JsonType):
        return kept == pa.string()
    return pa.types.is_nested(read) or str(kept) == LAYOUTS.get(str(read), str(read))


def fault(path: Path, is_refused: bool, read_as: Callable[..., Read]) -> str | None:
    """Return how the copied column of a file differs from what pyarrow reads. is_refused: whether it may be refused."""
    try:
        expected = as_pyarrow_reads(path)["kept"]
    except OSError:
        expected = None  # e.g. for DuckDB's integers that are far apart, in its second version of Parquet
    try:
        result = read_as(found([path]), Selection(kept_columns=("kept",)), 2)
    except UsageError as error:
        return None if is_refused and "'kept'" in error.message else f"refused: {error.message}"
    if expected is None:
        return None if "cannot be read" in "".join(result.messages) else "no problem"
    chunk = concat(result.chunks)
    rows = chunk.rows["row"].to_pylist()
    aside = [row["reason"] for row in chunk.quarantine.to_pylist()]
    kept, values = chunk.rows["kept"], expected.to_pylist()
    if result.messages or {*aside} - {"column 'kept' holds a time out of range"}:
        return f"{result.messages} {aside}"
    if plain(kept.to_pylist()) != plain([values[row] for row in rows]):
        return f"{kept.to_pylist()}, not {values}"
    return None if same_type(kept.type, expected.type) else f"{kept.type}, not {expected.type}"


VARIANTS = {name for name in TABLES if " " in name}
"""Writers with options other than their defaults."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in VARIANTS else []) for name in TABLES]
)
def test_kept_columns_of_tables_are_as_pyarrow_reads_them(small_model: Model, tmp_path: Path, name: str) -> None:
    """The test checks each column alone, and then all right columns together in a job."""
    faults: list[str] = []
    good: dict[str, pa.Array] = {}
    for column, values in COLUMNS.items():
        path = tmp_path / f"{column}.{name.rpartition('.')[2]}"
        if not written(TABLES[name], pa.table({"text": texts(len(values)), "kept": values}), path):
            continue
        found_faults = {fault(path, column in REFUSED, read_as) for read_as in (read_files, read_split)} - {None}
        faults += [f"{column}: {one}" for one in found_faults]
        if column not in REFUSED and len(values) == 3:
            good[column] = values
    assert not faults
    assert len(good) > 16
    path = tmp_path / "all" / f"all.{name.rpartition('.')[2]}"
    path.parent.mkdir()
    if name == "duckdb 2.parquet" or not written(TABLES[name], pa.table({"text": texts(3), **good}), path):
        return
    report = classify(path, tmp_path / "out", model=small_model, keep=[*good])
    assert report.exit_code == 0
    kept, expected = report.to_arrow(), as_pyarrow_reads(path)
    rows = kept["row"].to_pylist()
    for column in good:
        values = expected[column].to_pylist()
        assert plain(kept[column].to_pylist()) == plain([values[row] for row in rows]), column


@pytest.mark.parametrize("name", LINES)
def test_kept_columns_of_lines_are_as_they_stand_there(tmp_path: Path, name: str) -> None:
    """Lines become text: CSV as pyarrow reads it, and JSON Lines as the file spells them, apart from strings."""
    faults = []
    wrote = 0
    for column, values in COLUMNS.items():
        path = tmp_path / f"{column}.{name.rpartition('.')[2]}"
        if not written(LINES[name], pa.table({"text": texts(len(values)), "kept": values}), path):
            continue
        wrote += 1
        if path.suffix == ".csv":
            options = pa_csv.ConvertOptions(column_types={"kept": pa.binary(), "text": pa.string()})
            parse = pa_csv.ParseOptions(newlines_in_values=True)
            expected = pa_csv.read_csv(path, parse_options=parse, convert_options=options)["kept"].to_pylist()
        else:
            expected = [json.loads(line).get("kept") for line in path.read_text().splitlines()]
        for read_as in (read_files, read_split):
            result = read_as(found([path]), Selection(kept_columns=("kept",)), 2)
            chunk = concat(result.chunks)
            kept, rows = chunk.rows["kept"].to_pylist(), chunk.rows["row"].to_pylist()
            aside = {row["reason"].partition(":")[0] for row in chunk.quarantine.to_pylist()}
            if result.messages or aside - {"column 'kept' is not UTF-8"}:
                faults.append(f"{column}: {result.messages} {aside}")
            elif not all(is_text_of(text, expected[row]) for text, row in zip(kept, rows, strict=True)):
                faults.append(f"{column}: {kept}, not {expected}")
    assert not faults
    assert wrote > len(COLUMNS) // 3


def is_text_of(text: str | None, value: Any) -> bool:
    if isinstance(value, bytes):
        return text == value.decode()
    if isinstance(value, list | dict):
        value = with_nulls(value)
    return text == value if isinstance(value, str | None) else plain(json.loads(text or "")) == plain(value)


def with_nulls(value: Any) -> Any:
    """Return the value with null for what JSON lacks, although DuckDB writes it."""
    if isinstance(value, list):
        return [with_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: with_nulls(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


CELLS: dict[str, dict[Any, str | None]] = {
    "words": {text: text for text in ('é "q"', "a\nb", " \t", "_x0041_ x005F_", "a\tb", "日本語 😀")} | {"": None},
    "number-like": {text: text for text in ("007", "1e5", "2024-01-31", "TRUE", "0x10")},
    "integer": {0: "0", -5: "-5", 10**14: "1" + "0" * 14, 1 << 53: "9007199254740992"},
    "number": {0.1: "0.1", -0.5: "-0.5", 1e300: "1e+300", 5.0: "5", 1 / 3: "0.3333333333333333"},
    "boolean": {True: "TRUE", False: "FALSE"},
    "day": {DAY: "2024-02-29"},
    "moment": {MOMENT.replace(microsecond=0): "2024-02-29 23:59:58", MOMENT.replace(hour=0): "2024-02-29 00:59:58.123"},
    "clock": {CLOCK.replace(microsecond=0): "23:59:58"},
    "duration": {dt.timedelta(hours=51, minutes=4): "51:04:00", dt.timedelta(seconds=1.5): "0:00:01.5"},
}
"""Values of cells, and the text that each is read as."""


def by_openpyxl(name: str, values: list[Any], path: Path, write_only: bool = False) -> None:
    book = openpyxl.Workbook(write_only=write_only)
    sheet = book.create_sheet() if write_only else book.active
    sheet.append(("text", name))
    for i, value in enumerate(values):
        sheet.append((f"article {i}", value))
    book.save(path)


def by_xlsxwriter(name: str, values: list[Any], path: Path, constant_memory: bool = False) -> None:
    xlsxwriter = pytest.importorskip("xlsxwriter")
    with xlsxwriter.Workbook(path, {"constant_memory": constant_memory}) as book:
        formats = {
            dt.date: "yyyy-mm-dd",
            dt.datetime: "yyyy-mm-dd hh:mm:ss.000",
            dt.time: "hh:mm:ss",
            dt.timedelta: "[h]:mm:ss.000",
        }
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, ["text", name])
        for i, value in enumerate(values, 1):
            sheet.write_string(i, 0, f"article {i - 1}")
            kind = type(value)
            if kind in formats:
                sheet.write_datetime(i, 1, value, book.add_format({"num_format": formats[kind]}))
            else:
                (sheet.write_string if kind is str else sheet.write)(i, 1, value)


def by_pandas(name: str, values: list[Any], path: Path, engine: str) -> None:
    pytest.importorskip(engine)
    rows = pd.DataFrame({"text": [f"article {i}" for i in range(len(values))], name: pd.Series(values, dtype=object)})
    rows.to_excel(path, index=False, engine=engine)


def by_polars(name: str, values: list[Any], path: Path) -> None:
    pytest.importorskip("xlsxwriter")
    pl.DataFrame({"text": [f"article {i}" for i in range(len(values))], name: values}).write_excel(path)


WORKBOOKS: dict[str, Callable[[str, list[Any], Path], None]] = {
    "openpyxl": by_openpyxl,
    "openpyxl write-only": lambda *given: by_openpyxl(*given, write_only=True),
    "xlsxwriter": by_xlsxwriter,
    "xlsxwriter constant memory": lambda *given: by_xlsxwriter(*given, constant_memory=True),
    "pandas by openpyxl": lambda *given: by_pandas(*given, "openpyxl"),
    "pandas by xlsxwriter": lambda *given: by_pandas(*given, "xlsxwriter"),
    "polars": by_polars,
}


@pytest.mark.parametrize("name", WORKBOOKS)
def test_kept_columns_of_workbooks_are_what_excel_shows(tmp_path: Path, name: str) -> None:
    faults = []
    for column, shown in CELLS.items():
        if column == "duration" and name.startswith(("pandas", "polars")):
            continue  # the writer stores a number of days, and Excel shows that number
        path = tmp_path / f"{column}.xlsx"
        WORKBOOKS[name](column, [*shown], path)
        result = read_files(found([path]), Selection(kept_columns=(column,)), 100)
        assert not result.messages
        kept = concat(result.chunks).rows[column].to_pylist()
        escapes = "xlsxwriter" in name or name == "polars"
        expected = [*shown.values()] if escapes else [text and text.replace("_x0041_", "A") for text in shown.values()]
        if kept != expected:
            faults.append(f"{column}: {kept}, not {expected}")
    assert not faults


LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(-9, 9)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    *((kind, st.text(max_size=20)) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((kind, st.binary(max_size=20)) for kind in (pa.binary(), pa.binary_view())),
    (pa.dictionary(pa.int16(), pa.string()), st.sampled_from("abc")),
    (pa.timestamp("us"), st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))),
    (pa.decimal128(9, 2), st.integers(-(10**6), 10**6).map(lambda cents: decimal.Decimal(cents) / 100)),
]


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw lists of each layout, and structs, of columns of these types. A column is its type and its values."""
    lists = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]

    def of_lists(made: Callable[..., pa.DataType], column: tuple[pa.DataType, st.SearchStrategy[Any]]) -> Any:
        return made(column[0]), st.lists(st.none() | column[1], max_size=3)

    def of_struct(one: tuple[pa.DataType, Any], other: tuple[pa.DataType, Any]) -> Any:
        values = st.fixed_dictionaries({"a": st.none() | one[1], "b": st.none() | other[1]})
        return pa.struct([("a", one[0]), ("b", other[0])]), values

    return st.builds(of_lists, st.sampled_from(lists), inner) | st.builds(of_struct, inner, inner)


COLUMN = st.recursive(st.sampled_from(LEAVES), containers, max_leaves=4)


@settings(max_examples=examples(150), deadline=None)
@given(COLUMN, st.data())
def test_columns_of_any_type_are_as_pyarrow_reads_them(
    tmp_path_factory: pytest.TempPathFactory, column: tuple[pa.DataType, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    kind, values = column
    drawn = data.draw(st.lists(st.none() | values, min_size=1, max_size=6))
    table = pa.table({"text": texts(len(drawn)), "kept": pa.array(drawn, kind)})
    for writer in ("pyarrow.parquet", "pyarrow.arrow", "pyarrow.arrows", "polars.parquet", "polars.arrow"):
        path = tmp_path_factory.mktemp("any") / f"f.{writer.rpartition('.')[2]}"
        if written(TABLES[writer], table, path):
            assert fault(path, False, read_files) is None, writer


TEXTS = ["Stocks fell.", None, "", "日本語 😀 of more than twelve bytes"]
AS_TEXT = {
    **{str(kind): pa.array(TEXTS, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())},
    "binary": pa.array([text and text.encode() for text in TEXTS]),
    "words": pa.array(TEXTS).dictionary_encode(),
    "coded views": pa.DictionaryArray.from_arrays(
        pa.array([0, None, 1, 2], pa.uint8()),
        pa.array([text for text in TEXTS if text is not None], pa.string_view()),
    ),
    "json": of_storage(pa.json_(), TEXTS),
    "json of views": of_storage(pa.json_(pa.string_view()), TEXTS),
}
"""Columns that hold text."""


@pytest.mark.parametrize(
    "name", ["pyarrow.parquet", "pyarrow.arrow", "pyarrow.arrows", "polars.arrow", "duckdb.parquet"]
)
@pytest.mark.parametrize("kind", AS_TEXT)
def test_a_text_column_may_be_of_any_layout(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / f"f.{name.rpartition('.')[2]}"
    if not written(TABLES[name], pa.table({"body": AS_TEXT[kind]}), path):
        pytest.skip(f"it cannot write {kind}")
    for read_as in (read_files, read_split):
        result = read_as(found([path]), Selection(("body",)), 3)
        assert not result.messages
        assert result.texts == [text.encode() for text in TEXTS if text is not None]
    table = feather.read_table(path) if name == "pyarrow.arrow" else pa.table({"body": AS_TEXT[kind]})
    held = of_table(table)
    selection = held.resolve(Selection(("body",)))
    assert [chunk.text.to_pylist() for chunk in held.chunks(selection, 9)] == [result.texts]


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "arrows"])
def test_a_file_with_integers_that_pyarrow_lacks_says_what_helps(tmp_path: Path, suffix: str) -> None:
    """No column of such a file can be read. The file beside it is read."""
    frame = pl.DataFrame({"text": ["one"], "sum": pl.Series([1], dtype=pl.Int128)})
    write = {"parquet": frame.write_parquet, "arrow": frame.write_ipc, "arrows": frame.write_ipc_stream}[suffix]
    write(tmp_path / f"a.{suffix}")
    (tmp_path / "b.txt").write_text("two")
    result = read_files(found([tmp_path]), Selection(), 9)
    assert result.texts == [b"two"]
    assert "cast the column to 64 bits or to text, or write the file without it" in result.messages[0]
