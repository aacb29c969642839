#!/usr/bin/env bash
# The same Hive folders of text have another type in each library, and Dask 2026.7.1 makes a null of a value.
#
# Folders code=007 and code=2A004: pandas 3.1.1, Polars 2.1.0 and DuckDB 2.0.1 read both texts. Dask reads 007 as null:
# it takes the categories from one fragment's guess. Folders code=01001 and code=1e5: Polars reads the numbers 1001.0 and
# 100000.0, pandas and DuckDB text. Folders code=007 and code=01001: numbers in all but DuckDB.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "dask[dataframe]==2026.7.1" pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1
cd "$folder"
venv/bin/python - <<'END'
from pathlib import Path

import dask.dataframe as dd
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

READERS = {
    "pandas": lambda name: pd.read_parquet(name)["code"].tolist(),
    "Dask": lambda name: dd.read_parquet(name)["code"].compute().tolist(),
    "Polars": lambda name: pl.read_parquet(f"{name}/")["code"].to_list(),
    "DuckDB": lambda name: [code for (code,) in duckdb.sql(f"select code from '{name}/**/*.parquet'").fetchall()],
}


def read(name: str, *codes: str) -> dict[str, list[object]]:
    for code in codes:
        Path(name, f"code={code}").mkdir(parents=True)
        pq.write_table(pa.table({"n": [1]}), f"{name}/code={code}/part.parquet")
    found = {reader: sorted(map(str, call(name))) for reader, call in READERS.items()}
    print(codes, found)
    return found


words = read("words", "007", "2A004")
assert words == {reader: ["2A004", "nan"] if reader == "Dask" else ["007", "2A004"] for reader in READERS}
assert read("floats", "01001", "1e5")["Polars"] == ["100000.0", "1001.0"]
numbers = read("numbers", "007", "01001")
assert numbers.pop("DuckDB") == ["007", "01001"]
assert all(values == ["1001", "7"] for values in numbers.values())

text = ds.HivePartitioning(pa.schema([("code", pa.string())]))
assert sorted(dd.read_parquet("words", dataset={"partitioning": text})["code"].compute()) == ["007", "2A004"]
assert sorted(pl.read_parquet("floats/", hive_schema={"code": pl.String})["code"]) == ["01001", "1e5"]
END
