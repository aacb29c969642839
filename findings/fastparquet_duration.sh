#!/usr/bin/env bash
# fastparquet 2026.9.0 writes a duration as a time of day, and pyarrow 26.0.1 then shows 51 hours as 03:04.
#
# Parquet has no type for a duration, so fastparquet marks a column of timedeltas as TIME, with values beyond 24 hours.
# It reads them back as durations, by metadata that only pandas' readers know. pyarrow reads time64, and to_pylist takes
# the value modulo a day: 51:04 becomes datetime.time(3, 4), without a word. DuckDB 2.0.1 refuses the file.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q fastparquet==2026.9.0 pandas==3.1.1 pyarrow==26.0.1 duckdb==2.0.1
cd "$folder"
venv/bin/python - <<'END'
import datetime

import duckdb
import fastparquet
import pandas
import pyarrow as pa
import pyarrow.parquet as pq

took = pandas.DataFrame({"took": pandas.to_timedelta(["51:04:00", "00:30:00"])})
fastparquet.write("took.parquet", took)
assert fastparquet.ParquetFile("took.parquet").to_pandas()["took"][0] == pandas.Timedelta(hours=51, minutes=4)
column = pq.read_table("took.parquet")["took"]
print(f"pyarrow: {column.type}, {column.to_pylist()}, stored {column.cast(pa.int64()).to_pylist()}")
assert column.type == pa.time64("us")
assert column.to_pylist() == [datetime.time(3, 4), datetime.time(0, 30)]
try:
    duckdb.sql("FROM 'took.parquet'").fetchall()
except duckdb.Error as error:
    print(f"DuckDB: {error}")
    assert "TIME values must be within a day" in str(error)
else:
    raise SystemExit("DuckDB reads it")
END
