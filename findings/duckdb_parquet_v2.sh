#!/usr/bin/env bash
# pyarrow 26.0.1 cannot read 32-bit integers that are far apart from a file of DuckDB 2.0.1's PARQUET_VERSION v2.
#
# That version stores integers as differences. Where neighbours of an INTEGER column differ by 2^31 or more, pyarrow ends
# with "Unexpected end of stream: InitBlock EOF". DuckDB itself, Polars 2.1.0 and fastparquet 2026.9.0 read the values.
# Neighbours that are closer, and BIGINT columns, are read by all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q duckdb==2.0.1 pyarrow==26.0.1 polars==2.1.0 fastparquet==2026.9.0
cd "$folder"
venv/bin/python - <<'END'
import duckdb
import fastparquet
import polars
import pyarrow.parquet as pq


def copy(kind: str, values: list[int]) -> list[int]:
    query = f"SELECT unnest({values})::{kind} AS k"
    duckdb.sql(f"COPY ({query}) TO '{kind}.parquet' (PARQUET_VERSION v2)")
    return values


far = copy("INTEGER", [-(2**31), 2**31 - 1])
assert polars.read_parquet("INTEGER.parquet")["k"].to_list() == far
assert fastparquet.ParquetFile("INTEGER.parquet").to_pandas()["k"].tolist() == far
assert [k for (k,) in duckdb.sql("FROM 'INTEGER.parquet'").fetchall()] == far
try:
    pq.read_table("INTEGER.parquet")
except OSError as error:
    print(f"pyarrow: {error}")
    assert "InitBlock EOF" in str(error)
else:
    raise SystemExit("pyarrow reads it")
for kind, values in (("INTEGER", [-5, 2**30]), ("BIGINT", far)):
    copy(kind, values)
    assert pq.read_table(f"{kind}.parquet")["k"].to_pylist() == values
END
