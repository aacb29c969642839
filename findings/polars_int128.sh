#!/usr/bin/env bash
# pyarrow 26.0.1 cannot open a Parquet file in which Polars 2.1.0 wrote one column of 128-bit integers.
#
# Parquet holds such a column as bytes of fixed size, and Polars adds its Arrow schema to the file. pyarrow reads that
# schema first, has no integers of 128 bits, and so opens the file for nothing: neither for the other columns, nor for the
# schema, nor for the number of rows in its footer. DuckDB 2.0.1 reads the other columns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.1
cd "$folder"
venv/bin/python - <<'END'
import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

frame = polars.DataFrame({"text": ["one"], "sum": polars.Series([2**70], dtype=polars.Int128)})
frame.write_parquet("f.parquet")
assert polars.read_parquet("f.parquet")["sum"].to_list() == [2**70]
calls = (
    lambda: pq.read_table("f.parquet", columns=["text"]),
    lambda: pq.read_schema("f.parquet"),
    lambda: pq.read_metadata("f.parquet"),
)
for call in calls:
    try:
        call()
    except pa.ArrowNotImplementedError as error:
        print(f"pyarrow: {error}")
        assert "more than 64 bits" in str(error)
    else:
        raise SystemExit("pyarrow opens it")
assert duckdb.sql("SELECT text FROM 'f.parquet'").fetchall() == [("one",)]
END
